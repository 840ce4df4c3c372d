"""`python -m benchmarks.defaults.versus`: `fieldwise auto` with a time limit compared with trials of `fieldwise tune`.

Both train on a table's training rows, choose by its validation rows, and are evaluated once on its test rows, at the
end. `tune` searches each of `--models` separately, and the best by validation logloss counts. Completed work is stored:
an interrupted run can be continued.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from benchmarks.defaults.__main__ import STORE, names_of
from benchmarks.defaults.runs import MODELS, Rows, Settings, applies, rows_of
from benchmarks.defaults.store import Found, Place
from benchmarks.defaults.tables import COUNTED, TABLES
from benchmarks.defaults.targets import difference
from fieldwise.automatic import AutoSettings, run_auto
from fieldwise.data.prepare.split_settings import ColumnSplit
from fieldwise.evaluation import binary_metrics, logloss_from_logits
from fieldwise.runs.environment import environment
from fieldwise.runs.fits import RunContext
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.tune import tune

__all__ = ["main"]

PART = "part_of_versus"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    settings = Settings(data_dir=options.data_dir, store=options.store, tag="versus", max_rows=options.max_rows)
    met = 0
    for name in options.tables:
        rows = rows_of(TABLES[name], 0, settings)
        tuned = [_kept(rows, f"tune-{m}-{options.trials}", _tuned, m, options) for m in options.models if _can(rows, m)]
        auto = _kept(rows, f"auto-{options.minutes:g}", _auto, "auto", options)
        if not tuned:
            print(f"{rows.name}: none of {', '.join(options.models)} can run")
            continue
        best = min(tuned, key=lambda run: run.about["valid"]["logloss"])
        gap = difference([auto], [best])
        met += gap.low <= 0
        print(
            f"{rows.name}: auto {_words(auto)}; tune {_words(best)}; auto minus tune {gap.value:+.4f} "
            f"[{gap.low:+.4f}, {gap.high:+.4f}]: {'no worse' if gap.low <= 0 else 'worse'}",
            flush=True,
        )
    print(f"no worse on {met} of {len(options.tables)} tables")
    return 0


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks.defaults.versus", description=__doc__)
    found.add_argument("--tables", type=names_of(TABLES), default=list(COUNTED))
    found.add_argument("--models", type=names_of(MODELS), default=["fm", "afm", "autoint-plus"], help="models to tune")
    found.add_argument("--minutes", type=float, default=10.0)
    found.add_argument("--trials", type=int, default=30, help="trials per model")
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--max-rows", type=int, help="maximum rows of each table, sampled at random")
    found.add_argument("--store", type=Path, default=STORE)
    found.add_argument("--data-dir", type=Path, default=Path(os.environ.get("FIELDWISE_DATA", "data")))
    return found


def _can(rows: Rows, model: str) -> bool:
    return applies(model, rows.schema)


def _kept(rows: Rows, name: str, make: Any, model: str, options: argparse.Namespace) -> Found:
    place = Place(options.store, "versus", rows.name, name)
    found = place.get()
    if found is None:
        began = time.perf_counter()
        logit, about = make(rows, model, options)
        y = np.asarray(rows.prepared.test.main, dtype=np.float64)
        test = {"auc": binary_metrics(y, logit)["auc"], "logloss": logloss_from_logits(y, logit)}
        about |= {"table": rows.name, "model": model, "seed": 0, "test": test, "environment": environment()}
        found = Found({**about, "seconds": time.perf_counter() - began}, y, logit)
        place.put(found)
    return found


def _auto(rows: Rows, _: str, options: argparse.Namespace) -> tuple[np.ndarray, dict[str, Any]]:
    settings = AutoSettings(schema=rows.schema, split=ColumnSplit(column=PART), minutes=options.minutes)
    result = run_auto(_with_parts(rows), settings, _note)
    logit = result.best.calibrated(result.best.score(rows.prepared.test.frame))
    return logit, {"result": json.loads(json.dumps(result.to_plain(), default=str))}


def _tuned(rows: Rows, model: str, options: argparse.Namespace) -> tuple[np.ndarray, dict[str, Any]]:
    folder = options.store / "versus" / rows.name
    path, prepared = folder / "table.parquet", rows.prepared
    folder.mkdir(parents=True, exist_ok=True)
    _with_parts(rows).write_parquet(path)
    plain = {
        "data": {"path": str(path.resolve())},
        "schema": rows.schema.to_dict(),
        "split": {"kind": "column", "column": PART},
        "model": {"name": MODELS[model]},
        "training": {"monitor": "logloss"},
    }
    recipe = Recipe.from_dict(plain, f"{rows.name}/{model}")
    context = RunContext(data_dir=options.data_dir, note=_note)
    found = tune(recipe, trials=options.trials, store=folder / "studies", context=context, final_seeds=1)
    y, logit = found.runs[0].test_rows
    if not np.array_equal(y, prepared.test.main):
        raise SystemExit(f"the tuned runs of {rows.name} were on other test rows: remove {folder} and run again")
    return logit, {"valid": {"logloss": found.value}, "values": dict(found.values), "trials": dict(found.trials)}


def _with_parts(rows: Rows) -> pl.DataFrame:
    """All rows, with a column that names the part of each."""
    prepared = rows.prepared
    parts = {"train": prepared.train, "valid": prepared.valid, "test": prepared.test}
    frames = [part.frame.with_columns(pl.lit(name).alias(PART)) for name, part in parts.items()]
    return pl.concat(frames, how="vertical_relaxed")


def _words(found: Found) -> str:
    model, test = found.about.get("result", {}).get("chosen", found.about["model"]), found.about["test"]
    return f"{model} AUC {test['auc']:.4f}, logloss {test['logloss']:.4f}, {found.about['seconds']:.0f} s"


def _note(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

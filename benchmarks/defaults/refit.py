"""`python -m benchmarks.defaults.refit`: test logloss before and after `training.refit`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.defaults.__main__ import STORE, names_of
from benchmarks.defaults.runs import MODELS, Settings, applies, recipe_for, rows_of
from benchmarks.defaults.tables import COUNTED, TABLES
from fieldwise.runs.fitting import fit_recipe, refit_recipe
from fieldwise.runs.pipeline import finish_run

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    settings = Settings(data_dir=options.data_dir, store=STORE, tag="refit", max_rows=options.max_rows)
    better = runs = 0
    for name in options.tables:
        rows = rows_of(TABLES[name], 0, settings)
        print(f"{rows.name}, {len(rows.prepared.train.table):,} training rows", flush=True)
        for model in (model for model in options.models if applies(model, rows.schema)):
            first = fit_recipe(recipe_for(rows, model, 0, settings), rows.prepared)
            again = refit_recipe(first, rows.prepared)
            losses = [finish_run(rows.prepared, one, spent=0.0).test["logloss"] for one in (first, again)]
            better, runs = better + (losses[1] < losses[0]), runs + 1
            print(f"  {model}: {losses[0]:.4f}, {losses[1]:.4f}", flush=True)
    print(f"better after the second training: {better} of {runs}")
    return 0


def _parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog="python -m benchmarks.defaults.refit", description=__doc__)
    found.add_argument("--tables", type=names_of(TABLES), default=list(COUNTED))
    found.add_argument("--models", type=names_of(MODELS), default=["lr", "fm", "afm", "autoint-plus"])
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--max-rows", type=int, help="sample this many rows of each table")
    found.add_argument("--data-dir", type=Path, default=Path(os.environ.get("FIELDWISE_DATA", "data")))
    return found


if __name__ == "__main__":
    sys.exit(main())

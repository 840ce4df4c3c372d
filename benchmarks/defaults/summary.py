"""A summary of a tag's runs as plain values for the page; the runs themselves are not committed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.defaults.baselines import BASELINE_FITS
from benchmarks.defaults.runs import MODELS, key_of, store_of
from benchmarks.defaults.tables import TABLES
from benchmarks.defaults.targets import judge, mean_of
from benchmarks.results import environments
from fieldwise.runs.records import RunRecord

__all__ = ["load_runs", "summary"]

SEEDS = range(100)


def load_runs(folder: Path, tag: str, table: str) -> dict[str, list[RunRecord]]:
    """The runs of a tag on a table by model, ordered by seed, and the baselines of the same rows."""
    runs: dict[str, list[RunRecord]] = {}
    for model in MODELS:
        kept = (store_of(folder, tag, model).get(key_of(table, model, seed)) for seed in SEEDS)
        found = [run for run in kept if run is not None]
        if found:
            runs[model] = found
    most = max(runs.values(), key=len, default=[])
    digests = list(dict.fromkeys(run["data"] for run in most))
    for name in BASELINE_FITS:
        kept = (store_of(folder, tag, name).get(key_of(table, name, digest)) for digest in digests)
        found = [run for run in kept if run is not None]
        if found and len(found) == len(digests):
            runs[name] = found
    return runs


def summary(folder: Path, tag: str, table: str) -> dict[str, Any] | None:
    """A table's figures of a tag, with the targets; None without a run."""
    runs = load_runs(folder, tag, table)
    ours = [run for name in MODELS for run in runs.get(name, [])]
    if not ours:
        return None
    first = ours[0].about
    return {
        "about": TABLES[table.partition("@")[0]].about,
        "counts": {part: first["counts"][f"{part}_rows"] for part in ("train", "valid", "test")},
        "dropped": first["counts"]["dropped_by_label"],
        "fields": first["fields"],
        "values": first["embedding_rows"],
        "base_rate": first["base_rate"],
        "models": {name: _figures(found) for name, found in runs.items()},
        "verdicts": list(judge(runs, first["rows"])),
        "environment": environments(ours),
    }


def _figures(runs: Sequence[RunRecord]) -> dict[str, Any]:
    found = {metric: mean_of(runs, "test", metric) for metric in ("auc", "logloss", "ece")}
    spread = float(np.std([run["test"]["logloss"] for run in runs], ddof=1)) if len(runs) > 1 else None
    found |= {"seeds": len(runs), "logloss_deviation": spread, "seconds": _mean(runs, "seconds")}
    for name in ("cpu_seconds", "epochs", "parameters"):
        if name in runs[0].about:
            found[name] = _mean(runs, name)
    if "chosen" in runs[0].about:
        found["chosen"] = runs[0].about["chosen"]
    return found


def _mean(runs: Sequence[RunRecord], name: str) -> float:
    return float(np.mean([run.about[name] for run in runs]))

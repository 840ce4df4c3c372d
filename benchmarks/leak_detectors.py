"""The benchmark that targetleak publishes, for targetleak and for `fieldwise audit`, in one command.

Its source distribution holds the benchmark (`pip download --no-deps --no-binary :all:
targetleak==0.3.2`, unpacked); nothing of it is in this repository. Its tables come from openml.org;
where that cannot be reached, a folder of Parquet files named as there, with `labels.json` (label by
name), stands for it, and tables that are not in it are left out and counted. docs/score-real.md
names public repositories that have them.

    python benchmarks/leak_detectors.py --benchmark targetleak-0.3.2 --tables tables

The columns of both are printed by the benchmark's own code: planted leaks found, controls that
fired, documented leaks, and critical findings on clean columns.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import polars as pl
import sklearn.datasets

import fieldwise
from fieldwise import ColumnSplit

KINDS = {
    "absence": "missingness-leak",
    "pure-values": "pure-categories",
    "equal-rows": "train-test-contamination",
    "identity": "group-overlap",
    "split-against-time": "temporal-column",
}
"""The benchmark's kind of a kind of finding; any other on a column is a target proxy."""
SEVERITIES = {"high": "critical", "medium": "warning", "low": "info"}


def module(path: Path) -> ModuleType:
    """A script of the benchmark as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def reader(tables: Path, labels: dict[str, str]) -> Any:
    """What stands for scikit-learn's `fetch_openml`, reading a folder."""

    def fetch(name: str, **_: object) -> SimpleNamespace:
        if name not in labels:
            raise FileNotFoundError(name)
        frame = pd.read_parquet(tables / f"{name}.parquet")
        return SimpleNamespace(frame=frame, target=SimpleNamespace(name=labels[name]))

    return fetch


def audited(frame: pd.DataFrame, target: str, split: str | None = None, **_: object) -> list[Any]:
    """The findings of `fieldwise.audit`, as the benchmark reads findings."""
    table = pl.from_pandas(frame)
    parts = None
    if split is not None:
        parts = ColumnSplit(column=split, valid_share=0.1)
    return [
        SimpleNamespace(
            kind=KINDS.get(finding.kind, "target-proxy"),
            column=finding.column,
            severity=SEVERITIES[finding.severity],
        )
        for finding in fieldwise.audit(table, target, split=parts).findings
    ]


def main() -> int:
    """Run both on the same tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benchmark", type=Path, required=True)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--only", nargs="*", default=["recall", "run_benchmark"])
    options = parser.parse_args()
    sys.path.insert(0, str(options.benchmark))
    import targetleak

    labels: dict[str, str] = {}
    if options.tables is not None:
        labels = json.loads((options.tables / "labels.json").read_text())
        sklearn.datasets.fetch_openml = reader(options.tables, labels)
    for name in options.only:
        script = module(options.benchmark / "benchmark" / f"{name}.py")
        if name == "recall" and labels:
            left_out = [dataset for dataset, _ in script.DATASETS if dataset not in labels]
            script.DATASETS = [pair for pair in script.DATASETS if pair[0] in labels]
            print(f"{len(script.DATASETS)} tables; not here: {', '.join(left_out)}")
        for who, analyse in (("targetleak", targetleak.analyse), ("fieldwise", audited)):
            began = time.perf_counter()
            script.tl.analyse = analyse
            print(f"\n==== {name}: {who}", flush=True)
            script.main() if name == "recall" else script.main([])
            print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

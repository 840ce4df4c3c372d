"""Run records (`fieldwise train RECIPE --json > FILE`) as a Markdown table: `python -m benchmarks.table FILE...`."""

import json
import sys
from pathlib import Path
from typing import Any

METRICS = {"auc": "AUC", "logloss": "logloss", "rmse": "RMSE"}


def main() -> None:
    """Read the records named on the command line and print one row each, in that order."""
    records = [json.loads(Path(name).read_text("utf-8")) for name in sys.argv[1:]]
    if not records:
        sys.exit("usage: python -m benchmarks.table FILE...")
    shown = [name for name in METRICS if any(name in r["test"] for r in records)]
    print("| recipe | " + " | ".join(f"test {METRICS[name]}" for name in shown) + " | parameters | s/epoch | epochs |")
    print("|---|" + "---:|" * (len(shown) + 3))
    for record in records:
        print("| " + " | ".join(cells(record, shown)) + " |")


def cells(record: dict[str, Any], shown: list[str]) -> list[str]:
    """The cells of one run."""
    metrics = [f"{record['test'][name]:.4f}" if name in record["test"] else "" for name in shown]
    seconds = record["seconds_per_epoch"]  # unknown of a run without a whole epoch
    return [
        f"`{record['recipe']}`",
        *metrics,
        f"{record['parameters']:,}",
        "-" if seconds is None else f"{seconds:.1f}",
        f"{record['epochs']}",
    ]


if __name__ == "__main__":
    main()

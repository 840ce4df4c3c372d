"""Rows a second of six features as of their time, over a log of 10 million rows in memory, on one thread.

    python -m benchmarks.features_as_of [ROWS]

It prints the seconds of the processor, which other processes disturb less than those of the clock,
and the most memory of the process.
"""

import os

os.environ |= {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}

import resource
import sys
import time

import numpy as np
import polars as pl

from fieldwise.features import Count, Last, Rate, TimeSince, compute

ROWS = 10_000_000
THREE_YEARS_S = 3 * 365 * 86_400
FEATURES = [
    Count(key="user", windows=("1d", "all")),
    Rate(key="user", value="click", delay="1h", prior=0.5),
    Last(key="user", value="item"),
    TimeSince(key="user"),
    Rate(key="item", value="click", delay="1h", windows=("7d",)),
]


def log(rows: int) -> pl.DataFrame:
    """A log by time: a tenth as many users as rows, items by a power law."""
    draw = np.random.default_rng(0)
    return pl.DataFrame(
        {
            "time": np.sort(1_600_000_000 + draw.integers(0, THREE_YEARS_S, rows)),
            "user": draw.integers(0, rows // 10, rows),
            "item": draw.zipf(1.3, rows) % 100_000,
            "click": draw.integers(0, 2, rows).astype(np.int8),
        }
    )


def main() -> None:
    """Print the figures."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    table = log(rows)
    began = time.process_time()
    made = compute(table, FEATURES, time="time")
    seconds = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{rows:,} rows x {made.width - table.width} features: {seconds:.1f} s of the processor, "
        f"{rows / seconds:,.0f} rows/s; at most {memory:.2f} GB"
    )


if __name__ == "__main__":
    main()

"""Cost of returning freed arrays in training: `python -m benchmarks.freed` alternates glibc's and fieldwise's limit.

Each measurement trains AutoInt on 39 fields in its own process, once to warm up and then for four epochs of six steps.
glibc's own limit is restored by leaving out `keep_freed_arrays`.
"""

import statistics
import subprocess
import sys

SCRIPT = """
import sys
import numpy as np
from fieldwise import AutoInt
from fieldwise.data.table import EncodedTable
from fieldwise.layout import Layout
from fieldwise.training import fit as training
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

if sys.argv[1] == "glibc":
    training.keep_freed_arrays = lambda: None
random = np.random.default_rng(0)
rows, fields = 6 * 4_096, 39
ids = random.integers(2, 1_000, (rows, fields), dtype=np.int32)
none = np.zeros((rows, 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
y = random.integers(0, 2, (rows, 1)).astype(np.float32)
layout = Layout.of_sizes([1_000] * fields)
table, few = EncodedTable(layout, ids, *none, y), EncodedTable(layout, ids[:256], none[0][:256], *none[1:], y[:256])
network = AutoInt(embedding_dim=16).build(table.layout)
settings = TrainingSettings(batch_size=4_096, epochs=1, monitor="logloss")
found = [
    training.fit(network, table, few, settings=settings, objective=Objective(), seed=0).seconds_per_epoch
    for _ in range(5)
]
print(*(seconds / 6 for seconds in found[1:]))
"""
LIMITS = ("glibc", "fieldwise")
ROUNDS = 3


def main() -> None:
    """Measure and print medians."""
    found: dict[str, list[float]] = {limit: [] for limit in LIMITS}
    for _ in range(ROUNDS):
        for limit in LIMITS:
            done = subprocess.run([sys.executable, "-c", SCRIPT, limit], capture_output=True, text=True, check=True)
            found[limit] += map(float, done.stdout.split())
    for limit, seconds in found.items():
        low, high = min(seconds), max(seconds)
        print(f"{limit:9s} {1000 * statistics.median(seconds):.0f} ms a step ({1000 * low:.0f} to {1000 * high:.0f})")


if __name__ == "__main__":
    main()

"""Whether `describe` states the memory that a training needs: estimates against the measured peak, on Linux.

python -m benchmarks.needs

Each case has a process of its own: 39 random fields, D 16, batches of 4,096, one epoch with three evaluations.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fieldwise.cli.describe_facts import FIRST_STEP_MIB, HEAP
from fieldwise.data.reports import memory_mib
from fieldwise.data.table import EncodedTable
from fieldwise.layout import Layout
from fieldwise.models import AFM, FM, AutoInt
from fieldwise.models.build import build_network
from fieldwise.training.fit import Training
from fieldwise.training.memory import bytes_of_parameters, bytes_of_rows, bytes_of_step
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

FIELDS, VALID_ROWS, MIB = 39, 20_000, 2**20
MODELS = {
    "fm-lazy": (FM(embedding_dim=16), {"optimizer": "adagrad", "embedding_update": "lazy"}),
    "fm-dense": (FM(embedding_dim=16), {"embedding_update": "dense"}),
    "afm": (AFM(embedding_dim=16), {"optimizer": "adagrad", "embedding_update": "lazy"}),
    "autoint": (AutoInt(embedding_dim=16, layers=2, heads=2), {"embedding_update": "lazy"}),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A training: its model, rows, values of the largest field, and rows of a window (0: a full shuffle)."""

    model: str
    rows: int
    values: int
    window: int = 0


CASES = (
    Case(model="fm-lazy", rows=200_000, values=20_000),
    Case(model="fm-lazy", rows=200_000, values=1_000_000),
    Case(model="fm-lazy", rows=200_000, values=1_000, window=50_000),
    Case(model="fm-dense", rows=200_000, values=100_000),
    Case(model="afm", rows=100_000, values=20_000),
    Case(model="afm", rows=100_000, values=500_000),
    Case(model="autoint", rows=50_000, values=20_000),
    Case(model="autoint", rows=50_000, values=300_000),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.needs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", type=int, help="only this one, in this process")
    options = parser.parse_args(arguments)
    if options.case is None:
        for number in range(len(CASES)):
            subprocess.run([sys.executable, "-m", "benchmarks.needs", "--case", str(number)], check=True)
    else:
        measure(CASES[options.case])
    return 0


def measure(case: Case) -> None:
    """Train and print the estimate and the peak of anonymous memory."""
    torch.set_num_threads(1)
    model, more = MODELS[case.model]
    settings = TrainingSettings(
        batch_size=4_096, epochs=1, evaluations_per_epoch=3, shuffle_rows=case.window or None, **more
    )
    with tempfile.TemporaryDirectory() as folder:
        train, valid = mapped(case, case.rows, Path(folder) / "train"), mapped(case, VALID_ROWS, Path(folder) / "valid")
        program = memory_mib()
        assert program is not None, "only Linux tells anonymous memory"

        def build(layout: Layout) -> nn.Module:
            return build_network(model, layout, 0)

        network, peak = build(train.layout), [0.0]
        ended = threading.Event()
        watcher = threading.Thread(target=watch, args=(peak, ended))
        watcher.start()
        Training(
            network=network, train=train, valid=valid, settings=settings, objective=Objective(), seed=0
        ).run()  # fmt: skip
        ended.set()
        watcher.join()
        parts = (
            bytes_of_parameters(network, settings),
            bytes_of_rows(train, VALID_ROWS, settings),
            HEAP * bytes_of_step(build, train, settings, Objective()),
        )
    estimate = program + FIRST_STEP_MIB + sum(parts) / MIB
    words = (
        f"{case.rows:,} rows, {train.layout.num_rows:,} values" + (case.window > 0) * f", windows of {case.window:,}"
    )
    print(f"{case.model}, {words}: estimate {estimate:,.0f} MiB, peak {peak[0]:,.0f} MiB, {estimate / peak[0]:.3f}")


def watch(peak: list[float], ended: threading.Event) -> None:
    """Keep the most memory."""
    while not ended.is_set():
        peak[0] = max(peak[0], memory_mib() or 0.0)
        time.sleep(0.002)


def mapped(case: Case, rows: int, folder: Path) -> EncodedTable:
    """Random rows whose label depends on all fields, mapped from disk."""
    draws = np.random.default_rng(0)
    sizes = np.geomspace(10, case.values, FIELDS).astype(int)
    starts = np.cumsum(sizes) - sizes
    ids = (draws.integers(0, sizes, (rows, FIELDS)) + starts).astype(np.int32)
    effect = ((ids * np.int64(7_919) % 1_009) / 1_009 - 0.5).sum(
        1
    )  # learned bit by bit: weights are kept several times
    y = (draws.random(rows) < 1 / (1 + np.exp(-effect))).astype(np.float32)
    none = np.zeros((rows, 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
    EncodedTable(Layout.of_sizes(sizes.tolist()), ids, *none, y=y).save(folder)
    return EncodedTable.open(folder)


if __name__ == "__main__":
    sys.exit(main())

"""A training step against its matrix products: `python -m benchmarks.arithmetic [--rounds N]`.

Prints, for AutoInt and IntTower at the sizes of `autoint-epoch` and `inttower-epoch`, the operations of the matrix
products of a step (counted by PyTorch in the plain ops, forward and backward), the time that they take at the rate of
one large product on this machine, the step's time, and their ratio. Rows are random; the sizes of the tables are those
of Frappe and MovieLens-1M. Rate and steps are measured in turns, and medians are shown.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.log import FRAPPE_SIZES
from fieldwise import AutoInt, IntTower
from fieldwise.data.table import EncodedTable
from fieldwise.layout import Layout
from fieldwise.ops import use_ops
from fieldwise.schema import Role
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

SIZE, STEPS = 1024, 12
MOVIELENS = [6042, 4, 9, 23, 3441, 3708, 83, 320]  # user, gender, age, occupation, zip code, item, year, genres
MOVIELENS_ROLES: list[Role] = ["user", "user", "user", "user", "user", "item", "item", "item"]


@dataclass(frozen=True)
class Subject:
    """A model, its table and batch size."""

    name: str
    model: Any
    layout: Layout
    batch: int

    def table(self, rows: int) -> EncodedTable:
        """Random rows; 78 % are positive, as in MovieLens-1M, whose contrastive loss compares them with all rows."""
        random = np.random.default_rng(0)
        sizes = [field.rows for field in self.layout.fields]
        offsets = [field.offset for field in self.layout.fields]
        ids = (random.random((rows, len(sizes))) * sizes).astype(np.int32) + np.array(offsets, np.int32)
        none = np.zeros((rows, 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
        return EncodedTable(self.layout, ids, *none, (random.random((rows, 1)) < 0.78).astype(np.float32))

    def operations(self) -> int:
        """Floating-point operations of a step's matrix products."""
        batch, y = self.table(self.batch).batch(torch.arange(self.batch))
        assert y is not None
        network = self.model.build(self.layout)
        with use_ops("plain"), FlopCounterMode(display=False) as counter:
            if hasattr(network, "forward_with_auxiliary"):
                logit, auxiliary = network.forward_with_auxiliary(batch, y[:, 0])
            else:
                logit, auxiliary = network(batch), 0.0
            (logit.mean() + auxiliary).backward()
        found: int = counter.get_total_flops()
        return found

    def seconds(self) -> Callable[[], float]:
        """A measurement of the mean seconds of a step, with batch assembly, update and all else."""
        table, few = self.table(STEPS * self.batch), self.table(256)
        network = self.model.build(self.layout)
        settings = TrainingSettings(batch_size=self.batch, epochs=1, monitor="logloss")

        def turn() -> float:
            result = fit(network, table, few, settings=settings, objective=Objective(), seed=0)
            assert result.seconds_per_epoch is not None
            return result.seconds_per_epoch / STEPS

        return turn


SUBJECTS = (
    Subject("autoint", AutoInt(variant="fuxictr", embedding_dim=10), Layout.of_sizes(list(FRAPPE_SIZES)), 4096),
    Subject(
        "inttower",
        IntTower(embedding_dim=32, user_heads=4, item_heads=4, head_dim=64, cir_weight=0.1),
        Layout.of_sizes(MOVIELENS, MOVIELENS_ROLES),
        2048,
    ),
)


def rate() -> float:
    """Operations a second of the fastest of five products of two matrices of 1024 x 1024."""
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    out, found = torch.empty(SIZE, SIZE), []
    for _ in range(5):
        began = time.perf_counter()
        torch.mm(a, b, out=out)
        found.append(time.perf_counter() - began)
    return 2 * SIZE**3 / min(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    turns = [one.seconds() for one in SUBJECTS]
    for turn in turns:
        turn()
    rates, found = [], [list[float]() for _ in SUBJECTS]
    for _ in range(rounds):
        for seconds, turn in zip(found, turns, strict=True):
            rates.append(rate())
            seconds.append(turn())
    a_second = statistics.median(rates)
    print(f"{a_second / 1e9:.0f} GFLOP/s in products of {SIZE} x {SIZE}, {torch.get_num_threads()} threads")
    for one, seconds in zip(SUBJECTS, found, strict=True):
        operations, step = one.operations(), statistics.median(seconds)
        products = operations / a_second
        print(
            f"{one.name:9s} batch {one.batch}: {operations / 1e9:5.2f} GFLOP, {1000 * products:5.1f} ms at that rate; "
            f"a step {1000 * step:5.1f} ms ({1000 * min(seconds):.1f} to {1000 * max(seconds):.1f}), "
            f"{step / products:.2f} times"
        )


if __name__ == "__main__":
    main()

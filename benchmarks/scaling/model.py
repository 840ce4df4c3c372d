"""The formulas: what processes send in a step, and how long steps, checkpoints, preparation and a whole day take.

Fields are categories, one id each; all floats are float32, and tables move by rows with row-wise Adagrad. Constants
come from `constants.json`, which `python -m benchmarks.scaling calibrate` writes.

Letters: B rows of a batch, P processes, S fields, U distinct ids of a process's part of a batch, T tables.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Layout
from fieldwise.models import IntTower, ModelSettings
from fieldwise.models.build import build_network

__all__ = ["Constants", "Cost", "Exchange", "Job", "Network", "Shape", "costs", "distinct", "exchanges", "shape_of"]

FLOAT, INT, LONG = 4, 4, 8  # bytes
SAVED = Path(__file__).parent / "constants.json"
PIECES = 4_000  # of a sum over ranks of frequency


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What of a network matters between processes.

    Args:
        tables: widths of its embedding tables, which are read by the same ids.
        dense: numbers of all other parameters.
        parameters: how many tensors these are.
        normalized: units of each batch normalization.
        contrasted: width of the vectors that a contrastive loss compares over the batch; 0 without one.
    """

    tables: tuple[int, ...]
    dense: int
    parameters: int
    normalized: tuple[int, ...] = ()
    contrasted: int = 0


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training.

    Args:
        shape: of its network.
        ids: rows of each embedding table.
        fields: S.
        batch: B.
        processes: P.
        sharded: whether processes share the tables' rows out.
        skew: ids of rank k have frequency k^-skew within each field; 0 is uniform.
        rows: training rows.
        validation: validation rows.
    """

    shape: Shape
    ids: int
    fields: int = 39
    batch: int = 65_536
    processes: int = 1
    sharded: bool = True
    skew: float = 0.0
    rows: int = 10**9
    validation: int = 10**7

    @property
    def part(self) -> int:
        """Rows of a batch that a process has, at most."""
        return -(-self.batch // self.processes)

    @property
    def row_bytes(self) -> int:
        """Bytes of an encoded row: an id a field, and the target."""
        return INT * self.fields + FLOAT

    @property
    def table_bytes(self) -> int:
        """Bytes of all embedding tables."""
        return self.ids * sum(self.shape.tables) * FLOAT

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint: weights, one number a row and table for row-wise Adagrad, and the best weights."""
        dense = self.shape.dense + 2 * sum(self.shape.normalized)  # running means and variances
        states = self.ids * len(self.shape.tables) * FLOAT + self.shape.dense * FLOAT
        return 2 * (self.table_bytes + dense * FLOAT) + states

    @property
    def held_bytes(self) -> int:
        """Bytes of tables and their states that a process holds, best weights included."""
        whole = 2 * self.table_bytes + self.ids * len(self.shape.tables) * FLOAT
        return -(-whole // self.processes) if self.sharded else whole


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A collective of a step.

    Args:
        kind: `all-to-all`, `all-reduce` or `all-gather`.
        given: bytes that a process gives to it, its own share included.
        what: for people.
    """

    kind: str
    given: float
    what: str

    def sent(self, processes: int) -> float:
        """Bytes that leave a process: a share for each other one, or the steps of a ring."""
        others = processes - 1
        share = {"all-to-all": others / processes, "all-reduce": 2 * others / processes, "all-gather": others}
        return self.given * share[self.kind]

    def waited(self, processes: int, message: float, posted: float) -> float:
        """Seconds of messages: an all-to-all's are on their way together, those of a ring one after another."""
        others = processes - 1
        if self.kind == "all-to-all" or others == 1:
            return message + posted * others
        return (message + posted) * others * (2 if self.kind == "all-reduce" else 1)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What a core of the calibrated machine does.

    Args:
        step: by model, seconds of a step that do not depend on rows, and seconds a row (one process, one thread).
        fetched: seconds that sharding a table adds to an id: sorting, and copying rows once more.
        merged: seconds that updating a row for an id of another process takes, with replicated tables.
        message: seconds of a small collective of two processes on one machine.
        crowded: the same of four processes on its two cores.
        waits: seconds that a collective of a step takes besides, for its processes do not come at the same time.
        posted: seconds of a core for each further message, sent and received.
        byte: seconds that a byte takes from process to process on one machine.
        prepared: rows a second that one machine prepares.
        written: bytes a second of a checkpoint.
        read: bytes a second of encoded rows that a process copies from a mapped file.
    """

    step: Mapping[str, tuple[float, float]]
    fetched: float
    merged: float
    message: float
    crowded: float
    waits: float
    posted: float
    byte: float
    prepared: float
    written: float
    read: float

    @classmethod
    def saved(cls, path: Path = SAVED) -> "Constants":
        """The constants of the last calibration."""
        return cls.of(json.loads(path.read_text()))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Constants":
        """The constants among other values, such as those of the file."""
        step = {model: (float(fixed), float(row)) for model, (fixed, row) in found["step"].items()}
        return cls(step=step, **{f.name: float(found[f.name]) for f in fields(cls) if f.name != "step"})


@dataclass(frozen=True, kw_only=True)
class Network:
    """Machines and what connects them.

    Args:
        gigabits: a second, of each machine.
        message: seconds of a message from machine to machine.
        each: processes of a machine, which share its connection and disk.
        disk: bytes a second of each machine, where rows are read and checkpoints are written.
    """

    gigabits: float
    message: float = 50e-6
    each: int = 8
    disk: float = 1e9

    def byte(self, processes: int) -> float:
        """Seconds of a byte that a process sends, most of which leave the machine."""
        outside = max(0, processes - self.each) / max(1, processes - 1)
        return outside * 8e-9 / self.gigabits * min(self.each, processes)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of a step, by what they are for; and of a whole day.

    Args:
        compute: of the process's rows, its fixed part included.
        ids: sorting and copying for sharded tables, or updates for other processes' ids.
        sent: bytes on their way.
        waited: messages of collectives, one after another, and waiting for the process that comes last.
        steps: of an epoch.
        read: seconds in which a process reads an epoch's rows, beside the steps.
        prepared: seconds of preparation on one machine.
        checkpoint: seconds of one, in which sharded tables' steps wait.
        collected: seconds until process 0 has the whole tables.
    """

    compute: float
    ids: float
    sent: float
    waited: float
    steps: int
    read: float
    prepared: float
    checkpoint: float
    collected: float

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return self.compute + self.ids + self.sent + self.waited

    @property
    def epoch(self) -> float:
        """Seconds of an epoch: steps, or reading if that takes longer."""
        return max(self.steps * self.step, self.read)

    @property
    def narrowest(self) -> str:
        """What an epoch spends most of its time on."""
        if self.read > self.steps * self.step:
            return "read"
        return max(("compute", "ids", "sent", "waited"), key=lambda name: float(getattr(self, name)))


def shape_of(model: ModelSettings, fields: int = 39) -> Shape:
    """The shape of a model's network; half of the fields are the user's, half the item's."""
    roles = ["user" if f < fields // 2 else "item" for f in range(fields)]
    network = build_network(model, Layout.of_sizes([2] * fields, roles), 0)  # type: ignore[arg-type]
    tables = {id(m.weight): m.weight.shape[1] for m in network.modules() if isinstance(m, FieldEmbedding)}
    dense = [p for p in network.parameters() if id(p) not in tables]
    norms = tuple(m.num_features for m in network.modules() if isinstance(m, nn.BatchNorm1d))
    return Shape(
        tables=tuple(tables.values()),
        dense=sum(p.numel() for p in dense),
        parameters=len(dense),
        normalized=norms,
        contrasted=model.hidden[-1] if isinstance(model, IntTower) and model.chosen.cir_weight else 0,
    )


def distinct(draws: float, values: int, skew: float = 0.0) -> float:
    """The expected number of distinct ones among so many draws of values; value k has frequency k^-skew.

    >>> round(distinct(2, 2), 6), round(distinct(1, 1_000_000, 1.0), 6)
    (1.5, 1.0)
    """
    if skew == 0.0:
        return -values * math.expm1(draws * math.log1p(-1 / values)) if values > 1 else min(draws, 1.0)
    edges = np.unique(np.geomspace(1, values + 1, PIECES).astype(np.int64))
    width, middle = np.diff(edges), (edges[:-1] + edges[1:] - 1) / 2
    share = middle**-skew
    share /= (share * width).sum()
    return float((width * -np.expm1(draws * np.log1p(-np.minimum(share, 1 - 1e-12)))).sum())


def distinct_ids(job: Job) -> float:
    """U: all fields have equally many values."""
    return job.fields * distinct(job.part, max(1, job.ids // job.fields), job.skew)


def exchanges(job: Job) -> list[Exchange]:
    """The collectives of a step in several processes."""
    if job.processes == 1:
        return []
    shape, found = job.shape, []
    add = lambda kind, given, what: found.append(Exchange(kind=kind, given=given, what=what))  # noqa: E731
    if job.sharded:
        ids = distinct_ids(job)
        add("all-to-all", LONG * job.processes, "how many ids go where")
        add("all-to-all", INT * ids, "ids")
        for width in shape.tables:
            add("all-to-all", FLOAT * width * ids, f"rows of {width}, from their owners")
            add("all-to-all", FLOAT * width * ids, f"gradients of {width}, to the owners")
    else:
        add("all-gather", LONG * 2 * len(shape.tables), "how many ids each has")
        add("all-gather", LONG * job.part * job.fields, "ids")
        add("all-gather", FLOAT * sum(shape.tables) * job.part * job.fields, "gradients of rows")
    for units in shape.normalized:
        add("all-gather", FLOAT * 3 * units, "moments of a batch normalization")
        add("all-reduce", FLOAT * 2 * units, "gradients of these")
    if shape.contrasted:
        found.extend(_contrastive(job))
    if shape.dense:
        add("all-reduce", FLOAT * (shape.dense + shape.parameters), "gradients of other parameters")
    add("all-reduce", LONG * 2, "loss and signals")
    return found


def _contrastive(job: Job) -> list[Exchange]:
    width = job.shape.contrasted
    lengths = [Exchange(kind="all-gather", given=LONG, what="rows and positive rows of each")] * 3
    return [
        *lengths,
        Exchange(kind="all-gather", given=FLOAT * width * job.part, what="vectors of the contrastive loss"),
        Exchange(kind="all-reduce", given=FLOAT * width * job.batch, what="gradients of these"),
        Exchange(kind="all-reduce", given=FLOAT, what="the contrastive loss"),
        Exchange(kind="all-reduce", given=FLOAT, what="its gradient"),
    ]


def costs(job: Job, model: str, known: Constants, network: Network | None = None, cores: int = 2) -> Cost:
    """What a training costs.

    Args:
        job: the training.
        model: whose step was calibrated.
        known: the constants.
        network: of machines, with a core a process; None for one machine, over its loopback.
        cores: of the one machine; more processes take turns on them.
    """
    fixed, row = known.step[model]
    share = max(1.0, job.processes / cores) if network is None else 1.0
    ids = 0.0
    if job.processes > 1:
        others = (job.batch - job.part) * job.fields
        ids = known.fetched * job.part * job.fields if job.sharded else known.merged * others
    every = exchanges(job)
    byte = known.byte if network is None else max(known.byte, network.byte(job.processes))
    alone = known.message if job.processes <= cores else known.crowded
    message, posted = (alone, 0.0) if network is None else (network.message, known.posted)
    among = 2 if network is None else job.processes  # on one machine a small collective is measured as a whole
    return Cost(
        compute=share * (fixed + row * job.part),
        ids=share * ids,
        sent=share * sum(one.sent(job.processes) for one in every) * byte,
        waited=sum(one.waited(among, message, posted) + known.waits for one in every),
        steps=-(-job.rows // job.batch),
        **_beside(job, known, network),
    )


def _beside(job: Job, known: Constants, network: Network | None) -> dict[str, float]:
    """Seconds of what is not a step."""
    machines = 1 if network is None else -(-job.processes // network.each)
    disk = known.written if network is None else network.disk
    link = 1 / known.byte if network is None else network.gigabits * 1e9 / 8
    rows = job.rows * job.row_bytes  # every process reads all windows, those of a machine from one copy in memory
    return {
        "read": rows / known.read if network is None else max(rows / known.read, rows / network.disk),
        "prepared": (job.rows + job.validation) / known.prepared,
        "checkpoint": job.checkpoint_bytes / (disk * machines if job.sharded else disk),
        "collected": job.table_bytes * (1 - 1 / job.processes) / link if job.sharded else 0.0,
    }

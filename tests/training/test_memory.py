"""The estimate of a training's memory against what a training holds, tensor by tensor."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwise import (
    AFM,
    FM,
    Categorical,
    DeepFM,
    Encoder,
    Label,
    Layout,
    Numeric,
    Schema,
    TrainingSettings,
    XDeepFM,
    simulate,
)
from fieldwise.data.table import EncodedTable
from fieldwise.models.build import build_network
from fieldwise.training import memory
from fieldwise.training.callbacks import Callback
from fieldwise.training.fit import Training
from fieldwise.training.memory import (
    bytes_of_parameters,
    bytes_of_regression,
    bytes_of_rows,
    bytes_of_step,
)
from fieldwise.training.objective import Objective
from fieldwise.training.optimizers import LARGE_TABLE, RunOptimizer, has_spread_l2
from fieldwise.training.regression import Regression

LOG = simulate(2_000, users=50, items=30, seed=0)


def table_of(rows, buckets=64):
    fields = (
        Categorical("user_id", hash_buckets=buckets),
        Categorical("item_id"),
        Numeric("length"),
    )
    schema = Schema(fields=fields, label=Label("liked"))
    frame = LOG.head(rows)
    return Encoder.fit(frame, schema).transform(
        frame, y=frame["liked"].to_numpy().astype(np.float32)
    )


def held(network, table, settings):
    """Bytes of parameters, gradients and optimizer states after a step, and of the copies that `fit` keeps beside."""
    occurrences = torch.ones(table.layout.num_rows) if has_spread_l2(settings) else None
    optimizer = RunOptimizer(network, settings, occurrences)
    batch, _ = table.batch(torch.arange(32))
    torch.nn.functional.binary_cross_entropy_with_logits(network(batch), torch.ones(32)).backward()
    optimizer.add_l2(batch)
    optimizer.step()
    total = sum(p.nbytes for p in network.parameters()) + (
        0 if occurrences is None else occurrences.nbytes
    )
    total += sum(p.grad.nbytes for p in network.parameters() if not p.grad.is_sparse)
    parts = [part for part in (optimizer.dense, optimizer.lazy) if part is not None]
    states = [
        t
        for part in parts
        for state in part.state.values()
        for name, t in state.items()
        if name != "step"
    ]
    total += sum(t.nbytes for t in states if t is not None)
    best = sum(p.nbytes for p in network.parameters())
    return total + 2 * best + (best if settings.average else 0)


def test_parameters_are_counted_with_all_that_has_their_size(subtests):
    """With a table large enough to be updated by its rows alone."""
    for settings in [
        {"optimizer": "adam"},
        {"optimizer": "adam", "embedding_update": "lazy"},
        {"optimizer": "adam", "embedding_update": "lazy", "l2": {"*embedding.weight": 0.1}},
        {"optimizer": "adam", "average": 0.9},
        {"optimizer": "sgd"},
        {"optimizer": "adagrad"},
        {"optimizer": "adagrad", "embedding_update": "dense"},
        {"optimizer": "rowwise_adagrad"},
    ]:
        with subtests.test(settings=settings):
            settings, table = TrainingSettings(**settings), table_of(200, buckets=LARGE_TABLE)
            network = build_network(FM(embedding_dim=3), table.layout, 0)
            estimate, _ = bytes_of_parameters(network, settings)
            assert estimate == held(network, table, settings)


class Live(TorchDispatchMode):
    """The most bytes that the tensors of operations take at once, by their storages' addresses."""

    def __init__(self):
        super().__init__()
        self.sizes, self.most = weakref.WeakKeyDictionary(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, torch.Tensor) and not tensor.is_sparse:
                self.sizes[tensor.untyped_storage()] = tensor.untyped_storage().nbytes()
        self.most = max(self.most, sum(self.sizes.values()))
        return made


def test_a_step_is_estimated_by_few_rows(subtests):
    """The reference counts a forward and a backward pass over a whole batch; the table has 2,000 rows."""
    table = table_of(2_000)
    for rows, model in [
        (400, AFM(embedding_dim=8)), (2_000, DeepFM(hidden=(8,), batch_norm=True)), (400, XDeepFM(hidden=(8,))),
    ]:  # fmt: skip
        with subtests.test(rows=rows, model=model):
            network = build_network(model, table.layout, 0)
            batch, y = table.batch(torch.arange(rows))
            with Live() as live:
                Objective().loss(network(batch), y).backward()
            parameters = sum(p.nbytes for p in network.parameters())
            settings = TrainingSettings(batch_size=rows, optimizer="sgd")
            result = bytes_of_step(
                lambda layout, m=model: build_network(m, layout, 0), table, settings, Objective()
            )
            assert result == pytest.approx(live.most - parameters, rel=0.2)


def test_a_step_does_not_grow_with_the_vocabulary_or_the_table():
    settings = TrainingSettings(batch_size=500, optimizer="adagrad", embedding_update="lazy")
    results = {
        bytes_of_step(
            lambda layout: build_network(FM(), layout, 0),
            table_of(rows, buckets),
            settings,
            Objective(),
        )
        for rows in (1_000, 2_000)
        for buckets in (5_000, 500_000)
    }
    assert len(results) == 1
    assert results.pop() < 2 * 2**20


def test_rows_of_a_full_shuffle_and_of_windows(monkeypatch):
    table = table_of(2_000)
    row = table.nbytes / 2_000
    settings = TrainingSettings(batch_size=16, shuffle_rows=100)
    monkeypatch.setattr(memory, "GATHERED_ROWS", 64)
    assert bytes_of_rows(table, 10, TrainingSettings(batch_size=16)) == round(
        8 * 2_000 + 2 * 64 * row + 900
    )
    assert bytes_of_rows(table, 10, settings) == round(2 * 100 * (row + 8) + 2 * 64 * row + 900)


def test_what_the_solution_of_lr_needs_is_counted():
    """Against NumPy's arrays alive at once, as Python's own tracer counts them."""
    rng = np.random.default_rng(0)
    layout, rows = Layout.of_sizes([40_000, 30_000, 50]), 3_000
    offsets = np.array([f.offset for f in layout.fields])
    empty = np.zeros((rows, 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
    ids = np.stack([rng.integers(0, size, rows) for size in (40_000, 30_000, 50)], axis=1) + offsets
    y = (rng.random(rows) < 0.5).astype(np.float32)
    table = EncodedTable(layout, ids.astype(np.int32), *empty, y=y)
    part = table.take(np.arange(300))
    Regression(part, Objective()).solve(part)  # imports what it needs
    tracemalloc.start()
    Regression(table, Objective()).solve(part)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bytes_of_regression(table, part) == pytest.approx(most, rel=0.2)


def test_a_training_frees_what_the_solution_of_lr_needed(tables):
    """After the first step, what LR was solved with is gone."""
    settings = TrainingSettings(epochs=1, batch_size=32, mean_with_lr=True)
    alive = []

    class Looks(Callback):
        def on_evaluation(self, evaluation, better):
            gc.collect()  # what other tests left
            alive.extend(one for one in gc.get_objects() if isinstance(one, Regression))

    network = build_network(FM(embedding_dim=3), tables.layout, 0)
    Training(
        network, tables.train, tables.valid, settings=settings, objective=Objective(), seed=0, callbacks=[Looks()]
    ).run()  # fmt: skip
    assert alive == []

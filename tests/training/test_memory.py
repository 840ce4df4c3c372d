"""The estimate of a training's memory against what a training holds, tensor by tensor."""

import pytest
import torch

from fieldwise import simulate
from fieldwise.data.encode.encoder import Encoder
from fieldwise.models import AFM, FM, DeepFM, XDeepFM
from fieldwise.models.build import build_network
from fieldwise.schema import Categorical, Label, Numeric, Schema
from fieldwise.training.memory import bytes_of_parameters, bytes_saved_for_backward
from fieldwise.training.optimizers import LARGE_TABLE, run_optimizer
from fieldwise.training.settings import TrainingSettings

LOG = simulate(2_000, users=50, items=30, seed=0)


def table_of(rows, buckets=64):
    fields = (Categorical("user_id", hash_buckets=buckets), Categorical("item_id"), Numeric("length"))
    schema = Schema(fields=fields, label=Label("liked"))
    frame = LOG.head(rows)
    return Encoder.fit(frame, schema).transform(frame)


def held(network, table, settings):
    """Bytes of parameters, gradients and optimizer states after a step, and of the copies that `fit` keeps beside."""
    optimizer = run_optimizer(network, settings)
    batch, _ = table.batch(torch.arange(32))
    torch.nn.functional.binary_cross_entropy_with_logits(network(batch), torch.ones(32)).backward()
    optimizer.step()
    total = sum(p.nbytes for p in network.parameters())
    total += sum(p.grad.nbytes for p in network.parameters() if not p.grad.is_sparse)
    parts = [part for part in (optimizer.dense, optimizer.lazy) if part is not None]
    states = [t for part in parts for state in part.state.values() for name, t in state.items() if name != "step"]
    total += sum(t.nbytes for t in states if t is not None)
    best = sum(p.nbytes for p in network.parameters())
    return total + 2 * best + (best if settings.average else 0)


def test_parameters_are_counted_with_all_that_has_their_size(subtests):
    """With a table large enough to be updated by its rows alone."""
    for settings in [
        {"optimizer": "adam"},
        {"optimizer": "adam", "embedding_update": "lazy"},
        {"optimizer": "adam", "average": 0.9},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "momentum": 0.9},
        {"optimizer": "adagrad"},
        {"optimizer": "adagrad", "embedding_update": "dense"},
        {"optimizer": "rowwise_adagrad"},
    ]:
        with subtests.test(settings=settings):
            settings, table = TrainingSettings(**settings), table_of(200, buckets=LARGE_TABLE)
            network = build_network(FM(embedding_dim=3), table.layout, 0)
            estimate = bytes_of_parameters(network, settings)
            assert estimate == held(network, table, settings)


def test_what_autograd_keeps_does_not_grow_with_the_table(subtests):
    """The reference counts a whole batch of that size; the table has 2,000 rows."""
    for rows in [100, 700, 2_000]:
        for model in [FM(), AFM(), DeepFM(hidden=(8,), batch_norm=True), XDeepFM(hidden=(8,))]:
            with subtests.test(rows=rows, model=model):
                table = table_of(2_000)
                network = build_network(model, table.layout, 0)
                batch, _ = table.batch(torch.arange(rows))
                own = {p.untyped_storage().data_ptr() for p in network.parameters()}
                kept = {}

                def keep(tensor, kept=kept, own=own):
                    storage = tensor.untyped_storage()
                    kept[storage.data_ptr()] = 0 if storage.data_ptr() in own else storage.nbytes()
                    return tensor

                with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
                    alive = network(batch)
                assert alive.shape == (rows,)
                before = {name: t.clone() for name, t in network.state_dict().items()}
                assert bytes_saved_for_backward(network, table, rows) == pytest.approx(sum(kept.values()), rel=0.05)
                assert all(torch.equal(t, before[name]) for name, t in network.state_dict().items())

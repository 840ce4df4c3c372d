"""Lazy updates in training: equal to dense ones where they should be, and how they differ where they should not."""

import dataclasses

import numpy as np
import pytest
import torch
from parity import lab

from fieldwise import (
    DIN,
    FFM,
    FM,
    HOFM,
    LR,
    ConfigError,
    DeepFM,
    Encoder,
    FinalMLP,
    TrainingSettings,
)
from fieldwise.models.build import build_network
from fieldwise.ops import use_ops
from fieldwise.testing import small_log, small_schema
from fieldwise.training import optimizers as module
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.optimizers import LazyTables, RunOptimizer

MODELS = {
    "LR": LR(),
    "FM": FM(embedding_dim=3),
    "FFM": FFM(embedding_dim=2),
    "HOFM": HOFM(embedding_dim=3),
    "DeepFM": DeepFM(embedding_dim=3, hidden=(4,), mlp_dropout=0.0),
}


def mixed_tables():
    """Categories, a number, a history and a bag, some of them empty."""
    log = small_log(90)
    encoder = Encoder.fit(log, small_schema())
    return encoder.layout, encoder.transform(log, y=log["click"].to_numpy().astype(np.float32))


def train(network, rows, objective=Objective(), **settings):  # noqa: B008  # frozen
    given = TrainingSettings(
        **{
            "batch_size": 16,
            "epochs": 2,
            "learning_rate": 0.1,
            "monitor": "logloss",
            "patience": 9,
            **settings,
        }
    )
    Training(network, rows, rows, settings=given, objective=objective, seed=0).run()
    return {name: p.detach().clone() for name, p in network.state_dict().items()}


def assert_close(found, expected, **how):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda m, n=name: f"{n}: {m}", **how)


@pytest.mark.parametrize(
    ("model", "optimizer", "backend"),
    [
        ("LR", "sgd", "auto"),
        ("FM", "adagrad", "plain"),
        ("FFM", "sgd", "plain"),
        ("HOFM", "adagrad", "auto"),
        ("DeepFM", "sgd", "auto"),
    ],
)
def test_without_moments_lazy_and_dense_training_are_one(model, optimizer, backend):
    """Also where L2 on touched rows and clipping have a part in it: the norm is that of the whole gradient."""
    layout, rows = mixed_tables()
    settings = {
        "optimizer": optimizer,
        "l2_rows": "touched",
        "l2": {"*embedding*weight": 0.05},
        "clip_norm": 0.2,
    }
    if model == "FFM":
        settings |= {"l2": {"embedding.weight": 0.05}}
    dense = train(
        build_network(MODELS[model], layout, 0), rows, embedding_update="dense", **settings
    )
    start = build_network(MODELS[model], layout, 0)
    with use_ops(backend):
        lazy = train(
            build_network(MODELS[model], layout, 0), rows, embedding_update="lazy", **settings
        )
    assert_close(lazy, dense, rtol=1e-4, atol=1e-5)
    moved = [
        name
        for name, p in start.state_dict().items()
        if "embedding" in name and not torch.equal(p, lazy[name])
    ]
    assert moved


def test_tasks_share_one_table():
    layout, rows = mixed_tables()
    networks = [build_network(FM(embedding_dim=3), layout, 0, labels=2) for _ in range(2)]
    y = np.stack([rows.y, 1 - rows.y], axis=1)
    both = dataclasses.replace(rows, y=y)
    results = []
    for network, update in zip(networks, ("dense", "lazy"), strict=True):
        settings = {
            "epochs": 1,
            "optimizer": "adagrad",
            "adagrad_accumulator": 0.1,
            "embedding_update": update,
        }
        results.append(train(network, both, Objective(more={"other": Objective()}), **settings))
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_adam_is_dense_adam_where_every_step_touches_every_row(tables):
    settings = {"batch_size": len(tables.train), "epochs": 4, "optimizer": "adam"}
    networks = [build_network(FM(embedding_dim=3), tables.layout, 0) for _ in range(2)]
    dense = train(networks[0], tables.train, embedding_update="dense", **settings)
    lazy = train(networks[1], tables.train, embedding_update="lazy", **settings)
    touched = np.unique(tables.train.ids)
    assert len(touched) > 10
    for name in ("embedding.weight", "first_order.embedding.weight"):
        torch.testing.assert_close(lazy[name][touched], dense[name][touched], rtol=1e-4, atol=1e-5)


def test_a_row_that_no_batch_holds_keeps_its_bits_and_its_moments(tables):
    network = build_network(FM(embedding_dim=3), tables.layout, 0)
    before = network.embedding.weight.detach().clone()
    after = train(
        network,
        tables.train,
        embedding_update="lazy",
        l2={"embedding.weight": 0.1},
        l2_rows="touched",
    )
    touched = np.zeros(tables.layout.num_rows, dtype=bool)
    touched[np.unique(tables.train.ids)] = True
    assert 0 < touched.sum() < len(touched)
    same = (after["embedding.weight"] == before).all(1).numpy()
    np.testing.assert_array_equal(same, ~touched)


def test_rowwise_adagrad_over_two_steps_is_the_formula():
    table = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = LazyTables([(table, 0.0, None)], "rowwise_adagrad", lr=0.1, accumulator=0.5)
    w, a = np.ones(2), 0.5
    for g in (np.array([1.0, 3.0]), np.array([-2.0, 0.0])):
        values = torch.tensor(g[None] / 2).float().repeat(2, 1)  # twice the id, each with half
        table.grad = torch.sparse_coo_tensor(
            torch.tensor([[1, 1]]), values, (2, 2), check_invariants=False
        )
        optimizer.step()
        a += np.mean(g**2)
        w -= 0.1 * g / np.sqrt(a)
    np.testing.assert_allclose(table.detach()[1], w, rtol=1e-6)
    assert table.detach()[0].tolist() == [1.0, 1.0]
    assert optimizer.state[table]["row_sum"].tolist() == pytest.approx([0.5, a])


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad", "adam"])
def test_a_restored_state_goes_on_as_if_nothing_had_happened(tables, optimizer):
    settings = TrainingSettings(optimizer=optimizer, embedding_update="lazy", learning_rate=0.1)

    def steps(network, made, batches):
        for k in batches:
            batch, y = tables.train.batch(slice(20 * k, 20 * k + 20))
            for p in network.parameters():
                p.grad = None
            Objective().loss(network(batch), y).backward()
            made.step()

    whole = build_network(FM(embedding_dim=3), tables.layout, 0)
    steps(whole, RunOptimizer(whole, settings), range(4))
    first, second = (build_network(FM(embedding_dim=3), tables.layout, k) for k in range(2))
    before = RunOptimizer(first, settings)
    steps(first, before, range(2))
    second.load_state_dict(first.state_dict())
    after = RunOptimizer(second, settings)
    after.load_state_dict(before.state_dict())
    steps(second, after, range(2, 4))
    for name, p in whole.state_dict().items():
        assert torch.equal(second.state_dict()[name], p), name


def test_the_rate_is_one_for_all_parameters_and_can_drop(tables):
    network = build_network(FM(embedding_dim=3), tables.layout, 0)
    made = RunOptimizer(network, TrainingSettings(embedding_update="lazy", learning_rate=0.5))
    assert len(made.param_groups) == 3  # PyTorch's, and one a table
    assert {group["lr"] for group in made.param_groups} == {0.5}
    for group in made.param_groups:
        group["lr"] = 0.0
    batch, y = tables.train.batch(slice(0, 20))
    before = {name: p.clone() for name, p in network.state_dict().items()}
    Objective().loss(network(batch), y).backward()
    made.step()
    assert_close(network.state_dict(), before, rtol=0, atol=0)


# Which tables are lazy


def sparse_of(network, **settings):
    RunOptimizer(network, TrainingSettings(**settings))
    return network.embedding.sparse


def test_auto_is_lazy_for_large_tables_where_nothing_changes_by_it(tables, monkeypatch):
    network = build_network(FM(embedding_dim=3), tables.layout, 0)
    assert not sparse_of(network, optimizer="adagrad")  # a small table
    assert sparse_of(network, optimizer="rowwise_adagrad")
    assert not sparse_of(network, optimizer="adagrad")  # a later run sets it back
    monkeypatch.setattr(module, "LARGE_TABLE", 5)
    assert sparse_of(network, optimizer="adagrad")
    assert sparse_of(network, optimizer="sgd")
    assert not sparse_of(network, optimizer="adam")
    assert not sparse_of(network, optimizer="adagrad", l2={"embedding.weight": 0.1})
    assert sparse_of(network, optimizer="adagrad", l2={"embedding.weight": 0.1}, l2_rows="touched")
    assert not sparse_of(network, optimizer="adagrad", embedding_update="dense")


def test_what_lazy_updates_cannot_do_is_one_sentence(tables):
    network = build_network(FM(embedding_dim=3), tables.layout, 0)
    with pytest.raises(
        ConfigError, match="l2 applies to all rows of an embedding table: give RunOpt"
    ):
        RunOptimizer(
            network, TrainingSettings(embedding_update="lazy", l2={"embedding.weight": 0.1})
        )


def test_a_table_that_is_used_as_a_whole_is_an_error(tables):
    network = build_network(FM(embedding_dim=3), tables.layout, 0)
    made = RunOptimizer(network, TrainingSettings(embedding_update="lazy"))
    network.embedding.weight.sum().backward()
    with pytest.raises(ConfigError, match="must only be read by rows"):
        made.step()


@pytest.mark.parametrize(
    "model",
    [FM(embedding_dim=3), FinalMLP(embedding_dim=2), FFM(embedding_dim=2), DIN(embedding_dim=2)],
)
def test_no_gradient_of_the_tables_size_is_made(model):
    layout = lab.LAYOUTS["histories"]
    network, batch = build_network(model, layout, 0).double(), lab.random_batch(layout, 5)
    RunOptimizer(network, TrainingSettings(embedding_update="lazy"))
    network(batch).sum().backward()
    assert network.embedding.weight.grad.is_sparse


# torch.compile's own, after a graph break
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_network_gives_sparse_gradients_too(tables):
    results = []
    batch, y = tables.train.batch(slice(0, 16))
    for compiled in (False, True):
        network = build_network(FM(embedding_dim=3), tables.layout, 0)
        RunOptimizer(network, TrainingSettings(embedding_update="lazy"))
        run = torch.compile(network, backend="aot_eager") if compiled else network
        Objective().loss(run(batch), y).backward()
        results.append(network.embedding.weight.grad)
    assert all(grad.is_sparse for grad in results)
    torch.testing.assert_close(results[1].to_dense(), results[0].to_dense())

"""Layouts, random batches, and a plain loop from a batch to its fields' vectors that every model's test builds on."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from fieldwise.layout import Batch, FieldLayout, Layout


def _layout(*fields):
    built, offset = [], 0
    for i, (kind, role, rows, *pooling) in enumerate(fields):
        pool = pooling[0] if pooling else "mean"
        built.append(FieldLayout(name=f"f{i}", kind=kind, role=role, offset=offset, rows=rows, pooling=pool))
        offset += rows
    return Layout(tuple(built))


LAYOUTS = {
    "categorical": _layout(("id", "user", 5), ("id", "item", 4), ("id", "context", 3), ("id", "item", 6)),
    "numeric": _layout(("value", "user", 1), ("value", "item", 2), ("value", "context", 1)),
    "bags": _layout(("bag", "user", 5, "mean"), ("bag", "item", 4, "sum"), ("bag", "context", 4, "max")),
    "mixed": _layout(
        ("bag", "item", 5, "max"),
        ("id", "user", 4),
        ("value", "item", 1),
        ("bag", "user", 6, "mean"),
        ("id", "context", 3),
        ("value", "user", 2),
        ("bag", "context", 3, "sum"),
    ),
}


def _random_batch(layout, rows, seed=0):
    rng = np.random.default_rng(seed)
    singles = [f for f in layout.fields if f.kind != "bag"]
    bags = [f for f in layout.fields if f.kind == "bag"]
    ids = [rng.integers(f.offset, f.offset + f.rows, rows) for f in singles]
    values = [rng.normal(size=rows) for f in singles if f.kind == "value"]
    bag_ids, segments, weights = [], [], []
    for b in range(rows):
        for g, f in enumerate(bags):
            n = int(rng.integers(0, 4))
            bag_ids += list(rng.integers(f.offset, f.offset + f.rows, n))
            segments += [b * len(bags) + g] * n
            weights += [1 / max(n, 1) if f.pooling == "mean" else 1.0] * n
    return Batch(
        ids=torch.tensor(np.array(ids).reshape(len(singles), rows).T.copy(), dtype=torch.int64),
        values=torch.tensor(np.array(values).reshape(len(values), rows).T.copy(), dtype=torch.float64),
        bag_ids=torch.tensor(bag_ids, dtype=torch.int64),
        bag_segments=torch.tensor(segments, dtype=torch.int64),
        bag_weights=torch.tensor(weights, dtype=torch.float64),
    )


def _take(layout, batch, rows):
    """The batch of the chosen rows alone."""
    bags = len(layout.positions(kind="bag"))
    kept = [
        (b * bags + g, n)
        for b, row in enumerate(rows)
        for g in range(bags)
        for n in torch.nonzero(batch.bag_segments == row * bags + g).flatten().tolist()
    ]
    index = torch.tensor([n for _, n in kept], dtype=torch.int64)
    segments = torch.tensor([s for s, _ in kept], dtype=torch.int64)
    chosen = torch.tensor(rows, dtype=torch.int64)
    return Batch(batch.ids[chosen], batch.values[chosen], batch.bag_ids[index], segments, batch.bag_weights[index])


def _field_vectors(layout, batch, table):
    """[B, F, D] from the table, cell by cell."""
    table = np.asarray(table)
    rows, bags = batch.ids.shape[0], layout.positions(kind="bag")
    out = np.zeros((rows, layout.num_fields, table.shape[1]))
    for b in range(rows):
        single = value = 0
        for i, f in enumerate(layout.fields):
            if f.kind == "bag":
                here = batch.bag_segments.numpy() == b * len(bags) + bags.index(i)
                vectors = table[batch.bag_ids.numpy()[here]]
                if len(vectors):
                    out[b, i] = getattr(vectors, f.pooling)(0)
                continue
            out[b, i] = table[int(batch.ids[b, single])]
            single += 1
            if f.kind == "value":
                out[b, i] *= float(batch.values[b, value])
                value += 1
    return out


def _randomized(network, seed=0):
    """The network in float64 and evaluation mode, every number of it random, so that nothing hides behind a zero."""
    torch.manual_seed(seed)
    network = network.double().eval()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return network


def _weights(network):
    return {name: p.detach().numpy() for name, p in network.state_dict().items()}


def _first_order(layout, batch, table, bias=0.0):
    return _field_vectors(layout, batch, table).sum((1, 2)) + bias


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Tensors of a few numbers gain nothing from threads, and lose much where other work fills the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def lab():
    """The helpers above, under short names."""
    return SimpleNamespace(
        layouts=LAYOUTS,
        batch=_random_batch,
        take=_take,
        fields=_field_vectors,
        first_order=_first_order,
        randomized=_randomized,
        weights=_weights,
    )


@pytest.fixture(params=list(LAYOUTS))
def layout(request):
    """Each layout in turn."""
    return LAYOUTS[request.param]

"""What the models' tests stand on: layouts of every kind, random batches, and a plain loop from a batch to vectors."""

import numpy as np
import torch

from fieldwise.layout import Batch, FieldLayout, Layout


def make_layout(*fields):
    """A layout of (kind, role, rows[, pooling]) fields; `("history", role, k)` is a history with field k's rows."""
    built, offset = [], 0
    for i, (kind, role, rows, *pooling) in enumerate(fields):
        name, pool = f"f{i}", pooling[0] if pooling else "mean"
        if kind == "history":
            other = built[rows]
            built.append(
                FieldLayout(
                    name=name,
                    kind="bag",
                    role=role,
                    offset=other.offset,
                    rows=other.rows,
                    pooling=pool,
                    ordered=True,
                    shares=other.name,
                )
            )
            continue
        built.append(FieldLayout(name=name, kind=kind, role=role, offset=offset, rows=rows, pooling=pool))
        offset += rows
    return Layout(tuple(built))


LAYOUTS = {
    "categorical": make_layout(("id", "user", 5), ("id", "item", 4), ("id", "context", 3), ("id", "item", 6)),
    "numeric": make_layout(("value", "user", 1), ("value", "item", 2), ("value", "context", 1)),
    "bags": make_layout(("bag", "user", 5, "mean"), ("bag", "item", 4, "sum"), ("bag", "context", 4, "max")),
    "history": make_layout(("id", "user", 4), ("id", "item", 6), ("history", "user", 1), ("id", "context", 3)),
    "histories": make_layout(
        ("id", "item", 6),
        ("value", "user", 1),
        ("history", "user", 0, "max"),
        ("bag", "item", 4, "max"),
        ("id", "item", 5),
        ("history", "user", 4),
        ("id", "context", 3),
    ),
    "mixed": make_layout(
        ("bag", "item", 5, "max"),
        ("id", "user", 4),
        ("value", "item", 1),
        ("bag", "user", 6, "mean"),
        ("id", "context", 3),
        ("value", "user", 2),
        ("bag", "context", 3, "sum"),
    ),
}


def random_batch(layout, rows, seed=0):
    """B rows of random ids, numbers and bags of 0 to 3 values, in float64."""
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


def take(layout, batch, rows):
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


def reorder(layout, batch, order):
    """The layout whose k-th field is field `order[k]` of the first, and the same rows in it; the table stays."""
    singles = [i for i, f in enumerate(layout.fields) if f.kind != "bag"]
    values = [i for i in singles if layout.fields[i].kind == "value"]
    bags = [i for i, f in enumerate(layout.fields) if f.kind == "bag"]
    new = Layout(tuple(layout.fields[i] for i in order))
    columns = [singles.index(i) for i in order if i in singles]
    value_columns = [values.index(i) for i in order if i in values]
    bag_order = [bags.index(i) for i in order if i in bags]
    rows = batch.ids.shape[0]
    cells = [
        (b * len(bags) + g, torch.nonzero(batch.bag_segments == b * len(bags) + old).flatten().tolist())
        for b in range(rows)
        for g, old in enumerate(bag_order)
    ]
    index = torch.tensor([n for _, found in cells for n in found], dtype=torch.int64)
    segments = torch.tensor([s for s, found in cells for _ in found], dtype=torch.int64)
    moved = Batch(
        batch.ids[:, columns], batch.values[:, value_columns], batch.bag_ids[index], segments, batch.bag_weights[index]
    )
    return new, moved


def field_vectors(layout, batch, table):
    """[B, F, D] from the table [R, D], cell by cell."""
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


def first_order(layout, batch, table, bias=0.0):
    """`w0 + sum_f w_f(x)` [B] from the table [R, 1]."""
    return field_vectors(layout, batch, table).sum((1, 2)) + bias


def randomized(network, seed=0):
    """The network in float64 and evaluation mode, every number of it random, so that nothing hides behind a zero."""
    torch.manual_seed(seed)
    network = network.double().eval()
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    for module in network.modules():
        if hasattr(module, "running_mean"):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return network


def weights(network):
    """The network's state as NumPy arrays by name."""
    return {name: p.detach().numpy() for name, p in network.state_dict().items()}

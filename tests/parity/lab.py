"""What the models' tests stand on: layouts of every kind, random batches, and a plain loop from a batch to vectors."""

import numpy as np
import torch

from fieldwise import Batch, Layout, testing
from fieldwise.layout import FieldLayout


def make_layout(*fields):
    """A layout of (kind, role, rows[, pooling]) fields.

    `("history", role, k)` is a history with field k's rows, `piecewise` a piecewise linear number.
    """
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
        built.append(
            FieldLayout(
                name=name,
                kind="value" if kind == "piecewise" else kind,
                role=role,
                offset=offset,
                rows=rows,
                pooling=pool,
                piecewise=kind == "piecewise",
            )
        )
        offset += rows
    return Layout(tuple(built))


LAYOUTS = {
    "categorical": testing.small_layout("categorical"),
    "numeric": make_layout(("value", "user", 1), ("value", "item", 2), ("value", "context", 1)),
    "piecewise": make_layout(
        ("piecewise", "item", 5),
        ("value", "user", 2),
        ("piecewise", "user", 4),
        ("bag", "item", 5, "mean"),
        ("id", "context", 3),
    ),
    "bags": make_layout(
        ("bag", "user", 5, "mean"), ("bag", "item", 4, "sum"), ("bag", "context", 4, "max")
    ),
    "history": make_layout(
        ("id", "user", 4), ("id", "item", 6), ("history", "user", 1), ("id", "context", 3)
    ),
    "histories": make_layout(
        ("id", "item", 6),
        ("value", "user", 1),
        ("history", "user", 0, "max"),
        ("bag", "item", 4, "max"),
        ("id", "item", 5),
        ("history", "user", 4),
        ("id", "context", 3),
    ),
    "mixed": testing.small_layout("mixed"),
}


def random_batch(layout, rows, seed=0):
    """B rows of random ids, numbers and bags of 0 to 3 values, in float64."""
    return testing.random_batch(layout, rows, seed, ids=torch.int64, numbers=torch.float64)


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
        (
            b * len(bags) + g,
            torch.nonzero(batch.bag_segments == b * len(bags) + old).flatten().tolist(),
        )
        for b in range(rows)
        for g, old in enumerate(bag_order)
    ]
    index = torch.tensor([n for _, result in cells for n in result], dtype=torch.int64)
    segments = torch.tensor([s for s, result in cells for _ in result], dtype=torch.int64)
    moved = Batch(
        batch.ids[:, columns],
        batch.values[:, value_columns],
        batch.bag_ids[index],
        segments,
        batch.bag_weights[index],
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
                number = float(batch.values[b, value])
                value += 1
                if not f.piecewise:
                    out[b, i] *= number
                    continue
                for piece in range(f.rows - 2):
                    share = min(max(number - piece, 0.0), 1.0)
                    out[b, i] += share * table[f.offset + 2 + piece]
    return out


def first_order(layout, batch, table, bias=0.0):
    """`w0 + sum_f w_f(x)` [B] from the table [R, 1]."""
    return field_vectors(layout, batch, table).sum((1, 2)) + bias


def randomized(network, seed=0):
    """The network in float64 and evaluation mode, with random parameters, so that no term is hidden by a zero."""
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

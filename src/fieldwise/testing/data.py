"""Small random logs, schemas, layouts and batches."""

from collections.abc import Sequence as Sequence_
from typing import Literal

import numpy as np
import polars as pl
import torch

from fieldwise.layout import Batch, FieldLayout, Layout
from fieldwise.schema import Bag, Categorical, Label, Numeric, Pooling, Role, Schema, Sequence

_Field = tuple[Literal["id", "value", "bag"], Role, int, Pooling]
_CATEGORICAL: tuple[_Field, ...] = (
    ("id", "user", 5, "mean"),
    ("id", "item", 4, "mean"),
    ("id", "context", 3, "mean"),
    ("id", "item", 6, "mean"),
)
_MIXED: tuple[_Field, ...] = (
    ("bag", "item", 5, "max"),
    ("id", "user", 4, "mean"),
    ("value", "item", 1, "mean"),
    ("bag", "user", 6, "mean"),
    ("id", "context", 3, "mean"),
    ("value", "user", 2, "mean"),
    ("bag", "context", 3, "sum"),
)


def small_schema() -> Schema:
    """The schema of `small_log`: a user, their history, an item with genres and a price, the hour, and a click.

    >>> [field.name for field in small_schema().fields]
    ['user', 'history', 'item', 'genres', 'price', 'hour']
    """
    return Schema(
        fields=(
            Categorical("user", role="user"),
            Sequence("history", role="user", max_length=3, shares="item"),
            Categorical("item", role="item"),
            Bag("genres", role="item"),
            Numeric("price", role="item"),
            Numeric("hour", encoding="quantile", bins=3),
        ),
        label=Label("click"),
    )


def small_log(rows: int = 40, seed: int = 0) -> pl.DataFrame:
    """Random rows with the columns of `small_schema`; there is no signal to learn.

    >>> small_log(3).columns
    ['user', 'history', 'item', 'genres', 'price', 'hour', 'click']
    """
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, 6, rows)],
            "history": ["|".join(f"i{k}" for k in rng.integers(0, 5, n)) for n in rng.integers(0, 5, rows)],
            "item": [f"i{k}" for k in rng.integers(0, 9, rows)],
            "genres": [[f"g{k}" for k in rng.integers(0, 4, n)] for n in rng.integers(0, 4, rows)],
            "price": rng.normal(size=rows),
            "hour": rng.integers(0, 24, rows),
            "click": rng.integers(0, 2, rows),
        }
    )


def small_layout(kind: Literal["categorical", "mixed"] = "mixed") -> Layout:
    """A layout of a few fields of all roles: only categorical, or with numbers and bags of every pooling.

    >>> small_layout("categorical").num_fields, small_layout().num_fields
    (4, 7)
    """
    fields, offset = [], 0
    for i, (what, role, rows, pooling) in enumerate(_MIXED if kind == "mixed" else _CATEGORICAL):
        fields.append(FieldLayout(name=f"f{i}", kind=what, role=role, offset=offset, rows=rows, pooling=pooling))
        offset += rows
    return Layout(tuple(fields))


def random_batch(
    layout: Layout, rows: int, seed: int = 0, *, ids: torch.dtype = torch.int32, numbers: torch.dtype = torch.float32
) -> Batch:
    """B rows of random ids, numbers and bags of 0 to 3 values, of the types that an encoder returns.

    >>> batch = random_batch(small_layout(), 5)
    >>> batch.ids.shape, batch.ids.dtype, batch.values.shape
    (torch.Size([5, 4]), torch.int32, torch.Size([5, 2]))
    """
    rng = np.random.default_rng(seed)
    singles = [f for f in layout.fields if f.kind != "bag"]
    bags = [f for f in layout.fields if f.kind == "bag"]
    single_ids = [f.to_table(rng.integers(0, f.rows, rows)) for f in singles]
    values = [rng.normal(size=rows) for f in singles if f.kind == "value"]
    bag_ids: list[int] = []
    segments: list[int] = []
    weights: list[float] = []
    for b in range(rows):
        for g, f in enumerate(bags):
            n = int(rng.integers(0, 4))
            bag_ids += list(f.to_table(rng.integers(0, f.rows, n)))
            segments += [b * len(bags) + g] * n
            weights += [1 / max(n, 1) if f.pooling == "mean" else 1.0] * n
    return Batch(
        ids=torch.tensor(np.array(single_ids).reshape(len(singles), rows).T.copy(), dtype=ids),
        values=torch.tensor(np.array(values).reshape(len(values), rows).T.copy(), dtype=numbers),
        bag_ids=torch.tensor(bag_ids, dtype=ids),
        bag_segments=torch.tensor(segments, dtype=torch.int64),
        bag_weights=torch.tensor(weights, dtype=numbers),
    )


def rows_of(layout: Layout, batch: Batch, rows: Sequence_[int]) -> Batch:
    """The batch of the chosen rows.

    >>> rows_of(small_layout(), random_batch(small_layout(), 5), [4, 1]).size
    2
    """
    return batch.rows(torch.tensor(rows, dtype=torch.int64), len(layout.positions(kind="bag")))

"""Encoding one row of plain values without a table, a fast path for a request's context.

The result equals that of `Encoder.transform_part` for a table with this row. Values that need a table's conversions
(dates, unusual floats, numbers as text) are not supported here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import torch

from fieldwise.data.encode.columns import FLOAT32_MAX
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fitted import MISSING, Bins, Cells, Fitted, Hashing, Scaling, Vocabulary, number_cells
from fieldwise.layout import Batch, Layout
from fieldwise.schema import Bag, Field, Sequence

__all__ = ["encode_row"]

LARGEST_WHOLE = 2**53  # below it, floats represent all integers


def encode_row(encoder: Encoder, part: Layout, values: Mapping[str, Any]) -> Batch | None:
    """A row with these values by column as a batch of one, or None if a table is needed.

    Args:
        encoder: the encoder.
        part: the fields to encode, all or some of the encoder's layout, in its order.
        values: a value for each field's column; None is missing.

    >>> from fieldwise import Categorical, Label, Schema
    >>> schema = Schema(fields=(Categorical("app"),), label=Label("click"))
    >>> encoder = Encoder.fit(pl.DataFrame({"app": ["a", "b"]}), schema)
    >>> encode_row(encoder, encoder.layout, {"app": "b"}).ids
    tensor([[3]], dtype=torch.int32)
    """
    own = {f.name: f for f in part.fields}
    ids: list[int] = []
    numbers: list[float] = []
    bags: list[np.ndarray] = []
    lengths: list[int] = []
    weights: list[float] = []
    for field, fitted in zip(encoder.fields, encoder.fitted, strict=True):
        if (at := own.get(field.name)) is None:
            continue
        cells = _cells(field, fitted, values[field.column])
        if cells is None:
            return None
        if cells.lengths is None:
            ids.append(int(cells.ids[0]) + at.offset)
        else:
            bags.append(cells.ids + np.int32(at.offset))
            lengths.append(len(cells.ids))
            weights.append(1 / len(cells.ids) if at.pooling == "mean" else 1.0)
        if cells.numbers is not None:
            numbers.append(float(cells.numbers[0]))
    return Batch(
        torch.tensor([ids], dtype=torch.int32),
        torch.tensor([numbers], dtype=torch.float32),
        torch.from_numpy(np.concatenate(bags)) if bags else torch.empty(0, dtype=torch.int32),
        torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)),
        torch.from_numpy(np.repeat(np.array(weights, np.float32), lengths)),
    )


def _cells(field: Field, fitted: Fitted, value: Any) -> Cells | None:
    if isinstance(fitted, (Scaling, Bins)):
        return _number(field, fitted, value)
    if isinstance(field, (Bag, Sequence)):
        return _several(field, fitted, value)
    text, plain = _text(value)
    return Cells(_ids(fitted, [text])) if plain else None


def _number(field: Field, fitted: Scaling | Bins, value: Any) -> Cells | None:
    if value is None:
        return number_cells(field, fitted, np.array([np.nan]))
    if type(value) not in (int, float) or not abs(value) <= FLOAT32_MAX:
        return None
    return number_cells(field, fitted, np.array([float(value)]))


def _several(field: Bag | Sequence, fitted: Vocabulary | Hashing, value: Any) -> Cells | None:
    found = [] if value is None else value.split(field.separator) if isinstance(value, str) else value
    if type(found) is not list or not all(one is None or (type(one) is str and one.isprintable()) for one in found):
        return None
    texts = [one.strip() for one in found if one is not None and one.strip()]
    if isinstance(field, Sequence):
        texts = texts[-field.max_length :]
    ids = _ids(fitted, texts) if texts else np.array([MISSING], np.int32)
    return Cells(ids, lengths=np.array([len(ids)], np.int64))


def _text(value: Any) -> tuple[str | None, bool]:
    """A category's text, and whether it can be determined without a table."""
    kind = type(value)
    if value is None or kind is str:
        return value or None, True
    if kind is bool:
        return str(value).lower(), True
    if kind is int and -(2**63) <= value < 2**63:
        return str(value), True
    if kind is float and value == value and abs(value) < LARGEST_WHOLE and value.is_integer():
        return str(int(value)), True
    return None, False


def _ids(fitted: Vocabulary | Hashing, texts: list[str | None] | list[str]) -> np.ndarray:
    if isinstance(fitted, Vocabulary):
        return fitted.ids_of(texts)
    return fitted.ids(pl.Series(texts, dtype=pl.String))

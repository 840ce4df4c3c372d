"""Encoding one row of plain values without a table, a fast path for a request's context.

The result equals that of `Encoder.transform_part` for a table with this row. Values that need a table's conversions
(dates, numbers as text) are not supported here.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import torch

from fieldwise.data.encode.cells import Cells, number_cells
from fieldwise.data.encode.columns import FLOAT32_MAX, cell_list, cell_text
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fitted import MISSING, Bins, Fitted, Hashing, Scaling, Vocabulary
from fieldwise.layout import Batch, Layout
from fieldwise.schema import Field

__all__ = ["encode_row"]


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
    try:
        if field.cell == "list":
            texts = cell_list(value, field.separator, newest=field.max_length)
            ids = _ids(fitted, texts) if texts else np.array([MISSING], np.int32)
            return Cells(ids, lengths=np.array([len(ids)], np.int64))
        return Cells(_ids(fitted, [cell_text(value)]))
    except TypeError:
        return None


def _number(field: Field, fitted: Scaling | Bins, value: Any) -> Cells | None:
    if value is None:
        return number_cells(field, fitted, np.array([np.nan]))
    if type(value) not in (int, float) or not abs(value) <= FLOAT32_MAX:
        return None
    return number_cells(field, fitted, np.array([float(value)]))


def _ids(fitted: Vocabulary | Hashing, texts: list[str | None] | list[str]) -> np.ndarray:
    if isinstance(fitted, Vocabulary):
        return fitted.ids_of(texts)
    return fitted.ids(pl.Series(texts, dtype=pl.String))

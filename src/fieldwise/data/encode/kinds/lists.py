"""Bags and sequences: a cell is several texts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_list
from fieldwise.data.encode.kinds.base import Cells, register
from fieldwise.data.encode.kinds.texts import TextKind, counts_of_texts
from fieldwise.data.encode.portable import MISSING, Cell, CellEncoder, cell_texts
from fieldwise.data.encode.vocabulary import Hashing, Vocabulary
from fieldwise.layout import FieldLayout
from fieldwise.schema import Bag
from fieldwise.schema import Sequence as SequenceField

ListField = Bag | SequenceField


def list_cell(encoder: CellEncoder, value: Any) -> Cell:
    """The rows of a cell's newest texts, in order."""
    field = encoder.field
    texts = cell_texts(value, field.separator, newest=field.max_length)
    return [encoder.fitted.row(text) for text in texts] or [MISSING], []


@register(Bag, SequenceField)
class ListKind(TextKind[ListField]):
    """Several texts per cell, whose rows are a bag of ids; a sequence keeps its newest `max_length`, in order."""

    plain_types = frozenset({type(None), str, bool, int, float, list})
    cell = staticmethod(list_cell)

    def text_counts(self, f: ListField, cells: pl.Series) -> pl.DataFrame:
        """How often each text occurs in the lists."""
        return counts_of_texts(as_list(cells, f.separator).list.explode(empty_as_null=True))

    def column(
        self,
        f: ListField,
        fitted: Vocabulary | Hashing,
        cells: pl.Series,
        missing: Sequence[str],
    ) -> Cells:
        """Look up the texts of the lists; a sequence keeps its newest `max_length`, in order."""
        id_of_value = _ids_of_distinct_values(f, fitted, cells)
        lists = as_list(cells, f.separator) if id_of_value is None else cells
        if f.max_length is not None:
            lists = lists.list.tail(f.max_length)
        lengths = np.maximum(lists.list.len().fill_null(0).to_numpy().astype(np.int64), 1)
        values = lists.list.explode(empty_as_null=True)
        if id_of_value is None:
            return Cells(fitted.ids(values), lengths=lengths)
        joined = values.to_frame("value").join(
            id_of_value, on="value", how="left", maintain_order="left"
        )
        return Cells(joined.get_column("id").fill_null(MISSING).to_numpy(), lengths=lengths)

    def layout(
        self, f: ListField, fitted: Vocabulary | Hashing, layout: FieldLayout
    ) -> FieldLayout:
        """A bag of ids."""
        is_ordered = f.max_length is not None
        return replace(layout, kind="bag", pooling=f.pooling, ordered=is_ordered, shares=f.shares)


def _ids_of_distinct_values(
    f: ListField, fitted: Vocabulary | Hashing, column: pl.Series
) -> pl.DataFrame | None:
    """The id of each distinct value of a column of lists; None if `as_list` must read the whole column.

    Histories often repeat items and text is slow: each value gets its id once, unless one is
    missing or blank, which only `as_list` removes. It also refuses nested values.
    """
    if not isinstance(column.dtype, pl.List) or column.dtype.inner.is_nested():
        return None
    values = column.list.explode(empty_as_null=False, keep_nulls=False).unique().rename("value")
    lists_of_one = values.to_frame().select(pl.concat_list("value")).to_series()
    texts = as_list(lists_of_one, f.separator)
    if not (texts.list.len() > 0).all():
        return None
    return pl.DataFrame([values, pl.Series("id", fitted.ids(texts.list.first()))])

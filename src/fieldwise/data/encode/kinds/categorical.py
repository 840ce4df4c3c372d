"""Categories: a cell is one text."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from fieldwise.data.encode.columns import as_text, coded
from fieldwise.data.encode.kinds.base import Cells, register
from fieldwise.data.encode.kinds.texts import TextKind, counts_of_texts
from fieldwise.data.encode.portable import MISSING, Cell, CellEncoder, any_text
from fieldwise.data.encode.vocabulary import INTEGERS, Hashing, Vocabulary
from fieldwise.schema import Categorical


def category_cell(encoder: CellEncoder, value: Any) -> Cell:
    """The row of a cell's text."""
    return [encoder.fitted.row(any_text(value))], []


@register(Categorical)
class CategoricalKind(TextKind[Categorical]):
    """One text per cell, whose row is its id."""

    plain_types = frozenset({type(None), str, bool, int, float})
    cell = staticmethod(category_cell)

    def text_counts(self, f: Categorical, cells: pl.Series) -> pl.DataFrame:
        """How often each cell's text occurs."""
        if cells.dtype not in INTEGERS:
            return counts_of_texts(cells)
        # Integers are cheaper to count than their texts, which are made when all are counted.
        counts = cells.rename("text").value_counts(name="n")
        return counts.drop_nulls("text").cast(pl.Int64)

    def column(
        self,
        f: Categorical,
        fitted: Vocabulary | Hashing,
        cells: pl.Series,
        missing: Sequence[str],
    ) -> Cells:
        """Look up the cells' texts."""
        if cells.dtype == pl.String:
            return Cells(fitted.ids(as_text(cells)))
        if isinstance(fitted, Vocabulary) and cells.dtype in INTEGERS:
            return Cells(fitted.ids(cells))
        dictionary = coded(cells)
        return Cells(dictionary.look_up(fitted.ids(dictionary.texts), MISSING))

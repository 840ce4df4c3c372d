"""What each kind of field counts in its column, how it is fitted on the counts, and encodes a column.

The local row ids of a field are those of its fitted part (`vocabulary`, `numeric`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_list, as_number, as_text, coded
from fieldwise.data.encode.numeric import Bins, Scaling, fit_numbers
from fieldwise.data.encode.text_counts import frequent_texts
from fieldwise.data.encode.vocabulary import (
    BOOLEANS,
    INTEGERS,
    MISSING,
    UNKNOWN,
    Hashing,
    Vocabulary,
)
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.errors import DataError
from fieldwise.schema import Bag, Categorical, Field, Numeric
from fieldwise.schema import Sequence as SequenceField
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import MemoryBudget

Fitted = Vocabulary | Hashing | Scaling | Bins


@dataclass(frozen=True, eq=False)
class Cells:
    """A field's encoded column: local row ids [N], int32, and for encoding `value` numbers [N], float32.

    A bag has the ids of all cells, one cell after another, and the number of ids of each cell, at
    least 1, as lengths [N], int64; an empty cell has the single id `missing`.
    """

    ids: np.ndarray
    numbers: np.ndarray | None = None
    lengths: np.ndarray | None = None


def encode_column(
    f: Field, fitted: Fitted, column: pl.Series, *, missing: Sequence[str] = MISSING_MARKS
) -> Cells:
    """Encode a field's column; a sequence keeps its newest `max_length` values, in order.

    `missing` has the marks of missing numbers.
    """
    if isinstance(fitted, (Scaling, Bins)):
        what = f"column {f.column!r} (field {f.name!r})"
        form = f.number_format if f.cell == "number" else None
        numbers = as_number(column, what, form=form, missing=missing)
        return number_cells(f, fitted, numbers.fill_null(float("nan")).to_numpy())
    if f.cell == "list":
        return _encode_lists(f, fitted, column)
    if column.dtype == pl.String:
        return Cells(fitted.ids(as_text(column)))
    if isinstance(fitted, Vocabulary) and column.dtype in INTEGERS:
        return Cells(fitted.ids(column))
    dictionary = coded(column)
    return Cells(dictionary.look_up(fitted.ids(dictionary.texts), MISSING))


def number_cells(f: Field, fitted: Scaling | Bins, numbers: np.ndarray) -> Cells:
    """Encode numbers, with NaN for missing ones."""
    if isinstance(fitted, Bins):
        return Cells(fitted.ids(numbers))
    is_missing = np.isnan(numbers)
    number_if_missing = 1.0 if f.cell == "number" and f.missing == "vector" else 0.0
    scaled = np.where(is_missing, number_if_missing, fitted.apply(numbers)).astype(np.float32)
    ids = np.where(is_missing, np.int32(MISSING), np.int32(1))
    return Cells(ids, numbers=scaled)


def _encode_lists(f: Bag | SequenceField, fitted: Vocabulary | Hashing, column: pl.Series) -> Cells:
    id_of_value = _ids_of_distinct_values(f, fitted, column)
    lists = as_list(column, f.separator) if id_of_value is None else column
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


def _ids_of_distinct_values(
    f: Bag | SequenceField, fitted: Vocabulary | Hashing, column: pl.Series
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


class Counted(NamedTuple):
    """How many rows of a field's column were counted, how many values they hold, and these.

    `values` are a numeric field's numbers, in order, as `number`, or those of them that it needs;
    else the texts, or integers for their decimal texts, and how often each occurs, as `text` and
    `n`, and none for a hashed field.
    """

    rows: int
    present: int
    values: pl.DataFrame


def count_column(
    f: Field, column: pl.Series, *, missing: Sequence[str] = MISSING_MARKS, budget: MemoryBudget
) -> Iterator[Counted]:
    """Count a field's column, chunk by chunk; `missing` has the marks of missing numbers."""
    for chunk in budget.chunk_slices(len(column)):
        cells = column[chunk]
        if isinstance(f, Numeric):
            with counting_from(chunk.start):
                counted = _count_numbers(f, cells, missing)
        else:
            counted = _count_texts(f, cells)
        yield counted


def _count_numbers(f: Numeric, cells: pl.Series, missing: Sequence[str]) -> Counted:
    what = f"column {f.column!r} (field {f.name!r})"
    numbers = as_number(cells, what, form=f.number_format, missing=missing).drop_nulls()
    needed = numbers
    if f.encoding == "value" and f.transform == "none":  # for which their range is enough
        ends = pl.Series([numbers.min(), numbers.max()], dtype=pl.Float64)
        needed = ends.drop_nulls()
    elif f.encoding == "value" and f.transform == "log":
        # The logarithm of a number depends on no other.
        needed = numbers.clear()
    return Counted(len(cells), len(numbers), pl.DataFrame({"number": needed}))


def _count_texts(f: Categorical | Bag | SequenceField, cells: pl.Series) -> Counted:
    rows = len(cells)
    if f.cell == "category" and cells.dtype in INTEGERS:
        # Integers are cheaper to count than their texts, which are made when all are counted.
        values = cells.rename("text").value_counts(name="n").drop_nulls("text").cast(pl.Int64)
    else:
        if f.cell == "list":
            cells = as_list(cells, f.separator).list.explode(empty_as_null=True)
        dictionary = coded(cells)
        counts = pl.DataFrame({"text": dictionary.texts, "n": dictionary.counts()})
        values = counts.filter(pl.col("n") > 0)
    present = int(values.get_column("n").sum())
    if f.hash_buckets is not None:
        values = values.clear()
    return Counted(rows, present, values)


class _Chunks:
    """Counted chunks of a column, whose rows and values are summed while they are read, once and in order."""

    def __init__(self, chunks: Iterable[Counted]) -> None:
        self._chunks = chunks
        self._rows = 0
        self._present = 0

    def values(self) -> Iterator[pl.DataFrame]:
        """The values of each chunk."""
        for chunk in self._chunks:
            self._rows += chunk.rows
            self._present += chunk.present
            yield chunk.values

    def check_has_values(self, f: Field) -> None:
        """Check that the chunks that were read have a value."""
        if not self._present:
            raise DataError(
                f"a field needs values to learn from: column {f.column!r} (field {f.name!r}) is null or empty in all "
                f"{self._rows} training rows; remove the field from the schema or fill the column"
            )


def fit_counted(f: Field, counted: Iterable[Counted], *, budget: MemoryBudget) -> Fitted:
    """Fit a field on the counted chunks of its column, which come in order."""
    chunks = _Chunks(counted)
    if isinstance(f, Numeric):
        arrays = (values.get_column("number").to_numpy() for values in chunks.values())
        numbers = budget.concatenate(arrays, np.float64)
        chunks.check_has_values(f)
        return fit_numbers(f, numbers, budget=budget)

    texts, rare = frequent_texts(chunks.values(), f.min_count, budget=budget)
    chunks.check_has_values(f)
    if f.hash_buckets is not None:
        return Hashing(buckets=f.hash_buckets)
    return Vocabulary(values=texts, rare=rare)


def new_values(
    f: Field, known: Vocabulary, counted: Iterable[Counted], *, budget: MemoryBudget
) -> tuple[str, ...]:
    """The values of a field's counted chunks that a vocabulary lacks, in its order, without those below min_count."""
    assert not isinstance(f, Numeric), "it has no vocabulary"
    unseen = (_unseen_texts(known, chunk.values) for chunk in counted)
    values, _ = frequent_texts(unseen, f.min_count, budget=budget)
    if known.boolean:
        return tuple(value for value in values if value in BOOLEANS)
    return values


def _unseen_texts(known: Vocabulary, counts: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("text").cast(pl.String)
    if known.boolean:
        text = text.str.to_lowercase()
    counts = counts.with_columns(text)
    is_unseen = known.ids(counts.get_column("text")) == UNKNOWN
    return counts.filter(pl.Series(is_unseen))

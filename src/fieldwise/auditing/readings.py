"""Ways to read a column: its values, their order, their absence, the decimals of numbers, the length of texts."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from fieldwise.auditing.association import Reading
from fieldwise.auditing.cells import codes_of
from fieldwise.auditing.table import AuditedTable

MOST_BINS = 200
ROWS_PER_BIN = 10
MOST_DECIMALS = 8
"""Numbers with more were computed, not written, and their decimals depend on their size."""
LEAST_USUAL = 0.3
"""Share of rows with the most frequent value, from which on it may say that there is none, as an empty cell does."""
LEAST_UNUSUAL = 10
"""Number of other values from which on each is too rare to tell much by itself."""
ROW_ORDER = ""
"""The column's name of the reading of a row's place in the table."""
IN_ORDER = ("order", "absence")
"""Ways whose codes mean more the larger they are."""
WAYS = {
    "value": "column {}",
    "order": "column {}",
    "absence": "whether column {} is empty",
    "usual": "whether column {} has another value than its most frequent one",
    "decimals": "how many decimals the numbers of column {} have",
    "length": "how long the texts of column {} are",
    "place": "the order of the rows",
}
"""What each way of reading looks at, in words."""


def readings(table: AuditedTable, column: str) -> list[Reading]:
    """Every way to read a column that differs between rows."""
    found = []
    for way, codes in _codes(table.text(column), table.numbers(column)):
        if codes.min() != codes.max():
            found.append(Reading(column, way, codes, way in IN_ORDER))
    return found


def place(table: AuditedTable) -> list[Reading]:
    """The reading of a row's place in the table, if the table is in no order of time."""
    if table.times is not None and len(table) > 1:
        along = np.corrcoef(np.argsort(np.argsort(table.times, kind="stable")), table.rows)[0, 1]
        if abs(along) > 0.5:
            return []
    places = np.argsort(np.argsort(table.rows, kind="stable"), kind="stable")
    bins = places * _bins(len(table)) // len(table)
    return [Reading(ROW_ORDER, "place", bins, False)]


def _codes(text: pl.Series, numbers: pl.Series | None) -> Iterator[tuple[str, np.ndarray]]:
    """The ways and codes of a column's texts and numbers."""
    distinct = text.n_unique()
    if 2 * distinct <= len(text):
        yield "value", codes_of(text)
    if numbers is not None:
        present = max(len(numbers) - numbers.null_count(), 1)
        if distinct > _bins(len(text)):
            bins = (numbers.rank("average") * _bins(len(text)) / present).ceil()
            yield "value", codes_of(bins)
        middle = numbers.median()
        yield "order", codes_of(numbers.fill_null(middle))
        decimals = text.str.extract(r"\.(\d+)$").str.len_bytes().fill_null(0)
        are_written = bool((decimals <= MOST_DECIMALS).all())
        if are_written and decimals.n_unique() < distinct:
            yield "decimals", codes_of(_present_alone(decimals, text))
    else:
        length = text.str.len_chars()
        if length.n_unique() < distinct:
            yield "length", codes_of(_present_alone(length, text))
    is_none = stands_for_none(text)
    if is_none.sum() > text.null_count():
        yield "usual", is_none.to_numpy().astype(np.int64)
    if 0 < text.null_count() < len(text):
        yield "absence", text.is_null().to_numpy().astype(np.int64)


def stands_for_none(text: pl.Series) -> pl.Series:
    """Whether each cell is empty, or the most frequent of many values, which often says that there is none.

    >>> amounts = pl.Series(["0", None, *map(str, range(20)), *["0"] * 18])
    >>> stands_for_none(amounts).head(4).to_list()
    [True, True, True, False]
    """
    usual = text.drop_nulls().mode().sort().head(1)
    is_usual = text.is_in(usual.implode()).fill_null(False)
    is_often = is_usual.sum() >= LEAST_USUAL * len(text)
    if is_often and text.n_unique() > LEAST_UNUSUAL:
        return is_usual | text.is_null()
    return text.is_null()


def _bins(rows: int) -> int:
    """The number of quantile bins for a column with this number of rows."""
    return min(max(rows // ROWS_PER_BIN, 2), MOST_BINS)


def _present_alone(counts: pl.Series, text: pl.Series) -> pl.Series:
    """The counts, with the most frequent one where the cell is missing, which is another way of reading."""
    usual = counts.filter(text.is_not_null()).mode().sort().first()
    return counts.zip_with(
        text.is_not_null(), pl.repeat(usual, len(counts), dtype=counts.dtype, eager=True)
    )

"""Rows in the order of a column of numbers or dates, and by the values of a column, such as their user.

Letters: N rows, K different texts.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import coded
from fieldwise.data.read.lines import counting_from
from fieldwise.data.read.timestamps import READ_FORMATS, check_format, parse_timestamps
from fieldwise.errors import DataError
from fieldwise.storage.scratch import IN_MEMORY, Scratch


def rank_texts(column: pl.Series, scratch: Scratch = IN_MEMORY) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each cell's text (see `as_text`) among the column's sorted texts, from 1, and the rows of each rank.

    Rank 0 is a missing cell. The different texts are held in memory, the ranks in `scratch`.

    Shape:
        returns [N] int32, [K + 1] int64.
    """
    texts = pl.Series("text", [], dtype=pl.String)
    for at in scratch.pieces(len(column)):
        cells = coded(column[at])
        texts = pl.concat([texts, cells.texts.filter(cells.counts() > 0).alias("text")]).unique()
    known = texts.sort().to_frame().with_row_index("rank", offset=1)
    ranks = scratch.empty(len(column), np.int32)
    counts = np.zeros(known.height + 1, dtype=np.int64)
    for at in scratch.pieces(len(column)):
        cells = coded(column[at])
        own = cells.texts.alias("text").to_frame().join(known, on="text", how="left", maintain_order="left")
        ranks[at] = cells.look_up(own.get_column("rank").fill_null(0).to_numpy().astype(np.int32), 0)
        counts += np.bincount(ranks[at], minlength=len(counts))
    return ranks, counts


def group_rows(
    ranks: np.ndarray, counts: np.ndarray, values: np.ndarray, scratch: Scratch
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All rows with a rank above 0, by consecutive ranks, about a piece at a time; one rank's rows are never parted.

    `ranks` and `counts` are those of `rank_texts`. Rows of one rank come in the order of `values`; equal ones in that
    of the table.

    Shape:
        values: [N].
        yields [M] int64, the rows' numbers; [M] int64, the rank of each, less the first one's; the rows of each rank.
    """
    starts = np.cumsum(counts) - counts
    grouped, place = scratch.empty(len(ranks), np.int64), starts.copy()
    for at in scratch.pieces(len(ranks)):
        order = np.argsort(ranks[at], kind="stable")
        rank = ranks[at][order]
        own = np.bincount(rank, minlength=len(place))
        grouped[place[rank] + np.arange(len(rank)) - (np.cumsum(own) - own)[rank]] = order + at.start
        place += own
    first, most = 1, scratch.piece or max(len(ranks), 1)
    while first < len(starts):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + most, side="right")) - 1)
        last = len(starts) if starts[-1] + counts[-1] <= starts[first] + most else last
        some = counts[first:last]
        rows, codes = grouped[starts[first] : starts[first] + int(some.sum())], np.repeat(np.arange(len(some)), some)
        yield rows[np.lexsort((values[rows], codes))], codes, some
        first = last


def order_values(
    frame: pl.DataFrame, name: str, what: str, form: str | None = None, scratch: Scratch = IN_MEMORY
) -> np.ndarray:
    """Sortable values of column `name` (int64 or float64, [N]).

    Errors name the purpose `what`: `time`, `order`. `form` is the format of text with dates; without one the supported
    formats are tried, on all cells at once, which decide together.

    Errors:
        DataError: no such column, a missing value, text that is neither a number nor a date, dates with ambiguous day
            and month, times with and without an offset from UTC.

    >>> order_values(pl.DataFrame({"day": ["2026-01-02", "2026-01-01"]}), "day", "time").argmin()
    np.int64(1)
    """
    if name not in frame.columns:
        raise DataError(f"the {what} column {name!r} must be in the table, found only: {', '.join(frame.columns)}")
    column = frame.get_column(name)
    if scratch.several(frame.height) and (column.dtype != pl.String or form is not None):
        found = scratch.empty(frame.height, order_values(frame.head(1), name, what, form).dtype.type)
        for at in scratch.pieces(frame.height):
            with counting_from(at.start):
                found[at] = order_values(frame[at], name, what, form)
        return found
    if column.dtype.is_temporal():
        values = column.to_physical()
    elif column.dtype == pl.String:
        values = _from_text(column, what, form)
    elif column.dtype.is_numeric():
        values = column.fill_nan(None) if column.dtype.is_float() else column
    elif column.dtype == pl.Null:
        values = column.cast(pl.Float64)
    else:
        raise DataError(f"the {what} column must hold numbers or dates: column {name!r} is of type {column.dtype}")
    if values.null_count():
        row = int(values.is_null().arg_max() or 0)
        if column.dtype == pl.String and (column[row] or "").strip():
            raise DataError(_unread(column, values, row, what, form))
        raise DataError(
            f"every row needs its {what} (a number or a date) for ordering: column {name!r} holds {column[row]!r} "
            f"in row {row} (counting from 0), {values.null_count()} of {len(values)} rows have none; fill them, or "
            "order by another column"
        )
    return values.to_numpy()


def latest_rows(log: pl.DataFrame, column: str, time: str | None, form: str | None = None) -> pl.DataFrame:
    """The latest row of each value of a column, in the order of the values, without rows that have none.

    Without the column `time` the last row of the table counts, as for equal times.

    >>> log = pl.DataFrame({"day": [2, 1, 1], "user": ["b", "b", "a"], "device": ["tv", "phone", "pc"]})
    >>> latest_rows(log, "user", "day")["device"].to_list()
    ['pc', 'tv']
    """
    if time is not None and time in log.columns:
        log = log[order_values(log, time, "time", form).argsort(kind="stable")]
    return log.drop_nulls(column).unique(column, keep="last").sort(column)


def _from_text(column: pl.Series, what: str, form: str | None) -> pl.Series:
    """Numbers if every present cell is one, else times; a cell that is neither becomes null."""
    text = column.str.strip_chars().replace("", None)
    if form is not None:
        return check_format(text, form)
    number = text.cast(pl.Float64, strict=False).fill_nan(None)
    if number.null_count() == text.null_count():
        return number
    found = parse_timestamps(text)
    if found.other is not None:
        first, second = found.other
        raise DataError(
            f"day and month are ambiguous: the {what} column {column.name!r} holds {text.drop_nulls()[0]!r}, and "
            f"every cell can be read as {first!r} and as {second!r}; set the schema's time_format"
        )
    if found.mixed:
        raise DataError(
            f"either all times have an offset from UTC or none: in the {what} column {column.name!r} {found.mixed}; "
            "write the offset into every cell, or convert all to one time zone and omit it"
        )
    return found.values if found.values.null_count() < number.null_count() else number


def _unread(column: pl.Series, values: pl.Series, row: int, what: str, form: str | None) -> str:
    """The sentence for a cell that is neither a number nor a date."""
    many = int((values.is_null() & (column.str.strip_chars() != "")).sum())
    if form is not None:
        rule, fix = f"the schema's time_format {form!r} must fit every cell", "fix the cell or the format"
    else:
        rule = "every row needs a number or a date for ordering"
        fix = f"fix it, or give the schema a time_format; formats read without one: {READ_FORMATS}"
    return (
        f"{rule}: the {what} column {column.name!r} holds {column[row]!r} in row {row} (counting from 0), {many} of "
        f"{len(values)} rows are like it; {fix}"
    )

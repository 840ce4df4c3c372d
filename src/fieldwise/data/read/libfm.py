"""libFM text: `label id:value id:value ...`, one row per line."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.read.bytesource import read_lines
from fieldwise.errors import DataError

__all__ = ["LibfmFields", "libfm_to_fields", "read_libfm"]

_MOST_FIELDS = 1_000

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_LINE = rf"^{_NUMBER}(?: +\d+:{_NUMBER})* *$"


def read_libfm(path: str | Path, content: bytes | None = None, first_line: int = 1) -> pl.DataFrame:
    r"""Read libFM text, plain or packed, with LF or CRLF line ends.

    Args:
        path: the file.
        content: its unpacked bytes, or some of its lines, if the caller has already read them.
        first_line: the number of the content's first line in the file.

    Returns:
        One row per line: `label` (Float64), `ids` (List of Int64), `values` (List of Float64), in the line's order.

    Errors:
        DataError: no line at all, or a malformed one; file and line are named.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "rows.libfm"
    ...     _ = file.write_text("1 0:1 7:0.5\n-1 2:1\n")
    ...     read_libfm(file).rows()
    [(1.0, [0, 7], [1.0, 0.5]), (-1.0, [2], [1.0])]
    """
    path = Path(path)
    lines = read_lines(path, content=content, first_line=first_line)
    if not len(lines):
        raise DataError(f"{path} is empty: libFM text has one line `label id:value ...` per row")
    fine = lines.str.contains(_LINE).fill_null(False)
    if not fine.all():
        _explain(path, lines, int((~fine).arg_max() or 0), first_line)
    tokens = lines.str.strip_chars_end(" ").str.replace_all(" +", " ").str.split(" ")
    frame = pl.DataFrame({"label": tokens.list.first(), "pairs": tokens.list.slice(1)})
    pairs = pl.element().str.split_exact(":", 1)
    try:
        return frame.select(
            pl.col("label").cast(pl.Float64),
            ids=pl.col("pairs").list.eval(pairs.struct.field("field_0").cast(pl.Int64)),
            values=pl.col("pairs").list.eval(pairs.struct.field("field_1").cast(pl.Float64)),
        )
    except pl.exceptions.PolarsError:
        number = int(lines.str.contains(r"\d{19,}:").arg_max() or 0)
        raise DataError(
            f"a feature id must fit in 64 bits: {path} line {number + first_line} holds a longer one"
        ) from None


class LibfmFields:
    """Whether libFM rows have fields: as many features in every row, each position with a range of ids of its own.

    Then a table has a column of ids per position, `f1_id` and so on, and if any value is not 1, a column of values,
    `f1_value` and so on; where the id of a position never changes, its values are a number's. Other rows keep their
    lists of ids and values.

    >>> rows = pl.DataFrame({"label": [1.0, 0.0], "ids": [[3, 70], [4, 71]], "values": [[1.0, 1.0], [1.0, 1.0]]})
    >>> fields = LibfmFields()
    >>> fields.add(rows)
    >>> fields.table(rows).rows(named=True)
    [{'label': 1.0, 'f1_id': 3, 'f2_id': 70}, {'label': 0.0, 'f1_id': 4, 'f2_id': 71}]
    """

    def __init__(self) -> None:
        self._ranges: np.ndarray | None = None  # [2, F]: the least and the greatest id of each position
        self._any, self._weighted = True, False

    def add(self, frame: pl.DataFrame) -> None:
        """Take the next rows of `read_libfm` into account, at least one."""
        lengths = frame.get_column("ids").list.len().unique().to_list()
        count = lengths[0] if len(lengths) == 1 else 0
        self._any = self._any and 1 <= count <= _MOST_FIELDS
        if not self._any:
            return
        ids = frame.get_column("ids").explode().to_numpy().reshape(-1, count)
        found = np.stack([ids.min(0), ids.max(0)])
        if self._ranges is not None and self._ranges.shape != found.shape:
            self._any = False
            return
        known = found if self._ranges is None else self._ranges
        self._ranges = np.stack([np.minimum(known[0], found[0]), np.maximum(known[1], found[1])])
        low, high = self._ranges[:, np.argsort(self._ranges[0])]
        self._any = bool((high[:-1] < low[1:]).all())
        self._weighted = self._weighted or bool((frame.get_column("values").explode() != 1).any())

    def table(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of `read_libfm` with a column per position if they have fields, else unchanged."""
        if not self._any or self._ranges is None:
            return frame
        lists = ("ids", "values") if self._weighted else ("ids",)
        places = range(self._ranges.shape[1])
        return frame.select(
            "label", *(pl.col(name).list.get(k).alias(f"f{k + 1}_{name[:-1]}") for name in lists for k in places)
        )


def libfm_to_fields(frame: pl.DataFrame, offsets: Mapping[str, int], path: str | Path = "the table") -> pl.DataFrame:
    """A table with one column per field, from rows with one feature per field, as in Frappe's files.

    Args:
        frame: the result of `read_libfm`.
        offsets: each field's first id, increasing; a field's ids end where the next one's begin. Every row must hold
            its fields' features in this order.
        path: the file that errors name; row k of `frame` is its line k + 1.

    Returns:
        `label` unchanged, and a column per field: the id within the field (id - offset), Int64.

    Errors:
        DataError: a row with another number of features, or an id outside of its field.

    >>> rows = pl.DataFrame({"label": [1.0], "ids": [[3, 12]], "values": [[1.0, 1.0]]})
    >>> libfm_to_fields(rows, {"user": 0, "item": 10}).rows()
    [(1.0, 3, 2)]
    """
    names, starts = list(offsets), list(offsets.values())
    if starts != sorted(set(starts)):
        raise DataError(f"the fields' offsets must increase, found {dict(offsets)}; correct them")
    count = frame.get_column("ids").list.len()
    wrong = count != len(names)
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise DataError(
            f"every row must hold {len(names)} features, one per field: {path} line {row + 1} holds {count[row]}"
        )
    columns = frame.select("label", *(pl.col("ids").list.get(at).alias(name) for at, name in enumerate(names)))
    for name, start, end in zip(names, starts, [*starts[1:], None], strict=True):
        ids = columns.get_column(name)
        outside = (ids < start) | (ids >= end) if end is not None else ids < start
        if outside.any():
            row = int(outside.arg_max() or 0)
            limits = f"from {start}" + (f" to {end - 1}" if end is not None else "")
            raise DataError(
                f"an id must lie in its field: field {name!r} has the ids {limits}, "
                f"{path} line {row + 1} holds {ids[row]}"
            )
    return columns.with_columns(pl.col(name) - start for name, start in offsets.items())


def _explain(path: Path, lines: pl.Series, row: int, first_line: int) -> None:
    line = row + first_line
    tokens = (lines[row] or "").split(" ")
    if not (lines[row] or "").strip():
        raise DataError(f"{path} line {line} is blank: libFM text has `label id:value ...` on every line; remove it")
    head = pl.Series([tokens[0]]).str.contains(rf"^{_NUMBER}$").item()
    rest = pl.Series([t for t in tokens[1:] if t], dtype=pl.String)
    bad = rest.filter(~rest.str.contains(rf"^\d+:{_NUMBER}$"))
    what, token = ("begin with a number", tokens[0]) if not head or not len(bad) else ("go on with id:value", bad[0])
    raise DataError(f"a libFM line must {what}: {path} line {line} holds {token!r}; correct it")

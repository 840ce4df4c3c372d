"""libFM text: `label id:value id:value ...`, one row per line."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.read.delimited import ByteSource, read_lines
from fieldwise.errors import DataError

_MOST_FIELDS = 1_000

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_LINE = rf"^{_NUMBER}(?: +\d+:{_NUMBER})* *$"


def read_libfm(source: ByteSource) -> pl.DataFrame:
    """Read libFM text, plain or packed, with LF or CRLF line ends.

    Returns:
        One row per line: `label` (Float64), `ids` (List of Int64), `values` (List of Float64), in the line's order.

    Errors:
        DataError: no line at all, or a malformed one; file and line are named.
    """
    path, lines = source.path, read_lines(source)
    if not len(lines):
        raise DataError(f"{path} is empty: libFM text has one line `label id:value ...` per row")
    fine = lines.str.contains(_LINE).fill_null(False)
    if not fine.all():
        row = int((~fine).arg_max() or 0)
        line, tokens = row + source.first_line, (lines[row] or "").split(" ")
        if not (lines[row] or "").strip():
            raise DataError(
                f"{path} line {line} is blank: libFM text has `label id:value ...` on every line; remove it"
            )
        head = pl.Series(tokens[:1]).str.contains(rf"^{_NUMBER}$").item()
        rest = pl.Series([token for token in tokens[1:] if token], dtype=pl.String)
        bad = rest.filter(~rest.str.contains(rf"^\d+:{_NUMBER}$"))
        what, token = ("go on with id:value", bad[0]) if head and len(bad) else ("begin with a number", tokens[0])
        raise DataError(f"a libFM line must {what}: {path} line {line} holds {token!r}; correct it")
    cells = lines.str.strip_chars_end(" ").str.replace_all(" +", " ").str.split(" ")
    frame = pl.DataFrame({"label": cells.list.first(), "pairs": cells.list.slice(1)})
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
            f"a feature id must fit in 64 bits: {path} line {number + source.first_line} holds a longer one"
        ) from None


def libfm_chunks(path: Path, size: int) -> Iterator[pl.DataFrame]:
    """The rows of a libFM file in chunks; together the rows of `read_libfm`."""
    line, held = 1, b""
    for chunk in chain(ByteSource(path=path).chunks(size), [b"\n"]):
        held += chunk
        lines = held[: held.rfind(b"\n") + 1]
        kept = lines.rstrip()
        if not kept:
            continue
        end = lines.find(b"\n", len(kept)) + 1
        yield read_libfm(ByteSource(path=path, content=lines[:end], first_line=line))
        line += lines.count(b"\n", 0, end)
        held = held[end:]  # blank lines: only at the end of the file are they no fault
    if line == 1:
        read_libfm(ByteSource(path=path, content=b""))  # whose error says that the file is empty


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
        result = np.stack([ids.min(0), ids.max(0)])
        if self._ranges is not None and self._ranges.shape != result.shape:
            self._any = False
            return
        known = result if self._ranges is None else self._ranges
        self._ranges = np.stack([np.minimum(known[0], result[0]), np.maximum(known[1], result[1])])
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

"""libFM text: rows `label id:value ...`, as lists of ids and values, or with a column per field."""

from pathlib import Path
from typing import NoReturn

import numpy as np
import polars as pl

from fieldwise.data.read.formats.line_files import LineFiles
from fieldwise.data.read.text_stream import ByteSource, read_lines
from fieldwise.errors import DataError

_MOST_FIELDS = 1_000
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_LINE = rf"^{_NUMBER}(?: +\d+:{_NUMBER})* *$"


class LibfmFiles(LineFiles):
    """Files of libFM text."""

    name = "libFM"
    suffixes = (".libfm", ".libsvm", ".svm")

    def _new_columns(self) -> "LibfmFields":
        return LibfmFields()

    def _read(self, source: ByteSource) -> pl.DataFrame:
        return read_libfm(source)


def read_libfm(source: ByteSource) -> pl.DataFrame:
    """Read libFM text, plain or packed, with LF or CRLF line ends.

    Returns:
        One row per line: `label` (Float64), `ids` (List of Int64), `values` (List of Float64), in
        the line's order.

    Errors:
        DataError: no line at all, or a malformed one; file and line are named.
    """
    path = source.path
    lines = read_lines(source)
    if not len(lines):
        raise DataError(f"{path} is empty: libFM text has one line `label id:value ...` per row")
    is_well_formed = lines.str.contains(_LINE).fill_null(False)
    if not is_well_formed.all():
        row = int((~is_well_formed).arg_max() or 0)
        _refuse_line(lines[row] or "", path, row + source.first_line)

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
        row = int(lines.str.contains(r"\d{19,}:").arg_max() or 0)
        raise DataError(
            f"a feature id must fit in 64 bits: {path} line {row + source.first_line} holds a longer one"
        ) from None


def _refuse_line(text: str, path: Path, line: int) -> NoReturn:
    """Raise an error that says what is wrong with a malformed line."""
    if not text.strip():
        raise DataError(
            f"{path} line {line} is blank: libFM text has `label id:value ...` on every line; remove it"
        )
    label, *pairs = text.split(" ")
    has_label = pl.Series([label]).str.contains(rf"^{_NUMBER}$").item()
    features = pl.Series([pair for pair in pairs if pair], dtype=pl.String)
    malformed = features.filter(~features.str.contains(rf"^\d+:{_NUMBER}$"))
    rule = "begin with a number"
    token = label
    if has_label and len(malformed):
        rule = "go on with id:value"
        token = malformed[0]
    raise DataError(f"a libFM line must {rule}: {path} line {line} holds {token!r}; correct it")


class LibfmFields:
    """Whether libFM rows have fields: as many features in every row, each position with a range of ids of its own.

    Then a table has a column of ids per position, `f1_id` and so on, and if any value is not 1, a
    column of values, `f1_value` and so on; where the id of a position never changes, its values are
    a number's. Other rows keep their lists of ids and values.

    >>> rows = pl.DataFrame({"label": [1.0, 0.0], "ids": [[3, 70], [4, 71]], "values": [[1.0, 1.0], [1.0, 1.0]]})
    >>> fields = LibfmFields()
    >>> fields.add(rows, ByteSource(path=Path("a.libfm")))
    >>> fields.table(rows).rows(named=True)
    [{'label': 1.0, 'f1_id': 3, 'f2_id': 70}, {'label': 0.0, 'f1_id': 4, 'f2_id': 71}]
    """

    def __init__(self) -> None:
        # [2, F]: the least and the greatest id of each position
        self._id_ranges: np.ndarray | None = None
        self._has_fields = True
        self._has_weights = False

    def add(self, frame: pl.DataFrame, source: ByteSource) -> None:
        """Take the next rows of `read_libfm` into account, at least one."""
        if not self._has_fields:
            return
        lengths = frame.get_column("ids").list.len().unique().to_list()
        if len(lengths) != 1 or not 1 <= lengths[0] <= _MOST_FIELDS:
            self._has_fields = False
            return
        n_fields = lengths[0]
        ids = frame.get_column("ids").explode().to_numpy().reshape(-1, n_fields)
        least = ids.min(0)
        greatest = ids.max(0)
        if self._id_ranges is not None:
            if self._id_ranges.shape[1] != n_fields:
                self._has_fields = False
                return
            least = np.minimum(self._id_ranges[0], least)
            greatest = np.maximum(self._id_ranges[1], greatest)
        self._id_ranges = np.stack([least, greatest])
        low, high = self._id_ranges[:, np.argsort(least)]
        self._has_fields = bool((high[:-1] < low[1:]).all())
        values = frame.get_column("values").explode()
        self._has_weights = self._has_weights or bool((values != 1).any())

    def table(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Rows of `read_libfm` with a column per position if they have fields, else unchanged."""
        if not self._has_fields or self._id_ranges is None:
            return frame
        n_fields = self._id_ranges.shape[1]
        columns = [pl.col("label")]
        lists = ["ids", "values"] if self._has_weights else ["ids"]
        for name in lists:
            columns += [
                pl.col(name).list.get(k).alias(f"f{k + 1}_{name[:-1]}") for k in range(n_fields)
            ]
        return frame.select(columns)

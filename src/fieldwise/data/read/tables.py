"""Reading and writing tables: files and frames of other libraries as polars DataFrames."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import polars as pl

from fieldwise.data.read.bytesource import ByteSource, open_source
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.headers import warn_of_header
from fieldwise.data.read.kinds import ARROW, PARQUET, TEXT, suffix_of
from fieldwise.data.read.libfm import read_libfm
from fieldwise.data.read.vectors import position_columns, vector_length, with_positions
from fieldwise.data.read.writing import TableWriter
from fieldwise.errors import DataError, MissingExtraError

__all__ = ["SlicedTable", "TableLike", "as_given", "as_table", "text_separator", "write_table"]

T = TypeVar("T")

TableLike = Annotated[Any, "as_table"]
"""Input of `as_table`: a path, or a polars, pandas or pyarrow table."""

_PROBE = 100  # rows
_KINDS = "csv, tsv, tab, txt and libfm (each also .gz), parquet, arrow, feather, ipc"


def as_table(
    data: Any, *, separator: str | None = None, encoding: str = "utf-8", columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Read or convert `data` into a polars DataFrame.

    Types of delimited text are inferred from all values of a column: Int64, Float64 or Boolean if every value fits,
    else String; numbers with leading zeros stay text, so that codes such as `01234` are not changed. An empty unquoted
    field is null. A pandas frame's index is dropped. For vectors (lists of equal length of 2 to 64 floats) a column per
    position is added, `embedding[0]` and so on; fixed-size lists become lists.

    Args:
        data: a path (csv, tsv, tab, txt, libfm, each also with `.gz`; parquet; arrow, feather, ipc), a polars
            DataFrame or LazyFrame, a pandas DataFrame, or a pyarrow Table.
        separator: delimiter of text; if omitted by the suffix, and for `.txt` the first of tab, semicolon and comma in
            the header line.
        encoding: encoding of delimited text.
        columns: column names of delimited text without a header line. A header that looks like a row causes a
            warning.

    Errors:
        DataError: missing file, unknown suffix, empty file, duplicate columns, a malformed line (file and line are
            named), a wrong encoding, an object of another kind.
        MissingExtraError: a pandas frame, and no pyarrow to convert it.

    >>> as_table(pl.DataFrame({"user": [1, 2]}).lazy()).shape
    (2, 1)
    """
    if isinstance(data, (str, Path)):
        return with_positions(_from_path(Path(data), separator, encoding, columns))
    return with_positions(_from_frame(data))


def _from_frame(data: Any) -> pl.DataFrame:
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    library = type(data).__module__.partition(".")[0]
    if library == "pandas" and hasattr(data, "columns"):
        return _from_pandas(data)
    if library == "pyarrow" and hasattr(data, "column_names"):
        _check_names(data.column_names, "the pyarrow table")
        table = pl.from_arrow(data)
        assert isinstance(table, pl.DataFrame)
        return table
    raise DataError(
        "a table must be a path, a polars DataFrame or LazyFrame, a pandas DataFrame or a pyarrow Table, "
        f"found {type(data).__module__}.{type(data).__qualname__}; convert it"
    )


def as_given(frame: pl.DataFrame, data: Any) -> Any:
    """The frame as a table of the library of `data`: pandas, pyarrow, else polars.

    >>> as_given(pl.DataFrame({"user": [1, 2]}), Path("log.csv")).shape
    (2, 1)
    """
    library = type(data).__module__.partition(".")[0]
    if library == "pandas":
        return frame.to_pandas()
    return frame.to_arrow() if library == "pyarrow" else frame


def write_table(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table in the format of its path's suffix (csv, tsv, tab, also with `.gz`; parquet; arrow, feather, ipc).

    The file is written atomically.

    Errors:
        DataError: unknown suffix, a column that delimited text cannot hold, a full disk.
    """
    with TableWriter(Path(path)) as writer:
        writer.add(frame)


class SlicedTable:
    """A table file that is read in slices, in order.

    Parquet and Arrow files are read lazily, and only the requested columns. Text is read as a whole, since all of a
    column's values determine its type.

    Args:
        path: as for `as_table`.
        separator: delimiter of text.
        encoding: encoding of delimited text.
        columns: column names of delimited text without a header.

    After construction:
        path: see the arguments.
        empty: the table without its rows: names and types of all columns.

    Errors:
        DataError: as `as_table`.
    """

    def __init__(
        self,
        path: Path,
        *,
        separator: str | None = None,
        encoding: str = "utf-8",
        columns: Sequence[str] | None = None,
    ) -> None:
        suffix, packed = suffix_of(path)
        self.path, self._kind = path, "Parquet" if suffix in PARQUET else "Arrow IPC"
        self._rows: pl.DataFrame | pl.LazyFrame
        _check_columns_apply(path, columns)
        if not packed and suffix in PARQUET:
            self._rows = _binary(path, self._kind, lambda: pl.scan_parquet(path, glob=False))
        elif not packed and suffix in ARROW and not _binary(path, self._kind, lambda: _is_stream(path)):
            self._rows = _binary(path, self._kind, lambda: pl.scan_ipc(path, glob=False))
        else:
            self._rows = as_table(path, separator=separator, encoding=encoding, columns=columns)
        if isinstance(self._rows, pl.LazyFrame):
            self._rows = _binary(path, self._kind, lambda: _lazily(self._rows.lazy()))
        self.empty = _binary(path, self._kind, self._rows.collect_schema).to_frame()

    def slices(self, columns: Sequence[str], rows: int) -> Iterator[pl.DataFrame]:
        """All rows with these columns, in slices of at most `rows` rows.

        Errors:
            DataError: the file is truncated.
        """
        if isinstance(self._rows, pl.DataFrame):
            wanted = self._rows.select(columns)
            yield from (wanted.slice(start, rows) for start in range(0, wanted.height, rows))
            return
        lazy = self._rows.select(columns)
        batches = _binary(self.path, self._kind, lambda: lazy.collect_batches(chunk_size=rows, maintain_order=True))
        while (batch := _binary(self.path, self._kind, lambda: next(batches, None))) is not None:
            yield batch


def _lazily(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows with a column for each position of their vectors, whose lengths are found from the first rows."""
    schema = rows.collect_schema()
    nested = [name for name, kind in schema.items() if isinstance(kind, (pl.List, pl.Array))]
    head = rows.select(nested).head(_PROBE).collect() if nested else pl.DataFrame()
    lengths = {c.name: n for c in head.iter_columns() if (n := vector_length(c)) is not None}
    fixed = [pl.col(name).arr.to_list() for name, kind in schema.items() if isinstance(kind, pl.Array)]
    return rows.with_columns(position_columns(schema, lengths).values()).with_columns(fixed) if nested else rows


def _check_columns_apply(path: Path, columns: Sequence[str] | None) -> None:
    if columns is not None and suffix_of(path)[0] not in TEXT:
        raise DataError(
            f"columns are for delimited text without a header, but {path} has its own column names: omit them"
        )


def _from_path(path: Path, separator: str | None, encoding: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
    suffix, packed = suffix_of(path)
    _check_columns_apply(path, columns)
    if suffix in TEXT:
        source = open_source(path, encoding)
        default = text_separator(path, source)
        frame = read_delimited(source, separator=separator or default, names=columns)
        if columns is None:
            warn_of_header(frame, path)
        elif frame.height and [str(cell) for cell in frame.row(0)] == list(columns):
            raise DataError(f"columns are for text without a header, but the first line of {path} is one: omit them")
        if frame.width == 1 and separator is None:
            _check_one_column(path, frame.columns[0], default)
        return frame
    if suffix == ".libfm":
        return read_libfm(path)
    if suffix in PARQUET and not packed:
        return _binary(path, "Parquet", lambda: pl.read_parquet(path, glob=False))
    if suffix in ARROW and not packed:
        return _binary(path, "Arrow IPC", lambda: _read_ipc(path))
    if path.is_dir():
        raise DataError(f"a table must be a file, found the folder {path}: name a file in it")
    raise DataError(f"a table file must be one of {_KINDS}, found the name {path.name!r}; convert or rename it")


def text_separator(path: Path, source: ByteSource) -> str:
    """The delimiter of a text file, if it was not given."""
    if known := TEXT[suffix_of(path)[0]]:
        return known
    first = next((line for line in source.lines() if line.strip()), b"")
    return next((mark for mark in ("\t", ";", ",") if mark.encode() in first), ",")


def _check_one_column(path: Path, name: str, separator: str) -> None:
    for mark in ("\t", ";", ",", "|"):
        if mark in name and mark != separator:
            raise DataError(
                f"{path} was read as one column {name[:60]!r} with delimiter {separator!r}; give separator={mark!r} "
                f"(on the command line --separator {mark!r}, in a recipe data.separator)"
            )


def _read_ipc(path: Path) -> pl.DataFrame:
    return pl.read_ipc_stream(path) if _is_stream(path) else pl.read_ipc(path)


def _is_stream(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) != b"ARROW1"


def _binary(path: Path, kind: str, read: Callable[[], T]) -> T:
    if not path.is_file():
        raise DataError(f"the file {path} does not exist; check the path")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty: a {kind} file was expected; write it again")
    try:
        return read()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as e:
        raise DataError(f"{path} is not a whole {kind} file ({str(e).splitlines()[0]}); write or copy it again") from e


def _from_pandas(data: Any) -> pl.DataFrame:
    names = [str(name) for name in data.columns]
    _check_names(names, "the pandas frame")
    columns = []
    for at, name in enumerate(names):
        try:
            columns.append(pl.from_pandas(data.iloc[:, at]).alias(name))
        except ImportError as e:
            raise MissingExtraError(
                "pandas frames are read through pyarrow, which is not installed: pip install 'fieldwise[pandas]'"
            ) from e
        except (pl.exceptions.PolarsError, TypeError, ValueError) as e:
            # pyarrow's errors are ValueErrors and TypeErrors.
            raise DataError(
                f"a column must hold values of one kind: the pandas frame's column {name!r} does not "
                f"({str(e).splitlines()[0]}); convert it, for example with astype(str)"
            ) from e
    return pl.DataFrame(columns)


def _check_names(names: Iterable[str], where: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        listed = ", ".join(repr(name) for name in repeated)
        raise DataError(f"columns must have different names: {where} repeats {listed}; rename them")

"""Reading and writing tables: files and frames of other libraries as polars DataFrames."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl

from fieldwise.data.read.source import open_table
from fieldwise.data.read.vectors import with_positions
from fieldwise.data.read.writing import TableWriter
from fieldwise.errors import DataError, MissingExtraError

__all__ = ["TableLike", "as_given", "as_table", "write_table"]

TableLike = Annotated[Any, "as_table"]
"""Input of `as_table`: a path, a polars, pandas or pyarrow table, a dict of lists, or a list of dicts."""


def as_table(
    data: Any, *, separator: str | None = None, encoding: str = "utf-8", columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Read or convert `data` into a polars DataFrame.

    Types of delimited text are inferred from all values of a column: Int64, Float64 or Boolean if every value fits,
    else String; numbers with leading zeros stay text, so that codes such as `01234` are not changed. An empty unquoted
    field is null. A pandas frame's index is dropped. For vectors (lists of equal length of 2 to 64 floats) a column per
    position is added, `embedding[0]` and so on; fixed-size lists become lists.

    Args:
        data: a file (csv, tsv, tab, txt, libfm, libsvm, svm, each also with `.gz` or `.zst`; parquet; arrow, feather,
            ipc), a folder of such files of one kind or a pattern such as `logs/*.parquet`, whose rows follow in the
            order of the files' names; a polars DataFrame or LazyFrame, a pandas DataFrame, or a pyarrow Table; a
            dict with a list for each column, or a list with a dict for each row (an absent key is null).
        separator: delimiter of text; if omitted a tab for `.tsv` and `.tab`, else the one of tab, semicolon, `|` and
            comma that divides the first records evenly.
        encoding: encoding of delimited text.
        columns: column names of delimited text without a header line. A header that looks like a row causes a
            warning.

    Errors:
        DataError: missing file, unknown suffix, empty file, duplicate columns, a malformed line (file and line are
            named), a wrong encoding, an object of another kind.
        MissingExtraError: a pandas frame or a `.zst` file, and no pyarrow to read it.

    >>> as_table(pl.DataFrame({"user": [1, 2]}).lazy()).shape
    (2, 1)
    """
    if isinstance(data, (str, Path)):
        return open_table(data, separator=separator, encoding=encoding, columns=columns)
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
    if isinstance(data, Mapping):
        return _from_columns(data)
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        return _from_columns(
            {name: [row.get(name) for row in data] for name in {key: 0 for row in data for key in row}}
        )
    raise DataError(
        "a table must be a path, a polars DataFrame or LazyFrame, a pandas DataFrame, a pyarrow Table, a dict of lists "
        f"or a list of dicts, found {type(data).__module__}.{type(data).__qualname__}; convert it"
    )


def _from_columns(data: Mapping[Any, Any]) -> pl.DataFrame:
    """A dict of columns as a table."""
    columns: list[pl.Series] = []
    for name, values in data.items():
        if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__len__"):
            raise DataError(
                f"a table as a dict needs a list of values for each column, found {values!r} for {name!r}: write "
                "a row as [{...}]"
            )
        try:
            columns.append(pl.Series(str(name), values))
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as e:
            raise DataError(
                f"a column must hold values of one kind: {name!r} does not ({str(e).splitlines()[0]}); convert it"
            ) from e
        if len(columns[-1]) != len(columns[0]):
            raise DataError(
                f"all columns of a table must have one length: {columns[0].name!r} has {len(columns[0])} values, "
                f"{name!r} {len(columns[-1])}"
            )
    _check_names([column.name for column in columns], "the dict")
    return pl.DataFrame(columns)


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

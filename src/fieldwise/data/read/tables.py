"""Reading and writing tables: files, and frames of other libraries, as polars DataFrames."""

import datetime as dt
import gzip
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import IO, Annotated, Any, cast
from uuid import UUID

import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.read.file_listing import ARROW, PARQUET, TEXT, suffix_of
from fieldwise.data.read.load_table import open_table
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.read.vectors import with_positions
from fieldwise.data.read.wide_decimals import with_narrow_decimals
from fieldwise.errors import DataError, MissingExtraError
from fieldwise.storage.files import cannot_write, new_file, scratch_folder
from fieldwise.storage.forks import computing

FORMULA = r"^[=+@\t\r\-]"
SIGNED_NUMBER = r"^[+-][0-9.]+([eE][-+]?[0-9]+)?$"


class TableWriter:
    """Writes a table in the format of its path's suffix (csv, tsv, tab, also with `.gz`; parquet; arrow, feather, ipc).

    A context manager: at its end the file is moved into place; on an error an existing file is not
    changed. Only one slice is in memory at a time. What killed writers have left in the folder is
    removed.

    Args:
        path: the file; its parent folders are created.
        raw: if False, cells of delimited text that a spreadsheet would run as a formula (texts that
            begin with =, @, a tab, or a plus or minus that is no number's) are written with a ' in
            front.

    After construction:
        guarded: how many such cells there were so far.

    Errors:
        DataError: unknown suffix, a column that delimited text cannot hold, a full disk, a folder
            that is not writable.
    """

    def __init__(self, path: Path, *, raw: bool = True) -> None:
        suffix, packed = suffix_of(path)
        self._separator = TEXT.get(suffix)
        self._packed = bool(packed)
        self._parquet = suffix in PARQUET
        if packed == ".zst" or (
            self._separator is None and (packed or suffix not in (*PARQUET, *ARROW))
        ):
            kinds = "csv, tsv, tab (each also .gz), parquet, arrow, feather, ipc"
            raise DataError(
                f"a table is written as one of {kinds}, found the name {path.name!r}; change its suffix"
            )
        self.path = path
        self._raw = raw
        self.guarded = 0
        self._slices: list[Path] = []
        self._open = ExitStack()
        self._first = True

    def __enter__(self) -> "TableWriter":
        if self.path.is_dir():  # else the last step would fail, after all the work
            raise DataError(f"cannot write {self.path}: it is a folder; choose another name")
        with self._naming_file():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = self._open.enter_context(scratch_folder(self.path.parent))
            self._file = self._open.enter_context(
                new_file(self.path, partial=self._folder / "whole")
            )
            if self._packed:  # without name and time, so that equal rows give equal bytes
                packer = self._open.enter_context(
                    gzip.GzipFile("", "wb", fileobj=self._file, mtime=0)
                )
                self._file = cast(IO[bytes], packer)
        return self

    def add(self, frame: pl.DataFrame) -> None:
        """Write the next rows; every slice must have the same columns."""
        if self._separator is None:
            with self._naming_file():
                self._slices.append(self._folder / f"{len(self._slices)}.arrow")
                frame.write_ipc(self._slices[-1])
            return
        for name, dtype in frame.schema.items():
            if dtype.is_nested():
                raise DataError(
                    f"delimited text holds one value per cell, but column {name!r} holds {dtype}; write "
                    f"{self.path.name} as parquet, or join the column's values into text"
                )
            if not self._raw and dtype in (pl.String, pl.Categorical, pl.Enum):
                text = frame.get_column(name).cast(pl.String)
                runs = (text.str.contains(FORMULA) & ~text.str.contains(SIGNED_NUMBER)).fill_null(
                    False
                )
                if count := int(runs.sum()):
                    self.guarded += count
                    frame = frame.with_columns(
                        pl.when(runs).then("'" + text).otherwise(text).alias(name)
                    )
        with self._naming_file():
            frame.write_csv(self._file, separator=self._separator, include_header=self._first)
        self._first = False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._naming_file():
            if error is not None:  # which need not be one in writing: it stays as it is
                with suppress(DataError, OSError):
                    self._open.__exit__(kind, error, at)
                return
            with self._open:
                if self._separator is None:
                    rows = pl.scan_ipc(self._slices)
                    rows.sink_parquet(self._file) if self._parquet else rows.sink_ipc(self._file)

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """A context that turns errors in writing into a DataError."""
        try:
            yield
        except OSError as e:
            raise cannot_write(self.path, e) from e
        except pl.exceptions.PolarsError as e:
            raise DataError(
                f"cannot write {self.path}: {str(e).splitlines()[0]}; choose another file type"
            ) from e


TableLike = Annotated[Any, "as_table"]
"""Input of `as_table`: a path, a polars, pandas or pyarrow table, a dict of lists, or a list of dicts."""


def as_table(
    data: Any,
    *,
    separator: str | None = None,
    encoding: str = "utf-8",
    columns: Sequence[str] | None = None,
    text_columns: Sequence[str] = (),
) -> pl.DataFrame:
    """Read or convert `data` into a polars DataFrame.

    Types of delimited text are inferred from all values of a column: Int64, Float64 or Boolean if
    every value fits, else String; numbers with leading zeros stay text, so that codes such as
    `01234` are not changed, and so do columns such as 1.604 and 12.500, which may be thousands.
    Cells of `text_columns` are never changed: `4.10` and `4.1` stay different, as in a Parquet file
    with the same text. An empty unquoted field is null. If the first rows have a space after every
    delimiter (`u1, i2, 3`), the spaces before names and cells are left out; quoted cells keep their
    own. A pandas frame's index is dropped. For vectors (lists of equal length of 2 to 64 floats) a
    column per position is added, `embedding[0]` and so on; fixed-size lists become lists.

    Args:
        data: a file (csv, tsv, tab, txt, libfm, libsvm, svm, each also with `.gz` or `.zst`;
            parquet; arrow, feather, ipc), a folder of such files of one kind or a pattern such as
            `logs/*.parquet`, whose rows follow in the order of the files' names; a polars DataFrame
            or LazyFrame, a pandas DataFrame, or a pyarrow Table; a dict with a list for each
            column, or a list with a dict for each row (an absent key is null).
        separator: delimiter of text; if omitted the one that a first line such as `sep=;` names
            (which is no row), a tab for `.tsv` and `.tab`, else that of tab, semicolon, `|` and
            comma that divides first records evenly.
        encoding: encoding of delimited text.
        columns: column names of delimited text without a header. A header that looks like a row
            causes a warning.
        text_columns: columns of delimited text whose cells are read as they are written, as
            `Schema.text_columns`.

    Errors:
        DataError: missing file, unknown suffix, empty file, duplicate columns, a malformed line
            (file and line are named), a wrong encoding, an object of another kind.
        MissingExtraError: a pandas frame or a `.zst` file, and no pyarrow to read it.
        FieldwiseError: this process was forked from one that has read a table or loaded a model.

    >>> as_table(pl.DataFrame({"user": [1, 2]}).lazy()).shape
    (2, 1)
    """
    computing()
    if isinstance(data, (str, Path)):
        text = TextFormat(
            separator=separator,
            encoding=encoding,
            columns=columns,
            text_columns=tuple(text_columns),
        )
        return open_table(data, text)
    return with_positions(_from_memory(data))


_MOST_DIGITS = 38  # of a decimal of polars
_ERRORS_OF_ARROW = (NotImplementedError, TypeError, ValueError)


def _from_memory(data: Any) -> pl.DataFrame:
    """A table of another library, or plain lists and dicts, as a polars DataFrame."""
    library = type(data).__module__.partition(".")[0]
    if isinstance(data, pl.DataFrame):
        frame = data
    elif isinstance(data, pl.LazyFrame):
        frame = data.collect()
    elif library == "pandas" and hasattr(data, "columns"):
        frame = _from_pandas(data)
    elif library == "pyarrow" and hasattr(data, "column_names"):
        _check_names(data.column_names, "the pyarrow table")
        frame = pl.DataFrame(with_narrow_decimals(data, "the pyarrow table"))
    elif isinstance(data, Mapping):
        frame = _from_columns(data)
    elif isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        names = {key: 0 for row in data for key in row}
        frame = _from_columns({name: [row.get(name) for row in data] for name in names})
    else:
        raise DataError(
            "a table must be a path, a polars DataFrame or LazyFrame, a pandas DataFrame, a pyarrow Table, a dict of "
            f"lists or a list of dicts, found {type(data).__module__}.{type(data).__qualname__}; convert it"
        )
    objects = [column for column in frame.iter_columns() if column.dtype == pl.Object]
    return frame.with_columns(_uuids_as_text(column) for column in objects) if objects else frame


def _uuids_as_text(column: pl.Series) -> pl.Series:
    """A polars column of objects as text if it has UUIDs and nothing else but nulls; else the column itself."""
    values = column.to_list()
    if not all(value is None or isinstance(value, UUID) for value in values):
        return column
    texts = [None if value is None else str(value) for value in values]
    return pl.Series(column.name, texts, dtype=pl.String)


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
    """The frame as a table of the library of `data`: pandas, pyarrow, else polars."""
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


def _holds_wide_decimals(column: Any) -> bool:
    """Whether a pandas column has decimals that together need more than 38 digits, which polars cannot read."""
    present = column.dropna()
    if not len(present) or not isinstance(present.iloc[0], Decimal):
        return False
    numbers = [value for value in present if isinstance(value, Decimal) and value.is_finite()]
    if len(numbers) < len(present):
        return False
    places = max(-int(number.as_tuple().exponent) for number in numbers)
    whole = max(number.adjusted() + 1 for number in numbers)
    return max(0, places) + max(0, whole) > _MOST_DIGITS


def _from_pandas(data: Any) -> pl.DataFrame:
    names = [str(name) for name in data.columns]
    _check_names(names, "the pandas frame")
    columns = []
    for at, name in enumerate(names):
        try:
            columns.append(pl.from_pandas(_in_plain_types(data.iloc[:, at])).alias(name))
        except ImportError as e:
            raise MissingExtraError(
                "pandas frames are read through pyarrow, which is not installed: pip install 'fieldwise[pandas]'"
            ) from e
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, *_ERRORS_OF_ARROW) as e:
            raise DataError(
                f"a column must hold values of one kind: the pandas frame's column {name!r} does not "
                f"({str(e).splitlines()[0]}); convert it, for example with astype(str)"
            ) from e
    return pl.DataFrame(columns)


def _in_plain_types(column: Any) -> Any:
    """A pandas column whose categories, intervals, periods and UUIDs are text: polars would change them, or fail."""
    if column.dtype == object and _holds_uuids(column):
        return column.map(str, na_action="ignore")
    if column.dtype == object and _holds_wide_decimals(column):
        warnings.warn(
            f"column {column.name!r} of the pandas frame has decimals of more than 38 digits, and is read as Float64",
            UserWarning,
            stacklevel=2,
        )
        return column.astype(float)
    if type(column.dtype).__name__ in ("IntervalDtype", "PeriodDtype"):
        return (
            column.astype(object)
            .where(column.notna(), None)
            .map(str, na_action="ignore")
            .astype("string")
        )
    categories = getattr(column.dtype, "categories", None)
    if categories is None or all(isinstance(value, str) for value in categories):
        return column
    return column.cat.rename_categories([_category_text(value) for value in categories])


def _holds_uuids(column: Any) -> bool:
    """Whether a pandas column of objects has UUIDs and nothing else but missing values."""
    present = column.dropna()
    return len(present) > 0 and all(isinstance(value, UUID) for value in present)


def _category_text(value: Any) -> str:
    """A category as the same text as that of a cell which holds its value."""
    if isinstance(value, bool | float | Decimal | dt.date | dt.time | dt.timedelta):
        return str(as_text(pl.Series([value])).item())
    return str(value)


def _check_names(names: Iterable[str], where: str) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        listed = ", ".join(repr(name) for name in repeated)
        raise DataError(f"columns must have different names: {where} repeats {listed}; rename them")

"""Tables in memory: frames of polars, pandas and pyarrow, and plain lists, as polars DataFrames."""

import datetime as dt
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.read.arrow_library import MOST_DIGITS, with_narrow_decimals
from fieldwise.errors import DataError, MissingExtraError, first_line

# what pyarrow raises for values that it cannot convert; NotImplementedError is one of them
_ERRORS_OF_ARROW = (NotImplementedError, TypeError, ValueError)


def frame_of(data: Any) -> pl.DataFrame:
    """A table of another library, or plain lists and dicts, as a polars DataFrame."""
    frame = _converted(data)
    objects = [column for column in frame.iter_columns() if column.dtype == pl.Object]
    if not objects:
        return frame
    return frame.with_columns(_uuids_as_text(column) for column in objects)


def as_given(frame: pl.DataFrame, data: Any) -> Any:
    """The frame as a table of the library of `data`: pandas, pyarrow, else polars."""
    library = _library_of(data)
    if library == "pandas":
        return frame.to_pandas()
    if library == "pyarrow":
        return frame.to_arrow()
    return frame


def _library_of(data: Any) -> str:
    """The top package of the class of some data."""
    return type(data).__module__.partition(".")[0]


def _converted(data: Any) -> pl.DataFrame:
    """Data as a polars DataFrame, whose columns may hold objects."""
    if isinstance(data, pl.DataFrame):
        return data
    if isinstance(data, pl.LazyFrame):
        return data.collect()
    library = _library_of(data)
    if library == "pandas" and hasattr(data, "columns"):
        return _from_pandas(data)
    if library == "pyarrow" and hasattr(data, "column_names"):
        _check_names(data.column_names, "the pyarrow table")
        return pl.DataFrame(with_narrow_decimals(data, "the pyarrow table"))
    if isinstance(data, Mapping):
        return _from_columns(data)
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        names = dict.fromkeys(chain(*data))
        return _from_columns({name: [row.get(name) for row in data] for name in names})
    raise DataError(
        "a table must be a path, a polars DataFrame or LazyFrame, a pandas DataFrame, a pyarrow Table, a dict of "
        f"lists or a list of dicts, found {type(data).__module__}.{type(data).__qualname__}; convert it"
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
            column = pl.Series(str(name), values)
        except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as e:
            raise DataError(
                f"a column must hold values of one kind: {name!r} does not ({first_line(e)}); convert it"
            ) from e
        columns.append(column)
        first = columns[0]
        if len(column) != len(first):
            raise DataError(
                f"all columns of a table must have one length: {first.name!r} has {len(first)} values, "
                f"{name!r} {len(column)}"
            )
    _check_names([column.name for column in columns], "the dict")
    return pl.DataFrame(columns)


def _from_pandas(data: Any) -> pl.DataFrame:
    """A pandas frame as a table; its index is dropped."""
    names = [str(name) for name in data.columns]
    _check_names(names, "the pandas frame")
    columns = []
    for index, name in enumerate(names):
        try:
            column = _in_plain_types(data.iloc[:, index])
            columns.append(pl.from_pandas(column).alias(name))
        except ImportError as e:
            raise MissingExtraError(
                "pandas frames are read through pyarrow, which is not installed: pip install 'fieldwise[pandas]'"
            ) from e
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, *_ERRORS_OF_ARROW) as e:
            raise DataError(
                f"a column must hold values of one kind: the pandas frame's column {name!r} does not "
                f"({first_line(e)}); convert it, for example with astype(str)"
            ) from e
    return pl.DataFrame(columns)


def _check_names(names: Iterable[str], where: str) -> None:
    """Refuse columns of one name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        listed = ", ".join(repr(name) for name in repeated)
        raise DataError(f"columns must have different names: {where} repeats {listed}; rename them")


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


def _holds_wide_decimals(column: Any) -> bool:
    """Whether a pandas column has decimals that together need more than 38 digits, which polars cannot read."""
    present = column.dropna()
    if not len(present) or not isinstance(present.iloc[0], Decimal):
        return False
    numbers = [value for value in present if isinstance(value, Decimal) and value.is_finite()]
    if len(numbers) < len(present):
        return False
    fraction_digits = max(-int(number.as_tuple().exponent) for number in numbers)
    whole_digits = max(number.adjusted() + 1 for number in numbers)
    return max(0, fraction_digits) + max(0, whole_digits) > MOST_DIGITS


def _holds_uuids(column: Any) -> bool:
    """Whether a pandas column of objects has UUIDs and nothing else but missing values."""
    present = column.dropna()
    return len(present) > 0 and all(isinstance(value, UUID) for value in present)


def _uuids_as_text(column: pl.Series) -> pl.Series:
    """A polars column of objects as text if it has UUIDs and nothing else but nulls; else the column itself."""
    values = column.to_list()
    if not all(value is None or isinstance(value, UUID) for value in values):
        return column
    texts = [None if value is None else str(value) for value in values]
    return pl.Series(column.name, texts, dtype=pl.String)


def _category_text(value: Any) -> str:
    """A category as the same text as that of a cell which holds its value."""
    if isinstance(value, bool | float | Decimal | dt.date | dt.time | dt.timedelta):
        return str(as_text(pl.Series([value])).item())
    return str(value)

"""The types of columns of text: the narrowest that holds every value, or text as it is written."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

_LEADING_ZERO = r"^[+-]?0\d"
_REWRITTEN = r"^(?:\+|-?0\d|-0)"
"""Begins whole numbers whose text is not that of their integer: +7, 007, -0."""
PLAIN_OR_THOUSANDS = r"^[+-]?(?:\d{1,3}|[1-9]\d{0,2}\.\d{3})$"
"""Numbers such as 768 and 3.768, which may be 3768 written with a thousands separator."""
_LEAST_THOUSAND = 1000
_MANY_DIGITS = r"^[+-]?\d{16,}$"
"""A whole number of 16 digits or more may not fit a Float64 exactly: it is an id."""
_LEAST_LONG = 10**15
_HEAD_ROWS = 1000
"""They show of most text that it is text."""
_TypeSoFar = type[pl.DataType] | None
_NARROWEST: dict[type[pl.DataType], tuple[_TypeSoFar, ...]] = {
    pl.Int64: (None, pl.Int64),
    pl.Float64: (None, pl.Int64, pl.Float64),
    pl.Boolean: (None, pl.Boolean),
}
"""Each with the types so far that it may follow."""


class TextTypes:
    """The narrowest type of each String column that holds all of its values so far without loss.

    Int64 if every value is a whole number without leading zeros; Float64 if every value is a number
    (not for whole numbers beyond 64 bits, which are ids); Boolean for true and false; else String,
    so that codes such as `01234` are not changed. A column without any value is text. So is one
    whose numbers may all be thousands, such as 768 and 3.768, as the text is needed for a
    `number_format`.

    Columns of `texts` (None: all) keep every cell as it is written. Only the decimal texts of
    integers become Int64, and true and false Boolean, from which the same text is made.

    >>> types = TextTypes()
    >>> types.add(pl.DataFrame({"n": ["1", "2"]})).dtypes, types.add(pl.DataFrame({"n": ["2.5"]})).dtypes
    ([Int64], [Float64])
    >>> TextTypes(["os"]).add(pl.DataFrame({"os": ["4.1", "4.10"], "n": ["4.1", "4.10"]})).dtypes
    [String, Float64]
    """

    def __init__(self, texts: Sequence[str] | None = ()) -> None:
        self._texts = None if texts is None else frozenset(texts)
        # None: there was no value yet
        self._types: dict[str, _TypeSoFar] = {}
        # columns with a fraction whose numbers may all be thousands
        self._thousands: set[str] = set()
        # columns of which some number is not written with thousands
        self._no_thousands: set[str] = set()
        # columns of whole numbers of which one has many digits
        self._long: set[str] = set()
        # columns one of whose values is their name, each with its file
        self._named: dict[str, Path] = {}

    def add(self, chunk: pl.DataFrame, path: Path = Path()) -> pl.DataFrame:
        """The next rows, of a file, typed by all values so far; columns of other types are kept.

        In a wide table an expression takes longer than the values of a column. So one expression
        stands for all columns of one kind, and the first row rules out most types of most columns.
        """
        if not self._types and chunk.height > _HEAD_ROWS:
            self.add(chunk.head(_HEAD_ROWS), path)
        texts = chunk
        if any(dtype != pl.String for dtype in chunk.dtypes):
            texts = chunk.select(pl.col(pl.String))
        if not texts.width:
            return self.typed(chunk)

        self._note_names_among_values(texts, path)
        null_counts = dict(zip(texts.columns, texts.null_count().row(0), strict=True))
        undecided = []
        for name, null_count in null_counts.items():
            type_so_far = self._types.setdefault(name, None)
            if type_so_far != pl.String and null_count < chunk.height:
                undecided.append(name)

        narrowed = self._narrowed(texts, undecided, null_counts)
        for name in undecided:
            self._types[name] = type(narrowed[name].dtype) if name in narrowed else pl.String
        self._note_thousands(texts, undecided)
        columns = [column for name, column in narrowed.items() if name not in self._thousands]
        return self.typed(chunk.with_columns(columns))

    def _narrowed(
        self, texts: pl.DataFrame, undecided: Sequence[str], null_counts: Mapping[str, int]
    ) -> dict[str, pl.Series]:
        """The undecided columns that a type holds without loss, as that type; as text if their numbers are codes."""
        narrowed: dict[str, pl.Series] = {}
        if not undecided:
            return narrowed
        for dtype, types_before in _NARROWEST.items():
            possible = _columns_by_first_row(texts, dtype)
            names = [
                name
                for name in undecided
                if name in possible and name not in narrowed and self._types[name] in types_before
            ]
            if dtype == pl.Float64:
                names = [name for name in names if not self._is_text(name)]
            # A value that the type cannot hold becomes null.
            cast = texts.select(_cast(names, dtype, strict=False))
            fitting = {
                column.name: column
                for column in cast.iter_columns()
                if column.null_count() == null_counts[column.name]
            }
            narrowed |= fitting
            for name in self._codes(texts, fitting, dtype):
                narrowed[name] = texts.get_column(name)
        return narrowed

    def _is_text(self, name: str) -> bool:
        """Whether a column's cells are kept as they are written."""
        return self._texts is None or name in self._texts

    def _note_names_among_values(self, texts: pl.DataFrame, path: Path) -> None:
        """Note the columns one of whose values is the column's name."""
        for column in texts.iter_columns():
            name = column.name
            if name.strip() and name not in self._named and (column == name).any():
                self._named[name] = path

    def _note_thousands(self, texts: pl.DataFrame, names: Sequence[str]) -> None:
        """Note of columns of numbers with fractions whether all of them may be thousands."""
        decimal = [
            name
            for name in names
            if self._types[name] == pl.Float64 and name not in self._no_thousands
        ]
        is_other = ~pl.col(decimal).str.contains(PLAIN_OR_THOUSANDS)
        self._no_thousands |= _columns_where(texts, decimal, is_other)
        self._thousands = self._thousands.union(decimal) - self._no_thousands

    def _codes(
        self, texts: pl.DataFrame, numbers: Mapping[str, pl.Series], dtype: type[pl.DataType]
    ) -> set[str]:
        """The columns that are text although all values are numbers.

        Some have leading zeros, or too many digits.
        """
        if dtype == pl.Boolean:
            return set()
        kept_as_written = [name for name in numbers if self._is_text(name)]
        others = [name for name in numbers if not self._is_text(name)]
        is_rewritten = pl.col(kept_as_written).str.contains(_REWRITTEN)
        has_leading_zero = pl.col(others).str.contains(_LEADING_ZERO)
        codes = _columns_where(texts, kept_as_written, is_rewritten)
        codes |= _columns_where(texts, others, has_leading_zero)
        if dtype == pl.Float64:
            names = list(numbers)
            has_many_digits = pl.col(names).str.contains(_MANY_DIGITS)
            codes |= self._long.intersection(names)
            return codes | _columns_where(texts, names, has_many_digits)

        for name, column in numbers.items():
            low = int(column.min())  # type: ignore[arg-type]
            high = int(column.max())  # type: ignore[arg-type]
            is_long = low <= -_LEAST_LONG or high >= _LEAST_LONG
            if is_long and name not in codes:
                self._long.add(name)
            if max(-low, high) >= _LEAST_THOUSAND:
                self._no_thousands.add(name)
        return codes

    def to_plain(self) -> dict[str, Any]:
        """What is known so far, for JSON."""
        return {
            "types": [
                (name, None if dtype is None else dtype.__name__)
                for name, dtype in self._types.items()
            ],
            "long": list(self._long),
            "named": [(name, str(path)) for name, path in self._named.items()],
            "thousands": list(self._thousands),
            "no_thousands": list(self._no_thousands),
        }

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Go on where `to_plain` was called."""
        dtypes: list[type[pl.DataType]] = [*_NARROWEST, pl.String]
        dtype_by_name = {dtype.__name__: dtype for dtype in dtypes}
        self._types = {name: dtype_by_name.get(dtype) for name, dtype in plain["types"]}
        self._long = set(plain["long"])
        self._named = {name: Path(path) for name, path in plain["named"]}
        self._thousands = set(plain["thousands"])
        self._no_thousands = set(plain["no_thousands"])

    def typed(self, chunk: pl.DataFrame) -> pl.DataFrame:
        """Rows whose values are among those added, with the types so far."""
        schema = chunk.schema  # which polars makes anew each time that it is asked for
        names_by_type: dict[type[pl.DataType], list[str]] = {dtype: [] for dtype in _NARROWEST}
        for name, dtype in self._types.items():
            is_narrowed = dtype in _NARROWEST and name not in self._thousands
            if is_narrowed and schema.get(name) == pl.String:
                names_by_type[dtype].append(name)  # type: ignore[index]
        return chunk.with_columns(
            _cast(names, dtype) for dtype, names in names_by_type.items() if names
        )

    def warn_of_header(self, path: Path, remedy: str) -> None:
        """Warn if the names of the columns look like a row, which would then be missing.

        `path` is the first file, and `remedy` says what to do if it has no header.
        """
        reason = ""
        if self._is_header_of_numbers():
            reason = f"all its names are numbers, such as {next(iter(self._types))!r}"
        else:
            for name, dtype in self._types.items():
                if name in self._named and dtype == pl.String:
                    path = self._named[name]
                    reason = f"{name!r} is a value of its column too"
                    break
        if reason:
            warnings.warn(
                f"the first line of {path} was read as the column names, but it looks like a row ({reason}); if the "
                f"file has no header, {remedy}",
                UserWarning,
                stacklevel=2,
            )

    def _is_header_of_numbers(self) -> bool:
        """Whether all names and values are numbers, and the names do not count the columns."""
        names = list(self._types)
        numbers = pl.Series(names, dtype=pl.String).cast(pl.Float64, strict=False)
        if not numbers.is_finite().fill_null(False).all():
            return False
        for first in (0, 1):
            if names == [str(first + k) for k in range(len(names))]:
                return False
        return all(dtype in (pl.Int64, pl.Float64) for dtype in self._types.values())


def _columns_where(frame: pl.DataFrame, names: Sequence[str], condition: pl.Expr) -> set[str]:
    """Those of the columns in which a condition on `pl.col(names)` holds for any value."""
    if not names:
        return set()
    holds = frame.select(condition.any()).row(0)
    return {name for name, any_value in zip(names, holds, strict=True) if any_value}


def _columns_by_first_row(texts: pl.DataFrame, dtype: type[pl.DataType]) -> set[str]:
    """The columns whose first cell is empty or a value of a type."""
    first_cells = pl.DataFrame({"cell": texts.row(0)}, schema={"cell": pl.String})
    cast = first_cells.select(_cast(["cell"], dtype, strict=False))
    is_possible = cast.get_column("cell").is_not_null() | first_cells.get_column("cell").is_null()
    return {name for name, possible in zip(texts.columns, is_possible, strict=True) if possible}


def _cast(names: Sequence[str], dtype: type[pl.DataType], *, strict: bool = True) -> pl.Expr:
    """Columns of text as another type; no Boolean but true and false is known."""
    cells = pl.col(names)
    if dtype != pl.Boolean:
        return cells.cast(dtype, strict=strict)
    is_true = cells == "true"
    is_known = is_true | (cells == "false")
    return pl.when(is_known).then(is_true)

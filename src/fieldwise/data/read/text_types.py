"""The types of columns of text: the narrowest that holds every value, or text as it is written."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

_BOOLEANS = {"true": True, "false": False}
_ZEROS = r"^[+-]?0\d"
_REWRITTEN = r"^(?:\+|-?0\d|-0)"
"""Begins whole numbers whose text is not that of their integer: +7, 007, -0."""
PLAIN_OR_THOUSANDS = r"^[+-]?(?:\d{1,3}|[1-9]\d{0,2}\.\d{3})$"
"""Numbers such as 768 and 3.768, which may be 3768 written with a thousands separator."""
_LEAST_THOUSAND = 1000
# A whole number of 16 digits or more may not fit a Float64 exactly: it is an id.
_DIGITS = r"^[+-]?\d{16,}$"
_LONG = 10**15
_HEAD = 1000  # rows that show of most text that it is text
_TypeSoFar = type[pl.DataType] | None
# each with the types so far that it may follow
_NARROWEST: dict[type[pl.DataType], tuple[_TypeSoFar, ...]] = {
    pl.Int64: (None, pl.Int64),
    pl.Float64: (None, pl.Int64, pl.Float64),
    pl.Boolean: (None, pl.Boolean),
}


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
        self._types: dict[str, _TypeSoFar] = {}  # None: there was no value yet
        # columns with a fraction whose numbers may all be thousands
        self._thousands: set[str] = set()
        # columns of which some number is not written with thousands
        self._no_thousands: set[str] = set()
        self._long: set[str] = set()  # columns of whole numbers of which one has many digits
        # columns one of whose values is their name, each with its file
        self._named: dict[str, Path] = {}

    def add(self, chunk: pl.DataFrame, path: Path = Path()) -> pl.DataFrame:
        """The next rows, of a file, typed by all values so far, these included; columns of other types are kept."""
        if not self._types and chunk.height > _HEAD:
            self.add(chunk.head(_HEAD), path)
        texts = chunk.select(pl.col(pl.String))
        nulls = (
            dict(zip(texts.columns, texts.null_count().row(0), strict=True)) if texts.width else {}
        )
        unnamed = [name for name in texts.columns if name.strip() and name not in self._named]
        self._named |= dict.fromkeys(
            _columns_where(texts, {name: pl.col(name) == name for name in unnamed}), path
        )
        rest = []
        for name, count in nulls.items():
            if self._types.setdefault(name, None) != pl.String and count < chunk.height:
                rest.append(name)
        made: dict[str, pl.Series] = {}
        for kind, before in _NARROWEST.items():
            names = [name for name in rest if name not in made and self._types[name] in before]
            if kind == pl.Float64:
                names = [name for name in names if not self._is_text(name)]
            # A value that the type cannot hold becomes null.
            cast = texts.select(_cast(name, kind, strict=False) for name in names)
            fitting = {
                column.name: column
                for column in cast.iter_columns()
                if column.null_count() == nulls[column.name]
            }
            codes = self._codes(texts, fitting, kind)
            for name, column in zip(
                fitting, texts.select(list(fitting)).iter_columns(), strict=True
            ):
                made[name] = column if name in codes else fitting[name]
        self._types |= {
            name: type(made[name].dtype) if name in made else pl.String for name in rest
        }
        decimal = [
            name
            for name in rest
            if self._types[name] == pl.Float64 and name not in self._no_thousands
        ]
        self._look_for_thousands(texts.select(decimal))
        typed = chunk.with_columns(
            column for name, column in made.items() if name not in self._thousands
        )
        return self.typed(typed)

    def _is_text(self, name: str) -> bool:
        """Whether a column's cells are kept as they are written."""
        return self._texts is None or name in self._texts

    def _look_for_thousands(self, texts: pl.DataFrame) -> None:
        """Note of columns of numbers with fractions whether all of them may be thousands."""
        plain = {name: ~pl.col(name).str.contains(PLAIN_OR_THOUSANDS) for name in texts.columns}
        self._no_thousands.update(_columns_where(texts, plain))
        self._thousands = self._thousands.union(texts.columns) - self._no_thousands

    def _codes(
        self, texts: pl.DataFrame, fitting: Mapping[str, pl.Series], kind: type[pl.DataType]
    ) -> set[str]:
        """The columns that are text although all values are numbers: some have leading zeros, or too many digits."""
        if kind == pl.Boolean:
            return set()
        patterns = {name: _REWRITTEN if self._is_text(name) else _ZEROS for name in fitting}
        found = {name: pl.col(name).str.contains(pattern) for name, pattern in patterns.items()}
        codes = set(_columns_where(texts, found))
        if kind == pl.Float64:
            many_digits = {name: pl.col(name).str.contains(_DIGITS) for name in fitting}
            return (
                codes | self._long.intersection(fitting) | set(_columns_where(texts, many_digits))
            )
        for name, column in fitting.items():
            low = column.min()
            high = column.max()
            if not (int(low) > -_LONG and int(high) < _LONG) and name not in codes:  # type: ignore[arg-type]
                self._long.add(name)
            if max(-int(low), int(high)) >= _LEAST_THOUSAND:  # type: ignore[arg-type]
                self._no_thousands.add(name)
        return codes

    def to_plain(self) -> dict[str, Any]:
        """What is known so far, for JSON."""
        types = [
            (name, None if kind is None else kind.__name__) for name, kind in self._types.items()
        ]
        named = [(name, str(path)) for name, path in self._named.items()]
        thousands = {"thousands": list(self._thousands), "no_thousands": list(self._no_thousands)}
        return {"types": types, "long": list(self._long), "named": named, **thousands}

    def restore(self, plain: Mapping[str, Any]) -> None:
        """Go on where `to_plain` was called."""
        kinds = {kind.__name__: kind for kind in _NARROWEST} | {"String": pl.String}
        self._types = {name: kinds.get(kind) for name, kind in plain["types"]}
        self._long = set(plain["long"])
        self._named = {name: Path(path) for name, path in plain["named"]}
        self._thousands = set(plain["thousands"])
        self._no_thousands = set(plain["no_thousands"])

    def typed(self, chunk: pl.DataFrame) -> pl.DataFrame:
        """Rows whose values are among those added, with the types so far."""
        schema = chunk.schema  # which polars makes anew each time that it is asked for
        return chunk.with_columns(
            _cast(name, kind)
            for name, kind in self._types.items()
            if kind not in (None, pl.String)
            and name not in self._thousands
            and schema.get(name) == pl.String
        )

    def warn_of_header(self, path: Path) -> None:
        """Warn if the names of the columns look like a row, which would then be missing; `path` is the first file."""
        names = list(self._types)
        kinds = self._types.values()
        reason = ""
        counted = [str(k) for k in range(len(names))], [str(k + 1) for k in range(len(names))]
        numbers = pl.Series(names, dtype=pl.String).cast(pl.Float64, strict=False)
        if (
            numbers.is_finite().fill_null(False).all()
            and names not in counted
            and all(k in (pl.Int64, pl.Float64) for k in kinds)
        ):
            reason = f"all its names are numbers, such as {names[0]!r}"
        elif result := next(
            (name for name in names if name in self._named and self._types[name] == pl.String), None
        ):
            path = self._named[result]
            reason = f"{result!r} is a value of its column too"
        if reason:
            warnings.warn(
                f"the first line of {path} was read as the column names, but it looks like a row ({reason}); if the "
                "file has no header, give its column names (`columns`)",
                UserWarning,
                stacklevel=2,
            )


def _columns_where(frame: pl.DataFrame, conditions: Mapping[str, pl.Expr]) -> list[str]:
    """The columns in which a condition holds for any value."""
    if not conditions:
        return []
    holds = frame.select(condition.any().alias(name) for name, condition in conditions.items()).row(
        0
    )
    return [name for name, any_value in zip(conditions, holds, strict=True) if any_value]


def _cast(name: str, kind: type[pl.DataType], *, strict: bool = True) -> pl.Expr:
    if kind == pl.Boolean:
        return pl.col(name).replace_strict(_BOOLEANS, default=None, return_dtype=pl.Boolean)
    return pl.col(name).cast(kind, strict=strict)

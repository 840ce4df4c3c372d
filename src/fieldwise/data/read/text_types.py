"""The types of text columns, decided by all of their values, which may come piece by piece."""

from dataclasses import dataclass, field

import polars as pl

__all__ = ["TextTypes", "infer_types"]

_BOOLEANS = {"true": True, "false": False}
_ZEROS = r"^[+-]?0\d"
# A whole number of 16 digits or more may not fit a Float64 exactly: it is an id.
_DIGITS, _LONG = r"^[+-]?\d{16,}$", 10**15
_HEAD = 1000  # rows that show of most text that it is text


@dataclass(kw_only=True)
class _Facts:
    """What all values of a column so far have in common."""

    values: bool = False  # whether there was any
    whole: bool = True
    number: bool = True
    boolean: bool = True
    zeros: bool = False  # whether one has a leading zero
    long: bool = False  # whether one is a whole number of many digits

    @property
    def dtype(self) -> type[pl.DataType]:
        if not self.values:
            return pl.String
        if self.whole:
            return pl.String if self.zeros else pl.Int64
        if self.number:
            return pl.String if self.zeros or self.long else pl.Float64
        return pl.Boolean if self.boolean else pl.String

    @property
    def settled(self) -> bool:
        """Whether the column is text, whatever follows."""
        return not self.boolean and (not self.whole or self.zeros) and (not self.number or self.zeros or self.long)


@dataclass(kw_only=True)
class TextTypes:
    """The narrowest type of each String column that holds all of its values so far without loss.

    Int64 if every value is a whole number without leading zeros; Float64 if every value is a number (not for whole
    numbers beyond 64 bits, which are ids); Boolean for true and false; else String, so that codes such as `01234` are
    not changed. A column without any value is text.

    >>> types = TextTypes()
    >>> types.add(pl.DataFrame({"n": ["1", "2"]})).dtypes, types.add(pl.DataFrame({"n": ["2.5"]})).dtypes
    ([Int64], [Float64])
    """

    facts: dict[str, _Facts] = field(default_factory=dict)

    def add(self, piece: pl.DataFrame) -> pl.DataFrame:
        """The next rows, typed by all values so far, these included; columns of other types are kept."""
        text = [name for name, dtype in piece.schema.items() if dtype == pl.String]
        nulls = dict(zip(piece.columns, piece.null_count().row(0), strict=True)) if piece.width else {}
        open_ones = [name for name in text if not self.facts.setdefault(name, _Facts()).settled]
        filled = [name for name in open_ones if nulls[name] < piece.height]
        for name in filled:
            self.facts[name].values = True
        made = self._whole(piece, [name for name in filled if self.facts[name].number], nulls)
        rest = [name for name in filled if name not in made]
        made |= self._numbers(piece, [name for name in rest if self.facts[name].number], nulls)
        made |= self._booleans(piece, [name for name in rest if self.facts[name].boolean], nulls)
        return self.typed(piece, made)

    def typed(self, piece: pl.DataFrame, made: dict[str, pl.Series] | None = None) -> pl.DataFrame:
        """Rows whose values are among those added, with the types so far."""
        columns: list[pl.Series | pl.Expr] = []
        for name, dtype in self.types.items():
            if dtype == pl.String or piece.schema.get(name) != pl.String:
                continue
            if made is not None and name in made and made[name].dtype == dtype:
                columns.append(made[name])
            else:
                columns.append(_boolean(pl.col(name)) if dtype == pl.Boolean else pl.col(name).cast(dtype))
        return piece.with_columns(columns)

    @property
    def types(self) -> dict[str, type[pl.DataType]]:
        """The type of each column that was added as text."""
        return {name: facts.dtype for name, facts in self.facts.items()}

    def _whole(self, piece: pl.DataFrame, names: list[str], nulls: dict[str, int]) -> dict[str, pl.Series]:
        """The columns of this piece that hold whole numbers only."""
        cast = piece.select(pl.col(names).cast(pl.Int64, strict=False))
        made = {s.name: s for s in cast.iter_columns() if s.null_count() == nulls[s.name]}
        for name in names:
            facts = self.facts[name]
            if name not in made:  # a value that the type cannot hold has become null
                facts.whole = False
                continue
            facts.boolean = False
            facts.zeros = facts.zeros or bool(piece.get_column(name).str.contains(_ZEROS).any())
            low, high = made[name].min(), made[name].max()
            facts.long = facts.long or not (int(low) > -_LONG and int(high) < _LONG)  # type: ignore[arg-type]
        return made

    def _numbers(self, piece: pl.DataFrame, names: list[str], nulls: dict[str, int]) -> dict[str, pl.Series]:
        cast = piece.select(pl.col(names).cast(pl.Float64, strict=False))
        made = {s.name: s for s in cast.iter_columns() if s.null_count() == nulls[s.name]}
        for name in names:
            facts, column = self.facts[name], piece.get_column(name)
            facts.whole = False
            facts.number = name in made
            if facts.number:
                facts.boolean = False
                facts.zeros = facts.zeros or bool(column.str.contains(_ZEROS).any())
                facts.long = facts.long or bool(column.str.contains(_DIGITS).any())
        return made

    def _booleans(self, piece: pl.DataFrame, names: list[str], nulls: dict[str, int]) -> dict[str, pl.Series]:
        made = {}
        for name in names:
            facts = self.facts[name]
            if not facts.boolean:  # it was found to hold numbers
                continue
            column = piece.select(_boolean(pl.col(name))).to_series()
            facts.boolean = column.null_count() == nulls[name]
            if facts.boolean:
                facts.whole = facts.number = False
                made[name] = column
        return made


def _boolean(column: pl.Expr) -> pl.Expr:
    return column.replace_strict(_BOOLEANS, default=None, return_dtype=pl.Boolean)


def infer_types(frame: pl.DataFrame) -> pl.DataFrame:
    """A table in which every String column has the narrowest type that holds ALL of its values without loss.

    See `TextTypes`; all values of a column are used, so no later row can contradict the type.

    >>> infer_types(pl.DataFrame({"n": ["1", None], "x": ["1", "2.5"], "zip": ["01234", "98765"]})).dtypes
    [Int64, Float64, String]
    """
    types = TextTypes()
    types.add(frame.head(_HEAD))
    return types.add(frame)

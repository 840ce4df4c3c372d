"""The kinds of fields: categorical, numeric, bag and sequence.

Each kind states what its cells hold (`cell`), how many values of a list are read (`max_length`) and whose rows it uses
(`shares`). Other modules ask for these, not for the kind, so that a new kind needs no change there.
"""

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from fieldwise.config import nearest
from fieldwise.errors import SchemaError
from fieldwise.schema.label import NumberFormat, check_choices

Role = Literal["user", "item", "context"]
Pooling = Literal["mean", "sum", "max"]


@dataclass(frozen=True)
class Categorical:
    """A field with one category per cell: an id, a code, a word.

    Args:
        name: the field's name, unique in its schema.
        role: the side that the field describes; two-tower models need user and item fields.
        column: the table's column; the name if omitted.
        min_count: less frequent values in the training rows share the field's unknown row.
        hash_buckets: number of embedding rows to which values are hashed, instead of a vocabulary.

    >>> Categorical("gender", role="user").column
    'gender'
    """

    name: str
    _: KW_ONLY
    role: Role = "context"
    column: str = ""
    min_count: int = 1
    hash_buckets: int | None = None
    kind: Literal["categorical"] = "categorical"
    cell: ClassVar[Literal["category"]] = "category"
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None

    def __post_init__(self) -> None:
        _finish_field(self)


@dataclass(frozen=True)
class Numeric:
    """A field with one number per cell.

    Args:
        encoding: `value` multiplies one learned vector by the transformed number; `uniform` and `quantile` divide the
            training range into `bins` bins, each of which is a category.
        transform: applied first, with statistics of the training rows: `minmax` to [0, 1] (values beyond the training
            range are clipped), `standard` to mean 0 and standard deviation 1, `log` to sign(x) log(1 + |x|).
        bins: number of bins; values beyond the training range belong to the first or last one.
        point_masses: for `quantile`: whether a number in more than 1 / bins of the rows gets its own bin, with the
            quantiles computed from the others. Without it, a column that is mostly 0 has one bin.
        missing: a missing number contributes nothing (`zero`) or a learned vector (`vector`). Bins always have a row
            for it.
        number_format: format of numbers in text: `1.234,5` and `1 234,5` with a decimal comma, `1,234.5` and
            `1'234.5` with thousands separators, which are optional in each.
    """

    name: str
    _: KW_ONLY
    role: Role = "context"
    column: str = ""
    encoding: Literal["value", "uniform", "quantile"] = "value"
    transform: Literal["none", "minmax", "standard", "log"] = "standard"
    bins: int = 10
    point_masses: bool = False
    missing: Literal["zero", "vector"] = "zero"
    number_format: NumberFormat | None = None
    kind: Literal["numeric"] = "numeric"
    cell: ClassVar[Literal["number"]] = "number"
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None

    def __post_init__(self) -> None:
        _finish_field(self)
        if self.bins < 2:
            raise SchemaError(f"field {self.name!r}: bins must be at least 2, found {self.bins}")
        if self.point_masses and self.encoding != "quantile":
            raise SchemaError(
                f"field {self.name!r}: point_masses belongs to encoding 'quantile', found {self.encoding!r}"
            )


@dataclass(frozen=True)
class Bag:
    """A field with several unordered values per cell: genres, tags. A cell is a list, or text split at `separator`.

    Args:
        separator: delimiter of values in a text cell.
        pooling: how the values' vectors are pooled.
        shares: name of a Categorical field whose vocabulary and embedding rows this field shares.
    """

    name: str
    _: KW_ONLY
    role: Role = "context"
    column: str = ""
    separator: str = "|"
    pooling: Pooling = "mean"
    min_count: int = 1
    hash_buckets: int | None = None
    shares: str | None = None
    kind: Literal["bag"] = "bag"
    cell: ClassVar[Literal["list"]] = "list"
    max_length: ClassVar[None] = None

    def __post_init__(self) -> None:
        _finish_field(self)


@dataclass(frozen=True)
class Sequence:
    """A field with an ordered history, oldest first; a cell is a list, or text split at `separator`.

    Args:
        max_length: maximum number of values; the newest are kept.
        pooling: pooling for models that ignore the order.
        shares: name of a Categorical field whose vocabulary and embedding rows this field shares: for a history of
            items the item's field, as DIN needs.
    """

    name: str
    _: KW_ONLY
    role: Role = "user"
    column: str = ""
    separator: str = "|"
    max_length: int = 50
    pooling: Pooling = "mean"
    min_count: int = 1
    hash_buckets: int | None = None
    shares: str | None = None
    kind: Literal["sequence"] = "sequence"
    cell: ClassVar[Literal["list"]] = "list"

    def __post_init__(self) -> None:
        _finish_field(self)


Field = Categorical | Numeric | Bag | Sequence
ListField = Bag | Sequence


def _finish_field(f: Any) -> None:
    """Set what follows from a field's name, and check what its kind has: a vocabulary, a separator, a length."""
    if not isinstance(f.name, str) or not f.name:
        raise SchemaError(f"a field needs a name that is text, found {f.name!r}")
    if not f.column:
        object.__setattr__(f, "column", f.name)
    what = f"field {f.name!r}"
    check_choices(f, what)
    if f.cell != "number":
        _check_count(f"{what}: min_count", f.min_count)
        if f.hash_buckets is not None:
            _check_count(f"{what}: hash_buckets", f.hash_buckets)
        if f.shares is not None and (f.min_count, f.hash_buckets) != (1, None):
            raise SchemaError(
                f"{what} shares the rows of {f.shares!r}, with its min_count and hash_buckets: remove its own"
            )
    if f.cell == "list" and not f.separator:
        raise SchemaError(f"{what}: separator must not be empty")
    if f.max_length is not None:
        _check_count(f"{what}: max_length", f.max_length)


def _check_count(what: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SchemaError(f"{what} must be a whole number of at least 1, found {count!r}")


def unshared(f: Field) -> Field:
    """The field with embedding rows of its own.

    >>> unshared(Sequence("history", shares="item")).shares is None
    True
    """
    return dataclasses.replace(f, shares=None) if isinstance(f, (Bag, Sequence)) else f


def check_shares(fields: tuple[Field, ...]) -> None:
    """Check that a field only shares the rows of another, Categorical field of the schema."""
    by_name = {f.name: f for f in fields}
    for f in fields:
        if not isinstance(f, (Bag, Sequence)) or f.shares is None:
            continue
        other = by_name.get(f.shares)
        if not isinstance(other, Categorical):
            found = "no field of that name" if other is None else f"one of kind {other.kind!r}"
            possible = [name for name, f in by_name.items() if isinstance(f, Categorical)]
            raise SchemaError(
                f"field {f.name!r}: shares must name a Categorical field of the schema, found {f.shares!r}, {found}: "
                + (nearest(f.shares, possible) if possible else "add one")
            )

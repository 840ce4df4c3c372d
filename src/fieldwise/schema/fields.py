"""The kinds of fields: what a column's cells hold, and how a model reads them.

Each kind states what its cells hold (`cell`), whether their values have an order (`is_ordered`), how
many values of a list are read (`max_length`) and whose rows it uses (`shares`); one of numbers has a
`number_format`, one of lists a `separator`.
Other modules ask for these, not for the kind, so that a new kind needs no change there. How a kind
is fitted and encoded: `fieldwise.data.encode.kinds`.
"""

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

from fieldwise.errors import SchemaError
from fieldwise.schema.checks import check_count, check_types
from fieldwise.schema.number_format import NumberFormat, check_number_format

__all__ = [
    "Bag",
    "Categorical",
    "Field",
    "ListField",
    "Numeric",
    "Pooling",
    "Projection",
    "Role",
    "Sequence",
    "Vector",
]

Role = Literal["user", "item", "context"]
Pooling = Literal["mean", "sum", "max"]
Projection = Literal["linear", "mlp"]
LONGEST_VECTOR = 4_096
"""The most numbers of a vector."""


@dataclass(frozen=True)
class Column:
    """What every kind of field has: a name, a role and a column.

    Attributes:
        is_ordered: whether a larger value means more. Explanations, slices and the server's page
            then show quantiles, a median, or low, medium and high; else the most frequent values,
            as for numbers that go round (an hour of the day).
    """

    is_ordered: ClassVar[bool] = False

    name: str
    _: KW_ONLY
    role: Role = "context"
    column: str = ""

    def __post_init__(self: Any) -> None:
        """Set what follows from a field's name, and check what its kind has: a vocabulary, a separator, a length."""
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError(f"a field needs a name that is text, found {self.name!r}")
        if not self.column:
            object.__setattr__(self, "column", self.name)
        what = f"field {self.name!r}"
        if hasattr(self, "min_count"):
            check_count(f"{what}: min_count", self.min_count)
            if self.hash_buckets is not None:
                check_count(f"{what}: hash_buckets", self.hash_buckets)
            if self.shares is not None and (self.min_count, self.hash_buckets) != (1, None):
                raise SchemaError(
                    f"{what} shares the rows of {self.shares!r}, with its min_count and hash_buckets: remove its own"
                )
        if hasattr(self, "separator") and not self.separator:
            raise SchemaError(f"{what}: separator must not be empty")
        if self.max_length is not None:
            check_count(f"{what}: max_length", self.max_length)
        check_types(self, what)

    @property
    def vector_file(self) -> str | None:
        """The file of vectors that the field reads, if it does."""
        path: str | None = getattr(self, "vectors", None)
        return path

    @property
    def has_own_ids(self: Any) -> bool:
        """Whether a cell is a category of the field's own vocabulary, and no id of a table of vectors."""
        return self.cell == "category" and self.vector_file is None


@dataclass(frozen=True, kw_only=True)
class Categorical(Column):
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

    min_count: int = 1
    hash_buckets: int | None = None
    kind: Literal["categorical"] = "categorical"
    cell: ClassVar[Literal["category"]] = "category"
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None


@dataclass(frozen=True, kw_only=True)
class Numeric(Column):
    """A field with one number per cell.

    Args:
        encoding: `value` multiplies one learned vector by the transformed number; `uniform` and
            `quantile` divide the training range into `bins` bins, each of which is a category;
            `piecewise` is a curve with quantile bins, linear in each (Gorishniy et al., NeurIPS
            2022): a learned vector, plus a learned vector of each bin times the share of the bin
            that is below the number.
        transform: applied first, with statistics of the training rows: `minmax` to [0, 1] (values
            beyond the training range are clipped), `standard` to mean 0 and standard deviation 1,
            `log` to sign(x) log(1 + |x|).
        bins: number of bins; values beyond the training range belong to the first or last one.
        closed: the side of a bin whose edge belongs to it: a number at the edge of two bins is in
            the upper one (`left`), or in the lower one (`right`, as in pandas' `cut`).
        point_masses: for `quantile` and `piecewise`: whether a number in more than 1 / bins of the rows gets its
            own bin, with the quantiles computed from the others. Without it, a column that is
            mostly 0 has one bin.
        missing: a missing number contributes nothing (`zero`) or a learned vector (`vector`). Bins
            and curves always have a row for it.
        number_format: format of numbers in text: `1.234,5` and `1 234,5` with a decimal comma,
            `1,234.5` and `1'234.5` with thousands separators, which are optional in each; with a
            unit if cells have one, as `€ 1.234,5` and `1,234.5 %`: it may stand before or after the
            number, or be left out.
    """

    encoding: Literal["value", "uniform", "quantile", "piecewise"] = "value"
    transform: Literal["none", "minmax", "standard", "log"] = "standard"
    bins: int = 10
    closed: Literal["left", "right"] = "left"
    point_masses: bool = False
    missing: Literal["zero", "vector"] = "zero"
    number_format: NumberFormat | None = None
    kind: Literal["numeric"] = "numeric"
    cell: ClassVar[Literal["number"]] = "number"
    is_ordered: ClassVar[bool] = True
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number_format(self.number_format, f"field {self.name!r}")
        if self.bins < 2:
            raise SchemaError(f"field {self.name!r}: bins must be at least 2, found {self.bins}")
        if self.point_masses and self.encoding not in ("quantile", "piecewise"):
            raise SchemaError(
                f"field {self.name!r}: point_masses belongs to encoding 'quantile' or 'piecewise', found "
                f"{self.encoding!r}"
            )
        has_edges = self.encoding in ("uniform", "quantile") and not self.point_masses
        if self.closed == "right" and not has_edges:
            found = "point_masses" if self.point_masses else f"encoding {self.encoding!r}"
            raise SchemaError(
                f"field {self.name!r}: closed = 'right' belongs to encoding 'uniform', or 'quantile' without "
                f"point_masses, found {found}"
            )


@dataclass(frozen=True, kw_only=True)
class Bag(Column):
    """A field with several unordered values per cell: genres, tags. A cell is a list, or text split at `separator`.

    Args:
        separator: delimiter of values in a text cell; `words`: its values are the words of the
            text, in lower case.
        pooling: how the values' vectors are pooled.
        shares: name of a Categorical field whose vocabulary and embedding rows this field shares.
    """

    separator: str = "|"
    pooling: Pooling = "mean"
    min_count: int = 1
    hash_buckets: int | None = None
    shares: str | None = None
    kind: Literal["bag"] = "bag"
    cell: ClassVar[Literal["list"]] = "list"
    max_length: ClassVar[None] = None


@dataclass(frozen=True, kw_only=True)
class Sequence(Column):
    """A field with an ordered history, oldest first; a cell is a list, or text split at `separator`.

    Args:
        max_length: maximum number of values; the newest are kept.
        pooling: pooling for models that ignore the order.
        shares: name of a Categorical field whose vocabulary and embedding rows this field shares:
            for a history of items the item's field, as DIN needs.
    """

    role: Role = "user"
    separator: str = "|"
    max_length: int = 50
    pooling: Pooling = "mean"
    min_count: int = 1
    hash_buckets: int | None = None
    shares: str | None = None
    kind: Literal["sequence"] = "sequence"
    cell: ClassVar[Literal["list"]] = "list"


@dataclass(frozen=True, kw_only=True)
class Vector(Column):
    """A field with a vector per cell, such as a text's embedding by another model: up to 4,096 numbers.

    A cell is a list of numbers, or with `vectors` the id of one in a table. A learned projection
    makes a vector of the embedding's size of it. A missing cell has a learned vector instead, and
    so has each id of the training rows that the table lacks; further ones share one. The length
    follows from the training rows or the table, and every vector has it.

    Args:
        vectors: a file of vectors by id (`fieldwise.data.encode.vector_files`): a table with the
            ids and a column of lists, `.npy` with the ids beside it, or `.safetensors`. It is
            relative to the recipe's folder.
        projection: `linear` multiplies by a learned matrix and adds a learned vector; `mlp` has a
            hidden layer of four times the embedding's size with ReLU. First-order weights are
            always linear in the vector.
        normalise: whether each vector is divided by its length; else all are divided by the root
            mean square of the lengths in the training rows.

    >>> Vector("text", role="item", projection="mlp").cell
    'vector'
    >>> Vector("text", role="item", column="item_id", vectors="items.npy").cell
    'category'
    """

    vectors: str | None = None
    projection: Projection = "linear"
    normalise: bool = False
    kind: Literal["vector"] = "vector"
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None

    @property
    def cell(self) -> Literal["category", "vector"]:
        """A cell holds an id of the table of vectors, or a vector."""
        return "category" if self.vectors else "vector"


Field = Categorical | Numeric | Bag | Sequence | Vector
ListField = Bag | Sequence


def text_columns(fields: Iterable[Field]) -> tuple[str, ...]:
    """The columns that some of these fields read as text: all but those of plain numbers alone."""
    read_as_text = [f for f in fields if f.cell != "number" or f.number_format is not None]
    return tuple(dict.fromkeys(f.column for f in read_as_text))

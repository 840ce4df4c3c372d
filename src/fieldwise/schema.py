"""What the columns of a table mean. A schema is written in Python or TOML, or inferred (`fieldwise.data.infer`)."""

import dataclasses
import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from fieldwise.config import parse, to_plain
from fieldwise.errors import SchemaError

__all__ = ["Bag", "Categorical", "Field", "Label", "Numeric", "Pooling", "Role", "Schema", "Sequence"]

Role = Literal["user", "item", "context"]
Pooling = Literal["mean", "sum", "max"]
Scalar = bool | int | float | str


@dataclass(frozen=True)
class Categorical:
    """One category a cell: an id, a code, a word.

    Args:
        name: the field's name, unique in its schema.
        role: whom the field describes; two-tower models need user and item fields.
        column: the table's column; the name, where left out.
        min_count: values seen less often in the training rows share the field's unknown row.
        hash_buckets: where given, values are hashed to so many rows and no vocabulary is kept.

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

    def __post_init__(self) -> None:
        _finish_field(self)
        _check_vocabulary(self.name, self.min_count, self.hash_buckets)


@dataclass(frozen=True)
class Numeric:
    """One number a cell.

    Args:
        encoding: `value` multiplies one learned vector by the transformed number; `uniform` and `quantile` cut
            the training range into `bins` bins, each a category.
        transform: applied before anything else, with statistics of the training rows: `minmax` to [0, 1] (values
            beyond the training range are clipped to it), `standard` to mean 0 and deviation 1,
            `log` to sign(x) log(1 + |x|).
        bins: number of bins; values beyond the training range fall in the first or last one.
        missing: an absent number contributes nothing (`zero`) or the field's own learned vector (`vector`).
            Bins always have a row of their own for it.
    """

    name: str
    _: KW_ONLY
    role: Role = "context"
    column: str = ""
    encoding: Literal["value", "uniform", "quantile"] = "value"
    transform: Literal["none", "minmax", "standard", "log"] = "standard"
    bins: int = 10
    missing: Literal["zero", "vector"] = "zero"
    kind: Literal["numeric"] = "numeric"

    def __post_init__(self) -> None:
        _finish_field(self)
        if self.bins < 2:
            raise SchemaError(f"field {self.name!r}: bins must be at least 2, found {self.bins}")


@dataclass(frozen=True)
class Bag:
    """Several unordered values a cell: genres, tags. A cell is a list, or text cut at `separator`.

    Args:
        separator: what stands between values in a text cell.
        pooling: how the values' vectors become one.
    """

    name: str
    _: KW_ONLY
    role: Role = "context"
    column: str = ""
    separator: str = "|"
    pooling: Pooling = "mean"
    min_count: int = 1
    hash_buckets: int | None = None
    kind: Literal["bag"] = "bag"

    def __post_init__(self) -> None:
        _finish_field(self)
        _check_vocabulary(self.name, self.min_count, self.hash_buckets)
        if not self.separator:
            raise SchemaError(f"field {self.name!r}: separator must not be empty")


@dataclass(frozen=True)
class Sequence:
    """An ordered history, oldest first; a cell is a list, or text cut at `separator`.

    Args:
        max_length: only the newest so many values are kept.
        pooling: for models that take no order.
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
    kind: Literal["sequence"] = "sequence"

    def __post_init__(self) -> None:
        _finish_field(self)
        _check_vocabulary(self.name, self.min_count, self.hash_buckets)
        if not self.separator:
            raise SchemaError(f"field {self.name!r}: separator must not be empty")
        _check_count(f"field {self.name!r}: max_length", self.max_length)


Field = Categorical | Numeric | Bag | Sequence


@dataclass(frozen=True)
class Label:
    """What is predicted.

    Args:
        column: the table's column.
        task: `binary` (a probability, cross-entropy) or `regression` (a number, squared error).
        positive_above: binary: numbers above this are positive, all others negative.
        positive_values: binary: these values are positive, all others negative.
            With neither rule the column must hold 0 and 1 (or false and true) alone.
        drop_values: rows with these values are left out, and counted.
        range: regression: the targets' least and greatest value; predictions are clipped to it.

    >>> Label("rating", positive_above=3, drop_values=(3,)).task
    'binary'
    """

    column: str
    _: KW_ONLY
    task: Literal["binary", "regression"] = "binary"
    positive_above: float | None = None
    positive_values: tuple[Scalar, ...] | None = None
    drop_values: tuple[Scalar, ...] = ()
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not self.column:
            raise SchemaError("a label needs a column, found an empty name")
        _check_choices(self, "label")
        object.__setattr__(self, "drop_values", tuple(self.drop_values))
        if self.positive_values is not None:
            object.__setattr__(self, "positive_values", tuple(self.positive_values))
            if not self.positive_values:
                raise SchemaError("a label's positive_values must name at least one value, found none")
        if self.range is not None:
            object.__setattr__(self, "range", tuple(self.range))
        for value in (*self.drop_values, *(self.positive_values or ())):
            if isinstance(value, float) and not math.isfinite(value):
                raise SchemaError(f"a label's positive_values and drop_values must be finite, found {value}")
        if self.positive_above is not None and not math.isfinite(self.positive_above):
            raise SchemaError(f"a label's positive_above must be finite, found {self.positive_above}")
        if self.positive_above is not None and self.positive_values is not None:
            raise SchemaError("a label takes positive_above or positive_values, not both")
        has_rule = self.positive_above is not None or self.positive_values is not None
        if self.task == "regression" and has_rule:
            raise SchemaError("a regression label takes no positive rule: leave out positive_above and positive_values")
        if self.task == "binary" and self.range is not None:
            raise SchemaError("a binary label takes no range: it is for task = 'regression'")
        if self.range is not None:
            finite = len(self.range) == 2 and all(math.isfinite(bound) for bound in self.range)
            if not finite or not self.range[0] < self.range[1]:
                raise SchemaError(f"a label's range must be two finite numbers that rise, found {list(self.range)}")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The fields of a table, its label, and the columns that order, group and name rows.

    Args:
        fields: what models see, in this order.
        label: what they predict.
        time: column that orders rows (splits by time).
        group: column whose values group AUC is computed within, usually the user.
        keys: columns that name a row in predictions and reports.

    Errors:
        SchemaError: no field, a name or the label used twice.

    >>> schema = Schema(fields=(Categorical("user"), Categorical("item")), label=Label("click"))
    >>> Schema.from_toml(schema.to_toml()) == schema
    True
    """

    fields: tuple[Field, ...]
    label: Label
    time: str | None = None
    group: str | None = None
    keys: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):
            raise SchemaError(f"keys must be a list of columns, found the text {self.keys!r}: write [{self.keys!r}]")
        object.__setattr__(self, "fields", tuple(self.fields))
        object.__setattr__(self, "keys", tuple(dict.fromkeys(self.keys)))
        if not self.fields:
            raise SchemaError("a schema needs at least one field, found none")
        repeated = [name for name, n in Counter(f.name for f in self.fields).items() if n > 1]
        if repeated:
            raise SchemaError(f"field names must be unique, found {repeated[0]!r} more than once")
        leaking = [f.name for f in self.fields if f.column == self.label.column]
        if leaking:
            raise SchemaError(f"field {leaking[0]!r} reads the label's column {self.label.column!r}: remove the field")
        for what, column in (("time", self.time), ("group", self.group)):
            if column == self.label.column:
                raise SchemaError(f"{what} must not be the label's column {column!r}: name another column or none")
            if column == "":
                raise SchemaError(f"{what} must name a column, found an empty name: leave it out where there is none")

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that scoring needs: those of the fields, each once."""
        return tuple(dict.fromkeys(f.column for f in self.fields))

    def with_role(self, role: Role) -> tuple[Field, ...]:
        """The fields of one role, in order."""
        return tuple(f for f in self.fields if f.role == role)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for TOML or JSON."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "schema") -> "Schema":
        """The inverse of `to_dict`; errors name the setting below `where`."""
        return parse(cls, data, where, SchemaError)

    def to_toml(self) -> str:
        """TOML text that `from_toml` reads back."""
        import tomli_w  # here, so that `doctor` can still say that it is absent

        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, source: str | Path) -> "Schema":
        """Read TOML text, or a file where `source` is a Path."""
        where = str(source) if isinstance(source, Path) else "schema"
        try:
            text = source.read_text("utf-8-sig") if isinstance(source, Path) else source
            if text.endswith(".toml"):
                raise SchemaError(f"from_toml reads TOML text, or a file by its Path: give Path({text!r})")
            return cls.from_dict(tomllib.loads(text), where)
        except OSError as e:
            raise SchemaError(f"the schema {where} cannot be read: {e.strerror or e}") from None
        except UnicodeDecodeError as e:
            raise SchemaError(f"the schema {where} must be UTF-8 text: byte {e.start} is not") from None
        except tomllib.TOMLDecodeError as e:
            raise SchemaError(f"{where} is not valid TOML: {e}") from None


def _finish_field(f: Any) -> None:
    if not isinstance(f.name, str) or not f.name:
        raise SchemaError(f"a field needs a name that is text, found {f.name!r}")
    if not f.column:
        object.__setattr__(f, "column", f.name)
    _check_choices(f, f"field {f.name!r}")


def _check_choices(settings: Any, what: str) -> None:
    """Every Literal setting holds one of its values (built from TOML it does; from Python it may not)."""
    for attribute in dataclasses.fields(settings):
        found = getattr(settings, attribute.name)
        if get_origin(attribute.type) is Literal and found not in get_args(attribute.type):
            options = ", ".join(repr(option) for option in get_args(attribute.type))
            raise SchemaError(f"{what}: {attribute.name} must be one of {options}, found {found!r}")


def _check_count(what: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SchemaError(f"{what} must be a whole number of at least 1, found {count!r}")


def _check_vocabulary(name: str, min_count: int, hash_buckets: int | None) -> None:
    _check_count(f"field {name!r}: min_count", min_count)
    if hash_buckets is not None:
        _check_count(f"field {name!r}: hash_buckets", hash_buckets)

"""Schemas: the meaning of a table's columns, written in Python or TOML, or inferred (`fieldwise.data.infer.schema`).

Each kind of field states what its cells hold (`cell`), how many values of a list are read
(`max_length`) and whose rows it uses (`shares`). Other modules ask for these, not for the kind, so
that a new kind needs no change there.
"""

import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin

from fieldwise.config import nearest, parse, to_plain, toml_tables
from fieldwise.display import Table
from fieldwise.errors import SchemaError

__all__ = [
    "Bag",
    "Categorical",
    "Field",
    "Label",
    "ListField",
    "Numeric",
    "Pooling",
    "Role",
    "Schema",
    "Sequence",
]

if TYPE_CHECKING:
    import numpy as np

Task = Literal["binary", "regression"]
NumberFormat = str
"""One of `NUMBER_FORMATS`, or one with a unit: `€ 1.234,5`."""
NUMBER_FORMATS = ("1,234.5", "1.234,5", "1 234,5", "1'234.5")
_MARKS_AS_WORDS = "NA N/A #N/A <NA> n.a. NaN NaT None nil NULL \\N - -- – — ? . missing empty"
MISSING_MARKS = tuple(_MARKS_AS_WORDS.split())
"""Texts that stand for a missing number, in upper or lower case."""
Scalar = bool | int | float | str


@dataclass(frozen=True)
class Label:
    """A label to predict.

    Args:
        column: the table's column.
        name: its name in metrics and predictions if there are several labels; the column if
            omitted.
        task: `binary` (a probability, cross-entropy) or `regression` (a number, squared error).
        positive_above: binary: numbers above this are positive, all others negative.
        positive_values: binary: these values are positive, all others negative.
            Without a rule the column must only hold 0 and 1 (or false and true).
        drop_values: rows with these values are dropped, and counted.
        range: regression: minimum and maximum of the targets; predictions are clipped to it.
        scale: regression: a model learns the targets divided by this; predictions are multiplied by
            it. If omitted, it is chosen from the training rows' standard deviation
            (docs/defaults.md), or is 1 with fixed defaults.
        weight: weight of this label's loss in the sum over labels.
        number_format: format of numbers in text, as for a Numeric field.

    Errors:
        SchemaError: contradictory settings, a number that is not finite.

    >>> Label("rating", positive_above=3, drop_values=(3,)).task
    'binary'
    """

    column: str
    _: KW_ONLY
    name: str = ""
    task: Task = "binary"
    positive_above: float | None = None
    positive_values: tuple[Scalar, ...] | None = None
    drop_values: tuple[Scalar, ...] = ()
    range: tuple[float, float] | None = None
    scale: float | None = None
    weight: float = 1.0
    number_format: NumberFormat | None = None

    def __post_init__(self) -> None:
        check_types(self, "label")
        if not self.column:
            raise SchemaError("a label needs a column, found an empty name")
        check_number_format(self.number_format, "label")
        if not self.name:
            object.__setattr__(self, "name", self.column)
        check_choices(self, "label")
        for name in ("drop_values", "positive_values", "range"):
            if (values := getattr(self, name)) is not None:
                object.__setattr__(self, name, tuple(values))
        if self.positive_values == ():
            raise SchemaError("a label's positive_values must have at least one value, found none")
        for value in (*self.drop_values, *(self.positive_values or ())):
            if isinstance(value, float) and not math.isfinite(value):
                raise SchemaError(
                    f"a label's positive_values and drop_values must be finite, found {value}"
                )
        if self.positive_above is not None and not math.isfinite(self.positive_above):
            raise SchemaError(
                f"a label's positive_above must be finite, found {self.positive_above}"
            )
        if not isinstance(self.weight, (int, float)) or not 0 < self.weight < math.inf:
            raise SchemaError(f"a label's weight must be above 0 and finite, found {self.weight!r}")
        if self.positive_above is not None and self.positive_values is not None:
            raise SchemaError("a label takes positive_above or positive_values, not both")
        has_rule = self.positive_above is not None or self.positive_values is not None
        if self.task == "regression" and has_rule:
            raise SchemaError(
                "a regression label takes no positive rule: remove positive_above and positive_values"
            )
        for name in ("range", "scale") if self.task == "binary" else ():
            if getattr(self, name) is not None:
                raise SchemaError(f"a binary label takes no {name}: it is for task = 'regression'")
        if self.scale is not None and (
            not isinstance(self.scale, (int, float)) or not 0 < self.scale < math.inf
        ):
            raise SchemaError(f"a label's scale must be above 0 and finite, found {self.scale!r}")
        if self.range is not None:
            finite = len(self.range) == 2 and all(math.isfinite(bound) for bound in self.range)
            if not finite or not self.range[0] < self.range[1]:
                raise SchemaError(
                    f"a label's range must be two increasing finite numbers, found {list(self.range)}"
                )

    def predicted(self, score: "np.ndarray") -> "np.ndarray":
        """Scores of a regression as numbers in the label's unit, within its range; logits of a binary label unchanged.

        >>> import numpy as np
        >>> Label("price", task="regression", range=(0, 500), scale=100).predicted(np.array([-0.5, 1.25])).tolist()
        [0.0, 125.0]
        """
        if self.task == "binary":
            return score
        number = score if self.scale is None else score * self.scale
        return number if self.range is None else number.clip(*self.range)

    @property
    def rule(self) -> str | None:
        """A description of the rule for positive rows; None for a regression.

        >>> Label("rating", positive_above=3).rule
        'a rating above 3'
        >>> Label("event", positive_values=("buy", "cart")).rule
        '“event” is buy or cart'
        """
        if self.task == "regression":
            return None
        if self.positive_above is not None:
            article = "an" if self.column[0].lower() in "aeio" else "a"
            return f"{article} {self.column.replace('_', ' ')} above {self.positive_above:g}"
        values = [str(value) for value in self.positive_values or (1,)]
        return (
            f"“{self.column}” is {', '.join(values[:-1])}{' or ' if values[1:] else ''}{values[-1]}"
        )

    @property
    def meaning(self) -> str:
        """A description of the prediction.

        >>> Label("rating", positive_above=3).meaning
        'probability of a rating above 3'
        >>> Label("click").meaning
        'probability that “click” is 1'
        >>> Label("rating", task="regression", range=(1, 5)).meaning
        'predicted “rating”, a number from 1 to 5'
        """
        if self.rule is not None:
            return f"probability {'that' if self.rule.startswith('“') else 'of'} {self.rule}"
        bounds = (
            "" if self.range is None else f", a number from {self.range[0]:g} to {self.range[1]:g}"
        )
        return f"predicted “{self.column}”{bounds}"


def split_number_format(form: str) -> tuple[str, str]:
    """A number format's way of writing numbers, one of `NUMBER_FORMATS`, and its unit.

    >>> split_number_format("€ 1.234,5"), split_number_format("1,234.5")
    (('1.234,5', '€'), ('1,234.5', ''))

    Errors:
        ValueError: it holds none of them, or more than a unit beside it.
    """
    for plain in NUMBER_FORMATS:
        before, found, after = form.partition(plain)
        unit = before.strip() or after.strip()
        has_one_unit = not (before.strip() and after.strip()) and not any(
            c.isdigit() or c.isspace() for c in unit
        )
        if found and has_one_unit:
            return plain, unit
    raise ValueError("no number format")


def check_number_format(form: object, what: str) -> None:
    """Check a setting `number_format`, which may be None."""
    if form is None:
        return
    try:
        split_number_format(str(form))
    except ValueError:
        ways = ", ".join(repr(plain) for plain in NUMBER_FORMATS)
        raise SchemaError(
            f"{what}: number_format must be one of {ways}, or one with a unit before or after it, such as '€ 1.234,5' "
            f"and '1,234.5 %', found {form!r}"
        ) from None


def check_choices(settings: Any, what: str) -> None:
    """Check that every Literal setting has one of its values (guaranteed from TOML, but not from Python)."""
    for attribute in fields(settings):
        result = getattr(settings, attribute.name)
        kinds = (attribute.type, *get_args(attribute.type))
        known = next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), None)
        if (
            known is not None
            and result not in known
            and (result is not None or type(None) not in kinds)
        ):
            options = ", ".join(repr(option) for option in known)
            raise SchemaError(
                f"{what}: {attribute.name} must be one of {options}, found {result!r}"
            )


_WORDS_OF_TYPES: dict[type, tuple[type, str]] = {
    str: (str, "text"),
    bool: (bool, "true or false"),
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
}


def check_types(settings: Any, what: str) -> None:
    """Check that texts, numbers and truth values are such (guaranteed from TOML, but not from Python).

    Numbers of NumPy are numbers.
    """
    for attribute in fields(settings):
        value = getattr(settings, attribute.name)
        hint = attribute.type
        kinds = set(get_args(hint)) if isinstance(hint, UnionType) else {hint}
        kind, *others = (alternative for alternative in kinds if alternative is not type(None))
        if others or kind not in _WORDS_OF_TYPES or (value is None and type(None) in kinds):
            continue
        known, word = _WORDS_OF_TYPES[kind]
        is_truth = isinstance(value, bool)
        if not isinstance(value, known) or (is_truth and kind is not bool):
            raise SchemaError(f"{what}: {attribute.name} must be {word}, found {value!r}")


Role = Literal["user", "item", "context"]
Pooling = Literal["mean", "sum", "max"]


@dataclass(frozen=True)
class _Column:
    """What every kind of field has: a name, a role and a column."""

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
        check_choices(self, what)
        if self.cell != "number":
            _check_count(f"{what}: min_count", self.min_count)
            if self.hash_buckets is not None:
                _check_count(f"{what}: hash_buckets", self.hash_buckets)
            if self.shares is not None and (self.min_count, self.hash_buckets) != (1, None):
                raise SchemaError(
                    f"{what} shares the rows of {self.shares!r}, with its min_count and hash_buckets: remove its own"
                )
        if self.cell == "list" and not self.separator:
            raise SchemaError(f"{what}: separator must not be empty")
        if self.max_length is not None:
            _check_count(f"{what}: max_length", self.max_length)
        check_types(self, what)


@dataclass(frozen=True, kw_only=True)
class Categorical(_Column):
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
class Numeric(_Column):
    """A field with one number per cell.

    Args:
        encoding: `value` multiplies one learned vector by the transformed number; `uniform` and
            `quantile` divide the training range into `bins` bins, each of which is a category.
        transform: applied first, with statistics of the training rows: `minmax` to [0, 1] (values
            beyond the training range are clipped), `standard` to mean 0 and standard deviation 1,
            `log` to sign(x) log(1 + |x|).
        bins: number of bins; values beyond the training range belong to the first or last one.
        closed: the side of a bin whose edge belongs to it: a number at the edge of two bins is in
            the upper one (`left`), or in the lower one (`right`, as in pandas' `cut`).
        point_masses: for `quantile`: whether a number in more than 1 / bins of the rows gets its
            own bin, with the quantiles computed from the others. Without it, a column that is
            mostly 0 has one bin.
        missing: a missing number contributes nothing (`zero`) or a learned vector (`vector`). Bins
            always have a row for it.
        number_format: format of numbers in text: `1.234,5` and `1 234,5` with a decimal comma,
            `1,234.5` and `1'234.5` with thousands separators, which are optional in each; with a
            unit if cells have one, as `€ 1.234,5` and `1,234.5 %`: it may stand before or after the
            number, or be left out.
    """

    encoding: Literal["value", "uniform", "quantile"] = "value"
    transform: Literal["none", "minmax", "standard", "log"] = "standard"
    bins: int = 10
    closed: Literal["left", "right"] = "left"
    point_masses: bool = False
    missing: Literal["zero", "vector"] = "zero"
    number_format: NumberFormat | None = None
    kind: Literal["numeric"] = "numeric"
    cell: ClassVar[Literal["number"]] = "number"
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number_format(self.number_format, f"field {self.name!r}")
        if self.bins < 2:
            raise SchemaError(f"field {self.name!r}: bins must be at least 2, found {self.bins}")
        if self.point_masses and self.encoding != "quantile":
            raise SchemaError(
                f"field {self.name!r}: point_masses belongs to encoding 'quantile', found {self.encoding!r}"
            )
        if self.closed == "right" and (self.encoding == "value" or self.point_masses):
            found = "point_masses" if self.point_masses else "encoding 'value'"
            raise SchemaError(
                f"field {self.name!r}: closed = 'right' belongs to encoding 'uniform', or 'quantile' without "
                f"point_masses, found {found}"
            )


@dataclass(frozen=True, kw_only=True)
class Bag(_Column):
    """A field with several unordered values per cell: genres, tags. A cell is a list, or text split at `separator`.

    Args:
        separator: delimiter of values in a text cell.
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
class Sequence(_Column):
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


Field = Categorical | Numeric | Bag | Sequence
ListField = Bag | Sequence


def text_columns(fields: Iterable[Field]) -> tuple[str, ...]:
    """The columns that some of these fields read as text: all but those of plain numbers alone."""
    read_as_text = [f for f in fields if f.cell != "number" or f.number_format is not None]
    return tuple(dict.fromkeys(f.column for f in read_as_text))


def _check_count(what: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise SchemaError(f"{what} must be a whole number of at least 1, found {count!r}")


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The fields of a table, its labels, and its time, group, id and key columns.

    Args:
        user: column of user ids, whether a field reads it or not; used by splits by user,
            histories, negatives, group AUC, ranking, reports, recommendations and the server.
        item: column of item ids, likewise.
        fields: the inputs of models, in this order.
        label: the main label, used by splits, negative sampling and early stopping.
        more_labels: further labels (multi-task), with one head each over the same embedding table.
        time: column that orders rows (splits by time): numbers, dates, or text with either.
        time_format: format of a time column of text, such as `%d.%m.%Y %H:%M`, if it is not a
            supported format or day and month are ambiguous.
        group: column of groups for group AUC; `user` if omitted.
        keys: columns that identify a row in predictions and reports; `user` and `item` if omitted.
        missing: texts that mark a missing value where a number is read, in upper or lower case,
            such as `NULL`, or numbers as text, such as `-999`; an empty list if every text is an
            error. Categories keep them as values.

    Errors:
        SchemaError: no field, a duplicate name, a label's column used otherwise, a field that
            shares the rows of a field that is not Categorical, one column for users and items, or
            an id column that a field reads otherwise.

    >>> schema = Schema(fields=(Categorical("user"), Categorical("item")), label=Label("click"))
    >>> Schema.from_toml(schema.to_toml()) == schema
    True
    """

    user: str | None = None
    item: str | None = None
    fields: tuple[Field, ...]
    label: Label
    more_labels: tuple[Label, ...] = ()
    time: str | None = None
    group: str | None = None
    keys: tuple[str, ...] = field(default=())
    time_format: str | None = None
    missing: tuple[str, ...] = MISSING_MARKS

    def __post_init__(self) -> None:
        if isinstance(self.missing, str) or not all(
            isinstance(mark, str) and mark.strip() for mark in self.missing
        ):
            raise SchemaError(
                f"missing must be a list of texts that are not blank, found {self.missing!r}"
            )
        object.__setattr__(self, "missing", tuple(self.missing))
        if isinstance(self.keys, str):
            raise SchemaError(
                f"keys must be a list of columns, found the text {self.keys!r}: write [{self.keys!r}]"
            )
        check_types(self, "schema")
        listed: Any = self.fields
        is_list = isinstance(listed, Iterable) and not isinstance(listed, str)
        object.__setattr__(self, "fields", tuple(listed) if is_list else (listed,))
        for declared in self.fields:
            if not is_list or not isinstance(declared, _Column):
                raise SchemaError(
                    "a schema's fields must be a list of Categorical, Numeric, Bag and Sequence, found "
                    f"{declared!r}: write fields = (Categorical(COLUMN), ...)"
                )
        object.__setattr__(self, "keys", tuple(dict.fromkeys(self.keys)))
        if isinstance(self.more_labels, Label):
            raise SchemaError(
                f"more_labels must be a list of labels, found the label {self.more_labels.name!r}"
            )
        object.__setattr__(self, "more_labels", tuple(self.more_labels))
        for label in self.labels:
            if not isinstance(label, Label):
                raise SchemaError(
                    f"a schema's labels must each be a Label, found {label!r}: write Label(COLUMN)"
                )
        if not self.fields:
            raise SchemaError("a schema needs at least one field, found none")
        repeated = [name for name, n in Counter(f.name for f in self.fields).items() if n > 1]
        if repeated:
            raise SchemaError(f"field names must be unique, found {repeated[0]!r} more than once")
        if self.time_format is not None and (self.time is None or "%" not in self.time_format):
            raise SchemaError(
                "time_format is the format of the time column, such as '%d.%m.%Y %H:%M', found "
                f"{self.time_format!r} for time {self.time!r}: correct or remove it"
            )
        by_name = {f.name: f for f in self.fields}
        for f in self.fields:
            other = None if f.shares is None else by_name.get(f.shares)
            if f.shares is not None and not isinstance(other, Categorical):
                result = "no field of that name" if other is None else f"one of kind {other.kind!r}"
                possible = [
                    name for name, declared in by_name.items() if isinstance(declared, Categorical)
                ]
                raise SchemaError(
                    f"field {f.name!r}: shares must name a Categorical field of the schema, found {f.shares!r}, "
                    f"{result}: " + (nearest(f.shares, possible) if possible else "add one")
                )
        repeated = [
            name for name, n in Counter(label.name for label in self.labels).items() if n > 1
        ]
        if repeated:
            raise SchemaError(
                f"labels' names must be unique, found {repeated[0]!r} more than once: give each a name"
            )
        for label in self.labels:
            leaking = [f.name for f in self.fields if f.column == label.column]
            if leaking:
                raise SchemaError(
                    f"field {leaking[0]!r} reads the label's column {label.column!r}: remove the field"
                )
        label_columns = [label.column for label in self.labels]
        named = {"time": self.time, "group": self.group, "user": self.user, "item": self.item}
        for what, column in named.items():
            if column in label_columns:
                raise SchemaError(
                    f"{what} must not be the label's column {column!r}: choose another column or none"
                )
            if column == "":
                raise SchemaError(
                    f"{what} must be a column name, found an empty one: remove it if there is none"
                )
        _check_ids(self)

    @property
    def labels(self) -> tuple[Label, ...]:
        """All labels, the main one first."""
        return (self.label, *self.more_labels)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns needed for scoring: those of the fields, each once."""
        return tuple(dict.fromkeys(f.column for f in self.fields))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns whose cells are read from text files as they are written: of categories, lists, ids, groups and keys.

        Numbers with a `number_format` are among them. Without `user` or `item`, so are `user_id`
        and `item_id`.

        >>> price = Numeric("price", number_format="1.234,5")
        >>> Schema(fields=(Categorical("os"), Numeric("age"), price), label=Label("click"), user="reader").text_columns
        ('os', 'price', 'reader', 'item_id')
        """
        ids = (self.user or "user_id", self.item or "item_id")
        groups = () if self.group is None else (self.group,)
        formatted = (label.column for label in self.labels if label.number_format is not None)
        return tuple(
            dict.fromkeys([*text_columns(self.fields), *ids, *groups, *self.keys, *formatted])
        )

    @property
    def named(self) -> set[str]:
        """All columns that the schema names: of fields, labels, times, ids, groups and keys."""
        others = (self.time, self.user, self.item, self.group, *self.keys)
        return {
            *self.columns,
            *(label.column for label in self.labels),
            *(c for c in others if c is not None),
        }

    @property
    def grouping(self) -> str | None:
        """The column of groups for group AUC: `group`, else `user`."""
        return self.user if self.group is None else self.group

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that identify a row: `keys`, else `user` and `item`.

        >>> Schema(fields=(Categorical("age"),), label=Label("click"), user="reader").row_keys
        ('reader',)
        """
        return self.keys or tuple(column for column in (self.user, self.item) if column is not None)

    def format_of(self, column: str) -> str | None:
        """The format of a column that orders rows, if it is the time and text of dates."""
        return self.time_format if column == self.time else None

    def with_role(self, role: Role) -> tuple[Field, ...]:
        """The fields of one role, in order."""
        return tuple(f for f in self.fields if f.role == role)

    def _repr_html_(self) -> str:
        plain = {"name", "kind", "role", "column"}
        rows = []
        for f in self.fields:
            defaults = type(f)(f.name)
            changed = {
                k: v for k, v in vars(f).items() if k not in plain and v != getattr(defaults, k)
            }
            rows.append(
                [
                    f.name,
                    f.kind,
                    f.role,
                    f.column,
                    ", ".join(f"{k} {v}" for k, v in changed.items()),
                ]
            )
        labels = []
        for label in self.labels:
            rule = f" above {label.positive_above:g}" if label.positive_above is not None else ""
            rule = (
                f" where {', '.join(map(str, label.positive_values))}"
                if label.positive_values is not None
                else rule
            )
            labels.append(f"{label.name} ({label.task}: {label.column}{rule})")
        named = {name: getattr(self, name) for name in ("user", "item", "time", "group")}
        named["keys"] = ", ".join(self.keys)
        note = "; ".join(
            [
                f"label {', '.join(labels)}",
                *(f"{what} {name}" for what, name in named.items() if name),
            ]
        )
        columns = ["field", "kind", "role", "column", "settings"]
        return Table(
            title=f"Schema of {len(rows)} fields", columns=columns, rows=rows, note=note
        )._repr_html_()

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain values for TOML or JSON."""
        plain: dict[str, Any] = to_plain(self)
        if not self.more_labels:
            # an empty list would prevent adding a [[more_labels]] manually
            del plain["more_labels"]
        if self.missing == MISSING_MARKS:
            del plain["missing"]
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "schema") -> "Schema":
        """The inverse of `to_dict`; errors name settings below `where`."""
        return parse(cls, data, where, SchemaError)

    def to_toml(self) -> str:
        """The schema as TOML text for `from_toml`."""
        import tomli_w  # here, so that `doctor` can report that it is missing

        return tomli_w.dumps(self.to_dict())

    @classmethod
    def from_toml(cls, source: str | Path) -> "Schema":
        """A schema from TOML text, or from a file if `source` is a Path."""
        where = str(source) if isinstance(source, Path) else "schema"
        try:
            text = source.read_text("utf-8-sig") if isinstance(source, Path) else source
            if text.endswith(".toml"):
                raise SchemaError(
                    f"from_toml takes TOML text, or a Path to a file: give Path({text!r})"
                )
            tables = toml_tables(text)
            if "model" in tables and "fields" not in tables:
                raise SchemaError(
                    f"a schema is needed, found the recipe {where}: name the schema that it refers to"
                )
            return cls.from_dict(tables, where)
        except OSError as e:
            raise SchemaError(f"the schema {where} cannot be read: {e.strerror or e}") from None
        except UnicodeDecodeError as e:
            raise SchemaError(
                f"the schema {where} must be UTF-8 text: byte {e.start} is not"
            ) from None
        except tomllib.TOMLDecodeError as e:
            raise SchemaError(f"{where} is not valid TOML: {e}") from None


def _check_ids(schema: Schema) -> None:
    """Check that user and item ids are two columns with one value per cell, and not of the other side."""
    if schema.user is not None and schema.user == schema.item:
        raise SchemaError(
            f"user and item must be two different columns, found {schema.user!r} for both: correct one"
        )
    for what, column, other in (("user", schema.user, "item"), ("item", schema.item, "user")):
        for f in schema.fields if column is not None else ():
            if f.column == column and f.role == other:
                raise SchemaError(
                    f"{what} must not be a column of the other side: the field {f.name!r} reads {column!r} with the "
                    f"role {other}; correct its role, or choose another column"
                )
            if f.column == column and f.cell == "list":
                raise SchemaError(
                    f"{what} must be a column with one value per cell: the field {f.name!r} reads {column!r} as a "
                    f"{f.kind}; choose another column"
                )

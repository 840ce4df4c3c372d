"""Schemas: the meaning of a table's columns, written in Python or TOML, or inferred (`fieldwise.data.infer.schema`)."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fieldwise.config import nearest, parse, to_plain, toml_tables
from fieldwise.display import Table
from fieldwise.errors import ConfigError, SchemaError
from fieldwise.schema.checks import check_types
from fieldwise.schema.fields import Column, Field, Role, text_columns
from fieldwise.schema.label import Label
from fieldwise.schema.number_format import MISSING_MARKS


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
        group: column of groups for group AUC and for losses that rank; `user` if omitted.
        weight: column of row weights, positive numbers, which the loss, metrics, calibrations and
            early stopping use: a row of weight 2 counts as two equal rows.
        keys: columns that identify a row in predictions and reports; `user` and `item` if omitted.
        missing: texts that mark a missing value where a number is read, in upper or lower case,
            such as `NULL`, or numbers as text, such as `-999`; an empty list if every text is an
            error. Categories keep them as values.

    Errors:
        SchemaError: no field, a duplicate name, a label's column used otherwise, a field that
            shares the rows of a field that is not Categorical, one column for users and items, or
            an id column that a field reads otherwise.

    >>> from fieldwise import Categorical, Label
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
    weight: str | None = None

    def __post_init__(self) -> None:
        self._check_lists()
        object.__setattr__(self, "missing", tuple(self.missing))
        object.__setattr__(self, "fields", tuple(self.fields))
        object.__setattr__(self, "keys", tuple(dict.fromkeys(self.keys)))
        object.__setattr__(self, "more_labels", tuple(self.more_labels))
        for label in self.labels:
            if not isinstance(label, Label):
                raise SchemaError(
                    f"a schema's labels must each be a Label, found {label!r}: write Label(COLUMN)"
                )
        if not self.fields:
            raise SchemaError("a schema needs at least one field, found none")

        repeated = _first_repeated(f.name for f in self.fields)
        if repeated is not None:
            raise SchemaError(f"field names must be unique, found {repeated!r} more than once")
        if self.time_format is not None and (self.time is None or "%" not in self.time_format):
            raise SchemaError(
                "time_format is the format of the time column, such as '%d.%m.%Y %H:%M', found "
                f"{self.time_format!r} for time {self.time!r}: correct or remove it"
            )
        self._check_shared_rows()
        self._check_label_columns()
        _check_ids(self)

    def _check_lists(self) -> None:
        """Check that lists are lists, and of what they must be."""
        marks: Any = self.missing
        if isinstance(marks, str) or not all(
            isinstance(mark, str) and mark.strip() for mark in marks
        ):
            raise SchemaError(
                f"missing must be a list of texts that are not blank, found {marks!r}"
            )
        if isinstance(self.keys, str):
            raise SchemaError(
                f"keys must be a list of columns, found the text {self.keys!r}: write [{self.keys!r}]"
            )
        check_types(self, "schema")

        listed: Any = self.fields
        is_list = isinstance(listed, Iterable) and not isinstance(listed, str)
        if is_list:
            listed = tuple(listed)
            object.__setattr__(self, "fields", listed)  # an iterator is read once
        for declared in listed if is_list else [listed]:
            if not is_list or not isinstance(declared, Column):
                raise SchemaError(
                    "a schema's fields must be a list of Categorical, Numeric, Bag, Sequence and Vector, "
                    f"found {declared!r}: write fields = (Categorical(COLUMN), ...)"
                )
        if isinstance(self.more_labels, Label):
            raise SchemaError(
                f"more_labels must be a list of labels, found the label {self.more_labels.name!r}"
            )

    def _check_shared_rows(self) -> None:
        """Check that fields share the rows of categorical ones."""
        by_name = {f.name: f for f in self.fields}
        for f in self.fields:
            if f.shares is None:
                continue
            other = by_name.get(f.shares)
            if other is not None and other.has_own_ids:
                continue
            found = "no field of that name" if other is None else f"one of kind {other.kind!r}"
            possible = [name for name, known in by_name.items() if known.has_own_ids]
            remedy = nearest(f.shares, possible) if possible else "add one"
            raise SchemaError(
                f"field {f.name!r}: shares must name a Categorical field of the schema, found "
                f"{f.shares!r}, {found}: {remedy}"
            )

    def _check_label_columns(self) -> None:
        """Check that labels have names of their own, and columns that nothing else reads."""
        repeated = _first_repeated(label.name for label in self.labels)
        if repeated is not None:
            raise SchemaError(
                f"labels' names must be unique, found {repeated!r} more than once: give each a name"
            )
        for label in self.labels:
            if label.trials is not None and self.more_labels:
                raise SchemaError(
                    f"a label with trials must be the only one, found {len(self.labels)} labels: remove trials of "
                    f"{label.name!r}, or the others"
                )
        columns_of_targets = [("label's", label.column) for label in self.labels]
        columns_of_targets += [("weights'", column) for column in self.weight_columns]
        for whose, target_column in columns_of_targets:
            leaking = [f.name for f in self.fields if f.column == target_column]
            if leaking:
                raise SchemaError(
                    f"field {leaking[0]!r} reads the {whose} column {target_column!r}: remove the field"
                )
        label_columns = [label.column for label in self.labels]
        columns = {
            "time": self.time,
            "group": self.group,
            "user": self.user,
            "item": self.item,
            "weight": self.weight,
        }
        for what, column in columns.items():
            if column in label_columns:
                raise SchemaError(
                    f"{what} must not be the label's column {column!r}: choose another column or none"
                )
            if column == "":
                raise SchemaError(
                    f"{what} must be a column name, found an empty one: remove it if there is none"
                )

    @property
    def labels(self) -> tuple[Label, ...]:
        """All labels, the main one first."""
        return (self.label, *self.more_labels)

    def label_number(self, name: str | None) -> int:
        """The position of a label in `labels`; the main one's if the name is None.

        Errors:
            ConfigError: no label has this name.
        """
        names = [label.name for label in self.labels]
        if name is None:
            return 0
        if name not in names:
            raise ConfigError(
                f"a label must be one of the bundle's, found {name!r}: {nearest(name, names)}"
            )
        return names.index(name)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns needed for scoring: those of the fields, each once."""
        return tuple(dict.fromkeys(f.column for f in self.fields))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns whose cells are read from text files as they are written: of categories, lists, ids, groups and keys.

        Numbers with a `number_format` are among them. Without `user` or `item`, so are `user_id`
        and `item_id`.

        >>> from fieldwise import Categorical, Numeric
        >>> price = Numeric("price", number_format="1.234,5")
        >>> fields = (Categorical("os"), Numeric("age"), price)
        >>> Schema(fields=fields, label=Label("click"), user="reader").text_columns
        ('os', 'price', 'reader', 'item_id')
        """
        ids = (self.user or "user_id", self.item or "item_id")
        groups = () if self.group is None else (self.group,)
        formatted = (label.column for label in self.labels if label.number_format is not None)
        return tuple(
            dict.fromkeys([*text_columns(self.fields), *ids, *groups, *self.keys, *formatted])
        )

    @property
    def has_both_sides(self) -> bool:
        """Whether there are fields of users and of items, as recommending takes.

        >>> from fieldwise import Categorical
        >>> fields = (Categorical("age", role="user"), Categorical("genre", role="item"))
        >>> Schema(fields=fields, label=Label("click")).has_both_sides
        True
        """
        return {"user", "item"} <= {f.role for f in self.fields}

    @property
    def named(self) -> set[str]:
        """All columns that the schema names: of fields, labels, times, ids, groups and keys."""
        others = (self.time, self.user, self.item, self.group, *self.keys)
        return {
            *self.columns,
            *(label.column for label in self.labels),
            *(c for c in others if c is not None),
            *self.weight_columns,
        }

    @property
    def weight_columns(self) -> tuple[str, ...]:
        """The columns that say how much a row counts: its weight, and its label's trials."""
        return tuple(c for c in (self.weight, self.label.trials) if c is not None)

    @property
    def grouping(self) -> str | None:
        """The column of groups for group AUC: `group`, else `user`."""
        return self.user if self.group is None else self.group

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that identify a row: `keys`, else `user` and `item`.

        >>> from fieldwise import Categorical
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
        rows = [[f.name, f.kind, f.role, f.column, _changed_settings(f)] for f in self.fields]
        columns = {
            name: getattr(self, name) for name in ("user", "item", "time", "group", "weight")
        }
        columns["keys"] = ", ".join(self.keys)
        notes = ["label " + ", ".join(_label_words(label) for label in self.labels)]
        notes += [f"{what} {column}" for what, column in columns.items() if column]
        table = Table(
            title=f"Schema of {len(rows)} fields",
            columns=["field", "kind", "role", "column", "settings"],
            rows=rows,
            note="; ".join(notes),
        )
        return table._repr_html_()

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


def first_field_by_column(fields: Iterable[Field]) -> dict[str, Field]:
    """The first field of each column, which says how its cells are read."""
    by_column: dict[str, Field] = {}
    for f in fields:
        by_column.setdefault(f.column, f)
    return by_column


def _first_repeated(names: Iterable[str]) -> str | None:
    """The first of the names that occurs more than once."""
    for name, count in Counter(names).items():
        if count > 1:
            return name
    return None


def _changed_settings(f: Field) -> str:
    """A field's settings that differ from its kind's defaults."""
    defaults = type(f)(f.name)
    shown_elsewhere = {"name", "kind", "role", "column"}
    changed = []
    for name, value in vars(f).items():
        if name not in shown_elsewhere and value != getattr(defaults, name):
            changed.append(f"{name} {value}")
    return ", ".join(changed)


def _label_words(label: Label) -> str:
    """A label's name, task, column and rule."""
    rule = ""
    if label.positive_values is not None:
        rule = f" where {', '.join(map(str, label.positive_values))}"
    elif label.positive_above is not None:
        rule = f" above {label.positive_above:g}"
    elif label.trials is not None:
        rule = f" of {label.trials}"
    return f"{label.name} ({label.task}: {label.column}{rule})"


def _check_ids(schema: Schema) -> None:
    """Check that user and item ids are two columns with one value per cell, and not of the other side."""
    if schema.user is not None and schema.user == schema.item:
        raise SchemaError(
            f"user and item must be two different columns, found {schema.user!r} for both: correct one"
        )
    for what, column, other in (("user", schema.user, "item"), ("item", schema.item, "user")):
        if column is None:
            continue
        for f in schema.fields:
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

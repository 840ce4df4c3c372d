"""A first schema from a table: guessed from names and contents, with the reason of every guess, to be corrected."""

from dataclasses import dataclass

import polars as pl

from fieldwise.data.infer_fields import guess_field
from fieldwise.data.infer_names import LABELS, TIMES, name_matches, role_of, words_of
from fieldwise.errors import SchemaError
from fieldwise.schema import Categorical, Field, Label, Schema

__all__ = ["Inference", "infer_schema"]

_NEVER = {
    "true_probability": "the simulated log's answer, which no model may see",
    "split": "names the part of the split, which says nothing of the future",
}


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A guessed schema, and why each column was taken or left out.

    Args:
        schema: the guess.
        notes: a sentence for every column of the table, in the table's order.
    """

    schema: Schema
    notes: dict[str, str]

    def to_toml(self) -> str:
        """The schema as TOML, each field below a comment with its reason; columns that are left out stand on top."""
        import tomli_w  # here, so that `doctor` can still say that it is absent

        taken = {f.column for f in self.schema.fields} | {self.schema.label.column}
        lines = ["# Guessed from the table: correct what is wrong. Columns that are no field:"]
        lines += [f"#   {_plain(name)}: {note}" for name, note in self.notes.items() if name not in taken]
        plain = self.schema.to_dict()
        fields, label = plain.pop("fields"), plain.pop("label")
        # Table by table: together, short ones would be written inline, with no place for a comment.
        blocks = ["\n".join([*lines, "", *tomli_w.dumps(plain).strip().splitlines()]).rstrip()]
        for header, column, table in [
            *(("[[fields]]", f.column, table) for f, table in zip(self.schema.fields, fields, strict=True)),
            ("[label]", self.schema.label.column, label),
        ]:
            blocks.append(f"# {_plain(column)}: {self.notes[column]}\n{header}\n{tomli_w.dumps(table).strip()}")
        return "\n\n".join(blocks) + "\n"


def infer_schema(frame: pl.DataFrame, *, label: str | None = None) -> Inference:
    """Guess what a table's columns mean, from their names (role, label, time) and contents (kind).

    Args:
        frame: the table; all of its rows are looked at.
        label: the label's column; guessed by its name where left out.

    Errors:
        SchemaError: no column looks like a label, or several do, or the label holds what cannot be one, or no field
            is left.

    >>> frame = pl.DataFrame({"user_id": [1, 1, 2], "price": [9.5, 3.2, 7.0], "day": ["mon", "tue", "tue"]})
    >>> guess = infer_schema(frame.with_columns(click=pl.Series([0, 1, 1])))
    >>> [(f.name, f.kind, f.role) for f in guess.schema.fields]
    [('user_id', 'categorical', 'user'), ('price', 'numeric', 'item'), ('day', 'categorical', 'context')]
    >>> Schema.from_toml(guess.to_toml()) == guess.schema
    True
    """
    if frame.height == 0:
        raise SchemaError("a schema is inferred from rows: the table has none; write the schema by hand")
    never = {**_NEVER, **_libfm_values(frame)}
    name = _label_name(frame, label)
    target, label_note = _label(frame.get_column(name))
    time = next((c for c in frame.columns if c != name and name_matches(c, TIMES)), None)
    notes: dict[str, str] = {}
    fields: list[Field] = []
    for column in frame.iter_columns():
        if column.name == name:
            notes[name] = label_note
        elif column.name in never:
            notes[column.name] = f"left out: {never[column.name]}"
        elif name_matches(column.name, LABELS):
            notes[column.name] = (
                "left out: another label, by its name, and known no sooner than the label; it may be one of "
                "more_labels, or a field where it is known before"
            )
        elif column.name == time:
            notes[column.name] = (
                "time: orders the rows, by its name; no field, as times of the future are never seen before"
            )
        elif not {"ts", "timestamp", "datetime"}.isdisjoint(words_of(column.name)):
            notes[column.name] = "left out: another time, by its name; times of the future are never seen before"
        else:
            role, reason = role_of(column.name)
            field, note = guess_field(column, role)
            if field is not None and field.role != role:
                role, reason = field.role, "a history is the user's"
            twin = _twin(frame, field, fields)
            if field is None or twin is not None:
                notes[column.name] = (
                    f"left out: {note}" if twin is None else f"left out: it goes one to one with {twin!r}"
                )
            else:
                fields.append(field)
                notes[column.name] = f"{field.kind}: {note}; role {role}: {reason}"
    if not fields:
        raise SchemaError(
            f"a schema needs at least one field: none of the columns {', '.join(frame.columns)} can be one"
        )
    ids = [_id_column(fields, role) for role in ("user", "item")]
    keys = tuple(i for i in ids if i is not None)
    return Inference(schema=Schema(fields=tuple(fields), label=target, time=time, group=ids[0], keys=keys), notes=notes)


def _libfm_values(frame: pl.DataFrame) -> dict[str, str]:
    """Of what `read_libfm` returns, the column of values and why it is no field.

    Errors:
        SchemaError: a value is not 1.
    """
    if frame.schema != {"label": pl.Float64, "ids": pl.List(pl.Int64), "values": pl.List(pl.Float64)}:
        return {}
    other = (frame.get_column("values").list.eval(pl.element() != 1).list.any()).fill_null(False)
    if other.any():
        raise SchemaError(
            f"libFM values other than 1 cannot be read as a bag, whose values have no weights: line "
            f"{int(other.arg_max() or 0) + 1} holds one; convert the file to a table with a column a number"
        )
    return {"values": "every libFM value is 1, so that the ids say it all"}


def _label_name(frame: pl.DataFrame, label: str | None) -> str:
    if label is not None:
        if label not in frame.columns:
            raise SchemaError(
                f"the label's column {label!r} must be in the table, found only: {', '.join(frame.columns)}"
            )
        return label
    found = [c for c in frame.columns if c.lower() in LABELS]
    if not found:
        raise SchemaError(
            f"no column looks like a label ({', '.join(LABELS)}) among {', '.join(frame.columns)}: name it with label "
            "(--label)"
        )
    if len(found) > 1:
        raise SchemaError(
            f"several columns look like a label, {', '.join(found)}: name the right one with label (--label)"
        )
    return found[0]


def _label(column: pl.Series) -> tuple[Label, str]:
    """The label with its rule, and the reason."""
    name = column.name
    if column.null_count():
        row = int(column.is_null().arg_max() or 0)
        raise SchemaError(f"every row needs a label: column {name!r} has none in row {row} (counting from 0)")
    if column.dtype == pl.Boolean:
        return Label(name), "label: binary, as it is true or false"
    if column.dtype == pl.String:
        number = column.cast(pl.Float64, strict=False)
        if number.null_count():
            return _text_label(column)
        column = number
    elif not column.dtype.is_numeric():
        raise SchemaError(f"a label holds numbers, text or booleans: column {name!r} is of type {column.dtype}")
    values = column.cast(pl.Float64).unique().sort()
    if len(values) < 2:
        raise SchemaError(f"a label needs at least two values: column {name!r} holds {values[0]:g} alone")
    if values.to_list() == [0, 1]:
        return Label(name), "label: binary, as it is 0 or 1"
    if values.to_list() == [-1, 1]:
        return Label(name, positive_above=0), "label: binary, as it is -1 or 1"
    if values.is_in([k / 2 for k in range(1, 11)]).all() and values.max() == 5 and len(values) > 2:
        rule = Label(name, positive_above=3, drop_values=(3,))
        return rule, "label: ratings up to 5; above 3 is positive, and rows with 3 say neither and are dropped"
    if len(values) == 2:
        return Label(
            name, positive_values=(_short(values[1]),)
        ), "label: binary, the greater of its two values is positive"
    note = f"label: regression, as it holds {len(values)} different numbers; give positive_above for a binary task"
    return Label(name, task="regression"), note


def _text_label(column: pl.Series) -> tuple[Label, str]:
    counts = column.value_counts().sort("count", column.name)
    if counts.height != 2:
        raise SchemaError(
            f"a text label needs two values to be binary: column {column.name!r} holds {counts.height}; "
            "write its Label with positive_values by hand"
        )
    positive = str(counts[column.name][0])
    return Label(
        column.name, positive_values=(positive,)
    ), "label: binary, the rarer of its two values taken as positive"


def _twin(frame: pl.DataFrame, field: Field | None, earlier: list[Field]) -> str | None:
    """The earlier field of many values that this one merely renames, such as a title beside its id."""
    if not isinstance(field, Categorical):
        return None
    distinct = frame.get_column(field.column).n_unique()
    for other in earlier:
        many = distinct > 50 and isinstance(other, Categorical)
        if many and frame.get_column(other.column).n_unique() == distinct == _pairs(frame, other, field):
            return other.column
    return None


def _pairs(frame: pl.DataFrame, one: Field, other: Field) -> int:
    return frame.select(one.column, other.column).n_unique() if one.column != other.column else 0


def _id_column(fields: list[Field], role: str) -> str | None:
    """The role's column that looks most like an id: an id's name first, else the bare word."""
    mine = [f.column for f in fields if f.role == role and isinstance(f, Categorical)]
    named = [c for c in mine if c.lower().endswith("id")]
    bare = [c for c in mine if role_of(c)[1].startswith("its whole name")]
    return next(iter(named + bare), None)


def _short(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _plain(name: str) -> str:
    """A column's name as one line of a comment."""
    return name if name.isprintable() else repr(name)

"""A first schema from a table: guessed from names and contents, with the reason of every guess, to be corrected."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from fieldwise.data.infer_fields import guess_field
from fieldwise.data.infer_label import guess_label, label_name
from fieldwise.data.infer_names import TIMES, is_label_name, name_matches, role_of, words_of
from fieldwise.data.tables import TableLike, as_table
from fieldwise.errors import SchemaError
from fieldwise.schema import Categorical, Field, Schema

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
        doubts: by column, what the table does not tell and a person has to check, such as which of two values of a
            label is the positive one.
    """

    schema: Schema
    notes: dict[str, str]
    doubts: dict[str, str] = field(default_factory=dict)

    def to_toml(self) -> str:
        """The schema as TOML, each field below a comment with its reason; columns that are left out stand on top."""
        import tomli_w  # here, so that `doctor` can still say that it is absent

        taken = {f.column for f in self.schema.fields} | {self.schema.label.column}
        lines = ["# Guessed from the table: correct what is wrong. Columns that are no field:"]
        lines += [f"#   {_plain(name)}: {_line(note)}" for name, note in self.notes.items() if name not in taken]
        plain = self.schema.to_dict()
        fields, label = plain.pop("fields"), plain.pop("label")
        # Table by table: together, short ones would be written inline, with no place for a comment.
        blocks = ["\n".join([*lines, "", *tomli_w.dumps(plain).strip().splitlines()]).rstrip()]
        for header, column, table in [
            *(("[[fields]]", f.column, table) for f, table in zip(self.schema.fields, fields, strict=True)),
            ("[label]", self.schema.label.column, label),
        ]:
            check = f"# CHECK: {_line(self.doubts[column])}\n" if column in self.doubts else ""
            above = f"# {_plain(column)}: {_line(self.notes[column])}\n{check}"
            blocks.append(f"{above}{header}\n{tomli_w.dumps(table).strip()}")
        return "\n\n".join(blocks) + "\n"


def infer_schema(frame: TableLike, *, label: str | None = None, positive: Sequence[str] = ()) -> Inference:
    """Guess what a table's columns mean, from their names (role, label, time) and contents (kind).

    Args:
        frame: the table; all of its rows are looked at.
        label: the label's column; guessed by its name where left out.
        positive: values of the label that are positive; by the meaning of words such as `yes` and `clicked` where left
            out, else by frequency, which stands among the doubts then.

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
    frame = as_table(frame)
    if frame.height == 0:
        raise SchemaError("a schema is inferred from rows: the table has none; write the schema by hand")
    never = {**_NEVER, **_libfm_values(frame)}
    name = label_name(frame, label)
    target = guess_label(frame.get_column(name), [positive] if isinstance(positive, str) else positive)
    time = next((c for c in frame.columns if c != name and name_matches(c, TIMES)), None)
    notes: dict[str, str] = {}
    fields: list[Field] = []
    for column in frame.iter_columns():
        if column.name == name:
            notes[name] = target.note
        elif column.name in never:
            notes[column.name] = f"left out: {never[column.name]}"
        elif is_label_name(column.name):
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
            found, note = guess_field(column, role)
            if found is not None and found.role != role:
                role, reason = found.role, "a history is the user's"
            twin = _twin(frame, found, fields)
            if found is None or twin is not None:
                notes[column.name] = (
                    f"left out: {note}" if twin is None else f"left out: it goes one to one with {twin!r}"
                )
            else:
                fields.append(found)
                notes[column.name] = f"{found.kind}: {note}; role {role}: {reason}"
    if not fields:
        raise SchemaError(
            f"a schema needs at least one field: none of the columns {', '.join(frame.columns)} can be one"
        )
    ids = [_id_column(fields, role) for role in ("user", "item")]
    keys = tuple(i for i in ids if i is not None)
    schema = Schema(fields=tuple(fields), label=target.label, time=time, group=ids[0], keys=keys)
    return Inference(schema=schema, notes=notes, doubts={name: target.doubt} if target.doubt else {})


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


def _plain(name: str) -> str:
    """A column's name as one line of a comment."""
    return name if name.isprintable() else repr(name)


def _line(note: str) -> str:
    """A note as one line: TOML's comments hold no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in note)

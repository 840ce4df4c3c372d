"""Inferring a schema from a table's names and contents, with the reason of every choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import polars as pl

from fieldwise.data.infer.fields import guess_field
from fieldwise.data.infer.label import guess_label, label_name
from fieldwise.data.infer.roles import display_of, id_of, settled_role
from fieldwise.data.infer.time import GuessedTime, guess_time
from fieldwise.data.read.lines import renumbering_rows
from fieldwise.data.read.sampled import Sample, sample_table
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.read.vectors import is_position, vector_length
from fieldwise.errors import SchemaError
from fieldwise.schema import Field, Numeric, Role, Schema
from fieldwise.schema.ids import Who
from fieldwise.schema.names import TIMES, is_label_name, name_matches, role_of, words_of

__all__ = ["Inference", "infer_schema"]

_CHECK = "CHECK: "
_SIDES: tuple[Who, ...] = ("user", "item")
_NEVER = {
    "true_probability": "the simulated log's true probability, which no model may use",
    "split": "the part of the split, which is unknown for future rows",
}


@dataclass(frozen=True, kw_only=True)
class Inference:
    """An inferred schema, with the reason why each column was used or omitted.

    Args:
        schema: the inferred schema.
        notes: a sentence for every column, in the table's order.
        doubts: by column, what cannot be inferred and the user must check, such as which of two values of a label is
            positive.
        seen: how many rows of how many were looked at, if not all.
    """

    schema: Schema
    notes: dict[str, str]
    doubts: dict[str, str] = field(default_factory=dict)
    seen: str = ""

    def to_toml(self) -> str:
        """The schema as TOML, with the reason in a comment above each field; omitted columns are listed at the top."""
        import tomli_w  # here, so that `doctor` can report that it is missing

        taken = {f.column for f in self.schema.fields} | {self.schema.label.column}
        others = [f"#   {_plain(name)}: {_line(note)}" for name, note in self.notes.items() if name not in taken]
        lines = [
            f"# Inferred from {self.seen or 'the table'}: check and correct it."
            + (" Columns that are not fields:" if others else "")
        ]
        lines += others + [f"# CHECK: {_line(doubt)}" for name, doubt in self.doubts.items() if name not in taken]
        plain = self.schema.to_dict()
        fields, label = plain.pop("fields"), plain.pop("label")
        if not plain["keys"]:
            del plain["keys"]
        named = [role for role in _SIDES if role in plain]
        if named:
            lines += ["", f"# Columns of {' and '.join(named)} ids."]
            lines += tomli_w.dumps({role: plain.pop(role) for role in named}).strip().splitlines()
        # Table by table: otherwise short ones would be written inline, without comments.
        blocks = ["\n".join([*lines, "", *tomli_w.dumps(plain).strip().splitlines()]).rstrip()]
        for header, column, table in [
            *(("[[fields]]", f.column, table) for f, table in zip(self.schema.fields, fields, strict=True)),
            ("[label]", self.schema.label.column, label),
        ]:
            check = f"# CHECK: {_line(self.doubts[column])}\n" if column in self.doubts else ""
            above = f"# {_plain(column)}: {_line(self.notes[column])}\n{check}"
            blocks.append(f"{above}{header}\n{tomli_w.dumps(table).strip()}")
        return "\n\n".join(blocks) + "\n"


def infer_schema(frame: TableLike | Sample, *, label: str | None = None, positive: Sequence[str] = ()) -> Inference:
    """Infer a schema from a table's column names (role, label, time) and contents (kind).

    Args:
        frame: the table; all of its rows are used. Of files of more than about 1 GiB a random sample of 200,000 rows is
            used (see `sample_table`).
        label: the label's column; inferred from its name if omitted.
        positive: positive values of the label; if omitted, inferred from the meaning of words such as `yes` and
            `clicked`, else from frequency, which is reported as a doubt.

    Errors:
        SchemaError: no column looks like a label, or several do, or the label's values are unsuitable, or there is no
            field.

    >>> frame = pl.DataFrame({"user_id": [1, 1, 2], "price": [9.5, 3.2, 7.0], "day": ["mon", "tue", "tue"]})
    >>> guess = infer_schema(frame.with_columns(click=pl.Series([0, 1, 1])))
    >>> [(f.name, f.kind, f.role) for f in guess.schema.fields]
    [('user_id', 'categorical', 'user'), ('price', 'numeric', 'item'), ('day', 'categorical', 'context')]
    >>> Schema.from_toml(guess.to_toml()) == guess.schema
    True
    """
    if isinstance(frame, (str, Path)):
        path, frame = frame, sample_table(frame)
        if not frame.frame.height:
            raise SchemaError(f"a schema is inferred from rows, but {path} has none; write the schema yourself")
    sample = frame if isinstance(frame, Sample) else Sample(frame=(whole := as_table(frame)), rows=whole.height)
    with renumbering_rows(sample.kept):
        return _inferred(sample, label, [positive] if isinstance(positive, str) else positive)


def _inferred(sample: Sample, label: str | None, positive: Sequence[str]) -> Inference:
    frame = sample.frame
    if frame.height == 0:
        raise SchemaError("a schema is inferred from rows: the table has none; write the schema yourself")
    name = label_name(frame, label)
    target = guess_label(frame.get_column(name), positive)
    notes = {name: target.note, **_left_out(frame, name)}
    share = frame.height / max(1, sample.rows)
    fields = _fields(frame, notes, share)
    found = {role: id_of(frame, fields.values(), role) for role in _SIDES}
    ids: dict[Role, str] = {role: column for role, column in found.items() if column is not None}
    reasons = _settle_roles(frame, fields, ids)
    settled_ones = {c for c, why in reasons.items() if why.startswith("the ") and not name_matches(c, TIMES)}
    time = guess_time(frame, {name, *ids.values(), *settled_ones, *_never(frame)})
    _mark_times(frame, time, notes, fields)
    for column, f in list(fields.items()):
        display = display_of(frame, f, ids, sampled=share < 1) or _display_column(frame, f, list(fields.values()))
        if display:
            del fields[column]
            notes[column] = f"omitted: {display}"
        else:
            notes[column] = f"{f.kind}: {notes[column]}; role {f.role}: {reasons[column]}"
    for named, column in ids.items():
        notes[column] += f"; the {named} id"
    if not fields:
        raise SchemaError(
            f"a schema needs at least one field: none of the columns {', '.join(frame.columns)} can be one"
        )
    schema = Schema(
        fields=tuple(fields.values()),
        label=target.label,
        time=time.column,
        time_format=time.format,
        user=ids.get("user"),
        item=ids.get("item"),
    )
    doubts = {name: target.doubt, str(time.column): time.doubt, **_take_checks(notes)}
    return Inference(
        schema=schema,
        notes={column: notes[column] for column in frame.columns},
        doubts={column: doubt for column, doubt in doubts.items() if doubt},
        seen=sample.told,
    )


def _take_checks(notes: dict[str, str]) -> dict[str, str]:
    """The checks for omitted columns, whose notes then no longer contain CHECK."""
    checks = {c: note.partition(_CHECK)[2] for c, note in notes.items() if note.startswith(f"omitted: {_CHECK}")}
    notes |= {column: f"omitted: {check}" for column, check in checks.items()}
    return {column: f"column {column!r} is omitted: {check}" for column, check in checks.items()}


def _never(frame: pl.DataFrame) -> dict[str, str]:
    return {name: why for name, why in {**_NEVER, **_libfm_values(frame)}.items() if name in frame.columns}


def _left_out(frame: pl.DataFrame, label: str) -> dict[str, str]:
    """Columns that are never fields, with the reason."""
    notes = {name: f"omitted: {why}" for name, why in _never(frame).items() if name != label}
    for column in frame.columns:
        if column != label and column not in notes and is_label_name(column):
            notes[column] = (
                "omitted: another label, by its name, and not known before the label; it may be one of "
                "more_labels, or a field if it is known before"
            )
    return notes


def _fields(frame: pl.DataFrame, notes: dict[str, str], share: float) -> dict[str, Field]:
    """Fields from columns without a note, by column; every column gets a note."""
    fields: dict[str, Field] = {}
    for column in frame.iter_columns():
        if column.name in notes:
            continue
        vector = is_position(column.name, frame.columns)
        if vector is not None and column.dtype.is_float():
            fields[column.name] = Numeric(column.name, role=role_of(vector)[0])
            notes[column.name] = f"one number of the vector {vector!r}, whose scale is learned from the training rows"
        elif f"{column.name}[0]" in frame.columns and vector_length(column) is not None:
            notes[column.name] = "omitted: a vector, each number of which is a field below"
        else:
            found, note = guess_field(column, role_of(column.name)[0], share)
            notes[column.name] = note if found is not None else f"omitted: {note}"
            if found is not None:
                fields[column.name] = found
    return fields


def _reason(column: str, role: Role) -> str:
    named, reason = role_of(column)
    return reason if named == role else "a history is the user's"


def _settle_roles(frame: pl.DataFrame, fields: dict[str, Field], ids: Mapping[Role, str]) -> dict[str, str]:
    """Set the roles inferred from the rows; returns the reason of each field's role, by column."""
    reasons = {column: _reason(column, f.role) for column, f in fields.items()}
    for column, f in fields.items():
        first = fields.get(f"{is_position(column, frame.columns)}[0]", f)
        if first.column == column:
            fields[column], settled = settled_role(frame, f, ids)
            reasons[column] = settled or reasons[column]
        else:  # the numbers of a vector have the same role
            fields[column], reasons[column] = replace(f, role=first.role), reasons[first.column]
    return reasons


def _mark_times(frame: pl.DataFrame, time: GuessedTime, notes: dict[str, str], fields: dict[str, Field]) -> None:
    """Remove columns of times from the fields: the one that orders rows, and others."""
    for column in frame.columns:
        another = not {"ts", "timestamp", "datetime"}.isdisjoint(words_of(column)) and column in fields
        if column == time.column:
            notes[column] = time.note
        elif column in time.others or another:
            why = time.others.get(column, "another time, by its name")
            notes[column] = f"omitted: {why}; future times do not occur in training rows"
        else:
            continue
        fields.pop(column, None)


def _libfm_values(frame: pl.DataFrame) -> dict[str, str]:
    """The column of values in the result of `read_libfm`, with the reason why it is not a field.

    Errors:
        SchemaError: a value is not 1.
    """
    if frame.schema != {"label": pl.Float64, "ids": pl.List(pl.Int64), "values": pl.List(pl.Float64)}:
        return {}
    other = (frame.get_column("values").list.eval(pl.element() != 1).list.any()).fill_null(False)
    if other.any():
        raise SchemaError(
            f"libFM values other than 1 cannot be read as a bag, whose values have no weights: line "
            f"{int(other.arg_max() or 0) + 1} holds one; convert the file to a table with a column per number"
        )
    return {"values": "every libFM value is 1, so only the ids matter"}


def _display_column(frame: pl.DataFrame, field: Field, others: list[Field]) -> str:
    """The reason why a field only renames an earlier one of many values, or an empty text."""
    distinct = frame.get_column(field.column).n_unique() if field.cell == "category" else 0
    for other in others[: others.index(field)] if distinct > 50 else []:
        same = other.cell == "category" and frame.get_column(other.column).n_unique() == distinct
        if same and _pairs(frame, other, field) == distinct:
            return f"it is one to one with {other.column!r}"
    return ""


def _pairs(frame: pl.DataFrame, one: Field, other: Field) -> int:
    return frame.select(one.column, other.column).n_unique() if one.column != other.column else 0


def _plain(name: str) -> str:
    """A column's name on one line of a comment."""
    return name if name.isprintable() else repr(name)


def _line(note: str) -> str:
    """A note as one line: TOML's comments hold no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in note)

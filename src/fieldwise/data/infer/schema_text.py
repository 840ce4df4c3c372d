"""An inferred schema as TOML with comments: the reason above each field, what to check, and what was omitted."""

from collections.abc import Mapping
from typing import Any

from fieldwise.schema import Schema
from fieldwise.schema.ids import SIDES, Who


def schema_text(
    schema: Schema,
    *,
    notes: Mapping[str, str],
    doubts: Mapping[str, str],
    possible_ids: Mapping[Who, str],
    origin: str,
) -> str:
    """The schema as TOML, with the reason in a comment above each field; omitted columns are listed at the top.

    Args:
        schema: the schema.
        notes: a sentence for every column.
        doubts: by column, what the user must check.
        possible_ids: by side, the column that may hold its ids.
        origin: the rows that the schema is inferred from.
    """
    plain = schema.to_dict()
    fields = plain.pop("fields")
    label = plain.pop("label")
    if not plain["keys"]:
        del plain["keys"]
    ids = {side: plain.pop(side) for side in SIDES if side in plain}
    used = {f.column for f in schema.fields} | {schema.label.column}
    omitted = {column: note for column, note in notes.items() if column not in used}
    checks = [doubt for column, doubt in doubts.items() if column not in used]
    lines = _lines_on_table(origin, omitted, checks)
    lines += [*_lines_on_ids(ids, possible_ids), "", _toml(plain)]

    # Table by table: otherwise short ones would be written inline, without comments.
    blocks = ["\n".join(lines).rstrip()]
    for f, table in zip(schema.fields, fields, strict=True):
        comments = _lines_on_column(f.column, notes, doubts)
        blocks.append("\n".join([*comments, "[[fields]]", _toml(table)]))
    comments = _lines_on_column(schema.label.column, notes, doubts)
    blocks.append("\n".join([*comments, "[label]", _toml(label)]))
    return "\n\n".join(blocks) + "\n"


def _lines_on_table(origin: str, omitted: Mapping[str, str], checks: list[str]) -> list[str]:
    """Comments on the whole table and the columns that are no fields."""
    listed = " Columns that are not fields:" if omitted else ""
    return [
        f"# Inferred from {origin}: check and correct it.{listed}",
        *(f"#   {_plain(column)}: {one_line(note)}" for column, note in omitted.items()),
        *(f"# CHECK: {one_line(check)}" for check in checks),
    ]


def _lines_on_ids(ids: Mapping[Who, str], possible_ids: Mapping[Who, str]) -> list[str]:
    """The columns of ids, and comments on those that may be."""
    lines = []
    if ids:
        lines += ["", f"# Columns of {' and '.join(ids)} ids.", _toml(ids)]
    for side, column in possible_ids.items():
        check = f"# If it holds the {side} ids, with this role in the fields that describe them:"
        lines += ["", check, f"# {_toml({side: column})}"]
    return lines


def _lines_on_column(column: str, notes: Mapping[str, str], doubts: Mapping[str, str]) -> list[str]:
    """Comments on a field or the label."""
    lines = [f"# {_plain(column)}: {one_line(notes[column])}"]
    if column in doubts:
        lines.append(f"# CHECK: {one_line(doubts[column])}")
    return lines


def _toml(table: Mapping[Any, Any]) -> str:
    import tomli_w  # here, so that `doctor` can report that it is missing

    return tomli_w.dumps(table).strip()


def _plain(name: str) -> str:
    """A column's name on one line of a comment."""
    return name if name.isprintable() else repr(name)


def one_line(text: str) -> str:
    """Text as one line: TOML's comments hold no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text)

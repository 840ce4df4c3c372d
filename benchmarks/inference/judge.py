"""What `infer_schema` makes of a table, against what its columns mean."""

from collections.abc import Iterator
from typing import Any

from benchmarks.inference.tables import Table
from benchmarks.inference.worlds import Column
from fieldwise.data.infer.schema import Inference, infer_schema
from fieldwise.errors import FieldwiseError
from fieldwise.schema import Label

__all__ = ["judged"]

KINDS = {"categorical": "category", "numeric": "number", "bag": "bag", "sequence": "bag"}


def judged(table: Table) -> dict[str, Any]:
    """How a table is read without options, or where it is not, with its label given.

    `unread` is why it was not read without options, `wrong` says by column what is wrong, and `ids` by side whether the
    right column was found, for those sides that have one.
    """
    unread, guess = "", None
    for label in (None, *table.named("label")):
        try:
            guess = infer_schema(table.path, label=label)
            break
        except FieldwiseError as e:
            unread = unread or str(e)
    sides = {side: table.ids(side) for side in ("user", "item")}
    return {
        "name": table.path.stem,
        "columns": len(table.columns),
        "unread": unread,
        "wrong": dict.fromkeys(table.columns, "not read") if guess is None else dict(_wrong(table, guess)),
        "ids": {s: guess is not None and getattr(guess.schema, s) in right for s, right in sides.items() if right},
    }


def _wrong(table: Table, guess: Inference) -> Iterator[tuple[str, str]]:
    """Columns that are not read as they are meant, each with what it was read as."""
    schema = guess.schema
    fields = {f.column: f for f in schema.fields}
    for name, column in table.columns.items():
        kind = KINDS[fields[name].kind] if name in fields else "omitted"
        kind = "time" if name == schema.time else kind
        kind = "label" if name == schema.label.column and not guess.only_positives else kind
        if column.check:
            if name not in guess.doubts:
                yield name, f"{kind} without CHECK"
        elif kind not in column.kinds:
            yield name, f"{kind} instead of {' or '.join(sorted(column.kinds))}"
        elif kind == "label" and (fault := _rule_fault(schema.label, column)):
            yield name, fault
        elif name in fields and fields[name].role not in column.roles:
            yield name, f"role {fields[name].role} instead of {' or '.join(sorted(column.roles))}"


def _rule_fault(label: Label, column: Column) -> str:
    """What is wrong with a label's rule: cells that it must take for positive or negative, and does not."""
    if not column.positive:
        return "" if label.task == "regression" else "binary instead of regression"
    if label.task == "regression":
        return "regression instead of binary"
    for cells, positive in ((column.positive, True), (column.negative, False)):
        for cell in cells:
            if cell in label.drop_values or _is_positive(label, cell) != positive:
                return f"rule {label.rule}: {cell} is not {'positive' if positive else 'negative'}"
    return ""


def _is_positive(label: Label, cell: object) -> bool:
    if label.positive_above is not None:
        return isinstance(cell, (int, float)) and cell > label.positive_above
    return cell in (label.positive_values or (1,))

"""What `infer_schema` makes of a table, against what its columns mean."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.inference.tables import Table
from benchmarks.inference.worlds import Column
from fieldwise.data.infer.schema import Inference, infer_schema
from fieldwise.errors import FieldwiseError
from fieldwise.schema import Label

__all__ = ["Verdict", "judged", "summary"]

KINDS = {"categorical": "category", "numeric": "number", "bag": "bag", "sequence": "bag"}
Side = Literal["user", "item"]
SIDES: tuple[Side, ...] = ("user", "item")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a table was read.

    Args:
        name: the file's stem.
        columns: how many it has.
        unread: why it was not read without options, if it was not.
        wrong: by column, what is wrong; every column if it was not read with its label given either.
        checked: the wrong columns with a `CHECK`.
        ids: by side, whether the right column was found, for those sides that have one.
        extra: ids found where there are none.
    """

    name: str
    columns: int
    unread: str = ""
    wrong: dict[str, str] = field(default_factory=dict)
    checked: frozenset[str] = frozenset()
    ids: dict[str, bool] = field(default_factory=dict)
    extra: tuple[str, ...] = ()


def judged(table: Table) -> Verdict:
    """How a table is read without options, or where it is not, with its label given."""
    name, count, unread, guess = table.path.stem, len(table.columns), "", None
    for label in (None, *table.named("label")):
        try:
            guess = infer_schema(table.path, label=label)
            break
        except FieldwiseError as e:
            unread = unread or str(e)
    planted = [side for side in SIDES if table.ids(side)]
    if guess is None:
        wrong = dict.fromkeys(table.columns, "not read")
        return Verdict(name=name, columns=count, unread=unread, wrong=wrong, ids=dict.fromkeys(planted, False))
    wrong = dict(_wrong(table, guess))
    found = {side: getattr(guess.schema, side) for side in SIDES}
    return Verdict(
        name=name,
        columns=count,
        unread=unread,
        wrong={column: f"{what} ({guess.notes.get(column, '')})" for column, what in wrong.items()},
        checked=frozenset(wrong.keys() & guess.doubts.keys()),
        ids={side: found[side] in table.ids(side) for side in planted},
        extra=tuple(f"{side} {found[side]!r}" for side in SIDES if found[side] and side not in planted),
    )


def _wrong(table: Table, guess: Inference) -> Iterator[tuple[str, str]]:
    """Columns that are not read as they are meant, each with what it was read as."""
    schema = guess.schema
    fields = {f.column: f for f in schema.fields}
    only_positives = getattr(guess, "only_positives", False)
    for name, column in table.columns.items():
        kind = KINDS[fields[name].kind] if name in fields else "omitted"
        kind = "time" if name == schema.time else kind
        kind = "label" if name == schema.label.column and not only_positives else kind
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


def summary(verdicts: Iterable[Verdict]) -> dict[str, tuple[int, int]]:
    """Each figure as right of all."""
    found = list(verdicts)
    ids = [right for verdict in found for right in verdict.ids.values()]
    wrong = sum(len(verdict.wrong) for verdict in found if "not read" not in verdict.wrong.values())
    columns = sum(verdict.columns for verdict in found)
    return {
        "read without options": (sum(not verdict.unread for verdict in found), len(found)),
        "columns right": (columns - sum(len(verdict.wrong) for verdict in found), columns),
        "ids found": (sum(ids), len(ids)),
        "CHECK on a wrong column": (sum(len(verdict.checked) for verdict in found), wrong),
    }

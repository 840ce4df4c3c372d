"""An inferred schema, with the reason why each column was used or omitted."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fieldwise.data.infer.findings import THIS_COLUMN, Note
from fieldwise.data.infer.label import LabelCandidate
from fieldwise.data.infer.schema_text import schema_text
from fieldwise.display import listed
from fieldwise.schema import Schema
from fieldwise.schema.ids import Who


@dataclass(frozen=True, kw_only=True)
class Inference:
    """An inferred schema, with the reason why each column was used or omitted.

    Args:
        schema: the inferred schema.
        column_notes: what was made of every column, in the table's order.
        column_doubts: by column, what cannot be inferred and the user must check, such as which of
            two values of a label is positive; `THIS_COLUMN` stands for the column's name.
        seen: how many rows of how many were looked at, if not all.
        labels: the columns that may be the label, the likeliest first; the first is the schema's.
        marks: by column that holds numbers or times, the marks of missing values in its cells, and
            how many hold each.
        possible_ids: by side, the column that may hold its ids by the rows alone: a doubt, and not
            in the schema.
        sides_not_found: the sides without any column that may hold their ids.
        only_positives: whether no column can be a label, and the rows are events that all happened.
            Then the schema's label is a column that the table lacks, with 1 in every row: a recipe
            with `[negatives]` adds it.
    """

    schema: Schema
    column_notes: dict[str, Note]
    column_doubts: dict[str, str] = field(default_factory=dict)
    seen: str = ""
    labels: tuple[LabelCandidate, ...] = ()
    marks: dict[str, dict[str, int]] = field(default_factory=dict)
    possible_ids: dict[Who, str] = field(default_factory=dict)
    sides_not_found: tuple[Who, ...] = ()
    only_positives: bool = False

    @property
    def notes(self) -> dict[str, str]:
        """A sentence for every column, in the table's order."""
        return {column: str(note) for column, note in self.column_notes.items()}

    @property
    def doubts(self) -> dict[str, str]:
        """By column, what the user must check."""
        return {
            column: doubt.replace(THIS_COLUMN, repr(column))
            for column, doubt in self.column_doubts.items()
        }

    def grouped_doubts(self) -> dict[str, str]:
        """The doubts, with one sentence for all columns whose doubts differ only in the column's name."""
        columns_by_doubt: dict[str, list[str]] = {}
        for column, doubt in self.column_doubts.items():
            columns_by_doubt.setdefault(doubt, []).append(column)
        doubts = self.doubts
        return {
            columns[0]: doubts[columns[0]] + _and_others(columns[1:])
            for columns in columns_by_doubt.values()
        }

    def to_toml(self) -> str:
        """The schema as TOML, with the reason in a comment above each field; omitted columns are listed at the top."""
        return schema_text(
            self.schema,
            notes=self.notes,
            doubts=self.doubts,
            possible_ids=self.possible_ids,
            origin=self.seen or "the table",
        )


def _and_others(columns: Sequence[str]) -> str:
    """What to add to a sentence on one column that holds for others too."""
    if not columns:
        return ""
    count = "1 other column" if len(columns) == 1 else f"{len(columns)} other columns"
    return f" (the same holds for {count}: {listed(columns)})"

"""What is inferred of the columns of a table while its rules are asked: notes, doubts and fields."""

from dataclasses import dataclass, field, replace

from fieldwise.schema import Field

THIS_COLUMN = "\0"
"""The name of the column in a sentence on what the user must check of it: columns may share such a sentence."""


@dataclass(frozen=True)
class Note:
    """What was made of a column (a kind of field, `label`, `time` or `omitted`), and why."""

    use: str
    reason: str

    def __str__(self) -> str:
        return f"{self.use}: {self.reason}"


def omitted_note(reason: str) -> Note:
    """The note on a column that is not used."""
    return Note("omitted", reason)


@dataclass(kw_only=True, eq=False)
class Findings:
    """The findings on the columns of a table, which every stage of inference adds to.

    Args:
        notes: by column, what was made of it.
        doubts: by column, what the user must check, with `THIS_COLUMN`; an empty text for nothing.
        fields: by column.
    """

    notes: dict[str, Note] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    fields: dict[str, Field] = field(default_factory=dict)

    def omit(self, column: str, reason: str) -> None:
        """Leave a column out, also one that has a field."""
        self.notes[column] = omitted_note(reason)
        self.fields.pop(column, None)

    def add_field(self, f: Field, reason: str, role_reason: str) -> None:
        """Add the field of a column, with the reasons of its kind and of its role."""
        self.fields[f.column] = f
        self.notes[f.column] = Note(f.kind, f"{reason}; role {f.role}: {role_reason}")

    def add_to_note(self, column: str, text: str) -> None:
        """Add a clause to the note on a column."""
        note = self.notes[column]
        self.notes[column] = replace(note, reason=f"{note.reason}; {text}")

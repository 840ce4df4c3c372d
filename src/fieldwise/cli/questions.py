"""What `fieldwise init` asks a user on a terminal: the label and the ids, where they are in doubt."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import typer

from fieldwise.cli.show import say

if TYPE_CHECKING:
    from fieldwise.data.infer.label import LabelCandidate
    from fieldwise.data.infer.schema import Inference

Side = Literal["user", "item"]

NO_COLUMN = "-"


def chosen_label(guess: "Inference") -> str:
    """The column that the user chooses of those that may be the label."""
    for candidate in guess.labels:
        say(f"may be the label: {described(candidate)}")
    columns = [candidate.label.column for candidate in guess.labels]
    return _chosen_column("label", columns, columns[0])


def chosen_ids(guess: "Inference", side: Side, columns: Sequence[str]) -> str | None:
    """The column of ids that the user chooses for a side of those that have no other purpose; None for none."""
    schema = guess.schema
    taken = (schema.label.column, schema.time, schema.user, schema.item)
    free_columns = [column for column in columns if column not in taken]
    default = guess.possible_ids.get(side, NO_COLUMN)
    what = f"{side} ids ({NO_COLUMN} for none)"
    column = _chosen_column(what, [NO_COLUMN, *free_columns], default)
    return None if column == NO_COLUMN else column


def described(candidate: "LabelCandidate") -> str:
    """A column that may be the label, and why."""
    return f"{candidate.label.column}, {candidate.reason.removeprefix('label: ')}"


def _chosen_column(what: str, columns: Sequence[str], default: str) -> str:
    while True:
        answer = str(typer.prompt(f"column of the {what}", default=default))
        if answer in columns:
            return answer
        say(f"the column must be one of {', '.join(columns)}; found {answer!r}")

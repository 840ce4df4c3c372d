"""A field that is inferred from a column, or why there is none."""

from typing import NamedTuple

from fieldwise.data.infer.findings import THIS_COLUMN
from fieldwise.schema import Field, Numeric, Role
from fieldwise.schema.ids import HISTORIES, words_of

IN_BINS = (
    "in quantile bins, which are robust to outliers (encoding 'value' keeps the number itself)"
)
ROWS_PER_BIN = 400
LEAST_BINS = 8
MOST_BINS = 128


class Guess(NamedTuple):
    """The field inferred from a column, or None; the reason; and what the user must check, or an empty text."""

    field: Field | None
    note: str
    doubt: str = ""


def omitted(check: str) -> Guess:
    """No field, for a reason that the user must check."""
    return Guess(None, check, f"column {THIS_COLUMN} is omitted: {check}")


def binned(name: str, role: Role, rows: int) -> Numeric:
    """A numeric field with 8 to 128 quantile bins (a power of 2) of about 400 rows each."""
    power_of_2 = 1 << (max(1, rows // ROWS_PER_BIN).bit_length() - 1)
    bins = min(MOST_BINS, max(LEAST_BINS, power_of_2))
    return Numeric(
        name, role=role, encoding="quantile", transform="none", bins=bins, point_masses=True
    )


def is_history(name: str) -> bool:
    """Whether a name tells a history."""
    return any(word in HISTORIES for word in words_of(name))


def joined_doubts(*doubts: str) -> str:
    """Doubts in one text, without empty ones."""
    return "; ".join(filter(None, doubts))

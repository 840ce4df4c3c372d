"""How delimited text is written: its delimiter, which may be detected, its encoding and its columns."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TextFormat:
    """How delimited text is written; see `as_table`.

    Args:
        separator: the delimiter, if it is not to be detected.
        encoding: the encoding.
        columns: the column names, if there is no header line.
        text_columns: columns whose cells are read as they are written (`TextTypes`); None: all.
    """

    separator: str | None = None
    encoding: str = "utf-8"
    columns: Sequence[str] | None = None
    text_columns: Sequence[str] | None = ()

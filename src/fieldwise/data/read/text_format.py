"""How delimited text is written: its delimiter, which may be detected, its encoding and its columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

TEXT_OPTIONS = ("separator", "encoding", "columns")
"""The options of a user, also of a recipe's `[data]`."""


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

    @property
    def given(self) -> dict[str, Any]:
        """The options that tell how text is written and differ from their defaults, as a recipe has them."""
        values = {name: getattr(self, name) for name in TEXT_OPTIONS}
        return {name: value for name, value in values.items() if value != getattr(TextFormat, name)}

    def words(self) -> list[str]:
        r"""The same as typed on the command line.

        >>> TextFormat(separator="\t", columns=("user", "item")).words()
        ['--read', 'separator=\\t', '--read', 'columns=user,item']
        """
        words: list[str] = []
        for name, value in self.given.items():
            shown = ",".join(value) if name == "columns" else value.replace("\t", r"\t")
            words += ["--read", f"{name}={shown}"]
        return words

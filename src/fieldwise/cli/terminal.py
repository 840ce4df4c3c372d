"""Text of tables on a terminal: what would move the cursor, or write elsewhere, is shown instead."""

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["visible", "visible_console"]

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""The text with control characters as Python writes them, but for tabs and line ends.

    >>> print(visible("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return CONTROLS.sub(lambda found: repr(found[0])[1:-1], text)


def visible_console(**settings: Any) -> "Console":
    """A console of Rich that prints texts as `visible` has them; settings are those of `Console`."""
    from rich.console import Console
    from rich.text import Text

    class Visible(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(visible(text), **how)

    return Visible(**settings)

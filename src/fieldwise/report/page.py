"""Rendering chapters into one self-contained HTML file."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from fieldwise.report.blocks import Section
from fieldwise.version import __version__

__all__ = ["Chapter", "render"]

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A chapter of the page: a run, or the comparison of all runs.

    Args:
        facts: the key figures at the top: name, value and further text.
    """

    title: str
    sections: Sequence[Section]
    about: str = ""
    facts: Sequence[tuple[str, str, str]] = ()


def render(title: str, chapters: Sequence[Chapter]) -> str:
    """The page's HTML; the same chapters give the same bytes."""
    style = (FOLDER / "style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    template = _environment().from_string((FOLDER / "page.html").read_text("utf-8"))
    return template.render(
        title=title,
        chapters=chapters,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        version=__version__,
    )


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["words"] = _words
    return environment


def _words(text: str) -> Markup:
    """Escaped text, with parts between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(p) if k % 2 else escape(p) for k, p in enumerate(parts))

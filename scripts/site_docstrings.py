"""Docstrings as the site shows them: examples in code blocks. An extension of Griffe, named in mkdocs.yml."""

import re
from textwrap import dedent
from typing import Any

import griffe

SHAPE = re.compile(r"^Shape:\n(?P<text>(?: {4}.*\n?)+)", re.M)
ERRORS = re.compile(r"^Errors:$(?=\n {4}\w[\w, ]*: )", re.M)
EXAMPLE = re.compile(r"^(?P<indent> *)>>> .*\n(?:(?P=indent)\S.*\n?|(?P=indent) +\S.*\n?)*", re.M)


class Examples(griffe.Extension):
    """Fences every example that begins with `>>>`, which Markdown would take for a quotation.

    The section `Errors:` becomes Google's `Raises:`, which the site shows as a list, and `Shape:` a
    paragraph.
    """

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of one object, before it is parsed."""
        if obj.docstring:
            text = ERRORS.sub("Raises:", obj.docstring.value)
            obj.docstring.value = fenced(
                SHAPE.sub(lambda found: f"**Shape:** {dedent(found['text'])}", text)
            )


def fenced(text: str) -> str:
    """The text with its examples in code blocks.

    >>> fenced(">>> half(4)").splitlines()
    ['```pycon', '>>> half(4)', '```']
    """

    def fence(match: re.Match[str]) -> str:
        indent = match["indent"]
        return f"{indent}```pycon\n{match[0].rstrip()}\n{indent}```\n"

    return EXAMPLE.sub(fence, text)

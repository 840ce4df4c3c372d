"""Code blocks of Markdown pages, and what stands in the comment above one.

    <!-- output -->          what the block before it prints, compared loosely
    <!-- not run: KIND -->   no test can run it; KIND is one of NOT_RUN
    <!-- change FILE -->     fields of the schema FILE, by name
    <!-- part of FILE -->    lines that FILE has

A block whose first line is `# NAME.SUFFIX`, alone or before a colon or semicolon, is written to that file.
"""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

NOT_RUN = {
    "system": "is for the machine's own services: a proxy, systemd, Prometheus, Redis",
    "downloads": "needs a network",
    "develops": "works on the clone itself: compilers, make",
    "pattern": "names a recipe, model or file that the reader is to choose",
}
LANGUAGES = {"", "sh", "python", "toml", "json", "text", "ini", "nginx", "yaml"}
FENCE = re.compile(
    r"^(?: *<!-- (?P<mark>[^\n]+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)
FILE = re.compile(r"^# ([\w-]+\.\w+)(?:[:;]|$)")


@dataclass(frozen=True, kw_only=True)
class Block:
    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}, line {self.line}"

    @property
    def file(self) -> str | None:
        """The file that the block is written to, by its first line."""
        result = FILE.match(self.text.partition("\n")[0])
        return result[1] if result else None


def blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text("utf-8")
    return [
        Block(
            page=page.name,
            line=text.count("\n", 0, match.start("language")) + 1,
            language=match["language"],
            mark=match["mark"] or "",
            text=textwrap.dedent(match["text"]),
        )
        for match in FENCE.finditer(text)
    ]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text("utf-8"), flags=re.M | re.S)

"""Runs the code blocks of a page in order, in one folder, on small data.

Commands are as the page has them, with SMALLER behind them, and scripts and commands train for one
epoch in large batches, so that a page takes seconds. Commands on public data sets, and LONG ones
run in slow tests, as does a server that no later block of the page calls. `fieldwise serve` listens
at a free port, which replaces 8000 in later blocks. A program that is not known here is an error. A
block whose first line is `# NAME.SUFFIX`, alone or before a colon or semicolon, is written to that
file. In the comment above a block:

    <!-- output -->          what the block before it prints, compared loosely
    <!-- not run: KIND -->   no test can run it; KIND is one of NOT_RUN
    <!-- change FILE -->     fields of the schema FILE, by name
    <!-- part of FILE -->    lines that FILE has
"""

import contextlib
import dataclasses
import doctest
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import typer.main
from forked import Command

from fieldwise import Recipe, Schema, load_recipe, recipe_names
from fieldwise.cli import run
from fieldwise.cli.app import app
from fieldwise.runs.recipe import SECTIONS
from fieldwise.training.fit import Training
from fieldwise.training.history import History

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
LOG = {"rows": 4000, "users": 320, "items": 320}
SMALL_LOG = [word for name, count in LOG.items() for word in ("--set", f"data.{name}={count}")]
SMALLER = {
    "auto": ["--minutes", "0.1"],
    "simulate": [word for name, count in LOG.items() for word in (f"--{name}", str(count))],
    "train": ["--set", "training.epochs=1"],
    "compare": ["--seeds", "1", "--set", "training.epochs=1"],
    "tune": ["--trials", "2", "--seeds", "1", "--set", "training.epochs=1"],
    "explain": ["--rows", "20"],
    "evaluate --tower": ["--rows", "5"],
}
LONG = {"export", "report"}
RECIPES_TAKEN = {"train", "compare", "tune", "describe"}
ADDRESS = "127.0.0.1:8000"
ROOT = Path(__file__).parents[1]


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


@contextlib.contextmanager
def one_epoch() -> Iterator[None]:
    """Every training takes one epoch in batches of at least 128 rows, whatever its settings are."""
    whole = Training.run

    def short(self: Training) -> History:
        size = max(128, self.settings.batch_size)
        self.settings = dataclasses.replace(self.settings, epochs=1, batch_size=size)
        return whole(self)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(Training, "run", short)
        warnings.filterwarnings("ignore", "CHECK training.epochs: ")
        yield


@cache
def program() -> Any:
    """The command `fieldwise`; its tree of commands is made once."""
    return typer.main.get_command(app)


def resolve(words: list[str]) -> tuple[str, Any, list[str]]:
    """The name of the command that `fieldwise` takes the words for, the command, and the words behind it."""
    command, names = program(), []
    while words[:1] == ["--import"]:
        words = words[2:]
    while hasattr(command, "commands") and words:
        name, command, words = command.resolve_command(
            command.make_context("fieldwise", list(words)), words
        )
        names.append(name)
    return " ".join(names), command, words


def parse(words: list[str]) -> tuple[str, dict[str, Any]]:
    """The command that `fieldwise` takes the words for, with its parameters; nothing is run."""
    name, command, rest = resolve(words)
    return name, command.make_context(name, list(rest)).params


def command_lines(block: Block) -> list[list[str]]:
    """The words of each command of a sh block; a quotation, or a backslash at the end, goes on in the next line."""
    result, text = [], ""
    for line in block.text.splitlines():
        text += line
        if text.endswith("\\"):
            text = text[:-1]
            continue
        try:
            words = shlex.split(uncommented(text))
        except ValueError:  # the quotation is still open
            text += "\n"
            continue
        text = ""
        if words:
            result.append(words)
    assert not text, f"{block}: the last command does not end"
    return result


def uncommented(text: str) -> str:
    """The text before a comment; a # within a word, as in an address, or a quotation begins none."""
    quote = ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter == "#" and (place == 0 or text[place - 1].isspace()):
            return text[:place]
    return text


class PageRunner:
    """Runs blocks one after another in the current folder.

    `slow` runs what needs real data, at `data`, and nothing is left out; otherwise such commands
    are parsed alone.
    """

    def __init__(self, *, slow: bool) -> None:
        self.slow = slow
        self.names: dict[str, object] = {}
        self.output = ""
        self.serve: list[str] = []  # the words of a server that is to be started
        self.server: Command | None = None
        self.address = ADDRESS

    def run(self, block: Block) -> None:
        """Run, write or compare a block, as its language and mark say."""
        if self.serve and (self.slow or ADDRESS in block.text):
            self._start()
        mark, _, of = block.mark.partition(" ")
        if mark == "output":
            check_output(block, self.output)
        elif mark == "part":
            check_output(block, Path(of.removeprefix("of ")).read_text("utf-8"))
        elif mark == "change":
            change_schema(Path(of), tomllib.loads(block.text))
        elif block.mark.startswith("not run: "):
            assert block.mark.removeprefix("not run: ") in NOT_RUN, (
                f"{block}: {block.mark!r} is not of a known kind"
            )
            check_commands(block)
        elif block.language == "python":
            self._python(block)
        elif block.language == "sh":
            self._sh(block)
        elif block.language == "toml":
            check_toml(block)
        elif block.language == "json":
            json.loads(block.text)
        else:
            assert block.language in ("", "text"), (
                f"{block}: a block of {block.language!r} needs a mark that says why it is not run"
            )

    def close(self) -> None:
        """Stop the server, where there is one."""
        if self.serve and self.slow:
            self._start()
        if self.server is not None:
            self.server.end()

    def _python(self, block: Block) -> None:
        text = block.text.replace(ADDRESS, self.address)
        heard: list[str] = []
        example = doctest.DocTestParser().get_doctest(
            text, self.names, block.page, block.page, block.line
        )
        if example.examples:
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
            runner.run(example, out=heard.append, clear_globs=False)
            assert not runner.failures, "".join(heard)
            self.names = example.globs
            return
        script = Path(block.file or "script.py")
        script.write_text(text, "utf-8")
        # as `python SCRIPT` has it; a page's scripts import one another
        sys.path.insert(0, str(Path.cwd()))
        try:
            with contextlib.redirect_stdout(io.StringIO()) as out, self._pace():
                runpy.run_path(str(script), run_name=script.stem)
        finally:
            sys.path.remove(str(Path.cwd()))
        self.output = out.getvalue()

    def _pace(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.slow else one_epoch()

    def _sh(self, block: Block) -> None:
        self.output = ""
        for words in command_lines(block):
            words, target = (words[:-2], words[-1]) if ">" in words else (words, None)
            printed = self._command(words, str(block))
            if target is None:
                self.output += printed
            else:
                Path(target).write_text(printed, "utf-8")

    def _command(self, words: list[str], place: str) -> str:
        program, *rest = words
        if program == "fieldwise":
            return self._fieldwise(rest, place)
        if program == "make":
            check_make(rest, place)
            return ""
        if program == "pip":
            check_install(rest, place)
            return ""
        assert program in ("curl", "head"), (
            f"{place}: no test runs {program!r}; mark the block `<!-- not run: KIND -->`"
        )
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
        rest = [word.replace(ADDRESS, self.address) for word in rest]
        return subprocess.run(
            [program, *rest], check=True, capture_output=True, text=True, timeout=300
        ).stdout

    def _fieldwise(self, words: list[str], place: str) -> str:
        command, params = parse(words)
        if command == "serve":
            self.close()
            self.serve = words
            return ""
        is_too_long = not self.slow and (command in LONG or needs_data(words))
        if command == "fetch" or is_too_long:  # `fetch` needs a network
            check_recipes(params)
            return ""
        words = [
            *words,
            *SMALLER.get("evaluate --tower" if "--tower" in words else command, []),
        ]
        if command in RECIPES_TAKEN and any(word.startswith("simulated/") for word in words):
            words += SMALL_LOG
        said = io.StringIO(), io.StringIO()
        with (
            contextlib.redirect_stdout(said[0]) as out,
            contextlib.redirect_stderr(said[1]) as err,
            self._pace(),
        ):
            code = run(words)
        assert code == 0, f"{place}: fieldwise {shlex.join(words)}\n{err.getvalue()}"
        return out.getvalue()

    def _start(self) -> None:
        words, self.serve = self.serve, []
        self.server = Command(*words, "--port", "0")
        self.address = self.server.heard(r"serving at http://([\d.:]+)")[1]


def check_output(block: Block, printed: str) -> None:
    """Fail unless what was printed has the form that the block shows, whatever its numbers.

    Of JSON: the same keys. Of text: every line without a digit, and of the other lines half of the
    lower-case words. `...` stands for lines left out.
    """
    if block.language == "json":
        assert keys_of(json.loads(block.text)) == keys_of(json.loads(printed)), (
            f"{block}: {printed}"
        )
        return
    had = {" ".join(line.split()) for line in printed.splitlines()}
    words, wanted = set(re.findall(r"[a-z_]+", printed)), []
    for line in block.text.splitlines():
        plain = " ".join(line.split())
        if re.search(r"\d", plain):
            wanted += re.findall(r"\b[a-z_]{3,}\b", plain)
        elif plain not in ("", "..."):
            assert plain in had, (
                f"{block}: no such line was printed: {plain!r}; there was\n{printed}"
            )
    missing = [word for word in wanted if word not in words]
    assert len(missing) <= len(wanted) / 2, (
        f"{block}: of {wanted} these were not printed: {missing}; there was\n{printed}"
    )


def keys_of(value: Any) -> Any:
    """The keys of a JSON value, however deep; of a list those of its first element."""
    if isinstance(value, Mapping):
        return {key: keys_of(inner) for key, inner in value.items()}
    return [keys_of(value[0])] if isinstance(value, list) and value else None


def change_schema(file: Path, changes: dict[str, Any]) -> None:
    """Put the fields of `changes` in the place of those of their names in the schema `file`."""
    schema = tomllib.loads(file.read_text("utf-8"))
    new = {field["name"]: field for field in changes["fields"]}
    assert set(new) <= {field["name"] for field in schema["fields"]}
    schema["fields"] = [new.get(field["name"], field) for field in schema["fields"]]
    file.write_text(tomli_w.dumps(schema), "utf-8")
    Schema.from_toml(file)


def check_toml(block: Block) -> None:
    """Write the block to the file that it names; otherwise it must be part of a recipe or of a schema."""
    content = tomllib.loads(block.text)
    if block.file:
        Path(block.file).write_text(block.text, "utf-8")
    elif set(content) <= set(SECTIONS):
        model = content.get("model", {}).get("name", "autoint").replace("+", "-plus")
        base = load_recipe(f"simulated/{model}").to_dict()
        for name, table in content.items():
            # another kind of split has other settings
            whole = not isinstance(table, dict) or "kind" in table
            base[name] = table if whole else {**(base.get(name) or {}), **table}
        Recipe.from_dict(base, str(block))
    else:
        schema = load_recipe("simulated/autoint").to_dict()["schema"]
        Schema.from_dict({**schema, **content}, str(block))


def check_commands(block: Block) -> None:
    """Of a block that is not run: the commands of fieldwise and make in it must exist all the same."""
    if block.language != "sh":
        return
    for program, *rest in command_lines(block):
        if program == "fieldwise":
            parse(rest[: rest.index(">")] if ">" in rest else rest)
        elif program == "make":
            check_make(rest, str(block))


def check_recipes(params: Mapping[str, Any]) -> None:
    """The recipes of a command that is not run must exist, and take its settings."""
    names = params.get("recipes") or [params.get("recipe") or "none.toml"]
    for name in names:
        if not name.endswith(".toml"):
            load_recipe(name, params.get("settings") or ())


def check_make(words: list[str], place: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    assert words[0] in targets, f"{place}: make has no target {words[0]}"


def check_install(words: list[str], place: str) -> None:
    """What pip is told to install: a clone with extras that it has, or the pinned PyTorch's CPU build."""
    text = " ".join(words)
    pins = (ROOT / "scripts" / "constraints.txt").read_text("utf-8").splitlines()
    if (
        torch := re.fullmatch(
            r"install (torch==[\d.]+) --index-url https://download\.pytorch\.org/whl/cpu", text
        )
    ) is not None:
        assert torch[1] in pins, f"{place}: the version is not that of scripts/constraints.txt"
        return
    result = re.fullmatch(r"install (?:fieldwise|\.)\[([\w,]+)\]", text)
    assert result, (
        f"{place}: of pip only `pip install 'fieldwise[EXTRA]'` or '.[EXTRA]' is known: {shlex.join(words)}"
    )
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(result[1].split(",")) <= set(extras), f"{place}: there is no such extra: {result[1]}"


def prepare(folder: Path, model: str) -> None:
    """Train a small bundle for the pages that begin with one: `runs/my-MODEL`."""
    words = [
        "train",
        f"simulated/{model}",
        "--out",
        str(folder / "runs" / f"my-{model}"),
        "--quiet",
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        assert run([*words, *SMALLER["train"], *SMALL_LOG]) == 0


def needs_data(words: list[str]) -> bool:
    """Whether a command reads or fetches a public data set."""
    recipes = set(recipe_names())
    return "fetch" in words or any(
        word in recipes and not word.startswith("simulated/") for word in words
    )

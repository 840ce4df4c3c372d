"""One pattern for all commands: options are parameters of a function, or fields of a dataclass among them."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fieldwise import ConfigError, __version__
from fieldwise.cli import show
from fieldwise.cli.app import as_command
from fieldwise.cli.options import Reading
from fieldwise.data.read.text_format import TextFormat


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    depth: Annotated[int, typer.Option(help="How deep.")] = 2
    width: int = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    name: Annotated[str, typer.Argument()]
    first: float = 0.5
    inner: Inner
    last: Annotated[bool, typer.Option("--last")] = False


def made(*arguments):
    """What `run` is given for some arguments, and what is printed."""
    given = []

    def run(options: Outer) -> None:
        """Say nothing."""
        given.append(options)

    app = typer.Typer()
    app.command()(as_command(run))
    result = CliRunner().invoke(app, arguments)
    return given, result


def test_every_option_arrives_in_its_field():
    given, _ = made("x", "--last", "--width", "7", "--first", "0.25", "--depth", "9")
    assert given == [Outer(name="x", first=0.25, inner=Inner(depth=9, width=7), last=True)]
    assert made("x")[0] == [Outer(name="x", inner=Inner())]


def test_a_missing_argument_is_an_error_and_help_is_the_docstring():
    given, result = made()
    assert (given, result.exit_code) == ([], 2)
    shown = made("--help")[1].output
    assert "Say nothing." in shown
    names = "--first", "--depth", "--width", "--last", "--verbose"
    assert [name for name in re.findall(r"--\w+", shown) if name in names] == list(names), (
        "groups stand at their place"
    )


def test_how_a_text_file_is_read():
    assert Reading().text() == TextFormat()
    columns = Reading(read=["columns= user, item "]).text()
    assert columns == TextFormat(columns=("user", "item"))
    assert columns.given == {"columns": ("user", "item")}
    result = Reading(read=[r"separator=\t", "encoding=latin-1"])
    assert result.text() == TextFormat(separator="\t", encoding="latin-1")
    assert result.text().words() == ["--read", r"separator=\t", "--read", "encoding=latin-1"]
    for text, said in {
        "columns=a,,b": "--read columns=... must name every column of the file, separated by commas, found 'a,,b'",
        "separater=;": "must be KEY=VALUE with a known key, found 'separater=;': did you mean 'separator'?",
        "encoding": "must be KEY=VALUE with a known key, found 'encoding'",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(said)):
            Reading(read=[text])
    with pytest.raises(ConfigError, match="--read applies to --data, which is not given"):
        result.check_used("--data", None)


def test_further_processes_of_a_command_run_no_code_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("typing.py").write_text("raise SystemExit('a file of the working directory was run')")
    done = subprocess.run(
        show.command_again(["--version"]), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, f"fieldwise {__version__}\n"), done.stderr
    monkeypatch.syspath_prepend(str(tmp_path))  # as for `python -m fieldwise`
    assert show.command_again(["--version"]) == [sys.executable, "-m", "fieldwise", "--version"]

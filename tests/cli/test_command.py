"""One pattern for all commands: options are fields of a dataclass, and `run` takes nothing else."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Annotated, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from fieldwise.cli import options
from fieldwise.cli.app import COMMANDS
from fieldwise.cli.command import as_command
from fieldwise.cli.options import Reading
from fieldwise.cli.serve_options import LogReading
from fieldwise.errors import ConfigError
from fieldwise.version import __version__


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


def test_options_keep_their_order_and_groups_stand_at_their_place():
    def run(options: Outer) -> None:
        raise AssertionError(options)

    assert list(inspect.signature(as_command(run)).parameters) == ["name", "first", "depth", "width", "last", "verbose"]


def test_every_option_arrives_in_its_field():
    given, _ = made("x", "--last", "--width", "7", "--first", "0.25", "--depth", "9")
    assert given == [Outer(name="x", first=0.25, inner=Inner(depth=9, width=7), last=True)]
    assert made("x")[0] == [Outer(name="x", inner=Inner())]


def test_what_is_required_is_asked_for_and_help_is_of_run():
    given, result = made()
    assert (given, result.exit_code) == ([], 2)
    shown = made("--help")[1].output
    assert "Say nothing." in shown
    assert shown.index("--first") < shown.index("--depth") < shown.index("--last")


def test_every_command_follows_the_pattern(subtests):
    for command, module in {name: one for of in COMMANDS.values() for name, one in of.items()}.items():
        with subtests.test(command=command):
            (kind,) = (hint for name, hint in get_type_hints(module.run).items() if name != "return")
            assert dataclasses.is_dataclass(kind)
            assert kind.__dataclass_params__.frozen
            assert all(one.kw_only for one in dataclasses.fields(kind))
            assert kind.__name__ == command.title().replace("-", "") + "Options"


def test_how_a_text_file_is_read():
    assert Reading(columns=" user, item ").names == ["user", "item"]
    assert (Reading().names, Reading().given, LogReading().given) == (None, False, False)
    assert Reading(separator=";").given
    assert LogReading(encoding="latin-1").given
    with pytest.raises(
        ConfigError, match="--columns must name every column of the file, separated by commas, found 'a,,b'"
    ):
        Reading(columns="a,,b")
    assert Reading(separator=";", columns="a,b").options() == ["--separator", ";", "--columns", "a,b"]


def test_further_processes_of_a_command_run_no_code_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "GIVEN", ["--version"])
    Path("typing.py").write_text("raise SystemExit('a file of the working directory was run')")
    done = subprocess.run(options.command_again(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"fieldwise {__version__}\n"), done.stderr
    monkeypatch.syspath_prepend(str(tmp_path))  # as for `python -m fieldwise`
    assert options.command_again() == [sys.executable, "-m", "fieldwise", "--version"]

"""Commands end by suggesting a next command, which runs as printed."""

import os
import shlex
import sys
import sysconfig
from pathlib import Path

import pytest
import typer.main

from fieldwise.cli import show
from fieldwise.cli.app import app
from fieldwise.cli.show import command, command_name


def suggested(err: str) -> list[str]:
    """The words of the last line's command, without what starts fieldwise."""
    line = err.splitlines()[-1]
    assert line.startswith("next, "), err
    words = shlex.split(line.partition(": ")[2])
    name = command_name()
    assert words[: len(name)] == name
    return words[len(name) :]


def check_parses(words: list[str]) -> None:
    """The parser takes the words; nothing runs."""
    parser = typer.main.get_command(app)
    name, *rest = words
    while hasattr(parser, "commands"):
        parser = parser.commands[name]
        if hasattr(parser, "commands"):
            name, *rest = rest
    parser.make_context(name, rest, resilient_parsing=False)


def test_predict_suggests_explain_and_explain_suggests_report(fieldwise, done, bundle, log):
    log.write_csv("a log.csv", separator=";")
    reading = ("--data", "a log.csv", "--read", "separator=;")
    _, _, err = fieldwise("predict", bundle, *reading, "--out", "p.csv")
    assert suggested(err) == [
        "explain",
        str(bundle),
        "--data",
        "a log.csv",
        "--row",
        "0",
        "--read",
        "separator=;",
    ]
    err = done(*suggested(err))[1]
    assert suggested(err) == ["report", str(bundle)]
    check_parses(suggested(err))
    _, out, err = fieldwise("evaluate", bundle, *reading)
    assert "next" not in out
    assert suggested(err)[0] == "explain"
    done(*suggested(err))
    assert "next" not in fieldwise("evaluate", bundle, *reading, "--json")[2]


def test_training_leads_to_a_report_and_a_description_to_training(
    fieldwise, done, recipe, monkeypatch
):
    _, _, err = fieldwise("describe", recipe, "--set", "training.epochs=1")
    train = suggested(err)
    assert train == ["train", str(recipe), "--set", "training.epochs=1"]
    err = done(*train, "--out", "a bundle")[1]
    assert suggested(err) == ["report", "a bundle"]
    serve = suggested("\n".join(err.splitlines()[:-1]))
    assert serve[:3] == ["serve", "a bundle", "--log"]
    assert Path(serve[3]).is_file()
    check_parses(serve)
    assert "next" not in fieldwise(*train, "--out", "a bundle", "--overwrite", "--json")[2]
    monkeypatch.setattr(show, "find_spec", lambda _: None)  # without the extra that writes reports
    _, _, err = fieldwise(*train, "--out", "a bundle", "--overwrite")
    assert suggested(err) == ["evaluate", "a bundle"]
    done(*suggested(err))


def test_a_comparison_leads_to_a_search(fieldwise, recipe):
    ask = ("compare", recipe, "--seeds", 1, "--set", "training.epochs=1", "--quiet")
    assert "next" not in fieldwise(*ask)[2]
    _, _, err = fieldwise(*ask[:-1])
    assert suggested(err) == ["tune", str(recipe), "--set", "training.epochs=1"]
    check_parses(suggested(err))


def test_commands_about_data_lead_to_commands_on_them(fieldwise, done):
    _, _, err = fieldwise("describe")
    check_parses(suggested(err))
    _, _, err = fieldwise("fetch")
    assert suggested(err)[:1] == ["fetch"]
    check_parses(suggested(err))
    _, _, err = fieldwise("simulate", "--out", "log.csv", "--rows", 200)
    done(*suggested(err))


def test_the_command_is_what_starts_this_installation(tmp_path, monkeypatch):
    own = Path(sysconfig.get_path("scripts"))
    monkeypatch.setattr(
        "shutil.which", lambda name: str(own / "fieldwise") if name == "fieldwise" else None
    )
    assert command_name() == ["fieldwise"]
    monkeypatch.setattr("shutil.which", lambda name: f"/elsewhere/{name}")  # another one's
    assert command_name()[1:] == ["-m", "fieldwise"]
    assert Path(command_name()[0]).resolve() == Path(sys.executable).resolve()
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.chdir(Path(sys.executable).parent.parent)
    assert command_name() == [os.path.join("bin", Path(sys.executable).name), "-m", "fieldwise"]
    monkeypatch.setattr(
        "shutil.which", lambda name: sys.executable if name == Path(sys.executable).name else None
    )
    assert command_name() == [Path(sys.executable).name, "-m", "fieldwise"]


@pytest.mark.skipif(os.name == "nt", reason="words are quoted otherwise there")
def test_paths_are_quoted(monkeypatch):
    monkeypatch.setattr(show, "command_name", lambda: ["fieldwise"])
    assert command("report", Path("my runs") / "it's") == """fieldwise report 'my runs/it'"'"'s'"""

"""What README.md says to type works: its Python runs, its commands parse, and those on files of one's own run too."""

import re
import runpy
import shlex
from pathlib import Path

import polars as pl
import pytest
import torch
import typer.main

from fieldwise.bundle import Bundle
from fieldwise.cli import run
from fieldwise.cli.app import app
from fieldwise.data.simulated import simulate
from fieldwise.recipe import load_recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S))


def commands(program: str) -> list[list[str]]:
    """The words after `program` in every command line, whether in a block or within a sentence."""
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    split = [shlex.split(line, comments=True) for line in [*lines, *INLINE] if line.startswith(f"{program} ")]
    return [words[1:] for words in split]


def parse(words: list[str]) -> tuple[str, dict[str, object]]:
    """The command that `fieldwise` takes the words for, with its parameters; nothing is run."""
    command, name = typer.main.get_command(app), "fieldwise"
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(command.make_context(name, list(words)), words)
    return name, command.make_context(name, list(words)).params


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that README speaks of, and no data folder."""
    log = simulate(900, users=40, items=30, seed=1)
    log[:600].write_csv(tmp_path / "clicks.csv")
    log[600:].write_csv(tmp_path / "clicks-of-today.csv")
    log[600:].drop("liked").write_csv(tmp_path / "rows.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FIELDWISE_DATA", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tmp_path
    torch.set_num_threads(before)


def redirected(words: list[str]) -> tuple[list[str], str | None]:
    return (words[:-2], words[-1]) if ">" in words else (words, None)


def test_nothing_in_the_blocks_goes_unread():
    assert {language for language, _ in BLOCKS} <= {"", "sh", "python", "toml"}
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines() if line.strip()]
    assert {line.split()[0] for line in lines} == {"make", "fieldwise"}


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    wanted = {words[0] for words in commands("make")}
    assert wanted
    assert wanted <= targets


@pytest.mark.parametrize("words", commands("fieldwise"), ids=" ".join)
def test_every_command_parses(words):
    name, params = parse(redirected(words)[0])
    own_file = params.get("recipe", "").endswith(".toml")  # written and trained below
    if "recipe" in params and params["recipe"] != "RECIPE" and not own_file:
        load_recipe(params["recipe"], params.get("settings") or [])
    assert name


def test_the_python_and_the_commands_on_ones_own_files_run(folder, capsys):
    """In README's order: schema, Python, a recipe of one's own, predictions."""
    own = ["train", "clicks.toml"]
    run_here = [w for w in commands("fieldwise") if w[:2] in (["data", "infer"], own) or w[0] == "predict"]
    assert [w[0] for w in run_here] == ["data", "train", "predict"]
    (infer, target), (train, _), (predict, _) = map(redirected, run_here)
    assert run(infer) == 0
    assert target is not None
    Path(target).write_text(capsys.readouterr().out, "utf-8")
    scripts = [text for language, text in BLOCKS if language == "python"]
    assert scripts
    for number, script in enumerate(scripts):
        (folder / f"block{number}.py").write_text(script, "utf-8")
        runpy.run_path(str(folder / f"block{number}.py"))
    assert Bundle.load(folder / "bundle").schema.label.column == "liked"
    (recipe,) = [text for language, text in BLOCKS if language == "toml"]
    (folder / own[1]).write_text(recipe, "utf-8")
    assert run(train) == 0
    assert Bundle.load(folder / "bundle").about["recipe"]["settings"]["split"]["kind"] == "time"
    assert run(predict) == 0
    scores = pl.read_csv(folder / parse(predict)[1]["out"])
    assert scores.height == 300
    assert scores["score"].is_between(0, 1).all()

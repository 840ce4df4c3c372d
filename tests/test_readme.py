"""What README.md says to type works: its Python runs, its commands parse, and those on files of one's own run too."""

import re
import shlex
from pathlib import Path

import polars as pl
import pytest
from doc_blocks import blocks
from doc_runner import PageRunner, link_data, parse

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.read.simulated.log import simulate
from fieldwise.runs.recipe import load_recipe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)
INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", README, flags=re.M | re.S))


def commands(program: str) -> list[list[str]]:
    """The words after `program` in every command line, whether in a block or within a sentence."""
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
    split = [shlex.split(line, comments=True) for line in [*lines, *INLINE] if line.startswith(f"{program} ")]
    return [words[1:] for words in split]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that README speaks of, and no data folder."""
    log = simulate(900, users=40, items=30, seed=1)
    log[:600].write_csv(tmp_path / "clicks.csv")
    log[600:].write_csv(tmp_path / "clicks-of-today.csv")
    log[600:].drop("liked").write_csv(tmp_path / "rows.csv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FIELDWISE_DATA", raising=False)
    return tmp_path


def run_page(*, slow: bool) -> None:
    runner = PageRunner(slow=slow)
    try:
        for block in blocks(ROOT / "README.md"):
            runner.run(block)
    finally:
        runner.close()


def test_nothing_in_the_blocks_goes_unread():
    assert {language for language, _ in BLOCKS} <= {"", "sh", "python", "toml"}
    lines = [line for language, text in BLOCKS if language == "sh" for line in text.splitlines() if line.strip()]
    assert {line.split()[0] for line in lines} == {"make", "fieldwise", "pip"}


def test_every_make_target_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    wanted = {words[0] for words in commands("make")}
    assert wanted
    assert wanted <= targets


def test_every_command_parses(subtests):
    for words in commands("fieldwise"):
        with subtests.test(words=words):
            name, params = parse(words[:-2] if ">" in words else words)
            own_file = params.get("recipe", "").endswith(".toml")  # written and trained below
            if "recipe" in params and params["recipe"] != "RECIPE" and not own_file:
                load_recipe(params["recipe"], params.get("settings") or [])
            assert name


def test_the_python_and_the_commands_on_ones_own_files_run(folder):
    """In README's order: schema, Python, a recipe of one's own, predictions."""
    run_page(slow=False)
    assert Bundle.load(folder / "bundle").about["recipe"]["settings"]["split"]["kind"] == "time"
    scores = pl.read_csv(folder / "scores.csv")
    assert scores.height == 300
    assert scores["prediction"].is_between(0, 1).all()


@pytest.mark.slow
def test_all_commands_run_on_real_data(folder, real_data):
    link_data(folder, real_data)
    run_page(slow=True)
    assert Bundle.load(folder / "runs" / "frappe-afm").schema.label.column == "label"

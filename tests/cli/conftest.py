"""A user's own log, a recipe for it, and one trained bundle that the tests of the commands share."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from recipe_text import recipe_text

from fieldwise.cli import run

FIELDS = [("categorical", "user", "user"), ("categorical", "item", "item")]
FIELDS += [("bag", "tags", "item"), ("numeric", "price", "item")]
MODEL = {"name": "fm", "embedding_dim": 4}


def write_recipe(path: Path, **model: Any) -> None:
    """Write a recipe for the log beside it."""
    training = {"epochs": 2, "batch_size": 64, "learning_rate": 0.05}
    keys = 'keys = ["row_id", "user"]'
    path.write_text(
        recipe_text(
            path.parent / "log.csv",
            FIELDS,
            model={**MODEL, **model},
            training=training,
            schema=keys,
        )
    )


def make_log(rows: int = 400) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 9, rows), rng.integers(0, 7, rows)
    return pl.DataFrame(
        {
            "row_id": [f"r{k}" for k in rng.permutation(rows)],
            "user": [f"u{k}" for k in user],
            "item": [f"i{k}" for k in item],
            "tags": [f"t{k % 3}|t{k % 2}" for k in item],
            "price": rng.random(rows).round(3),
            "click": (rng.random(rows) < np.where((user + item) % 2, 0.85, 0.15)).astype(int),
        }
    )


@pytest.fixture(autouse=True)
def _away_from_home(tmp_path, tmp_path_factory, monkeypatch):
    """Every command starts in an empty folder, without a data folder and with wide lines."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FIELDWISE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path_factory.mktemp("prepared")))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def log() -> pl.DataFrame:
    return make_log()


@pytest.fixture
def recipe(tmp_path: Path, log: pl.DataFrame) -> Path:
    log.write_csv(tmp_path / "log.csv")
    path = tmp_path / "mine.toml"
    write_recipe(path)
    return path


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """A bundle of the recipe above; its log lies beside it."""
    folder = tmp_path_factory.mktemp("trained")
    make_log().write_csv(folder / "log.csv")
    write_recipe(folder / "mine.toml")
    assert (
        run(["train", str(folder / "mine.toml"), "--out", str(folder / "b"), "--quiet", "--json"])
        == 0
    )
    return folder / "b"


@pytest.fixture
def fieldwise(capsys):
    """Run a command: exit code, standard output, standard error. No command may show a traceback."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


@pytest.fixture
def done(fieldwise):
    """Run a command that must succeed: standard output, standard error."""

    def call(*arguments: object) -> tuple[str, str]:
        code, out, err = fieldwise(*arguments)
        assert code == 0, err
        return out, err

    return call


@pytest.fixture
def as_json(done):
    """The object that a command prints with --json; it succeeds and says nothing else."""

    def call(*arguments: object) -> Any:
        out, err = done(*arguments, "--json")
        assert err == ""
        return json.loads(out)

    return call

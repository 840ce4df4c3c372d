"""A user's own log, a recipe for it, and one trained bundle that the tests of the commands share."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fieldwise.cli import run

RECIPE = """
[data]
path = "{log}"
[split]
kind = "random"
valid = 0.2
test = 0.2
[schema]
keys = ["row_id", "user"]
label = {{ column = "click" }}
fields = [
    {{ kind = "categorical", name = "user", role = "user" }},
    {{ kind = "categorical", name = "item", role = "item" }},
    {{ kind = "bag", name = "tags", role = "item" }},
    {{ kind = "numeric", name = "price", role = "item" }},
]
[model]
name = "fm"
embedding_dim = 4
[training]
epochs = 2
batch_size = 64
learning_rate = 0.05
"""


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
    path.write_text(RECIPE.format(log=tmp_path / "log.csv"))
    return path


@pytest.fixture(scope="session")
def bundle(tmp_path_factory) -> Path:
    """A bundle of the recipe above; its log lies beside it."""
    folder = tmp_path_factory.mktemp("trained")
    make_log().write_csv(folder / "log.csv")
    (folder / "mine.toml").write_text(RECIPE.format(log=folder / "log.csv"))
    assert run(["train", str(folder / "mine.toml"), "--out", str(folder / "b"), "--quiet", "--json"]) == 0
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

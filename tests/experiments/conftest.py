"""A small log and recipes on it."""

import numpy as np
import polars as pl
import pytest

from fieldwise import load_recipe

RECIPE = """
protocol = "clicks"
[data]
path = "log.csv"
[split]
kind = "random"
valid = 0.2
test = 0.3
[schema]
keys = ["row"]
label = { column = "click" }
fields = [
    { kind = "categorical", name = "user", role = "user" },
    { kind = "categorical", name = "item", role = "item" },
]
[training]
epochs = 2
batch_size = 64
learning_rate = 0.05
[model]
"""


def make_log(rows: int = 600) -> pl.DataFrame:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 8, rows), rng.integers(0, 6, rows)
    click = (rng.random(rows) < 1 / (1 + np.exp(-(user - item) / 2))).astype(int)
    return pl.DataFrame({"row": np.arange(rows), "user": user, "item": item, "click": click})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    make_log().write_csv(tmp_path / "log.csv")
    (tmp_path / "lr.toml").write_text(RECIPE + 'name = "lr"\n')
    (tmp_path / "fm.toml").write_text(RECIPE + 'name = "fm"\nembedding_dim = 4\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recipes(folder):
    return [load_recipe("lr.toml"), load_recipe("fm.toml")]

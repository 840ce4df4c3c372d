"""LightGBM beside the recipes: what it reads, how it is chosen, that its runs are kept."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from benchmarks.published import trees
from sklearn.metrics import roc_auc_score

from fieldwise import Bag, Categorical, Label, Numeric, Schema
from fieldwise.data.prepare import prepare
from fieldwise.data.split_settings import RandomSplit
from fieldwise.errors import ConfigError
from fieldwise.experiments.records import Store
from fieldwise.recipe import Recipe

SCHEMA = Schema(
    fields=(
        Categorical("colour"),
        Numeric("size", encoding="uniform", bins=3),
        Bag("tags", separator="|"),
        Numeric("weight"),
    ),
    label=Label("y"),
)


def prepared(schema=SCHEMA, rows=40):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "colour": rng.choice(["red", "green"], rows),
            "size": rng.normal(size=rows),
            "tags": rng.choice(["a", "a|b", "b|c|b", None], rows),
            "weight": [None, *rng.normal(size=rows - 1)],
            "y": np.arange(rows) % 2,
        }
    )
    return prepare(frame, schema, split=RandomSplit(valid=0.2, test=0.2), seed=0)


def test_what_trees_read():
    part = prepared().train
    x, categories = trees.features(part, SCHEMA)
    assert categories == [0]
    colours = part.frame["colour"].to_list()
    assert all((x[i, 0] == x[j, 0]) == (colours[i] == colours[j]) for i in range(len(x)) for j in range(len(x)))
    np.testing.assert_array_equal(x[:, 1], part.frame["size"])  # not its bin
    np.testing.assert_array_equal(x[:, -1], part.frame["weight"].cast(float).to_numpy())  # absent ones as NaN
    tags = x[:, 2:-1]
    texts = part.frame["tags"].to_list()
    used = tags[:, tags.any(axis=0)]
    for letter in "abc":
        counts = [0 if text is None else text.split("|").count(letter) for text in texts]
        assert any(np.array_equal(np.minimum(column, 2), counts) for column in used.T), letter


def test_a_bag_of_many_values_is_refused(monkeypatch):
    monkeypatch.setattr(trees, "MOST_BAG_VALUES", 2)
    with pytest.raises(ConfigError, match=r"a bag of at most 2 values has a column each, found \d in 'tags'"):
        trees.features(prepared().train, SCHEMA)


@pytest.fixture
def table(tmp_path) -> Path:
    """The label is an exclusive or of two categories, with noise: trees find it, a linear model does not."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 2, 3000), rng.integers(0, 2, 3000)
    y = (a ^ b) ^ (rng.random(3000) < 0.1)
    pl.DataFrame({"a": a, "b": b, "noise": rng.normal(size=3000), "y": y.astype(int)}).write_csv(tmp_path / "t.csv")
    return tmp_path / "t.csv"


def recipe(table: Path) -> Recipe:
    fields = [{"kind": "categorical", "name": n} for n in "ab"] + [{"kind": "numeric", "name": "noise"}]
    return Recipe.from_dict(
        {
            "data": {"path": str(table)},
            "schema": {"label": {"column": "y"}, "fields": fields},
            "split": {"kind": "random", "valid": 0.2, "test": 0.2},
            "model": {"name": "lr"},
        },
        name="xor/lr",
    )


def test_runs_are_honest_and_kept(table, tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "CHOICES", trees.CHOICES[:2])
    store, said = Store(tmp_path / "store"), []
    given = {"name": "xor/lightgbm", "store": store, "data_dir": tmp_path, "note": said.append}
    first = trees.tree_runs(recipe(table), [0, 1], **given)
    assert [r.about["seed"] for r in first] == [0, 1]
    for record in first:
        y, score = record.test_rows
        assert len(y) == 600
        assert record.about["test"]["auc"] == pytest.approx(roc_auc_score(y, score))
        assert 0.85 < record.about["test"]["auc"] < 0.95  # a tenth of the labels is noise: at best 0.9
    monkeypatch.setattr(trees, "fit_trees", None)  # nothing is trained again
    again = trees.tree_runs(recipe(table), [0, 1], **given)
    assert [r.folder for r in again] == [r.folder for r in first]
    assert said[-1] == "xor/lightgbm seed 1: there, 2 of 2 runs"

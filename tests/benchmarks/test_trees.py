"""LightGBM beside the recipes: how it is chosen, that its runs are kept."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from benchmarks.published import trees
from sklearn.metrics import roc_auc_score

from fieldwise import Recipe
from fieldwise.runs.recorded_runs import RunContext
from fieldwise.runs.records import Store


def write(path: Path, *, test_labels: str = "true") -> Path:
    """The label is an exclusive or of two categories, with noise: trees find it, a linear model does not."""
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 2, 3000), rng.integers(0, 2, 3000)
    y = (a ^ b) ^ (rng.random(3000) < 0.1)
    part = np.repeat(["train", "valid", "test"], [1800, 600, 600])
    if test_labels == "flipped":
        y = np.where(part == "test", 1 - y, y)
    columns = {"a": a, "b": b, "noise": rng.normal(size=3000), "y": y.astype(int), "part": part}
    pl.DataFrame(columns).write_csv(path)
    return path


def recipe(table: Path, benchmark: str = "xor") -> Recipe:
    fields = [{"kind": "categorical", "name": n} for n in "ab"] + [
        {"kind": "numeric", "name": "noise"}
    ]
    return Recipe.from_dict(
        {
            "benchmark": benchmark,
            "data": {"path": str(table)},
            "schema": {"label": {"column": "y"}, "fields": fields},
            "split": {"kind": "column", "column": "part"},
            "model": {"name": "lr"},
        },
        name="xor/lr",
    )


# one cut of either column tells nothing of an exclusive or
BLIND = {"num_leaves": 2, "min_data_in_leaf": 900}
SEEING = {"num_leaves": 15, "min_data_in_leaf": 20}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    def make(table, *, choices=(BLIND, SEEING), seeds=(0, 1), store="store", **words):
        monkeypatch.setattr(trees, "CHOICES", tuple(choices))
        said: list[str] = []
        given = {
            "store": Store(tmp_path / store),
            "context": RunContext(data_dir=tmp_path, note=said.append),
        }
        return trees.tree_runs(
            recipe(table, **words), list(seeds), name="xor/lightgbm", **given
        ), said

    return make


def test_the_choice_is_that_of_the_best_validation_auc_on_a_sample_of_rows(
    tmp_path, runs, monkeypatch
):
    read = []

    def fit(train, valid, *rest):
        read.append((len(train[1]), len(valid[1])))
        return real(train, valid, *rest)

    real = trees.fit_trees
    monkeypatch.setattr(trees, "fit_trees", fit)
    monkeypatch.setattr(trees, "CHOICE_ROWS", 1000)
    (first, second), said = runs(write(tmp_path / "t.csv"), choices=(SEEING, BLIND))
    assert read == [(1000, 600)] * 2 + [(1800, 600)] * 2  # two choices, two runs
    assert said == [
        "xor/lightgbm seed 0: done, 1 of 2 runs",
        "xor/lightgbm seed 1: done, 2 of 2 runs",
    ]
    for seed, record in enumerate((first, second)):
        y, score, _ = record.test_rows
        assert record.about["seed"] == seed
        assert record.about["model"]["num_leaves"] == 15
        assert len(y) == 600
        assert record.about["test"]["auc"] == pytest.approx(roc_auc_score(y, score))
        # a tenth of the labels is noise: at best 0.9
        assert 0.85 < record.about["test"]["auc"] < 0.95
    assert not np.array_equal(first.test_rows[1], second.test_rows[1])


def test_test_labels_decide_nothing(tmp_path, runs):
    true, _ = runs(write(tmp_path / "true.csv"), seeds=(0,))
    flipped, _ = runs(write(tmp_path / "flipped.csv", test_labels="flipped"), seeds=(0,))
    for one, other in zip(true, flipped, strict=True):
        assert one.folder != other.folder
        assert one.about["model"] == other.about["model"]
        assert one.about["epochs"] == other.about["epochs"]
        np.testing.assert_array_equal(one.test_rows[1], other.test_rows[1])
        np.testing.assert_array_equal(one.test_rows[0], 1 - other.test_rows[0])


def test_runs_are_kept_and_made_anew_where_something_differs(tmp_path, runs, monkeypatch):
    table = write(tmp_path / "t.csv")
    first, _ = runs(table)
    monkeypatch.setattr(trees, "fit_trees", None)  # nothing is trained again
    again, said = runs(table, benchmark="renamed")
    assert [r.folder for r in again] == [r.folder for r in first]
    assert said[-1] == "xor/lightgbm seed 1: kept, 2 of 2 runs"
    assert {r.about["benchmark"] for r in again} == {"renamed"}
    with pytest.raises(TypeError):  # trained
        runs(table, choices=(SEEING,))
    monkeypatch.setattr(trees, "FORMAT", 3)
    with pytest.raises(TypeError):
        runs(table)

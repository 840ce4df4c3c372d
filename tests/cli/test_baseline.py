"""The regression that `train` compares a model with: the rows that it reads, and what is said of them."""

from collections import Counter

import pytest
from cli.conftest import FIELDS, make_log
from recipe_text import recipe_text
from torch.nn.modules.module import register_module_forward_pre_hook

from fieldwise.runs import baseline


@pytest.fixture
def trained_rows():
    """Rows of all training batches, by class of the network."""
    rows: Counter[str] = Counter()

    def count(network, inputs):
        if network.training and hasattr(inputs[0], "ids"):
            rows[type(network).__name__] += len(inputs[0].ids)

    hook = register_module_forward_pre_hook(count)
    yield rows
    hook.remove()


@pytest.fixture
def train(done, tmp_path, monkeypatch):
    """Trains a model on a log whose 2,400 training rows count as many."""
    monkeypatch.setattr(baseline, "LEAST_BASELINE_ROWS", 50)
    make_log(4_000).write_csv(tmp_path / "log.csv")

    def call(model, **training):
        text = recipe_text(
            tmp_path / "log.csv",
            FIELDS,
            model={"name": model},
            training={"epochs": 4, **training},
            schema='user = "user"',
        )
        (tmp_path / "recipe.toml").write_text(text)
        err = done("train", tmp_path / "recipe.toml", "--out", tmp_path / "bundle", "--overwrite")[
            1
        ]
        return " ".join(err.split())

    return call


def test_the_baseline_of_a_large_table_is_trained_on_a_sample_and_says_so(train, trained_rows):
    said = train("fm", learning_rate=1e-9)
    assert 0 < trained_rows["LRNetwork"] <= 0.1 * trained_rows["FMNetwork"]
    assert "baseline: a logistic regression on a sample of 50 of the 2,400 training rows" in said


def test_a_regression_has_no_baseline(train, trained_rows):
    assert "baseline" not in train("lr")
    assert trained_rows["LRNetwork"] <= 4 * 2_400


def test_scores_that_are_no_probabilities_have_no_baseline(train):
    assert "baseline" in train("fm", learning_rate=1e-9)
    said = train("fm", learning_rate=1e-9, loss="listwise")
    assert "baseline" not in said
    assert "is better than this model" not in said

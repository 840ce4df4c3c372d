"""Whole recipes against known results on their data (slow)."""

from pathlib import Path

import pytest

from fieldwise import load_recipe, prepare_recipe, train_recipe

pytestmark = pytest.mark.slow


def trained(name: str, data_dir: Path = Path()):
    recipe = load_recipe(name)
    return train_recipe(recipe, prepare_recipe(recipe, data_dir))


@pytest.mark.parametrize("name", ["simulated/afm", "simulated/autoint"])
def test_attention_comes_near_the_best_possible_score(name):
    run = trained(name)
    assert run.best_possible is not None
    assert run.best_possible["auc"] - 0.01 < run.test["auc"] < run.best_possible["auc"]


def test_without_interactions_much_is_left():
    run = trained("simulated/lr")
    assert run.best_possible is not None
    assert run.test["auc"] < run.best_possible["auc"] - 0.03


def test_afm_on_adult(real_data):
    assert trained("adult/afm", real_data).test["auc"] >= 0.900

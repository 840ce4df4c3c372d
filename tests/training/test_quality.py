"""Quality does not move: fast operations and bfloat16 end within the spread of three seeds (simulated log)."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fieldwise.models import AFM, AutoInt, DeepFM, IntTower
from fieldwise.models.build import build_network
from fieldwise.ops import use_ops
from fieldwise.ops.native import NATIVE
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.recipe import load_recipe
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective, evaluate
from fieldwise.training.settings import TrainingSettings

pytestmark = pytest.mark.slow
SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def log():
    recipe = load_recipe("simulated/fm")
    recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, rows=20_000))
    return prepare_recipe(recipe, Path())


def held_out_auc(log, model, **settings):
    """AUC on the test rows, a seed each."""
    given = TrainingSettings(batch_size=1024, epochs=3, patience=9, learning_rate=0.005, **settings)
    results = []
    for seed in SEEDS:
        network = build_network(model, log.train.table.layout, seed)
        Training(network, log.train.table, log.valid.table, settings=given, objective=Objective(), seed=seed).run()
        results.append(evaluate(network, log.test.table, Objective())["auc"])
    return np.array(results)


@pytest.mark.skipif(not NATIVE.ready, reason="no native library")
@pytest.mark.parametrize(
    "model",
    [
        AFM(embedding_dim=8, attention_dim=8, dropout=0.1),
        AutoInt(embedding_dim=8, layers=2, heads=2, attention_dim=8, attention_dropout=0.1),
        IntTower(embedding_dim=8, hidden=(16,), user_heads=2, item_heads=2, head_dim=8, dropout=0.1),
    ],
    ids=["afm", "autoint", "inttower"],
)
def test_fast_operations_end_where_plain_ones_do(log, model):
    with use_ops("plain"):
        plain = held_out_auc(log, model)
    fast = held_out_auc(log, model)
    assert plain.min() > 0.6, "something was learned"
    spread = np.ptp(plain)
    assert spread > 0
    assert np.abs(fast - plain).max() <= spread


@pytest.mark.filterwarnings("ignore:this CPU has no bfloat16")
def test_bfloat16_ends_where_float32_does(log):
    model = DeepFM(embedding_dim=8, hidden=(16, 8))
    whole, half = held_out_auc(log, model), held_out_auc(log, model, precision="bfloat16")
    assert whole.min() > 0.6
    assert np.abs(half.mean() - whole.mean()) <= max(np.ptp(whole), 0.005)
    assert not np.array_equal(half, whole)

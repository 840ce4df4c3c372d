"""Runs are kept, found again, shared between processes, and never made for nothing."""

import json
import multiprocessing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from fieldwise.errors import ConfigError, DataError
from fieldwise.experiments import runs as module
from fieldwise.experiments.records import Store, run_key
from fieldwise.experiments.runs import recorded_runs, with_seed
from fieldwise.pipeline import data_inputs, prepare_recipe, train_recipe
from fieldwise.recipe import load_recipe

DATA = Path("none")


@pytest.fixture
def counted(monkeypatch):
    """The runs that were really trained."""
    trained = []

    def train(recipe, prepared, progress=None):
        trained.append((recipe.name, recipe.seed))
        return train_recipe(recipe, prepared, progress)

    monkeypatch.setattr(module, "train_recipe", train)
    return trained


def test_a_record_is_the_run_itself(recipes):
    store = Store(Path("store"))
    found = recorded_runs(recipes, [3], store=store, data_dir=DATA)
    recipe = with_seed(recipes[1], 3)
    run = train_recipe(recipe, prepare_recipe(recipe, DATA))
    record = found["fm.toml"][0]
    assert record.about["test"]["auc"] == run.test["auc"]
    y, score = record.test_rows
    assert roc_auc_score(y, score) == pytest.approx(run.test["auc"], abs=1e-12)
    assert record.about["environment"]["torch"]
    assert (record.about["protocol"], record.about["task"]) == ("clicks", "binary")


def test_seeds_share_their_rows_and_differ_in_weights(recipes):
    first, second = recorded_runs(recipes[1:], [0, 1], store=Store(Path("store")), data_dir=DATA)["fm.toml"]
    assert (first.test_rows[0] == second.test_rows[0]).all()
    assert (first.test_rows[1] != second.test_rows[1]).any()


def test_what_is_there_is_not_run_again(recipes, counted):
    store = Store(Path("store"))
    first = recorded_runs(recipes, range(2), store=store, data_dir=DATA)
    assert counted == [("lr.toml", 0), ("lr.toml", 1), ("fm.toml", 0), ("fm.toml", 1)]
    again = recorded_runs(recipes, range(3), store=store, data_dir=DATA)
    assert counted[4:] == [("lr.toml", 2), ("fm.toml", 2)]
    assert again["fm.toml"][0].about == first["fm.toml"][0].about
    recorded_runs(recipes[:1], range(1), store=store, data_dir=DATA, again=True)
    assert counted[6:] == [("lr.toml", 0)]


def test_an_interrupted_comparison_keeps_what_was_done(recipes, counted, monkeypatch):
    store = Store(Path("store"))
    real = module.train_recipe

    def stops(recipe, prepared, progress=None):
        if recipe.name == "fm.toml":
            raise KeyboardInterrupt
        return real(recipe, prepared, progress)

    monkeypatch.setattr(module, "train_recipe", stops)
    with pytest.raises(KeyboardInterrupt):
        recorded_runs(recipes, range(2), store=store, data_dir=DATA)
    monkeypatch.setattr(module, "train_recipe", real)
    recorded_runs(recipes, range(2), store=store, data_dir=DATA)
    assert counted == [("lr.toml", 0), ("lr.toml", 1), ("fm.toml", 0), ("fm.toml", 1)]


def test_the_key_knows_settings_seeds_and_data_alone(folder, recipes):
    def key(recipe):
        return run_key(recipe, data_inputs(recipe, DATA))

    recipe = recipes[1]
    assert key(recipe) == key(load_recipe("fm.toml", ["description='other words'"]))
    (folder / "elsewhere").mkdir()
    for name in ("log.csv", "fm.toml"):
        (folder / "elsewhere" / name).write_bytes((folder / name).read_bytes())
    assert key(recipe) == key(load_recipe("elsewhere/fm.toml"))
    others = [
        load_recipe("fm.toml", ["training.learning_rate=0.1"]),
        load_recipe("fm.toml", ["seed=1"]),
        load_recipe("fm.toml", ["data_seed=1"]),
        load_recipe("fm.toml", ["split.test=0.2"]),
    ]
    assert len({key(recipe), *map(key, others)}) == 5
    pl.read_csv("log.csv").head(599).write_csv("log.csv")
    assert key(load_recipe("fm.toml")) != key(load_recipe("elsewhere/fm.toml"))


def test_a_damaged_run_is_told(recipes):
    store = Store(Path("store"))
    record = recorded_runs(recipes[:1], [0], store=store, data_dir=DATA)["lr.toml"][0]
    rows = next(record.folder.glob("test.*.npz"))
    rows.write_bytes(rows.read_bytes()[:-5] + b"12345")
    with pytest.raises(DataError, match="does not have the checksum"):
        _ = store.get(record.folder.name).test_rows
    (record.folder / "record.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        recorded_runs(recipes[:1], [0], store=store, data_dir=DATA)


def test_a_record_is_written_last(recipes, monkeypatch):
    """A crash before it leaves no run: the rows alone are none."""
    store = Store(Path("store"))
    store.put("key", {"seed": 0}, np.zeros(2), np.zeros(2))
    (Path("store") / "key" / "record.json").unlink()
    assert store.get("key") is None


def _one_process(folder, results):
    import os

    os.chdir(folder)
    lines = []
    recipes = [load_recipe("lr.toml"), load_recipe("fm.toml")]
    module.WAIT_SECONDS = 0.1
    real, made = module.train_recipe, []

    def train(recipe, prepared, progress=None):
        made.append(f"{recipe.name} {recipe.seed}")
        return real(recipe, prepared, progress)

    module.train_recipe = train
    found = recorded_runs(recipes, range(3), store=Store(Path("store")), data_dir=DATA, note=lines.append)
    results.put((made, [record.about["test"]["auc"] for records in found.values() for record in records]))


@pytest.mark.slow
def test_processes_share_the_work(folder):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_one_process, args=(folder, results)) for _ in range(2)]
    for process in processes:
        process.start()
    (made_a, auc_a), (made_b, auc_b) = (results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert auc_a == auc_b
    assert sorted(made_a + made_b) == sorted({*made_a, *made_b})  # none twice
    assert len(made_a + made_b) == 6


def test_one_name_twice_is_refused(recipes):
    with pytest.raises(ConfigError, match=r"'lr.toml' twice"):
        recorded_runs([recipes[0], recipes[0]], [0], store=Store(Path("store")), data_dir=DATA)


def test_records_are_json_without_rows_of_the_data(recipes):
    record = recorded_runs(recipes[:1], [0], store=Store(Path("store")), data_dir=DATA)["lr.toml"][0]
    text = (record.folder / "record.json").read_text()
    assert json.loads(text)["recipe"] == "lr.toml"
    assert str(Path.cwd()) not in json.dumps({**json.loads(text), "settings": None})

"""Runs are kept, found again, shared between processes, and never made for nothing."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from counted_steps import Steps
from sklearn.metrics import roc_auc_score

from fieldwise import ConfigError, DataError, load_recipe, prepare_recipe, train_recipe
from fieldwise.runs import recorded_runs as module
from fieldwise.runs.inputs import data_inputs
from fieldwise.runs.leaderboard import leaderboards
from fieldwise.runs.recorded_runs import RunContext, recorded_runs, with_seed
from fieldwise.runs.records import Store, run_key

DATA = Path("none")
HERE = RunContext(data_dir=DATA)


def kept_runs(recipes, seeds=(0,), store="store", context=HERE, **options):
    return recorded_runs(recipes, seeds, store=Store(Path(store)), context=context, **options)


@pytest.fixture
def counted(monkeypatch):
    """The runs that were really trained."""
    trained = []

    def train(recipe, prepared, *more):
        trained.append((recipe.name, recipe.seed))
        return train_recipe(recipe, prepared, *more)

    monkeypatch.setattr(module, "train_recipe", train)
    return trained


def test_a_record_is_the_run_itself(recipes):
    result = kept_runs(recipes, [3])
    recipe = with_seed(recipes[1], 3)
    run = train_recipe(recipe, prepare_recipe(recipe, DATA))
    record = result["fm.toml"][0]
    assert record.about["test"]["auc"] == run.test["auc"]
    y, score, _ = record.test_rows
    assert roc_auc_score(y, score) == pytest.approx(run.test["auc"], abs=1e-12)
    assert record.about["environment"]["torch"]
    assert (record.about["protocol"], record.about["task"]) == ("clicks", "binary")


def test_seeds_share_their_rows_and_differ_in_weights(recipes):
    first, second = kept_runs(recipes[1:], [0, 1])["fm.toml"]
    assert (first.test_rows[0] == second.test_rows[0]).all()
    assert (first.test_rows[1] != second.test_rows[1]).any()


def test_stored_runs_are_not_trained_again(recipes, counted):
    first = kept_runs(recipes, range(2))
    assert counted == [("lr.toml", 0), ("lr.toml", 1), ("fm.toml", 0), ("fm.toml", 1)]
    again = kept_runs(recipes, range(3))
    assert counted[4:] == [("lr.toml", 2), ("fm.toml", 2)]
    assert again["fm.toml"][0].about == first["fm.toml"][0].about
    kept_runs(recipes[:1], range(1), again=True)
    assert counted[6:] == [("lr.toml", 0)]


def test_an_interrupted_comparison_keeps_finished_runs(recipes, counted, monkeypatch):
    real = module.train_recipe

    def stops(recipe, prepared, *more):
        if recipe.name == "fm.toml":
            raise KeyboardInterrupt
        return real(recipe, prepared, *more)

    monkeypatch.setattr(module, "train_recipe", stops)
    with pytest.raises(KeyboardInterrupt):
        kept_runs(recipes, range(2))
    monkeypatch.setattr(module, "train_recipe", real)
    kept_runs(recipes, range(2))
    assert counted == [("lr.toml", 0), ("lr.toml", 1), ("fm.toml", 0), ("fm.toml", 1)]


def test_the_key_knows_settings_seeds_and_data_alone(folder, recipes, monkeypatch):
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
    before, plain = key(recipe), load_recipe("fm.toml", ["defaults='fixed'"])
    fixed = key(plain)
    # a version with other rules for settings that are not given
    with monkeypatch.context() as other:
        other.setattr("fieldwise.runs.records.RULES_VERSION", -1)
        assert key(recipe) != before
        assert key(plain) == fixed
    pl.read_csv("log.csv").head(599).write_csv("log.csv")
    assert key(load_recipe("fm.toml")) != key(load_recipe("elsewhere/fm.toml"))


def test_other_vectors_are_another_run_beside_a_recipe_without_any(folder, counted):
    field = '{ kind = "vector", name = "text", column = "item", role = "item", vectors = "v.npy" }'
    text = (folder / "fm.toml").read_text().replace("]\n[training]", f"    {field},\n]\n[training]")
    (folder / "vectors.toml").write_text(text)
    np.save("v.ids.npy", np.arange(6))
    for vectors in (np.eye(6, dtype=np.float32), -np.eye(6, dtype=np.float32)):
        np.save("v.npy", vectors)
        kept_runs([load_recipe("lr.toml"), load_recipe("vectors.toml")])
    assert counted == [("lr.toml", 0), ("vectors.toml", 0), ("vectors.toml", 0)]


def test_a_damaged_run_is_an_error(recipes):
    store = Store(Path("store"))
    record = kept_runs(recipes[:1])["lr.toml"][0]
    rows = next(record.folder.glob("test.*.npz"))
    rows.write_bytes(rows.read_bytes()[:-5] + b"12345")
    with pytest.raises(DataError, match="does not match its checksum"):
        _ = store.get(record.folder.name).test_rows
    (record.folder / "record.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        kept_runs(recipes[:1])


def test_two_files_of_one_form_are_two_data_sets(folder):
    """Their settings are alike: rows prepared of the one must not serve the other."""
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / f"{name}.toml").write_text((folder / "lr.toml").read_text())
    log = pl.read_csv("log.csv")
    log.write_csv("a/log.csv")
    log.with_columns(click=1 - pl.col("click")).write_csv("b/log.csv")
    result = kept_runs([load_recipe("a/a.toml"), load_recipe("b/b.toml")])
    first, second = (result[f"{name}/{name}.toml"][0] for name in ("a", "b"))
    assert (first.test_rows[0] == 1 - second.test_rows[0]).all()
    assert len(leaderboards(result, replicates=10)) == 2


def test_other_rows_of_equal_labels_are_another_table(folder):
    """Labels alone do not tell rows apart: where all are alike but for their order, neither do the splits' labels."""
    log = pl.read_csv("log.csv")
    pl.concat([log.with_columns(click=pl.lit(k)) for k in (0, 1)]).with_row_index(
        "place"
    ).write_csv("log.csv")
    text = (folder / "lr.toml").read_text().replace('keys = ["row"]', 'keys = ["place"]')
    split = text.replace(
        'kind = "random"\nvalid = 0.2\ntest = 0.3', 'kind = "column"\ncolumn = "PART"'
    )
    which, names = pl.col("row") % 3, {0: "train", 1: "valid", 2: "test"}
    parts = {"one": which.replace_strict(names), "two": ((which + 1) % 3).replace_strict(names)}
    pl.read_csv("log.csv").with_columns(**parts).write_csv("log.csv")
    for name in ("one", "two"):
        (folder / f"{name}.toml").write_text(split.replace("PART", name))
    result = kept_runs([load_recipe(f"{name}.toml") for name in ("one", "two")])
    labels = [result[f"{name}.toml"][0].test_rows[0] for name in ("one", "two")]
    assert (labels[0] == labels[1]).all()
    assert len(leaderboards(result, replicates=10)) == 2


def test_a_table_uses_the_current_name_of_the_protocol(recipes, folder):
    kept_runs(recipes[:1])
    (folder / "lr.toml").write_text((folder / "lr.toml").read_text().replace("clicks", "visits"))
    result = kept_runs([load_recipe("lr.toml")], range(2))
    assert [board.protocol for board in leaderboards(result, replicates=10)] == ["visits"]


def test_another_bundle_to_start_from_is_another_run(folder):
    def bundle(rate):
        recipe = load_recipe("fm.toml", [f"training.learning_rate={rate}"])
        train_recipe(recipe, prepare_recipe(recipe, DATA)).bundle.save(
            folder / "start", overwrite=True
        )

    def score():
        recipe = load_recipe("fm.toml", ["warm_start=start"])
        notes = []
        record = kept_runs([recipe], [0], context=RunContext(data_dir=DATA, note=notes.append))
        return record["fm.toml"][0].test_rows[1], notes

    bundle(0.05)
    first, notes = score()
    bundle(0.5)
    assert (score()[0] != first).any()
    assert not any("did not hold out" in note for note in notes)


def test_a_file_in_place_of_the_store_is_refused_before_training(recipes, counted):
    Path("store").write_text("a file")
    with pytest.raises(DataError, match="runs need a writable folder"):
        kept_runs(recipes)
    assert counted == []


def _one_process(folder, results):
    import os

    os.chdir(folder)
    lines = []
    recipes = [load_recipe("lr.toml"), load_recipe("fm.toml")]
    module.WAIT_SECONDS = 0.1
    real, made = module.train_recipe, []

    def train(recipe, prepared, *more):
        made.append(f"{recipe.name} {recipe.seed}")
        return real(recipe, prepared, *more)

    module.train_recipe = train
    result = kept_runs(recipes, range(3), context=RunContext(data_dir=DATA, note=lines.append))
    results.put(
        (made, [record.about["test"]["auc"] for records in result.values() for record in records])
    )


@pytest.mark.slow
def test_processes_share_the_work(folder):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_one_process, args=(folder, results)) for _ in range(2)]
    for process in processes:
        process.start()
    (made_a, auc_a), (made_b, auc_b) = (results.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    assert auc_a == auc_b
    assert sorted(made_a + made_b) == sorted({*made_a, *made_b})  # none twice
    assert len(made_a + made_b) == 6


def test_one_name_twice_is_refused(recipes):
    with pytest.raises(ConfigError, match=r"'lr.toml' twice"):
        kept_runs([recipes[0], recipes[0]])


def test_records_are_json_without_rows_of_the_data(recipes):
    record = kept_runs(recipes[:1])["lr.toml"][0]
    stored = json.loads((record.folder / "record.json").read_text())
    assert stored["recipe"] == "lr.toml"
    assert str(Path.cwd()) not in json.dumps({**stored, "settings": None})
    both = stored.keys() & stored["settings"].keys()
    assert both == {"defaults"}, (
        "a setting stands once; these are the reasons of those that were chosen"
    )
    assert record["seed"] == stored["settings"]["seed"]


def test_the_run_in_progress_of_a_comparison_is_resumed(recipes):
    whole, rest = Steps(), Steps()
    context = replace(HERE, callbacks=lambda _: [whole])
    wanted = kept_runs(recipes[1:], [0], store="whole", context=context)["fm.toml"][0]
    stop, said = 2 * whole.done // 3, []
    with pytest.raises(KeyboardInterrupt):
        kept_runs(recipes[1:], [0], context=replace(HERE, callbacks=lambda _: [Steps(stop)]))
    context = replace(HERE, callbacks=lambda _: [rest], note=said.append)
    result = kept_runs(recipes[1:], [0], context=context)["fm.toml"][0]
    assert rest.done == whole.done - stop
    assert any(
        "fm.toml seed 0: " in sentence and "resumes the unfinished run" in sentence
        for sentence in said
    ), said
    assert result.about["test"] == wanted.about["test"]
    assert (result.test_rows[1] == wanted.test_rows[1]).all()
    assert not list(Path("store").glob("*.unfinished*")) + list(
        Path("store").glob(".*.unfinished*")
    )

import dataclasses
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from sklearn.metrics import roc_auc_score

from fieldwise import (
    Bundle,
    ConfigError,
    DataError,
    load_recipe,
    prepare_recipe,
    recipe_names,
    simulate,
    train_recipe,
)
from fieldwise.evaluation import binary_metrics, sigmoid
from fieldwise.models.catboost import CatBoostNetwork
from fieldwise.models.lightgbm import LightGBMNetwork
from fieldwise.models.serialise import model_to_dict
from fieldwise.models.trees import TreesNetwork
from fieldwise.runs.cache_key import data_key, data_settings
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.inputs import data_inputs
from fieldwise.runs.raw_table import load_frame
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.row_digests import rows_digest
from fieldwise.storage.cache import Cache

SMALL = ["data.rows=3000", "data.users=60", "data.items=40", "training.epochs=1"]


def train(name: str, settings: list[str], data_dir: Path = Path()):
    recipe = load_recipe(name, settings)
    prepared = prepare_recipe(recipe, data_dir)
    return prepared, train_recipe(recipe, prepared)


def size(network) -> int:
    """The number of a network's parameters, or of its trees' leaves as their library counts them."""
    if isinstance(network, LightGBMNetwork):
        trees = network.model().dump_model()["tree_info"]
        return sum(tree["num_leaves"] for tree in trees)
    if isinstance(network, CatBoostNetwork):
        return int(network.model().get_tree_leaf_counts().sum())
    return sum(p.numel() for p in network.parameters())


def assert_whole(prepared, run, tmp_path: Path) -> None:
    """Its metrics are those of its scores, and its bundle comes back and scores alike."""
    run.bundle.save(tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b")
    np.testing.assert_array_equal(
        loaded.score(prepared.test.frame), run.bundle.score(prepared.test.frame)
    )
    for part, metrics in ((prepared.valid, run.valid), (prepared.test, run.test)):
        rows, labels = len(part.table), run.recipe.schema.labels
        columns = zip(
            labels,
            loaded.predict(part.frame).reshape(rows, -1).T,
            part.y.reshape(rows, -1).T,
            strict=True,
        )
        for t, (label, p, y) in enumerate(columns):
            prefix = f"{label.name}." if t else ""
            if label.task == "binary":
                assert metrics[f"{prefix}auc"] == pytest.approx(roc_auc_score(y, p), abs=1e-6)
            else:
                assert metrics[f"{prefix}rmse"] == pytest.approx(
                    float(np.sqrt(np.mean((p - y) ** 2))), rel=1e-5
                )
    assert run.parameters == size(loaded.network)
    record = run.record()
    json.dumps(record, allow_nan=False)
    assert {"seed", "parameters", "seconds", "valid", "test", "training"} <= record.keys()
    assert ("best_possible" in record) == (run.best_possible is not None)
    assert record["recipe"] == run.recipe.name
    if not isinstance(
        loaded.network, TreesNetwork
    ):  # of trees, as many as the validation rows chose
        assert (record["epochs"], record["stopped"]) == (1, "epochs")
    assert record["model"] == model_to_dict(run.recipe.model)
    assert loaded.about.run["test"] == pytest.approx(dict(run.test))
    assert loaded.about.recipe.name == run.recipe.name


FEW = {"simulated/lr", "simulated/afm", "simulated/din", "simulated/inttower", "simulated/widedeep"}
SIMULATED = [n for n in recipe_names() if n.startswith("simulated/")]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in FEW else pytest.mark.slow) for n in SIMULATED]
)
def test_simulated_recipes_train_evaluate_and_save(name, tmp_path):
    prepared, run = train(name, SMALL)
    assert_whole(prepared, run, tmp_path)
    counts = run.counts
    assert counts["train_rows"] + counts["valid_rows"] + counts["test_rows"] == 3000
    p = prepared.test.frame.get_column("true_probability").to_numpy()
    assert run.best_possible is not None
    assert run.best_possible["auc"] == pytest.approx(roc_auc_score(prepared.test.main, p))
    assert "true_probability" not in run.bundle.samples.columns


def test_a_real_recipe_in_one_epoch(tmp_path, real_data):
    settings = ["training.epochs=1", "training.batch_size=256", "training.learning_rate=0.01"]
    prepared, run = train("adult/afm", settings, real_data)
    assert_whole(prepared, run, tmp_path)
    assert run.test["auc"] > 0.8
    assert run.best_possible is None


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in recipe_names() if not n.startswith("simulated/")])
def test_every_recipe_in_one_epoch(name, tmp_path, real_data):
    prepared, run = train(name, ["training.epochs=1", "training.batch_size=8192"], real_data)
    assert_whole(prepared, run, tmp_path)


def test_a_column_of_that_name_that_holds_no_probabilities_is_no_best_possible(tmp_path):
    frame = simulate(600, users=20, items=15)
    for column in (pl.lit("x"), pl.lit(1.0), pl.lit(None), pl.lit(7)):
        recipe = load_recipe("simulated/lr", SMALL)
        prepared = prepare_recipe(recipe, Path(), frame.with_columns(true_probability=column))
        assert train_recipe(recipe, prepared).best_possible is None


# Where rows come from


def test_a_file_or_a_name(tmp_path):
    pl.DataFrame({"a": [1, 2]}).write_csv(tmp_path / "log.csv", separator=";")
    assert load_frame(DataSettings(path=str(tmp_path / "log.csv"), separator=";"), Path()).to_dict(
        as_series=False
    ) == {"a": [1, 2]}
    simulated = load_frame(
        DataSettings(name="simulated", rows=50, users=5, items=4, seed=3), Path()
    )
    assert simulated.equals(simulate(50, users=5, items=4, seed=3))
    with pytest.raises(
        ConfigError,
        match=r"data\.name must be a known data set, found 'adullt': did you mean 'adult'",
    ):
        load_frame(DataSettings(name="adullt"), Path())
    with pytest.raises(DataError, match="adult is not complete"):
        load_frame(DataSettings(name="adult"), tmp_path)


def test_a_folder_or_a_pattern_of_files_and_their_key(tmp_path):
    for name, value in (("b", 2), ("a", 1)):
        pl.DataFrame({"a": [value]}).write_csv(tmp_path / f"{name}.csv")
    assert load_frame(DataSettings(path=str(tmp_path / "*.csv")), Path())["a"].to_list() == [1, 2]
    recipe = load_recipe("simulated/fm")

    def key(path, **settings):
        data = DataSettings(path=str(path), **settings)
        one = dataclasses.replace(recipe, data=data)
        return data_key(data_settings(one), data_inputs(one, Path()))

    both = key(tmp_path)
    assert both == key(tmp_path / "?.csv", memory="1GB") != key(tmp_path / "a.csv")
    (tmp_path / "b.csv").rename(tmp_path / "0.csv")
    assert key(tmp_path) != both, "the rows have another order"
    with pytest.raises(DataError, match="no file matches the pattern"):
        key(tmp_path / "*.parquet")


def test_metrics_of_the_validation_rows_are_those_of_the_best_epoch():
    prepared, run = train(
        "simulated/fm", [*SMALL[:-1], "training.epochs=2", "training.learning_rate=0.02"]
    )
    logit = run.bundle.score(prepared.valid.frame)
    expected = binary_metrics(
        prepared.valid.main.astype(np.float64), logit, group=prepared.valid.group
    )
    assert dict(run.valid) == pytest.approx(expected, abs=1e-6)
    assert dict(run.valid) == run.history.best.metrics
    assert sigmoid(logit) == pytest.approx(run.bundle.predict(prepared.valid.frame))


def test_encoded_columns_of_the_cache_are_mapped_from_disk(tmp_path):
    recipe, cache = load_recipe("simulated/afm", ["data.rows=3000"]), Cache(folder=tmp_path)
    prepare_recipe(recipe, Path(), cache=cache)
    prepared = prepare_recipe(recipe, Path(), cache=cache)
    for part in (prepared.train, prepared.valid, prepared.test):
        for array in (part.table.ids, part.table.bag_ids, part.table.bag_offsets, part.table.y):
            base = array
            while not isinstance(base, np.memmap):
                base = base.base
            assert base.filename is not None


def test_the_digest_tells_other_rows_and_another_order():
    prepared = prepare_recipe(load_recipe("simulated/afm", ["data.rows=3000"]), Path())
    schema, frame = load_recipe("simulated/afm").schema, prepared.test.frame
    digest = rows_digest(frame, schema)
    assert digest == rows_digest(frame.clone(), schema)
    assert digest != rows_digest(frame[::-1], schema)
    assert digest != rows_digest(frame.with_columns(1 - frame["liked"]), schema)


@pytest.mark.parametrize(
    "settings",
    [
        {"split": {"kind": "leave-last-out", "user": "reader", "order": "day"}},
        {"split": {"kind": "random", "drop_without_positive": "reader"}},
        {
            "split": {
                "kind": "column",
                "column": "reader",
                "train": ["2.5", "2.50", "3.5"],
                "valid": ["1.1"],
                "test": ["1.10"],
            }
        },
        {"target_encoding": {"columns": ["reader"]}},
        {"history": {"user": "reader", "item": "film", "order": "day"}},
        {
            "negatives": {
                "user": "reader",
                "item": "film",
                "parts": ["train", "valid", "test"],
            }
        },
    ],
    ids=["leave-last-out", "drop", "column", "target_encoding", "history", "negatives"],
)
def test_a_column_that_no_field_reads_has_the_values_of_its_file(settings, tmp_path):
    """Ids 1.10 and 1.1 of a CSV are two, as in a Parquet file, also where only a split names their column."""
    rng = np.random.default_rng(0)
    readers = rng.choice(["1.1", "1.10", "2.5", "2.50", "3.5"], 300)
    log = pl.DataFrame(
        {
            "reader": readers,
            "film": [f"{k % 7}.{k}" for k in rng.integers(0, 90, 300)],
            "device": rng.choice(["tv", "phone"], 300),
            "day": np.arange(300),
            "liked": np.where(np.isin(readers, ["2.5", "2.50"]), 0, rng.integers(0, 2, 300)),
        }
    )
    if "negatives" in settings:
        log = log.filter(pl.col("liked") == 1).head(60)
    log.write_csv(tmp_path / "log.csv")
    log.write_parquet(tmp_path / "log.parquet")
    fields = [{"kind": "categorical", "name": "device"}]
    if "target_encoding" in settings:
        fields.append({"kind": "numeric", "name": "reader_mean_label"})
    if "history" in settings:
        fields += [
            {"kind": "categorical", "name": "film"},
            {"kind": "sequence", "name": "history", "shares": "film"},
        ]

    def prepared(file: str):
        plain = {
            "schema": {"label": {"column": "liked"}, "fields": fields},
            "model": {"name": "lr"},
            "data": {"path": str(tmp_path / file)},
            **settings,
        }
        return prepare_recipe(Recipe.from_dict(plain, file), tmp_path)

    from_csv = prepared("log.csv")
    from_parquet = prepared("log.parquet")
    assert from_csv.counts == from_parquet.counts
    for name in ("train", "valid", "test"):
        part = getattr(from_csv, name).frame
        assert_frame_equal(part, getattr(from_parquet, name).frame.cast(part.select("film").schema))

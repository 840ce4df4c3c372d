"""Trees as models: they score as their library does alone, are one bundle like others, and what they refuse is said.

The oracle is the library itself, on columns that are made here from the raw table.
"""

import copy
import dataclasses
import json
import sys
import warnings

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fieldwise import (
    AFM,
    Bag,
    Bundle,
    BundleError,
    CatBoost,
    Categorical,
    ConfigError,
    DataError,
    Label,
    LightGBM,
    MissingExtraError,
    Numeric,
    Recommender,
    Schema,
    Sequence,
    TrainingSettings,
    Vector,
)
from fieldwise.layout import FieldLayout, Layout
from fieldwise.models import parameter_count
from fieldwise.models.trees import MAX_BAG_VALUES, TreeFeatures
from fieldwise.training.callbacks import Callback, OutOfTime
from fieldwise.training.tree_run import check_tree_settings

FIELDS = (
    Categorical("user", role="user"),
    Categorical("item", role="item"),
    Numeric("x", transform="none"),
    Numeric("binned", encoding="quantile", bins=8),
    Bag("tags", role="item"),
    Sequence("past"),
)
SCHEMA = Schema(fields=FIELDS, label=Label("y"))
RECORDED = pytest.param("catboost", id="catboost")
BOTH = ["lightgbm", RECORDED]


def settings_of(name: str):
    """Few trees, so that CatBoost, which is slow, is quick."""
    if name == "lightgbm":
        return LightGBM(max_trees=200, patience=10)
    pytest.importorskip(
        "catboost", reason="CatBoost is not installed: pip install 'fieldwise[catboost]'"
    )
    return CatBoost(max_trees=40, patience=10, depth=4)


def table(rows: int = 1500, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    user, item, x = rng.integers(0, 20, rows), rng.integers(0, 15, rows), rng.normal(size=rows)
    z = np.where((user + item) % 2, 2.0, -2.0) + x
    return pl.DataFrame(
        {
            "user": [None if k == 0 else f"u{k}" for k in user],
            "item": [f"i{k}" for k in item],
            "x": [None if v > 1.8 else v for v in x],
            "binned": rng.random(rows),
            "tags": [["a", "b"] if k % 3 else ["c"] for k in item],
            "past": ["i1|i2"] * rows,
            "y": (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(int),
        }
    )


def fitted(name, schema=SCHEMA, rows=None, **arguments) -> Recommender:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not read past")
        return Recommender(schema, settings_of(name), seed=1, **arguments).fit(
            table() if rows is None else rows, eval_set=table(400, seed=1)
        )


@pytest.fixture(scope="module", params=BOTH)
def trained(request):
    return fitted(request.param)


def test_scores_are_those_of_lightgbm_alone():
    import lightgbm as lgb

    train, valid, test = table(), table(400, seed=1), table(300, seed=2)
    bundle = fitted("lightgbm").bundle_
    vocabularies = {name: bundle.encoder.fitted[k].values for k, name in ((0, "user"), (1, "item"))}
    bins = bundle.encoder.fitted[3]

    def columns(frame: pl.DataFrame) -> np.ndarray:
        made = []
        for name, values in vocabularies.items():
            row_of = {value: 2.0 + k for k, value in enumerate(values)}
            made.append([row_of.get(cell, np.nan) for cell in frame[name]])
        made.append(frame["x"].cast(pl.Float64).fill_null(float("nan")).to_numpy())
        made.append(1.0 + np.searchsorted(bins.edges, frame["binned"].to_numpy(), side="right"))
        made += [np.zeros(len(frame))] * 2  # a bag that is missing or unknown
        for value in bundle.encoder.fitted[4].values:
            made.append([float(value in tags) for tags in frame["tags"]])
        return np.column_stack(made).astype(np.float32)

    parameters = {
        "objective": "binary", "metric": "binary_logloss", "seed": 1, "verbosity": -1,
        "num_threads": 1, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip
    training_set = lgb.Dataset(columns(train), train["y"].to_numpy(), categorical_feature=[0, 1])
    validation_set = lgb.Dataset(columns(valid), valid["y"].to_numpy(), reference=training_set)
    alone = lgb.train(
        parameters, training_set, 200, [validation_set], callbacks=[lgb.early_stopping(10, verbose=False)]
    )  # fmt: skip
    expected = alone.predict(columns(test), raw_score=True, num_iteration=alone.best_iteration)
    np.testing.assert_array_equal(bundle.score(test), expected)
    assert fitted("lightgbm").history_.best.epoch == alone.best_iteration


def test_scores_are_those_of_catboost_alone():
    settings_of("catboost")
    import catboost

    train, valid, test = table(), table(400, seed=1), table(300, seed=2)
    schema = dataclasses.replace(SCHEMA, fields=FIELDS[:3])
    model = fitted("catboost", schema)

    def pool(frame: pl.DataFrame) -> "catboost.Pool":
        # codes differ from ours, which changes nothing: CatBoost reads categories by their hash
        columns = frame.select(
            pl.col("user").fill_null("none"),
            "item",
            pl.col("x").fill_null(float("nan")).cast(pl.Float32),
        )
        return catboost.Pool(columns.to_pandas(), frame["y"].to_numpy(), cat_features=[0, 1])

    alone = catboost.CatBoost(
        {"loss_function": "Logloss", "eval_metric": "Logloss", "iterations": 40, "depth": 4, "random_seed": 1,
         "allow_writing_files": False, "thread_count": 1, "logging_level": "Silent", "use_best_model": True}
    )  # fmt: skip
    alone.fit(pool(train), eval_set=pool(valid), early_stopping_rounds=10)
    np.testing.assert_allclose(
        model.bundle_.score(test), alone.predict(pool(test)), rtol=0, atol=1e-6
    )


def test_a_bundle_comes_back_equal_to_the_bit(trained, tmp_path):
    rows = table(200, seed=3)
    trained.save(tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b")
    np.testing.assert_array_equal(loaded.score(rows), trained.bundle_.score(rows))
    assert loaded.digest == trained.bundle_.digest
    assert parameter_count(loaded.network) == parameter_count(trained.bundle_.network) > 100
    again = Recommender.load(tmp_path / "b")
    np.testing.assert_array_equal(again.predict_proba(rows), trained.predict_proba(rows))


def test_the_weights_file_has_the_librarys_own_text(trained, tmp_path):
    from safetensors.numpy import load_file

    trained.save(tmp_path / "b")
    (file,) = (tmp_path / "b").glob("weights.*.safetensors")
    text = load_file(file)["text"].tobytes().decode()
    if trained.model.__class__ is LightGBM:
        assert text.startswith("tree\nversion=v4")
    else:
        assert json.loads(text)["features_info"]


def test_damaged_trees_are_refused_in_a_sentence(trained, subtests):
    network = trained.bundle_.network
    other = trained.bundle_.settings.build(trained.bundle_.encoder.layout)
    text = network.text.numpy().tobytes()
    for damage in (text[: len(text) // 2], b"no trees", text[::-1]):
        with subtests.test(damage=damage[:20]):
            state = {"text": torch.frombuffer(bytearray(damage), dtype=torch.uint8)}
            with pytest.raises(BundleError, match="trees cannot be read"):
                other.load_state_dict(state)
    few = dataclasses.replace(SCHEMA, fields=FIELDS[:2])
    narrow = fitted(
        "lightgbm" if type(trained.model) is LightGBM else "catboost", few
    ).bundle_.network
    with pytest.raises(BundleError, match="they read 2 columns, and these fields"):
        other.load_state_dict(narrow.state_dict())


def test_a_copy_scores_alike(trained):
    rows = table(50, seed=3)
    same = copy.deepcopy(trained)
    assert same.bundle_.network.__getstate__()["_trees"] is None
    np.testing.assert_array_equal(same.bundle_.score(rows), trained.bundle_.score(rows))


def test_no_rows_have_no_scores_and_unknown_values_have_one(trained):
    assert trained.bundle_.score(table(0)).shape == (0,)
    rows = table(3).with_columns(pl.lit("never seen").alias("user"))
    missing = rows.with_columns(pl.lit(None, pl.String).alias("user"))
    np.testing.assert_array_equal(trained.bundle_.score(rows), trained.bundle_.score(missing))


def test_patience_and_the_number_of_trees_end_a_training(subtests):
    model = fitted("lightgbm")
    history = model.history_
    assert history.stopped == "patience"
    assert history.epochs == history.best.epoch + 10
    assert history.best in history.evaluations
    assert model.bundle_.network.model().num_trees() == history.best.epoch
    few = Recommender(SCHEMA, LightGBM(max_trees=3), seed=1)
    with pytest.warns(UserWarning, match="LightGBM does not read past: a history, or a bag"):
        few.fit(table())
    assert (few.history_.stopped, few.history_.epochs) == ("epochs", 3)
    assert "tree" not in few.history_._repr_html_()[:10]


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize(
    ("error", "stopped"), [(OutOfTime, "time"), (KeyboardInterrupt, "interrupted")]
)
def test_a_callback_ends_it_with_the_best_trees_so_far(name, error, stopped):
    class Impatient(Callback):
        def on_step(self, step):
            if step.number == 5:
                raise error

    model = Recommender(SCHEMA, settings_of(name), seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(table(), eval_set=table(400, seed=1), callbacks=[Impatient()])
        except KeyboardInterrupt:
            assert error is KeyboardInterrupt
    assert (model.history_.stopped, model.history_.epochs) == (stopped, 5)
    assert 1 <= model.history_.best.epoch <= 5


@pytest.mark.parametrize("name", BOTH)
def test_a_refit_takes_as_many_trees(name):
    model = fitted(name, training=TrainingSettings(refit=True))
    trees = model.bundle_.network.model()
    count = trees.num_trees() if name == "lightgbm" else trees.tree_count_
    assert count == model.history_.best.epoch


@pytest.mark.parametrize("name", BOTH)
def test_a_weight_of_two_is_the_row_twice(name):
    rows = table(600)
    twice = np.arange(600) % 3 == 0
    weighted = Recommender(SCHEMA, settings_of(name), seed=1)
    repeated = Recommender(SCHEMA, settings_of(name), seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weighted.fit(rows, eval_set=table(400, seed=1), sample_weight=np.where(twice, 2.0, 1.0))
        repeated.fit(pl.concat([rows, rows.filter(twice)]), eval_set=table(400, seed=1))
    fresh = table(300, seed=5)
    plain = Recommender(SCHEMA, settings_of(name), seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain.fit(rows, eval_set=table(400, seed=1))
    scores = [model.bundle_.score(fresh) for model in (weighted, repeated, plain)]
    # near only: leaves count rows, not weights, for their least size
    assert np.corrcoef(scores[0], scores[1])[0, 1] > np.corrcoef(scores[2], scores[1])[0, 1]


@pytest.mark.parametrize("name", BOTH)
def test_early_stopping_by_auc_weighs_rows(name, subtests):
    def weighted(seed: int) -> pl.DataFrame:
        return table(800, seed).with_columns(
            w=pl.when(pl.col("binned") > 0.8).then(50.0).otherwise(0.1)
        )

    valid = weighted(1)
    weight = valid["w"].to_numpy()
    schema = dataclasses.replace(SCHEMA, weight="w")
    monitored = TrainingSettings(monitor="auc")
    for case, with_column, rows, eval_set in [
        ("column", schema, weighted(0), valid),
        ("validation rows alone", SCHEMA, table(800), (valid, None, weight)),
    ]:
        with subtests.test(case), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = Recommender(with_column, settings_of(name), seed=1, training=monitored)
            model.fit(rows, eval_set=eval_set)
            score = model.decision_function(valid)
            expected = roc_auc_score(valid["y"], score, sample_weight=weight)
            assert abs(expected - roc_auc_score(valid["y"], score)) > 1e-3
            metrics = [evaluation.metrics["auc"] for evaluation in model.history_.evaluations]
            assert max(metrics) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", BOTH)
def test_a_regression_is_in_the_labels_unit_and_range(name):
    price = (pl.col("x").fill_null(0).clip(-2, 0.8) * 5000 + 20_000).alias("price")
    rows = table().with_columns(price)
    schema = dataclasses.replace(
        SCHEMA, label=Label("price", task="regression", range=(10_000.0, 24_000.0))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = Recommender(schema, settings_of(name), seed=1).fit(rows)
    assert model.bundle_.schema.label.scale
    predicted = model.predict(rows)
    assert predicted.min() >= 10_000
    assert predicted.max() <= 24_000
    assert model.evaluate(table(300, seed=4).with_columns(price))["rmse"] < 2_500
    values = [e.metrics["rmse"] for e in model.history_.evaluations]
    assert 10 < min(values) <= max(values) < 8_000


def test_features_of_layouts():
    bundle = fitted("lightgbm").bundle_
    features = TreeFeatures(bundle.encoder.layout)
    assert features.left_out == ["past"]
    assert features.categories == [0, 1]  # neither the number nor the bins
    assert features.fields.tolist() == [0, 1, 2, 3] + [4] * bundle.encoder.layout.fields[4].rows
    batch, _ = bundle.encoder.transform(table(40)).batch(slice(None))
    x = features.matrix(batch)
    np.testing.assert_array_equal(x, features.of_table(bundle.encoder.transform(table(40))))
    np.testing.assert_array_equal(np.isnan(x[:, 0]), table(40)["user"].is_null().to_numpy())
    wide = FieldLayout(name="tags", kind="bag", role="item", offset=0, rows=MAX_BAG_VALUES + 1)
    with pytest.raises(ConfigError, match="reads categories, numbers and bags of at most 256 val"):
        LightGBM().build(Layout((wide,)))


@pytest.mark.parametrize(("library", "model"), [("lightgbm", LightGBM()), ("catboost", CatBoost())])
def test_an_absent_library_is_one_sentence(monkeypatch, library, model, trained, tmp_path):
    trained.save(tmp_path / "b")
    monkeypatch.setitem(sys.modules, library, None)
    message = (
        rf"the model '{library}' needs {type(model).__name__}, which is not installed: pip install "
        rf"'fieldwise\[{library}\]'"
    )
    schema = dataclasses.replace(SCHEMA, fields=FIELDS[:3])
    with pytest.raises(MissingExtraError, match=message):
        Recommender(schema, model).fit(table())
    if type(trained.model) is type(model):
        with pytest.raises(MissingExtraError, match=message):
            Bundle.load(tmp_path / "b")


def test_what_trees_cannot_do_is_said(subtests, tmp_path):
    schema = dataclasses.replace(SCHEMA, fields=FIELDS[:3])
    two = dataclasses.replace(
        schema, more_labels=(Label("binned", name="other", task="regression"),)
    )
    afm = Recommender(schema, AFM(embedding_dim=4), training=TrainingSettings(epochs=1)).fit(
        table()
    )
    afm.save(tmp_path / "afm")
    cases = [
        ({"schema": two}, "LightGBM learns one label, found 2: remove more_labels"),
        ({"training": TrainingSettings(mean_with_lr=True)}, "has no mean with it"),
        ({"training": TrainingSettings(loss="listwise")}, "is trained by logloss, found training"),
        (
            {"training": TrainingSettings(loss="in_batch_softmax")},
            "is trained by logloss, found training",
        ),
        ({"training": TrainingSettings(monitor="gauc")}, "must be one of logloss, auc, rmse, mae"),
        ({"warm_start": str(tmp_path / "afm")}, "cannot start from another model's weights"),
    ]
    with pytest.raises(ConfigError, match="LightGBM is trained on the CPU, found training"):
        check_tree_settings(LightGBM(), TrainingSettings(device="cuda"), 1)
    grouped = dataclasses.replace(schema, user="user")
    for arguments, message in cases:
        with subtests.test(message=message), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(ConfigError, match=message):
                Recommender(**{"schema": grouped, "model": LightGBM(), **arguments}).fit(table())
    trees = Recommender(schema, LightGBM(max_trees=2)).fit(table())
    with pytest.raises(ConfigError, match="trees cannot learn new values without a new training"):
        trees.bundle_.grow(table().with_columns(pl.lit("new").alias("user")))
    with pytest.raises(ConfigError, match="no trees before it is trained"):
        LightGBM().build(trees.bundle_.encoder.layout).model()
    for setting, value, rule in [
        ("num_leaves", 0, "num_leaves must be a whole number of at least 1"),
        ("feature_fraction", 0.0, "feature_fraction must be above 0 and at most 1"),
        ("learning_rate", -1.0, "learning_rate must be above 0"),
    ]:
        with subtests.test(setting=setting), pytest.raises(ConfigError, match=rule):
            LightGBM(**{setting: value})


def test_settings_of_steps_are_said_not_to_be_read():
    model = Recommender(
        dataclasses.replace(SCHEMA, fields=FIELDS[:3]),
        LightGBM(max_trees=2),
        training=TrainingSettings(epochs=3, batch_size=64),
    )
    with pytest.warns(UserWarning, match=r"does not read training.batch_size, training.epochs: "):
        model.fit(table())


def test_a_vector_is_a_column_per_number_between_other_numbers():
    rows = table(300)
    vectors = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    rows = rows.with_columns(pl.Series("v", vectors, dtype=pl.Array(pl.Float32, 3)))
    other = Numeric("binned", transform="none", role="item")
    fields = (Numeric("x", transform="none"), Vector("v"), Categorical("item"), other)
    bundle = (
        Recommender(Schema(fields=fields, label=Label("y")), LightGBM(max_trees=3))
        .fit(rows)
        .bundle_
    )
    features = bundle.network.features
    assert features.fields.tolist() == [0, 1, 1, 1, 2, 3]
    assert features.categories == [4]
    x = features.of_table(bundle.encoder.transform(rows))
    np.testing.assert_allclose(x[:, 1:4], vectors, rtol=1e-6)
    np.testing.assert_allclose(x[:, 5], rows["binned"].to_numpy(), rtol=1e-6)
    contributions, base = bundle.network.contributions(
        bundle.encoder.transform(rows).batch(slice(None))[0]
    )
    np.testing.assert_allclose(contributions.sum(1) + base, bundle.score(rows), atol=1e-9)


def test_rows_that_catboost_refuses_are_one_sentence():
    pytest.importorskip("catboost")
    rows = table(200).with_columns(item=pl.lit("i1"))
    schema = Schema(fields=(Categorical("item"),), label=Label("y"))
    with pytest.raises(DataError, match="found in these: All features are either constant"):
        Recommender(schema, settings_of("catboost")).fit(rows)


def test_pairs_of_rows_may_weigh_nothing():
    rows = pl.DataFrame({"item": ["a", "a", "b", "b"] * 100, "y": [1, 0, 0, 1] * 100})
    weight = np.where(np.arange(400) < 20, 0.0, 1.0)
    schema = Schema(fields=(Categorical("item"),), label=Label("y"))
    model = Recommender(schema, settings_of("catboost"))
    model.fit(rows, sample_weight=weight, eval_set=rows)
    assert np.isfinite(model.decision_function(rows)).all()


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("monitor", ["logloss", "auc"])
def test_categories_are_learned_from_rows_of_several_trials(name, monitor):
    rng = np.random.default_rng(0)
    of_item = rng.random(60)
    item = rng.integers(0, 60, 800)
    views = rng.integers(5, 50, 800)
    log = pl.DataFrame(
        {
            "item": [f"i{number}" for number in item],
            "views": views,
            "clicks": rng.binomial(views, of_item[item]),
        }
    )
    schema = Schema(
        fields=(Categorical("item", role="item"),), label=Label("clicks", trials="views")
    )
    training = TrainingSettings(monitor=monitor)
    model = Recommender(schema, settings_of(name), training=training).fit(log)
    probability = model.predict_proba(log.select("item"))[:, 1]
    assert np.corrcoef(probability, of_item[item])[0, 1] > 0.9

"""scikit-learn's conventions, checked with scikit-learn's own tools on a small simulated log."""

import dataclasses
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from recipe_text import recipe_text
from sklearn import metrics
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.pipeline import Pipeline

from fieldwise import (
    AFM,
    FM,
    LR,
    AutoInt,
    Bag,
    BundleError,
    Callback,
    Categorical,
    ConfigError,
    DataError,
    IdColumns,
    IntTower,
    Label,
    NegativeSampling,
    Numeric,
    Recommender,
    Schema,
    TrainingError,
    TrainingSettings,
    load_recipe,
    prepare_recipe,
    simulate,
    train_recipe,
)
from fieldwise.config import given
from fieldwise.estimator import recommender as estimator
from fieldwise.training.callbacks import TrainingStep

FIELDS = (
    Categorical("user_id", role="user"),
    Categorical("age_group", role="user"),
    Categorical("item_id", role="item"),
    Bag("genres", role="item"),
    Numeric("length", role="item"),
    Categorical("device"),
)
SCHEMA = Schema(
    fields=FIELDS,
    label=Label("liked"),
    time="timestamp",
    group="user_id",
    keys=("user_id", "item_id"),
)
REGRESSION = Schema(fields=FIELDS, label=Label("true_probability", task="regression", range=(0, 1)))
QUICK = TrainingSettings(epochs=2, batch_size=256, learning_rate=0.01)
LOG = simulate(3000, users=100, items=50)
PAST, FUTURE = LOG[:2400], LOG[2400:]
MODEL = FM(embedding_dim=4)


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    return Recommender(SCHEMA, MODEL, training=QUICK).fit(PAST)


@pytest.fixture(scope="module")
def regressor() -> Recommender:
    training = TrainingSettings(epochs=4, batch_size=128, learning_rate=0.02)
    return Recommender(REGRESSION, MODEL, training=training, valid_share=0.2, seed=3).fit(PAST)


def test_nested_settings_are_shown_and_set() -> None:
    recommender = Recommender(SCHEMA, AFM(), training=QUICK)
    assert recommender.get_params()["model__attention_dim"] == 16
    assert recommender.get_params()["training__epochs"] == 2
    assert (
        recommender.set_params(
            model__attention_dim=8, training__epochs=np.int64(3), seed=np.int64(1)
        )
        is recommender
    )
    assert (recommender.model, recommender.training.epochs, recommender.seed) == (
        AFM(attention_dim=8),
        3,
        1,
    )
    assert type(recommender.seed) is int
    assert QUICK.epochs == 2
    # Whole settings come first, and those of one model change together: neither step alone would be
    # valid.
    recommender.set_params(model__heads=5, model__attention_dim=25, model=AutoInt())
    assert recommender.model == AutoInt(heads=5, attention_dim=25)
    assert recommender.set_params(model=IntTower(), model__hidden=[8, 4]).model.hidden == (8, 4)
    assert recommender.set_params(**recommender.get_params()).model == IntTower(hidden=(8, 4))


def test_a_wrong_parameter_is_named_and_changes_nothing(subtests):
    for change, message in [
        ({"sede": 1}, "did you mean 'seed'"),
        (
            {"model__embeding_dim": 1},
            "model has no setting 'embeding_dim': did you mean 'embedding_dim'",
        ),
        ({"modell__embedding_dim": 1}, "did you mean 'model__embedding_dim'"),
        ({"schema__fields": ()}, "no parameter 'schema__fields'"),
        ({"model__embedding_dim": 0}, "embedding_dim must be .*at least 1, found 0"),
        ({"training__epochs": 2.5}, "training.epochs must be of type int"),
        ({"negatives__per_positive": 2}, "negatives is None"),
    ]:
        with subtests.test(change=change, message=message):
            recommender = Recommender(SCHEMA, MODEL)
            before = recommender.get_params()
            with pytest.raises(ConfigError, match=message):
                recommender.set_params(seed=9, **change)
            assert recommender.get_params() == before


def test_fit_checks_parameters(subtests):
    for params, message in [
        ({"valid_share": 1.0}, "valid_share must lie between"),
        ({"seed": 2**32}, "seed must lie between 0 and 4294967295, found"),
        ({"seed": 1.5}, "seed must be a whole number, found 1.5"),
        ({"valid_by": "luck"}, "valid_by must be"),
        ({"model": "amf"}, "model.name must be a known model, found 'amf': did you mean 'afm'"),
        ({"model": 3}, "not a built-in model"),
        ({"training": None}, "training must be TrainingSettings"),
        ({"negatives": {"per_positive": 2}}, "negatives must be NegativeSampling, or None"),
        ({"schema": 3}, "schema must be a fieldwise Schema, or None to infer one .*, found 3"),
        ({"schema": REGRESSION, "valid_by": "time"}, "needs the schema's time column"),
    ]:
        with (
            subtests.test(params=params, message=message),
            pytest.raises(ConfigError, match=message),
        ):
            Recommender(**{"schema": SCHEMA, **params}).fit(PAST)


def test_predictions_are_one_score_in_three_forms(fitted: Recommender) -> None:
    logit, probability = fitted.decision_function(FUTURE), fitted.predict_proba(FUTURE)
    np.testing.assert_allclose(probability[:, 1], 1 / (1 + np.exp(-logit)), rtol=1e-12)
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-12)
    assert fitted.predict(FUTURE).tolist() == (logit >= 0).astype(int).tolist()
    assert fitted.classes_.tolist() == [0, 1]
    assert fitted.bundle_.about.counts == {
        "dropped_by_label": 0,
        "train_rows": 2160,
        "valid_rows": 240,
    }


def test_labels_beside_the_table_are_as_labels_in_it(fitted: Recommender) -> None:
    y, expected = PAST["liked"], fitted.decision_function(FUTURE)
    without = PAST.drop("liked")
    for labels in (y, y.to_pandas(), y.cast(pl.Boolean).to_list(), y.cast(pl.Float32).to_numpy()):
        np.testing.assert_array_equal(
            clone(fitted).fit(without, labels).decision_function(FUTURE), expected
        )
    assert fitted.score(FUTURE.drop("liked"), FUTURE["liked"]) == fitted.score(FUTURE)


def test_text_labels_and_dropped_rows() -> None:
    answer = pl.Series(["no", "yes"] * 1200).scatter([0, 7], "unknown")
    label = Label("answer", positive_values=("yes",), drop_values=("unknown",))
    schema = Schema(fields=FIELDS, label=label, time="timestamp")
    recommender = Recommender(schema, LR(), training=QUICK).fit(PAST, answer.to_numpy())
    assert recommender.bundle_.about.counts["dropped_by_label"] == 2
    with pytest.warns(UserWarning, match="rows dropped|were trained on") as heard:
        assert recommender.evaluate(PAST, answer)["rows"] == 2398
    said = [str(one.message) for one in heard]
    assert said[0] == "2 rows dropped by the label's rule"
    assert said[1].startswith(
        "2,158 of these 2,398 rows were trained on, so the metrics say little about new rows; "
    )
    assert len(said) == 2
    recommender.score(PAST, answer)  # cross-validation looks at training rows, and knows it
    assert set(recommender.predict(PAST)) <= {"no", "yes"}


def test_a_wrong_table_or_label_is_a_sentence(subtests):
    for X, y, message in [
        (PAST, [0, 1], "one label for each of the table's 2400 rows, found shape"),
        (
            PAST.drop("liked"),
            np.array([{}] * 2400),
            "cell must hold one value|labels of one kind|0 or 1",
        ),
        (PAST.drop("liked"), None, "label's column 'liked' must be in the table"),
        (PAST.drop("genres"), None, "'genres' .* is missing"),
        (PAST.to_numpy(), None, "'user_id' .* is missing among x0, x1"),
        (PAST.drop("liked"), np.ones(2400), "both classes"),
        (PAST[:1], None, "one side empty"),
        (PAST.with_columns(length=pl.Series(["90"] * 2399 + ["long"])), None, "'long' in row 2399"),
    ]:
        with subtests.test(message=message), pytest.raises(DataError, match=message):
            Recommender(SCHEMA, LR(), training=QUICK).fit(X, y)


def test_evaluate_equals_scikit_learn(fitted: Recommender) -> None:
    y, p = FUTURE["liked"].to_numpy(), fitted.predict_proba(FUTURE)[:, 1]
    result = fitted.evaluate(FUTURE)
    assert result["auc"] == pytest.approx(metrics.roc_auc_score(y, p), abs=1e-12)
    assert result["logloss"] == pytest.approx(metrics.log_loss(y, p), abs=1e-9)
    assert result["accuracy"] == metrics.accuracy_score(y, fitted.predict(FUTURE))
    assert fitted.score(FUTURE) == result["auc"]
    assert "gauc" in result
    assert result["rows"] == 600


def test_rows_in_both_parts_are_reported(capsys) -> None:
    twice = pl.concat([PAST, PAST])
    with pytest.warns(
        UserWarning,
        match=r"\d+ of 480 validation rows \([\d.]+ %\) equal a training row in all fields",
    ):
        Recommender(SCHEMA, LR(), training=QUICK).fit(twice)
    # Without a time equal rows may be two events: no warning, but a verbose fit says it.
    bare = Schema(fields=FIELDS, label=Label("liked"))
    model = Recommender(bare, LR(), training=QUICK, verbose=True).fit(twice)
    assert "of 480 validation rows" in capsys.readouterr().err
    assert model.bundle_.about.counts["valid_rows_in_train"] > 300


def test_the_default_model_is_that_of_init() -> None:
    from fieldwise.cli.init import MODEL_TEXT
    from fieldwise.models.serialise import model_name

    assert f'name = "{model_name(Recommender().model)}"' in MODEL_TEXT


def test_regression(regressor: Recommender) -> None:
    wild = Recommender(
        REGRESSION, MODEL, training=TrainingSettings(epochs=2, optimizer="sgd", learning_rate=1e30)
    )
    with pytest.raises((TrainingError, DataError)):
        wild.fit(PAST)
    assert not hasattr(wild, "bundle_")
    assert (is_regressor(regressor), is_classifier(regressor)) == (True, False)
    y, predicted = FUTURE["true_probability"].to_numpy(), regressor.predict(FUTURE)
    assert regressor.score(FUTURE) == pytest.approx(metrics.r2_score(y, predicted), abs=1e-6)
    assert regressor.evaluate(FUTURE)["rmse"] == pytest.approx(
        metrics.root_mean_squared_error(y, predicted), abs=1e-6
    )
    assert regressor.score(FUTURE) > 0.05
    assert ((predicted >= 0) & (predicted <= 1)).all()
    assert not any(
        hasattr(regressor, name) for name in ("predict_proba", "decision_function", "classes_")
    )


def test_validation_rows_choose_the_epoch_and_teach_nothing() -> None:
    strangers = PAST.tail(240).with_columns(user_id=pl.lit("only in validation"))
    by_time = Recommender(SCHEMA, MODEL, training=QUICK, valid_by="time").fit(
        pl.concat([PAST.head(2160), strangers])
    )
    given = clone(by_time).fit(PAST.head(2160), eval_set=strangers)
    for recommender in (by_time, given):
        assert "only in validation" not in recommender.bundle_.encoder.fitted[0].values
    np.testing.assert_array_equal(
        by_time.decision_function(FUTURE), given.decision_function(FUTURE)
    )
    random = clone(by_time).set_params(valid_by="random", valid_share=0.25).fit(PAST)
    rate = random.history_.best.metrics["positive_rate"]
    assert rate == pytest.approx(PAST["liked"].mean(), abs=2 / 600)


def test_implicit_logs_get_negatives() -> None:
    positives = PAST.filter(pl.col("liked") == 1)
    columns = ("title", "genres", "release_decade", "length")
    ask = NegativeSampling(
        user="user_id", item="item_id", item_columns=columns, parts=("train", "valid")
    )
    counts = (
        Recommender(SCHEMA, LR(), training=QUICK, negatives=ask).fit(positives).bundle_.about.counts
    )
    assert counts["negatives_drawn"] == 2 * positives.height
    assert counts["train_rows"] + counts["valid_rows"] == 3 * positives.height


def test_methods_before_fit_raise_not_fitted(subtests):
    for verb in ["predict", "predict_proba", "decision_function", "evaluate", "score", "save"]:
        with subtests.test(verb=verb), pytest.raises(NotFittedError, match="not fitted yet"):
            getattr(Recommender(SCHEMA), verb)(FUTURE)


def _as_given(recommender: Recommender) -> dict[str, Any]:
    """The parameters that do not follow from the rows."""
    params = recommender.get_params(deep=False)
    return {
        name: value for name, value in params.items() if name not in ("model", "training", "schema")
    }


def test_save_and_load(
    fitted: Recommender, regressor: Recommender, mixed: Recommender, tmp_path: Path
) -> None:
    for name, recommender in (("binary", fitted), ("regression", regressor), ("mixed", mixed)):
        recommender.save(tmp_path / name)
        again = Recommender.load(str(tmp_path / name))
        np.testing.assert_array_equal(again.predict(FUTURE), recommender.predict(FUTURE))
        assert _as_given(again) == _as_given(recommender)
        assert again.schema == recommender.bundle_.schema
        # with the numbers that followed from the rows
        assert again.model == recommender.bundle_.settings
        assert given(again.training) >= {"learning_rate", "l2", "monitor"}
        assert again.history_ == recommender.history_
        saved = json.loads((tmp_path / name / "bundle.json").read_text())["about"]["result"]
        assert len(saved["history"]) == len(recommender.history_.evaluations)
        assert "evaluations" not in saved, "they are written once"
        assert again.n_features_in_ == 6
    loaded = Recommender.load(tmp_path / "binary")
    np.testing.assert_array_equal(loaded.predict_proba(FUTURE), fitted.predict_proba(FUTURE))
    with pytest.raises(BundleError, match="no bundle"):
        Recommender.load(tmp_path)
    recipe = load_recipe("simulated/lr", ["data.rows=1000", "training.epochs=1", "seed=3"])
    train_recipe(recipe, prepare_recipe(recipe, tmp_path)).bundle.save(tmp_path / "run")
    loaded = Recommender.load(tmp_path / "run")
    expected = (recipe.schema, recipe.model, recipe.training, 3)
    assert (loaded.schema, loaded.model, loaded.training, loaded.seed) == expected


@pytest.mark.parametrize(
    ("rule", "words", "expected"),
    [
        ('positive_values = ["liked"]', {1: "liked", 0: "skipped"}, ["liked", "skipped"]),
        ("positive_values = [2]", {1: 2, 0: 1}, [1, 2]),
        ('positive_values = ["loved", "liked"]', {1: "liked", 0: "skipped"}, [0, 1]),
    ],
)
def test_a_recipes_bundle_has_the_classes_of_its_label(rule, words, expected, tmp_path) -> None:
    answer = PAST["liked"].replace_strict(words)
    if "loved" in rule:
        answer = answer.scatter(np.flatnonzero(PAST["liked"])[:50].tolist(), "loved")
    PAST.select("user_id", "item_id", click=answer).write_parquet(tmp_path / "log.parquet")
    kinds = [("categorical", "user_id", "user"), ("categorical", "item_id", "item")]
    text = recipe_text(
        tmp_path / "log.parquet", kinds, model={"name": "lr"}, training={"epochs": 1}
    )
    (tmp_path / "r.toml").write_text(text.replace('column = "click"', f'column = "click", {rule}'))
    recipe = load_recipe(tmp_path / "r.toml")
    train_recipe(recipe, prepare_recipe(recipe, tmp_path)).bundle.save(tmp_path / "b")
    loaded = Recommender.load(tmp_path / "b")
    assert loaded.classes_.tolist() == expected
    positive = expected.index("liked" if "liked" in expected else expected[1])
    frame = PAST.select("user_id", "item_id")
    np.testing.assert_allclose(
        loaded.predict_proba(frame)[:, positive], loaded.bundle_.predict(frame)
    )
    assert set(loaded.predict(frame)) <= set(expected)


def test_searches_and_a_pipeline_with_a_schema(fitted: Recommender) -> None:
    """Labels in the table, and two beside it; without a schema in tests/test_scikit_learn.py."""
    sizes = {"training__batch_size": np.array([128, 256])}
    recommender = Recommender(SCHEMA, LR(), training=QUICK)
    search = RandomizedSearchCV(
        recommender, sizes, n_iter=1, cv=2, random_state=0, error_score="raise"
    ).fit(PAST)
    assert search.best_estimator_.training.batch_size in (128, 256)
    two, frame, names = (
        Recommender(TWO_YES, LR(), training=QUICK),
        PAST.to_pandas(),
        ["liked", "length"],
    )
    search = GridSearchCV(two, {"training__epochs": [1]}, cv=2, error_score="raise")
    assert search.fit(frame.drop(columns=names), frame[names]).predict(FUTURE).shape == (600, 2)
    assert search.best_score_ > 0.5
    pipeline = Pipeline(
        [
            ("before", "passthrough"),
            ("recommender", clone(fitted).set_params(model__embedding_dim=2)),
        ]
    )
    pipeline.set_params(recommender__model=fitted.model).fit(PAST)
    np.testing.assert_array_equal(pipeline.predict_proba(FUTURE), fitted.predict_proba(FUTURE))
    assert is_classifier(pipeline)


def test_an_interrupt_keeps_the_best_so_far_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Impatient(Callback):
        def on_step(self, step: TrainingStep) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(estimator, "progress_for", lambda *_, **__: Impatient())
    recommender = Recommender(SCHEMA, MODEL, training=QUICK)
    with pytest.raises(KeyboardInterrupt):
        recommender.fit(PAST)
    assert recommender.history_.stopped == "interrupted"
    recommender.save(tmp_path / "best")
    again = Recommender.load(tmp_path / "best")
    assert again.history_.stopped == "interrupted"
    np.testing.assert_array_equal(again.predict_proba(FUTURE), recommender.predict_proba(FUTURE))


def test_the_quickstart_runs(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "quickstart.py"))
    shown = capsys.readouterr().out
    assert "on the future: AUC 0." in shown
    assert "as saved: True" in shown


# Multi-task

LONG = Label("length", name="long", positive_above=105)
CHANCE = Label("true_probability", task="regression", range=(0, 1), weight=0.5)
OTHER_FIELDS = tuple(f for f in FIELDS if f.name != "length")
TWO_YES = dataclasses.replace(SCHEMA, fields=OTHER_FIELDS, more_labels=(LONG,))
MIXED = dataclasses.replace(SCHEMA, more_labels=(CHANCE,))


@pytest.fixture(scope="module")
def two_yes() -> Recommender:
    return Recommender(TWO_YES, MODEL, training=QUICK).fit(PAST)


@pytest.fixture(scope="module")
def mixed() -> Recommender:
    return Recommender(
        MIXED, MODEL, training=dataclasses.replace(QUICK, monitor="loss", epochs=5)
    ).fit(PAST)


def test_predictions_of_two_binary_labels(two_yes: Recommender) -> None:
    logit = two_yes.decision_function(FUTURE)
    assert logit.shape == (600, 2)
    np.testing.assert_array_equal(
        two_yes.predict(FUTURE), (logit >= 0).astype(np.int64), strict=True
    )
    probabilities = two_yes.predict_proba(FUTURE)
    assert [p.shape for p in probabilities] == [(600, 2), (600, 2)]
    for t, p in enumerate(probabilities):
        np.testing.assert_allclose(p[:, 1], 1 / (1 + np.exp(-logit[:, t])), rtol=1e-12)
        np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    assert [c.tolist() for c in two_yes.classes_] == [[0, 1], [0, 1]]
    assert is_classifier(two_yes)
    assert two_yes.__sklearn_tags__().target_tags.multi_output


def test_metrics_of_several_labels_and_the_main_one_is_the_score(
    two_yes: Recommender, mixed: Recommender
) -> None:
    result, logit = two_yes.evaluate(FUTURE), two_yes.decision_function(FUTURE)
    liked, long = FUTURE["liked"].to_numpy(), FUTURE["length"].to_numpy() > 105
    assert (
        result["auc"]
        == two_yes.score(FUTURE)
        == pytest.approx(metrics.roc_auc_score(liked, logit[:, 0]))
    )
    assert result["long.auc"] == pytest.approx(metrics.roc_auc_score(long, logit[:, 1]))
    assert result["long.auc"] > 0.9  # the item tells
    predicted = mixed.predict(FUTURE)
    assert predicted.dtype == np.float64
    assert set(predicted[:, 0]) <= {0.0, 1.0}
    assert ((predicted[:, 1] >= 0) & (predicted[:, 1] <= 1)).all()
    rmse = metrics.root_mean_squared_error(FUTURE["true_probability"], predicted[:, 1])
    assert mixed.evaluate(FUTURE)["true_probability.rmse"] == pytest.approx(rmse, rel=1e-6)
    assert not any(
        hasattr(mixed, name) for name in ("predict_proba", "decision_function", "classes_")
    )
    assert (mixed.history_.monitor, is_classifier(mixed)) == ("loss", True)


def test_a_regression_may_be_the_main_one_of_several() -> None:
    schema = dataclasses.replace(MIXED, label=CHANCE, more_labels=(Label("liked"),))
    recommender = Recommender(schema, LR(), training=QUICK).fit(PAST)
    assert is_regressor(recommender)
    predicted = recommender.predict(FUTURE)
    expected = metrics.r2_score(FUTURE["true_probability"], predicted[:, 0])
    assert recommender.score(FUTURE) == pytest.approx(expected, abs=1e-6)
    assert {"rmse", "liked.auc", "liked.gauc"} <= recommender.evaluate(FUTURE).keys()


def test_several_labels_beside_the_table(two_yes: Recommender) -> None:
    y, without = PAST.select("length", "liked").to_pandas(), PAST.drop("length", "liked")
    again = clone(two_yes).fit(without, y)
    np.testing.assert_array_equal(
        again.decision_function(FUTURE), two_yes.decision_function(FUTURE)
    )


def test_labels_beside_the_table_that_do_not_fit(subtests):
    for y, message in [
        (
            np.zeros((2400, 2)),
            "with several labels y must be a table with their columns liked, length, or be omitted",
        ),
        (PAST.select("liked"), "with several labels y must be .*, found no 'length' among liked"),
        (FUTURE, "one row for each of the table's 2400 rows, found 600 rows"),
    ]:
        with subtests.test(y=y, message=message), pytest.raises(DataError, match=message):
            Recommender(TWO_YES, LR(), training=QUICK).fit(PAST, y)


def test_recommendations_go_by_the_main_label(two_yes: Recommender) -> None:
    user = str(PAST["user_id"][0])
    top = two_yes.recommend(
        PAST, IdColumns(user="user_id", item="item_id"), user, n=50, exclude_seen=False
    )
    last = PAST.filter(pl.col("user_id") == user)[-1:]
    items = PAST.unique("item_id", keep="first", maintain_order=True)
    rows = items.select("item_id", "genres").join(last.drop("item_id", "genres"), how="cross")
    expected = rows.select("item_id").with_columns(
        score=pl.Series(two_yes.predict_proba(rows)[0][:, 1])
    )
    best = expected.sort(["score", "item_id"], descending=[True, False]).head(50)
    assert top["item_id"].to_list() == best["item_id"].to_list()
    np.testing.assert_allclose(top["prediction"], best["score"])


def test_a_model_by_its_name_has_default_settings_and_a_repr_those_that_were_used() -> None:
    assert Recommender(SCHEMA, "fm").set_params(model__embedding_dim=3).model == FM(embedding_dim=3)
    assert clone(Recommender(SCHEMA, "fm")).model == "fm"
    settings = {"seed": 1, "training": TrainingSettings(epochs=2)}
    fitted, given = (Recommender(SCHEMA, model, **settings).fit(PAST) for model in ("fm", FM()))
    np.testing.assert_array_equal(fitted.predict_proba(PAST), given.predict_proba(PAST))
    for thing in (fitted, fitted.bundle_):
        text = repr(thing)
        assert repr(fitted.bundle_.settings) in text, "also the ones chosen from the data"
        assert "epochs=2" in text
        assert f"label: {SCHEMA.label.name}" in text
        assert all(f.name in text for f in SCHEMA.fields)
        assert len(text) < 1500

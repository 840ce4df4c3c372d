"""scikit-learn's own checks, and its tools around a recommender: with a schema, and with one that is inferred."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import make_classification
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from fieldwise import (
    FM,
    LR,
    Categorical,
    ConfigError,
    DataError,
    Label,
    Numeric,
    Recommender,
    Schema,
    SchemaError,
    TrainingSettings,
    simulate,
)

QUICK = TrainingSettings(epochs=3, batch_size=64, learning_rate=0.02)
LOG = simulate(1200, users=30, items=40).to_pandas()
SCHEMA = Schema(
    fields=(
        Categorical("user_id", role="user"),
        Categorical("device"),
        Numeric("length", role="item"),
    ),
    label=Label("liked"),
)
X, Y = make_classification(600, 6, n_informative=4, random_state=0)

EXPECTED_FAILED_CHECKS = {
    "check_sample_weight_equivalence_on_dense_data": "rows are held out by a random draw, taken in batches: a weight "
    "of 2 is the same as two rows in the loss, but not in which rows are drawn (tests/training/test_weights.py)",
    "check_classifier_data_not_an_array": "compares an array, all of whose columns are numbers, with a frame of the "
    "same cells, whose columns are inferred: whole numbers of few values are categories there",
    "check_supervised_y_2d": "a column for y is refused with a sentence, not ravelled with a warning",
    "check_parameters_default_constructible": "the defaults of model and training are settings, which no check knows; "
    "they are frozen, so that sharing them is safe",
}


CHECKED = Recommender(
    model=FM(embedding_dim=4),
    training=TrainingSettings(learning_rate=0.1, batch_size=64, epochs=8, patience=8),
    valid_share=0.4,
)
QUICK_CHECKS = {
    "check_all_zero_sample_weights_error", "check_classifiers_classes", "check_classifiers_regression_target",
    "check_complex_data",
    "check_dict_unchanged", "check_estimator_cloneable", "check_estimator_sparse_array",
    "check_estimators_empty_data_messages", "check_estimators_overwrite_params", "check_estimators_unfitted",
    "check_fit1d", "check_fit2d_predict1d", "check_get_params_invariance", "check_n_features_in_after_fitting",
    "check_no_attributes_set_in_init", "check_set_params", "check_supervised_y_no_nan", "check_valid_tag_types",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_quick_checks_of_scikit_learn() -> None:
    names = set()
    for recommender, check in estimator_checks_generator(CHECKED, legacy=True):
        name = getattr(check, "func", check).__name__
        if name in QUICK_CHECKS:
            check(recommender)
            names.add(name)

    assert names == QUICK_CHECKS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_scikit_learns_own_checks() -> None:
    result = check_estimator(CHECKED, on_fail=None, on_skip=None)
    failed = {
        one["check_name"]: str(one["exception"]) for one in result if one["status"] == "failed"
    }
    assert failed.keys() == EXPECTED_FAILED_CHECKS.keys(), failed
    assert sum(one["status"] == "passed" for one in result) > 45


@pytest.mark.filterwarnings(
    "ignore:the schema was inferred, and the whole numbers of column .length."
)
def test_the_tools_for_choosing() -> None:
    """Without a schema; with one in tests/test_estimator.py."""
    frame, y = LOG[["user_id", "device", "length"]], LOG["liked"]
    recommender = Recommender(model=LR(), training=QUICK)
    assert is_classifier(recommender)
    own = cross_val_score(recommender, frame, y, cv=2, error_score="raise")
    theirs = cross_val_score(
        clone(recommender), frame, y, cv=2, scoring="roc_auc", error_score="raise"
    )
    np.testing.assert_allclose(own, theirs, rtol=1e-12)
    search = GridSearchCV(recommender, {"training__epochs": [1, 3]}, cv=2, error_score="raise")
    search.fit(frame, y, sample_weight=np.linspace(1, 2, len(y)))
    assert search.best_estimator_.training.epochs == search.best_params_["training__epochs"]
    assert search.predict_proba(frame).shape == (len(y), 2)


@pytest.mark.parametrize(("method", "kind"), [("sigmoid", "pandas"), ("isotonic", "array")])
def test_probabilities_are_calibrated(method: str, kind: str) -> None:
    rows, y, schema = (LOG, LOG["liked"], SCHEMA) if kind == "pandas" else (X, Y, None)
    calibrated = CalibratedClassifierCV(
        Recommender(schema, LR(), training=QUICK), method=method, cv=2
    ).fit(rows, y)
    p = calibrated.predict_proba(rows)[:, 1]
    assert abs(p.mean() - y.mean()) < 0.05
    assert roc_auc_score(y, p) > 0.6
    assert calibrated.classes_.tolist() == [0, 1]


def test_partial_dependence() -> None:
    fitted = Recommender(SCHEMA, FM(embedding_dim=4), training=QUICK).fit(LOG)
    rows = LOG[["user_id", "device", "length"]].head(8)
    result = partial_dependence(
        fitted, rows, ["device"], categorical_features=["device"], kind="average"
    )
    devices = result["grid_values"][0]
    by_hand = [fitted.predict_proba(rows.assign(device=device))[:, 1].mean() for device in devices]
    np.testing.assert_allclose(result["average"][0], by_hand, rtol=1e-6)
    numbers = Recommender(model=FM(embedding_dim=4), training=QUICK).fit(X, Y)
    average = partial_dependence(numbers, X[:8], [1], grid_resolution=3)
    moved = X[:8].copy()
    moved[:, 1] = average["grid_values"][0][2]
    assert average["average"][0][2] == pytest.approx(
        numbers.predict_proba(moved)[:, 1].mean(), rel=1e-6
    )


def test_pipelines_and_importances() -> None:
    pipeline = make_pipeline(StandardScaler(), Recommender(model=LR(), training=QUICK)).fit(X, Y)
    assert pipeline.score(X, Y) == pytest.approx(
        roc_auc_score(Y, pipeline.decision_function(X)), abs=1e-12
    )
    named = make_pipeline(
        StandardScaler().set_output(transform="polars"), Recommender(model=LR(), training=QUICK)
    )
    frame = pd.DataFrame(X, columns=[f"height{k}" for k in range(6)])
    assert named.fit(frame, Y).predict(frame).shape == (600,)
    result = permutation_importance(pipeline, X, Y, n_repeats=2, random_state=0)
    assert result.importances_mean.max() > 0.01


# Classes


@pytest.mark.parametrize(
    ("negative", "positive"),
    [
        ("no", "yes"),
        ("skip", "click"),
        (False, True),
        (0, 1),
        (1, 0),
        (-1, 1),
        ("0", "1"),
        (1.0, 2.0),
    ],
)
def test_classes_are_the_labels_own_values(negative: Any, positive: Any, tmp_path: Any) -> None:
    liked = LOG["liked"].to_numpy() == 1
    y = np.where(liked, positive, negative)
    schema = dataclasses.replace(SCHEMA, label=Label("answer", positive_values=(positive,)))
    rows = LOG[["user_id", "device", "length"]]
    recommender = Recommender(schema, LR(), training=QUICK)
    fitted = clone(recommender).fit(rows, y)
    plain = Recommender(SCHEMA, LR(), training=QUICK).fit(LOG)

    np.testing.assert_array_equal(fitted.classes_, np.unique(y), strict=True)
    probability = plain.predict_proba(LOG)[:, 1]
    assert fitted.predict_proba(rows)[:, fitted.classes_.tolist().index(positive)] == pytest.approx(
        probability
    )
    predicted = fitted.predict(rows)
    assert predicted.tolist() == [positive if p >= 0.5 else negative for p in probability]
    assert accuracy_score(y, predicted) == accuracy_score(liked, probability >= 0.5)
    logit = fitted.decision_function(rows)
    np.testing.assert_array_equal(predicted, fitted.classes_[(logit >= 0).astype(int)])
    assert fitted.score(rows, y) == pytest.approx(roc_auc_score(liked, probability))
    fitted.save(tmp_path / "b")
    np.testing.assert_array_equal(
        Recommender.load(tmp_path / "b").predict(rows), predicted, strict=True
    )


@pytest.mark.parametrize(("negative", "positive"), [("no", "yes"), ("skip", "click")])
def test_scorers_of_scikit_learn_take_text_labels(negative: str, positive: str) -> None:
    y = LOG["liked"].map({0: negative, 1: positive}).astype(object)
    schema = dataclasses.replace(SCHEMA, label=Label("answer", positive_values=(positive,)))
    own, numbers = (Recommender(one, LR(), training=QUICK) for one in (schema, SCHEMA))
    scoring = ("accuracy", "roc_auc", "neg_log_loss")
    rows = LOG[["user_id", "device", "length"]]
    result = cross_validate(own, rows, y, cv=2, scoring=scoring, error_score="raise")
    expected = cross_validate(
        numbers, rows, LOG["liked"], cv=2, scoring=scoring, error_score="raise"
    )
    for name in scoring:
        np.testing.assert_allclose(result[f"test_{name}"], expected[f"test_{name}"], atol=1e-6)
    accuracy = cross_val_score(own, rows, y, cv=2, scoring="accuracy", error_score="raise")
    np.testing.assert_allclose(accuracy, result["test_accuracy"])


def test_classes_of_several_values_are_0_and_1() -> None:
    words = np.where(LOG["liked"] == 1, np.where(LOG["length"] > 100, "like", "superlike"), "pass")
    schema = dataclasses.replace(
        SCHEMA, label=Label("answer", positive_values=("like", "superlike"))
    )
    fitted = Recommender(schema, LR(), training=QUICK).fit(LOG, words)
    assert fitted.classes_.tolist() == [0, 1]
    assert set(fitted.predict(LOG)) == {0, 1}
    both = dataclasses.replace(
        SCHEMA, label=Label("answer", positive_values=("yes",)), more_labels=(Label("liked"),)
    )
    answers = LOG.assign(answer=np.where(LOG["liked"] == 1, "yes", "no"))
    fitted = Recommender(both, LR(), training=QUICK).fit(answers)
    assert [classes.tolist() for classes in fitted.classes_] == [["no", "yes"], [0, 1]]
    predicted = fitted.predict(answers)
    assert set(predicted[:, 0]) == {"no", "yes"}
    assert set(predicted[:, 1]) == {0, 1}


def test_labels_of_the_table_and_of_y_must_agree() -> None:
    wrong = LOG["liked"].copy()
    wrong[[3, 9]] = 1 - wrong[[3, 9]]
    fitted = Recommender(SCHEMA, LR(), training=QUICK).fit(LOG, LOG["liked"].astype(bool))
    message = (
        rf"must agree, found {wrong[3]} in y and {LOG['liked'][3]} in X in row 3 "
        r".*2 such rows of 1,200: leave out"
    )
    for method in (fitted.fit, fitted.evaluate, fitted.score):
        with pytest.raises(DataError, match=message):
            method(LOG, wrong)
    on_tv = Label("device", positive_values=("tv",))
    rated = dataclasses.replace(SCHEMA, fields=SCHEMA.fields[:1], more_labels=(on_tv,))
    with pytest.raises(DataError, match="column 'device' of X must agree"):
        Recommender(rated, LR(), training=QUICK).fit(
            LOG, LOG[["liked", "device"]].assign(device="tv")
        )


# Without a schema


def test_a_numpy_integer_is_a_seed(tmp_path: Any) -> None:
    """As searches and random generators give them; the bundle keeps a plain number."""
    of_numpy = Recommender(SCHEMA, LR(), training=QUICK, seed=np.int64(3)).fit(LOG)
    plain = Recommender(SCHEMA, LR(), training=QUICK, seed=3).fit(LOG)
    assert (of_numpy.predict_proba(LOG) == plain.predict_proba(LOG)).all()
    of_numpy.save(tmp_path / "bundle")
    assert Recommender.load(tmp_path / "bundle").seed == 3


def test_a_schema_is_inferred_and_kept(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    frame = LOG.drop(columns="true_probability")
    with pytest.raises(ValueError, match="needs the schema's time column"):
        Recommender(model=LR(), training=QUICK, valid_by="time").fit(X, Y)
    fitted = Recommender(model=LR(), training=QUICK, verbose=True, valid_by="time").fit(frame)
    assert fitted.schema is None
    assert fitted.schema_.label == Label("liked")
    assert {"user_id", "item_id", "device"} <= {f.name for f in fitted.schema_.fields}
    assert (fitted.schema_.time, fitted.schema_.user) == ("timestamp", "user_id")
    assert fitted.inference_.notes["user_id"] in capsys.readouterr().err
    beside = Recommender(model=LR(), training=QUICK, valid_by="time").fit(
        frame.drop(columns="liked"), frame["liked"]
    )
    np.testing.assert_array_equal(beside.decision_function(frame), fitted.decision_function(frame))
    fitted.save(tmp_path / "b")
    again = Recommender.load(tmp_path / "b")
    assert again.schema == fitted.schema_
    np.testing.assert_array_equal(again.predict_proba(frame), fitted.predict_proba(frame))
    assert clone(fitted).schema is None
    with pytest.warns(UserWarning, match="the schema was inferred, and it is unknown which of"):
        Recommender(model=LR(), training=QUICK).fit(
            frame, np.where(frame["liked"] == 1, "heads", "tails")
        )


def test_columns_of_arrays_have_numbers_for_names(tmp_path: Any) -> None:
    fitted = Recommender(model=LR(), training=QUICK).fit(X, Y)
    assert [f.name for f in fitted.schema_.fields] == ["x0", "x1", "x2", "x3", "x4", "x5"]
    assert {type(f) for f in fitted.schema_.fields} == {Numeric}
    assert not hasattr(fitted, "feature_names_in_")
    table = pl.DataFrame(X, schema=[f"x{k}" for k in range(6)])
    np.testing.assert_array_equal(fitted.decision_function(table), fitted.decision_function(X))
    np.testing.assert_array_equal(fitted.decision_function(X.tolist()), fitted.decision_function(X))
    fitted.save(tmp_path / "b")
    np.testing.assert_array_equal(Recommender.load(tmp_path / "b").predict(X), fitted.predict(X))
    refitted = fitted.fit(pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}), Y)
    assert refitted.feature_names_in_.tolist() == ["a", "b"]
    some = Schema(fields=(Numeric("x1"), Numeric("x4")), label=Label("y"))
    chosen = Recommender(some, LR(), training=QUICK).fit(X, Y)
    assert chosen.predict(X).shape == (600,)
    assert chosen.n_features_in_ == 2
    words = np.array(
        [["red", "small"], ["blue", "large"], ["blue", "small"], ["red", "large"]] * 50,
        dtype=object,
    )
    of_words = Recommender(model=LR(), training=QUICK).fit(words, Y[:200])
    assert [f.kind for f in of_words.schema_.fields] == ["categorical", "categorical"]


def test_rows_without_an_inferable_label_are_errors(subtests):
    for rows, y, kind, message in [
        (X, None, DataError, "an array has no label: Recommender requires y to be passed"),
        (
            X,
            X[:, 0],
            DataError,
            "Only binary classification is supported without a label's rule, found continuous labels",
        ),
        (X, np.arange(600) % 3, DataError, "found multiclass labels of 3 values in 'y'"),
        (
            LOG[["device", "user_id"]],
            LOG["length"] / 7,
            DataError,
            "labels of .* values in 'length'",
        ),
        (LOG[["device", "user_id"]], None, SchemaError, "no column looks like a label"),
        (X[0], Y, DataError, "Expected 2D array"),
        ([[1, 2], [3]], [0, 1], DataError, "rows of equal length"),
        (X, np.ones(600), (DataError, SchemaError), "two values|binary"),
    ]:
        with subtests.test(message=message), pytest.raises(kind, match=message):
            Recommender(model=LR(), training=QUICK).fit(rows, y)


def test_arrays_of_another_width_are_refused() -> None:
    fitted = Recommender(model=LR(), training=QUICK).fit(X, Y)
    for wrong in (X[:, :2], np.c_[X, X]):
        with pytest.raises(
            DataError, match=f"X has {wrong.shape[1]} features, but Recommender is expecting 6"
        ):
            fitted.predict(wrong)
    named = Recommender(SCHEMA, LR(), training=QUICK).fit(LOG)
    with pytest.raises(
        DataError,
        match=r"an array \[N, 3\] has no names; .*columns=\['user_id', 'device', 'length'\]",
    ):
        named.predict(LOG[["user_id", "device", "length"]].to_numpy())


def test_a_later_schema_counts() -> None:
    fitted = Recommender(model=LR(), training=QUICK).fit(X, Y)
    rated = dataclasses.replace(
        SCHEMA, label=Label("length", task="regression"), fields=SCHEMA.fields[:2]
    )
    fitted.set_params(schema=rated)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fitted.fit(LOG).predict(LOG).dtype == np.float64
    assert not is_classifier(fitted)


def text_rows(words=("no", "yes")):
    """A table with a text label that its user and device explain."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"user": rng.integers(0, 8, 600), "device": rng.integers(0, 3, 600)})
    classes = (frame.user + frame.device) % len(words)
    return frame, np.array(words)[classes]


TEXT_SCHEMA = Schema(
    fields=(Categorical("user", role="user"), Categorical("device")), label=Label("bought")
)
TEXT_TRAINING = TrainingSettings(epochs=20, batch_size=32, learning_rate=0.05)


def test_text_labels_need_no_rule_in_the_schema():
    frame, y = text_rows()
    given = Recommender(TEXT_SCHEMA, FM(embedding_dim=8), training=TEXT_TRAINING).fit(frame, y)
    assert given.schema_.label == Label("bought", positive_values=("yes",))
    assert given.classes_.tolist() == ["no", "yes"]
    rule = dataclasses.replace(TEXT_SCHEMA, label=given.schema_.label)
    ruled = clone(given).set_params(schema=rule).fit(frame.assign(bought=y))
    np.testing.assert_array_equal(given.predict_proba(frame), ruled.predict_proba(frame))
    assert accuracy_score(y, given.predict(frame)) > 0.9
    assert given.score(frame, y) == roc_auc_score(y == "yes", given.predict_proba(frame)[:, 1])
    table = clone(given).fit(
        pl.from_pandas(frame).with_columns(bought=pl.Series(y).cast(pl.Categorical))
    )
    np.testing.assert_array_equal(given.predict(frame), table.predict(frame))


def test_which_of_two_unknown_words_is_positive_is_a_warning():
    frame, y = text_rows(("cat", "dog"))
    y[:40] = "dog"
    model = Recommender(TEXT_SCHEMA, FM(embedding_dim=8), training=TEXT_TRAINING)
    with pytest.warns(UserWarning, match="unknown which of 'cat' and 'dog' in column 'bought'"):
        model.fit(frame, y)
    assert model.schema_.label.positive_values == ("cat",)
    assert accuracy_score(y, model.predict(frame)) > 0.85


def test_several_classes_are_one_sentence_that_says_what_to_do(subtests):
    """Which works: a recommender for each class."""
    frame, y = text_rows(("bus", "car", "train"))
    numbers = np.unique(y, return_inverse=True)[1]
    for schema, labels in [
        (TEXT_SCHEMA, y),
        (None, y),
        (TEXT_SCHEMA, numbers),
        (TEXT_SCHEMA, numbers + 5),
    ]:
        with (
            subtests.test(schema=schema, labels=labels[:3]),
            pytest.raises(
                DataError,
                match=r"found multiclass labels of 3 values in '\w+': give a Schema .*OneVsRestClassifier",
            ),
        ):
            Recommender(schema, FM()).fit(frame, labels)
    stray = np.where(np.arange(600) == 3, 7, numbers > 0)
    with pytest.raises(DataError, match="must be 0 or 1: column 'bought' holds 7 in row 3"):
        Recommender(TEXT_SCHEMA, FM()).fit(frame, stray)
    model = Recommender(TEXT_SCHEMA, FM(embedding_dim=8), training=TEXT_TRAINING)
    of_each = OneVsRestClassifier(model).fit(frame, y)
    assert of_each.classes_.tolist() == ["bus", "car", "train"]
    assert of_each.score(frame, y) > 0.8


def test_an_evaluation_set_is_given_as_in_other_libraries(subtests):
    frame, y = text_rows()
    weights = np.linspace(0.5, 2, 200)
    train, train_y = frame[:400], y[:400]
    model = Recommender(TEXT_SCHEMA, FM(embedding_dim=8), training=TEXT_TRAINING)

    def history(eval_set):
        fitted = clone(model).fit(train, train_y, eval_set=eval_set)
        metrics = [evaluation.metrics for evaluation in fitted.history_.evaluations]
        return metrics, fitted.predict_proba(frame)

    evaluations, expected = history(frame[400:].assign(bought=y[400:]))
    for eval_set in [(frame[400:], y[400:]), [(frame[400:], y[400:])]]:
        with subtests.test(kind=type(eval_set).__name__):
            same, probabilities = history(eval_set)
            assert same == evaluations
            np.testing.assert_array_equal(probabilities, expected)
    weighted, _ = history((frame[400:], y[400:], weights))
    repeated, _ = history((pd.concat([frame[400:]] * 2), np.tile(y[400:], 2), np.tile(weights, 2)))
    rate = np.average(y[400:] == "yes", weights=weights)
    assert weighted[0]["positive_rate"] == pytest.approx(rate)
    assert weighted[0]["auc"] == pytest.approx(repeated[0]["auc"])
    assert weighted[0]["auc"] != evaluations[0]["auc"]
    for wrong, found in [
        ([], "found 0 of"),
        ([(frame, y), (frame, y)], r"found 2 of \[2, 2\] parts"),
        ((frame,), r"found 1 of \[1\] parts"),
    ]:
        with subtests.test(found=found), pytest.raises(ConfigError, match=found):
            model.fit(train, train_y, eval_set=wrong)


def test_a_model_in_the_place_of_the_schema_is_a_sentence():
    with pytest.raises(ConfigError, match=r"\(a model is given as model=\), found FM\("):
        Recommender(FM()).fit(LOG)

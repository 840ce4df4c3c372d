"""A bundle that keeps a calibration: what it changes, what it leaves, and what older versions make of it."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest
from test_bundle import SCHEMA, log, make, rewrite

from fieldwise import FM, Bundle, BundleError, IdColumns, Label, Recommender, TrainingSettings
from fieldwise.bundle.bundle import bundle_origin
from fieldwise.bundle.calibrate import calibrate, without_calibration
from fieldwise.bundle.export import export_bundle
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.calibration import Isotonic, Platt
from fieldwise.explain import explain
from fieldwise.scoring.recommend import recommend
from fieldwise.serving.service import Service

PLATT = Platt(slope=0.5, intercept=-1.0)
STEPS = Isotonic(at=(-2.0, -1.0, 1.0, 2.0), probability=(0.1, 0.3, 0.3, 0.8))
TWO = dataclasses.replace(
    SCHEMA, more_labels=(Label("buy"), Label("minutes", task="regression", range=(0, 3)))
)


def calibrated(one=PLATT, schema=SCHEMA, label="click"):
    return dataclasses.replace(make(schema=schema), calibration={label: one})


@pytest.mark.parametrize("one", [PLATT, STEPS], ids=["platt", "isotonic"])
def test_probabilities_change_and_scores_do_not(one, tmp_path):
    plain, kept = make(), calibrated(one)
    kept.save(tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b")
    rows = log(60, seed=3)
    assert loaded.calibration == {"click": one}
    np.testing.assert_array_equal(loaded.score(rows), plain.score(rows))
    if one is PLATT:
        expected = 1 / (1 + np.exp(-(0.5 * plain.score(rows) - 1)))
    else:
        expected = np.interp(plain.score(rows), STEPS.at, STEPS.probability)
    for bundle in (kept, loaded):
        np.testing.assert_allclose(bundle.predict(rows), expected, rtol=1e-9)
        np.testing.assert_allclose(bundle.main_prediction(bundle.score(rows)), expected, rtol=1e-9)
        np.testing.assert_allclose(
            sigmoid(bundle.calibrated(bundle.score(rows))), expected, rtol=1e-9
        )
        assert bundle.digest == plain.digest, "an index that the bundle made stays its own"


def test_a_calibration_is_fitted_to_the_first_rows_and_measured_on_all():
    """The oracle is scikit-learn's regression on the scores, of targets that Platt (1999) keeps off 0 and 1."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    bundle, rng = make(), np.random.default_rng(0)
    rows = {
        name: frame.with_columns(click=rng.random(frame.height) < bundle.predict(frame))
        for name, frame in (("early", log(300, seed=5)), ("late", log(200, seed=6)))
    }
    notes = []
    fitted = calibrate(bundle, rows, "platt", notes.append)
    score, y = bundle.score(rows["early"]), rows["early"]["click"].to_numpy()
    target = np.where(y, (y.sum() + 1) / (y.sum() + 2), 1 / ((~y).sum() + 2))
    regression = linear_model.LogisticRegression(C=np.inf, tol=1e-9).fit(
        np.tile(score, 2)[:, None], np.repeat([1, 0], 300), np.concatenate([target, 1 - target])
    )
    assert fitted.calibration["click"].slope == pytest.approx(regression.coef_[0, 0], rel=1e-3)
    assert notes == []
    facts = fitted.about.calibration
    assert (facts.fitted_on, facts.rows, list(facts.figures)) == ("early", 300, [*rows])
    again = calibrate(fitted, rows, "isotonic")
    assert again.about.calibration.method == "isotonic"
    plain = without_calibration(again)
    assert (plain.calibration, plain.about) == ({}, bundle.about)


def test_each_binary_label_has_its_own(tmp_path):
    bundle = calibrated(schema=TWO, label="buy")
    bundle.save(tmp_path / "b")
    loaded, plain = Bundle.load(tmp_path / "b"), make(schema=TWO)
    result, before, score = loaded.predict(log()), plain.predict(log()), plain.score(log())
    np.testing.assert_allclose(result[:, [0, 2]], before[:, [0, 2]])
    np.testing.assert_allclose(result[:, 1], sigmoid(0.5 * score[:, 1] - 1))
    np.testing.assert_allclose(loaded.calibrated(score)[:, 2], score[:, 2])
    np.testing.assert_allclose(loaded.main_prediction(score[:, 0]), before[:, 0])
    with pytest.raises(BundleError, match="binary label, found 'minutes'"):
        calibrated(schema=TWO, label="minutes")
    with pytest.raises(BundleError, match="found 'clik': did you mean 'click'"):
        calibrated(label="clik")


def test_a_manifest_with_a_calibration_that_is_none(subtests, tmp_path):
    for change, words in [
        (lambda m: m["calibration"]["click"].update(slope=-1.0), "slope above 0"),
        (lambda m: m["calibration"]["click"].update(slope="steep"), "slope must be of type float"),
        (lambda m: m["calibration"]["click"].update(kind="spline"), "isotonic, platt"),
        (lambda m: m["calibration"].update(other=m["calibration"]["click"]), "found 'other'"),
        (lambda m: m.update(calibration=7), "must be a table of settings"),
    ]:
        with subtests.test(change=change, words=words):
            calibrated().save(tmp_path / "b", overwrite=True)
            rewrite(tmp_path / "b", change)
            with pytest.raises(BundleError, match=words) as caught:
                Bundle.load(tmp_path / "b")
            assert "\n" not in str(caught.value)


def test_explanations_and_servers_say_the_calibrated_probability_and_a_compiled_network_would_lose_it(
    tmp_path,
):
    explained = explain(calibrated(), log(5), background=log())
    served = Service(calibrated()).predict(log(5).to_dicts())
    for rows in (served, [explained.row(k) for k in range(5)]):
        assert [row["prediction"] for row in rows] == pytest.approx(
            calibrated().predict(log(5)).tolist()
        )
        assert [row["score"] for row in rows] == pytest.approx(
            make().score(log(5)).tolist(), rel=1e-6
        )
    with pytest.raises(BundleError, match="evaluate BUNDLE --calibrate none --out COPY"):
        export_bundle(calibrated(), tmp_path / "out", "aoti")


def test_items_of_one_probability_are_recommended_by_score():
    """A level map makes every probability equal; the order of the scores stays."""
    level = Isotonic(at=(0.0,), probability=(0.25,))
    rows = log(40).with_columns(item=pl.Series([f"i{k:02}" for k in range(40)]))
    catalogue = IdColumns(user="user", item="item")
    user = rows["user"][0]
    bundles = calibrated(level), make()
    result, plain = (
        recommend(bundle, rows, catalogue, user, n=40, exclude_seen=False) for bundle in bundles
    )
    assert result["item"].to_list() == plain["item"].to_list()
    assert set(result["prediction"].to_list()) == {0.25}


@pytest.mark.filterwarnings("ignore:.* were trained on")
def test_the_estimator_speaks_in_calibrated_probabilities(tmp_path):
    table = log(300).with_columns(click=pl.Series(np.random.default_rng(0).integers(0, 2, 300)))
    model = Recommender(
        SCHEMA, FM(embedding_dim=4), training=TrainingSettings(epochs=1), seed=0
    ).fit(table)
    before = model.decision_function(table)
    dataclasses.replace(model.bundle_, calibration={"click": PLATT}).save(tmp_path / "b")
    loaded = Recommender.load(tmp_path / "b")
    np.testing.assert_allclose(loaded.decision_function(table), before)
    p = sigmoid(0.5 * before - 1)
    np.testing.assert_allclose(loaded.predict_proba(table), np.stack([1 - p, p], axis=1))
    np.testing.assert_array_equal(loaded.predict(table), (p >= 0.5).astype(int))
    y = table["click"].to_numpy()
    expected = -np.mean(np.where(y == 1, np.log(p), np.log(1 - p)))
    assert loaded.evaluate(table)["logloss"] == pytest.approx(expected)
    assert loaded.evaluate(table)["auc"] == model.evaluate(table)["auc"]
    loaded.save(tmp_path / "again")
    assert Bundle.load(tmp_path / "again").calibration == {"click": PLATT}


def test_when_and_by_what_a_bundle_was_saved(tmp_path):
    make().save(tmp_path / "b")
    result = bundle_origin(tmp_path / "b")
    assert result["created"] == json.loads((tmp_path / "b" / "bundle.json").read_text())["created"]
    assert set(result["versions"]) == {"fieldwise", "torch", "polars", "numpy", "python"}
    with pytest.raises(BundleError, match="is not a bundle"):
        bundle_origin(tmp_path)

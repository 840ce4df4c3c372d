"""`fieldwise evaluate --calibrate`: fitted on validation rows, kept, shown on test rows, and taken out again."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
from cli.conftest import make_log
from cli.test_bad_input import refused

from fieldwise import Bundle, Recipe, prepare_recipe
from fieldwise.cli import run
from fieldwise.config import to_plain
from fieldwise.evaluation import logloss_from_logits
from fieldwise.evaluation.calibration import fit_isotonic, fit_platt


@pytest.fixture
def own(trained, tmp_path):
    """A copy of the bundle, to be written over."""
    shutil.copytree(trained, tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture(scope="module")
def trained(bundle, tmp_path_factory):
    """A bundle whose scores rise with the rate of positives: the mean with LR hardly varies on 80 rows."""
    folder = tmp_path_factory.mktemp("rising")
    words = "--set", "training.mean_with_lr=false", "--out", str(folder / "b"), "--quiet", "--json"
    assert run(["train", str(bundle.parent / "mine.toml"), *words]) == 0
    return folder / "b"


def parts(bundle):
    saved = Bundle.load(bundle).about.recipe
    return prepare_recipe(Recipe.from_dict(saved.settings, saved.name), bundle)


def test_scores_of_a_loss_that_ranks_are_said_to_be_none_until_they_are_calibrated(
    bundle, tmp_path, done
):
    words = "--set", "training.loss=listwise", "--set", "schema.user=user"
    out = tmp_path / "b"
    done("train", bundle.parent / "mine.toml", *words, "--out", out, "--quiet", "--json")
    label = Bundle.load(out).schema.label
    said = done("evaluate", out)[1]
    assert (
        "CHECK: a prediction is the listwise score by which “click” ranks rows of a group" in said
    )
    assert "add --calibrate platt for probabilities" in said
    assert "listwise score" in Bundle.load(out).meaning(label)
    done("evaluate", out, "--calibrate", "platt")
    assert "CHECK" not in done("evaluate", out)[1]
    assert Bundle.load(out).meaning(label) == label.meaning


@pytest.mark.parametrize(("method", "fit"), [("platt", fit_platt), ("isotonic", fit_isotonic)])
def test_it_is_fitted_on_validation_rows_alone(done, own, method, fit):
    plain, rows = Bundle.load(own), parts(own)
    out = done("evaluate", own, "--calibrate", method, "--json")[0]
    expected = fit(rows.valid.main, plain.score(rows.valid.frame))
    kept = Bundle.load(own)
    assert kept.calibration == {"click": expected}
    record = to_plain(kept.about.calibration)
    assert {k: v for k, v in record.items() if k != "figures"} == {
        "method": method,
        "fitted_on": "validation rows",
        "rows": 80,
    }
    score = plain.score(rows.test.frame)
    np.testing.assert_allclose(
        kept.predict(rows.test.frame), 1 / (1 + np.exp(-expected.logit(score)))
    )
    shown = record["figures"]["test rows"]["click"]
    assert json.loads(out)["figures"]["test rows"]["click"] == shown
    assert shown["before"]["logloss"] == pytest.approx(logloss_from_logits(rows.test.main, score))
    assert shown["after"]["logloss"] == pytest.approx(
        logloss_from_logits(rows.test.main, expected.logit(score))
    )


def test_every_command_speaks_in_calibrated_probabilities(fieldwise, done, own, log, tmp_path):
    log.write_csv(tmp_path / "rows.csv")
    done("evaluate", own, "--calibrate", "platt")
    bundle = Bundle.load(own)
    expected = bundle.calibration["click"].logit(bundle.score(log))
    done("predict", own, "--data", "rows.csv", "--out", "scores.csv")
    np.testing.assert_allclose(
        pl.read_csv("scores.csv")["prediction"].to_numpy(), 1 / (1 + np.exp(-expected))
    )
    out, err = done("evaluate", own, "--data", "rows.csv", "--json")
    assert "measured with the bundle's calibration (platt)" in err
    assert json.loads(out)["metrics"]["logloss"] == pytest.approx(
        logloss_from_logits(log["click"], expected)
    )
    _, out, _ = fieldwise("explain", own, "--data", "rows.csv", "--row", 5, "--json")
    assert json.loads(out)["prediction"] == pytest.approx(1 / (1 + np.exp(-expected[5])))
    refused(fieldwise("export", own, "--out", "x", "--to", "aoti"), "--calibrate none --out COPY")


def test_a_copy_and_the_way_back(done, own):
    before = (own / "bundle.json").read_bytes()
    out = done("evaluate", own, "--calibrate", "isotonic", "--out", "copy")[0]
    assert "validation rows" in out
    assert "test rows" in out
    assert "copy now predicts with this calibration (isotonic)" in out
    assert (own / "bundle.json").read_bytes() == before
    out, err = done("evaluate", "copy", "--calibrate", "none", "--json")
    assert json.loads(out) == {"bundle": "copy", "method": "none"}
    assert "copy has no calibration" in err
    back = Bundle.load("copy")
    assert back.calibration == {}
    assert back.about.calibration is None
    np.testing.assert_array_equal(back.predict(make_log()), Bundle.load(own).predict(make_log()))


def test_what_is_refused(fieldwise, own, tmp_path):
    calibrate = "evaluate", own, "--calibrate"
    refused(
        fieldwise(*calibrate, "plat"),
        "one of platt, isotonic, none, found 'plat'",
        "did you mean 'platt'",
    )
    refused(fieldwise(*calibrate, "platt", "--read", "separator=;"), "--data, which is not given")
    refused(fieldwise(*calibrate, "none", "--data", "rows.csv"), "fits nothing", "omit --data")
    for given in (("--k", 3), ("--users", 3), ("--candidates", "all"), ("--keep-seen",)):
        sentence = (
            f"{given[0]} is an option of --ranking, without effect on --calibrate: omit {given[0]}"
        )
        refused(fieldwise(*calibrate, "platt", *given), sentence)
    refused(fieldwise("evaluate", "nothing", "--calibrate", "platt"), "nothing is not a bundle")
    make_log(50).with_columns(click=1).write_csv(tmp_path / "ones.csv")
    refused(
        fieldwise(*calibrate, "platt", "--data", "ones.csv"),
        "'click', ones.csv",
        "all 50 rows have label 1",
    )
    make_log(50).head(0).write_csv(tmp_path / "none.csv")
    refused(fieldwise(*calibrate, "platt", "--data", "none.csv"), "none.csv has none")
    one = pl.concat([make_log(1)] * 40).with_columns(click=pl.Series(np.arange(40) % 2))
    one.write_csv(tmp_path / "same.csv")
    refused(
        fieldwise(*calibrate, "isotonic", "--data", "same.csv"),
        "scores that differ, but all 40 rows have",
    )
    turned = make_log().with_columns(click=1 - pl.col("click"))
    turned.write_csv(tmp_path / "turned.csv")
    refused(
        fieldwise(*calibrate, "platt", "--data", "turned.csv"),
        "increase with the label, found a slope of -",
    )
    assert Bundle.load(own).calibration == {}, "nothing of all this was kept"


def test_a_number_has_no_probability(fieldwise, done, recipe):
    text = recipe.read_text().replace(
        'label = { column = "click" }', 'label = { column = "click", task = "regression" }'
    )
    recipe.write_text(text)
    done("train", recipe, "--out", "b", "--quiet", "--json")
    refused(fieldwise("evaluate", "b", "--calibrate", "platt"), "b predicts a number")
    predict = "predict", "b", "--data", "log.csv", "--out", "o.csv", "--logit"
    refused(
        fieldwise(*predict),
        "fieldwise: --logit is for probabilities, but the label 'click' is a number",
    )

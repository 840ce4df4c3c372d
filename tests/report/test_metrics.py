"""The report's figures, calibration and words against scikit-learn, functions that it says it takes, and counts."""

import re

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    log_loss,
    roc_auc_score,
    roc_curve,
)

from fieldwise import Label
from fieldwise.display import Table
from fieldwise.evaluation import binary_metrics, logloss_from_logits, sigmoid
from fieldwise.evaluation.bootstrap import estimate, resampled
from fieldwise.evaluation.calibration import Platt, calibration_error, fit_isotonic, fit_platt
from fieldwise.evaluation.words import binary_words, of_100, regression_words
from fieldwise.report.calibration_section import calibration_section, numbers_section, picture
from fieldwise.report.metrics_sections import (
    curves_section,
    learning_section,
    metrics_section,
    words_section,
)
from fieldwise.report.page import Caution, Figure
from fieldwise.runs.records import LabelScores
from fieldwise.training.history import learning_curves

LIKED = Label("rating", positive_above=3)


def scored(n=1500, seed=0, slope=0.5, scale=2.0, shift=0.0):
    """Rows whose log-odds are `slope * score + shift`."""
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=scale, size=n)
    return LabelScores((rng.random(n) < sigmoid(slope * z + shift)).astype(float), z)


def cells(table):
    return {str(row[0]): [str(cell) for cell in row[1:]] for row in table.rows}


def points(figure):
    """Where the first line of a drawing goes, within 0 and 1 on both axes."""
    text = str(figure.drawing).split('points="')[1].split('"')[0]
    return np.array([[float(v) for v in pair.split(",")] for pair in text.split()])


def test_metrics_are_scikit_learns_with_the_bootstraps_intervals():
    rows = scored()
    section, facts = metrics_section(rows, np.arange(1500) % 30, True, None, seed=3)
    result = cells(section.blocks[0])
    of = estimate([0], resampled(rows.y, rows.score[None], "auc", replicates=1000, seed=3)[:, 0])
    half = (of.high - of.low) / 2
    auc = roc_auc_score(rows.y, rows.score)
    assert result["AUC"] == [f"{auc:.4f}", f"{auc - half:.4f} to {auc + half:.4f}"]
    assert result["average precision"][0] == f"{average_precision_score(rows.y, rows.score):.4f}"
    assert result["Brier score"][0] == f"{brier_score_loss(rows.y, sigmoid(rows.score)):.4f}"
    assert result["rows"] == ["1,500", ""]
    assert result["group AUC (30 groups)"][1].count(" to ") == 1
    assert facts[0] == ("AUC", result["AUC"][0], result["AUC"][1])
    assert [words for words, *_ in facts] == ["AUC", "logloss"]


def test_groups_that_group_auc_excludes_are_counted():
    rows = LabelScores(np.array([0.0, 1.0] * 20), np.arange(40.0))
    one_class = metrics_section(rows, np.arange(40), True, None, seed=0)[0].blocks[0]
    assert "group AUC" not in " ".join(cells(one_class))
    assert "every group has only one class" in one_class.note
    mixed = metrics_section(rows, np.r_[np.zeros(38), 1, 2], True, None, seed=0)[0].blocks[0]
    assert "excludes 2 groups of one class (2 rows)" in mixed.note


def test_the_drawn_curves_hold_the_areas():
    rows = scored(20_000)
    roc, pr = curves_section({"one": rows}).blocks
    x, y = ((points(roc) - [50, 190]) / [260, -180]).T
    assert np.trapezoid(y, x) == pytest.approx(roc_auc_score(rows.y, rows.score), abs=0.002)
    assert len(x) <= 240
    x, y = ((points(pr) - [50, 190]) / [260, -180]).T
    assert np.trapezoid(y, x) == pytest.approx(
        average_precision_score(rows.y, rows.score), abs=0.004
    )
    assert roc.table.columns == ["false positive rate", "true positive rate"]
    assert curves_section({"a": rows, "b": rows}).blocks[0].table.columns[1:] == ["a", "b"]


def test_metrics_of_a_number():
    predicted = np.random.default_rng(0).normal(3, 1, 3000)
    result = cells(
        metrics_section(LabelScores(predicted + 1, predicted), None, False, None, seed=0)[0].blocks[
            0
        ]
    )
    assert result["RMSE"] == ["1.0000", "1.0000 to 1.0000"]
    assert result["MAE"][0] == "1.0000"


def test_learning_curves_show_the_recorded_evaluations():
    evaluations = [
        {
            "epoch": float(k),
            "metrics": {"auc": 0.5 + k / 10, "logloss": 0.7 - k / 10},
            "train_loss": None if k == 1 else 0.6,
        }
        for k in (1, 2, 3)
    ]
    section = learning_section(evaluations, 2.0, "patience", "auc")
    loss, auc, text = section.blocks
    assert loss.table.rows == [
        ["1", "", "0.6000"],
        ["2", "0.6000", "0.5000"],
        ["3", "0.6000", "0.4000"],
    ]
    assert auc.table.rows == [["1", "0.6000"], ["2", "0.7000"], ["3", "0.8000"]]
    assert "marks epoch 2" in text
    assert "no improvement since" in text
    assert "run it again" in learning_section([], None, "", "auc").blocks[0]


def test_learning_curves_leave_out_metrics_without_values():
    metrics = {"auc": None, "logloss": None, "gauc": 0.5}
    history = [
        {"epoch": 1.0, "metrics": metrics, "train_loss": 0.6},
        {"epoch": 2.0, "metrics": metrics},
    ]
    result = learning_curves(history, None)
    assert list(result) == ["loss", "AUC and group AUC"]
    assert [">validation logloss<" in chart for chart, _ in result.values()] == [False, False]
    assert ">training loss<" in result["loss"][0]
    assert result["loss"][1]["validation logloss"] == [None, None]
    unknown = [{"epoch": 1.0, "metrics": {"rmse": None, "mae": None}}]
    assert learning_curves(unknown, None) == {}


def test_calibrations_are_fitted_on_validation_rows_and_shown_on_test_rows():
    test, valid = scored(seed=1), scored(seed=2)
    section = calibration_section(test, valid, fit_platt(valid.y, valid.score), seed=0)
    result = cells(section.blocks[0])
    assert list(result) == ["as trained", "Platt (saved in this bundle)", "isotonic"]
    logits = [test.score, fit_platt(valid.y, valid.score).logit(test.score)]
    logits.append(fit_isotonic(valid.y, valid.score).logit(test.score))
    for row, z in zip(result.values(), logits, strict=True):
        p = sigmoid(z)
        assert row[0].startswith(f"{logloss_from_logits(test.y, z):.4f}<small>")
        assert row[2] == f"{brier_score_loss(test.y, p):.4f}"
        assert row[3] == f"{calibration_error(test.y, p):.4f}"
        assert row[4] == f"{calibration_error(test.y, p, binning='width'):.4f}"
    assert "15 bins of equal count" in section.blocks[0].note
    assert [b.title for b in section.blocks if isinstance(b, Figure)] == [
        "Reliability, as trained",
        "Reliability, Platt",
        "Reliability, isotonic",
    ]
    figure = section.blocks[1]
    assert sum(int(row[3].replace(",", "")) for row in figure.table.rows) == 1500


def test_calibrations_that_cannot_be_fitted_are_left_out_with_a_reason():
    test, valid = scored(), scored(seed=2)
    for bad, words in (
        (LabelScores(np.ones(1500), valid.score), "both classes"),
        (LabelScores(valid.y, np.zeros(1500)), "scores that differ"),
    ):
        blocks = calibration_section(test, bad, None, seed=0).blocks
        cautions = [b for b in blocks if isinstance(b, Caution)]
        assert len(cautions) == 2
        assert all(words in text for text in cautions)
        assert [row[0] for b in blocks if isinstance(b, Table) for row in b.rows] == ["as trained"]
    blocks = calibration_section(test, LabelScores(1 - valid.y, valid.score), None, seed=0).blocks
    assert "found a slope of -" in blocks[0]
    assert (
        "need scores of validation rows" in calibration_section(test, None, None, seed=0).blocks[0]
    )
    blocks = calibration_section(test, None, Platt(slope=0.5, intercept=0.2), seed=0).blocks
    rows = [row for b in blocks if isinstance(b, Table) for row in b.rows]
    assert [row[0] for row in rows] == ["as trained", "Platt (saved in this bundle)"]
    assert rows[1][1].startswith(
        f"{logloss_from_logits(test.y, 0.5 * test.score + 0.2):.4f}<small>"
    )


def test_numbers_by_prediction():
    rng = np.random.default_rng(0)
    predicted = rng.normal(3, 1, 3000)
    section = numbers_section(LabelScores(predicted + rng.normal(0, 1, 3000), predicted))
    table = section.blocks[0].table
    assert len(table.rows) == 15
    assert all(abs(float(row[0]) - float(row[1])) < 0.3 for row in table.rows)
    assert "Omitted for a regression label" in section.blocks[1]
    assert "Too few rows" in numbers_section(LabelScores(predicted[:20], predicted[:20])).blocks[0]


def rated(n=2000, slope=1.0, shift=0.0):
    return scored(n, slope=slope, scale=1.5, shift=shift)


def words_by_metric(section):
    (result,) = (block for block in section.blocks if isinstance(block, dict))
    return {name.partition(":")[0]: text for name, text in result.items()}


def test_each_figure_has_its_sentence():
    rows = rated()
    result = words_by_metric(words_section(rows, None, LIKED))
    higher = np.mean(rows.score[rows.y == 1][:, None] > rows.score[rows.y == 0][None])
    assert result["AUC"].startswith(
        "Of a row with a rating above 3 and one without, sampled at random, the model"
    )
    assert f"higher {100 * higher:.0f} times of 100" in result["AUC"]
    p, rate = sigmoid(rows.score), rows.y.mean()
    constant = log_loss(rows.y, np.full(len(rows.y), rate))
    assert f"{log_loss(rows.y, p):.3f}. Always predicting" in result["logloss"]
    assert (
        f"costs {constant:.3f}; the model costs {100 - 100 * log_loss(rows.y, p) / constant:.0f} % less"
        in result["logloss"]
    )
    assert f"{100 * rows.y[p >= 0.5].mean():.0f} of 100 are positive" in result["precision at .5"]
    assert (
        f"predicts {100 * np.mean(p[rows.y == 1] >= 0.5):.0f} of 100 at 50 %"
        in result["recall at .5"]
    )
    assert (
        f"expects {100 * p.mean():.0f} of 100 to be positive; {100 * rate:.0f} of 100 are"
        in result["mean prediction"]
    )


def test_a_model_worse_than_a_constant_has_a_caution_first():
    rows = rated(slope=-1)
    section = words_section(rows, None, LIKED)
    (caution,) = (block for block in section.blocks if isinstance(block, Caution))
    assert caution.startswith("These probabilities are worse than")
    assert "worse than no model" in words_by_metric(section)["logloss"]
    assert not [b for b in words_section(rated(), None, LIKED).blocks if isinstance(b, Caution)]


def test_no_row_taken_for_positive_is_explained():
    rows = LabelScores(np.array([0.0, 1.0, 0.0, 0.0]), np.array([-3.0, -2.0, -4.0, -5.0]))
    result = binary_words(binary_metrics(rows.y, rows.score), LIKED)
    assert result["precision"] == result["recall"]
    assert "as is usual where 25 of 100 rows are positive" in result["recall"]


def test_numbers_have_sentences_too():
    y = np.array([1.0, 2.0, 3.0, 4.0])
    rows = LabelScores(y, y + np.array([1.0, -1.0, 1.0, -1.0]))
    result = words_by_metric(
        words_section(rows, None, Label("rating", task="regression", range=(0, 5)))
    )
    assert result["MAE"] == "On average a prediction is 1 off, of “rating” from 0 to 5."
    assert "always predicting the mean has 1.12, the model's is 11 % smaller" in result["RMSE"]
    worse = regression_words({"rmse": 2.0}, Label("rating", task="regression"), spread=1.0)
    assert "worse than no model" in worse["rmse"]


def test_shares_near_the_ends_keep_a_decimal(subtests):
    for share, text in [(0, "0"), (0.001, "0.1"), (0.5, "50"), (0.995, "99.5"), (1, "100")]:
        with subtests.test(share=share, text=text):
            assert of_100(share) == text


def test_the_picture_counts_rows_by_tens_of_per_cent():
    rows = rated(6000, shift=0.4)
    p = sigmoid(rows.score)
    figure = picture(rows)
    tens = [
        p_inside
        for k in range(10)
        if (p_inside := (np.minimum((p * 10).astype(int), 9) == k)).any()
    ]
    assert [row[3] for row in figure.table.rows] == [f"{inside.sum():,}" for inside in tens]
    assert [row[1] for row in figure.table.rows] == [
        f"{100 * rows.y[inside].mean():.1f} %" for inside in tens
    ]
    shown = max((inside for inside in tens if 0.2 <= p[inside].mean() <= 0.8), key=np.sum)
    assert figure.note.startswith(
        f"Of the {shown.sum():,} rows predicted at about {100 * p[shown].mean():.0f} %, "
        f"{100 * rows.y[shown].mean():.0f} % were positive, which chance does not explain."
    )
    assert "which chance explains" in picture(rated(6000)).note
    dots = re.findall(r'<circle class="dot c0" cx="([\d.]+)" cy="([\d.]+)"', str(figure.drawing))
    shares = [[p[inside].mean(), rows.y[inside].mean()] for inside in tens]
    np.testing.assert_allclose(
        ([[50, 190]] - np.array(dots, float)) / [[-260, 180]], shares, atol=1e-4
    )


def test_rare_positives_have_axes_that_show_them():
    rng = np.random.default_rng(0)
    z = rng.normal(-6, 0.7, 30_000)
    rows = LabelScores((rng.random(30_000) < sigmoid(z)).astype(float), z)
    reliability = next(
        b for b in calibration_section(rows, None, None, seed=0).blocks if isinstance(b, Figure)
    )
    bins = picture(rows)
    assert len(bins.table.rows) == 10
    for figure in (reliability, bins):
        assert ">0.02<" in str(figure.drawing)
        assert ">0.5<" not in str(figure.drawing)
    assert "equally many each" in figure.note


def test_figures_of_weighted_rows_are_weighted():
    rows = scored()
    weight = np.where(rows.y == 1, 0.1, 1.0)
    rows = rows._replace(weight=weight)
    section, _ = metrics_section(rows, None, True, None, seed=3)
    result = cells(section.blocks[0])
    for name in ("accuracy at .5", "precision at .5", "recall at .5", "positive rate"):
        value, interval = result[name]
        low, high = map(float, interval.split(" to "))
        assert low < float(value) < high

    roc, precision_recall = curves_section({"": rows}).blocks
    false_rate, true_rate, _ = roc_curve(rows.y, rows.score, sample_weight=weight)
    at_half = [row for row in roc.table.rows if float(row[0]) == 0.5]
    assert float(at_half[0][1]) == pytest.approx(np.interp(0.5, false_rate, true_rate), abs=1e-4)
    assert f"{np.average(rows.y, weights=weight):.4f}" in precision_recall.note


def test_the_error_of_always_predicting_the_mean_is_weighted():
    y = np.array([0.0, 0.0, 4.0])
    rows = LabelScores(y, y + 0.1, np.array([1.0, 1.0, 2.0]))
    section = words_section(rows, None, Label("minutes", task="regression"))
    assert "always predicting the mean has 2," in str(section.blocks)

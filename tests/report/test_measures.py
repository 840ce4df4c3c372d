"""The report's figures against scikit-learn and the functions that it says it takes."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.bootstrap import estimate, resampled
from fieldwise.report.measures import curves_section, learning_section, metrics_section
from fieldwise.report.runs import Scored


def scored(n=1500, seed=0, slope=0.5):
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=n)
    return Scored((rng.random(n) < sigmoid(slope * z)).astype(float), z)


def cells(table):
    return {str(row[0]): [str(cell) for cell in row[1:]] for row in table.rows}


def points(figure):
    """Where the first line of a drawing goes, within 0 and 1 on both axes."""
    text = str(figure.drawing).split('points="')[1].split('"')[0]
    return np.array([[float(v) for v in pair.split(",")] for pair in text.split()])


def test_metrics_are_scikit_learns_with_the_bootstraps_intervals():
    rows = scored()
    section, facts = metrics_section(rows, np.arange(1500) % 30, True, None, seed=3)
    found = cells(section.blocks[0])
    of = estimate([0], resampled(rows.y, rows.score[None], "auc", replicates=1000, seed=3)[:, 0])
    half = (of.high - of.low) / 2
    auc = roc_auc_score(rows.y, rows.score)
    assert found["AUC"] == [f"{auc:.4f}", f"{auc - half:.4f} to {auc + half:.4f}"]
    assert found["average precision"][0] == f"{average_precision_score(rows.y, rows.score):.4f}"
    assert found["Brier score"][0] == f"{brier_score_loss(rows.y, sigmoid(rows.score)):.4f}"
    assert found["rows"] == ["1,500", ""]
    assert found["group AUC (30 groups)"][1].count(" to ") == 1
    assert facts[0] == ("AUC", found["AUC"][0], found["AUC"][1])
    assert [words for words, *_ in facts] == ["AUC", "logloss"]


def test_groups_that_group_auc_leaves_out_are_told():
    rows = Scored(np.array([0.0, 1.0] * 20), np.arange(40.0))
    one_class = metrics_section(rows, np.arange(40), True, None, seed=0)[0].blocks[0]
    assert "group AUC" not in " ".join(cells(one_class))
    assert "every group has only one class" in one_class.note
    mixed = metrics_section(rows, np.r_[np.zeros(38), 1, 2], True, None, seed=0)[0].blocks[0]
    assert "excludes 2 groups of one class (2 rows)" in mixed.note


def test_no_row_predicted_positive():
    rows = Scored(np.array([0.0, 1.0] * 20), np.linspace(-3, -1, 40))
    found = cells(metrics_section(rows, None, True, None, seed=0)[0].blocks[0])
    assert found["precision at .5"] == ["0.0000", ""]


def test_the_drawn_curves_hold_the_areas():
    rows = scored(20_000)
    roc, pr = curves_section({"one": rows}).blocks
    x, y = ((points(roc) - [50, 190]) / [260, -180]).T
    assert np.trapezoid(y, x) == pytest.approx(roc_auc_score(rows.y, rows.score), abs=0.002)
    assert len(x) <= 240
    x, y = ((points(pr) - [50, 190]) / [260, -180]).T
    assert np.trapezoid(y, x) == pytest.approx(average_precision_score(rows.y, rows.score), abs=0.004)
    assert roc.table.columns == ["false positive rate", "true positive rate"]
    assert curves_section({"a": rows, "b": rows}).blocks[0].table.columns[1:] == ["a", "b"]


def test_metrics_of_a_number():
    predicted = np.random.default_rng(0).normal(3, 1, 3000)
    found = cells(metrics_section(Scored(predicted + 1, predicted), None, False, None, seed=0)[0].blocks[0])
    assert found["RMSE"] == ["1.0000", "1.0000 to 1.0000"]
    assert found["MAE"][0] == "1.0000"


def test_learning_curves_show_what_was_kept():
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
    assert loss.table.rows == [["1", "", "0.6000"], ["2", "0.6000", "0.5000"], ["3", "0.6000", "0.4000"]]
    assert auc.table.rows == [["1", "0.6000"], ["2", "0.7000"], ["3", "0.8000"]]
    assert "marks epoch 2" in text.text
    assert "no further improvement" in text.text
    assert "run it again" in learning_section([], None, "", "auc").blocks[0].text

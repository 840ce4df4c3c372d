"""Reliability before and after, against scikit-learn and the functions that the page says it takes."""

import numpy as np
from sklearn.metrics import brier_score_loss

from fieldwise.evaluation import logloss_from_logits, sigmoid
from fieldwise.evaluation.calibration import Platt, calibration_error, fit_isotonic, fit_platt
from fieldwise.report.calibrations import calibration_section, numbers_section
from fieldwise.report.runs import Scored


def scored(n=1500, seed=0, slope=0.5):
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=2, size=n)
    return Scored((rng.random(n) < sigmoid(slope * z)).astype(float), z)


def cells(table):
    return {str(row[0]): [str(cell) for cell in row[1:]] for row in table.rows}


def test_calibrations_are_fitted_on_validation_rows_and_shown_on_test_rows():
    test, valid = scored(seed=1), scored(seed=2)
    section = calibration_section(test, valid, fit_platt(valid.y, valid.score), seed=0)
    found = cells(section.blocks[0])
    assert list(found) == ["as trained", "Platt (saved in this bundle)", "isotonic"]
    logits = [test.score, fit_platt(valid.y, valid.score).logit(test.score)]
    logits.append(fit_isotonic(valid.y, valid.score).logit(test.score))
    for row, z in zip(found.values(), logits, strict=True):
        p = sigmoid(z)
        assert row[0].startswith(f"{logloss_from_logits(test.y, z):.4f}<small>")
        assert row[2] == f"{brier_score_loss(test.y, p):.4f}"
        assert row[3] == f"{calibration_error(test.y, p):.4f}"
        assert row[4] == f"{calibration_error(test.y, p, binning='width'):.4f}"
    assert "15 bins of equal count" in section.blocks[0].note
    assert [b.title for b in section.blocks if b.kind == "figure"] == [
        "Reliability, as trained",
        "Reliability, Platt",
        "Reliability, isotonic",
    ]
    figure = section.blocks[1]
    assert sum(int(row[3].replace(",", "")) for row in figure.table.rows) == 1500


def test_calibrations_that_cannot_be_fitted_are_left_out_aloud():
    test, valid = scored(), scored(seed=2)
    for bad, words in (
        (Scored(np.ones(1500), valid.score), "both classes"),
        (Scored(valid.y, np.zeros(1500)), "scores that differ"),
    ):
        blocks = calibration_section(test, bad, None, seed=0).blocks
        told = [b.text for b in blocks if b.kind == "note" and b.warns]
        assert len(told) == 2
        assert all(words in text for text in told)
        assert [row[0] for b in blocks if b.kind == "table" for row in b.rows] == ["as trained"]
    blocks = calibration_section(test, Scored(1 - valid.y, valid.score), None, seed=0).blocks
    assert "found a slope of -" in blocks[0].text
    assert "need scores of validation rows" in calibration_section(test, None, None, seed=0).blocks[0].text


def test_rare_positives_have_axes_that_show_them():
    rng = np.random.default_rng(0)
    z = rng.normal(-6, 0.7, 30_000)
    rows = Scored((rng.random(30_000) < sigmoid(z)).astype(float), z)
    figure = next(b for b in calibration_section(rows, None, None, seed=0).blocks if b.kind == "figure")
    assert ">0.02<" in str(figure.drawing)
    assert ">0.5<" not in str(figure.drawing)


def test_numbers_by_prediction():
    rng = np.random.default_rng(0)
    predicted = rng.normal(3, 1, 3000)
    section = numbers_section(Scored(predicted + rng.normal(0, 1, 3000), predicted))
    table = section.blocks[0].table
    assert len(table.rows) == 15
    assert all(abs(float(row[0]) - float(row[1])) < 0.3 for row in table.rows)
    assert "Omitted for a regression label" in section.blocks[1].text
    assert "Too few rows" in numbers_section(Scored(predicted[:20], predicted[:20])).blocks[0].text


def test_without_validation_rows_the_saved_calibration_is_shown():
    test, line = scored(), Platt(slope=0.5, intercept=0.2)
    blocks = calibration_section(test, None, line, seed=0).blocks
    rows = [row for b in blocks if b.kind == "table" for row in b.rows]
    assert [row[0] for row in rows] == ["as trained", "Platt (saved in this bundle)"]
    assert rows[1][1].startswith(f"{logloss_from_logits(test.y, 0.5 * test.score + 0.2):.4f}<small>")

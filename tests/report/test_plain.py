"""What the report says in words, and its picture of probabilities, against figures counted by hand."""

import re

import numpy as np
from sklearn.metrics import log_loss

from fieldwise import Label
from fieldwise.evaluation import binary_metrics, sigmoid
from fieldwise.evaluation.words import binary_words, of_100, regression_words
from fieldwise.report.plain import picture, words_section
from fieldwise.report.runs import Scored

LIKED = Label("rating", positive_above=3)


def scored(n=2000, seed=0, slope=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    z = rng.normal(scale=1.5, size=n)
    return Scored((rng.random(n) < sigmoid(slope * z + shift)).astype(float), z)


def words(section):
    (found,) = (block for block in section.blocks if block.kind == "words")
    return {name.partition(":")[0]: text for name, text in found.rows}


def test_each_figure_has_its_sentence():
    rows = scored()
    found = words(words_section(rows, None, LIKED))
    higher = np.mean(rows.score[rows.y == 1][:, None] > rows.score[rows.y == 0][None])
    assert found["AUC"].startswith("Of a row with a rating above 3 and one without, sampled at random, the model")
    assert f"higher {100 * higher:.0f} times of 100" in found["AUC"]
    p, rate = sigmoid(rows.score), rows.y.mean()
    constant = log_loss(rows.y, np.full(len(rows.y), rate))
    assert f"{log_loss(rows.y, p):.3f}. Always predicting" in found["logloss"]
    assert (
        f"costs {constant:.3f}; the model costs {100 - 100 * log_loss(rows.y, p) / constant:.0f} % less"
        in found["logloss"]
    )
    assert f"{100 * rows.y[p >= 0.5].mean():.0f} of 100 are positive" in found["precision at .5"]
    assert f"predicts {100 * np.mean(p[rows.y == 1] >= 0.5):.0f} of 100 at 50 %" in found["recall at .5"]
    assert (
        f"expects {100 * p.mean():.0f} of 100 to be positive; {100 * rate:.0f} of 100 are" in found["mean prediction"]
    )


def test_a_model_worse_than_none_is_told_first():
    rows = scored(slope=-1)
    section = words_section(rows, None, LIKED)
    (told,) = (block.text for block in section.blocks if block.kind == "note" and block.warns)
    assert told.startswith("These probabilities are worse than")
    assert "worse than no model" in words(section)["logloss"]
    assert not [b for b in words_section(scored(), None, LIKED).blocks if b.kind == "note" and b.warns]


def test_no_row_taken_for_positive_is_explained():
    rows = Scored(np.array([0.0, 1.0, 0.0, 0.0]), np.array([-3.0, -2.0, -4.0, -5.0]))
    found = binary_words(binary_metrics(rows.y, rows.score), LIKED)
    assert found["precision"] == found["recall"]
    assert "as is usual where 25 of 100 rows are positive" in found["recall"]


def test_numbers_have_sentences_too():
    y = np.array([1.0, 2.0, 3.0, 4.0])
    rows = Scored(y, y + np.array([1.0, -1.0, 1.0, -1.0]))
    found = words(words_section(rows, None, Label("rating", task="regression", range=(0, 5))))
    assert found["MAE"] == "On average a prediction is 1 off, of “rating” from 0 to 5."
    assert "always predicting the mean has 1.12, the model's is 11 % smaller" in found["RMSE"]
    worse = regression_words({"rmse": 2.0}, Label("rating", task="regression"), spread=1.0)
    assert "worse than no model" in worse["rmse"]


def test_shares_near_the_ends_keep_a_decimal(subtests):
    for share, text in [(0, "0"), (0.001, "0.1"), (0.5, "50"), (0.995, "99.5"), (1, "100")]:
        with subtests.test(share=share, text=text):
            assert of_100(share) == text


def test_the_picture_counts_rows_by_tens_of_per_cent():
    rows = scored(6000, shift=0.4)
    p = sigmoid(rows.score)
    figure = picture(rows.y, p)
    tens = [p_inside for k in range(10) if (p_inside := (np.minimum((p * 10).astype(int), 9) == k)).any()]
    assert [row[3] for row in figure.table.rows] == [f"{inside.sum():,}" for inside in tens]
    assert [row[1] for row in figure.table.rows] == [f"{100 * rows.y[inside].mean():.1f} %" for inside in tens]
    shown = max((inside for inside in tens if 0.2 <= p[inside].mean() <= 0.8), key=np.sum)
    assert figure.note.startswith(
        f"Of the {shown.sum():,} rows predicted at about {100 * p[shown].mean():.0f} %, "
        f"{100 * rows.y[shown].mean():.0f} % were positive, which chance does not explain."
    )
    assert "which chance explains" in picture(scored(6000).y, sigmoid(scored(6000).score)).note
    widths = [float(w) for w in re.findall(r'<rect class="bar c0"[^>]*width="([\d.]+)"', str(figure.drawing))][1:]
    shares = [rows.y[inside].mean() for inside in tens]
    np.testing.assert_allclose(np.array(widths) / widths[-1], np.array(shares) / shares[-1], atol=0.02)


def test_rare_positives_have_a_picture_that_shows_them():
    rng = np.random.default_rng(0)
    z = rng.normal(-6, 0.7, 30_000)
    figure = picture((rng.random(30_000) < sigmoid(z)).astype(float), sigmoid(z))
    assert len(figure.table.rows) == 10
    assert ">2 %<" in str(figure.drawing)
    assert "equally many each" in figure.note

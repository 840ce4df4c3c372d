import numpy as np
import pytest

from fieldwise.evaluation import binary_metrics
from fieldwise.evaluation.words import remarks, remarks_on_means

RNG = np.random.default_rng(0)
Y = (RNG.random(20_000) < 0.07).astype(int)
GOOD = np.where(Y == 1, 0.8, -0.8) + RNG.normal(size=len(Y))  # its log-odds, but for the base rate


def of(y, logit, rows="test rows"):
    return remarks(binary_metrics(y, logit, one_class=True), rows)


def test_good_figures_need_no_words():
    logit = 1.6 * GOOD + np.log(0.07 / 0.93)
    metrics = binary_metrics(Y, logit)
    assert metrics["normalized_entropy"] < 1
    assert metrics["recall"] > 0
    assert of(Y, logit) == []


def test_a_logloss_above_the_constants_is_named_beside_it():
    rate = Y.mean()
    constant = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    (sentence,) = of(Y, GOOD)
    assert sentence.startswith("On test rows the logloss ")
    assert (
        f"is worse than {constant:.4f}, that of always predicting the share of positives ({100 * rate:.1f} %)"
        in sentence
    )
    mean = (1 / (1 + np.exp(-GOOD))).mean()
    assert f"the mean prediction is {100 * mean:.1f} %" in sentence
    assert "the ranking is useful (AUC 0.8" in sentence
    assert "fieldwise evaluate --calibrate" in sentence
    useless = of(Y, RNG.normal(size=len(Y)))
    assert "useful" not in useless[0]
    assert (
        len(remarks_on_means([binary_metrics(Y, GOOD), binary_metrics(Y, GOOD + 0.1)], "test rows"))
        == 1
    )


@pytest.mark.parametrize(
    ("sign", "words"),
    [(1, "precision, recall and f1 are 0 because no row"), (-1, "recall is 1 because every row")],
)
def test_decisions_that_are_all_alike_are_explained(sign, words):
    y, logit = (Y, GOOD * 0.3 - 2.6) if sign == 1 else (1 - Y, 2.6 - GOOD * 0.3)
    (sentence,) = of(y, logit)
    assert sentence.startswith(f"On test rows {words} has a probability of 0.5 or more")
    assert f"{100 * y.mean():.1f} % are positive" in sentence


def test_zero_recall_of_wrong_decisions_is_not_explained_away():
    logit = np.full(len(Y), -2.6)
    logit[np.flatnonzero(Y == 0)[:3]] = 0.1
    assert not any("no row has" in sentence for sentence in of(Y, logit))


def test_rows_of_one_class_have_no_auc():
    metrics = binary_metrics([0, 0, 0], [-1.0, -2.0, 0.3], group=["a", "a", "b"], one_class=True)
    assert not {"auc", "normalized_entropy", "gauc"} & metrics.keys()
    assert metrics["logloss"] == pytest.approx(np.log1p(np.exp([-1.0, -2.0, 0.3])).mean())
    assert remarks(metrics) == [
        "On these rows all labels are negative: AUC and other metrics that compare two classes are undefined."
    ]


def test_the_auc_of_few_labels_is_attributed_to_chance_as_far_as_it_is():
    """Against AUCs of random samples of the same size."""
    from sklearn.metrics import roc_auc_score

    y = np.repeat([0, 1], [400, 25])
    drawn = [roc_auc_score(y, RNG.normal(size=425) + y) for _ in range(400)]
    half = 1.96 * np.std(drawn)
    logit = RNG.normal(size=425) + y - 3
    said = [sentence for sentence in of(y, logit) if "25 of 425 labels are positive" in sentence]
    assert float(said[0].partition("up to ")[2].split()[0]) == pytest.approx(half, abs=0.03)
    assert not any("labels are" in sentence for sentence in of(np.tile(y, 30), np.tile(logit, 30)))


def test_an_order_that_is_upside_down():
    assert any("reversed" in sentence for sentence in of(Y, -GOOD))
    assert not any("reversed" in sentence for sentence in of(Y, RNG.normal(size=len(Y))))


def test_labels_by_name_and_numbers():
    bad = binary_metrics(Y, GOOD)
    both = {
        "rmse": 3.0,
        "mae": 2.0,
        "rows": len(Y),
        **{f"dear.{name}": x for name, x in bad.items() if name != "rows"},
    }
    (sentence,) = remarks(both, "test rows")
    assert sentence.startswith("On test rows, label 'dear', the logloss ")
    assert remarks({"rmse": 3.0, "mae": 2.0, "rows": 10}) == []


def test_two_losses_are_shown_with_the_digits_that_tell_them_apart():
    rate, loss = 0.5, np.log(2)
    own = {
        "logloss": loss * 1.000002,
        "normalized_entropy": 1.000002,
        "positive_rate": rate,
        "rows": 10_000,
    }
    assert "the logloss 0.693149 is worse than 0.693147, that of" in " ".join(remarks(own, "test"))


def test_few_rows_of_a_class_are_counted_whatever_they_weigh():
    y = np.repeat([1, 0], [60, 60])
    logit = np.where(y == 1, 0.5, -0.5) + np.linspace(-1, 1, 120)
    (sentence,) = [
        remark
        for remark in remarks(binary_metrics(y, logit, weight=np.where(y == 1, 0.1, 1.0)))
        if "so few" in remark
    ]
    assert "60 of 120 labels are " in sentence

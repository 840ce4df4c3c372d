import numpy as np
import pytest
from scipy.special import expit
from sklearn import metrics as sk

from fieldwise import DataError
from fieldwise import evaluation as ours
from fieldwise.evaluation.calibration import calibration_error, reliability
from fieldwise.evaluation.ranking import ndcg_values


def labelled(seed, rows, rate):
    """Labels with both classes, and standard normal logits that know something of them."""
    random = np.random.default_rng(seed)
    y = (random.random(rows) < rate).astype(np.int64)
    y[:2] = [0, 1]
    return y, random.normal(size=rows) + y


DECISIONS = {
    "accuracy": sk.accuracy_score,
    "precision": sk.precision_score,
    "recall": sk.recall_score,
    "f1": sk.f1_score,
}


def test_binary_metrics_agree_with_scikit_learn(subtests):
    for rows, rate in [(2, 0.5), (17, 0.5), (3000, 0.02), (3000, 0.97)]:
        for dtype in [np.float32, np.float64, np.int8, bool]:
            with subtests.test(rows=rows, rate=rate, dtype=dtype):
                y, logit = labelled(rows, rows, rate)
                p = expit(logit)
                result = ours.binary_metrics(y.astype(dtype), logit)
                assert result["logloss"] == pytest.approx(sk.log_loss(y, p), rel=1e-12)
                assert ours.logloss_from_logits(y.astype(dtype), logit) == result["logloss"]
                for name, theirs in DECISIONS.items():
                    none = {} if name == "accuracy" else {"zero_division": 0.0}
                    assert result[name] == pytest.approx(theirs(y, p >= 0.5, **none), rel=1e-12)


def test_regression_metrics_agree_with_scikit_learn(subtests):
    for rows in [1, 2, 1000]:
        with subtests.test(rows=rows):
            random = np.random.default_rng(rows)
            y, prediction = random.normal(size=rows), random.normal(size=rows).astype(np.float32)
            assert ours.rmse(y, prediction) == pytest.approx(
                sk.root_mean_squared_error(y, prediction), rel=1e-12
            )
            assert ours.mae(y, prediction) == pytest.approx(
                sk.mean_absolute_error(y, prediction), rel=1e-12
            )
            expected = {
                "rmse": ours.rmse(y, prediction),
                "mae": ours.mae(y, prediction),
                "rows": rows,
            }
            assert ours.regression_metrics(y, prediction) == expected


def test_probability_one_half_is_positive():
    result = ours.binary_metrics([1, 0], [0.0, -1e-9])
    assert [result[name] for name in DECISIONS] == [1.0] * 4
    assert ours.binary_metrics([1, 0], [-1e-9, -1.0])["recall"] == 0.0


def test_saturated_logits_are_ranked_as_logits():
    assert ours.binary_metrics([0, 1], [40.0, 50.0])["auc"] == 1.0
    assert ours.binary_metrics([0, 1], [40.0, 50.0], group=[7, 7])["gauc"] == 1.0


def test_division_by_zero_gives_zero():
    result = ours.binary_metrics([1, 0], [-2.0, -2.0])
    assert (result["precision"], result["recall"], result["f1"]) == (0.0, 0.0, 0.0)
    result = ours.binary_metrics([0, 0], [2.0, -2.0], one_class=True)
    assert (result["precision"], result["recall"], result["f1"]) == (0.0, 0.0, 0.0)


def test_logloss_from_logits_stays_exact_where_probabilities_saturate():
    assert ours.logloss_from_logits([0, 1], [1e5, -1e5]) == 1e5
    assert ours.logloss_from_logits([1], [50.0]) == pytest.approx(np.exp(-50.0), rel=1e-12)
    assert ours.logloss_from_logits([1, 0], [1e300, -1e300]) == 0.0


def test_sigmoid_agrees_with_scipy_and_does_not_overflow():
    logit = np.array([-1e300, -800.0, -30.0, 0.0, 1e-9, 30.0, 800.0, 1e300])
    assert ours.sigmoid(logit) == pytest.approx(expit(logit), rel=1e-13, abs=0)


def test_binary_metrics_holds_each_metric_of_the_whole_split():
    y, logit = labelled(5, 400, 0.3)
    group = np.arange(400) % 37
    p = expit(logit)
    within = ours.group_auc(y, logit, group)
    assert ours.binary_metrics(y, logit, group=group) == pytest.approx(
        {
            "auc": sk.roc_auc_score(y, logit),
            "logloss": sk.log_loss(y, p),
            "normalized_entropy": sk.log_loss(y, p) / sk.log_loss(y, np.full(400, y.mean())),
            "ece": calibration_error(y, p),
            **{name: theirs(y, p >= 0.5) for name, theirs in DECISIONS.items()},
            "positive_rate": y.mean(),
            "mean_prediction": p.mean(),
            "rows": 400,
            "gauc": within.value,
            "gauc_groups": within.groups,
            "gauc_skipped_groups": within.skipped_groups,
            "gauc_skipped_rows": within.skipped_rows,
        },
        rel=1e-12,
    )
    assert "gauc" not in ours.binary_metrics(y, logit)


def test_binary_metrics_are_plain_numbers_that_json_can_hold():
    values = ours.binary_metrics(*labelled(1, 50, 0.5), group=np.zeros(50, dtype=int)).values()
    assert {type(v) for v in values} == {int, float}


def test_float32_logits_are_summed_in_float64():
    rows = 200_000
    y = np.arange(rows, dtype=np.float32) % 2
    logit = np.full(rows, 0.1, dtype=np.float32)
    exact = (np.logaddexp(0, -np.float64(logit[0])) + np.logaddexp(0, np.float64(logit[0]))) / 2
    assert ours.binary_metrics(y, logit)["logloss"] == pytest.approx(exact, rel=1e-13)


BOTH_CLASSES = [ours.auc, ours.normalized_entropy_from_logits, ours.binary_metrics]
BINARY = [*BOTH_CLASSES, ours.logloss_from_logits]
PROBABILITIES = [calibration_error, reliability]
ALL = [*BINARY, ours.rmse, ours.mae, ours.regression_metrics]


def test_broken_columns_are_one_sentence(subtests):
    for metrics, y, other, sentence in [
        (ALL, [], [], "at least one row, but labels are empty"),
        (ALL, [0, 1], [0.5], "as many as the labels, found 1 for 2 labels"),
        (
            ALL,
            [0, 1, 0],
            [0.5, np.nan, np.nan],
            r"must be finite, found nan in row 1 \(counting from 0\), one of 2",
        ),
        (ALL, [0, 1, 0], [0.5, 0.5, np.inf], "must be finite, found inf in row 2"),
        (ALL, [np.nan, 1], [0.5, 0.5], "labels must be finite, found nan in row 0"),
        (ALL, [0, 1], [[0.5], [0.5]], r"must be one-dimensional, found shape \(2, 1\)"),
        (ALL, [0, 1], ["a", "b"], "must be numbers, found an array of <U1"),
        (BINARY, [1, -1], [0.5, 0.5], r"must be 0 or 1, found -1 in row 1 \(counting from 0\)"),
        (
            BOTH_CLASSES,
            [1, 1, 1],
            [0.5, 0.4, 0.3],
            "needs rows of both classes, but all 3 rows have label 1",
        ),
        (BOTH_CLASSES, [0], [0.5], "needs rows of both classes, but the only row has label 0"),
        (
            PROBABILITIES,
            [0, 1],
            [0.5, 1.5],
            r"must lie in \[0, 1\], found 1.5 in row 1 .* apply the sigmoid",
        ),
    ]:
        for metric in metrics:
            with (
                subtests.test(metric=metric, sentence=sentence),
                pytest.raises(DataError, match=sentence),
            ):
                metric(y, other)


def test_public_names_are_pinned():
    assert sorted(ours.__all__) == [
        "DeLong", "GroupAUC", "auc", "binary_metrics", "delong", "group_auc", "logloss_from_logits", "mae",
        "normalized_entropy_from_logits", "regression_metrics", "rmse", "sigmoid",
    ]  # fmt: skip


def test_without_a_group_of_both_classes_the_other_metrics_stand():
    plain = ours.binary_metrics([0, 1, 1], [-1.0, 0.5, 2.0])
    grouped = ours.binary_metrics([0, 1, 1], [-1.0, 0.5, 2.0], group=[1, 2, 3])
    assert grouped == {**plain, "gauc_groups": 0}
    with pytest.raises(DataError, match="every row needs a group"):
        ours.binary_metrics([0, 1, 1], [-1.0, 0.5, 2.0], group=[1, np.nan, 3])


def test_ndcg_of_groups_equals_scikit_learn_s():
    """Ties share their gains, and groups without a relevant row are not part of the mean."""
    from sklearn.metrics import ndcg_score

    rng = np.random.default_rng(4)
    group = rng.integers(0, 30, 400)
    grade = rng.integers(0, 5, 400)
    grade[group == 3] = 0
    score = rng.integers(0, 6, 400) / 2 + rng.normal(0, 0.1, 400) * (group % 2)
    expected = [
        ndcg_score([2.0 ** grade[group == g] - 1], [score[group == g]], k=10)
        for g in range(30)
        if grade[group == g].any() and (group == g).sum() > 1
    ]
    values, weights = ndcg_values(grade, score, group)
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    assert weights.tolist() == [1] * len(expected)
    figures = ours.regression_metrics(grade, score, group=group)
    assert figures["ndcg"] == pytest.approx(np.mean(expected))
    assert "ndcg" not in ours.regression_metrics(grade + 0.5, score, group=group)
    assert "ndcg" not in ours.regression_metrics(grade, score)
    assert "ndcg" not in ours.regression_metrics(np.zeros(400), score, group=group)

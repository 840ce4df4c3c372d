import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fieldwise import DataError
from fieldwise.evaluation import auc, group_auc

TIES = {
    "none": lambda score: score,
    "few": lambda score: score.round(2),
    "many": lambda score: score.round(0),
    "all": lambda score: np.zeros_like(score),
    "signed zeros": lambda score: np.where(score > 0, 0.0, -0.0),
    "float32": lambda score: score.astype(np.float32),
    "integers": lambda score: score.round().astype(np.int64),
}


def labelled(seed, rows, rate):
    random = np.random.default_rng(seed)
    y = (random.random(rows) < rate).astype(np.float32)
    y[:2] = [0, 1]
    return y, random.normal(size=rows) + y


def test_auc_agrees_with_scikit_learn(subtests):
    for rows, rate in [(2, 0.5), (3, 0.5), (50, 0.5), (5000, 0.01), (5000, 0.98)]:
        for ties in TIES:
            with subtests.test(rows=rows, rate=rate, ties=ties):
                y, score = labelled(rows, rows, rate)
                score = TIES[ties](score)
                assert auc(y, score) == pytest.approx(roc_auc_score(y, score), rel=1e-12)


def by_loop(y, score, group, one_class):
    """Group AUC the slow way, with scikit-learn a group."""
    values, weights, skipped = [], [], []
    for name in sorted(set(group.tolist())):
        rows = group == name
        if 0 < y[rows].sum() < rows.sum():
            values.append(roc_auc_score(y[rows], score[rows]))
            weights.append(int(rows.sum()))
        elif one_class == "half":
            values.append(0.5)
            weights.append(int(rows.sum()))
        else:
            skipped.append(int(rows.sum()))
    return (
        math.fsum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights),
        len(values),
        skipped,
    )


def test_group_auc_agrees_with_a_loop(subtests):
    for rows, groups, rate, ties in [(150, 25, 0.2, ties) for ties in TIES] + [
        (12, 3, 0.5, "few"),
        (600, 90, 0.9, "many"),
        (900, 4, 0.5, "few"),
    ]:
        for one_class in ["skip", "half"]:
            with subtests.test(rows=rows, groups=groups, rate=rate, ties=ties, one_class=one_class):
                y, score = labelled(rows, rows, rate)
                score = TIES[ties](score)
                group = np.random.default_rng(groups).zipf(1.3, size=rows) % groups
                group[:2] = group[0]
                value, counted, skipped = by_loop(y, score, group, one_class)
                result = group_auc(y, score, group, one_class=one_class)
                assert result.value == pytest.approx(value, rel=1e-12)
                assert (result.groups, result.skipped_groups, result.skipped_rows) == (
                    counted,
                    len(skipped),
                    sum(skipped),
                )


def test_groups_may_be_of_any_one_type(subtests):
    for kind in [str, object, np.int32, np.uint64, "datetime64[s]"]:
        with subtests.test(kind=kind):
            y, score = labelled(4, 60, 0.5)
            number = np.arange(60) % 7
            group = (
                np.array([f"u{n}" for n in number], dtype=object)
                if kind is object
                else number.astype(kind)
            )
            assert group_auc(y, score, group).value == pytest.approx(
                group_auc(y, score, number).value, rel=1e-12
            )


def test_broken_groups_are_one_sentence(subtests):
    for group, sentence in [
        (["a"], r"groups must be as many as the labels, found shape \(1,\) for 2 labels"),
        ([1.0, np.nan], r"row 1 \(counting from 0\) has none"),
        (np.array([None, "a"], dtype=object), r"row 0 \(counting from 0\) has none"),
        (np.array(["2024-01-01", "NaT"], dtype="datetime64[s]"), "row 1 "),
        (np.array([1, "a"], dtype=object), "found a mixture"),
        ([1, 2], "each of the 2 groups holds one class only"),
    ]:
        with (
            subtests.test(group=group, sentence=sentence),
            pytest.raises(DataError, match=sentence),
        ):
            group_auc([0, 1], [0.1, 0.2], group)
    with pytest.raises(
        DataError, match=r"group c holds only label 1 \(1 rows\), as do 2 of 4 groups"
    ):
        group_auc(
            [1, 0, 1, 0, 1, 0],
            [2, 1, 5, 4, 9, 8],
            ["a", "a", "b", "b", "c", "d"],
            one_class="error",
        )
    with pytest.raises(
        ValueError, match="one_class must be 'skip', 'half' or 'error', found 'ignore'"
    ):
        group_auc([0, 1], [0.1, 0.2], [1, 1], one_class="ignore")

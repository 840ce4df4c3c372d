"""AUC over a whole split and within groups, DeLong's test of two of them, and metrics of the first k candidates.

Letters: N rows or candidates, P positives, M negatives, S seeds, G groups, T runs of ties, U users.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.charts import Axis, Chart, Line, line_chart
from fieldwise.errors import DataError, Row
from fieldwise.evaluation.binary import (
    labelled_column,
    labels_of,
    require_both_classes,
    weight_column,
)

TOP_K = ("hr", "ndcg", "recall")


def auc(y: ArrayLike, score: ArrayLike, *, weight: ArrayLike | None = None) -> float:
    """AUC, the area under the ROC curve: the probability that a positive row scores above a negative one.

    Ties count half. Pairs are counted in integers, so only the final division rounds. Give logits
    rather than probabilities: the sigmoid rounds high logits to 1, which makes ties.

    Args:
        y: labels 0 and 1, [N].
        score: finite numbers that increase with the probability of a positive, [N].
        weight: row weights, at least 0, [N]: a pair counts as the product of its rows' weights;
            equal if omitted.

    Errors:
        DataError: one class only, no row, lengths that differ, NaN or infinity, a weight below 0.

    >>> auc([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8])
    0.875
    """
    positive, scores = labelled_column(y, score, "scores")
    w = weight_column(weight, len(positive))
    if w is not None:
        is_weighted = w > 0
        positive = positive[is_weighted]
        scores = scores[is_weighted]
        w = w[is_weighted]
        require_both_classes(positive, "AUC")
        wins = _twice_wins(positive, scores, np.zeros(len(w), np.int64), 1, w)
        return float(wins[0] / (2 * w[positive].sum() * w[~positive].sum()))
    require_both_classes(positive, "AUC")
    high = np.sort(scores[positive])
    low = np.sort(scores[~positive])
    # Sorted queries make the searches cache-friendly. Each pair won counts 2 and each tie 1.
    below = int(np.searchsorted(low, high, side="left").sum())
    below_or_tied = int(np.searchsorted(low, high, side="right").sum())
    return (below + below_or_tied) / (2 * len(high) * len(low))


def roc_chart(curves: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]) -> Chart:
    """A chart of ROC curves: false and true positive rates by name (without a legend if it is empty)."""
    lines = [Line(name=name, x=x, y=y, colour=k) for k, (name, (x, y)) in enumerate(curves.items())]
    x = Axis(label="false positive rate", span=(0, 1))
    y = Axis(label="true positive rate", span=(0, 1))
    return line_chart(lines, x, y, title=f"ROC curve: {y.label} by {x.label}", diagonal=True)


@dataclass(frozen=True, kw_only=True)
class GroupAUC:
    """Group AUC and the groups that it covers.

    Args:
        value: the mean of the groups' AUC, weighted by their rows.
        groups: number of groups in the mean.
        skipped_groups: number of skipped groups, which have only one class.
        skipped_rows: number of rows of those groups.
    """

    value: float
    groups: int
    skipped_groups: int
    skipped_rows: int


class NoMixedGroupError(DataError):
    """Every group has rows of only one class."""


def group_auc(
    y: ArrayLike,
    score: ArrayLike,
    group: ArrayLike,
    *,
    one_class: Literal["skip", "half", "error"] = "skip",
    weight: ArrayLike | None = None,
) -> GroupAUC:
    """AUC within each group (usually a user), averaged with the groups' rows as weights.

    Sum of n_g AUC_g over sum of n_g, where n_g is all rows (impressions) of group g: Zhou et al.,
    Deep Interest Network, KDD 2018, eq. 7.

    Args:
        y: labels 0 and 1, [N].
        score: finite numbers, [N].
        group: the group of each row, integers or text, [N].
        one_class: how to treat a group of only one class, for which AUC is undefined: `skip`
            excludes it from both sums and counts it, `half` gives it .5, `error` raises.
        weight: row weights above 0, [N]: n_g is then the sum of a group's weights, and AUC_g is
            weighted too.

    Errors:
        DataError: as for `auc`; a missing group; no group with both classes (except with `half`);
            with `error`, any group of one class.

    >>> group_auc([0, 1, 1, 0, 1], [0.1, 0.9, 0.2, 0.8, 0.5], ["a", "a", "b", "b", "c"])
    GroupAUC(value=0.5, groups=2, skipped_groups=1, skipped_rows=1)
    """
    if one_class not in ("skip", "half", "error"):
        raise ValueError(f"one_class must be 'skip', 'half' or 'error', found {one_class!r}")
    names, rows, positives, mass, values = values_by_group(y, score, group, weight)
    mixed = (positives > 0) & (positives < rows)
    if one_class == "error" and not mixed.all():
        first = int((~mixed).argmax())
        raise DataError(
            f"every group must hold both classes, but group {names[first]!s} holds only label "
            f"{int(positives[first] > 0)} ({rows[first]} rows), as do {int((~mixed).sum())} of {len(names)} groups; "
            "use one_class='skip' or 'half', or remove those groups"
        )
    if one_class == "skip" and not mixed.any():
        raise NoMixedGroupError(
            f"group AUC needs a group with rows of both classes, but each of the {len(names)} groups holds one class "
            "only; use larger groups, or omit the group"
        )
    covered = mixed if one_class == "skip" else np.ones_like(mixed)
    return GroupAUC(
        value=float((values * mass)[covered].sum() / mass[covered].sum()),
        groups=int(covered.sum()),
        skipped_groups=int((~covered).sum()),
        skipped_rows=int(rows[~covered].sum()),
    )


def values_by_group(
    y: ArrayLike, score: ArrayLike, group: ArrayLike, weight: ArrayLike | None = None
) -> tuple[
    NDArray[np.generic], NDArray[np.int64], NDArray[np.int64], NDArray[Any], NDArray[np.float64]
]:
    """Each group's name, rows, positives, sum of weights, and AUC (.5 if it has one class): all [G]."""
    positive, scores = labelled_column(y, score, "scores")
    column = np.asarray(group)
    if column.shape != positive.shape:
        raise DataError(
            f"groups must be as many as the labels, found shape {column.shape} for {len(positive)} labels"
        )
    absent = column != column  # NaN and NaT are the values that differ from themselves
    if column.dtype == np.object_:
        absent = absent.astype(bool) | np.equal(column, np.array(None)).astype(bool)
    if absent.any():
        row = Row(int(absent.argmax()))
        raise DataError("every row needs a group, but ", row, " has none; fill it")
    try:
        names, code = np.unique(column, return_inverse=True)
    except TypeError as e:
        raise DataError(
            "groups must be all numbers or all text, found a mixture; convert them to text"
        ) from e
    code = code.astype(np.int64, copy=False)
    rows = np.bincount(code)
    positives = np.bincount(code[positive], minlength=len(names))
    w = weight_column(weight, len(positive))
    if w is None:
        mass = rows
        pairs = positives * (rows - positives)
    else:
        positive_mass = np.bincount(code, w * positive, len(names))
        negative_mass = np.bincount(code, w * ~positive, len(names))
        mass = positive_mass + negative_mass
        pairs = positive_mass * negative_mass
    mixed = (positives > 0) & (positives < rows)
    wins = _twice_wins(positive, scores, code, len(names), w)
    return names, rows, positives, mass, np.where(mixed, wins / np.where(mixed, 2 * pairs, 1), 0.5)


def mixed_group_values(
    y: ArrayLike, score: ArrayLike, group: ArrayLike, weight: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """AUC and mass of each group with both classes, [G] each: the values and weights of which group AUC is the mean.

    A group's mass is its number of rows, or the sum of their weights.

    Errors:
        DataError: as for `group_auc`.
    """
    _, rows, positives, mass, values = values_by_group(y, score, group, weight)
    mixed = (positives > 0) & (positives < rows)
    if not mixed.any():
        raise NoMixedGroupError(
            "group AUC needs a group with rows of both classes, found none; omit the group"
        )
    return values[mixed], mass[mixed]


NDCG_ROWS = 10
LARGEST_GRADE = 30
"""Its gain is 2^30 - 1, of which float64 still holds sums exactly."""


def is_grade(y: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each label [N] is a grade of relevance: a whole number from 0 to 30."""
    grade: NDArray[np.bool_] = (y >= 0) & (y <= LARGEST_GRADE) & (y == np.floor(y))
    return grade


def ndcg_values(
    grade: ArrayLike, score: ArrayLike, group: ArrayLike, weight: ArrayLike | None = None
) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """NDCG@10 of each group with a grade above 0, and its weight, [G] each: 1, or the mean of its rows' weights.

    The sum of (2^grade - 1) / log2(1 + rank) over the first ten rows by score, divided by its
    maximum (Järvelin and Kekäläinen, TOIS 20(4), 2002; the gains of Burges et al., ICML 2005). Rows
    of equal scores share the mean of their gains.

    >>> ndcg_values([2, 0, 1], [0.1, 0.9, 0.5], [7, 7, 7])[0].round(3).tolist()
    [0.587]
    """
    _, code = np.unique(np.asarray(group), return_inverse=True)
    gain = np.exp2(np.asarray(grade, np.float64)) - 1
    scores = np.asarray(score, np.float64)
    order = np.lexsort((-scores, code))
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    rank = np.arange(len(code)) - np.repeat(starts, np.diff(starts, append=len(code)))
    discount = np.where(rank < NDCG_ROWS, 1 / np.log2(2.0 + rank), 0.0)

    is_new = np.diff(code[order], prepend=-1) != 0
    is_new[1:] |= scores[order][1:] != scores[order][:-1]
    tie = np.cumsum(is_new) - 1
    mean_gain = np.bincount(tie, gain[order]) / np.bincount(tie)
    reached = np.add.reduceat(mean_gain[tie] * discount, starts)
    best = np.add.reduceat(gain[np.lexsort((-gain, code))] * discount, starts)
    is_relevant = best > 0
    values = reached[is_relevant] / best[is_relevant]
    mass = weight_column(weight, len(code))
    if mass is None:
        return values, np.ones(len(values), np.int64)
    mean_weight = np.bincount(code, mass) / np.bincount(code)
    return values, mean_weight[is_relevant]


def _twice_wins(
    positive: NDArray[np.bool_],
    score: NDArray[np.float64],
    code: NDArray[np.int64],
    groups: int,
    weight: NDArray[np.float64] | None = None,
) -> NDArray[Any]:
    """For each group, twice its won pairs plus its tied pairs of a positive and a negative row, [G].

    Counted in integers, or weighted by the product of both rows' weights.
    """
    order = np.lexsort((score, code))
    code = code[order]
    score = score[order]
    positive = positive[order]
    mass = np.ones(len(code), dtype=np.int64) if weight is None else weight[order]
    new_tie = np.ones(len(code), dtype=bool)
    new_tie[1:] = (code[1:] != code[:-1]) | (score[1:] != score[:-1])
    start = np.flatnonzero(new_tie)  # [T]
    tied_positives = np.add.reduceat(mass * positive, start)
    tied_negatives = np.add.reduceat(mass * ~positive, start)
    negatives_before = np.cumsum(tied_negatives) - tied_negatives  # over all groups so far
    first_tie = np.searchsorted(code[start], np.arange(groups))  # [G], where each group starts
    ties_per_group = np.diff(first_tie, append=len(start))
    negatives_before -= np.repeat(negatives_before[first_tie], ties_per_group)
    wins: NDArray[Any] = np.add.reduceat(
        tied_positives * (2 * negatives_before + tied_negatives), first_tie
    )
    return wins


@dataclass(frozen=True, kw_only=True)
class DeLong:
    """Two AUCs with a test of their difference.

    Args:
        first: AUC of the first scores (the mean over seeds).
        second: that of the second.
        difference: first minus second.
        standard_error: standard error of the difference, for other rows from the same source.
        p: two-sided p-value; 1 if neither the AUCs nor the rows' contributions to them differ.
    """

    first: float
    second: float
    difference: float
    standard_error: float
    p: float


def auc_standard_error(auc: float, positives: int, negatives: int) -> float:
    """The standard error of an AUC (Hanley and McNeil, Radiology 143, 1982), with AUCs below .5 mirrored."""
    area = min(max(auc, 1 - auc), 0.99)  # the formula gives 0 at an AUC of 1
    two_positives_win = area / (2 - area)
    wins_over_two_negatives = 2 * area**2 / (1 + area)
    variance = (
        area * (1 - area)
        + (positives - 1) * (two_positives_win - area**2)
        + (negatives - 1) * (wins_over_two_negatives - area**2)
    )
    return math.sqrt(max(variance, 0.0) / max(positives * negatives, 1))


def delong(y: ArrayLike, first: ArrayLike, second: ArrayLike) -> DeLong:
    """DeLong's test of the difference between the AUCs of two scores on the same rows.

    DeLong et al., Biometrics 44(3), 1988, with mid-ranks. With several seeds the mean AUC is
    tested: each row's contribution is averaged over seeds, so the test covers variance over rows
    but not over seeds.

    Args:
        y: labels 0 and 1, [N].
        first: finite scores, [N], or [S, N] for several seeds.
        second: likewise; the number of seeds may differ.

    Errors:
        DataError: fewer than two rows of a class, lengths that differ, NaN or infinity.

    >>> result = delong([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8], [0.4, 0.1, 0.2, 0.8])
    >>> result.first, result.second
    (0.875, 0.75)
    """
    positive = labels_of(y)
    positives = int(positive.sum())
    negatives = int((~positive).sum())
    if min(positives, negatives) < 2:
        raise DataError(
            f"DeLong's test needs two rows of each class, found {positives} positive and {negatives} negative"
        )
    first_wins, first_losses = _mean_auc_parts(positive, first)
    second_wins, second_losses = _mean_auc_parts(positive, second)
    first_auc = float(first_wins.mean())
    second_auc = float(second_wins.mean())
    difference = first_auc - second_auc

    variance_of_positives = float(np.var(first_wins - second_wins, ddof=1)) / positives
    variance_of_negatives = float(np.var(first_losses - second_losses, ddof=1)) / negatives
    error = math.sqrt(variance_of_positives + variance_of_negatives)
    p = 1.0 if difference == 0 else 0.0
    if error > 0:
        p = math.erfc(abs(difference) / error / math.sqrt(2))
    return DeLong(
        first=first_auc, second=second_auc, difference=difference, standard_error=error, p=p
    )


def _mean_auc_parts(
    positive: NDArray[np.bool_], scores: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """`auc_parts` of the scores [N] or [S, N], averaged over seeds."""
    by_seed = [auc_parts(positive, score) for score in np.atleast_2d(np.asarray(scores))]
    wins = np.mean([wins_of_seed for wins_of_seed, _ in by_seed], axis=0)
    losses = np.mean([losses_of_seed for _, losses_of_seed in by_seed], axis=0)
    return wins, losses


def auc_parts(y: ArrayLike, score: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each positive's share of negatives below it [P], and each negative's of positives above it [M]; ties count half.

    The mean of either is the AUC.

    >>> auc_parts([0, 0, 1, 1], [0.1, 0.4, 0.4, 0.8])
    (array([0.75, 1.  ]), array([1.  , 0.75]))
    """
    from scipy.stats import rankdata  # imported here: takes half a second

    positive, scores = labelled_column(y, score, "scores")
    require_both_classes(positive, "AUC")
    ranks = rankdata(scores)  # of ties the mean
    negatives_below = ranks[positive] - rankdata(scores[positive])  # of each positive row
    positives_below = ranks[~positive] - rankdata(scores[~positive])
    wins = negatives_below / len(positives_below)
    losses = 1.0 - positives_below / len(negatives_below)
    return wins, losses


def places(score: ArrayLike, chosen: ArrayLike, tie: ArrayLike | None = None) -> NDArray[np.int64]:
    """The ranks [P], from 1, of the candidates with numbers `chosen` [P] when all are sorted by score, highest first.

    Of equal scores the lower `tie` [N] ranks first, or without it the earlier candidate.
    """
    from fieldwise.scoring.items import top_k_indices  # which loads PyTorch

    scores = np.asarray(score, dtype=np.float64)
    if not np.isfinite(scores).all():
        row = int((~np.isfinite(scores)).argmax())
        raise DataError(
            f"scores to rank by must be finite, found {scores[row]} for candidate {row} (counting from 0)"
        )
    order = top_k_indices(scores, len(scores), tie)
    rank = np.empty(len(scores), np.int64)
    rank[order] = np.arange(1, len(scores) + 1)
    return rank[np.asarray(chosen, dtype=np.int64)]


def top_k_metrics(
    rank: ArrayLike, user: ArrayLike, users: int, k: int
) -> dict[str, NDArray[np.float64]]:
    """Metrics of every user's first k candidates.

    - `hr`, hit rate: 1 if one of the user's positives is among them, else 0.
    - `ndcg`: the sum of 1 / log2(1 + rank) over the positives among them, divided by the maximum
      for the user's number of positives (Järvelin and Kekäläinen, TOIS 20(4), 2002, with gains of 0
      and 1).
    - `recall`: the share of the user's positives that are among them; at most k / positives if
      there are more.

    `rank` is the rank of each positive among its user's candidates, from 1, [P], and `user` whose
    it is, from 0 to U - 1, [P]; every user has at least one. The metrics have a value per user,
    [U].

    >>> result = top_k_metrics([1, 5, 3], [0, 0, 1], users=2, k=3)
    >>> result["hr"].tolist(), result["recall"].tolist(), result["ndcg"].round(3).tolist()
    ([1.0, 1.0], [0.5, 1.0], [0.613, 0.5])
    """
    if k < 1:
        raise DataError(f"k must be at least 1, found {k}")
    rank_P = np.asarray(rank, dtype=np.int64)
    user_P = np.asarray(user, dtype=np.int64)
    positives = np.bincount(user_P, minlength=users)
    if len(positives) != users or not positives.all():
        raise DataError(
            f"each of the {users} users must have a positive, found users without one, or more users"
        )
    is_hit = rank_P <= k
    hits = np.bincount(user_P, is_hit, minlength=users)
    gain_P = np.where(is_hit, 1 / np.log2(1.0 + rank_P), 0.0)
    gain = np.bincount(user_P, gain_P, minlength=users)
    ideal_by_positives = np.cumsum(1 / np.log2(np.arange(2, k + 2)))
    ideal = ideal_by_positives[np.minimum(positives, k) - 1]
    return {"hr": (hits > 0).astype(np.float64), "ndcg": gain / ideal, "recall": hits / positives}

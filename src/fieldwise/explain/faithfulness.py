"""Faithfulness of explanations: deletion and insertion curves.

Letters: N rows, F fields, K background rows per row, O orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fieldwise.errors import DataError
from fieldwise.explain.attribution import has_gradients
from fieldwise.explain.explanation import explain_subject
from fieldwise.explain.subject import Method, Subject

RANDOM = "random"
BACKGROUND_ROWS_PER_ROW = 8
RESAMPLES = 1000
INTERVAL_PERCENTILES = (2.5, 97.5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Curves:
    """Changes of the score as fields take background rows' values, in one order of importance.

    Args:
        order: the source of the order.
        deletion: [F + 1], the mean absolute change of the logit without the m most important
            fields.
        insertion: [F + 1], the same with only these fields, all others replaced; it ends at 0.
        deletion_area: the mean of `deletion` over m = 1..F-1 as a share of its end: higher is more
            faithful.
        insertion_area: 1 minus the same mean of `insertion`: higher is more faithful.
        deletion_interval: 95 % percentile bootstrap over rows.
        insertion_interval: likewise.
        deletion_gain: gain of `deletion_area` over the random order, with its paired interval;
            zeros for itself.
        insertion_gain: likewise.
    """

    order: str
    deletion: np.ndarray
    insertion: np.ndarray
    deletion_area: float
    insertion_area: float
    deletion_interval: tuple[float, float]
    insertion_interval: tuple[float, float]
    deletion_gain: tuple[float, float, float]
    insertion_gain: tuple[float, float, float]


def orders_of(subject: Subject, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Importance of every row's fields by every method that the model supports, [N, F] each; higher comes first.

    `contributions` of the model's default method, `attention` (AFM: the sum over a field's pairs;
    AutoInt: the mean weight that all fields give it, over layers and heads) or `gates` (IntTower),
    `integrated_gradients` and `occlusion` if they are not the default method. Each tower's gates
    sum to 1 separately, so fields of the smaller tower tend to come first.
    """
    methods: list[Method] = [subject.usual_method]
    if has_gradients(subject.network):
        methods.append("integrated_gradients")
    methods.append("occlusion")
    orders: dict[str, np.ndarray] = {}
    for method in dict.fromkeys(methods):
        contributions = explain_subject(subject, method, seed=seed).contributions
        orders[method] = np.abs(contributions)
    for group in subject.term_groups:
        orders |= group.importances()
    return orders


def faithfulness(
    subject: Subject,
    orders: Mapping[str, np.ndarray] | None = None,
    *,
    draws: int = BACKGROUND_ROWS_PER_ROW,
    seed: int = 0,
) -> tuple[Curves, ...]:
    """Deletion and insertion curves (Petsiuk et al., BMVC 2018) for every order of fields, and a random one.

    A field is removed by giving it a background row's value; the absolute change of the logit is
    measured. All orders use the same background rows. Occlusion is computed in the same way with
    the same background, so it is the best by construction: read it as the maximum that an order can
    reach.

    Args:
        subject: N rows, at least 2, with at least 2 fields.
        orders: importances [N, F] by name; `orders_of` if omitted.
        draws: K, also the number of random orders per row.
        seed: seed of background rows, random orders and resamples.

    Errors:
        DataError: fewer than two rows or fields, or no logit changes.
    """
    rows = len(subject.table)
    fields = len(subject.fields)
    if rows < 2 or fields < 2:
        raise DataError(
            f"faithfulness is a mean over rows and fields, at least 2 each: found {rows} and {fields}"
        )
    rng = np.random.default_rng(seed)
    others = rng.integers(0, len(subject.background), (rows, draws))
    random_NKF = rng.random((rows, draws, fields))
    importances = dict(orders_of(subject, seed=seed) if orders is None else orders)
    importances[RANDOM] = random_NKF

    all_replaced = _changes(subject, others, np.ones((rows, draws, fields), bool))
    if not all_replaced.mean() > 0:
        raise DataError("no field changes the score of these rows, so faithfulness is undefined")
    none_replaced = np.zeros(rows)
    deletions: dict[str, np.ndarray] = {}
    insertions: dict[str, np.ndarray] = {}
    for name, importance in importances.items():
        ranks_NKF = np.broadcast_to(_ranks(importance), random_NKF.shape)
        deleted = [_changes(subject, others, ranks_NKF < m) for m in range(1, fields)]
        inserted = [_changes(subject, others, ranks_NKF >= m) for m in range(1, fields)]
        deletions[name] = np.stack([none_replaced, *deleted, all_replaced])
        insertions[name] = np.stack([all_replaced, *inserted, none_replaced])

    resamples = rng.integers(0, rows, (RESAMPLES, rows))
    random_deletion_areas = _areas(deletions[RANDOM], all_replaced, resamples)
    random_insertion_areas = 1 - _areas(insertions[RANDOM], all_replaced, resamples)
    curves = []
    for name in importances:
        deletion_areas = _areas(deletions[name], all_replaced, resamples)
        insertion_areas = 1 - _areas(insertions[name], all_replaced, resamples)
        curves.append(
            Curves(
                order=name,
                deletion=deletions[name].mean(1),
                insertion=insertions[name].mean(1),
                deletion_area=float(deletion_areas[0]),
                insertion_area=float(insertion_areas[0]),
                deletion_interval=_interval(deletion_areas),
                insertion_interval=_interval(insertion_areas),
                deletion_gain=_gain(deletion_areas, random_deletion_areas),
                insertion_gain=_gain(insertion_areas, random_insertion_areas),
            )
        )
    return tuple(curves)


def _ranks(importance: np.ndarray) -> np.ndarray:
    """The fields' ranks [N, 1 or K, F], 0 for the most important; ties are in the fields' order."""
    if importance.ndim == 2:
        importance = importance[:, None]
    order = np.argsort(-importance, axis=-1, kind="stable")
    return np.argsort(order, axis=-1, kind="stable")


def _changes(subject: Subject, others: np.ndarray, taken_NKF: np.ndarray) -> np.ndarray:
    """The absolute change of every row's logit [N], averaged over background rows."""
    rows, draws, fields = taken_NKF.shape
    repeated = np.repeat(np.arange(rows), draws)
    result = subject.mixer.score(repeated, others.ravel(), taken_NKF.reshape(-1, fields))
    change: np.ndarray = np.abs(result.reshape(rows, draws) - subject.logit[:, None]).mean(1)
    return change


def _areas(curve: np.ndarray, all_replaced: np.ndarray, resamples: np.ndarray) -> np.ndarray:
    """The area under a curve [F + 1, N] as a share of its largest value: of all rows, then of every resample."""
    inner = curve[1:-1].mean(0)
    # a resample in which no logit changes has no share, and is skipped
    with np.errstate(invalid="ignore"):
        of_resamples = inner[resamples].sum(1) / all_replaced[resamples].sum(1)
    return np.array([inner.sum() / all_replaced.sum(), *of_resamples])


def _interval(areas: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the resamples, which follow the value of all rows."""
    low, high = np.nanpercentile(areas[1:], INTERVAL_PERCENTILES).tolist()
    return low, high


def _gain(areas: np.ndarray, random_areas: np.ndarray) -> tuple[float, float, float]:
    """The difference from the random order, with its interval."""
    gain = areas - random_areas
    return float(gain[0]), *_interval(gain)

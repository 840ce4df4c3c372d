"""Faithfulness of explanations: deletion and insertion curves.

Letters: N rows, F fields, K background rows per row, O orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fieldwise.errors import DataError
from fieldwise.explain.attribution import has_gradients
from fieldwise.explain.explanation import explain_subject
from fieldwise.explain.subject import Subject

RANDOM = "random"
DRAWS = 8
RESAMPLES = 1000
EDGES = (2.5, 97.5)


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
    usual = subject.usual_method
    methods = [
        usual,
        *(["integrated_gradients"] if has_gradients(subject.network) else []),
        "occlusion",
    ]
    results = {
        name: np.abs(explain_subject(subject, name, seed=seed).contributions)  # type: ignore[arg-type]
        for name in dict.fromkeys(methods)
    }
    shown = subject.terms.shown
    rows = len(subject.table)
    fields = len(subject.fields)
    if "attention" in shown and "pairs" in subject.terms.added:
        results["attention"] = subject.by_field(shown["attention"])
    elif "attention" in shown:
        results["attention"] = shown["attention"].mean((1, 2, 3)).astype(np.float64)
    elif "user_gates" in shown:
        results["gates"] = np.zeros((rows, fields))
        for side in ("user", "item"):
            results["gates"][:, subject.tower_fields(side)] = shown[f"{side}_gates"]
    return results


def faithfulness(
    subject: Subject,
    orders: Mapping[str, np.ndarray] | None = None,
    *,
    draws: int = DRAWS,
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
    given = {**(orders_of(subject, seed=seed) if orders is None else orders), RANDOM: random_NKF}
    all_gone = _changes(subject, others, np.ones((rows, draws, fields), bool))
    if not all_gone.mean() > 0:
        raise DataError("no field changes the score of these rows, so faithfulness is undefined")
    moved: dict[str, list[np.ndarray]] = {}
    zero = np.zeros(rows)
    for name, importance in given.items():
        # The fields' ranks, 0 for the most important; ties in the fields' order.
        order = np.argsort(
            -importance if importance.ndim == 3 else -importance[:, None], axis=-1, kind="stable"
        )
        ranks = np.broadcast_to(np.argsort(order, axis=-1, kind="stable"), random_NKF.shape)
        deleted = [_changes(subject, others, ranks < m) for m in range(1, fields)]
        inserted = [_changes(subject, others, ranks >= m) for m in range(1, fields)]
        moved[name] = [np.stack([zero, *deleted, all_gone]), np.stack([all_gone, *inserted, zero])]
    resamples = rng.integers(0, rows, (RESAMPLES, rows))
    return tuple(_curves(moved, name, all_gone, resamples) for name in given)


def _changes(subject: Subject, others: np.ndarray, taken_NKF: np.ndarray) -> np.ndarray:
    """The absolute change of every row's logit [N], averaged over background rows."""
    rows, draws, fields = taken_NKF.shape
    repeated = np.repeat(np.arange(rows), draws)
    result = subject.mixer.score(repeated, others.ravel(), taken_NKF.reshape(-1, fields))
    change: np.ndarray = np.abs(result.reshape(rows, draws) - subject.logit[:, None]).mean(1)
    return change


def _curves(
    moved: dict[str, list[np.ndarray]], name: str, all_gone: np.ndarray, resamples: np.ndarray
) -> Curves:
    figures: dict[str, Any] = {}
    for k, what in enumerate(("deletion", "insertion")):
        # under the curve of this order and of the random one: for all rows first, then for every
        # resample
        shares = []
        for curve in (moved[name][k], moved[RANDOM][k]):
            inner = curve[1:-1].mean(0)
            # a resample in which no logit changes has no share, and is skipped
            with np.errstate(invalid="ignore"):
                resampled = inner[resamples].sum(1) / all_gone[resamples].sum(1)
            share = np.array([inner.sum() / all_gone.sum(), *resampled])
            shares.append(1 - share if what == "insertion" else share)
        own = shares[0]
        gain = shares[0] - shares[1]
        ends, ends_of_gain = (
            tuple(np.nanpercentile(one[1:], EDGES).tolist()) for one in (own, gain)
        )
        figures |= {
            what: moved[name][k].mean(1),
            f"{what}_area": float(own[0]),
            f"{what}_interval": ends,
        }
        figures[f"{what}_gain"] = (float(gain[0]), *ends_of_gain)
    return Curves(order=name, **figures)

"""Scales, fillings and vocabularies that were learned on more than the training rows."""

import numpy as np

from fieldwise.auditing.finding import Finding, Severity
from fieldwise.auditing.table import TRAIN, AuditedTable

NEAR = 1e-3
TIMES_NEARER = 10.0
LEAST_FILLED = 0.005
LEAST_CODES = 200


def learned_on_all_rows(table: AuditedTable) -> list[Finding]:
    """Findings on columns that are scaled, filled or numbered by all rows and not by the training rows."""
    if table.part is None:
        return []
    in_train = table.part == TRAIN
    findings = []
    for column in table.columns:
        if column == table.time:
            continue
        cells = table.numbers(column)
        if cells is None or cells.n_unique() < 3:
            continue
        values = cells.fill_null(float("nan")).to_numpy()
        present = np.isfinite(values)
        what = _learned(values[present], values[present & in_train])
        if what is None:
            continue
        sentence, severity = what
        findings.append(
            Finding(
                kind="learned-on-all-rows",
                severity=severity,
                what=f"column {column!r} {sentence}",
                remedy="learn scales, fillings and vocabularies on training rows alone, as this package's encoder does",
                column=column,
            )
        )
    return findings


def _learned(values: np.ndarray, train: np.ndarray) -> tuple[str, Severity] | None:
    """What about a column's numbers holds over all rows alone, and how bad that is."""
    if len(train) < 20 or len(train) == len(values):
        return None
    if np.all(values == np.round(values)):
        return _numbered(values, train)
    if _nearer(_unlike_standard(values), _unlike_standard(train)):
        return "has mean 0 and deviation 1 over all rows, and not over the training rows", "medium"
    reaches = (values.min() == 0 and values.max() == 1, train.min() == 0 and train.max() == 1)
    if reaches == (True, False):
        return "reaches from 0 to 1 over all rows, and not over the training rows", "medium"
    filling = _filling(values)
    if filling is not None:
        of_all = [
            abs(filling - middle(values[values != filling])) for middle in (np.mean, np.median)
        ]
        of_train = [
            abs(filling - middle(train[train != filling])) for middle in (np.mean, np.median)
        ]
        scale = max(float(values.std()), 1e-12)
        if _nearer(min(of_all) / scale, min(of_train) / scale):
            return (
                f"is filled with {filling:g}, the middle of all rows and not of the training rows",
                "medium",
            )
    return None


def _nearer(of_all: float, of_train: float) -> bool:
    """Whether something holds over all rows, and much less over the training rows."""
    return of_all < NEAR and of_train > TIMES_NEARER * max(of_all, 1e-5)


def _unlike_standard(values: np.ndarray) -> float:
    """How far numbers are from mean 0 and deviation 1."""
    deviations = [abs(float(values.std(ddof=ddof)) - 1) for ddof in (0, 1)]
    return max(abs(float(values.mean())), min(deviations))


def _filling(values: np.ndarray) -> float | None:
    """A number that stands in many rows of a column of nearly all different ones."""
    distinct, counts = np.unique(values, return_counts=True)
    most = int(counts.argmax())
    if counts[most] < max(LEAST_FILLED * len(values), 10) or len(distinct) < len(values) / 4:
        return None
    return float(distinct[most])


def _numbered(values: np.ndarray, train: np.ndarray) -> tuple[str, Severity] | None:
    """Whether codes without gaps have gaps in the training rows, so that they were given to all rows."""
    distinct = np.unique(values)
    of_train = np.unique(train)
    is_dense = len(distinct) >= LEAST_CODES and distinct[-1] - distinct[0] + 1 == len(distinct)
    if not is_dense or distinct[0] not in (0, 1):
        return None
    gaps = int(of_train[-1] - of_train[0]) + 1 - len(of_train)
    if gaps < max(0.01 * len(distinct), 2):
        return None
    return (
        "counts its values without gaps over all rows, and with gaps over the training rows",
        "low",
    )

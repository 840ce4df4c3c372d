"""Columns that predict the label alone: by value, absence, precision, length or order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from fieldwise.auditing.association import Reading, Scorer, Target, separations
from fieldwise.auditing.finding import SEVERITIES, SHOWN_ROWS, Finding, Severity
from fieldwise.auditing.readings import WAYS, place, readings
from fieldwise.auditing.table import AuditedTable

MOST_ROWS = 100_000
FAMILY_WISE = 0.05
FALSE_DISCOVERIES = 0.05
LEAST_LABEL_LIKE = 0.99
"""The separation of a column that alone nearly is the label."""
LEAST_SUSPICIOUS = 0.9
LEAST_OF_FORM = {"absence": (0.95, 0.75), "decimals": (0.95, 0.75), "length": (0.97, 0.8)}
"""From which separations the form of cells is a high or a medium finding: it says nothing of what they mean."""
FORM_SAYS_MORE = 0.01
LEAST_OF_PLACE = 0.6
MOST_PERMUTATIONS = 199
LEAST_PERMUTATIONS = 39
MOST_EVALUATIONS = 60_000
"""Readings times permutations."""
SHOWN_CLASSES = 30
LEAST_OF_A_CLASS = 5
KINDS = {
    "value": "predicts-alone",
    "order": "predicts-alone",
    "absence": "absence",
    "decimals": "precision",
    "length": "length",
    "place": "row-order",
}
REMEDIES = {
    "predicts-alone": "find out when this value is written: if at or after the outcome, leave the column out",
    "absence": "find out who fills this cell and when: if only for one outcome, leave the column out",
    "precision": "the number was computed in different ways for different outcomes: round it alike, or leave it out",
    "length": "the text was written in different ways for different outcomes: leave it out, or keep its meaning alone",
    "row-order": "shuffle the rows before any split, and never use a row number as a field",
}


@dataclass(frozen=True, eq=False)
class _Measured:
    """How well each of C readings predicts.

    Args:
        values: the separation [C], of several classes the mean over them.
        highest: the highest of a class [C].
        p: the family-wise probability by chance [C].
    """

    values: np.ndarray
    highest: np.ndarray
    p: np.ndarray


def columns_alone(table: AuditedTable) -> list[Finding]:
    """Findings on columns that predict the label alone, out of fold, beyond what permutations reach."""
    table = table.sample(MOST_ROWS)
    by_class = len(table.targets) > 1
    return _findings(table, place(table), _by_class if by_class else _against_permutations)


def columns_alone_quickly(table: AuditedTable) -> list[Finding]:
    """`columns_alone` with the normal tail of a column without meaning, in place of permutations."""
    return _findings(table.sample(MOST_ROWS), [], _against_normal_tail)


def _findings(
    table: AuditedTable,
    all_readings: list[Reading],
    measure: Callable[[AuditedTable, Sequence[Scorer]], _Measured],
) -> list[Finding]:
    """The worst finding on each column, of its readings and some others."""
    if not _enough(table):
        return []
    for column in table.columns:
        all_readings += readings(table, column)
    if not all_readings:
        return []
    measured = measure(table, [Scorer(reading, table.folds) for reading in all_readings])
    findings: dict[str, Finding] = {}
    for k, reading in enumerate(all_readings):
        finding = _finding(table, reading, measured, k)
        known = findings.get(reading.column)
        if finding is not None and (known is None or _rank(finding) > _rank(known)):
            findings[reading.column] = finding
    return list(findings.values())


def _enough(table: AuditedTable) -> bool:
    """Whether there are enough rows of two classes."""
    if table.task == "regression":
        return len(table) >= 20 and float(table.y.std()) > 0
    counts = np.bincount(table.y.astype(np.int64))
    return int((counts >= LEAST_OF_A_CLASS).sum()) >= 2


def _rank(finding: Finding) -> tuple[int, float]:
    """How much a finding on a column says; of nearly equal ones that on the form of cells says more."""
    strength = 0.0 if finding.strength is None else finding.strength.value
    if finding.kind != KINDS["value"]:
        strength += FORM_SAYS_MORE
    return -SEVERITIES.index(finding.severity), strength


def _against_permutations(table: AuditedTable, scorers: Sequence[Scorer]) -> _Measured:
    permutations = int(
        np.clip(MOST_EVALUATIONS // len(scorers), LEAST_PERMUTATIONS, MOST_PERMUTATIONS)
    )
    result = separations(
        scorers,
        table.targets[0],
        permutations=permutations,
        seed=table.seed,
        strata=table.strata(),
    )
    p = np.where(result.q <= FALSE_DISCOVERIES, result.p_family, 1.0)
    return _Measured(result.values, result.values, p)


def _by_class(table: AuditedTable, scorers: Sequence[Scorer]) -> _Measured:
    """Several classes, each against the others.

    Of each reading the class that it separates best is permuted, and its normal tail is multiplied
    by the numbers of readings and classes (Bonferroni): permutations of all would take too long.
    """
    targets, values = _of_classes(table, scorers)
    best = values.argmax(0)
    p = np.ones(len(scorers))
    for k in np.flatnonzero(values.max(0) >= LEAST_OF_PLACE).tolist():
        alone = separations(
            [scorers[k]],
            targets[int(best[k])],
            permutations=LEAST_PERMUTATIONS,
            seed=table.seed,
            strata=None,
        )
        p[k] = min(float(norm.sf(alone.z[0])) * values.size, 1.0)
    return _Measured(values.mean(0), values.max(0), p)


def _against_normal_tail(table: AuditedTable, scorers: Sequence[Scorer]) -> _Measured:
    targets, values = _of_classes(table, scorers)
    best = values.argmax(0)
    p = [targets[best[k]].p_by_chance(values[best[k], k]) for k in range(len(scorers))]
    # A reading in order counts in either direction.
    return _Measured(values.mean(0), values.max(0), np.array(p) * values.size * 2)


def _of_classes(table: AuditedTable, scorers: Sequence[Scorer]) -> tuple[list[Target], np.ndarray]:
    """The targets of the largest classes, and the separation of each by each reading [K, C]."""
    present = [target for target in table.targets if target.mean > 0]
    targets = sorted(present, key=lambda target: -target.mean)[:SHOWN_CLASSES]
    return targets, np.array([[s.separation(t.values, t) for s in scorers] for t in targets])


def _finding(table: AuditedTable, reading: Reading, measured: _Measured, k: int) -> Finding | None:
    """What is found about one reading of a column; None if it is weak or may be chance."""
    value = float(measured.values[k])
    highest = float(measured.highest[k])
    p = float(measured.p[k])
    severity = _severity(reading.way, value, highest, is_id=reading.column in table.ids)
    if table.task == "regression" and reading.way == "absence":
        above = _share_of_pairs(value, float(reading.codes.mean()))
        severity = _severity("value", above, above, is_id=False)
    if severity is None or p > FAMILY_WISE:
        return None
    kind = KINDS[reading.way]
    how = "nearly perfectly" if severity == "high" else "very well"
    what = f"{WAYS[reading.way].format(repr(reading.column))} alone predicts the label {how}"
    if value < highest:
        what += f", one class with an AUC of {highest:.4f}"
    return table.finding(
        kind,
        severity,
        what,
        REMEDIES[kind],
        column=reading.column or None,
        measure=table.measure,
        strength=table.targets[0].interval(value),
        at=telling_rows(reading, max(table.targets, key=lambda one: one.values.var()), table.folds),
        p=p,
    )


def _severity(way: str, value: float, highest: float, *, is_id: bool) -> Severity | None:
    """How bad it is that a column predicts so well, if it is."""
    if way == "place":
        return "medium" if value >= LEAST_OF_PLACE else None
    high, medium = LEAST_OF_FORM.get(way, (LEAST_LABEL_LIKE, LEAST_SUSPICIOUS))
    if is_id:
        medium = high
    if value >= high:
        return "high"
    return "medium" if highest >= medium else None


def _share_of_pairs(separation: float, empty: float) -> float:
    """In which share of pairs of a row with an empty cell and another the label of one is higher.

    The correlation of the ranks of labels with a mark of a share s of rows is at most the square
    root of 3 s (1 - s), which is reached where the label of one is higher in all pairs.
    """
    return float(0.5 + (separation - 0.5) / (3 * empty * (1 - empty)) ** 0.5)


def telling_rows(reading: Reading, target: Target, folds: np.ndarray) -> np.ndarray:
    """The places of the rows with the highest and lowest scores of a reading."""
    scores = Scorer(reading, folds).scores(target.values, target)
    order = np.argsort(scores, kind="stable")
    lowest = SHOWN_ROWS // 2
    return np.concatenate([order[lowest - SHOWN_ROWS :][::-1], order[:lowest]])

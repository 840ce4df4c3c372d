"""Columns that predict the label alone: by value, absence, precision, length or order."""

import math
from collections.abc import Sequence

import numpy as np

from fieldwise.auditing.association import Reading, Scorer, Separations, random_folds, separations
from fieldwise.auditing.finding import SEVERITIES, Finding, Severity
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
LEAST_ROWS_WITHOUT_PERMUTATIONS = 200
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


def columns_alone(table: AuditedTable) -> list[Finding]:
    """Findings on columns that predict the label alone, out of fold, beyond what permutations reach."""
    table = table.sample(MOST_ROWS)
    if not _enough(table):
        return []
    all_readings = place(table)
    for column in table.columns:
        all_readings += readings(table, column)
    if not all_readings:
        return []
    results = measured(table, all_readings)
    findings: dict[str, Finding] = {}
    for k, reading in enumerate(all_readings):
        finding = _finding(table, reading, results, k)
        known = findings.get(reading.column)
        if finding is not None and (known is None or _rank(finding) > _rank(known)):
            findings[reading.column] = finding
    return list(findings.values())


def _rank(finding: Finding) -> tuple[int, float]:
    """How much a finding on a column says; of nearly equal ones that on the form of cells says more."""
    strength = 0.0 if finding.strength is None else finding.strength.value
    if finding.kind != KINDS["value"]:
        strength += FORM_SAYS_MORE
    return -SEVERITIES.index(finding.severity), strength


def columns_that_are_the_label(table: AuditedTable) -> list[Finding]:
    """Findings on columns that alone nearly are the label, so plainly that no permutations are needed."""
    table = table.sample(MOST_ROWS)
    if not _enough(table) or len(table) < LEAST_ROWS_WITHOUT_PERMUTATIONS:
        return []
    findings = []
    for column in table.columns:
        value, reading = strongest_reading(table, readings(table, column))
        if reading is not None and value >= LEAST_LABEL_LIKE:
            findings.append(_described(table, reading, value, value, "high", None))
    return findings


def strongest_reading(
    table: AuditedTable, all_readings: Sequence[Reading]
) -> tuple[float, Reading | None]:
    """The highest mean separation over classes, and the reading that has it."""
    folds = random_folds(len(table), table.seed)
    strongest: tuple[float, Reading | None] = (0.5, None)
    for reading in all_readings:
        scorer = Scorer(reading, folds)
        values = [scorer.separation(target.values, target) for target in table.targets]
        value = float(np.mean(values))
        if value > strongest[0]:
            strongest = (value, reading)
    return strongest


def measured(
    table: AuditedTable, all_readings: Sequence[Reading]
) -> tuple[Separations, np.ndarray]:
    """The mean separation of readings over classes, and the highest of a class [C]; of two classes both are one."""
    folds = random_folds(len(table), table.seed)
    scorers = [Scorer(reading, folds) for reading in all_readings]
    if len(table.targets) > 1:
        return _measured_by_class(table, scorers)
    permutations = int(
        np.clip(MOST_EVALUATIONS // len(scorers), LEAST_PERMUTATIONS, MOST_PERMUTATIONS)
    )
    target = table.targets[0]
    result = separations(
        scorers, target, permutations=permutations, seed=table.seed, strata=table.strata()
    )
    return result, result.values


def _measured_by_class(
    table: AuditedTable, scorers: Sequence[Scorer]
) -> tuple[Separations, np.ndarray]:
    """`measured` for several classes, each against the others.

    Of each reading the class that it separates best is permuted, and its normal tail is multiplied
    by the numbers of readings and classes (Bonferroni): permutations of all would take too long.
    """
    targets = sorted(table.targets, key=lambda target: -target.mean)[:SHOWN_CLASSES]
    values = np.array([[s.separation(t.values, t) for s in scorers] for t in targets])
    best = values.argmax(0)
    p = np.ones(len(scorers))
    z = np.zeros(len(scorers))
    for k in np.flatnonzero(values.max(0) >= LEAST_OF_PLACE).tolist():
        alone = separations(
            [scorers[k]],
            targets[int(best[k])],
            permutations=LEAST_PERMUTATIONS,
            seed=table.seed,
            strata=None,
        )
        z[k] = alone.z[0]
        p[k] = min(math.erfc(z[k] / math.sqrt(2)) / 2 * values.size, 1.0)
    return Separations(values.mean(0), z, p, p), values.max(0)


def _enough(table: AuditedTable) -> bool:
    """Whether there are enough rows of two classes."""
    if table.task == "regression":
        return len(table) >= 20 and float(table.y.std()) > 0
    counts = np.bincount(table.y.astype(np.int64))
    return int((counts >= LEAST_OF_A_CLASS).sum()) >= 2


def _finding(
    table: AuditedTable, reading: Reading, results: tuple[Separations, np.ndarray], k: int
) -> Finding | None:
    """What is found about one reading of a column; None if it is weak or may be chance."""
    separation, highest = results
    value = float(separation.values[k])
    if separation.p_family[k] > FAMILY_WISE or separation.q[k] > FALSE_DISCOVERIES:
        return None
    is_id = reading.column in table.ids
    severity = _severity(reading.way, value, float(highest[k]), is_id=is_id)
    if severity is None:
        return None
    p = float(separation.p_family[k])
    return _described(table, reading, value, float(highest[k]), severity, p)


def _described(
    table: AuditedTable,
    reading: Reading,
    value: float,
    highest: float,
    severity: Severity,
    p: float | None,
) -> Finding:
    """The finding that a reading predicts the label alone."""
    kind = KINDS[reading.way]
    subject = WAYS[reading.way].format(repr(reading.column))
    what = f"{subject} alone predicts the label nearly perfectly"
    if severity == "medium":
        what = f"{subject} alone predicts the label very well"
    if value < highest:
        what += f", one class with an AUC of {highest:.4f}"
    return Finding(
        kind=kind,
        severity=severity,
        column=reading.column or None,
        what=what,
        measure=table.measure,
        strength=table.targets[0].interval(value),
        rows=telling_rows(table, reading),
        p=p,
        remedy=REMEDIES[kind],
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


def telling_rows(table: AuditedTable, reading: Reading, most: int = 5) -> tuple[int, ...]:
    """Numbers of rows with the highest and lowest scores of a reading, in the table's numbering."""
    target = max(table.targets, key=lambda one: one.values.var())
    scores = Scorer(reading, random_folds(len(table), table.seed)).scores(target.values, target)
    order = np.argsort(scores, kind="stable")
    shown = [*order[-(most - most // 2) :][::-1], *order[: most // 2]]
    return tuple(int(table.rows[row]) for row in shown)

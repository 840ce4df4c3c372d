"""Columns that predict the label alone: by value, absence, precision, length or order."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fieldwise.auditing.association import Reading, Scorer, Target, separations
from fieldwise.auditing.finding import SEVERITIES, SHOWN_ROWS, Finding, Severity
from fieldwise.auditing.readings import WAYS, place, readings, stands_for_none
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
LEAST_FILLED = 0.02
LEAST_FILLED_HIGH = 0.1
"""Of all rows, in filled cells that nearly are the label."""
LEAST_OF_A_CLASS = 5
KINDS = {
    "value": "predicts-alone",
    "order": "predicts-alone",
    "absence": "absence",
    "usual": "predicts-alone",
    "decimals": "precision",
    "length": "length",
    "place": "row-order",
}
REMEDIES = {
    "predicts-alone": "find out when this value is written: if at or after the outcome, leave the column out",
    "absence": "find out who fills this cell and when: if only for one outcome, leave the column out",
    "precision": "the number was computed in different ways for different outcomes: round it alike, or leave it out",
    "length": "the text was written in different ways for different outcomes: leave it out, or keep its meaning alone",
    "row-order": "if the rows are in order of time, split by time; else shuffle them before any split; never use a row "
    "number as a field",
}


def columns_alone(table: AuditedTable) -> list[Finding]:
    """Findings on columns that predict the label alone, out of fold, beyond what permutations reach.

    For several classes the normal tail stands for permutations, which would take too long.
    """
    table = table.sample(MOST_ROWS)
    return _findings(table, place(table), permute=table.task != "classes")


def columns_alone_quickly(table: AuditedTable) -> list[Finding]:
    """`columns_alone` with the normal tail of a column without meaning, in place of permutations."""
    return _findings(table.sample(MOST_ROWS), [], permute=False)


def filled_cells_alone(table: AuditedTable) -> list[Finding]:
    """Findings on columns that nearly are the label in the rows where they are filled.

    An amount of 0 in most rows counts as not filled. Such rows hide from a measure over all rows
    how much the others tell.
    """
    table = table.sample(MOST_ROWS)
    findings = []
    for column in table.columns:
        is_filled = ~stands_for_none(table.text(column)).to_numpy()
        share = float(is_filled.mean())
        if not LEAST_FILLED <= share <= 1 - LEAST_FILLED:
            continue
        filled = replace(table.take(np.flatnonzero(is_filled)), columns=(column,))
        for found in _findings(filled, [], permute=False):
            p = (found.p or 0.0) * len(table.columns)
            if found.severity != "high" or p > FAMILY_WISE:
                continue
            severity: Severity = "high" if share >= LEAST_FILLED_HIGH else "medium"
            what = f"{found.what}, in the {len(filled):,} rows where it is filled ({share:.1%})"
            findings.append(replace(found, severity=severity, what=what, p=p))
    return findings


def _findings(table: AuditedTable, others: list[Reading], *, permute: bool) -> list[Finding]:
    """The worst finding on each column, of its readings and some others."""
    if not _enough(table):
        return []
    all_readings = list(others)
    for column in table.columns:
        all_readings += readings(table, column)
    scorers = [Scorer(reading, table.folds) for reading in all_readings]
    present = [target for target in table.targets if target.mean > 0]
    targets = sorted(present, key=lambda target: -target.mean)[:SHOWN_CLASSES]
    values_KC = np.array([[scorer.separation(t.values, t) for scorer in scorers] for t in targets])
    severities = [
        _severity(table, reading, values_KC[:, c]) for c, reading in enumerate(all_readings)
    ]
    if not any(severities):
        return []
    p = _of_permutations(table, scorers) if permute else _of_normal_tail(targets, values_KC)
    findings: dict[str, Finding] = {}
    for c, reading in enumerate(all_readings):
        severity = severities[c]
        if severity is None or p[c] > FAMILY_WISE:
            continue
        finding = _finding(table, reading, severity, values_KC[:, c], float(p[c]))
        known = findings.get(reading.column)
        if known is None or _rank(finding) > _rank(known):
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
    strength = finding.value
    if finding.kind != KINDS["value"]:
        strength += FORM_SAYS_MORE
    return -SEVERITIES.index(finding.severity), strength


def _of_permutations(table: AuditedTable, scorers: Sequence[Scorer]) -> np.ndarray:
    """The family-wise probability by chance of each of C readings [C], for one target."""
    permutations = np.clip(MOST_EVALUATIONS // len(scorers), LEAST_PERMUTATIONS, MOST_PERMUTATIONS)
    result = separations(
        scorers,
        table.targets[0],
        permutations=int(permutations),
        seed=table.seed,
        strata=table.strata(),
    )
    return np.where(result.q <= FALSE_DISCOVERIES, result.p_family, 1.0)


def _of_normal_tail(targets: Sequence[Target], values_KC: np.ndarray) -> np.ndarray:
    """`_of_permutations` of K targets, by Bonferroni's bound."""
    best_C = values_KC.argmax(0)
    tails = [targets[k].p_by_chance(values_KC[k, c]) for c, k in enumerate(best_C)]
    # A reading in order counts in either direction.
    return np.array(tails) * values_KC.size * 2


def _finding(
    table: AuditedTable, reading: Reading, severity: Severity, values_K: np.ndarray, p: float
) -> Finding:
    """The finding that a reading of a column predicts the label alone."""
    kind = KINDS[reading.way]
    how = "very well"
    if severity == "high":
        how = "nearly perfectly"
    elif reading.way == "place":
        how = "beyond chance: rows near each other have like labels"
    what = f"{WAYS[reading.way].format(repr(reading.column))} alone predicts the label {how}"
    value = float(values_K.mean())
    if value < values_K.max():
        what += f", one class with an AUC of {values_K.max():.4f}"
    most_varied = max(table.targets, key=lambda target: target.values.var())
    return Finding(
        kind=kind,
        severity=severity,
        what=what,
        remedy=REMEDIES[kind],
        column=reading.column or None,
        measure=table.measure,
        # a mean over classes has no interval of one of them
        strength=table.targets[0].interval(value) if len(table.targets) == 1 else value,
        rows=table.shown_rows(telling_rows(reading, most_varied, table.folds)),
        p=p,
    )


def _severity(table: AuditedTable, reading: Reading, values_K: np.ndarray) -> Severity | None:
    """How bad it is that a reading predicts so well, if it is."""
    value = float(values_K.mean())
    if reading.way == "place":
        return "medium" if value >= LEAST_OF_PLACE else None
    high, medium = LEAST_OF_FORM.get(reading.way, (LEAST_LABEL_LIKE, LEAST_SUSPICIOUS))
    highest = float(values_K.max())
    if table.task == "regression" and reading.way == "absence":
        high = LEAST_LABEL_LIKE
        medium = LEAST_SUSPICIOUS
        value = _share_of_pairs(value, float(reading.codes.mean()))
        highest = value
    if value >= high:
        return "high"
    is_id = reading.column in table.ids
    return "medium" if highest >= medium and not is_id else None


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

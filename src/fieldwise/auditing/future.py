"""Values that a row cannot have had at its time: later times, changed copies, and numbers that know later labels."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from fieldwise.auditing.association import highest_separation
from fieldwise.auditing.cells import seconds_of
from fieldwise.auditing.finding import Finding
from fieldwise.auditing.own_labels import running_labels
from fieldwise.auditing.readings import readings
from fieldwise.auditing.table import AuditedTable
from fieldwise.evaluation.interval import normal_interval
from fieldwise.evaluation.slices import share_interval

LEAST_LATE = 0.01
LEAST_TELLING = 0.6
"""Separation of the label from which on a later time is no plan."""
LEAST_KEYS = 50
MOST_KEYS = 12
"""Columns whose values are taken as keys."""
LEAST_EXCESS = 0.1
SURE = 4.0
"""Standard errors."""
PLACE = "fieldwise_place"
LATER_BY = "fieldwise_later_by"


def later_times(table: AuditedTable) -> list[Finding]:
    """Findings on columns of times that lie after the row's own time.

    A time after the row may be a plan that was known, such as a date of delivery. It is not if it
    is empty, or its distance differs, by the label.
    """
    row_times = table.seconds
    if row_times is None:
        return []
    findings = []
    for column in table.columns:
        times = None if column == table.time else seconds_of(table.frame.get_column(column))
        if times is None:
            continue
        late = times > row_times
        if late.mean() < LEAST_LATE:
            continue
        told = table.with_column(LATER_BY, np.where(late, times - row_times, np.nan))
        tells = highest_separation(readings(told, LATER_BY), table.main_target, table.folds)
        findings.append(
            Finding(
                kind="later-time",
                severity="high" if tells >= LEAST_TELLING else "medium",
                what=(
                    f"column {column!r} is later than {table.time!r} in {int(late.sum()):,} rows, and how much later "
                    f"has a separation of {tells:.4f} for the label"
                ),
                remedy=(
                    "leave the column out unless it was planned before, or take the row's time from the moment at "
                    "which the score is needed"
                ),
                column=column,
                measure="share of rows",
                strength=share_interval(late),
                rows=table.shown_rows(np.flatnonzero(late)),
            )
        )
    return findings


def changed_copies(table: AuditedTable) -> list[Finding]:
    """Findings on columns whose value differs between copies of one event (the same user, item and time)."""
    if table.time is None or len(table.ids) < 2 or table.drawn_negatives:
        return []
    keys = [*table.ids, table.time]
    copies = table.frame.drop(PLACE, strict=False).with_row_index(PLACE)
    copies = copies.filter(pl.struct(keys).is_duplicated())
    if copies.height < 20:
        return []
    findings = []
    for column in table.columns:
        if column in keys:
            continue
        events = copies.group_by(keys).agg(pl.col(column).n_unique() > 1, pl.col(PLACE).first())
        changed = events.get_column(column).to_numpy()
        if changed.mean() < LEAST_LATE:
            continue
        findings.append(
            Finding(
                kind="changed-copies",
                severity="medium",
                what=f"column {column!r} differs between copies of one event: later snapshots changed it",
                remedy="keep the first copy of each event, with the values as of its time",
                column=column,
                measure="share of events with copies",
                strength=share_interval(changed),
                rows=table.shown_rows(events.get_column(PLACE).to_numpy()[changed]),
            )
        )
    return findings


def knows_later_labels(table: AuditedTable) -> list[Finding]:
    """Findings on numbers that follow the later labels of a user, an item or another key more than its earlier ones.

    What describes a user follows both alike, given the other; what was made from the past follows
    the past. The partial correlations with the mean label before and after the row are compared.
    """
    if table.times is None:
        return []
    findings: dict[str, Finding] = {}
    for target_table in table.of_one_target():
        for key in target_table.repeating_columns()[:MOST_KEYS]:
            for finding in _of_key(target_table, key):
                findings.setdefault(finding.column or "", finding)
    return list(findings.values())


def _of_key(table: AuditedTable, key: str) -> Iterator[Finding]:
    codes = table.codes(key)
    past, future, rows = _around(table, codes)
    keys = len(np.unique(codes[rows]))
    if keys < LEAST_KEYS:
        return
    y = table.y[rows].astype(np.float64)
    for column in table.columns:
        if column in (*table.ids, table.time, *table.trusted, key) or table.describes(column, key):
            continue
        cells = table.numbers(column)
        if cells is None or cells.n_unique() < 3:
            continue
        values = cells.fill_null(cells.median()).to_numpy()[rows]
        if float(values.std()) == 0:
            continue
        with_future = abs(_partial(values, future, [past, y]))
        with_past = abs(_partial(values, past, [future, y]))
        excess = with_future - with_past
        error = (2 / keys) ** 0.5
        if excess < max(LEAST_EXCESS, SURE * error):
            continue
        yield Finding(
            kind="later-labels",
            severity="high",
            what=(
                f"column {column!r} follows the later labels of a {key!r} (partial correlation {with_future:.3f}) more "
                f"than the earlier ones ({with_past:.3f})"
            ),
            remedy="make the column again from what was known before each row ([[features]] does that)",
            column=column,
            measure="difference",
            strength=normal_interval(excess, error, least=-1, most=1),
            rows=table.shown_rows(rows),
        )


def _around(table: AuditedTable, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean labels before and after each row of its key, of rows with two or more on both sides, and these rows."""
    assert table.times is not None
    y = table.y.astype(np.float64)
    sums, counts = running_labels(codes, table.times, y)
    left = np.bincount(codes)[codes] - counts
    inner = (counts > 2) & (left >= 2)
    past = (sums - y)[inner] / (counts - 1)[inner]
    future = (np.bincount(codes, weights=y)[codes] - sums)[inner] / left[inner]
    return past, future, np.flatnonzero(inner)


def _partial(a: np.ndarray, b: np.ndarray, given: list[np.ndarray]) -> float:
    """The correlation of two variables after what others explain is taken out."""
    design = np.column_stack([np.ones(len(a)), *given])
    residuals = []
    for values in (a, b):
        weights, *_ = np.linalg.lstsq(design, values, rcond=None)
        residuals.append(values - design @ weights)
    scale = float(residuals[0].std() * residuals[1].std())
    return 0.0 if scale < 1e-12 else float((residuals[0] * residuals[1]).mean()) / scale

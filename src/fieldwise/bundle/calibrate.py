"""A bundle with a calibration that is fitted to rows, or without one."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from fieldwise.bundle.about import CalibrationFacts
from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.labels import labelled_rows
from fieldwise.display import counted
from fieldwise.errors import DataError
from fieldwise.evaluation.calibration import METHODS, Calibration, Method
from fieldwise.evaluation.metrics import before_and_after
from fieldwise.storage.scratch import NO_LIMIT

__all__ = ["calibrate", "without_calibration"]


def calibrate(
    bundle: Bundle,
    rows: Mapping[str, pl.DataFrame],
    method: Method = "platt",
    note: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """The bundle with a calibration of each binary label; scores and their order stay.

    Args:
        bundle: the bundle, with a former calibration or without.
        rows: labelled rows by what they are called. The calibration is fitted on the first, which
            the bundle was not trained on; metrics before and after are measured on all of them, and
            kept in `about.calibration`.
        method: `platt` or `isotonic`.
        note: called with messages about rows that are dropped.

    Errors:
        DataError: a label cannot be read, or the first rows are not of both classes.

    >>> from fieldwise import LR, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(600, users=20, items=10)
    >>> schema = Schema(fields=(Categorical("item_id"),), label=Label("liked"))
    >>> model = Recommender(schema, LR(), training=TrainingSettings(epochs=1)).fit(log[:400])
    >>> calibrated = calibrate(model.bundle_, {"later rows": log[400:]})
    >>> list(calibrated.calibration), calibrated.about.calibration.rows
    (['liked'], 200)
    """
    labels = bundle.schema.labels
    fitted_on = next(iter(rows))
    calibrations: dict[str, Calibration] = {}
    figures: dict[str, dict[str, Any]] = {where: {} for where in rows}
    for where, frame in rows.items():
        labelled = labelled_rows(frame, bundle.schema, budget=NO_LIMIT)
        if labelled.dropped:
            note(f"{counted(labelled.dropped, 'row')} dropped by the label's rule")
        scores = bundle.score(labelled.frame).reshape(len(labelled.frame), -1)
        for position, label in enumerate(labels):
            if label.task != "binary":
                continue
            y = labelled.y[:, position]
            score = scores[:, position]
            weight = label.log_weights(y, labelled.weight)
            if where == fitted_on:
                try:
                    calibrations[label.name] = METHODS[method](y, score, weight)
                except DataError as e:
                    raise DataError(f"label {label.name!r}, {where}: ", *e.args) from None
            figures[where][label.name] = before_and_after(
                y, score, calibrations[label.name], weight
            )
    facts = CalibrationFacts(
        method=method, fitted_on=fitted_on, rows=rows[fitted_on].height, figures=figures
    )
    about = replace(bundle.about, calibration=facts)
    return replace(bundle, about=about, calibration=calibrations)


def without_calibration(bundle: Bundle) -> Bundle:
    """The bundle without its calibration: a probability is the sigmoid of a score again."""
    return replace(bundle, about=replace(bundle.about, calibration=None), calibration={})

"""The report's calibration sections: reliability before and after calibration, and targets by prediction."""

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from fieldwise.errors import DataError
from fieldwise.evaluation import logloss_from_logits, sigmoid
from fieldwise.evaluation.bootstrap import estimate, resampled
from fieldwise.evaluation.calibration import (
    BINS,
    METHODS,
    Calibration,
    Platt,
    brier,
    calibration_error,
    fit_calibration,
    reliability,
)
from fieldwise.evaluation.slices import by_quantile, regression_slices
from fieldwise.report.blocks import Block, Figure, Note, Section, Table, count, measured, number
from fieldwise.report.line_chart import Axis, Line, line_chart
from fieldwise.report.measures import replicates_for
from fieldwise.report.runs import Scored

__all__ = ["calibration_section", "numbers_section"]

WORDS = {"none": "as trained", "platt": "Platt", "isotonic": "isotonic"}


def calibration_section(test: Scored, valid: Scored | None, kept: Calibration | None, seed: int) -> Section:
    """Reliability on the test rows, before and after calibrations fitted on the validation rows."""
    maps, blocks = _fitted(valid)
    if valid is None and kept is not None:
        maps[kept.kind] = kept
    logits = {name: test.score if one is None else one.logit(test.score) for name, one in maps.items()}
    rows = _figures_of(test, logits, seed)
    if kept is not None and kept.kind in logits:
        rows[kept.kind][0] += " (saved in this bundle)"
    note = (
        f"Calibrations are fitted on the {count(len(valid.y))} validation rows and evaluated on the "
        f"{count(len(test.y))} test rows. "
        if valid is not None
        else ""
    ) + (
        "ECE, the expected calibration error: the mean over rows of |mean prediction - positive rate| of their bin, "
        f"with {BINS} bins of equal count, and with {BINS} bins of equal width. Sampling error keeps it above 0 even "
        "for true probabilities."
    )
    columns = ["calibration", "logloss", "change of logloss", "Brier", "ECE, equal count", "ECE, equal width"]
    columns = [*columns, "mean prediction", "positive rate"]
    blocks.append(Table(columns=columns, rows=list(rows.values()), note=note))
    probabilities = {name: sigmoid(z) for name, z in logits.items()}
    edge = _edge(test.y, list(probabilities.values()))
    blocks.extend(_diagram(test.y, p, WORDS[name], edge, k) for k, (name, p) in enumerate(probabilities.items()))
    line = maps.get("platt")
    if isinstance(line, Platt):
        blocks.append(
            Note(
                text=f"Platt scaling: calibrated logit = {line.slope:.4f} × logit {line.intercept:+.4f}. A slope below "
                "1 means that the model is overconfident, above 1 underconfident."
            )
        )
    if kept is None and len(maps) > 1:
        blocks.append(Note(text="`fieldwise calibrate BUNDLE --method platt` (or isotonic) saves one in the bundle."))
    return Section(title="Calibration", blocks=blocks)


def _fitted(valid: Scored | None) -> tuple[dict[str, Calibration | None], list[Block]]:
    """Calibrations fitted on the validation rows, `none` first, and notes on those that could not be fitted."""
    maps: dict[str, Calibration | None] = {"none": None}
    if valid is None:
        text = (
            "Calibrations need scores of validation rows that the network was not trained on. A run stored by "
            "`compare` has none, nor has a bundle of `training.refit`: train a bundle without it to see them."
        )
        return maps, [Note(text=text)]
    notes: list[Block] = []
    for method in METHODS:
        try:
            maps[method] = fit_calibration(valid.y, valid.score, method)
        except DataError as e:
            notes.append(Note(text=f"{WORDS[method]} is skipped: {e}.", warns=True))
    return maps, notes


def _figures_of(test: Scored, logits: Mapping[str, np.ndarray], seed: int) -> dict[str, list[str | Markup]]:
    """A table row for each calibration's logits, compared with those of `none`."""
    drawn = resampled(test.y, np.stack(list(logits.values())), "logloss", replicates=replicates_for(test.y), seed=seed)
    losses = {name: logloss_from_logits(test.y, z) for name, z in logits.items()}
    rows: dict[str, list[str | Markup]] = {}
    for k, (name, z) in enumerate(logits.items()):
        p = sigmoid(z)
        loss = estimate([losses[name]], drawn[:, k])
        gain = estimate([losses[name] - losses["none"]], drawn[:, k] - drawn[:, 0])
        rows[name] = [
            WORDS[name],
            measured(loss.value, loss.low, loss.high),
            "" if k == 0 else measured(gain.value, gain.low, gain.high, "+"),
            number(brier(test.y, p)),
            number(calibration_error(test.y, p)),
            number(calibration_error(test.y, p, binning="width")),
            number(float(p.mean())),
            number(float(test.y.mean())),
        ]
    return rows


def _edge(y: np.ndarray, ps: Sequence[np.ndarray]) -> float:
    """The end of both axes: 1, or less if all bins are far below."""
    most = 0.0
    for p in ps:
        bins = reliability(y, p)
        most = max(most, float(bins.predicted.max()), float(bins.high.max()))
    return next(edge for edge in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if most <= edge or edge == 1.0)


def _diagram(y: np.ndarray, p: np.ndarray, name: str, edge: float, colour: int) -> Figure:
    bins = reliability(y, p)
    line = Line(
        name="",
        x=bins.predicted,
        y=bins.observed,
        low=bins.low,
        high=bins.high,
        points=True,
        joined=False,
        colour=colour,
    )
    table = Table(
        columns=["mean prediction", "positive rate", "95 % interval", "rows"],
        rows=[
            [number(a), number(b), f"{number(low)} to {number(high)}", count(n)]
            for a, b, low, high, n in zip(bins.predicted, bins.observed, bins.low, bins.high, bins.rows, strict=True)
        ],
    )
    return Figure(
        title=f"Reliability, {name}",
        drawing=line_chart(
            [line],
            Axis("mean prediction of a bin", span=(0, edge)),
            Axis("positive rate", span=(0, edge)),
            title=f"Reliability diagram, {name}: positive rate by mean prediction",
            diagonal=True,
        ),
        table=table,
    )


def numbers_section(test: Scored) -> Section:
    """A regression's targets by prediction, with a note on the sections that do not apply."""
    slices = by_quantile(test.score, bins=BINS)
    found = [one for one in regression_slices(test.y, test.score, slices) if one.metrics]
    left_out = "Omitted for a regression label: ROC, precision-recall, Platt and isotonic, which are for binary labels."
    if not found:
        return Section(title="Calibration", blocks=[Note(text=f"Too few rows for bins. {left_out}")])
    x, y = ([one.metrics[name] for one in found] for name in ("mean_prediction", "mean_target"))
    line = Line(
        name="",
        x=[v.value for v in x],
        y=[v.value for v in y],
        low=[v.low for v in y],
        high=[v.high for v in y],
        joined=False,
        points=True,
    )
    ends = [v for one in (*x, *y) for v in (one.low, one.high)]
    room = (max(ends) - min(ends)) * 0.05 or 0.5
    span = (min(ends) - room, max(ends) + room)
    table = Table(
        columns=["mean prediction", "mean target", "95 % interval", "rows"],
        rows=[
            [number(a.value), number(b.value), f"{number(b.low)} to {number(b.high)}", count(one.rows)]
            for one, a, b in zip(found, x, y, strict=True)
        ],
    )
    drawing = line_chart(
        [line],
        Axis("mean prediction of a bin", span=span),
        Axis("mean target", span=span),
        title="Mean target by mean prediction",
        diagonal=True,
    )
    figure = Figure(title="Targets by prediction", drawing=drawing, table=table, note=f"{BINS} bins of equal count.")
    return Section(title="Calibration", blocks=[figure, Note(text=left_out)])

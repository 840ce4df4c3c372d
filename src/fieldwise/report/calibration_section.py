"""The section on calibration, with reliability diagrams, or a regression's targets by prediction."""

from collections.abc import Callable, Mapping

import numpy as np
from markupsafe import Markup

from fieldwise.charts import Axis, Line, line_chart, wider
from fieldwise.display import Table, number
from fieldwise.errors import DataError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.bootstrap import estimate, resampled
from fieldwise.evaluation.calibration import (
    BINS,
    METHODS,
    Calibration,
    Platt,
    Reliability,
    calibration_error,
    reliability,
)
from fieldwise.evaluation.metrics import METRICS, ScoredRows, scored_rows
from fieldwise.evaluation.slices import by_quantile, regression_slices
from fieldwise.report.page import (
    Block,
    Caution,
    Figure,
    Section,
    count,
    interval_text,
    measured,
    percent,
)
from fieldwise.runs.leaderboard import replicates_for
from fieldwise.runs.records import LabelScores

CALIBRATION_WORDS = {"none": "as trained", "platt": "Platt", "isotonic": "isotonic"}
CALIBRATIONS_COLUMNS = (
    "calibration",
    "logloss",
    "change of logloss",
    "Brier",
    "ECE, equal count",
    "ECE, equal width",
    "mean prediction",
    "positive rate",
)
CALIBRATIONS_NOTE = (
    "ECE, the expected calibration error: the mean over rows of |mean prediction - positive rate| of their bin, "
    f"with {BINS} bins of equal count, and with {BINS} bins of equal width. Sampling error keeps it above 0 even "
    "for true probabilities."
)


def calibration_section(
    test: LabelScores, valid: LabelScores | None, saved: Calibration | None, seed: int
) -> Section:
    """Reliability on the test rows, before and after calibrations fitted on the validation rows.

    Args:
        test: the test rows with uncalibrated logits.
        valid: the validation rows likewise; None if there are no scores of them.
        saved: the calibration of the bundle, if it has one.
        seed: seed of the bootstrap.
    """
    calibrations: dict[str, Calibration | None] = {"none": None}
    blocks: list[Block] = []
    if valid is not None:
        for method, fit in METHODS.items():
            try:
                calibrations[method] = fit(valid.y, valid.score, valid.weight)
            except DataError as e:
                blocks.append(Caution(f"{CALIBRATION_WORDS[method]} is skipped: {e}."))
    else:
        blocks.append(
            "Calibrations need scores of validation rows that the network was not trained on. A run stored by "
            "`compare` has none, nor has a bundle of `training.refit`: train a bundle without it to see them."
        )
        if saved is not None:
            calibrations[saved.kind] = saved

    logits = {}
    for name, calibration in calibrations.items():
        logits[name] = test.score if calibration is None else calibration.logit(test.score)
    blocks.append(_calibrations_table(test, valid, logits, saved, seed))
    blocks += _reliability_figures(test, logits)

    platt = calibrations.get("platt")
    if isinstance(platt, Platt):
        blocks.append(
            f"Platt scaling: calibrated logit = {platt.slope:.4f} × logit {platt.intercept:+.4f}. A slope below "
            "1 means that the model is overconfident, above 1 underconfident."
        )
    if saved is None and len(calibrations) > 1:
        blocks.append(
            "`fieldwise evaluate BUNDLE --calibrate platt` (or isotonic) saves one in the bundle."
        )
    return Section("Calibration", blocks)


def _calibrations_table(
    test: LabelScores,
    valid: LabelScores | None,
    logits: Mapping[str, np.ndarray],
    saved: Calibration | None,
    seed: int,
) -> Table:
    """A row for each calibration's logits, compared with those of `none`, which is the first."""
    replicates = resampled(
        test.y,
        np.stack(list(logits.values())),
        "logloss",
        weight=test.weight,
        replicates=replicates_for(len(test.y)),
        seed=seed,
    )
    scored = {
        name: scored_rows(test.y, z, "binary", weight=test.weight) for name, z in logits.items()
    }
    uncalibrated_loss = METRICS["logloss"].value(scored["none"])
    rows: list[list[str | Markup]] = []
    for k, (name, calibrated) in enumerate(scored.items()):
        title = CALIBRATION_WORDS[name]
        if saved is not None and saved.kind == name:
            title += " (saved in this bundle)"

        loss = METRICS["logloss"].value(calibrated)
        change: str | Markup = ""
        if name != "none":
            gain = estimate([loss - uncalibrated_loss], replicates[:, k] - replicates[:, 0])
            change = measured(gain, "+")
        loss_cell = measured(estimate([loss], replicates[:, k]))
        rows.append([title, loss_cell, change, *_calibration_cells(calibrated)])

    note = CALIBRATIONS_NOTE
    if valid is not None:
        note = (
            f"Calibrations are fitted on the {count(len(valid.y))} validation rows and evaluated on the "
            f"{count(len(test.y))} test rows. {note}"
        )
    return Table(CALIBRATIONS_COLUMNS, rows, note=note)


def _calibration_cells(rows: ScoredRows) -> list[str]:
    """Brier score, the two calibration errors, and the means of predictions and labels."""
    p = rows.probability
    by_width = calibration_error(rows.y, p, binning="width", weight=rows.weight)
    figures = [METRICS["brier"].value(rows), METRICS["ece"].value(rows), by_width]
    return [number(figure) for figure in (*figures, rows.mean(p), rows.mean(rows.y))]


def _reliability_figures(test: LabelScores, logits: Mapping[str, np.ndarray]) -> list[Figure]:
    """A reliability diagram for each calibration, all on one scale."""
    bins_by_name = {
        name: reliability(test.y, sigmoid(z), weight=test.weight) for name, z in logits.items()
    }
    edge = max(bins.edge() for bins in bins_by_name.values())
    figures = []
    for colour, (name, bins) in enumerate(bins_by_name.items()):
        words = CALIBRATION_WORDS[name]
        title = f"Reliability, {words}"
        figures.append(reliability_figure(bins, title, name=words, edge=edge, colour=colour))
    return figures


def reliability_figure(
    bins: Reliability,
    title: str,
    *,
    name: str = "",
    edge: float | None = None,
    colour: int = 0,
    word: Callable[[float], str] = number,
    note: str = "",
) -> Figure:
    """A reliability diagram with its numbers; `edge` ends both axes, `word` writes a share."""
    rows = []
    for predicted, observed, low, high, size in zip(
        bins.predicted, bins.observed, bins.low, bins.high, bins.rows, strict=True
    ):
        interval = f"{word(low)} to {word(high)}"
        rows.append([word(predicted), word(observed), interval, count(size)])
    table = Table(["mean prediction", "positive rate", "95 % interval", "rows"], rows)
    return Figure(title, bins.plot(name, edge=edge, colour=colour), table, note=note)


STEPS_OF_PICTURE = 10
LEAST_STEPS_OF_PICTURE = 4
"""With fewer non-empty bins of 10 %, bins of equal count are used."""


def picture(rows: LabelScores) -> Figure:
    """A chart of predicted and observed shares, for rows with similar predictions."""
    p = sigmoid(rows.score)
    bins = reliability(rows.y, p, bins=STEPS_OF_PICTURE, binning="width", weight=rows.weight)
    grouping = "Rows are grouped in steps of 10 %"
    if len(bins.rows) < LEAST_STEPS_OF_PICTURE:
        bins = reliability(rows.y, p, bins=STEPS_OF_PICTURE, weight=rows.weight)
        grouping = "Rows are grouped by prediction, equally many each"

    # A sentence about the bin with the most rows, if possible not the first or last.
    is_inner = (bins.predicted >= 0.2) & (bins.predicted <= 0.8)
    candidate_rows = bins.rows
    if is_inner.any():
        candidate_rows = np.where(is_inner, bins.rows, 0)
    k = int(np.argmax(candidate_rows))

    edge = bins.edge()
    digits = 0
    if edge <= 0.02:
        digits = 2
    elif edge <= 0.2:
        digits = 1
    predicted = f"{100 * bins.predicted[k]:.{digits}f} %"
    observed = f"{100 * bins.observed[k]:.{digits}f} %"
    is_by_chance = bins.low[k] <= bins.predicted[k] <= bins.high[k]
    chance = "explains" if is_by_chance else "does not explain"
    note = (
        f"Of the {count(bins.rows[k])} rows predicted at about {predicted}, {observed} were positive, which chance "
        f"{chance}. {grouping}. A point on the dashed line means a correct prediction; below it the model predicts "
        "too much, above it too little. The thin line is the 95 % interval of the observed share, which is wider with "
        "fewer rows."
    )
    return reliability_figure(bins, "Predicted and observed", word=percent, note=note)


def numbers_section(test: LabelScores) -> Section:
    """A regression's targets by prediction, with a note on the sections that do not apply."""
    omitted = "Omitted for a regression label: ROC, precision-recall, Platt and isotonic, which are for binary labels."
    slices = by_quantile(test.score, bins=BINS)
    bins = [
        part for part in regression_slices(test.y, test.score, slices, test.weight) if part.metrics
    ]
    if not bins:
        return Section("Calibration", [f"Too few rows for bins. {omitted}"])

    predictions = [part.metrics["mean_prediction"] for part in bins]
    targets = [part.metrics["mean_target"] for part in bins]
    line = Line(
        x=[prediction.value for prediction in predictions],
        y=[target.value for target in targets],
        low=[target.low for target in targets],
        high=[target.high for target in targets],
        joined=False,
    )
    intervals = [*predictions, *targets]
    lowest = min(interval.low for interval in intervals)
    highest = max(interval.high for interval in intervals)
    span = wider(lowest, highest)
    title = "Mean target by mean prediction"
    x = Axis(label="mean prediction of a bin", span=span)
    y = Axis(label="mean target", span=span)
    drawing = line_chart([line], x, y, title=title, diagonal=True)

    rows = []
    for part, prediction, target in zip(bins, predictions, targets, strict=True):
        interval = interval_text(target)
        rows.append([number(prediction.value), number(target.value), interval, count(part.rows)])
    table = Table(["mean prediction", "mean target", "95 % interval", "rows"], rows)
    figure = Figure("Targets by prediction", drawing, table, note=f"{BINS} bins of equal count.")
    return Section("Calibration", [figure, omitted])

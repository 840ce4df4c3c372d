"""The page's building blocks, its sections on metrics, and their rendering into one HTML file.

The page escapes text but not drawings. The metrics: with intervals and in plain words, learning
curves, ROC, precision-recall, calibration, slices and cold start.
"""

import base64
import datetime
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    precision_recall_curve,
    roc_curve,
)

from fieldwise.charts import Chart, Line, chart_style, line_chart, wider
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_list, as_number, as_text, coded
from fieldwise.display import Table, number
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation import binary_metrics, logloss_from_logits, regression_metrics, sigmoid
from fieldwise.evaluation.bootstrap import Estimate, estimate, resampled, resampled_gauc
from fieldwise.evaluation.calibration import (
    BINS,
    METHODS,
    Calibration,
    Platt,
    Reliability,
    calibration_error,
    reliability,
    wilson,
)
from fieldwise.evaluation.metrics import shown_name
from fieldwise.evaluation.ranking import roc_chart
from fieldwise.evaluation.slices import (
    ABSENT,
    LEAST_OF_A_CLASS,
    LEAST_ROWS,
    Interval,
    Slice,
    binary_slices,
    by_code,
    by_quantile,
    regression_slices,
)
from fieldwise.evaluation.words import INTERVALS, binary_words, regression_words
from fieldwise.runs.leaderboard import replicates_for
from fieldwise.schema import Label, Schema
from fieldwise.training.history import STOPPED, learning_curves
from fieldwise.version import __version__

FOLDER = Path(__file__).parent
TABLED = 11
OF_ROWS = ("rows", "positive_rate")  # do not depend on the scores
IN_TABLE = {  # the metrics of the table, in its order
    "auc": "AUC",
    "gauc": "group AUC",
    "average_precision": "average precision",
    "logloss": "logloss",
    "brier": "Brier score",
    "ece": "expected calibration error",
    "normalized_entropy": "normalized entropy",
    "accuracy": "accuracy at .5",
    "precision": "precision at .5",
    "recall": "recall at .5",
    "f1": "F1 at .5",
    "positive_rate": "positive rate",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "mean_target": "mean target",
    "mean_prediction": "mean prediction",
    "rows": "rows",
}


@dataclass(frozen=True)
class Figure:
    """A figure with its data."""

    title: str
    drawing: Chart
    table: Table
    note: str = ""


class Caution(str):
    """A paragraph that warns."""


@dataclass(frozen=True)
class Code:
    """Preformatted text, collapsed under its title."""

    title: str
    text: str


Block = str | Table | Figure | Code | Mapping[str, str]
"""A paragraph, a table, a figure, a collapsed text, or names of metrics with a sentence that explains each."""


class Section(NamedTuple):
    """A part of the page with a heading."""

    title: str
    blocks: Sequence[Block]


def measured(interval: Interval | Estimate, sign: str = "") -> Markup:
    """A table cell with a value and its interval."""
    return Markup("{}<small>{}</small>").format(
        number(interval.value, sign), interval_text(interval, sign)
    )


def interval_text(interval: Interval | Estimate, sign: str = "") -> str:
    """The ends of a value's interval."""
    return f"{number(interval.low, sign)} to {number(interval.high, sign)}"


def interval_cell(
    interval: Interval | Estimate, span: tuple[float, float], *, rule: float | None = None
) -> Markup:
    """A table cell with a dot and its interval on a scale shared by all rows, with an optional reference line."""
    ends = interval.value, interval.low, interval.high, rule or 0.0
    at, low, high, mark = (f"{float(np.interp(end, span, (4, 96))):.1f}" for end in ends)
    reach = f'<path class="reach c0" d="M{low} 9H{high}"/>' if low != high else ""
    line = "" if rule is None else f'<path class="rule" d="M{mark} 0V18"/>'
    return Markup(f'{_CELL}{line}{reach}<circle class="dot c0" cx="{at}" cy="9" r="3.5"/></svg>')


def share_cell(share: float) -> Markup:
    """A table cell with a bar for a share within 0 and 1."""
    width = float(np.clip(100 * share, 1, 100))
    return Markup(
        f'{_CELL}<rect class="bar c0" y="4" width="{width:.1f}" height="10" rx="1.5"/></svg>'
    )


# its number is in the cell before
_CELL = '<svg class="cell" viewBox="0 0 100 18" aria-hidden="true">'


def count(value: float) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.1f} %"


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """A chapter of the page, a run or the comparison of all runs, with the name, value and more of its key figures."""

    title: str
    sections: Sequence[Section]
    about: str = ""
    facts: Sequence[tuple[str, str, str]] = ()


def render(title: str, chapters: Sequence[Chapter]) -> str:
    """The page's HTML; the same chapters give the same bytes."""
    style = chart_style() + (FOLDER / "style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["words"] = _words
    environment.globals["kind"] = lambda block: type(block).__name__
    template = environment.from_string((FOLDER / "page.html").read_text("utf-8"))
    return template.render(
        title=title,
        chapters=chapters,
        style=style,
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'",
        version=__version__,
    )


def _words(text: str) -> Markup:
    """Escaped text, with parts between backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(p) if k % 2 else escape(p) for k, p in enumerate(parts)
    )


class Scored(NamedTuple):
    """A label's targets and scores [N]: logits, or for a regression predictions within the label's range."""

    y: np.ndarray
    score: np.ndarray


def metrics_section(
    rows: Scored,
    group: np.ndarray | None,
    binary: bool,
    best: Mapping[str, float] | None,
    seed: int,
) -> tuple[Section, list[tuple[str, str, str]]]:
    """All metrics of a label on the test rows, and the first ones as facts: name, value, interval."""
    if binary:
        values, ends = _binary_values(rows, group, seed)
    else:
        values = regression_metrics(*rows)
        ends = {}
        spread = float(np.var(rows.y))
        values |= {"mean_target": float(rows.y.mean()), "mean_prediction": float(rows.score.mean())}
        values |= (
            {"r2": 1 - float(np.mean((rows.y - rows.score) ** 2)) / spread} if spread > 0 else {}
        )
    replicates = replicates_for(len(rows.y))
    left_out = ""
    for name in (
        ("auc", "average_precision", "logloss", "brier", "ece") if binary else ("rmse", "mae")
    ):
        draws = resampled(rows.y, rows.score[None], name, replicates=replicates, seed=seed)
        ends[name] = interval_text(estimate([values[name]], draws[:, 0], least=0.0))
    if binary and group is not None:
        left_out = "Group AUC is omitted: every group has only one class."
        if "gauc" in values:
            skipped = count(values["gauc_skipped_groups"]), count(values["gauc_skipped_rows"])
            left_out = f"Group AUC excludes {skipped[0]} groups of one class ({skipped[1]} rows)."
    columns = ["metric", "test rows", "95 % interval", *["best possible"] * (best is not None)]
    table = []
    facts = []
    for name, words in IN_TABLE.items():
        if name not in values:
            continue
        words += f" ({count(values['gauc_groups'])} groups)" if name == "gauc" else ""
        cells = [words, (count if name == "rows" else number)(values[name]), ends.get(name, "")]
        if name in (("auc", "logloss") if binary else ("rmse", "mae")):
            facts.append((cells[0], cells[1], cells[2]))
        if best is not None:
            cells.append(number(best[name]) if name in best and name not in OF_ROWS else "")
        table.append(cells)
    note = (
        f"Intervals are for other rows from the same source: bootstrap, {replicates:,} replicates over rows (for group "
        "AUC, over groups), and Wilson's for shares. They assume independent rows: if users have many similar rows, "
        "they are too narrow. They do not cover other seeds or splits: `fieldwise compare` with several seeds does. "
    )
    blocks: list[Block] = [Table(columns, table, note=(note + left_out).rstrip())]
    if best is not None:
        blocks.append(
            "Best possible: metrics of the true probabilities, which are known for this log."
        )
    return Section("Metrics", blocks), facts


def _binary_values(
    rows: Scored, group: np.ndarray | None, seed: int
) -> tuple[dict[str, float], dict[str, str]]:
    """The metrics, and the intervals of group AUC and of shares."""
    y = rows.y
    z = rows.score
    values = binary_metrics(y, z, group=group)
    values["average_precision"] = float(average_precision_score(y, z))
    values["brier"] = float(brier_score_loss(y, sigmoid(z)))
    ends = {}
    if group is not None and "gauc" in values:
        draws = resampled_gauc(y, z, group, replicates=replicates_for(len(y)), seed=seed)
        ends["gauc"] = interval_text(estimate([values["gauc"]], draws))
    positive = y == 1
    predicted = z >= 0
    every = np.ones(len(y), bool)
    for name, right, of_rows in (
        ("accuracy", positive == predicted, every),
        ("precision", positive & predicted, predicted),
        ("recall", positive & predicted, positive),
        ("positive_rate", positive, every),
    ):
        if of_rows.any():
            low, high = wilson(right.sum(), of_rows.sum())
            ends[name] = f"{number(float(low))} to {number(float(high))}"
    return values, ends


def learning_section(
    history: Sequence[Mapping[str, Any]], best_epoch: float | None, stopped: str, monitor: str
) -> Section:
    """Learning curves: losses and metrics of the training and validation rows by epoch."""
    if not history:
        note = "This run was stored without its evaluations during training: run it again to record them."
        return Section("Training", [note])
    epochs = [float(e["epoch"]) for e in history]
    blocks: list[Block] = []
    for title, (drawing, curves) in learning_curves(history, best_epoch).items():
        rows = [
            [f"{epoch:.4g}", *("" if value is None else number(float(value)) for value in values)]
            for epoch, *values in zip(epochs, *curves.values(), strict=True)
        ]
        table = Table(["epoch", *curves], rows)
        blocks.append(Figure(title[0].upper() + title[1:], drawing, table))
    if best_epoch is not None:
        text = (
            f"The dashed line marks epoch {best_epoch:.4g}, whose weights were kept: the best "
            f"{shown_name(monitor)} on the validation rows. Training ended after epoch {epochs[-1]:.4g}: "
            f"{STOPPED.get(stopped, stopped)}. The training loss is the mean over the steps of an epoch, including "
            "dropout, so it is not directly comparable with the validation loss."
        )
        blocks.append(text)
    return Section("Training", blocks)


def curves_section(runs: Mapping[str, Scored]) -> Section:
    """ROC and precision-recall curves of one label, for runs on the same test rows."""
    roc = {}
    pr = []
    roc_rows = []
    pr_rows = []
    grid = np.linspace(0, 1, TABLED)
    rate = 0.0
    for colour, (name, rows) in enumerate(runs.items()):
        rate = float(rows.y.mean())
        false, true, _ = roc_curve(rows.y, rows.score)
        precision, recall, _ = precision_recall_curve(rows.y, rows.score)
        # from the highest score down, without the artificial end
        precision = precision[-2::-1]
        recall = recall[-2::-1]
        shown = name if len(runs) > 1 else ""
        roc[shown] = false, true
        pr.append(Line(name=shown, x=recall, y=precision, colour=colour))
        roc_rows.append(np.interp(grid, false, true))
        at = np.searchsorted(recall, grid[1:], side="left").clip(max=len(recall) - 1)
        pr_rows.append(precision[at])

    def table(x: str, y: str, points: np.ndarray, columns: Sequence[np.ndarray]) -> Table:
        rows = zip(points, *columns, strict=True)
        cells = [[f"{point:.1f}", *(number(float(v)) for v in values)] for point, *values in rows]
        return Table([x, *(runs if len(runs) > 1 else [y])], cells)

    figures = [
        Figure(
            "ROC curve",
            roc_chart(roc),
            table("false positive rate", "true positive rate", grid, roc_rows),
            note="The dashed line is the curve of random scores.",
        ),
        Figure(
            "Precision and recall",
            line_chart(
                pr,
                "recall",
                "precision",
                title="Precision by recall",
                x_span=(0, 1),
                y_span=(0, 1),
                y_mark=rate,
            ),
            table("recall", "precision", grid[1:], pr_rows),
            note=f"The dashed line is the positive rate, {number(rate)}: the precision of random scores.",
        ),
    ]
    return Section("ROC and precision-recall", figures)


CALIBRATION_WORDS = {"none": "as trained", "platt": "Platt", "isotonic": "isotonic"}


def calibration_section(
    test: Scored, valid: Scored | None, kept: Calibration | None, seed: int
) -> Section:
    """Reliability on the test rows, before and after calibrations fitted on the validation rows."""
    maps: dict[str, Calibration | None] = {"none": None}
    blocks: list[Block] = []
    if valid is None:
        text = (
            "Calibrations need scores of validation rows that the network was not trained on. A run stored by "
            "`compare` has none, nor has a bundle of `training.refit`: train a bundle without it to see them."
        )
        blocks.append(text)
        if kept is not None:
            maps[kept.kind] = kept
    else:
        for method in METHODS:
            try:
                maps[method] = METHODS[method](valid.y, valid.score)
            except DataError as e:
                blocks.append(Caution(f"{CALIBRATION_WORDS[method]} is skipped: {e}."))
    logits = {
        name: test.score if one is None else one.logit(test.score) for name, one in maps.items()
    }
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
    columns = [
        "calibration",
        "logloss",
        "change of logloss",
        "Brier",
        "ECE, equal count",
        "ECE, equal width",
    ]
    columns = [*columns, "mean prediction", "positive rate"]
    blocks.append(Table(columns, list(rows.values()), note=note))
    probabilities = {name: sigmoid(z) for name, z in logits.items()}
    bins = {name: reliability(test.y, p) for name, p in probabilities.items()}
    edge = max(one.edge() for one in bins.values())
    for k, (name, one) in enumerate(bins.items()):
        title = f"Reliability, {CALIBRATION_WORDS[name]}"
        blocks.append(
            reliability_figure(one, title, name=CALIBRATION_WORDS[name], edge=edge, colour=k)
        )
    line = maps.get("platt")
    if isinstance(line, Platt):
        blocks.append(
            f"Platt scaling: calibrated logit = {line.slope:.4f} × logit {line.intercept:+.4f}. A slope below "
            "1 means that the model is overconfident, above 1 underconfident."
        )
    if kept is None and len(maps) > 1:
        blocks.append(
            "`fieldwise evaluate BUNDLE --calibrate platt` (or isotonic) saves one in the bundle."
        )
    return Section("Calibration", blocks)


def _figures_of(
    test: Scored, logits: Mapping[str, np.ndarray], seed: int
) -> dict[str, list[str | Markup]]:
    """A table row for each calibration's logits, compared with those of `none`."""
    drawn = resampled(
        test.y,
        np.stack(list(logits.values())),
        "logloss",
        replicates=replicates_for(len(test.y)),
        seed=seed,
    )
    losses = {name: logloss_from_logits(test.y, z) for name, z in logits.items()}
    rows: dict[str, list[str | Markup]] = {}
    for k, (name, z) in enumerate(logits.items()):
        p = sigmoid(z)
        loss = estimate([losses[name]], drawn[:, k])
        gain = estimate([losses[name] - losses["none"]], drawn[:, k] - drawn[:, 0])
        rows[name] = [
            CALIBRATION_WORDS[name],
            measured(loss),
            "" if k == 0 else measured(gain, "+"),
            number(brier_score_loss(test.y, p)),
            number(calibration_error(test.y, p)),
            number(calibration_error(test.y, p, binning="width")),
            number(float(p.mean())),
            number(float(test.y.mean())),
        ]
    return rows


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
    columns = zip(bins.predicted, bins.observed, bins.low, bins.high, bins.rows, strict=True)
    rows = [
        [word(a), word(b), f"{word(low)} to {word(high)}", count(n)]
        for a, b, low, high, n in columns
    ]
    table = Table(["mean prediction", "positive rate", "95 % interval", "rows"], rows)
    return Figure(title, bins.plot(name, edge=edge, colour=colour), table, note=note)


def numbers_section(test: Scored) -> Section:
    """A regression's targets by prediction, with a note on the sections that do not apply."""
    slices = by_quantile(test.score, bins=BINS)
    results = [one for one in regression_slices(test.y, test.score, slices) if one.metrics]
    left_out = "Omitted for a regression label: ROC, precision-recall, Platt and isotonic, which are for binary labels."
    if not results:
        return Section("Calibration", [f"Too few rows for bins. {left_out}"])
    x, y = ([one.metrics[name] for one in results] for name in ("mean_prediction", "mean_target"))
    value, low, high = ([getattr(one, part) for one in y] for part in ("value", "low", "high"))
    line = Line(x=[one.value for one in x], y=value, low=low, high=high, joined=False)
    span = wider(min(*low, *(one.low for one in x)), max(*high, *(one.high for one in x)))
    rows = [
        [number(a.value), number(b.value), interval_text(b), count(one.rows)]
        for one, a, b in zip(results, x, y, strict=True)
    ]
    table = Table(["mean prediction", "mean target", "95 % interval", "rows"], rows)
    title = "Mean target by mean prediction"
    axes = ("mean prediction of a bin", "mean target")
    drawing = line_chart([line], *axes, title=title, x_span=span, y_span=span, diagonal=True)
    figure = Figure("Targets by prediction", drawing, table, note=f"{BINS} bins of equal count.")
    return Section("Calibration", [figure, left_out])


TENTHS = 10
FEW_BINS = 4  # with fewer non-empty bins of 10 %, bins of equal count are used
AT_HALF = ("precision", "recall", "accuracy")
NAMES = {"ece": "calibration error", "mean_prediction": "mean prediction"} | {
    name: f"{name} at .5" for name in AT_HALF
}


def words_section(rows: Scored, group: np.ndarray | None, label: Label) -> Section:
    """A sentence about each metric of a label on the test rows; for a binary label also a chart."""
    blocks: list[Block] = []
    if label.task == "binary":
        metrics = binary_metrics(rows.y, rows.score, group=group)
        said = binary_words(metrics, label)
        blocks.append(f"Predicted is the {label.meaning}; such rows are called positive.")
        if metrics["normalized_entropy"] >= 1:
            text = "These probabilities are worse than always predicting the share of positives: do not use them yet."
            blocks.append(Caution(text))
    else:
        metrics = regression_metrics(rows.y, rows.score)
        said = regression_words(metrics, label, spread=float(np.std(rows.y)))
    figures = {
        name: percent(metrics[name])
        if name in ("mean_prediction", *AT_HALF)
        else number(metrics[name])
        for name in said
    }
    blocks.append(
        {
            f"{NAMES.get(name, shown_name(name))}: {figures[name]}": words
            for name, words in said.items()
        }
    )
    blocks.append(INTERVALS)
    if label.task == "binary":
        blocks.append(picture(rows.y, sigmoid(rows.score)))
    return Section("In plain words", blocks)


def picture(y: np.ndarray, p: np.ndarray) -> Figure:
    """A chart of predicted and observed shares, for rows with similar predictions."""
    bins = reliability(y, p, bins=TENTHS, binning="width")
    how = "Rows are grouped in steps of 10 %"
    if len(bins.rows) < FEW_BINS:
        bins = reliability(y, p, bins=TENTHS)
        how = "Rows are grouped by prediction, equally many each"
    # A sentence about the bin with the most rows, if possible not the first or last.
    inner = (bins.predicted >= 0.2) & (bins.predicted <= 0.8)
    one = int(np.argmax(np.where(inner | ~inner.any(), bins.rows, 0)))
    edge = bins.edge()
    digits = 0 if edge > 0.2 else 1 if edge > 0.02 else 2
    said, true = (
        f"{100 * share:.{digits}f} %" for share in (bins.predicted[one], bins.observed[one])
    )
    chance = (
        "explains" if bins.low[one] <= bins.predicted[one] <= bins.high[one] else "does not explain"
    )
    note = (
        f"Of the {count(bins.rows[one])} rows predicted at about {said}, {true} were positive, which chance {chance}. "
        f"{how}. A point on the dashed line means a correct prediction; below it the model predicts too much, above it "
        "too little. The thin line is the 95 % interval of the observed share, which is wider with fewer rows."
    )
    return reliability_figure(bins, "Predicted and observed", word=percent, note=note)


FEW = 12  # up to this many distinct numbers are treated as categories
SEEN = {
    "none (new)": (0, 0),
    "1 to 4": (1, 4),
    "5 to 19": (5, 19),
    "20 to 99": (20, 99),
    "100 or more": (100, np.inf),
}
BINARY = {"auc": "AUC", "logloss": "logloss", "off": "prediction − rate"}
DRAWN = ("auc", "rmse", "off")
REGRESSION = {"rmse": "RMSE", "mae": "MAE", "off": "prediction − target"}


def slice_names(frame: pl.DataFrame, schema: Schema) -> tuple[str, ...]:
    """Names to slice a table by: fields, then other columns, without labels."""
    labels = {label.column for label in schema.labels}
    fields = [f.name for f in schema.fields]
    return tuple(dict.fromkeys([*fields, *(c for c in frame.columns if c not in labels)]))


def check_slices(names: Sequence[str], frame: pl.DataFrame, schema: Schema) -> None:
    """Check, before any work, that the fields or columns exist; one that does not raises a ConfigError."""
    known = slice_names(frame, schema)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"a slice must be a field or a column of the rows, found {name!r}: {nearest(name, known)}"
            )


def slices_of(name: str, frame: pl.DataFrame, schema: Schema) -> tuple[list[Slice], str]:
    """Slices of the rows by a field or column, and a note on how they were made.

    Categories are sliced by value, numbers with more than a dozen values by quantile bins, bags by
    each of their values, histories by length.
    """
    field = next((f for f in schema.fields if f.name == name), None)
    column = frame.get_column(name if field is None else field.column)
    listed = (
        isinstance(column.dtype, (pl.List, pl.Array)) if field is None else field.cell == "list"
    )
    if listed:
        cells = as_list(
            column, field.separator if field is not None and field.cell == "list" else "|"
        )
        lengths = cells.list.len().fill_null(0).to_numpy()
        if field is not None and field.max_length is not None:
            slices = by_quantile(lengths, word=lambda n: f"{n:,.0f}")
            return slices, "By the number of values, in bins of similar size."
        row = np.repeat(np.arange(len(cells)), lengths)
        members = coded(cells.explode(empty_as_null=False, keep_nulls=False).cast(pl.String))
        slices = [
            Slice(one.name, np.unique(row[one.rows]))
            for one in by_code(members.codes, members.texts.to_list())
        ]
        if len(empty := np.flatnonzero(lengths == 0)):
            slices.append(Slice(ABSENT, empty))
        return slices, "A row is in the slice of each of its values."
    if field is not None and field.cell == "number" and column.dtype == pl.String:
        column = as_number(
            column, f"column {column.name!r}", form=field.number_format, missing=schema.missing
        )
    temporal = column.dtype.is_temporal()
    several = column.n_unique() > FEW
    amounts = (
        several
        if temporal
        else column.dtype.is_numeric() or (field is not None and field.cell == "number")
    )
    if not amounts or (field is not None and field.cell == "category"):
        texts = coded(column)
        return by_code(texts.codes, texts.texts.to_list()), ""
    numbers = as_number(column, f"column {column.name!r}", missing=schema.missing).to_numpy()
    if not several:
        return by_quantile(numbers, bins=column.len() or 1), ""

    def word(x: float) -> str:
        if isinstance(column.dtype, (pl.Date, pl.Datetime)):
            form = "%Y-%m-%d" if column.dtype == pl.Date else "%Y-%m-%d %H:%M"
            return datetime.datetime.fromtimestamp(x, datetime.UTC).strftime(form)
        return f"{x:.6g}" if x != round(x) or abs(x) >= 2**53 else f"{x:.0f}"

    return by_quantile(numbers, word=word), "Bins of similar size, from low to high."


def slices_section(
    names: Sequence[str], frame: pl.DataFrame, schema: Schema, rows: Scored, binary: bool
) -> Section:
    """A table for each requested field."""
    if not names:
        known = ", ".join(slice_names(frame, schema))
        none = f"None requested: --slice FIELD evaluates by the values of a field, one of {known}."
        return Section("Slices", [none])
    blocks: list[Block] = []
    for name in names:
        slices, note = slices_of(name, frame, schema)
        blocks.append(_table(f"By {name}", name, slices, rows, binary, note))
    if binary:
        text = (
            f"Too small: fewer than {LEAST_ROWS} rows, or for AUC fewer than {LEAST_OF_A_CLASS} of a class. "
            "Prediction − rate is calibration: below 0 the model predicts too little there. Dashed: the AUC of all "
            "rows, and 0. Intervals are 95 %, for each slice separately (Wilson, DeLong, normal); among many "
            "slices some differ by sampling error only."
        )
    else:
        text = f"Too small: fewer than {LEAST_ROWS} rows. Intervals are 95 %, normal, for each slice separately."
    return Section("Slices", [*blocks, text])


def cold_section(
    train: pl.DataFrame,
    test: pl.DataFrame,
    columns: Mapping[str, str | None],
    rows: Scored,
    binary: bool,
) -> Section:
    """Metrics of test rows with new and rare users and items."""
    blocks: list[Block] = []
    new: dict[str, np.ndarray] = {}
    for role, column in columns.items():
        if column is None:
            blocks.append(f"The schema has no column of {role}s: set {role} = COLUMN in it.")
            continue
        try:  # missing is treated as one value
            ids = coded(
                pl.concat([one.get_column(column).to_frame() for one in (train, test)]).to_series()
            )
        except DataError as e:
            raise ConfigError(f"user and item ids must be single values: {e}") from None
        seen = np.bincount(ids.codes[: train.height], minlength=len(ids.texts) + 1)[
            ids.codes[train.height :]
        ]
        new[role] = seen == 0
        slices = [
            Slice(name, np.flatnonzero((seen >= low) & (seen <= high)))
            for name, (low, high) in SEEN.items()
        ]
        known = np.unique(as_text(test.get_column(column)).fill_null("").to_numpy()[seen == 0])
        note = f"Every {column} of the test rows is in the training rows."
        if len(known):
            rows_of = f"{count(int((seen == 0).sum()))} test rows"
            note = f"{rows_of} have one of {count(len(known))} values of {column} that are not in the training rows."
        title = f"{role.capitalize()}s ({column}) by their training rows"
        blocks.append(_table(title, "training rows", slices, rows, binary, note))
    if len(new) == 2 and any(rows_of.any() for rows_of in new.values()):
        user = new["user"]
        item = new["item"]
        cases = {
            "both known": ~user & ~item,
            "new user, known item": user & ~item,
            "known user, new item": ~user & item,
            "both new": user & item,
        }
        slices = [Slice(name, np.flatnonzero(inside)) for name, inside in cases.items()]
        blocks.append(_table("New users and items together", "rows of", slices, rows, binary, ""))
    text = "New: not in the training rows; validation rows do not count, since they are not trained on."
    return Section("Cold start", [*blocks, text])


def _table(
    title: str, what: str, slices: Sequence[Slice], rows: Scored, binary: bool, note: str
) -> Table:
    every = Slice("", np.arange(len(rows.y)))
    *result, all_rows = (binary_slices if binary else regression_slices)(
        rows.y, rows.score, [*slices, every]
    )
    whole = all_rows.metrics
    words = BINARY if binary else REGRESSION
    columns = [what, "rows", "positive rate" if binary else "mean target"]
    spans = {}
    for name, word in words.items():
        if name in DRAWN and any(name in one.metrics for one in result):
            own = [one.metrics[name] for one in (*result, all_rows) if name in one.metrics]
            spans[name] = wider(min(one.low for one in own), max(one.high for one in own), 0.01)
        columns += [word, ""] if name in spans else [word]
    cells: list[list[str | Markup]] = []
    for one in result:
        row: list[str | Markup] = [one.name, count(one.rows)]
        for name in ("positive_rate" if binary else "mean_target", *words):
            value = one.metrics.get(name)
            missing = "too small" if one.rows else ""
            row.append(missing if value is None else measured(value, "+" if name == "off" else ""))
            if name in spans:
                rule = 0.0 if name == "off" else (whole[name].value if name in whole else None)
                row.append("" if value is None else interval_cell(value, spans[name], rule=rule))
        cells.append(row)
    return Table(columns, cells, title=title, note=note)

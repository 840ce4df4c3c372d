"""Result of `auto`: the best bundle, the leaderboard on test rows, the audit's findings, and a summary in sentences."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.automatic.audit import Finding
from fieldwise.automatic.trials import ALL_ROWS, CONSTANT, TITLES, TREES, Trial
from fieldwise.bundle.bundle import Bundle
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Part
from fieldwise.evaluation import auc, logloss_from_logits, rmse, sigmoid
from fieldwise.evaluation.bootstrap import MetricName, estimate, resampled
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.evaluation.metrics import shown_name
from fieldwise.evaluation.ranking import auc_parts, delong
from fieldwise.evaluation.slices import Interval
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema

__all__ = ["AutoResult", "Line", "build_leaderboard"]

BASES = (CONSTANT, TITLES["lr"], TREES)
MOST_REPLICATES, LEAST_REPLICATES, DRAWS = 1000, 200, 5e7
Z = 1.959963984540054


@dataclass(frozen=True, kw_only=True)
class Line:
    """One trial on the test rows.

    Args:
        model: title of the trial.
        chosen: whether this trial is the bundle.
        all_rows: whether it was trained on training and validation rows, unlike the others.
        valid: logloss or RMSE on the validation rows, by which the choice was made.
        metrics: test metrics by name: `auc` and `logloss`, or `rmse`.
        calibration_error: expected calibration error; None for a regression label.
        against: for each baseline and metric, the trial's value minus the baseline's, paired by row.
        calibrated: whether its probabilities have a Platt scaling fitted on validation rows.
        epochs: epochs of its training; for LightGBM, the number of trees.
        seconds: duration of its training.
        stopped: why its training ended.
        parameters: number of learned parameters.
        changes: settings that the search changed from the defaults.
    """

    model: str
    chosen: bool
    all_rows: bool
    valid: float
    metrics: Mapping[str, Interval]
    calibration_error: float | None
    against: Mapping[str, Mapping[str, Interval]]
    calibrated: bool
    epochs: int
    seconds: float
    stopped: str
    parameters: int
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AutoResult:
    """Result of `auto`.

    Args:
        best: bundle of the chosen model.
        schema: schema of the columns that the models read.
        recipe: recipe that trains the chosen model again on the same rows.
        lines: the leaderboard on the test rows, a line per trial, best first. The choice was made on validation rows.
        test_rows: number of test rows.
        findings: findings of the audit of columns.
        notes: for each column that is not a field, the reason.
        skipped: for each model that was not trained, by its title, the reason.
        trials: number of trials of the search.
        seconds: duration of the whole run.
        folder: folder of the result; None if nothing was written.
        report: path of the report about the chosen model; None if there is none.
        interrupted: whether Ctrl-C ended the run early.
    """

    best: Bundle
    schema: Schema
    recipe: Recipe
    lines: tuple[Line, ...]
    test_rows: int
    findings: tuple[Finding, ...]
    notes: Mapping[str, str]
    skipped: Mapping[str, str]
    trials: int
    seconds: float
    folder: Path | None = None
    report: Path | None = None
    interrupted: bool = False

    @property
    def leaderboard(self) -> pl.DataFrame:
        """One row per trial, best on test rows first: metrics, 95 % intervals, differences from the baselines.

        `X_low` and `X_high` are the interval of X, `X_less_BASE` a paired difference.
        """
        rows = []
        for line in self.lines:
            row: dict[str, Any] = {"model": line.model, "chosen": line.chosen, "all_rows": line.all_rows}
            row[f"valid_{self.metric}"] = line.valid
            for name, found in line.metrics.items():
                row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
            for base, metrics in line.against.items():
                for name, found in metrics.items():
                    column = f"{name}_less_{base.lower()}"
                    row |= {column: found.value, f"{column}_low": found.low, f"{column}_high": found.high}
            if line.calibration_error is not None:
                row["calibration_error"] = line.calibration_error
            more = "calibrated", "epochs", "seconds", "stopped", "parameters"
            rows.append(row | {name: getattr(line, name) for name in more})
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def binary(self) -> bool:
        """Whether the label is binary."""
        return self.schema.label.task == "binary"

    @property
    def metric(self) -> str:
        """Metric of the choice and of the leaderboard's order."""
        return "logloss" if self.binary else "rmse"

    @property
    def chosen(self) -> Line:
        """The line of the bundle's model."""
        return next(line for line in self.lines if line.chosen)

    @property
    def judged(self) -> Line:
        """The line of the bundle's model trained on the training rows only, like the other trials."""
        return self.line(self.chosen.model.removesuffix(f", {ALL_ROWS}")) or self.chosen

    def line(self, model: str) -> Line | None:
        """The line of a model by its title; None if there is none."""
        return next((line for line in self.lines if line.model == model), None)

    @property
    def legend(self) -> str:
        """An explanation of the leaderboard's columns, in two or three sentences."""
        by = "AUC has DeLong intervals, logloss" if self.binary else "The intervals are"
        lower = "Lower logloss is better, higher AUC" if self.binary else "Lower RMSE is better"
        more = " ECE: expected calibration error." if self.binary else ""
        return (
            f"{lower}; a difference whose interval contains 0 is not significant. {by} bootstrap intervals over test "
            f"rows ({_replicates(self.test_rows)} replicates), with differences paired by row.{more}"
        )

    def sentences(self) -> list[str]:
        """The leaderboard's conclusions as sentences."""
        line, metric = self.judged, shown_name(self.metric)
        networks = [one for one in self.lines if one.model not in (CONSTANT, TREES) and not one.all_rows]
        lowest = min(networks, key=lambda one: one.valid)
        why = f"has the best {metric} on validation rows ({line.valid:.4f})"
        if lowest is not line:
            why = (
                f"was chosen on validation rows ({metric} {line.valid:.4f}): {lowest.model} has {lowest.valid:.4f} "
                "there, which is not significantly better, and is more complex"
            )
        after = f"the {self.test_rows:,} test rows were evaluated once, after this choice"
        said = [f"{line.model} {why}; {after}"]
        said += [
            f"{line.model} against {_named(base)}: {_judged(line.against[base], self.metric)}"
            for base in BASES
            if base in line.against
        ]
        if self.chosen is not line:
            said.append(
                f"the bundle is {line.model} trained again on training and validation rows for as many epochs: "
                f"{metric} {self.chosen.metrics[self.metric].value:.4f}, not "
                f"{line.metrics[self.metric].value:.4f}. The other models have learned from the training rows alone: "
                f"compare them with {line.model}"
            )
        guess = self.line(CONSTANT)
        if guess is not None and guess.valid <= line.valid:
            said.append(
                "NOTHING WAS LEARNED: no model is significantly better than a constant on validation rows "
                f"({metric} {line.valid:.4f}, not {guess.valid:.4f}): use more rows or other columns, or check whether "
                "the data changes over time"
            )
        ahead = self.line(TREES)
        if ahead is not None and ahead.valid < lowest.valid:
            said.append(
                f"on validation rows {ahead.model} was better ({metric} {ahead.valid:.4f}, not {line.valid:.4f}), but "
                "a bundle can only hold a fieldwise model"
            )
        if line.stopped == "epochs":
            said.append(
                f"{line.model} ended after all its {line.epochs} epochs, and more may improve it: raise "
                "training.epochs in the recipe"
            )
        if line.changes:
            changes = ", ".join(f"{path} = {value}" for path, value in line.changes.items())
            said.append(f"the search changed {changes}")
        if line.calibrated:
            said.append(f"its probabilities are calibrated by Platt scaling on validation rows{_gain(self.best)}")
        said += [f"{title} was left out: {why}" for title, why in self.skipped.items()]
        return said

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "chosen": self.chosen.model,
            "folder": None if self.folder is None else str(self.folder),
            "report": None if self.report is None else str(self.report),
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "trials": self.trials,
            "findings": to_plain(self.findings),
            "no_fields": dict(self.notes),
            "skipped": dict(self.skipped),
            "leaderboard": {
                "task": self.schema.label.task,
                "metric": self.metric,
                "rows": self.test_rows,
                "replicates": _replicates(self.test_rows),
                "lines": to_plain(self.lines),
            },
            "recipe": self.recipe.to_dict(),
        }

    def rows(self, *, short: bool = False) -> tuple[list[str], list[list[str]]]:
        """The leaderboard as text: its headers and a row per trial; `short` shows ± half the interval's width."""
        metric = shown_name(self.metric)
        bases = [base for base in BASES if any(base in line.against for line in self.lines)]
        names = list(self.lines[0].metrics)
        heads = ["model", *(f"{shown_name(name)} {'±' if short else '[95 %]'}" for name in names)]
        heads += [f"minus {_named(base)}" if short else f"{metric} minus {_named(base)}" for base in bases]
        heads += ["ECE"] * self.binary + ["seconds"]
        rows = []
        for line in self.lines:
            row = [f"* {line.model}" if line.chosen else line.model]
            row += [_cell(line.metrics[name], short=short) for name in names]
            against = [line.against.get(base) for base in bases]
            row += ["" if found is None else _cell(found[self.metric], "+", short=short) for found in against]
            row += [f"{line.calibration_error:.4f}"] if line.calibration_error is not None else []
            rows.append([*row, f"{line.seconds:.1f}"])
        return heads, rows

    def to_markdown(self) -> str:
        """The leaderboard and its conclusions as Markdown."""
        heads, rows = self.rows()
        table = [heads, ["---"] * len(heads), *rows]
        lines = ["| " + " | ".join(row) + " |" for row in table]
        about = f"{self.test_rows:,} test rows; \\* the bundle's model. {self.legend}"
        said = [f"- {sentence}." for sentence in self.sentences()]
        found = [f"- {one.sentence}." for one in self.findings]
        audited = {one.column for one in self.findings}
        columns = [f"- not a field: {column}: {why}" for column, why in self.notes.items() if column not in audited]
        parts = ["# Leaderboard", "\n".join(lines).replace(" *", " \\*"), about, "\n".join(said)]
        if found or columns:
            parts += ["## Columns", "\n".join([*found, *columns])]
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        heads, rows = self.rows(short=True)
        widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
        table = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [heads, *rows]
        ]
        return "\n".join([*table, *self.sentences()])


def _replicates(rows: int) -> int:
    """Bootstrap replicates for the intervals of logloss and RMSE; AUC has DeLong intervals."""
    return int(min(MOST_REPLICATES, max(LEAST_REPLICATES, DRAWS / max(rows, 1))))


def build_leaderboard(
    trials: Sequence[Trial], chosen: Trial, test: Part, *, binary: bool, seed: int
) -> tuple[Line, ...]:
    """The lines of trials, including the baselines, on the test rows, best first; `chosen` is in the bundle."""
    scores = [one.score(test) for one in trials]
    y = np.asarray(test.main, dtype=np.float64)
    metric: MetricName = "logloss" if binary else "rmse"
    resamples = resampled(y, np.stack(scores), metric, replicates=_replicates(len(y)), seed=seed)
    of_one = logloss_from_logits if binary else rmse
    values = [of_one(y, score) for score in scores]
    with_auc = binary and min(int(y.sum()), int((1 - y).sum())) > 1
    bases = [k for title in BASES for k, one in enumerate(trials) if one.title == title]

    def figures(k: int) -> dict[str, Interval]:
        own = {"auc": _auc(y, scores[k])} if with_auc else {}
        return {**own, metric: _bounded(values[k], resamples[:, k])}

    def differences(k: int, base: int) -> dict[str, Interval]:
        own = {"auc": _auc_difference(y, scores[k], scores[base])} if with_auc else {}
        return {**own, metric: _bounded(values[k] - values[base], resamples[:, k] - resamples[:, base])}

    lines = [
        Line(
            model=one.title,
            chosen=one is chosen,
            all_rows=one.on_all_rows,
            valid=one.value,
            metrics=figures(k),
            calibration_error=calibration_error(y, sigmoid(scores[k])) if binary else None,
            # One trained on all rows is not compared with baselines, which have learned from the training rows alone.
            against={trials[base].title: differences(k, base) for base in bases if base != k and not one.on_all_rows},
            calibrated=one.calibration is not None,
            epochs=one.epochs,
            seconds=round(one.seconds, 2),
            stopped=one.stopped,
            parameters=one.parameters,
            changes=dict(one.changes),
        )
        for k, one in enumerate(trials)
    ]
    return tuple(sorted(lines, key=lambda line: line.metrics[metric].value))


def _bounded(value: float, replicates: np.ndarray) -> Interval:
    found = estimate([value], replicates)
    return Interval(value=found.value, low=found.low, high=found.high)


def _auc(y: np.ndarray, score: np.ndarray) -> Interval:
    """AUC with its DeLong interval, clipped to 0 and 1."""
    high, low = auc_parts(y, score)
    error = math.sqrt(float(np.var(high, ddof=1)) / len(high) + float(np.var(low, ddof=1)) / len(low))
    value = auc(y, score)
    return Interval(value=value, low=max(0.0, value - Z * error), high=min(1.0, value + Z * error))


def _auc_difference(y: np.ndarray, score: np.ndarray, base: np.ndarray) -> Interval:
    found = delong(y, score, base)
    reach = Z * found.standard_error
    return Interval(value=found.difference, low=found.difference - reach, high=found.difference + reach)


def _gain(best: Bundle) -> str:
    """The test logloss before and after calibration as words; empty if the bundle does not keep these figures."""
    figures = best.about.get("calibration", {}).get("figures", {}).get("test rows", {}).get(best.schema.label.name)
    if figures is None:
        return ""
    before, after = (figures[when]["logloss"] for when in ("before", "after"))
    return f": test logloss {before:.4f} without it, {after:.4f} with it, as in the leaderboard"


def _named(base: str) -> str:
    return f"a {CONSTANT}" if base == CONSTANT else base


def _cell(found: Interval, sign: str = "", *, short: bool = False) -> str:
    """A value with its interval, or with half the interval's width."""
    half, ends = (found.high - found.low) / 2, f"[{found.low:{sign}.4f}, {found.high:{sign}.4f}]"
    return f"{found.value:{sign}.4f} {f'±{half:.4f}' if short else ends}"


def _judged(metrics: Mapping[str, Interval], metric: str) -> str:
    """A difference in words, for a metric where lower is better."""
    found = metrics[metric]
    word = "better" if found.high < 0 else "worse" if found.low > 0 else "no significant difference"
    more = f", AUC {_cell(metrics['auc'], '+')}" if "auc" in metrics else ""
    return f"{word} ({shown_name(metric)} {_cell(found, '+')}{more})"

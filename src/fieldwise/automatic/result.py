"""The result of a run: its leaderboard on the test rows, in figures, sentences and tables."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.auditing.finding import Finding
from fieldwise.automatic.trial import ALL_ROWS, CONSTANT, TITLES, TREES, Trial
from fieldwise.bundle.bundle import Bundle
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import SplitPart
from fieldwise.display import Table
from fieldwise.evaluation.bootstrap import Estimate
from fieldwise.evaluation.interval import Interval, normal_interval
from fieldwise.evaluation.metrics import LOSSES, METRICS, scored_rows, shown_name
from fieldwise.evaluation.ranking import delong
from fieldwise.runs.leaderboard import compare_scores, has_delong, replicates_for
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Label, Schema

BASELINES = (CONSTANT, TITLES["lr"], TREES["lightgbm"])


@dataclass(frozen=True, kw_only=True)
class TrialLine:
    """One trial on the test rows.

    Args:
        model: title of the trial.
        chosen: whether this trial is the bundle.
        all_rows: whether it was trained on training and validation rows, unlike the others.
        valid: logloss or RMSE on the validation rows, by which the choice was made.
        metrics: `auc` and `logloss`, or `rmse`.
        calibration_error: expected calibration error; None for a regression label.
        against: for each baseline and metric, the difference, paired by row.
        calibrated: whether its probabilities have a Platt scaling fitted on validation rows.
        epochs: of the `Trial`, as `seconds`, `stopped`, `parameters` and `changes`.
        network_share: of the trained network in its mean with LR: 0 is LR alone, 1 no mean.
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
    network_share: float
    parameters: int
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AutoResult:
    """Result of `auto`.

    Args:
        best: bundle of the chosen model.
        schema: schema of the columns that the models read.
        recipe: recipe that trains the chosen model again on the same rows.
        lines: the leaderboard on the test rows, a line per trial, best first. The choice was made
            on validation rows.
        test_rows: number of test rows.
        findings: findings of the audit of columns.
        notes: for each column that is not a field, the reason.
        skipped: for each model that was not trained, by its title, the reason.
        late: titles of those of them that were left out for time.
        learned: titles of the trials that are significantly better than the constant on validation
            rows.
        trials: number of trials of the search.
        seconds: duration of the whole run.
        folder: folder of the result; None if nothing was written.
        report: path of the report about the chosen model; None if there is none.
        interrupted: whether Ctrl-C ended the run early.
    """

    best: Bundle
    schema: Schema
    recipe: Recipe
    lines: tuple[TrialLine, ...]
    test_rows: int
    findings: tuple[Finding, ...]
    notes: Mapping[str, str]
    skipped: Mapping[str, str]
    late: tuple[str, ...]
    learned: tuple[str, ...]
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
            row: dict[str, Any] = {
                "model": line.model,
                "chosen": line.chosen,
                "all_rows": line.all_rows,
                f"valid_{self.metric}": line.valid,
            }
            for name, interval in line.metrics.items():
                row |= _interval_columns(name, interval)
            for baseline, differences in line.against.items():
                for name, interval in differences.items():
                    row |= _interval_columns(f"{name}_less_{baseline.lower()}", interval)
            if line.calibration_error is not None:
                row["calibration_error"] = line.calibration_error
            row |= {
                "calibrated": line.calibrated,
                "epochs": line.epochs,
                "seconds": line.seconds,
                "stopped": line.stopped,
                "network_share": line.network_share,
                "parameters": line.parameters,
            }
            rows.append(row)
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def binary(self) -> bool:
        """Whether the label is binary."""
        return self.schema.label.task == "binary"

    @property
    def metric(self) -> str:
        """Metric of the choice and of the leaderboard's order."""
        return LOSSES[self.schema.label.task]

    @property
    def chosen(self) -> TrialLine:
        """The line of the bundle's model."""
        return next(line for line in self.lines if line.chosen)

    @property
    def judged(self) -> TrialLine:
        """The line of the bundle's model trained on the training rows only, like the other trials."""
        return self.line(self.chosen.model.removesuffix(f", {ALL_ROWS}")) or self.chosen

    def line(self, model: str) -> TrialLine | None:
        """The line of a model by its title; None if there is none."""
        return next((line for line in self.lines if line.model == model), None)

    @property
    def legend(self) -> str:
        """An explanation of the leaderboard's columns, in two or three sentences."""
        lower = "Lower RMSE is better"
        intervals = "The intervals are"
        ece = ""
        if self.binary:
            lower = "Lower logloss is better, higher AUC"
            intervals = "AUC has DeLong intervals, logloss"
            ece = " ECE: expected calibration error."
        return (
            f"{lower}; a difference whose interval contains 0 is not significant. {intervals} bootstrap intervals over "
            f"test rows ({replicates_for(self.test_rows)} replicates), with differences paired by row.{ece}"
        )

    def sentences(self) -> list[str]:
        """The leaderboard's conclusions as sentences."""
        line = self.judged
        sentences = [self._choice_sentence()]
        for baseline in BASELINES:
            if baseline in line.against:
                difference = _difference_words(line.against[baseline], self.metric)
                sentences.append(f"{line.model} against {_with_article(baseline)}: {difference}")
        if self.chosen is not line:
            value = self.chosen.metrics[self.metric].value
            value_before = line.metrics[self.metric].value
            sentences.append(
                f"the bundle is {line.model} trained again on training and validation rows for as many epochs: "
                f"{shown_name(self.metric)} {value:.4f}, not {value_before:.4f}. The other models have learned from "
                f"the training rows alone: compare them with {line.model}"
            )
        sentences += [*self._doubt_sentences(), *self._training_sentences()]
        sentences += [f"{title} was left out: {why}" for title, why in self.skipped.items()]
        if self.late:
            sentences.append(
                f"CHECK {', '.join(self.late)}: left out for time, give more minutes to have them too"
            )
        return sentences

    def _choice_sentence(self) -> str:
        """Why the model was chosen."""
        line = self.judged
        metric = shown_name(self.metric)
        models = [other for other in self.lines if other.model != CONSTANT and not other.all_rows]
        lowest = min(models, key=lambda model: model.valid)
        why = f"has the best {metric} on validation rows ({line.valid:.4f})"
        if lowest is not line:
            why = (
                f"was chosen on validation rows ({metric} {line.valid:.4f}): {lowest.model} has {lowest.valid:.4f} "
                "there, which is not significantly better, and is more complex"
            )
        return f"{line.model} {why}; the {self.test_rows:,} test rows were evaluated once, after this choice"

    def _doubt_sentences(self) -> list[str]:
        """Warnings that the model learned nothing, or could learn more."""
        line = self.judged
        metric = shown_name(self.metric)
        sentences = []
        guess = self.line(CONSTANT)
        if line.model not in self.learned and guess is not None:
            remedy = "use more rows or other columns, or check whether the data changes over time"
            if self.late or line.stopped == "time":
                remedy = "give more minutes"
            sentences.append(
                f"CHECK {line.model}: NOTHING WAS LEARNED, on validation rows it is not significantly better than a "
                f"constant ({metric} {line.valid:.4f}, not {guess.valid:.4f}): {remedy}"
            )
        if line.stopped == "time":
            sentences.append(
                f"the time for {line.model} ended its training: more minutes may improve it"
            )
        if line.stopped == "epochs":
            title, _, _ = line.model.partition(",")
            unit, setting = ("epoch", "training.epochs")
            if title in TREES.values():
                unit, setting = ("tree", "model.max_trees")
            all_of_them = (
                f"its only {unit}" if line.epochs == 1 else f"all its {line.epochs} {unit}s"
            )
            sentences.append(
                f"{line.model} ended after {all_of_them}, and more may improve it: raise {setting} in the recipe"
            )
        return sentences

    def _training_sentences(self) -> list[str]:
        """What is special about the model: its mean with LR, changed settings, a calibration."""
        line = self.judged
        sentences = []
        if self.best.mean_sentence is not None:
            sentences.append(self.best.mean_sentence)
        if line.changes:
            changes = ", ".join(f"{path} = {value}" for path, value in line.changes.items())
            sentences.append(f"the search changed {changes}")
        if line.calibrated:
            calibration = self.best.about.calibration
            assert calibration is not None, "a calibrated bundle says how"
            figures = calibration.figures["test rows"][self.schema.label.name]
            before = figures["before"]["logloss"]
            after = figures["after"]["logloss"]
            sentences.append(
                "its probabilities are calibrated by Platt scaling on validation rows: test logloss "
                f"{before:.4f} without it, {after:.4f} with it, as in the leaderboard"
            )
        return sentences

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "chosen": self.chosen.model,
            "folder": None if self.folder is None else str(self.folder),
            "report": None if self.report is None else str(self.report),
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "trials": self.trials,
            "findings": [finding.to_plain() for finding in self.findings],
            "no_fields": dict(self.notes),
            "skipped": dict(self.skipped),
            "left_out_for_time": list(self.late),
            "learned": self.judged.model in self.learned,
            "leaderboard": {
                "task": self.schema.label.task,
                "metric": self.metric,
                "rows": self.test_rows,
                "replicates": replicates_for(self.test_rows),
                "lines": to_plain(self.lines),
            },
            "recipe": self.recipe.to_dict(),
        }

    def table(self, *, short: bool = False) -> Table:
        """A row per trial, with intervals, or with ± half of their widths if `short`."""
        shown = _short_text if short else Interval.text
        interval_head = "±" if short else "[95 %]"
        difference_head = "minus" if short else f"{shown_name(self.metric)} minus"
        compared = {baseline for line in self.lines for baseline in line.against}
        baselines = [baseline for baseline in BASELINES if baseline in compared]

        rows = []
        for line in self.lines:
            row = {"model": f"* {line.model}" if line.chosen else line.model}
            for name, interval in line.metrics.items():
                row[f"{shown_name(name)} {interval_head}"] = shown(interval)
            for baseline in baselines:
                difference = ""
                if baseline in line.against:
                    difference = shown(line.against[baseline][self.metric], "+")
                row[f"{difference_head} {_with_article(baseline)}"] = difference
            if line.calibration_error is not None:
                row["ECE"] = f"{line.calibration_error:.4f}"
            row["seconds"] = f"{line.seconds:.1f}"
            rows.append(row)
        return Table([*rows[0]], [[*row.values()] for row in rows])

    def to_markdown(self) -> str:
        """The leaderboard and its conclusions as Markdown."""
        table = self.table()
        cells = [table.columns, ["---"] * len(table.columns), *table.rows]
        text = "\n".join("| " + " | ".join(row) + " |" for row in cells)
        about = f"{self.test_rows:,} test rows; \\* the bundle's model. {self.legend}"
        conclusions = "\n".join(f"- {sentence}." for sentence in self.sentences())
        parts = ["# Leaderboard", text.replace(" *", " \\*"), about, conclusions]

        columns = [f"- {finding.sentence}." for finding in self.findings]
        audited = {finding.column for finding in self.findings}
        for column, why in self.notes.items():
            if column not in audited:
                columns.append(f"- not a field: {column}: {why}")
        if columns:
            parts += ["## Columns", "\n".join(columns)]
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        table = self.table(short=True)
        rows = [table.columns, *table.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join([*lines, *self.sentences()])


def _interval_columns(name: str, interval: Interval) -> dict[str, float]:
    """A value and the ends of its interval, by the name of their column."""
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _with_article(baseline: str) -> str:
    return f"a {CONSTANT}" if baseline == CONSTANT else baseline


def _short_text(interval: Interval, sign: str = "") -> str:
    """A value with half the interval's width."""
    return f"{interval.value:{sign}.4f} ±{(interval.high - interval.low) / 2:.4f}"


def _difference_words(differences: Mapping[str, Interval], metric: str) -> str:
    """A difference in words, for a metric where lower is better."""
    difference = differences[metric]
    word = "no significant difference"
    if difference.high < 0:
        word = "better"
    elif difference.low > 0:
        word = "worse"
    auc = ""
    if "auc" in differences:
        auc = f", AUC {differences['auc'].text('+')}"
    return f"{word} ({shown_name(metric)} {difference.text('+')}{auc})"


def build_leaderboard(
    trials: Sequence[Trial], chosen: Trial, test: SplitPart, label: Label, *, seed: int
) -> tuple[TrialLine, ...]:
    """The lines of trials, including the baselines, on the test rows, best first; `chosen` is in the bundle."""
    y = np.asarray(test.main, dtype=np.float64)
    scores = {trial.title: trial.score(test) for trial in trials}
    binary = label.task == "binary"
    metric = METRICS[LOSSES[label.task]]
    weight = label.log_weights(y, test.table.weight)
    measured = [metric]
    has_auc = binary and has_delong(y)
    # DeLong's variance knows nothing of weights: the AUC is then resampled like the loss
    has_test_of_auc = has_auc and weight is None
    if has_auc and weight is not None:
        measured = [METRICS["auc"], metric]
    rows = {
        title: scored_rows(y, score, label.task, weight=weight) for title, score in scores.items()
    }
    values = {
        title: {m.name: np.array([m.value(of_trial)]) for m in measured}
        for title, of_trial in rows.items()
    }
    comparison = compare_scores(
        y,
        {title: score[None] for title, score in scores.items()},
        values,
        [m.name for m in measured],
        weight=weight,
        replicates=replicates_for(len(y)),
        seed=seed,
    )

    lines = []
    for trial in trials:
        title = trial.title
        metrics = _intervals(comparison.metrics(title))
        if has_test_of_auc:
            metrics = {"auc": _auc_interval(y, scores[title]), **metrics}
        against = {}
        for baseline in _baselines_of(trial, scores):
            gains = _intervals(comparison.gains(title, baseline))
            if has_test_of_auc:
                pair = delong(y, scores[title], scores[baseline])
                gains = {"auc": normal_interval(pair.difference, pair.standard_error), **gains}
            against[baseline] = gains
        error = METRICS["ece"].value(rows[title]) if binary else None
        is_chosen = trial is chosen
        lines.append(_line(trial, metrics, against, error, is_chosen=is_chosen))
    return tuple(sorted(lines, key=lambda line: line.metrics[metric.name].value))


def _auc_interval(y: np.ndarray, score: np.ndarray) -> Interval:
    """The AUC with its 95 % interval."""
    # Compared with equal scores, whose AUC is .5 for any rows.
    pair = delong(y, score, np.zeros(len(y)))
    return normal_interval(pair.first, pair.standard_error, least=0.0, most=1.0)


def _baselines_of(trial: Trial, titles: Collection[str]) -> list[str]:
    """The baselines among some titles that a trial is compared with: none if it was trained on more rows than they."""
    if trial.on_all_rows:
        return []
    return [name for name in BASELINES if name != trial.title and name in titles]


def _line(
    trial: Trial,
    metrics: Mapping[str, Interval],
    against: Mapping[str, Mapping[str, Interval]],
    calibration_error: float | None,
    *,
    is_chosen: bool,
) -> TrialLine:
    """A trial's line, with its metrics of the test rows and its gains over baselines."""
    return TrialLine(
        model=trial.title,
        chosen=is_chosen,
        all_rows=trial.on_all_rows,
        valid=trial.value,
        metrics=metrics,
        calibration_error=calibration_error,
        against=against,
        calibrated=trial.calibration is not None,
        epochs=trial.epochs,
        seconds=round(trial.seconds, 2),
        stopped=trial.stopped,
        network_share=1.0 if trial.trained is None else trial.trained.bundle.network_share,
        parameters=trial.parameters,
        changes=dict(trial.changes),
    )


def _intervals(estimates: Mapping[str, Estimate]) -> dict[str, Interval]:
    """The intervals alone, as the file has them."""
    return {
        name: Interval(value=found.value, low=found.low, high=found.high)
        for name, found in estimates.items()
    }

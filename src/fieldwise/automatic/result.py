"""Result of `auto`: the best bundle, the leaderboard, the audit's findings, and a summary in sentences."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.automatic.audit import Finding
from fieldwise.automatic.board import BASES, Board, Interval
from fieldwise.automatic.candidates import CONSTANT, TREES
from fieldwise.bundle.bundle import Bundle
from fieldwise.config import to_plain
from fieldwise.evaluation.registry import shown_name
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Schema

__all__ = ["AutoResult", "legend"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AutoResult:
    """Result of `auto`.

    Args:
        best: bundle of the chosen model.
        schema: schema of the columns that the models read.
        recipe: recipe that trains the chosen model again on the same rows.
        board: leaderboard of all candidates on the test rows.
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
    board: Board
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
        """One row per candidate, best on test rows first: metrics, 95 % intervals, differences from the baselines."""
        return self.board.frame()

    def sentences(self) -> list[str]:
        """The leaderboard's conclusions as sentences."""
        board, line = self.board, self.board.judged
        metric = shown_name(board.metric)
        networks = [one for one in board.lines if one.model not in (CONSTANT, TREES) and not one.all_rows]
        lowest = min(networks, key=lambda one: one.valid)
        why = f"has the best {metric} on validation rows ({line.valid:.4f})"
        if lowest is not line:
            why = (
                f"was chosen on validation rows ({metric} {line.valid:.4f}): {lowest.model} has {lowest.valid:.4f} "
                "there, which is not significantly better, and is more complex"
            )
        after = f"the {board.rows:,} test rows were evaluated once, after this choice"
        said = [f"{line.model} {why}; {after}"]
        said += [
            f"{line.model} against {_named(base)}: {_judged(line.against[base], board.metric)}"
            for base in BASES
            if base in line.against
        ]
        if board.chosen is not line:
            said.append(
                f"the bundle is {line.model} trained again on training and validation rows for as many epochs: "
                f"{metric} {board.chosen.metrics[board.metric].value:.4f}, not "
                f"{line.metrics[board.metric].value:.4f}. The other models have learned from the training rows alone: "
                f"compare them with {line.model}"
            )
        guess = board.line(CONSTANT)
        if guess is not None and guess.valid <= line.valid:
            said.append(
                "NOTHING WAS LEARNED: no model is significantly better than a constant on validation rows "
                f"({metric} {line.valid:.4f}, not {guess.valid:.4f}): use more rows or other columns, or check whether "
                "the data changes over time"
            )
        ahead = board.line(TREES)
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
            "chosen": self.board.chosen.model,
            "folder": None if self.folder is None else str(self.folder),
            "report": None if self.report is None else str(self.report),
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "trials": self.trials,
            "findings": [to_plain(found) for found in self.findings],
            "no_fields": dict(self.notes),
            "skipped": dict(self.skipped),
            "leaderboard": self.board.to_plain(),
            "recipe": self.recipe.to_dict(),
        }

    def rows(self, *, short: bool = False) -> tuple[list[str], list[list[str]]]:
        """The leaderboard as text: its headers and a row per candidate; `short` shows ± half the interval's width."""
        board = self.board
        metric = shown_name(board.metric)
        bases = [base for base in BASES if any(base in line.against for line in board.lines)]
        names = list(board.lines[0].metrics)
        interval, signed = (_about, _signed_about) if short else (_interval, _signed)
        heads = ["model", *(f"{shown_name(name)} {'±' if short else '[95 %]'}" for name in names)]
        heads += [f"minus {_named(base)}" if short else f"{metric} minus {_named(base)}" for base in bases]
        heads += ["ECE"] * (board.task == "binary") + ["seconds"]
        rows = []
        for line in board.lines:
            row = [f"* {line.model}" if line.chosen else line.model]
            row += [interval(line.metrics[name]) for name in names]
            row += [signed(line.against[b][board.metric]) if b in line.against else "" for b in bases]
            row += [f"{line.calibration_error:.4f}"] if line.calibration_error is not None else []
            rows.append([*row, f"{line.seconds:.1f}"])
        return heads, rows

    def to_markdown(self) -> str:
        """The leaderboard and its conclusions as Markdown."""
        heads, rows = self.rows()
        table = [heads, ["---"] * len(heads), *rows]
        lines = ["| " + " | ".join(row) + " |" for row in table]
        about = f"{self.board.rows:,} test rows; \\* the bundle's model. {legend(self.board)}"
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


def legend(board: Board) -> str:
    """An explanation of the leaderboard's columns, in two or three sentences."""
    by = "AUC has DeLong intervals, logloss" if board.task == "binary" else "The intervals are"
    lower = "lower logloss is better, higher AUC" if board.task == "binary" else "lower RMSE is better"
    more = " ECE: expected calibration error." if board.task == "binary" else ""
    return (
        f"{lower[0].upper()}{lower[1:]}; a difference whose interval contains 0 is not significant. {by} "
        f"bootstrap intervals over test rows ({board.replicates} replicates), with differences paired by row.{more}"
    )


def _gain(best: Bundle) -> str:
    """The test logloss before and after calibration as words; empty if the bundle does not keep these figures."""
    figures = best.about.get("calibration", {}).get("figures", {}).get("test rows", {}).get(best.schema.label.name)
    if figures is None:
        return ""
    before, after = (figures[when]["logloss"] for when in ("before", "after"))
    return f": test logloss {before:.4f} without it, {after:.4f} with it, as in the leaderboard"


def _named(base: str) -> str:
    return f"a {CONSTANT}" if base == CONSTANT else base


def _interval(found: Interval) -> str:
    return f"{found.value:.4f} [{found.low:.4f}, {found.high:.4f}]"


def _about(found: Interval) -> str:
    return f"{found.value:.4f} ±{(found.high - found.low) / 2:.4f}"


def _signed_about(found: Interval) -> str:
    return f"{found.value:+.4f} ±{(found.high - found.low) / 2:.4f}"


def _signed(found: Interval) -> str:
    return f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


def _judged(metrics: Mapping[str, Interval], metric: str) -> str:
    """A difference in words, for a metric where lower is better."""
    found = metrics[metric]
    word = "better" if found.high < 0 else "worse" if found.low > 0 else "no significant difference"
    more = f", AUC {_signed(metrics['auc'])}" if "auc" in metrics else ""
    return f"{word} ({shown_name(metric)} {_signed(found)}{more})"

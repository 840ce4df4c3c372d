"""What `auto` gives back: the best bundle, the leaderboard, what was found and left out, and all of it in words."""

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
    """What was found within the minutes.

    Args:
        best: the bundle of the model that was best on validation rows.
        schema: what was learned from.
        recipe: how to train it again, with the same rows.
        board: every candidate on the test rows.
        findings: of the audit of columns.
        notes: by column, why those of the table that are no field are none.
        skipped: by title, why a model was not trained.
        trials: of the search.
        seconds: of the whole.
        folder: where it was written; None where nothing was.
        report: the page about the best; None where there is none.
        interrupted: whether Ctrl-C ended it early.
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
        """A row a candidate, the best on test rows first: metrics, their 95 % intervals, differences to the bases."""
        return self.board.frame()

    def sentences(self) -> list[str]:
        """What the leaderboard says, for a person."""
        board, line = self.board, self.board.judged
        metric = shown_name(board.metric)
        networks = [one for one in board.lines if one.model not in (CONSTANT, TREES) and not one.all_rows]
        lowest = min(networks, key=lambda one: one.valid)
        why = f"has the best {metric} on validation rows ({line.valid:.4f})"
        if lowest is not line:
            why = (
                f"was chosen on validation rows ({metric} {line.valid:.4f}): {lowest.model} has {lowest.valid:.4f} "
                "there, not significantly better, and is costlier"
            )
        looked = f"the {board.rows:,} test rows were looked at once, after that"
        said = [f"{line.model} {why}; {looked}"]
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
                f"NOTHING WAS LEARNED: no model beats a constant on validation rows ({metric} {line.valid:.4f}, not "
                f"{guess.valid:.4f}): more rows or other columns are needed, or the future is not like the past"
            )
        ahead = board.line(TREES)
        if ahead is not None and ahead.valid < lowest.valid:
            said.append(
                f"on validation rows {ahead.model} was better still ({metric} {ahead.valid:.4f}, not "
                f"{line.valid:.4f}), but a bundle is of a model of fieldwise"
            )
        if line.changes:
            changes = ", ".join(f"{path} = {value}" for path, value in line.changes.items())
            said.append(f"the search changed {changes}")
        if line.calibrated:
            said.append(f"its probabilities are calibrated by Platt's line over validation rows{_gain(self.best)}")
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
        """The leaderboard as text: its heads, and a row a candidate; `short` has ± half of an interval's width."""
        board = self.board
        metric = shown_name(board.metric)
        bases = [base for base in BASES if any(base in line.against for line in board.lines)]
        names = list(board.lines[0].metrics)
        interval, signed = (_about, _signed_about) if short else (_interval, _signed)
        heads = ["model", *(f"{shown_name(name)} {'±' if short else '[95 %]'}" for name in names)]
        heads += [f"less {_named(base)}" if short else f"{metric} less {_named(base)}" for base in bases]
        heads += ["ECE"] * (board.task == "binary") + ["seconds"]
        rows = []
        for line in board.lines:
            row = [f"{line.model} *" if line.chosen else line.model]
            row += [interval(line.metrics[name]) for name in names]
            row += [signed(line.against[b][board.metric]) if b in line.against else "" for b in bases]
            row += [f"{line.calibration_error:.4f}"] if line.calibration_error is not None else []
            rows.append([*row, f"{line.seconds:.1f}"])
        return heads, rows

    def to_markdown(self) -> str:
        """The leaderboard and what it says, as Markdown."""
        heads, rows = self.rows()
        table = [heads, ["---"] * len(heads), *rows]
        lines = ["| " + " | ".join(row) + " |" for row in table]
        about = f"{self.board.rows:,} test rows; \\* the bundle's model. {legend(self.board)}"
        said = [f"- {sentence}." for sentence in self.sentences()]
        found = [f"- {one.sentence}." for one in self.findings]
        audited = {one.column for one in self.findings}
        columns = [f"- no field: {column}: {why}" for column, why in self.notes.items() if column not in audited]
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
    """What the table's figures are, in a sentence or two."""
    by = "AUC's intervals are DeLong's, those of logloss are" if board.task == "binary" else "The intervals are"
    lower = "lower logloss is better, higher AUC" if board.task == "binary" else "lower RMSE is better"
    more = " ECE: expected calibration error." if board.task == "binary" else ""
    return (
        f"{lower[0].upper()}{lower[1:]}; a difference whose interval contains 0 is not significant. {by} "
        f"bootstrap over test rows ({board.replicates} draws), differences paired by row.{more}"
    )


def _gain(best: Bundle) -> str:
    """The test rows' logloss before and after the calibration that a bundle keeps, where it keeps them."""
    figures = best.about.get("calibration", {}).get("figures", {}).get("test rows", {}).get(best.schema.label.name)
    if figures is None:
        return ""
    before, after = (figures[when]["logloss"] for when in ("before", "after"))
    return f": test logloss {before:.4f} before it, {after:.4f} with it, as in the leaderboard"


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
    """A difference in words: lower is better."""
    found = metrics[metric]
    word = "better" if found.high < 0 else "worse" if found.low > 0 else "no significant difference"
    more = f", AUC {_signed(metrics['auc'])}" if "auc" in metrics else ""
    return f"{word} ({shown_name(metric)} {_signed(found)}{more})"

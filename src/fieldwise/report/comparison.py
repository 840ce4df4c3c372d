"""The report's comparison of runs: leaderboards with intervals and paired tests."""

from collections.abc import Sequence

from markupsafe import Markup

from fieldwise.config import to_plain
from fieldwise.evaluation import auc, logloss_from_logits, rmse, sigmoid
from fieldwise.evaluation.registry import compared, shown_name
from fieldwise.evaluation.reliability import calibration_error
from fieldwise.report.blocks import Block, Section, Table, count, measured
from fieldwise.report.charts import interval_cell
from fieldwise.report.measures import curves_section
from fieldwise.report.runs import ReportedRun, Scored
from fieldwise.runs.fits import with_words
from fieldwise.runs.identity import scored_rows_digest
from fieldwise.runs.leaderboard import Board, leaderboards
from fieldwise.runs.records import Record, RunFacts

__all__ = ["comparison_sections"]


def comparison_sections(runs: Sequence[ReportedRun], seed: int) -> list[Section]:
    """A leaderboard for each task and set of test rows, and the curves of runs that share one."""
    boards = leaderboards({run.name: [_record(run)] for run in runs}, seed=seed)
    by_name = {run.name: run for run in runs}
    sections = []
    for board in boards:
        title = "Comparison" if len(boards) == 1 else f"Comparison: {board.title}"
        sections.append(Section(title=title, blocks=_board(board)))
        if board.task == "binary" and len(board.lines) > 1:
            names = [line.recipe for line in board.lines]
            label = by_name[names[0]].recipe.schema.label.name
            curves = curves_section(
                {name: by_name[name].test[by_name[name].recipe.schema.label.name] for name in names}
            )
            where = "" if len(boards) == 1 else f": {board.title}"
            of = f" of {label}" if len(by_name[names[0]].recipe.schema.labels) > 1 else ""
            sections.append(Section(title=f"{curves.title}{of}{where}", blocks=curves.blocks))
    return sections


def _record(run: ReportedRun) -> Record:
    """A run as a record for the leaderboard."""
    label = run.recipe.schema.label
    rows = run.test[label.name]
    facts = RunFacts(
        benchmark="",
        protocol="",
        task=label.task,
        test_digest=scored_rows_digest(run.frame, run.recipe),
        seed=run.recipe.seed,
        test=_metrics(rows, label.task),
        parameters=int(run.record.get("parameters", 0)),
        epochs=float(run.record.get("epochs", 0)),
        seconds=float(run.record.get("seconds", 0.0)),
        seconds_per_epoch=run.record.get("seconds_per_epoch"),
    )
    return with_words(Record(run.folder, to_plain(facts), (rows.y, rows.score)), run.recipe)


def _metrics(rows: Scored, task: str) -> dict[str, float]:
    if task == "regression":
        return {"rmse": rmse(rows.y, rows.score)}
    return {
        "auc": auc(rows.y, rows.score),
        "logloss": logloss_from_logits(rows.y, rows.score),
        "ece": calibration_error(rows.y, sigmoid(rows.score)),
    }


def _board(board: Board) -> list[Block]:
    metrics = compared(board.task)
    main = shown_name(board.metric)
    spans = [line.metrics[board.metric] for line in board.lines]
    low, high = min(s.low for s in spans), max(s.high for s in spans)
    room = (high - low) * 0.05 or 0.01
    columns = ["run", main, ""]
    columns += [shown_name(m) for m in metrics if m != board.metric]
    columns += [f"{main} − baseline", "p"]
    columns += ["DeLong p"] if board.metric == "auc" else []
    columns += ["parameters", "s/epoch"]
    rows: list[list[str | Markup]] = []
    for line in board.lines:
        own = line.metrics[board.metric]
        row: list[str | Markup] = [line.recipe, measured(own.value, own.low, own.high)]
        row.append(interval_cell(own.value, own.low, own.high, (low - room, high + room)))
        others = (line.metrics[m] for m in metrics if m != board.metric)
        row += [measured(found.value, found.low, found.high) for found in others]
        if line.against is None:
            row += ["baseline", "", *([""] if board.metric == "auc" else [])]
        else:
            gain = line.against[board.metric]
            row.append(measured(gain.estimate.value, gain.estimate.low, gain.estimate.high, "+"))
            row.append(_p(gain.estimate.p))
            if board.metric == "auc":
                row.append("-" if gain.delong_p is None else _p(gain.delong_p))
        epoch = "-" if line.seconds_per_epoch is None else f"{line.seconds_per_epoch:.1f}"
        row += [count(line.parameters), epoch]
        rows.append(row)
    note = (
        f"{board.title}: the same {count(board.rows)} test rows for every run; the baseline is {board.base}. "
        f"Intervals and p: a paired bootstrap of these rows with {board.replicates:,} replicates. They do not include "
        "the variance over seeds, so another seed may change the order (`fieldwise compare --seeds 3` includes "
        "it)."
    )
    return [Table(columns=columns, rows=rows, note=note)]


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 1e-4 else "<.0001"

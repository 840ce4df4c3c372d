"""The sections that compare runs: a leaderboard for each task and set of test rows, and curves."""

from collections.abc import Sequence
from typing import Any

from fieldwise.charts import wider
from fieldwise.display import Table
from fieldwise.evaluation import binary_metrics, regression_metrics
from fieldwise.evaluation.metrics import shown_name
from fieldwise.report.metrics_sections import curves_section
from fieldwise.report.page import Section, count, interval_cell, measured
from fieldwise.report.reported_run import ReportedRun
from fieldwise.runs.leaderboard import Board, leaderboards
from fieldwise.runs.recorded_runs import with_words
from fieldwise.runs.records import RunRecord
from fieldwise.runs.row_digests import scored_rows_digest


def comparison_sections(runs: Sequence[ReportedRun], seed: int) -> list[Section]:
    """A leaderboard for each task and set of test rows, and the curves of runs that share one."""
    by_name = {run.name: run for run in runs}
    boards = leaderboards({run.name: [_record(run)] for run in runs}, seed=seed)
    sections = []
    for board in boards:
        title = "" if len(boards) == 1 else f": {board.title}"
        sections.append(Section(f"Comparison{title}", [_board_table(board)]))
        if board.task == "binary" and len(board.lines) > 1:
            sections.append(_curves([by_name[line.recipe] for line in board.lines], title))
    return sections


def _record(run: ReportedRun) -> RunRecord:
    """What a leaderboard compares of a run."""
    label = run.recipe.schema.label
    rows = run.test[label.name]
    measured_by = binary_metrics if label.task == "binary" else regression_metrics
    metrics = measured_by(rows.y, rows.score, weight=rows.weight)
    facts: dict[str, Any] = {
        "task": label.task,
        "test_digest": scored_rows_digest(run.frame, run.recipe),
        "seed": run.recipe.seed,
        "test": metrics,
        "parameters": run.record.get("parameters", 0),
        "epochs": run.record.get("epochs", 0),
        "seconds": run.record.get("seconds", 0),
        "seconds_per_epoch": run.record.get("seconds_per_epoch"),
        "network_share": run.record.get("network_share", 1.0),
    }
    return with_words(RunRecord(run.folder, facts, rows), run.recipe)


def _curves(runs: Sequence[ReportedRun], title_of_board: str) -> Section:
    """The curves of runs with the same test rows."""
    section = curves_section({run.name: run.test[run.recipe.schema.label.name] for run in runs})
    labels = runs[0].recipe.schema.labels
    of_label = f" of {labels[0].name}" if len(labels) > 1 else ""
    return Section(f"{section.title}{of_label}{title_of_board}", section.blocks)


def _board_table(board: Board) -> Table:
    """The runs of a leaderboard with their metrics and differences from the baseline."""
    table = board.table(measured)
    columns = ["run", *table.columns[1:]]
    columns[1 + len(board.metrics)] = f"{shown_name(board.metric)} − baseline"
    rows = [[*row] for row in table.rows]
    epochs = columns.index("epochs")  # for which a page has no room
    for cells in (columns, *rows):
        del cells[epochs]

    main = 1 + board.metrics.index(board.metric)
    estimates = [line.metrics[board.metric] for line in board.lines if board.metric in line.metrics]
    lowest = min(estimate.low for estimate in estimates)
    highest = max(estimate.high for estimate in estimates)
    span = wider(lowest, highest, 0.01)
    columns.insert(main + 1, "")
    for line, row in zip(board.lines, rows, strict=True):
        value = line.metrics.get(board.metric)
        row.insert(main + 1, "" if value is None else interval_cell(value, span))
    return Table(columns, rows, note=_board_note(board))


def _board_note(board: Board) -> str:
    """Which rows and baseline the runs were compared on, and what an interval covers."""
    note = (
        f"{board.title}: the same {count(board.rows)} test rows for every run; the baseline is {board.base}. "
        f"Intervals and p: a paired bootstrap of these rows with {board.replicates:,} replicates. They do not include "
        "the variance over seeds, so another seed may change the order (`fieldwise compare --seeds 3` includes it)."
    )
    return " ".join([note, *board.mean_sentences])

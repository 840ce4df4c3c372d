"""Building a report: open runs, evaluate them, compare them, and arrange the results in chapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from fieldwise.charts import interval_cell, wider
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.display import Table
from fieldwise.errors import ConfigError
from fieldwise.evaluation import auc, logloss_from_logits, rmse, sigmoid
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.evaluation.metrics import compared, shown_name
from fieldwise.report.attention import explanation_section
from fieldwise.report.metrics import (
    calibration_section,
    curves_section,
    learning_section,
    metrics_section,
    numbers_section,
    words_section,
)
from fieldwise.report.page import Block, Chapter, Note, Section, count, measured, percent, render
from fieldwise.report.popularity import popularity_section
from fieldwise.report.runs import ReportedRun, Scored, data_section, recipe_section
from fieldwise.report.slicing import check_slices, cold_section, slices_section
from fieldwise.runs.data import data_settings
from fieldwise.runs.leaderboard import Board, leaderboards
from fieldwise.runs.pipeline import best_possible, scored_rows_digest
from fieldwise.runs.records import RunRecord, with_words
from fieldwise.schema.ids import id_columns
from fieldwise.schema.label import Label
from fieldwise.storage.cache import Cache
from fieldwise.training.objective import Objective, monitored

__all__ = ["ReportSettings", "comparison_sections", "report"]


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Settings of a report.

    Args:
        slices: fields or columns to evaluate by.
        rows: maximum number of test rows to explain.
        seed: seed for sampling these rows and for the bootstrap.
        device: where networks score.
    """

    slices: tuple[str, ...] = ()
    rows: int = 500
    seed: int = 0
    device: str = "cpu"


def report(
    folders: Sequence[Path], settings: ReportSettings | None = None, *, data_dir: Path, cache: Cache | None = None
) -> str:
    """A self-contained HTML page about runs; the same runs, rows and settings give the same page.

    Args:
        folders: bundles of `fieldwise train`, or stored runs of `fieldwise compare`; the first is the baseline.
        settings: settings of the report.
        data_dir: the folder of public data sets.
        cache: cache of prepared data.

    Errors:
        BundleError: no run in a folder, or a damaged one.
        ConfigError: a run given twice; a field or column that the rows do not have.
        DataError: the data are missing, have changed since, or have no test rows.
    """
    settings = settings or ReportSettings()
    runs = [ReportedRun(folder, settings.device) for folder in folders]
    twice = [one.folder for k, one in enumerate(runs) if any(one.folder.samefile(o.folder) for o in runs[:k])]
    if twice:
        raise ConfigError(f"runs to report must differ, found {twice[0]} twice: give each once")
    _name_apart(runs)
    prepared: dict[str, Prepared] = {}  # compared runs usually share their rows
    for one in runs:
        key = repr((one.recipe.data, data_settings(one.recipe)))
        if key not in prepared:
            prepared[key] = one.prepare(data_dir, cache)
        one.score(prepared[key])
    return render(runs[0].name if len(runs) == 1 else f"{len(runs)} runs", _chapters(runs, settings))


def _name_apart(runs: Sequence[ReportedRun]) -> None:
    """Add the seed or the folder to names that several runs have."""
    by_name: dict[str, list[ReportedRun]] = {}
    for run in runs:
        by_name.setdefault(run.name, []).append(run)
    for name, namesakes in by_name.items():
        by_seed = len({run.recipe.seed for run in namesakes}) == len(namesakes)
        for run in namesakes if len(namesakes) > 1 else ():
            run.name = f"{name} ({f'seed {run.recipe.seed}' if by_seed else run.folder})"


def _chapters(runs: Sequence[ReportedRun], settings: ReportSettings) -> list[Chapter]:
    for run in runs:
        check_slices(settings.slices, run.frame, run.recipe.schema)
        id_columns(run.frame.columns, run.recipe.schema)
    chapters = [_chapter(run, settings) for run in runs]
    if len(runs) == 1:
        return chapters
    names = ", ".join(run.name for run in runs)
    about = f"{len(runs)} runs: {names}. The first is the baseline of those with the same test rows."
    return [Chapter(title="Runs compared", about=about, sections=comparison_sections(runs, settings.seed)), *chapters]


def _chapter(run: ReportedRun, settings: ReportSettings) -> Chapter:
    sections: list[Section] = []
    facts: list[tuple[str, str, str]] = []
    for label in run.labels:
        found, own = _label_sections(run, label, settings)
        if len(run.recipe.schema.labels) > 1:
            found = [Section(title=f"{section.title}: {label.name}", blocks=section.blocks) for section in found]
            own = [(f"{words} of {label.name}", value, more) for words, value, more in own]
        sections, facts = sections + found, facts + own
    facts.append(("test rows", count(run.frame.height), ""))
    if "parameters" in run.record:
        facts.append(("parameters", count(run.record["parameters"]), ""))
    grouped = run.prepared.valid.group is not None
    monitor = monitored(run.recipe.training, Objective.of(*run.recipe.schema.labels), grouped=grouped)
    best = run.record.get("best_epoch")
    sections.insert(2, learning_section(run.history, best, str(run.record.get("stopped", "")), monitor))
    columns = id_columns(run.frame.columns, run.recipe.schema)
    sections.insert(1, popularity_section(run, columns, settings.seed))
    sections += [data_section(run), recipe_section(run)]
    task = " and ".join(f"{label.name} ({label.task})" for label in run.labels)
    about = f"{run.recipe.name}, seed {run.recipe.seed}: predicts {task} of {count(run.frame.height)} test rows."
    return Chapter(title=run.name, about=about, facts=facts, sections=sections)


def _label_sections(
    run: ReportedRun, label: Label, settings: ReportSettings
) -> tuple[list[Section], list[tuple[str, str, str]]]:
    rows, binary = run.test[label.name], label.task == "binary"
    main = label is run.recipe.schema.label
    best = best_possible(run.prepared.test) if main and binary else None
    kept = None if run.bundle is None else run.bundle.calibration.get(label.name)
    metrics, facts = metrics_section(rows, run.group, binary, best, settings.seed)
    if kept is not None:
        text = f"All metrics except those under Calibration use the {kept.kind} calibration of the bundle."
        metrics = Section(title=metrics.title, blocks=[*metrics.blocks, Note(text=text)])
    found = [words_section(rows, run.group, label), metrics]
    if binary:
        found.append(curves_section({run.name: rows}))
        facts.append(("positive rate", percent(float(np.mean(rows.y))), ""))
        found.append(calibration_section(run.raw[label.name], run.valid.get(label.name), kept, settings.seed))
    else:
        found.append(numbers_section(rows))
    schema, frame = run.recipe.schema, run.frame
    found.append(slices_section(settings.slices, frame, schema, rows, binary))
    columns = id_columns(frame.columns, schema)
    found.append(cold_section(run.prepared.train.frame, frame, columns, rows, binary))
    if run.bundle is None:
        text = "A run stored by `compare` has no network to explain: train a bundle."
        found.append(Section(title="Explanation", blocks=[Note(text=text)]))
    else:
        found.append(explanation_section(run.bundle, frame, label.name, rows=settings.rows, seed=settings.seed))
    return found, facts


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


def _record(run: ReportedRun) -> RunRecord:
    """A run as a record for the leaderboard."""
    label = run.recipe.schema.label
    rows = run.test[label.name]
    facts = {
        "task": label.task,
        "test_digest": scored_rows_digest(run.frame, run.recipe),
        "seed": run.recipe.seed,
        "test": _metrics(rows, label.task),
        "parameters": int(run.record.get("parameters", 0)),
        "epochs": float(run.record.get("epochs", 0)),
        "seconds": float(run.record.get("seconds", 0.0)),
        "seconds_per_epoch": run.record.get("seconds_per_epoch"),
    }
    return with_words(RunRecord(run.folder, facts, (rows.y, rows.score)), run.recipe)


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
    span = wider(min(s.low for s in spans), max(s.high for s in spans), 0.01)
    columns = ["run", main, ""]
    columns += [shown_name(m) for m in metrics if m != board.metric]
    columns += [f"{main} − baseline", "p"]
    columns += ["DeLong p"] if board.metric == "auc" else []
    columns += ["parameters", "s/epoch"]
    rows: list[list[str | Markup]] = []
    for line in board.lines:
        own = line.metrics[board.metric]
        row: list[str | Markup] = [line.recipe, measured(own.value, own.low, own.high)]
        row.append(interval_cell(own.value, own.low, own.high, span))
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

"""Find the best model for a table within a time budget: read, audit, train, search, evaluate once, write."""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.automatic.board import board_of
from fieldwise.automatic.budget import Clock
from fieldwise.automatic.candidates import Candidate, resolved
from fieldwise.automatic.folder import TABLE, claimed, write_folder
from fieldwise.automatic.models import Tried, try_models
from fieldwise.automatic.problem import IN_MEMORY, Problem, pose, read_source
from fieldwise.automatic.result import AutoResult
from fieldwise.automatic.settings import AutoSettings
from fieldwise.bundle.bundle import Bundle
from fieldwise.errors import FieldwiseError, MissingExtraError
from fieldwise.evaluation.calibration import before_and_after
from fieldwise.runs.pipeline import finish_run
from fieldwise.schema import Schema

__all__ = ["auto", "run_auto"]

RESERVE, MOST_RESERVE = 0.15, 45.0  # share of the time, and maximum seconds, for evaluation, writing and the report
REPORT_ROWS = 200
REPORT_SECONDS = 8.0  # estimated duration of a report, in addition to preparing the rows again


def auto(
    data: Any,
    label: str | None = None,
    *,
    minutes: float = 10.0,
    out: str | Path | None = None,
    seed: int = 0,
    schema: Schema | None = None,
    keep: Collection[str] = (),
    positive: Collection[str] = (),
    again: bool = False,
    quiet: bool = False,
) -> AutoResult:
    """The best model for a table that is found within a time budget, with an honest evaluation.

    The schema is inferred and the training rows are audited: columns that are constant, id-like or label-like are left
    out. Rows are split by time if there is a time column, else at random (80, 10 and 10 %). LR, FM, LightGBM, AFM,
    AutoInt+, FinalMLP and, with user and item fields, DSSM and IntTower are trained with their defaults, then a short
    search changes the settings of the two best. All choices are made on validation rows; the test rows are evaluated
    once, at the end.

    Args:
        data: a path, or a table of any type that `as_table` takes.
        label: column of the label. Default: guessed from the column names.
        minutes: time budget of the whole run, from this call on. Models that do not fit are left out and reported; a
            training that takes longer than its share is stopped, and its best epoch is used.
        out: folder for schema, recipe, leaderboard, bundle and report. Default: nothing is written.
        seed: seed of everything random.
        schema: a schema to use instead of an inferred one.
        keep: columns that remain fields whatever the audit finds.
        positive: the label's positive values, if they cannot be inferred.
        again: whether to replace an earlier result in `out`.
        quiet: whether to print nothing to standard error.

    `run_auto` with `AutoSettings` also takes your own split.

    Errors:
        SchemaError, DataError: nothing can be learned from the table.
        ConfigError: a setting is invalid, or `out` is in use.
        KeyboardInterrupt: Ctrl-C before the first model; later it ends the run with the models trained so far.
    """
    settings = AutoSettings(
        label=label,
        minutes=minutes,
        out=None if out is None else Path(out),
        seed=seed,
        schema=schema,
        keep=keep,
        positive=tuple(positive),
        again=again,
    )
    return run_auto(data, settings, (lambda _: None) if quiet else _say)


def run_auto(data: Any, settings: AutoSettings, note: Callable[[str], None]) -> AutoResult:
    """The result of `auto`, with its settings as one object.

    Args:
        data: a path, a table, or a recipe's data settings.
        settings: the settings.
        note: receives a sentence about each step.
    """
    clock = Clock(settings.minutes * 60, began=settings.began)
    with contextlib.ExitStack() as stack:
        if settings.out is not None:
            stack.enter_context(claimed(settings.out, again=settings.again))
        return _run(data, settings, clock, note)


def _run(data: Any, settings: AutoSettings, clock: Clock, note: Callable[[str], None]) -> AutoResult:
    frame, source = read_source(data)
    if source.path == IN_MEMORY and settings.out is not None:
        source = dataclasses.replace(source, path=str(settings.out.resolve() / TABLE))
    note(f"{frame.height:,} rows, {frame.width} columns")
    problem = pose(frame, source, settings, note)
    prepared_in = clock.spent
    reserve = min(RESERVE * clock.seconds, MOST_RESERVE)
    stem = "auto" if settings.out is None else settings.out.name
    tried = try_models(problem, stem, clock, reserve=reserve, note=note)
    result = _measured(problem, tried, clock, settings.seed)
    if settings.out is None:
        return result
    result = dataclasses.replace(result, folder=settings.out)
    write_folder(result, problem, settings.out)
    timely = clock.left >= prepared_in + REPORT_SECONDS
    report = None if result.interrupted else _report(settings.out, settings.device, timely, note)
    return dataclasses.replace(result, report=report, seconds=clock.spent)


def _measured(problem: Problem, tried: Tried, clock: Clock, seed: int) -> AutoResult:
    """The result with its leaderboard: the only evaluation on test rows, after all choices."""
    chosen = tried.on_all or tried.chosen
    candidates = [*tried.candidates, *([tried.on_all] if tried.on_all is not None else [])]
    binary = problem.schema.label.task == "binary"
    test = problem.prepared.test
    scores = [one.score(test, problem.schema) for one in candidates]
    board = board_of(candidates, scores, np.asarray(test.main), chosen, binary=binary, seed=seed)
    return AutoResult(
        best=_bundle(problem, chosen, tried.chosen),
        schema=problem.schema,
        recipe=resolved(chosen),
        board=board,
        findings=problem.findings,
        notes=problem.notes,
        skipped=tried.skipped,
        trials=tried.trials,
        seconds=clock.spent,
        interrupted=tried.interrupted,
    )


def _bundle(problem: Problem, chosen: Candidate, first: Candidate) -> Bundle:
    """The bundle of a candidate.

    Args:
        problem: the rows.
        chosen: the candidate.
        first: the candidate before its second training, for the calibration's figures on validation rows.
    """
    assert chosen.recipe is not None, "networks have recipes"
    assert chosen.fitted is not None, "networks are fitted"
    bundle = finish_run(problem.prepared, chosen.fitted, spent=chosen.seconds).bundle
    if chosen.calibration is None:
        return bundle
    name = problem.schema.label.name
    parts = {"validation rows": (first, problem.prepared.valid), "test rows": (chosen, problem.prepared.test)}
    figures = {
        rows: {name: before_and_after(part.main, one.raw(part, problem.schema), chosen.calibration)}
        for rows, (one, part) in parts.items()
    }
    rows = len(problem.prepared.valid.table)
    facts = {"method": "platt", "fitted_on": "validation rows", "rows": rows, "figures": figures}
    about = {**bundle.about, "calibration": facts}
    return dataclasses.replace(bundle, calibration={name: chosen.calibration}, about=about)


def _report(out: Path, device: str, timely: bool, note: Callable[[str], None]) -> Path | None:
    """Write the report about the chosen model if there is time, else print the command that does; returns its path."""
    page, later = out / "report.html", f"`fieldwise report {out / 'bundle'} --out {out / 'report.html'}` writes it"
    if not timely:
        note(f"there is no time left for the report: {later}")
        return None
    try:
        from fieldwise.report import ReportSettings, report
        from fieldwise.storage.files import write_atomically
    except MissingExtraError as e:
        note(f"there is no report: {e}")
        return None
    try:
        text = report([out / "bundle"], ReportSettings(rows=REPORT_ROWS, device=device), data_dir=Path())
        write_atomically(page, text.encode())
    except FieldwiseError as e:  # the result is already written
        note(f"there is no report: {e}")
        return None
    return page


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)

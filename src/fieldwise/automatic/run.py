"""From a table to the best model within some minutes: read, audit, train, search, measure once, write."""

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

RESERVE, MOST_RESERVE = 0.15, 45.0  # of the whole time, and seconds at most, for measuring, writing and the report
REPORT_ROWS = 200
REPORT_SECONDS = 8.0  # of a report, beside preparing the rows again


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
    """Find a good model for a table within some minutes, and say honestly how good it is.

    The schema is inferred and the training rows are audited: columns that are constant, name single rows or tell the
    label nearly perfectly are left out. Rows are divided by time where there is one, else at random (80, 10 and 10 of
    a hundred). LR, FM, LightGBM, AFM, AutoInt+, FinalMLP and, with user and item fields, DSSM and IntTower are trained
    by their defaults, then a short search goes on from the two best. Everything is chosen on validation rows; the test
    rows are looked at once, at the end.

    Args:
        data: a path, or a table of any kind that `as_table` takes.
        label: the label's column; guessed by its name where left out.
        minutes: of the whole run, from this call on. Models that do not fit are left out, and said; a training that
            takes longer than its share is ended at its best.
        out: folder for schema, recipe, leaderboard, bundle and report; nothing is written where left out.
        seed: of everything.
        schema: instead of an inferred one.
        keep: columns that stay fields whatever the audit finds.
        positive: the label's values that count as positive, where their words do not tell.
        again: whether a former result in `out` is replaced.
        quiet: whether nothing is said on standard error meanwhile.

    `run_auto` with `AutoSettings` takes a split of one's own, too.

    Errors:
        SchemaError, DataError: the table cannot be learned from. ConfigError: a setting; `out` is taken.
        KeyboardInterrupt: Ctrl-C before there was a model; later it ends the run with what there is.
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
    """`auto` with its settings as one object.

    Args:
        data: a path, a table, or a recipe's data settings.
        settings: what it goes by.
        note: hears, in a sentence each, what is done.
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
    report = None if result.interrupted else _report(settings.out, clock, prepared_in, note)
    return dataclasses.replace(result, report=report, seconds=clock.spent)


def _measured(problem: Problem, tried: Tried, clock: Clock, seed: int) -> AutoResult:
    """Choose by the validation rows, then look at the test rows, once."""
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
        problem: its rows.
        chosen: the candidate.
        first: the candidate as it was before a second training; it gives the calibration's figures of validation rows.
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


def _report(out: Path, clock: Clock, prepared_in: float, note: Callable[[str], None]) -> Path | None:
    """Write the page about the best, where there is time for it; else say how to."""
    page, later = out / "report.html", f"`fieldwise report {out / 'bundle'} --out {out / 'report.html'}` writes it"
    if clock.left < prepared_in + REPORT_SECONDS:
        note(f"there is no time left for the report: {later}")
        return None
    try:
        from fieldwise.report import ReportSettings, report
        from fieldwise.storage.files import write_atomically
    except MissingExtraError as e:
        note(f"there is no report: {e}")
        return None
    try:
        text = report([out / "bundle"], ReportSettings(rows=REPORT_ROWS), data_dir=Path())
        write_atomically(page, text.encode())
    except FieldwiseError as e:  # the result is written by now
        note(f"there is no report: {e}")
        return None
    return page


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)

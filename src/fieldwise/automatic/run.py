"""Find the best model for a table within a time budget: read, audit, train, search, evaluate once, write.

The folder of a result is written completely under a temporary name, then renamed over an older result:

    schema.toml        the meaning of each column, with the reason
    recipe.toml        the best model: `fieldwise train FOLDER/recipe.toml` trains it again
    leaderboard.json   all figures
    leaderboard.md     the same figures as text
    bundle/            the model
    auto-table.parquet the rows, if the table was given in memory
    report.html        the report about the best model (written last)
"""

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import tomli_w

from fieldwise.automatic.budget import Clock
from fieldwise.automatic.result import AutoResult, build_leaderboard
from fieldwise.automatic.settings import AutoSettings
from fieldwise.automatic.task import AutoTask, build_task, read_source
from fieldwise.automatic.trials import Trial, Trials, try_models
from fieldwise.bundle.bundle import Bundle
from fieldwise.config import to_plain
from fieldwise.data.read.tables import write_table
from fieldwise.errors import ConfigError, DataError, FieldwiseError, MissingExtraError
from fieldwise.evaluation.calibration import before_and_after
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.pipeline import evaluate_on_test
from fieldwise.runs.recipe import IN_MEMORY
from fieldwise.runs.records import Store
from fieldwise.schema import Schema
from fieldwise.storage.files import check_folder, keep_elsewhere, write_atomically
from fieldwise.storage.folders import whole_folder

__all__ = ["auto", "run_auto"]

RESERVE, MOST_RESERVE = 0.15, 45.0  # share of the time, and maximum seconds, for evaluation, writing and the report
REPORT_ROWS = 200
REPORT_SECONDS = 8.0  # estimated duration of a report, in addition to preparing the rows again
TABLE, BOARD = "auto-table.parquet", "leaderboard.json"
OWN = {TABLE, BOARD, "schema.toml", "recipe.toml", "leaderboard.md", "bundle", "report.html"}


def auto(
    data: Any,
    label: str | None = None,
    *,
    minutes: float = AutoSettings.minutes,
    out: str | Path | None = None,
    seed: int = AutoSettings.seed,
    schema: Schema | None = None,
    keep: Collection[str] = (),
    positive: Collection[str] = (),
    overwrite: bool = AutoSettings.overwrite,
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
        overwrite: whether to replace an earlier result in `out`.
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
        overwrite=overwrite,
    )
    return run_auto(data, settings, (lambda _: None) if quiet else _say)


def run_auto(data: Any, settings: AutoSettings, note: Callable[[str], None]) -> AutoResult:
    """The result of `auto`, with its settings as one object; `data` may also be a recipe's data settings."""
    clock = Clock(settings.minutes * 60, began=settings.began)
    with contextlib.ExitStack() as stack:
        if settings.out is not None:
            stack.enter_context(_claimed(settings.out, overwrite=settings.overwrite))
        return _run(data, settings, clock, note)


def _run(data: Any, settings: AutoSettings, clock: Clock, note: Callable[[str], None]) -> AutoResult:
    frame, source = read_source(data)
    if source.path == IN_MEMORY and settings.out is not None:
        source = dataclasses.replace(source, path=str(settings.out.resolve() / TABLE))
    note(f"{frame.height:,} rows, {frame.width} columns")
    task = build_task(frame, source, settings, note)
    prepared_in = clock.spent
    reserve = min(RESERVE * clock.seconds, MOST_RESERVE)
    stem = "auto" if settings.out is None else settings.out.name
    tried = try_models(task, stem, clock, reserve=reserve, note=note)
    result = _evaluated(task, tried, clock, settings.seed)
    if settings.out is None:
        return result
    result = dataclasses.replace(result, folder=settings.out)
    _write_folder(result, task, settings.out)
    timely = clock.left >= prepared_in + REPORT_SECONDS
    report = None if result.interrupted else _report(settings.out, settings.device, timely, note)
    return dataclasses.replace(result, report=report, seconds=clock.spent)


def _evaluated(task: AutoTask, tried: Trials, clock: Clock, seed: int) -> AutoResult:
    """The result with its leaderboard: the only evaluation on test rows, after all choices."""
    chosen = tried.on_all or tried.chosen
    trials = [*tried.trials, *([tried.on_all] if tried.on_all is not None else [])]
    test, binary = task.prepared.test, task.schema.label.task == "binary"
    return AutoResult(
        best=_bundle(task, chosen, tried.chosen),
        schema=task.schema,
        recipe=chosen.network.recipe,
        lines=build_leaderboard(trials, chosen, test, binary=binary, seed=seed),
        test_rows=len(test.table),
        findings=task.findings,
        notes=task.notes,
        skipped=tried.skipped,
        trials=tried.searched,
        seconds=clock.spent,
        interrupted=tried.interrupted,
    )


def _bundle(task: AutoTask, chosen: Trial, first: Trial) -> Bundle:
    """The bundle of a trial; the calibration's figures on validation rows are those of `first`, before a refit."""
    bundle = evaluate_on_test(chosen.network, task.prepared, spent=chosen.seconds).bundle
    if chosen.calibration is None:
        return bundle
    name = task.schema.label.name
    parts = {"validation rows": (first, task.prepared.valid), "test rows": (chosen, task.prepared.test)}
    figures = {
        rows: {name: before_and_after(part.main, one.raw(part), chosen.calibration)}
        for rows, (one, part) in parts.items()
    }
    rows = len(task.prepared.valid.table)
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


@contextlib.contextmanager
def _claimed(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Lock a folder for one run; it must not exist, be empty, or hold an earlier result to replace.

    Errors:
        ConfigError: it holds a result and `overwrite` is not set, or it holds other files, or another run writes to it.
        DataError: it cannot be written to.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out is a folder, but {out} is a file: choose another name")
    if out.is_dir() and any(out.iterdir()):
        if not (out / BOARD).is_file():
            raise ConfigError(f"out needs a folder of its own: {out} holds other files; choose another")
        if not overwrite:
            raise ConfigError(f"{out} holds the result of an earlier run: give overwrite to replace it, or another out")
        others = sorted({path.name for path in out.iterdir()} - OWN)
        if others:
            raise ConfigError(
                f"overwrite replaces the whole of {out}, which holds {others[0]!r} too: move it away first"
            )
    check_folder(out)
    with Store(out.absolute().parent).claim(out.name) as mine:
        if not mine:
            raise ConfigError(f"another run is writing to {out}: wait for it, or give another out")
        yield


def _write_folder(result: AutoResult, task: AutoTask, out: Path) -> None:
    """Write all files but the report, replacing the folder's content.

    Errors:
        DataError: the folder cannot be written; the message says where the result was saved instead.
    """
    try:
        with whole_folder(out) as new:
            _write(result, task, new)
    except (FieldwiseError, OSError) as e:
        kept = keep_elsewhere(lambda folder: _write(result, task, folder))
        if kept is None:
            raise
        raise DataError(f"{e}. The result is not lost: it is in {kept}, move it from there") from e


def _write(result: AutoResult, task: AutoTask, folder: Path) -> None:
    if Path(task.settings["data"]["path"]).name == TABLE:
        write_table(task.frame, folder / TABLE)
    write_atomically(folder / "schema.toml", _schema(result, task).encode())
    write_atomically(folder / "recipe.toml", _recipe(result).encode())
    result.best.save(folder / "bundle")
    write_atomically(folder / "leaderboard.md", result.to_markdown().encode())
    write_atomically(folder / BOARD, (json.dumps(result.to_plain(), indent=1, default=str) + "\n").encode())


def _schema(result: AutoResult, task: AutoTask) -> str:
    if task.inferred is None:
        return result.schema.to_toml()
    left = {found.column: f"omitted: {found.sentence}" for found in task.findings if found.left_out}
    notes = {**task.inferred.notes, **left}
    return dataclasses.replace(task.inferred, schema=result.schema, notes=notes).to_toml()


def _recipe(result: AutoResult) -> str:
    line = result.chosen
    plain = {k: v for k, v in result.recipe.to_dict().items() if v not in ("", {})}
    plain["schema"] = "schema.toml"
    path = Path(plain["data"]["path"])
    usual = to_plain(DataSettings(path=""))
    plain["data"] = {k: v for k, v in plain["data"].items() if v != usual.get(k)}
    if path.name == TABLE:
        plain["data"]["path"] = TABLE
    top = {k: v for k, v in plain.items() if not isinstance(v, dict)}
    tables = {k: v for k, v in plain.items() if isinstance(v, dict)}
    said = [
        f"# {line.model}: the best of `fieldwise auto` on validation rows. Train it again: fieldwise train THIS_FILE"
    ]
    if line.stopped in ("time", "interrupted"):
        said.append(f"# Its training ended early ({line.stopped}): training it again takes longer and may differ.")
    if str(path) == IN_MEMORY:
        said.append("# The table was given in memory: put the path of a file in its place.")
    return "\n".join(said) + "\n\n" + tomli_w.dumps({**top, **tables})


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)

"""Find the best model for a table within a time budget: read, audit, train, search, evaluate once, write.

The folder of a result is written completely under a temporary name, then renamed over an older
result:

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
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fieldwise.automatic.budget import Clock
from fieldwise.automatic.result import AutoResult, build_leaderboard
from fieldwise.automatic.schedule import try_models
from fieldwise.automatic.settings import AutoSettings, Note
from fieldwise.automatic.task import AutoTask, ReadTable, build_task
from fieldwise.automatic.trial import Trial, Trials, metric_weights
from fieldwise.bundle.about import CalibrationFacts
from fieldwise.bundle.bundle import Bundle
from fieldwise.data.infer.findings import omitted_note
from fieldwise.data.read.table_writer import write_table
from fieldwise.data.read.tables import as_table
from fieldwise.errors import Argument, ConfigError, DataError, FieldwiseError
from fieldwise.evaluation.calibration import Calibration
from fieldwise.evaluation.metrics import before_and_after
from fieldwise.runs.data_settings import IN_MEMORY, DataSettings
from fieldwise.runs.pipeline import evaluate_on_test
from fieldwise.runs.raw_table import load_frame
from fieldwise.runs.recipe_files import recipe_toml
from fieldwise.runs.records import Store
from fieldwise.schema import Schema
from fieldwise.storage.files import write_atomically
from fieldwise.storage.folders import whole_folder
from fieldwise.storage.outputs import already_exists, check_folder, keep_elsewhere

RESERVED_SHARE = 0.15
"""Of the time, for evaluation, writing and the report."""
MAX_RESERVED_SECONDS = 45.0
REPORT_ROWS = 200
REPORT_SECONDS = 8.0
"""Estimated duration of a report, in addition to preparing the rows again."""
TABLE = "auto-table.parquet"
BOARD = "leaderboard.json"
REPORT = "report.html"
FILES = {TABLE, BOARD, "schema.toml", "recipe.toml", "leaderboard.md", "bundle", REPORT}
"""What a result's folder holds."""


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

    The schema is inferred and the training rows are audited: columns that are constant, id-like or
    label-like are left out. Rows are split by time if there is a time column, else at random (80,
    10 and 10 %). LR, FM, LightGBM, CatBoost, AFM, AutoInt+, FinalMLP and, with user and item fields, DSSM
    and IntTower are trained with their defaults, then a short search changes the settings of the two
    best. All choices are made on validation rows; the test rows are evaluated once, at the end.

    Args:
        data: a path, or a table of any type that `as_table` takes.
        label: column of the label. Default: guessed from the column names.
        minutes: time budget of the whole run, from this call on. Models that do not fit are left
            out and reported; a training that takes longer than its share is stopped, and its best
            epoch is used.
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
        KeyboardInterrupt: Ctrl-C before the first model; later it ends the run with the models
            trained so far.
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

    def note(message: str) -> None:
        if not quiet:
            print(message, file=sys.stderr, flush=True)

    return run_auto(data, settings, note)


def run_auto(data: Any, settings: AutoSettings, note: Note) -> AutoResult:
    """The result of `auto`, with its settings as one object; `data` may also be a recipe's data settings."""
    clock = Clock(settings.minutes * 60, began=settings.began)
    out = settings.out
    lock: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if out is not None:
        lock = _claimed(out, overwrite=settings.overwrite)
    with lock:
        task = _read_task(data, settings, note)
        preparation_seconds = clock.spent
        stem = "auto" if out is None else out.name
        reserve = min(RESERVED_SHARE * clock.seconds, MAX_RESERVED_SECONDS)
        tried = try_models(task, stem, clock, reserve=reserve, note=note)
        result = _evaluated(task, tried, clock, settings.seed)
        if out is None:
            return result

        result = dataclasses.replace(result, folder=out)
        _write_folder(result, task, out)
        if not result.interrupted:
            has_time = clock.left >= preparation_seconds + REPORT_SECONDS
            report = _write_report(out, settings.device, note, has_time=has_time)
            result = dataclasses.replace(result, report=report)
        return dataclasses.replace(result, seconds=clock.spent)


def _read_task(data: Any, settings: AutoSettings, note: Note) -> AutoTask:
    """The learning task of a path, data settings, or a table in memory."""
    if isinstance(data, (str, Path)):
        data = DataSettings(path=str(data))
    read: ReadTable | None = None
    if isinstance(data, DataSettings):
        path = None if data.path is None else str(Path(data.path).resolve())
        source = dataclasses.replace(data, path=path)
        read = partial(load_frame, data, Path())
        text_columns = () if settings.schema is None else settings.schema.text_columns
        if settings.split is not None:
            text_columns += settings.split.text_columns
        frame = read(text_columns)
    else:
        path = IN_MEMORY if settings.out is None else str(settings.out.resolve() / TABLE)
        frame = as_table(data)
        source = DataSettings(path=path)
    note(f"{frame.height:,} rows, {frame.width} columns")
    return build_task(frame, source, settings, note, read)


def _evaluated(task: AutoTask, tried: Trials, clock: Clock, seed: int) -> AutoResult:
    """The result with its leaderboard: the only evaluation on test rows, after all choices."""
    chosen = tried.on_all or tried.chosen
    trials = list(tried.trials)
    if tried.on_all is not None:
        trials.append(tried.on_all)
    test = task.prepared.test

    best = evaluate_on_test(chosen.training, task.prepared, spent=chosen.seconds).bundle
    if chosen.calibration is not None:
        best = _with_calibration(best, task, chosen.calibration, tried.chosen, chosen)
    return AutoResult(
        best=best,
        schema=task.schema,
        recipe=chosen.training.recipe,
        lines=build_leaderboard(trials, chosen, test, task.schema.label, seed=seed),
        test_rows=len(test.table),
        findings=task.findings,
        notes=task.notes,
        skipped=tried.skipped,
        late=tuple(tried.skipped_for_time),
        learned=tuple(trial.title for trial in trials if tried.learned(trial)),
        trials=tried.searched,
        seconds=clock.spent,
        interrupted=tried.interrupted,
    )


def _with_calibration(
    bundle: Bundle, task: AutoTask, calibration: Calibration, first: Trial, final: Trial
) -> Bundle:
    """The bundle with a calibration and its figures; `first` has not seen the validation rows, `final` may have."""
    label = task.schema.label.name
    valid = task.prepared.valid
    test = task.prepared.test
    on_valid = before_and_after(
        valid.main, first.raw(valid), calibration, metric_weights(task, valid)
    )
    on_test = before_and_after(test.main, final.raw(test), calibration, metric_weights(task, test))
    facts = CalibrationFacts(
        method="platt",
        fitted_on="validation rows",
        rows=len(valid.table),
        figures={"validation rows": {label: on_valid}, "test rows": {label: on_test}},
    )
    about = dataclasses.replace(bundle.about, calibration=facts)
    return dataclasses.replace(bundle, calibration={label: calibration}, about=about)


def _write_report(out: Path, device: str, note: Note, *, has_time: bool) -> Path | None:
    """Write the report about the bundle of a result's folder, if there is time; None if there is none."""
    bundle = out / "bundle"
    page = out / REPORT
    if not has_time:
        note(
            f"there is no time left for the report: `fieldwise report {bundle} --out {page}` writes it"
        )
        return None
    try:
        from fieldwise.report import ReportSettings, report

        settings = ReportSettings(rows=REPORT_ROWS, device=device)
        text = report([bundle], settings, data_dir=Path())
        write_atomically(page, text.encode())
    except FieldwiseError as e:  # the result is already written
        note(f"there is no report: {e}")
        return None
    return page


@contextlib.contextmanager
def _claimed(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Lock a folder for one run; it must not exist, be empty, or hold an earlier result to replace."""
    if out.exists() and not out.is_dir():
        raise ConfigError(
            Argument("out"), f" is a folder, but {out} is a file: choose another name"
        )
    if out.is_dir() and any(out.iterdir()):
        if not (out / BOARD).is_file():
            raise ConfigError(
                Argument("out"),
                f" needs a folder of its own: {out} holds other files; choose another",
            )
        if not overwrite:
            raise already_exists(out, "out")
        others = sorted({path.name for path in out.iterdir()} - FILES)
        if others:
            raise ConfigError(
                Argument("overwrite"),
                f" replaces the whole of {out}, which holds {others[0]!r} too: move it away first",
            )
    check_folder(out)
    with Store(out.absolute().parent).claim(out.name) as mine:
        if not mine:
            raise ConfigError(
                f"another run is writing to {out}: wait for it, or give another ", Argument("out")
            )
        yield


def _write_folder(result: AutoResult, task: AutoTask, out: Path) -> None:
    """Write all files but the report, replacing the folder's content, or to another place if that fails."""
    schema_text = _schema_text(result, task)
    recipe = {**result.recipe.to_dict(), "schema": "schema.toml"}
    has_own_table = Path(recipe["data"]["path"]).name == TABLE
    if has_own_table:
        recipe["data"]["path"] = TABLE
    recipe_text = f"{_recipe_comment(result)}\n\n{recipe_toml(recipe)}"
    board_text = json.dumps(result.to_plain(), indent=1, default=str) + "\n"

    def write(folder: Path) -> None:
        if has_own_table:
            write_table(task.frame, folder / TABLE)
        write_atomically(folder / "schema.toml", schema_text.encode())
        write_atomically(folder / "recipe.toml", recipe_text.encode())
        result.best.save(folder / "bundle")
        write_atomically(folder / "leaderboard.md", result.to_markdown().encode())
        write_atomically(folder / BOARD, board_text.encode())

    try:
        with whole_folder(out) as new_folder:
            write(new_folder)
    except (FieldwiseError, OSError) as e:
        other_folder = keep_elsewhere(write, e)
        raise DataError(
            f"{e}. The result is not lost: it is in {other_folder}, move it from there"
        ) from e


def _schema_text(result: AutoResult, task: AutoTask) -> str:
    """The schema as TOML, with the reasons of an inferred one and of the audit."""
    if task.inferred is None:
        return result.schema.to_toml()
    notes = dict(task.inferred.column_notes)
    for finding in task.findings:
        if finding.column is not None and finding.column not in result.schema.columns:
            notes[finding.column] = omitted_note(finding.sentence)
    return dataclasses.replace(task.inferred, schema=result.schema, column_notes=notes).to_toml()


def _recipe_comment(result: AutoResult) -> str:
    """The first lines of the recipe's file."""
    line = result.chosen
    text = f"# {line.model}: the best of `fieldwise auto` on validation rows. Train it again: fieldwise train THIS_FILE"
    if line.stopped in ("time", "interrupted"):
        text += f"\n# Its training ended early ({line.stopped}): training it again takes longer and may differ."
    return text

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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.automatic.settings import AutoSettings, Clock, Note
from fieldwise.automatic.task import AutoTask, Finding, ReadTable, build_task
from fieldwise.automatic.trials import ALL_ROWS, CONSTANT, TITLES, TREES, Trial, Trials, try_models
from fieldwise.bundle.bundle import Bundle
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import SplitPart
from fieldwise.data.read.tables import as_table, write_table
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.evaluation import logloss_from_logits, rmse, sigmoid
from fieldwise.evaluation.bootstrap import MetricName, estimate, resampled
from fieldwise.evaluation.calibration import NORMAL_975, before_and_after, calibration_error
from fieldwise.evaluation.metrics import shown_name
from fieldwise.evaluation.ranking import delong
from fieldwise.evaluation.slices import Interval
from fieldwise.runs.data_settings import IN_MEMORY, DataSettings
from fieldwise.runs.leaderboard import replicates_for
from fieldwise.runs.pipeline import evaluate_on_test
from fieldwise.runs.raw_table import load_frame
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import recipe_toml
from fieldwise.runs.records import Store
from fieldwise.schema import Schema
from fieldwise.storage.files import (
    already_exists,
    check_folder,
    keep_elsewhere,
    whole_folder,
    write_atomically,
)

BASES = (CONSTANT, TITLES["lr"], TREES)


@dataclass(frozen=True, kw_only=True)
class Line:
    """One trial on the test rows."""

    model: str  # title of the trial
    chosen: bool  # whether this trial is the bundle
    all_rows: bool  # whether it was trained on training and validation rows, unlike the others
    valid: float  # logloss or RMSE on the validation rows, by which the choice was made
    metrics: Mapping[str, Interval]  # `auc` and `logloss`, or `rmse`
    calibration_error: float | None  # expected calibration error; None for a regression label
    # for each baseline and metric, the difference, paired by row
    against: Mapping[str, Mapping[str, Interval]]
    calibrated: bool  # whether its probabilities have a Platt scaling fitted on validation rows
    epochs: int  # this and the rest as of the `Trial`
    seconds: float
    stopped: str
    network_share: float  # of the trained network in its mean with LR: 0 is LR alone, 1 no mean
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
    lines: tuple[Line, ...]
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
            }
            row[f"valid_{self.metric}"] = line.valid
            for name, result in line.metrics.items():
                row |= {name: result.value, f"{name}_low": result.low, f"{name}_high": result.high}
            for base, metrics in line.against.items():
                for name, result in metrics.items():
                    column = f"{name}_less_{base.lower()}"
                    row |= {
                        column: result.value,
                        f"{column}_low": result.low,
                        f"{column}_high": result.high,
                    }
            if line.calibration_error is not None:
                row["calibration_error"] = line.calibration_error
            more = "calibrated", "epochs", "seconds", "stopped", "network_share", "parameters"
            rows.append(row | {name: getattr(line, name) for name in more})
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def binary(self) -> bool:
        """Whether the label is binary."""
        return self.schema.label.task == "binary"

    @property
    def metric(self) -> str:
        """Metric of the choice and of the leaderboard's order."""
        return "logloss" if self.binary else "rmse"

    @property
    def chosen(self) -> Line:
        """The line of the bundle's model."""
        return next(line for line in self.lines if line.chosen)

    @property
    def judged(self) -> Line:
        """The line of the bundle's model trained on the training rows only, like the other trials."""
        return self.line(self.chosen.model.removesuffix(f", {ALL_ROWS}")) or self.chosen

    def line(self, model: str) -> Line | None:
        """The line of a model by its title; None if there is none."""
        return next((line for line in self.lines if line.model == model), None)

    @property
    def legend(self) -> str:
        """An explanation of the leaderboard's columns, in two or three sentences."""
        by = "AUC has DeLong intervals, logloss" if self.binary else "The intervals are"
        lower = "Lower logloss is better, higher AUC" if self.binary else "Lower RMSE is better"
        more = " ECE: expected calibration error." if self.binary else ""
        return (
            f"{lower}; a difference whose interval contains 0 is not significant. {by} bootstrap intervals over test "
            f"rows ({replicates_for(self.test_rows)} replicates), with differences paired by row.{more}"
        )

    def sentences(self) -> list[str]:
        """The leaderboard's conclusions as sentences."""
        line = self.judged
        metric = shown_name(self.metric)
        networks = [
            one for one in self.lines if one.model not in (CONSTANT, TREES) and not one.all_rows
        ]
        lowest = min(networks, key=lambda one: one.valid)
        why = f"has the best {metric} of the networks on validation rows ({line.valid:.4f})"
        if lowest is not line:
            why = (
                f"was chosen on validation rows ({metric} {line.valid:.4f}): {lowest.model} has {lowest.valid:.4f} "
                "there, which is not significantly better, and is more complex"
            )
        after = f"the {self.test_rows:,} test rows were evaluated once, after this choice"
        said = [f"{line.model} {why}; {after}"]
        bases = [base for base in BASES if base in line.against]
        said += [
            f"{line.model} against {_named(b)}: {_judged(line.against[b], self.metric)}"
            for b in bases
        ]
        if self.chosen is not line:
            said.append(
                f"the bundle is {line.model} trained again on training and validation rows for as many epochs: "
                f"{metric} {self.chosen.metrics[self.metric].value:.4f}, not "
                f"{line.metrics[self.metric].value:.4f}. The other models have learned from the training rows alone: "
                f"compare them with {line.model}"
            )
        trees = self.line(TREES)
        guess = self.line(CONSTANT)
        if line.model not in self.learned and guess is not None:
            better = TREES in self.learned
            remedy = "use more rows or other columns, or check whether the data changes over time"
            if self.late or line.stopped == "time" or better:
                remedy = "give more minutes"
            said.append(
                f"CHECK {line.model}: NOTHING WAS LEARNED, on validation rows it is not significantly better than a "
                f"constant ({metric} {line.valid:.4f}, not {guess.valid:.4f}){f', but {TREES} is' * better}: {remedy}"
            )
        if trees is not None and trees.valid < line.valid:
            said.append(
                f"on validation rows {TREES} was better ({metric} {trees.valid:.4f}, not {line.valid:.4f}), but "
                "a bundle can only hold a fieldwise model"
            )
        if line.stopped == "time":
            said.append(
                f"the time for {line.model} ended its training: more minutes may improve it"
            )
        if line.stopped == "epochs":
            all_epochs = "its only epoch" if line.epochs == 1 else f"all its {line.epochs} epochs"
            said.append(
                f"{line.model} ended after {all_epochs}, and more may improve it: raise training.epochs in the recipe"
            )
        if self.best.mean_sentence is not None:
            said.append(self.best.mean_sentence)
        if line.changes:
            said.append(
                f"the search changed {', '.join(f'{path} = {value}' for path, value in line.changes.items())}"
            )
        if line.calibrated:
            figures = self.best.about["calibration"]["figures"]["test rows"][self.schema.label.name]
            before, after = (figures[when]["logloss"] for when in ("before", "after"))
            said.append(
                "its probabilities are calibrated by Platt scaling on validation rows: test logloss "
                f"{before:.4f} without it, {after:.4f} with it, as in the leaderboard"
            )
        said += [f"{title} was left out: {why}" for title, why in self.skipped.items()]
        if self.late:
            said.append(
                f"CHECK {', '.join(self.late)}: left out for time, give more minutes to have them too"
            )
        return said

    def to_plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "chosen": self.chosen.model,
            "folder": None if self.folder is None else str(self.folder),
            "report": None if self.report is None else str(self.report),
            "seconds": round(self.seconds, 1),
            "interrupted": self.interrupted,
            "trials": self.trials,
            "findings": to_plain(self.findings),
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

    def rows(self, *, short: bool = False) -> tuple[list[str], list[list[str]]]:
        """The leaderboard as text: its headers and a row per trial; `short` shows ± half the interval's width."""
        metric = shown_name(self.metric)
        bases = [base for base in BASES if any(base in line.against for line in self.lines)]
        rows = []
        for line in self.lines:
            row = {"model": f"* {line.model}" if line.chosen else line.model}
            for name, result in line.metrics.items():
                row[f"{shown_name(name)} {'±' if short else '[95 %]'}"] = _cell(result, short=short)
            for base in bases:
                gain = (
                    _cell(line.against[base][self.metric], "+", short=short)
                    if base in line.against
                    else ""
                )
                row[f"minus {_named(base)}" if short else f"{metric} minus {_named(base)}"] = gain
            if line.calibration_error is not None:
                row["ECE"] = f"{line.calibration_error:.4f}"
            rows.append(row | {"seconds": f"{line.seconds:.1f}"})
        return list(rows[0]), [list(row.values()) for row in rows]

    def to_markdown(self) -> str:
        """The leaderboard and its conclusions as Markdown."""
        heads, rows = self.rows()
        table = [heads, ["---"] * len(heads), *rows]
        lines = ["| " + " | ".join(row) + " |" for row in table]
        about = f"{self.test_rows:,} test rows; \\* the bundle's model. {self.legend}"
        said = [f"- {sentence}." for sentence in self.sentences()]
        results = [f"- {one.sentence}." for one in self.findings]
        audited = {one.column for one in self.findings}
        columns = [
            f"- not a field: {column}: {why}"
            for column, why in self.notes.items()
            if column not in audited
        ]
        parts = ["# Leaderboard", "\n".join(lines).replace(" *", " \\*"), about, "\n".join(said)]
        if results or columns:
            parts += ["## Columns", "\n".join([*results, *columns])]
        return "\n\n".join(parts) + "\n"

    def __repr__(self) -> str:
        heads, rows = self.rows(short=True)
        widths = [max(len(row[k]) for row in [heads, *rows]) for k in range(len(heads))]
        table = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in [heads, *rows]
        ]
        return "\n".join([*table, *self.sentences()])


def build_leaderboard(
    trials: Sequence[Trial], chosen: Trial, test: SplitPart, *, binary: bool, seed: int
) -> tuple[Line, ...]:
    """The lines of trials, including the baselines, on the test rows, best first; `chosen` is in the bundle."""
    scores = [one.score(test) for one in trials]
    y = np.asarray(test.main, dtype=np.float64)
    metric: MetricName = "logloss" if binary else "rmse"
    resamples = resampled(y, np.stack(scores), metric, replicates=replicates_for(len(y)), seed=seed)
    of_one = logloss_from_logits if binary else rmse
    values = [of_one(y, score) for score in scores]
    with_auc = binary and min(int(y.sum()), int((1 - y).sum())) > 1
    bases = [k for title in BASES for k, one in enumerate(trials) if one.title == title]

    def compared(k: int, base: int | None) -> dict[str, Interval]:
        """The metrics of a trial, or its differences from a baseline."""
        less, drawn = (0.0, 0.0) if base is None else (values[base], resamples[:, base])
        result = estimate([values[k] - less], resamples[:, k] - drawn)
        own: dict[str, Interval] = {
            metric: Interval(value=result.value, low=result.low, high=result.high)
        }
        if not with_auc:
            return own
        # DeLong's interval, clipped to 0 and 1; the AUC of equal scores is .5 for any rows.
        test = delong(y, scores[k], np.zeros(len(y)) if base is None else scores[base])
        value, least, most = (
            (test.first, 0.0, 1.0) if base is None else (test.difference, -np.inf, np.inf)
        )
        reach = NORMAL_975 * test.standard_error
        return {
            "auc": Interval(
                value=value, low=max(least, value - reach), high=min(most, value + reach)
            ),
            **own,
        }

    lines = [
        Line(
            model=one.title,
            chosen=one is chosen,
            all_rows=one.on_all_rows,
            valid=one.value,
            metrics=compared(k, None),
            calibration_error=calibration_error(y, sigmoid(scores[k])) if binary else None,
            # A trial on all rows is not compared with the baselines, which were trained on the
            # training rows only.
            against={
                trials[base].title: compared(k, base)
                for base in bases
                if base != k and not one.on_all_rows
            },
            calibrated=one.calibration is not None,
            epochs=one.epochs,
            seconds=round(one.seconds, 2),
            stopped=one.stopped,
            network_share=1.0 if one.trained is None else one.trained.bundle.network_share,
            parameters=one.parameters,
            changes=dict(one.changes),
        )
        for k, one in enumerate(trials)
    ]
    return tuple(sorted(lines, key=lambda line: line.metrics[metric].value))


def _named(base: str) -> str:
    return f"a {CONSTANT}" if base == CONSTANT else base


def _cell(interval: Interval, sign: str = "", *, short: bool = False) -> str:
    """A value with its interval, or with half the interval's width."""
    half = (interval.high - interval.low) / 2
    ends = f"[{interval.low:{sign}.4f}, {interval.high:{sign}.4f}]"
    return f"{interval.value:{sign}.4f} {f'±{half:.4f}' if short else ends}"


def _judged(metrics: Mapping[str, Interval], metric: str) -> str:
    """A difference in words, for a metric where lower is better."""
    result = metrics[metric]
    word = (
        "better" if result.high < 0 else "worse" if result.low > 0 else "no significant difference"
    )
    more = f", AUC {_cell(metrics['auc'], '+')}" if "auc" in metrics else ""
    return f"{word} ({shown_name(metric)} {_cell(result, '+')}{more})"


# share of the time, and maximum seconds, for evaluation, writing and the report
RESERVE = 0.15
MOST_RESERVE = 45.0
REPORT_ROWS = 200
REPORT_SECONDS = 8.0  # estimated duration of a report, in addition to preparing the rows again
TABLE = "auto-table.parquet"
BOARD = "leaderboard.json"
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

    The schema is inferred and the training rows are audited: columns that are constant, id-like or
    label-like are left out. Rows are split by time if there is a time column, else at random (80,
    10 and 10 %). LR, FM, LightGBM, AFM, AutoInt+, FinalMLP and, with user and item fields, DSSM and
    IntTower are trained with their defaults, then a short search changes the settings of the two
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
    return run_auto(
        data, settings, (lambda _: None) if quiet else partial(print, file=sys.stderr, flush=True)
    )


def run_auto(data: Any, settings: AutoSettings, note: Note) -> AutoResult:
    """The result of `auto`, with its settings as one object; `data` may also be a recipe's data settings."""
    clock = Clock(settings.minutes * 60, began=settings.began)
    out = settings.out
    with contextlib.nullcontext() if out is None else _claimed(out, overwrite=settings.overwrite):
        read: ReadTable | None = None
        if isinstance(data, (str, Path)):
            data = DataSettings(path=str(data))
        if isinstance(data, DataSettings):
            path = None if data.path is None else str(Path(data.path).resolve())
            source = dataclasses.replace(data, path=path)
            read = partial(load_frame, data, Path())
            texts = () if settings.schema is None else settings.schema.text_columns
            if settings.split is not None:
                texts += settings.split.text_columns
            frame = read(texts)
        else:
            path = IN_MEMORY if out is None else str(out.resolve() / TABLE)
            frame = as_table(data)
            source = DataSettings(path=path)
        note(f"{frame.height:,} rows, {frame.width} columns")
        task = build_task(frame, source, settings, note, read)
        prepared_in = clock.spent
        reserve = min(RESERVE * clock.seconds, MOST_RESERVE)
        tried = try_models(
            task, "auto" if out is None else out.name, clock, reserve=reserve, note=note
        )
        result = _evaluated(task, tried, clock, settings.seed)
        if out is None:
            return result
        result = dataclasses.replace(result, folder=out)
        _write_folder(result, task, out)
        bundle = out / "bundle"
        page = out / "report.html"
        if clock.left < prepared_in + REPORT_SECONDS and not result.interrupted:
            note(
                f"there is no time left for the report: `fieldwise report {bundle} --out {page}` writes it"
            )
        elif not result.interrupted:
            try:
                from fieldwise.report import ReportSettings, report

                text = report(
                    [bundle],
                    ReportSettings(rows=REPORT_ROWS, device=settings.device),
                    data_dir=Path(),
                )
                write_atomically(page, text.encode())
                result = dataclasses.replace(result, report=page)
            except FieldwiseError as e:  # the result is already written
                note(f"there is no report: {e}")
        return dataclasses.replace(result, seconds=clock.spent)


def _evaluated(task: AutoTask, tried: Trials, clock: Clock, seed: int) -> AutoResult:
    """The result with its leaderboard: the only evaluation on test rows, after all choices."""
    chosen = tried.on_all or tried.chosen
    label = task.schema.label
    trials = [*tried.trials, *([tried.on_all] if tried.on_all is not None else [])]
    valid = task.prepared.valid
    test = task.prepared.test
    best = evaluate_on_test(chosen.network, task.prepared, spent=chosen.seconds).bundle
    if (calibration := chosen.calibration) is not None:
        # The figures on validation rows are those before a training on these rows too.
        parts = {"validation rows": (tried.chosen, valid), "test rows": (chosen, test)}
        figures = {
            rows: {label.name: before_and_after(part.main, one.raw(part), calibration)}
            for rows, (one, part) in parts.items()
        }
        facts = {
            "method": "platt",
            "fitted_on": "validation rows",
            "rows": len(valid.table),
            "figures": figures,
        }
        about = {**best.about, "calibration": facts}
        best = dataclasses.replace(best, calibration={label.name: calibration}, about=about)
    return AutoResult(
        best=best,
        schema=task.schema,
        recipe=chosen.network.recipe,
        lines=build_leaderboard(trials, chosen, test, binary=label.task == "binary", seed=seed),
        test_rows=len(test.table),
        findings=task.findings,
        notes=task.notes,
        skipped=tried.skipped,
        late=tuple(tried.late),
        learned=tuple(one.title for one in trials if tried.learned(one)),
        trials=tried.searched,
        seconds=clock.spent,
        interrupted=tried.interrupted,
    )


@contextlib.contextmanager
def _claimed(out: Path, *, overwrite: bool) -> Iterator[None]:
    """Lock a folder for one run; it must not exist, be empty, or hold an earlier result to replace."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out is a folder, but {out} is a file: choose another name")
    if out.is_dir() and any(out.iterdir()):
        if not (out / BOARD).is_file():
            raise ConfigError(
                f"out needs a folder of its own: {out} holds other files; choose another"
            )
        if not overwrite:
            raise already_exists(out)
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
    """Write all files but the report, replacing the folder's content, or to another place if that fails."""
    schema = result.schema.to_toml()
    line = result.chosen
    if task.inferred is not None:
        left = {one.column: f"omitted: {one.sentence}" for one in task.findings if one.left_out}
        notes = {**task.inferred.notes, **left}
        schema = dataclasses.replace(task.inferred, schema=result.schema, notes=notes).to_toml()
    recipe = {**result.recipe.to_dict(), "schema": "schema.toml"}
    own = Path(recipe["data"]["path"]).name == TABLE
    if own:
        recipe["data"]["path"] = TABLE
    said = f"# {line.model}: the best of `fieldwise auto` on validation rows. Train it again: fieldwise train THIS_FILE"
    if line.stopped in ("time", "interrupted"):
        said += f"\n# Its training ended early ({line.stopped}): training it again takes longer and may differ."

    def write(folder: Path) -> None:
        if own:
            write_table(task.frame, folder / TABLE)
        write_atomically(folder / "schema.toml", schema.encode())
        write_atomically(folder / "recipe.toml", f"{said}\n\n{recipe_toml(recipe)}".encode())
        result.best.save(folder / "bundle")
        write_atomically(folder / "leaderboard.md", result.to_markdown().encode())
        write_atomically(
            folder / BOARD, (json.dumps(result.to_plain(), indent=1, default=str) + "\n").encode()
        )

    try:
        with whole_folder(out) as new:
            write(new)
    except (FieldwiseError, OSError) as e:
        kept = keep_elsewhere(write)
        if kept is None:
            raise
        raise DataError(f"{e}. The result is not lost: it is in {kept}, move it from there") from e

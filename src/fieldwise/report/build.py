"""Building a report: open runs, evaluate them, and arrange the results in chapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fieldwise.data.prepare.prepared import Prepared
from fieldwise.errors import ConfigError
from fieldwise.report.attention import explanation_section
from fieldwise.report.blocks import Note, Section, count, percent
from fieldwise.report.calibrations import calibration_section, numbers_section
from fieldwise.report.comparison import comparison_sections
from fieldwise.report.measures import curves_section, learning_section, metrics_section
from fieldwise.report.page import Chapter, render
from fieldwise.report.plain import words_section
from fieldwise.report.popularity import popularity_section
from fieldwise.report.rows import data_section, recipe_section
from fieldwise.report.runs import Opened, ReportedRun, open_run, prepared_of, rows_of
from fieldwise.report.slicing import check_slices, cold_section, slices_section
from fieldwise.runs.data import data_settings
from fieldwise.runs.pipeline import best_possible
from fieldwise.schema.ids import id_columns
from fieldwise.schema.label import Label
from fieldwise.storage.cache import Cache
from fieldwise.training.checks import monitored
from fieldwise.training.objective import Objective

__all__ = ["ReportSettings", "report"]


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """Settings of a report.

    Args:
        slices: fields or columns to evaluate by.
        user: column of users, for cold start; the schema's if omitted (`fieldwise.schema.ids`).
        item: column of items, likewise.
        rows: maximum number of test rows to explain.
        seed: seed for sampling these rows and for the bootstrap.
        device: where networks score.
    """

    slices: tuple[str, ...] = ()
    user: str | None = None
    item: str | None = None
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
    opened = [open_run(folder, settings.device) for folder in folders]
    twice = [one.folder for k, one in enumerate(opened) if any(one.folder.samefile(o.folder) for o in opened[:k])]
    if twice:
        raise ConfigError(f"runs to report must differ, found {twice[0]} twice: give each once")
    prepared: dict[str, Prepared] = {}  # compared runs usually share their rows
    runs = []
    for one, name in zip(opened, _names(opened), strict=True):
        key = repr((one.recipe.data, data_settings(one.recipe)))
        if key not in prepared:
            prepared[key] = prepared_of(one, data_dir, cache)
        runs.append(rows_of(one, name, prepared[key]))
    return render(runs[0].name if len(runs) == 1 else f"{len(runs)} runs", _chapters(runs, settings))


def _names(opened: Sequence[Opened]) -> list[str]:
    """Unique names of runs: the recipe's name, if needed with the seed or the folder."""
    names = [Path(one.recipe.name).stem if one.recipe.name.endswith(".toml") else one.recipe.name for one in opened]
    found = []
    for name, one in zip(names, opened, strict=True):
        namesakes = [other for other, its in zip(opened, names, strict=True) if its == name]
        by_seed = len({other.recipe.seed for other in namesakes}) == len(namesakes)
        more = f"seed {one.recipe.seed}" if by_seed else str(one.folder)
        found.append(f"{name} ({more})" if len(namesakes) > 1 else name)
    return found


def _chapters(runs: Sequence[ReportedRun], settings: ReportSettings) -> list[Chapter]:
    for run in runs:
        check_slices(settings.slices, run.frame, run.recipe.schema)
        id_columns(run.frame.columns, run.recipe.schema, user=settings.user, item=settings.item)
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
    columns = id_columns(run.frame.columns, run.recipe.schema, user=settings.user, item=settings.item)
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
    columns = id_columns(frame.columns, schema, user=settings.user, item=settings.item)
    found.append(cold_section(run.prepared.train.frame, frame, columns, rows, binary))
    if run.bundle is None:
        text = "A run stored by `compare` has no network to explain: train a bundle."
        found.append(Section(title="Explanation", blocks=[Note(text=text)]))
    else:
        found.append(explanation_section(run.bundle, frame, label.name, rows=settings.rows, seed=settings.seed))
    return found, facts

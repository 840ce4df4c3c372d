"""Building a report: open runs, prepare their rows again, evaluate, compare, and arrange the results in chapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fieldwise.errors import ConfigError, FieldwiseError
from fieldwise.models.mean_with_lr import mean_sentence
from fieldwise.report.audit_section import audit_section
from fieldwise.report.calibration_section import calibration_section, numbers_section
from fieldwise.report.comparison import comparison_sections
from fieldwise.report.data_section import data_section, recipe_section
from fieldwise.report.explanation import explanation_section
from fieldwise.report.metrics_sections import (
    curves_section,
    learning_section,
    metrics_section,
    words_section,
)
from fieldwise.report.page import Chapter, Section, count, percent, render
from fieldwise.report.popularity import popularity_section
from fieldwise.report.reported_run import LoadedRun, ReportedRun, load_run, score_run
from fieldwise.report.slice_sections import check_slices, cold_section, slices_section
from fieldwise.runs.cache_key import data_settings
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.pipeline import best_possible
from fieldwise.schema import Label
from fieldwise.schema.ids import id_columns
from fieldwise.storage.cache import Cache
from fieldwise.training.objective import Objective, monitored


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
    folders: Sequence[Path],
    settings: ReportSettings | None = None,
    *,
    data_dir: Path,
    cache: Cache | None = None,
) -> str:
    """A self-contained HTML page about runs; the same runs, rows and settings give the same page.

    Args:
        folders: bundles of `fieldwise train`, or stored runs of `fieldwise compare`; the first is
            the baseline.
        settings: settings of the report.
        data_dir: the folder of public data sets.
        cache: cache of prepared data.

    Errors:
        BundleError: no run in a folder, or a damaged one.
        ConfigError: a run given twice; a field or column that the rows do not have.
        DataError: the data are missing, have changed since, or have no test rows.
    """
    settings = settings or ReportSettings()
    loaded = [load_run(folder, settings.device) for folder in folders]
    _check_different(loaded)
    runs = _score(loaded, data_dir, cache)
    for run in runs:  # what would fail in a later chapter fails before the first
        check_slices(settings.slices, run.frame, run.recipe.schema)
        id_columns(run.frame.columns, run.recipe.schema)

    chapters = [_chapter(run, settings) for run in runs]
    if len(runs) == 1:
        return render(runs[0].name, chapters)

    names = ", ".join(run.name for run in runs)
    about = (
        f"{len(runs)} runs: {names}. The first is the baseline of those with the same test rows."
    )
    comparison = Chapter(
        title="Runs compared", about=about, sections=comparison_sections(runs, settings.seed)
    )
    return render(f"{len(runs)} runs", [comparison, *chapters])


def _check_different(runs: Sequence[LoadedRun]) -> None:
    """Check that no run is given twice."""
    for k, run in enumerate(runs):
        if any(run.folder.samefile(earlier.folder) for earlier in runs[:k]):
            raise ConfigError(
                f"runs to report must differ, found {run.folder} twice: give each once"
            )


def _name(run: LoadedRun, runs: Sequence[LoadedRun]) -> str:
    """The title of a run's recipe; among namesakes with the seed, or with the folder where seeds are equal too."""
    title = run.recipe.title
    namesakes = [other for other in runs if other.recipe.title == title]
    if len(namesakes) == 1:
        return title
    seeds = {namesake.recipe.seed for namesake in namesakes}
    if len(seeds) == len(namesakes):
        return f"{title} (seed {run.recipe.seed})"
    return f"{title} ({run.folder})"


def _score(runs: Sequence[LoadedRun], data_dir: Path, cache: Cache | None) -> list[ReportedRun]:
    """Prepare the runs' rows, once for those that share them, and score them."""
    prepared_by_settings = {}
    scored = []
    for run in runs:
        key = repr((run.recipe.data, data_settings(run.recipe)))
        if key not in prepared_by_settings:
            try:
                prepared_by_settings[key] = prepare_recipe(run.recipe, data_dir, cache=cache)
            except FieldwiseError as e:
                raise type(e)(
                    f"the rows of the run {run.folder} cannot be prepared again: ", *e.args
                ) from None
        scored.append(score_run(run, prepared_by_settings[key], name=_name(run, runs)))
    return scored


Facts = list[tuple[str, str, str]]
"""The name, value and interval of key figures."""


def _chapter(run: ReportedRun, settings: ReportSettings) -> Chapter:
    """All sections on one run."""
    recipe = run.recipe
    columns = id_columns(run.frame.columns, recipe.schema)

    sections: list[Section] = []
    facts: Facts = []
    for label in run.labels:
        label_sections, label_facts = _label_sections(run, label, columns, settings)
        sections += label_sections
        facts += label_facts
    facts.append(("test rows", count(run.frame.height), ""))
    if "parameters" in run.record:
        facts.append(("parameters", count(run.record["parameters"]), ""))

    # In plain words, the comparison with popularity, metrics, training, and then the others.
    objective = Objective.of(*recipe.schema.labels)
    monitor = monitored(recipe.training, objective, grouped=run.prepared.valid.group is not None)
    stopped = str(run.record.get("stopped", ""))
    learning = learning_section(run.history, run.record.get("best_epoch"), stopped, monitor)
    sections.insert(2, learning)
    sections.insert(1, popularity_section(run, columns, settings.seed))
    sections.append(data_section(run))
    sections.append(audit_section(run))
    sections.append(recipe_section(run))

    task = " and ".join(f"{label.name} ({label.task})" for label in run.labels)
    about = f"{recipe.name}, seed {recipe.seed}: predicts {task} of {count(run.frame.height)} test rows."
    sentence = mean_sentence(run.record.get("network_share", 1.0))
    if sentence is not None:
        about += f" {sentence}"
    return Chapter(title=run.name, about=about, facts=facts, sections=sections)


def _label_sections(
    run: ReportedRun, label: Label, columns: dict[str, str | None], settings: ReportSettings
) -> tuple[list[Section], Facts]:
    """The sections on the predictions of one label, and its key figures."""
    schema = run.recipe.schema
    rows = run.test[label.name]
    is_binary = label.task == "binary"
    best = None
    if is_binary and label is schema.label:
        best = best_possible(run.prepared.test, label)
    calibration = None
    meaning = None
    if run.bundle is not None:
        meaning = run.bundle.meaning(label)
        calibration = run.bundle.calibration.get(label.name)

    metrics, facts = metrics_section(rows, run.group, is_binary, best, settings.seed)
    if calibration is not None:
        text = f"All metrics except those under Calibration use the {calibration.kind} calibration of the bundle."
        metrics = Section(metrics.title, [*metrics.blocks, text])
    sections = [words_section(rows, run.group, label, meaning), metrics]

    if is_binary:
        facts.append(("positive rate", percent(float(np.average(rows.y, weights=rows.weight))), ""))
        raw = run.raw[label.name]
        valid = run.valid.get(label.name)
        sections.append(curves_section({run.name: rows}))
        sections.append(calibration_section(raw, valid, calibration, settings.seed))
    else:
        sections.append(numbers_section(rows))

    sections.append(slices_section(settings.slices, run.frame, schema, rows, is_binary))
    sections.append(cold_section(run.prepared.train.frame, run.frame, columns, rows, is_binary))

    if run.bundle is None:
        text = "A run stored by `compare` has no network to explain: train a bundle."
        sections.append(Section("Explanation", [text]))
    else:
        sections.append(
            explanation_section(
                run.bundle, run.frame, label.name, rows=settings.rows, seed=settings.seed
            )
        )

    if len(schema.labels) > 1:
        sections = [Section(f"{title}: {label.name}", blocks) for title, blocks in sections]
        facts = [(f"{name} of {label.name}", value, interval) for name, value, interval in facts]
    return sections, facts

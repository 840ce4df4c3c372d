"""`fieldwise evaluate`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.devices import BundleDevice, load_bundle
from fieldwise.cli.next import command, suggest, suggest_report
from fieldwise.cli.options import (
    AsJson,
    BundleFolder,
    DataDir,
    Reading,
    Threads,
    UseCache,
    cache_for,
    existing_data_dir,
    set_threads,
)
from fieldwise.cli.ranking import RankingOptions, show_rankings
from fieldwise.cli.show import calibration_words, print_json, say, show_metrics
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.data.prepare.row_sketch import Overlap
    from fieldwise.runs.ranking_board import RankingBoard
    from fieldwise.runs.ranking_settings import RankingSettings

__all__ = ["EvaluateOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """Options of `fieldwise evaluate`."""

    bundle: BundleFolder
    data: Annotated[Path | None, typer.Option(help="A table with labels. Default: the recipe's test rows.")] = None
    reading: Reading
    ranking: RankingOptions
    data_dir: DataDir = None
    json: AsJson = False
    device: BundleDevice = "cpu"
    threads: Threads = None
    cache: UseCache = True


def run(options: EvaluateOptions) -> None:
    """Evaluate a saved bundle on its recipe's test rows, or on a table of your own."""
    from fieldwise.bundle.trained_rows import rows_trained

    ranking, k = options.ranking.settings()
    data = options.data
    if data is None and options.reading.given:
        raise ConfigError("--separator, --encoding and --columns apply to --data, which is not given")
    if data is not None and ranking is not None:
        raise ConfigError(
            "--ranking excludes items that users liked in training rows, which --data does not have: omit one"
        )
    set_threads(options.threads)
    bundle = load_bundle(options.bundle, options.device)
    prepared = None
    if data is not None:
        frame, where = options.reading.table(data), str(data)
    else:
        (frame, prepared), where = _test_rows(bundle, options), "the recipe's test rows"
    frame, metrics = _measured(bundle, frame, options)
    seen = rows_trained(bundle, frame) if data is not None else None
    ranked = []
    if prepared is not None and ranking is not None:
        ranked = _ranked(bundle, prepared, options.bundle.name, ranking, k)
    if options.json:
        found: dict[str, object] = {"bundle": str(options.bundle), "data": where, "metrics": metrics}
        if data is not None:
            found["share_trained"] = None if seen is None else seen.share
        if ranked:
            found["ranking"] = ranked[0].to_plain()
        print_json(found)
    else:
        show_metrics({where: metrics})
        show_rankings(ranked, "[95 % interval] for other users")
    if seen is not None and seen.found:
        say(_trained_words(frame.height, seen, bundle, options.bundle))
    if not options.json:
        _suggest(bundle, options)


def _suggest(bundle: "Bundle", options: EvaluateOptions) -> None:
    """Print a useful next command."""
    if options.data is None:
        suggest_report(bundle, options.bundle, options.data_dir)
    else:
        given = ("--data", options.data, *options.reading.options())
        suggest("explain the scores of these rows", "explain", options.bundle, *given)


def _measured(
    bundle: "Bundle", frame: "pl.DataFrame", options: EvaluateOptions
) -> "tuple[pl.DataFrame, dict[str, float]]":
    """The rows that the label's rule keeps, and their metrics."""
    import numpy as np

    from fieldwise.data.encode.checks import check_table
    from fieldwise.data.prepare.labels import read_labels
    from fieldwise.data.prepare.prepared import group_codes
    from fieldwise.training.objective import Objective

    labels = bundle.schema.labels
    with options.reading.lines(options.data):
        check_table(frame, bundle.schema)
        rows = read_labels(frame, labels)
    if rows.dropped:
        say(f"{rows.dropped:,} rows dropped by the label's rule")
    score = bundle.calibrated(bundle.score(rows.frame))
    if bundle.calibration:
        say(f"measured with the bundle's calibration ({calibration_words(bundle)})")
    group = group_codes(rows.frame, bundle.schema)
    return rows.frame, Objective.of(*labels).metrics(rows.y.astype(np.float64), score, group, one_class=True)


def _trained_words(rows: int, seen: "Overlap", bundle: "Bundle", folder: Path) -> str:
    """A warning that the model was trained on these rows, with what to evaluate instead."""
    from fieldwise.bundle.trained_rows import trained_words

    instead = "evaluate on rows that were not passed to `fit`"
    if "recipe" in bundle.about:
        instead = f"to evaluate on its test rows: {command('evaluate', folder)}"
    return f"WARNING: {trained_words(rows, seen)}; {instead}"


def _ranked(
    bundle: "Bundle", prepared: "Prepared", name: str, settings: "RankingSettings", k: int
) -> "list[RankingBoard]":
    from fieldwise.runs.ranking import RankingTask, rank_items
    from fieldwise.runs.ranking_board import ranking_boards

    task = RankingTask.of(prepared, bundle.schema, settings)
    return ranking_boards({name: [rank_items(bundle, task)]}, k=k)


def _test_rows(bundle: "Bundle", options: EvaluateOptions) -> "tuple[pl.DataFrame, Prepared]":
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.rows import UNCHECKED, recipe_of, rows_of_run

    instead = "give --data FILE"
    recipe = recipe_of(bundle, options.bundle, instead)
    folder = existing_data_dir(options.data_dir, recipe.data.name)
    prepared = prepare_recipe(recipe, folder, cache=cache_for(options.cache))
    frame, checked = rows_of_run(bundle, recipe, prepared, "test", instead)
    if not checked:
        say(UNCHECKED.format("test"))
    return frame, prepared

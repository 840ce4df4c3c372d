"""`fieldwise evaluate`, `fieldwise predict` and `fieldwise export`: what a saved bundle does."""

import json as json_module
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.score_file import score_file
from fieldwise.bundle.trained_rows import rows_trained, trained_words
from fieldwise.cli.next import command, suggest, suggest_report, text_options
from fieldwise.cli.options import cache_for, existing_data_dir, set_threads
from fieldwise.cli.ranking import show_rankings
from fieldwise.cli.show import calibration_words, say, show_metrics
from fieldwise.data.encode.encoder import check_table
from fieldwise.data.prepare.labels import read_labels
from fieldwise.data.prepare.prepared import Prepared, group_codes
from fieldwise.data.prepare.row_sketch import Overlap
from fieldwise.data.read.lines import naming_lines
from fieldwise.data.read.tables import as_table
from fieldwise.errors import ConfigError
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.ranking import RankingSettings, RankingTask, rank_items
from fieldwise.runs.ranking_board import RankingBoard, ranking_boards
from fieldwise.runs.rows import UNCHECKED, recipe_of, rows_of_run
from fieldwise.storage.files import check_file, check_folder
from fieldwise.training.objective import Objective

__all__ = ["run_evaluate", "run_export", "run_predict"]


def run_evaluate(
    folder: Path,
    data: Path | None,
    separator: str | None,
    encoding: str,
    columns: Sequence[str] | None,
    ranking: tuple[RankingSettings | None, int],
    data_dir: Path | None,
    as_json: bool,
    threads: int | None,
    cache: bool,
) -> None:
    """Measure a bundle on a table with labels, or on the test rows of the recipe that made it."""
    if data is None and (separator is not None or encoding != "utf-8" or columns is not None):
        raise ConfigError("--separator, --encoding and --columns say how to read --data, which is not given")
    if data is not None and ranking[0] is not None:
        raise ConfigError("--ranking leaves out what users liked in training rows, which --data has not: leave it out")
    set_threads(threads)
    bundle = Bundle.load(folder)
    prepared = None
    if data is not None:
        frame, where = as_table(data, separator=separator, encoding=encoding, columns=columns), str(data)
    else:
        (frame, prepared), where = _test_rows(bundle, folder, data_dir, cache), "the recipe's test rows"
    labels = bundle.schema.labels
    with _lines(data, separator, encoding, columns):
        check_table(frame, bundle.schema)
        rows = read_labels(frame, labels)
    if rows.dropped:
        say(f"{rows.dropped:,} rows dropped by the label's rule")
    score = bundle.calibrated(bundle.score(rows.frame))
    if bundle.calibration:
        say(f"measured with the bundle's calibration ({calibration_words(bundle)})")
    group = group_codes(rows.frame, bundle.schema)
    metrics = Objective.of(*labels).metrics(rows.y.astype(np.float64), score, group, one_class=True)
    seen = rows_trained(bundle, rows.frame) if data is not None else None
    ranked = []
    if prepared is not None and ranking[0] is not None:
        ranked = _ranked(bundle, prepared, folder.name, ranking[0], ranking[1])
    if as_json:
        found: dict[str, object] = {"bundle": str(folder), "data": where, "metrics": metrics}
        if data is not None:
            found["share_trained"] = None if seen is None else seen.share
        if ranked:
            found["ranking"] = ranked[0].to_plain()
        json_module.dump(found, sys.stdout, indent=1)
        print()
    else:
        show_metrics({where: metrics})
        show_rankings(ranked, "[95 % interval] for other users")
    if seen is not None and seen.found:
        say(_trained_words(rows.frame.height, seen, bundle, folder))
    if as_json:
        return
    if data is None:
        suggest_report(bundle, folder, data_dir)
    else:
        reading = text_options(separator, encoding, columns)
        suggest("what these rows' scores are made of", "explain", folder, "--data", data, *reading)


def _lines(
    data: Path | None, separator: str | None, encoding: str, columns: Sequence[str] | None
) -> AbstractContextManager[None]:
    """Within it, errors about a row of a text file name its line."""
    if data is None:
        return nullcontext()
    return naming_lines(data, separator=separator, encoding=encoding, columns=columns)


def _trained_words(rows: int, seen: Overlap, bundle: Bundle, folder: Path) -> str:
    """That rows trained the model, and what to measure instead."""
    instead = "measure rows that were kept out of `fit`"
    if "recipe" in bundle.about:
        instead = f"its test rows are measured by: {command('evaluate', folder)}"
    return f"WARNING: {trained_words(rows, seen)}; {instead}"


def run_predict(
    folder: Path,
    data: Path,
    out: Path,
    column: str,
    logit: bool,
    separator: str | None,
    encoding: str,
    columns: Sequence[str] | None,
    threads: int | None,
) -> None:
    """Write keys and predictions of a file's rows, in its order (see `score_file`)."""
    check_file(out)
    set_threads(threads)
    bundle = Bundle.load(folder)
    with _lines(data, separator, encoding, columns):
        done = score_file(
            bundle, data, out, column=column, logit=logit, separator=separator, encoding=encoding, columns=columns
        )
    say(f"{done.rows:,} rows predicted, written to {out} ({', '.join(done.columns)})")
    unseen = [f"{name} {share:.1%}" for name, share in done.unseen.items() if share > 0]
    if unseen:
        say("values that no training row had, scored by their field's unknown row: " + ", ".join(unseen))
    if done.rows:
        reading = text_options(separator, encoding, columns)
        suggest("why its first row has this prediction", "explain", folder, "--data", data, "--row", 0, *reading)


def run_export(folder: Path, out: Path, target: str) -> None:
    """Write a bundle's network for another runtime."""
    check_folder(out)
    from fieldwise.bundle.export import FILES, export_bundle

    difference = export_bundle(Bundle.load(folder), out, target)  # type: ignore[arg-type]
    print(
        f"{out / FILES[target]}: the same logits of the sample rows to {difference:.1e}; run {out / 'example.py'} there"
    )


def _ranked(bundle: Bundle, prepared: Prepared, name: str, settings: RankingSettings, k: int) -> list[RankingBoard]:
    task = RankingTask.of(prepared, bundle.schema, settings)
    return ranking_boards({name: [rank_items(bundle, task)]}, k=k)


def _test_rows(bundle: Bundle, folder: Path, data_dir: Path | None, cache: bool) -> tuple[pl.DataFrame, Prepared]:
    instead = "give --data FILE"
    recipe = recipe_of(bundle, folder, instead)
    prepared = prepare_recipe(recipe, existing_data_dir(data_dir, recipe.data.name), cache=cache_for(cache))
    frame, checked = rows_of_run(bundle, recipe, prepared, "test", instead)
    if not checked:
        say(UNCHECKED.format("test"))
    return frame, prepared

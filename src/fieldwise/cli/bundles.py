"""`fieldwise evaluate` and `fieldwise predict`: what a saved bundle does."""

import json as json_module
import sys
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.bundle import Bundle
from fieldwise.cli.options import existing_data_dir, set_threads
from fieldwise.cli.show import console, metrics_table, say
from fieldwise.data.labels import read_labels
from fieldwise.data.prepare import group_codes
from fieldwise.data.tables import as_table, write_table
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.pipeline import prepare_recipe, rows_digest
from fieldwise.recipe import Recipe
from fieldwise.training.objective import Objective

__all__ = ["run_evaluate", "run_predict"]

ROW = "row"


def run_evaluate(
    folder: Path,
    data: Path | None,
    separator: str | None,
    encoding: str,
    data_dir: Path | None,
    as_json: bool,
    threads: int | None,
) -> None:
    """Measure a bundle on a table with labels, or on the test rows of the recipe that made it."""
    if data is None and (separator is not None or encoding != "utf-8"):
        raise ConfigError("--separator and --encoding say how to read the file of --data, which is not given")
    set_threads(threads)
    bundle = Bundle.load(folder)
    if data is not None:
        frame, where = as_table(data, separator=separator, encoding=encoding), str(data)
    else:
        frame, where = _test_rows(bundle, folder, data_dir), "the recipe's test rows"
    labels = bundle.schema.labels
    rows = read_labels(frame, labels)
    if rows.dropped:
        say(f"{rows.dropped:,} rows dropped by the label's rule")
    score = bundle.score(rows.frame)
    group = group_codes(rows.frame, bundle.schema)
    metrics = Objective.of(*labels).metrics(rows.y.astype(np.float64), score, group)
    if as_json:
        json_module.dump({"bundle": str(folder), "data": where, "metrics": metrics}, sys.stdout, indent=1)
        print()
    else:
        console().print(metrics_table({where: metrics}))


def run_predict(
    folder: Path,
    data: Path,
    out: Path,
    score_column: str,
    separator: str | None,
    encoding: str,
    threads: int | None,
) -> None:
    """Write keys and scores of a file's rows, in its order; a score is a probability or, for regression, a number.

    The main label's scores stand in `score_column`, those of another label in `score_column.NAME`.
    """
    if out.resolve() == data.resolve():
        raise ConfigError(f"--out must not be the file that --data reads, found {out} for both: choose another name")
    set_threads(threads)
    bundle = Bundle.load(folder)
    frame = as_table(data, separator=separator, encoding=encoding)
    keys = [k for k in bundle.schema.keys if k in frame.columns]
    named = frame.select(keys) if keys else pl.DataFrame({ROW: np.arange(frame.height)})
    columns = [score_column, *(f"{score_column}.{label.name}" for label in bundle.schema.more_labels)]
    taken = [column for column in columns if column in named.columns]
    if taken:
        raise ConfigError(
            f"the scores need a column of their own, but {taken[0]!r} names the rows: give another --score-column"
        )
    scores = bundle.predict(frame).reshape(frame.height, len(columns))
    write_table(named.with_columns(pl.Series(c, s) for c, s in zip(columns, scores.T, strict=True)), out)
    shares = bundle.encoder.unseen(frame)
    unseen = [f"{name} {share:.1%}" for name, share in shares.items() if share > 0]
    say(f"{frame.height:,} rows scored, written to {out} ({', '.join([*named.columns, *columns])})")
    if unseen:
        say("values that no training row had, scored by their field's unknown row: " + ", ".join(unseen))


def _test_rows(bundle: Bundle, folder: Path, data_dir: Path | None) -> pl.DataFrame:
    saved = bundle.about.get("recipe")
    if not isinstance(saved, dict):
        raise BundleError(f"the bundle {folder} was not made by a recipe, so it names no test rows: give --data FILE")
    recipe = Recipe.from_dict(saved["settings"], saved["name"])
    frame = prepare_recipe(recipe, existing_data_dir(data_dir, recipe.data.name)).test.frame
    if frame.height == 0:
        raise DataError(f"the recipe {recipe.name} gives no test rows")
    digest = bundle.about.get("run", {}).get("test_digest")
    if digest is None:
        say("not checked: whether these are the test rows of the training run, of which the bundle keeps no digest")
    elif digest != rows_digest(frame, recipe.schema):
        raise DataError(
            f"the recipe's test rows must be those of the training run, but the data of {recipe.name} have changed "
            "since: restore them, or give --data FILE"
        )
    return frame

"""`fieldwise calibrate`."""

import dataclasses
import json as json_module
import sys
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl
from rich.table import Table

from fieldwise.bundle.bundle import Bundle, bundle_digest
from fieldwise.cli.next import suggest, suggest_report
from fieldwise.cli.options import Reading, cache_for, existing_data_dir, set_threads
from fieldwise.cli.saving import check_out
from fieldwise.cli.show import console, say
from fieldwise.config import nearest
from fieldwise.data.prepare.labels import read_labels
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.calibration import METHODS, Calibration, Method, before_and_after, fit_calibration
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.rows import UNCHECKED, recipe_of, rows_of_run

__all__ = ["run_calibrate"]

NONE = "none"


def run_calibrate(
    folder: Path,
    method: str,
    out: Path | None,
    data: Path | None,
    reading: Reading,
    data_dir: Path | None,
    as_json: bool,
    threads: int | None,
    cache: bool,
) -> None:
    """Fit a calibration on rows that trained nothing, keep it in the bundle, and show what it does to test rows."""
    known = (*METHODS, NONE)
    if method not in known:
        raise ConfigError(f"--method must be one of {', '.join(known)}, found {method!r}: {nearest(method, known)}")
    if data is None and reading.given:
        raise ConfigError("--separator, --encoding and --columns say how to read --data, which is not given")
    set_threads(threads)
    if out is not None:
        check_out(out)
    replaces = bundle_digest(folder) if out is None else None
    bundle = Bundle.load(folder)
    target = out or folder
    check_out(target)
    about = {name: value for name, value in bundle.about.items() if name != "calibration"}
    if method == NONE:
        dataclasses.replace(bundle, about=about, calibration={}).save(target, replaces=replaces)
        say(f"{target} has no calibration: its probabilities are the sigmoid of its scores")
        return
    binary = [label.name for label in bundle.schema.labels if label.task == "binary"]
    if not binary:
        raise ConfigError(f"a calibration is for probabilities, but {folder} predicts a number: there is nothing to do")
    parts = _parts(bundle, folder, data, reading, data_dir, cache)
    scored = {name: _scored(bundle, frame) for name, frame in parts.items()}
    rows, *_ = scored
    maps: dict[str, Calibration] = {}
    for name, (y, z) in scored[rows].items():
        try:
            maps[name] = fit_calibration(y, z, cast(Method, method))
        except DataError as e:
            raise DataError(f"label {name!r}, {rows}: {e}") from None
    found = {
        where: {name: before_and_after(y, z, maps[name]) for name, (y, z) in labels.items()}
        for where, labels in scored.items()
    }
    facts = {"method": method, "fitted_on": rows, "rows": parts[rows].height, "figures": found}
    dataclasses.replace(bundle, about={**about, "calibration": facts}, calibration=maps).save(target, replaces=replaces)
    if as_json:
        json_module.dump({"bundle": str(target), **facts}, sys.stdout, indent=1)
        print()
        return
    for where, labels in found.items():
        for name, metrics in labels.items():
            of = (f"{name}, {where}" if len(binary) > 1 else where) + " (fitted on these)" * (where == rows)
            table = Table(of, "before", "after", box=None)
            for metric, before in metrics["before"].items():
                table.add_row(metric, f"{before:.4f}", f"{metrics['after'][metric]:.4f}")
            console().print(table)
    console().print(
        f"{target} now predicts with this calibration ({method}); its scores and their order are as before. "
        "`--method none` takes it away again, which `fieldwise export` needs."
    )
    worse = [
        name
        for where, labels in found.items()
        if where != rows
        for name, m in labels.items()
        if m["after"]["logloss"] > m["before"]["logloss"]
    ]
    if worse:
        say(f"the logloss of {', '.join(worse)} is higher with it on rows that it was not fitted on")
    if data is None:
        suggest_report(bundle, target, data_dir)
    else:
        given = "--data", data, "--out", "predictions.csv", *reading.options()
        suggest("calibrated probabilities", "predict", target, *given)


def _parts(
    bundle: Bundle,
    folder: Path,
    data: Path | None,
    reading: Reading,
    data_dir: Path | None,
    cache: bool,
) -> dict[str, pl.DataFrame]:
    """The rows to fit on first, then those to show, by words for them."""
    if data is not None:
        frame = reading.table(data)
        if not frame.height:
            raise DataError(f"a calibration needs rows, but {data} has none")
        return {str(data): frame}
    instead = "give --data FILE with rows that it was not trained on"
    recipe = recipe_of(bundle, folder, instead)
    prepared = prepare_recipe(recipe, existing_data_dir(data_dir, recipe.data.name), cache=cache_for(cache))
    valid, checked = rows_of_run(bundle, recipe, prepared, "valid", instead)
    if not checked:
        say(UNCHECKED.format("validation"))
    test, _ = rows_of_run(bundle, recipe, prepared, "test", instead)
    return {"validation rows": valid, "test rows": test}


def _scored(bundle: Bundle, frame: pl.DataFrame) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Targets and scores of each binary label."""
    labels = bundle.schema.labels
    rows = read_labels(frame, labels)
    if rows.dropped:
        say(f"{rows.dropped:,} rows dropped by the label's rule")
    y, score = (x.reshape(len(rows.frame), -1) for x in (rows.y, bundle.score(rows.frame)))
    return {label.name: (y[:, k], score[:, k]) for k, label in enumerate(labels) if label.task == "binary"}

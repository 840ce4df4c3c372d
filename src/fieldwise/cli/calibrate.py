"""`fieldwise calibrate`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fieldwise.cli.devices import BundleDevice, load_bundle
from fieldwise.cli.next import suggest, suggest_report
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
from fieldwise.cli.show import console, print_json, say
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.evaluation.calibration import Calibration, Method

    Scored = Mapping[str, tuple[np.ndarray, np.ndarray]]  # targets and scores per binary label
    Figures = Mapping[str, Mapping[str, Any]]  # per label: metrics before and after

__all__ = ["CalibrateOptions", "run"]

NONE = "none"


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Options of `fieldwise calibrate`."""

    bundle: BundleFolder
    method: Annotated[str, typer.Option(help="platt, isotonic, or none to remove the bundle's calibration.")]
    out: Annotated[Path | None, typer.Option(help="Folder for the calibrated bundle. Default: the same folder.")] = None
    data: Annotated[
        Path | None,
        typer.Option(help="Rows with labels that were not trained on. Default: the recipe's validation rows."),
    ] = None
    reading: Reading
    data_dir: DataDir = None
    json: AsJson = False
    device: BundleDevice = "cpu"
    threads: Threads = None
    cache: UseCache = True

    @property
    def target(self) -> Path:
        """The folder of the calibrated bundle."""
        return self.out or self.bundle


def run(options: CalibrateOptions) -> None:
    """Fit a calibration on validation rows and save it in the bundle, which then predicts calibrated probabilities."""
    from fieldwise.bundle.files import bundle_digest
    from fieldwise.cli.saving import check_out
    from fieldwise.evaluation.calibration import METHODS, before_and_after

    method, target, known = options.method, options.target, (*METHODS, NONE)
    if method not in known:
        raise ConfigError(f"--method must be one of {', '.join(known)}, found {method!r}: {nearest(method, known)}")
    if options.data is None and options.reading.given:
        raise ConfigError("--separator, --encoding and --columns apply to --data, which is not given")
    set_threads(options.threads)
    if options.out is not None:
        check_out(options.out)
    replaces = bundle_digest(options.bundle) if options.out is None else None
    bundle = load_bundle(options.bundle, options.device)
    check_out(target)
    about = {name: value for name, value in bundle.about.items() if name != "calibration"}
    if method == NONE:
        dataclasses.replace(bundle, about=about, calibration={}).save(target, replaces=replaces)
        say(f"{target} has no calibration: its probabilities are the sigmoid of its scores")
        return
    if all(label.task != "binary" for label in bundle.schema.labels):
        raise ConfigError(
            f"a calibration corrects probabilities, but {options.bundle} predicts a number: nothing to calibrate"
        )
    parts = _parts(bundle, options)
    scored = {name: _scored(bundle, frame) for name, frame in parts.items()}
    rows, *_ = scored
    maps = _fitted(scored[rows], rows, cast("Method", method))
    found = {
        where: {name: before_and_after(y, z, maps[name]) for name, (y, z) in labels.items()}
        for where, labels in scored.items()
    }
    facts = {"method": method, "fitted_on": rows, "rows": parts[rows].height, "figures": found}
    dataclasses.replace(bundle, about={**about, "calibration": facts}, calibration=maps).save(target, replaces=replaces)
    if options.json:
        print_json({"bundle": str(target), **facts})
        return
    _show(found, rows, options)
    if options.data is None:
        suggest_report(bundle, target, options.data_dir)
    else:
        given = "--data", options.data, "--out", "predictions.csv", *options.reading.options()
        suggest("calibrated probabilities", "predict", target, *given)


def _fitted(scored: "Scored", rows: str, method: "Method") -> "dict[str, Calibration]":
    """A calibration per label, fitted on these rows."""
    from fieldwise.evaluation.calibration import fit_calibration

    maps = {}
    for name, (y, z) in scored.items():
        try:
            maps[name] = fit_calibration(y, z, method)
        except DataError as e:
            raise DataError(f"label {name!r}, {rows}: {e}") from None
    return maps


def _show(found: "Mapping[str, Figures]", rows: str, options: CalibrateOptions) -> None:
    """Print the metrics before and after, and name the parts where the calibration makes one worse."""
    from rich.table import Table

    several = any(len(labels) > 1 for labels in found.values())
    for where, labels in found.items():
        for name, metrics in labels.items():
            of = (f"{name}, {where}" if several else where) + " (fitted on these)" * (where == rows)
            table = Table(of, "before", "after", box=None)
            for metric, before in metrics["before"].items():
                table.add_row(metric, f"{before:.4f}", f"{metrics['after'][metric]:.4f}")
            console().print(table)
    console().print(
        f"{options.target} now predicts with this calibration ({options.method}); its scores and their order are as "
        "before. `--method none` removes it again, which `fieldwise export` requires."
    )
    worse = [
        name
        for where, labels in found.items()
        if where != rows
        for name, m in labels.items()
        if m["after"]["logloss"] > m["before"]["logloss"]
    ]
    if worse:
        say(f"with the calibration, the logloss of {', '.join(worse)} is higher on rows that it was not fitted on")


def _parts(bundle: "Bundle", options: CalibrateOptions) -> "dict[str, pl.DataFrame]":
    """Tables by their description: the rows to fit on first, then further rows to show."""
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.rows import UNCHECKED, recipe_of, rows_of_run

    data = options.data
    if data is not None:
        frame = options.reading.table(data)
        if not frame.height:
            raise DataError(f"a calibration needs rows, but {data} has none")
        return {str(data): frame}
    instead = "give --data FILE with rows that it was not trained on"
    recipe = recipe_of(bundle, options.bundle, instead)
    folder = existing_data_dir(options.data_dir, recipe.data.name)
    prepared = prepare_recipe(recipe, folder, cache=cache_for(options.cache))
    valid, checked = rows_of_run(bundle, recipe, prepared, "valid", instead)
    if not checked:
        say(UNCHECKED.format("validation"))
    test, _ = rows_of_run(bundle, recipe, prepared, "test", instead)
    return {"validation rows": valid, "test rows": test}


def _scored(bundle: "Bundle", frame: "pl.DataFrame") -> "dict[str, tuple[np.ndarray, np.ndarray]]":
    """Targets and scores per binary label."""
    from fieldwise.data.prepare.labels import read_labels

    labels = bundle.schema.labels
    rows = read_labels(frame, labels)
    if rows.dropped:
        say(f"{rows.dropped:,} rows dropped by the label's rule")
    y, score = rows.y, bundle.score(rows.frame).reshape(len(rows.frame), -1)
    return {label.name: (y[:, k], score[:, k]) for k, label in enumerate(labels) if label.task == "binary"}

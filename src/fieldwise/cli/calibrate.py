"""`fieldwise calibrate`."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fieldwise.cli.devices import BundleDevice, load_bundle, rows_of_bundle
from fieldwise.cli.next import suggest, suggest_report
from fieldwise.cli.options import AsJson, BundleFolder, Reading
from fieldwise.cli.show import console, print_json, print_table, say
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fieldwise.evaluation.calibration import Method

__all__ = ["CalibrateOptions", "run"]

NONE = "none"
REST = "its scores and their order are as before. `--method none` removes it again, which `fieldwise export` requires."


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
    json: AsJson = False
    device: BundleDevice = "cpu"


def run(options: CalibrateOptions) -> None:
    """Fit a calibration on validation rows and save it in the bundle, which then predicts calibrated probabilities."""
    from fieldwise.bundle.files import bundle_digest
    from fieldwise.cli.saving import check_out
    from fieldwise.data.prepare.labels import read_labels
    from fieldwise.evaluation.calibration import METHODS, Calibration, before_and_after, fit_calibration

    method, data, target, known = options.method, options.data, options.out or options.bundle, (*METHODS, NONE)
    if method not in known:
        raise ConfigError(f"--method must be one of {', '.join(known)}, found {method!r}: {nearest(method, known)}")
    options.reading.check_used("--data", data)
    replaces = bundle_digest(options.bundle) if options.out is None else None
    check_out(target)
    bundle = load_bundle(options.bundle, options.device)
    about = {name: value for name, value in bundle.about.items() if name != "calibration"}
    if method == NONE:
        dataclasses.replace(bundle, about=about, calibration={}).save(target, replaces=replaces)
        say(f"{target} has no calibration: its probabilities are the sigmoid of its scores")
        return
    labels = bundle.schema.labels
    if all(label.task != "binary" for label in labels):
        raise ConfigError(
            f"a calibration corrects probabilities, but {options.bundle} predicts a number: nothing to calibrate"
        )
    if data is not None:
        frames = {str(data): options.reading.table(data)}
        if not frames[str(data)].height:
            raise DataError(f"a calibration needs rows, but {data} has none")
    else:
        instead = "give --data FILE with rows that it was not trained on"
        _, (valid, test) = rows_of_bundle(bundle, options.bundle, ["valid", "test"], instead)
        frames = {"validation rows": valid, "test rows": test}
    fitted_on, *_ = frames  # the others are measured only
    maps: dict[str, Calibration] = {}
    figures: dict[str, dict[str, Any]] = {where: {} for where in frames}
    for where, frame in frames.items():
        rows = read_labels(frame, labels)
        if rows.dropped:
            say(f"{rows.dropped:,} rows dropped by the label's rule")
        scores = bundle.score(rows.frame).reshape(len(rows.frame), -1)
        for k, name in ((k, label.name) for k, label in enumerate(labels) if label.task == "binary"):
            y, score = rows.y[:, k], scores[:, k]
            try:
                maps[name] = maps.get(name) or fit_calibration(y, score, cast("Method", method))
            except DataError as e:
                raise DataError(f"label {name!r}, {where}: {e}") from None
            figures[where][name] = before_and_after(y, score, maps[name])
    facts = {"method": method, "fitted_on": fitted_on, "rows": frames[fitted_on].height, "figures": figures}
    dataclasses.replace(bundle, about={**about, "calibration": facts}, calibration=maps).save(target, replaces=replaces)
    if options.json:
        print_json({"bundle": str(target), **facts})
        return
    _show(figures, fitted_on)
    console().print(f"{target} now predicts with this calibration ({method}); {REST}")
    if data is None:
        suggest_report(bundle, target)
    else:
        given = "--data", data, "--out", "predictions.csv", *options.reading.options()
        suggest("calibrated probabilities", "predict", target, *given)


def _show(figures: "Mapping[str, Mapping[str, Any]]", fitted_on: str) -> None:
    """Print each label's metrics before and after, and name the parts where the calibration makes one worse."""
    worse = []
    for where, labels in figures.items():
        for name, metrics in labels.items():
            of = (f"{name}, {where}" if len(labels) > 1 else where) + " (fitted on these)" * (where == fitted_on)
            pairs = ((name, before, metrics["after"][name]) for name, before in metrics["before"].items())
            print_table([of, "before", "after"], ([name, f"{old:.4f}", f"{new:.4f}"] for name, old, new in pairs))
            if where != fitted_on and metrics["after"]["logloss"] > metrics["before"]["logloss"]:
                worse.append(name)
    if worse:
        say(f"with the calibration, the logloss of {', '.join(worse)} is higher on rows that it was not fitted on")

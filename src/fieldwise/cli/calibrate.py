"""`fieldwise evaluate --calibrate`: fit a calibration and save it in the bundle, or remove it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.evaluate_options import NO_CALIBRATION, EvaluateOptions
from fieldwise.config import nearest
from fieldwise.errors import ConfigError, DataError
from fieldwise.storage.files import check_not_input
from fieldwise.storage.scratch import NO_LIMIT

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.evaluation.calibration import Calibration, Method

EFFECT = (
    "its scores and their order are as before. `--calibrate none` removes it again, "
    "which `export --to aoti` requires."
)


def calibrate(options: EvaluateOptions, method: str) -> None:
    """Fit a calibration on validation rows and save it in the bundle, or remove it."""
    from fieldwise.bundle.bundle import bundle_digest
    from fieldwise.evaluation.calibration import METHODS

    known_methods = (*METHODS, NO_CALIBRATION)
    if method not in known_methods:
        raise ConfigError(
            f"--calibrate must be one of {', '.join(known_methods)}, found {method!r}: {nearest(method, known_methods)}"
        )
    options.reading.check_used("--data", options.data)
    if options.out is None:
        target = options.bundle
        replaced_digest = bundle_digest(options.bundle)
    else:
        target = options.out
        replaced_digest = None
        check_not_input(options.out, [options.bundle, *opt.table_files(options.data)])
    opt.check_out(target, overwrite=options.overwrite or options.out is None)

    bundle = opt.load_bundle(options.bundle, options.device)
    about = {name: value for name, value in bundle.about.items() if name != "calibration"}
    if method == NO_CALIBRATION:
        without = replace(bundle, about=about, calibration={})
        without.save(target, overwrite=True, replaces=replaced_digest)
        show.say(f"{target} has no calibration: its probabilities are the sigmoid of its scores")
        if options.json:
            show.print_json({"bundle": str(target), "method": NO_CALIBRATION})
        return

    facts, calibrations = _fit(options, bundle, cast("Method", method))
    calibrated = replace(bundle, about={**about, "calibration": facts}, calibration=calibrations)
    calibrated.save(target, overwrite=True, replaces=replaced_digest)
    if options.json:
        show.print_json({"bundle": str(target), **facts})
        return
    _show_figures(facts)
    show.console().print(f"{target} now predicts with this calibration ({method}); {EFFECT}")
    if options.data is None:
        show.suggest_report(bundle, target)
    else:
        words = ["--data", options.data, "--out", "predictions.csv", *options.reading.options()]
        show.suggest("calibrated probabilities", "predict", target, *words)


def _fit(
    options: EvaluateOptions, bundle: "Bundle", method: "Method"
) -> "tuple[dict[str, Any], dict[str, Calibration]]":
    """A calibration of each binary label, fitted on the first of the parts, and the figures of all of them."""
    from fieldwise.data.prepare.labels import read_labels
    from fieldwise.evaluation.calibration import METHODS, before_and_after

    labels = bundle.schema.labels
    if all(label.task != "binary" for label in labels):
        raise ConfigError(
            f"a calibration corrects probabilities, but {options.bundle} predicts a number: nothing to calibrate"
        )
    frames = _frames(options, bundle)
    fitted_on = next(iter(frames))
    calibrations: dict[str, Calibration] = {}
    figures: dict[str, dict[str, Any]] = {where: {} for where in frames}
    for where, frame in frames.items():
        rows = read_labels(frame, labels, missing=bundle.schema.missing, budget=NO_LIMIT)
        show.say_dropped(rows.dropped)
        scores = bundle.score(rows.frame).reshape(len(rows.frame), -1)
        for position, label in enumerate(labels):
            if label.task != "binary":
                continue
            y = rows.y[:, position]
            score = scores[:, position]
            try:
                if label.name not in calibrations:
                    calibrations[label.name] = METHODS[method](y, score)
            except DataError as e:
                raise DataError(f"label {label.name!r}, {where}: ", *e.args) from None
            figures[where][label.name] = before_and_after(y, score, calibrations[label.name])
    facts = {
        "method": method,
        "fitted_on": fitted_on,
        "rows": frames[fitted_on].height,
        "figures": figures,
    }
    return facts, calibrations


def _frames(options: EvaluateOptions, bundle: "Bundle") -> "dict[str, pl.DataFrame]":
    """The rows to fit on, then those to measure on, by what they are called."""
    if options.data is None:
        remedy = "give --data FILE with rows that it was not trained on"
        _, (valid, test) = opt.rows_of_bundle(bundle, options.bundle, ["valid", "test"], remedy)
        return {"validation rows": valid, "test rows": test}
    frame = options.reading.table(options.data, bundle.schema.text_columns)
    if not frame.height:
        raise DataError(f"a calibration needs rows, but {options.data} has none")
    return {str(options.data): frame}


def _show_figures(facts: Mapping[str, Any]) -> None:
    """Print the metrics before and after, and say for which labels the logloss is higher on new rows."""
    worse_labels = []
    for where, labels in facts["figures"].items():
        is_fitted_on = where == facts["fitted_on"]
        for name, metrics in labels.items():
            before = metrics["before"]
            after = metrics["after"]
            title = f"{name}, {where}" if len(labels) > 1 else where
            if is_fitted_on:
                title += " (fitted on these)"
            rows = [
                [metric, f"{value:.4f}", f"{after[metric]:.4f}"] for metric, value in before.items()
            ]
            show.print_table([title, "before", "after"], rows)
            if not is_fitted_on and after["logloss"] > before["logloss"]:
                worse_labels.append(name)
    if worse_labels:
        show.say(
            f"with the calibration, the logloss of {', '.join(worse_labels)} is higher on rows that it was not fitted "
            "on"
        )

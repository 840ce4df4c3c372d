"""Parameters of the estimator, nested and saved, and labels given separately from the table.

`model__layers` is the setting `layers` of the parameter `model`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from fieldwise.config import changed as changed_settings
from fieldwise.config import nearest, parse, to_plain
from fieldwise.data.encode.checks import check_table
from fieldwise.data.prepare.labels import LabelledRows, read_labels
from fieldwise.data.prepare.settings import NegativeSampling
from fieldwise.data.read.tables import as_table
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.estimator.tables import estimator_table
from fieldwise.evaluation.checks import weight_column
from fieldwise.models.own import as_settings
from fieldwise.ops.devices import open_device
from fieldwise.runs.data_settings import check_seed
from fieldwise.schema import Schema
from fieldwise.training.settings import TrainingSettings

__all__ = [
    "changed_params",
    "check_params",
    "label_column",
    "labelled",
    "nested_params",
    "on_device",
    "params_from_plain",
    "params_to_plain",
]

NESTED = ("model", "training", "negatives")


def nested_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters, plus the settings of every dataclass in `NESTED` as `name__setting`."""
    nested = {
        f"{name}__{f.name}": getattr(value, f.name)
        for name, value in params.items()
        if name in NESTED and dataclasses.is_dataclass(value) and not isinstance(value, type)
        for f in dataclasses.fields(value)
    }
    return {**params, **nested}


def on_device(training: TrainingSettings, device: str | None) -> TrainingSettings:
    """The settings with the device given, if one is."""
    return training if device is None else changed_settings(training, {"device": device}, "training")


def changed_params(params: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters after changes: whole parameters first, then nested settings, all of a dataclass together.

    Errors:
        ConfigError: an unknown name (the nearest is named), a value of the wrong type or out of range.

    >>> from fieldwise.training.settings import TrainingSettings
    >>> changed_params({"training": TrainingSettings()}, {"training__epochs": 3})["training"].epochs
    3
    """
    changed = dict(params)
    settings: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        name, nested, setting = key.partition("__")
        if name not in params or (nested and name not in NESTED):
            raise ConfigError(f"a Recommender has no parameter {key!r}: {nearest(key, nested_params(params))}")
        # Searches pass NumPy numbers; settings hold Python's.
        plain = value.item() if isinstance(value, np.generic) else value
        if nested:
            settings.setdefault(name, {})[setting] = plain
        else:
            changed[name] = plain
    for name, values in settings.items():
        old = as_settings(changed[name]) if isinstance(changed[name], str) and name == "model" else changed[name]
        if not dataclasses.is_dataclass(old) or isinstance(old, type):
            raise ConfigError(
                f"{name}__{next(iter(values))} needs settings to change, but {name} is {old!r}: set {name} first"
            )
        changed[name] = changed_settings(old, values, name)
    return changed


def check_params(params: Mapping[str, Any]) -> None:
    """Check the parameters in `fit`, since by scikit-learn's conventions constructors do not.

    Errors:
        ConfigError: a parameter of the wrong kind or out of range.
    """
    schema, share, by, seed = params["schema"], params["valid_share"], params["valid_by"], params["seed"]
    if not isinstance(schema, Schema | None):
        raise ConfigError(f"schema must be a fieldwise Schema, or None to infer one, found {schema!r}")
    if not isinstance(params["training"], TrainingSettings):
        raise ConfigError(f"training must be TrainingSettings, found {params['training']!r}")
    as_settings(params["model"])  # raises if it is not a model
    if not 0 < share < 1:
        raise ConfigError(f"valid_share must lie between 0 and 1, both excluded, found {share!r}")
    if by not in ("random", "time"):
        raise ConfigError(f"valid_by must be 'random' or 'time', found {by!r}")
    if by == "time" and schema is not None and schema.time is None:
        raise ConfigError("valid_by = 'time' needs the schema's time column, which is not set")
    if params["warm_start"] is not False and not isinstance(params["warm_start"], str | Path | None):
        raise ConfigError(f"warm_start must be the folder of a bundle, found {params['warm_start']!r}")
    if not isinstance(params["checkpoint"], str | Path | None) or params["checkpoint"] == "":
        raise ConfigError(f"checkpoint must be a folder, found {params['checkpoint']!r}")
    if not isinstance(params["device"], str | None):
        raise ConfigError(f"device must be a name such as 'cpu' or 'cuda', found {params['device']!r}")
    open_device(params["device"] or params["training"].device)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"seed must be a whole number, found {seed!r}")
    check_seed(seed)


@dataclass(frozen=True, kw_only=True)
class _Saved:
    """The parameters saved in a bundle's manifest; schema and model are saved separately."""

    training: TrainingSettings = dataclasses.field(default_factory=TrainingSettings)
    valid_share: float = 0.1
    valid_by: Literal["random", "time"] = "random"
    negatives: NegativeSampling | None = None
    warm_start: str | None = None
    seed: int = 0


def params_to_plain(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a bundle does not save elsewhere, as plain values for JSON."""
    saved = {f.name: params[f.name] for f in dataclasses.fields(_Saved)}
    saved["warm_start"] = str(saved["warm_start"]) if saved["warm_start"] else None
    plain: dict[str, Any] = to_plain(_Saved(**saved))
    return plain


def params_from_plain(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The inverse of `params_to_plain`; missing parameters take their defaults.

    Errors:
        BundleError: an unknown name or a wrong value, below `where`.
    """
    saved = parse(_Saved, data, where, BundleError)
    return {f.name: getattr(saved, f.name) for f in dataclasses.fields(saved)}


def labelled(X: Any, y: Any, schema: Schema, weight: Any = None) -> LabelledRows:
    """A table's rows with targets, from the label's column or from raw labels `y`.

    Args:
        X: the table.
        y: one label's values [N]; with several labels a table of N rows with their columns.
        schema: the schema.
        weight: row weights [N], or None.

    Errors:
        DataError: not one label per row, labels of several types, labels outside the label's rule, or a table that
            does not fit the schema; rows are counted from 0 in X.
    """
    frame = estimator_table(X)
    check_table(frame, schema)
    if y is not None and schema.more_labels:
        frame = frame.with_columns(_columns(y, schema, frame.height))
    elif y is not None:
        frame = frame.with_columns(label_column(y, schema.label.column, frame.height))
    return read_labels(frame, schema.labels, weight=None if weight is None else weights_of(weight, frame.height))


def weights_of(weight: Any, rows: int) -> np.ndarray:
    """`sample_weight` as float64 [N].

    Errors:
        DataError: not one finite number of at least 0 per row, or none above 0.
    """
    try:
        return weight_column(weight, rows)
    except DataError as e:
        raise DataError(f"sample_weight: {e}") from None


def _columns(y: Any, schema: Schema, rows: int) -> list[pl.Series]:
    names = list(dict.fromkeys(label.column for label in schema.labels))
    rule = f"with several labels y must be a table with their columns {', '.join(names)}"
    try:
        table = as_table(y)
    except DataError as e:
        raise DataError(f"{rule}, or be omitted if X has them: {e}") from None
    absent = [name for name in names if name not in table.columns]
    if absent:
        raise DataError(f"{rule}, found no {absent[0]!r} among {', '.join(table.columns)}")
    if table.height != rows:
        raise DataError(f"{rule}, one row for each of the table's {rows} rows, found {table.height} rows")
    return [table.get_column(name) for name in names]


def label_column(y: Any, name: str, rows: int) -> pl.Series:
    """One label's values as a column for a table with `rows` rows."""
    try:
        values = np.asarray(y)
        if values.shape != (rows,):
            raise DataError(f"y must hold one label for each of the table's {rows} rows, found shape {values.shape}")
        return pl.Series(name, values.tolist() if values.dtype.kind in "OU" else values)
    except (TypeError, pl.exceptions.PolarsError) as e:
        raise DataError(f"y must hold labels of one kind: {str(e).splitlines()[0]}; convert them") from e

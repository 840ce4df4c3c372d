"""fieldwise: recommenders built on attention over feature fields.

Importing the package loads nothing else; PyTorch, Polars and scikit-learn are imported with the
first name that needs them.
"""

# ruff: noqa: F405  # models come by the star import below, which type checkers alone read

from importlib import import_module
from typing import TYPE_CHECKING, get_args

from fieldwise.errors import (
    BundleError,
    ConfigError,
    DataError,
    FieldwiseError,
    MissingExtraError,
    SchemaError,
    TrainingError,
)
from fieldwise.schema import *  # noqa: F403  # every kind of field
from fieldwise.schema import Field as _Field
from fieldwise.schema import Label, Sampled, Schema
from fieldwise.version import __version__

if TYPE_CHECKING:
    from fieldwise.auditing.run import audit
    from fieldwise.automatic.run import auto
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.encode.encoder import Encoder
    from fieldwise.data.infer.schema import infer_schema
    from fieldwise.data.prepare.settings import (
        ColumnSplit,
        LeaveLastOutSplit,
        NegativeSampling,
        RandomSplit,
        TimeSplit,
    )
    from fieldwise.data.read.simulation import simulate
    from fieldwise.data.read.tables import as_table
    from fieldwise.estimator.recommender import Recommender
    from fieldwise.layout import Batch, Layout
    from fieldwise.models import *  # noqa: F403  # every model
    from fieldwise.models.registry import register_model, settings_of
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import train_recipe
    from fieldwise.runs.recipe import Recipe
    from fieldwise.runs.recipe_files import load_recipe, recipe_names
    from fieldwise.scoring.recommend import IdColumns
    from fieldwise.training.callbacks import Callback
    from fieldwise.training.settings import TrainingSettings

__all__ = [
    "Bundle",
    "BundleError",
    "ConfigError",
    "DataError",
    "FieldwiseError",
    "SchemaError",
    "TrainingError",
]
__all__ += [
    "Batch",
    "Encoder",
    "Label",
    "Layout",
    "Sampled",
    "Schema",
    "__version__",
    "as_table",
    "audit",
    "infer_schema",
    "simulate",
]
__all__ += [
    "ColumnSplit",
    "IdColumns",
    "LeaveLastOutSplit",
    "NegativeSampling",
    "RandomSplit",
    "TimeSplit",
]
__all__ += [
    "AFM",
    "COLD",
    "DAT",
    "DCN",
    "DIN",
    "DSSM",
    "FFM",
    "FM",
    "HOFM",
    "LR",
    "NFM",
    "AutoInt",
    "AutoIntPlus",
    "CatBoost",
]
__all__ += [
    "DCNv2",
    "DeepCrossing",
    "DeepFM",
    "FiBiNET",
    "FinalMLP",
    "FinalNet",
    "FwFM",
    "IntTower",
    "LightGBM",
    "WideDeep",
]
__all__ += [
    "Callback",
    "MissingExtraError",
    "TrainingSettings",
    "XDeepFM",
    "register_model",
    "settings_of",
]
__all__ += [
    "Recipe",
    "Recommender",
    "auto",
    "load_recipe",
    "prepare_recipe",
    "recipe_names",
    "train_recipe",
]
__all__ += [kind.__name__ for kind in get_args(_Field)]

# by module, the names that are imported when they are asked for; models are of `fieldwise.models`
_HOMES = {
    "fieldwise.auditing.run": "audit",
    "fieldwise.automatic.run": "auto",
    "fieldwise.bundle.bundle": "Bundle",
    "fieldwise.data.encode.encoder": "Encoder",
    "fieldwise.data.infer.schema": "infer_schema",
    "fieldwise.data.prepare.settings": "ColumnSplit LeaveLastOutSplit NegativeSampling RandomSplit TimeSplit",
    "fieldwise.data.read.simulation": "simulate",
    "fieldwise.data.read.tables": "as_table",
    "fieldwise.estimator.recommender": "Recommender",
    "fieldwise.layout": "Batch Layout",
    "fieldwise.models.registry": "register_model settings_of",
    "fieldwise.runs.data": "prepare_recipe",
    "fieldwise.runs.pipeline": "train_recipe",
    "fieldwise.runs.recipe": "Recipe",
    "fieldwise.runs.recipe_files": "load_recipe recipe_names",
    "fieldwise.scoring.recommend": "IdColumns",
    "fieldwise.training.callbacks": "Callback",
    "fieldwise.training.settings": "TrainingSettings",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'fieldwise' has no attribute {name!r}")
    home = next(
        (module for module, names in _HOMES.items() if name in names.split()), "fieldwise.models"
    )
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""fieldwise: recommenders built on attention over feature fields.

Importing the package loads nothing else; PyTorch, Polars and scikit-learn are imported with the first name that needs
them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from fieldwise.errors import (
    BundleError,
    ConfigError,
    DataError,
    FieldwiseError,
    MissingExtraError,
    SchemaError,
    TrainingError,
)
from fieldwise.schema import Bag, Categorical, Label, Numeric, Schema, Sequence
from fieldwise.version import __version__

if TYPE_CHECKING:
    from fieldwise.automatic import auto
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.encode.encoder import Encoder
    from fieldwise.data.infer.schema import infer_schema
    from fieldwise.data.prepare.settings import NegativeSampling
    from fieldwise.data.prepare.split_settings import ColumnSplit, LeaveLastOutSplit, RandomSplit, TimeSplit
    from fieldwise.data.read.simulated.log import simulate
    from fieldwise.data.read.tables import as_table
    from fieldwise.estimator.recommender import Recommender
    from fieldwise.layout import Batch, Layout
    from fieldwise.models import (
        AFM,
        COLD,
        DAT,
        DCN,
        DIN,
        DSSM,
        FFM,
        FM,
        HOFM,
        LR,
        NFM,
        AutoInt,
        AutoIntPlus,
        DCNv2,
        DeepCrossing,
        DeepFM,
        FiBiNET,
        FinalMLP,
        FinalNet,
        FwFM,
        IntTower,
        WideDeep,
        XDeepFM,
    )
    from fieldwise.models.own import register_model, settings_of
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import train_recipe
    from fieldwise.runs.recipe import Recipe, load_recipe
    from fieldwise.runs.recipe_files import recipe_names
    from fieldwise.scoring.recommend import Catalogue
    from fieldwise.training.callbacks import Callback
    from fieldwise.training.settings import TrainingSettings

__all__ = [
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
    "Bag",
    "Batch",
    "Bundle",
    "BundleError",
    "Callback",
    "Catalogue",
    "Categorical",
    "ColumnSplit",
    "ConfigError",
    "DCNv2",
    "DataError",
    "DeepCrossing",
    "DeepFM",
    "Encoder",
    "FiBiNET",
    "FieldwiseError",
    "FinalMLP",
    "FinalNet",
    "FwFM",
    "IntTower",
    "Label",
    "Layout",
    "LeaveLastOutSplit",
    "MissingExtraError",
    "NegativeSampling",
    "Numeric",
    "RandomSplit",
    "Recipe",
    "Recommender",
    "Schema",
    "SchemaError",
    "Sequence",
    "TimeSplit",
    "TrainingError",
    "TrainingSettings",
    "WideDeep",
    "XDeepFM",
    "__version__",
    "as_table",
    "auto",
    "infer_schema",
    "load_recipe",
    "prepare_recipe",
    "recipe_names",
    "register_model",
    "settings_of",
    "simulate",
    "train_recipe",
]

_LAZY = {
    "HOFM": "fieldwise.models",
    "FwFM": "fieldwise.models",
    "FFM": "fieldwise.models",
    "NFM": "fieldwise.models",
    "DeepCrossing": "fieldwise.models",
    "WideDeep": "fieldwise.models",
    "DeepFM": "fieldwise.models",
    "DCN": "fieldwise.models",
    "DCNv2": "fieldwise.models",
    "XDeepFM": "fieldwise.models",
    "FiBiNET": "fieldwise.models",
    "FinalMLP": "fieldwise.models",
    "FinalNet": "fieldwise.models",
    "DIN": "fieldwise.models",
    "DSSM": "fieldwise.models",
    "DAT": "fieldwise.models",
    "COLD": "fieldwise.models",
    "AFM": "fieldwise.models",
    "AutoInt": "fieldwise.models",
    "AutoIntPlus": "fieldwise.models",
    "Batch": "fieldwise.layout",
    "Bundle": "fieldwise.bundle.bundle",
    "Callback": "fieldwise.training.callbacks",
    "Catalogue": "fieldwise.scoring.recommend",
    "ColumnSplit": "fieldwise.data.prepare.split_settings",
    "Encoder": "fieldwise.data.encode.encoder",
    "FM": "fieldwise.models",
    "IntTower": "fieldwise.models",
    "LR": "fieldwise.models",
    "Layout": "fieldwise.layout",
    "LeaveLastOutSplit": "fieldwise.data.prepare.split_settings",
    "NegativeSampling": "fieldwise.data.prepare.settings",
    "RandomSplit": "fieldwise.data.prepare.split_settings",
    "Recipe": "fieldwise.runs.recipe",
    "Recommender": "fieldwise.estimator.recommender",
    "TimeSplit": "fieldwise.data.prepare.split_settings",
    "TrainingSettings": "fieldwise.training.settings",
    "as_table": "fieldwise.data.read.tables",
    "auto": "fieldwise.automatic",
    "infer_schema": "fieldwise.data.infer.schema",
    "load_recipe": "fieldwise.runs.recipe",
    "prepare_recipe": "fieldwise.runs.data",
    "recipe_names": "fieldwise.runs.recipe_files",
    "register_model": "fieldwise.models.own",
    "settings_of": "fieldwise.models.own",
    "simulate": "fieldwise.data.read.simulated.log",
    "train_recipe": "fieldwise.runs.pipeline",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'fieldwise' has no attribute {name!r}")
    value: object = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""What `fieldwise` itself offers, and that importing it loads nothing heavy."""

import subprocess
import sys

import pytest

import fieldwise

PUBLIC = """
    AFM AutoInt AutoIntPlus COLD DAT DCN DCNv2 DIN DSSM DeepCrossing DeepFM FFM FM FiBiNET FinalMLP FinalNet FwFM HOFM
    IntTower LR NFM WideDeep XDeepFM

    Bag Batch Bundle BundleError Callback Catalogue Categorical ColumnSplit ConfigError DataError Encoder FieldwiseError
    Label Layout LeaveLastOutSplit MissingExtraError NegativeSampling Numeric RandomSplit Recipe Recommender Schema
    SchemaError Sequence TimeSplit TrainingError TrainingSettings __version__ as_table auto infer_schema load_recipe
    prepare_recipe recipe_names register_model settings_of simulate train_recipe
"""
NAMES = set(PUBLIC.split())


def test_the_public_names_are_pinned() -> None:
    assert sorted(fieldwise.__all__) == sorted(NAMES)
    assert set(dir(fieldwise)) >= NAMES


def test_every_name_is_there_and_called_so() -> None:
    for name in NAMES - {"__version__"}:
        assert getattr(fieldwise, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Recomender'"):
        _ = fieldwise.Recomender  # type: ignore[attr-defined]


def test_importing_loads_no_heavy_package() -> None:
    heavy = "torch", "polars", "sklearn", "numpy", "pandas", "pyarrow", "rich"
    code = f"import fieldwise, sys; dir(fieldwise); print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"

"""What `fieldwise` itself offers, and that importing it loads nothing heavy."""

import ast
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import fieldwise
from fieldwise import features, models
from fieldwise.models import MODELS

PUBLIC = """
    AFM AutoInt AutoIntPlus COLD CatBoost DAT DCN DCNv2 DIN DSSM DeepCrossing DeepFM FFM FM FiBiNET FinalMLP FinalNet
    FwFM HOFM IntTower LR LightGBM NFM WideDeep XDeepFM

    Bag Batch Bundle BundleError Callback Categorical ColumnSplit ConfigError DataError Encoder FieldwiseError
    IdColumns Label Layout LeaveLastOutSplit MissingExtraError NegativeSampling Numeric RandomSplit Recipe Recommender
    Sampled Schema SchemaError Sequence TimeSplit TrainingError TrainingSettings Vector __version__ as_table audit auto
    infer_schema load_recipe prepare_recipe recipe_names register_model settings_of simulate train_recipe
"""
NAMES = set(PUBLIC.split())
KINDS_OF_FEATURES = "Age Count Distinct Hour Last Mean Rate Sum TimeSince Weekday"


def test_the_public_names_are_pinned() -> None:
    assert sorted(fieldwise.__all__) == sorted(NAMES)
    assert set(dir(fieldwise)) >= NAMES
    for name in NAMES - {"__version__"}:
        assert getattr(fieldwise, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Recomender'"):
        _ = fieldwise.Recomender  # type: ignore[attr-defined]


def test_the_names_of_features_are_pinned() -> None:
    kinds = set(KINDS_OF_FEATURES.split())
    assert sorted(features.__all__) == sorted({*kinds, "Feature", "compute"})
    assert {kind.__name__ for kind in get_args(features.Feature)} == kinds


def test_importing_loads_no_heavy_package() -> None:
    heavy = "torch", "polars", "sklearn", "numpy", "pandas", "pyarrow", "rich"
    loaded = f"[name for name in {heavy!r} if name in sys.modules]"
    code = f"import fieldwise, fieldwise.features, sys; dir(fieldwise); print({loaded})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_a_model_of_the_folder_is_imported_and_named() -> None:
    """By the syntax trees, so that a file that nothing imports is found too."""
    folder = Path(models.__file__).parent
    registered = {
        node.name
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
        and any("register_model" in ast.dump(one) for one in node.decorator_list)
    }
    assert {settings.__name__ for settings in MODELS.values()} == registered, (
        "import it in models/__init__.py"
    )
    assert registered == {name for name in fieldwise.__all__ if hasattr(models, name)}, (
        "name it in fieldwise/__init__.py"
    )


@pytest.mark.slow
def test_type_checkers_know_every_model_and_no_other_name(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    names = ", ".join(sorted(settings.__name__ for settings in MODELS.values()))
    program.write_text(
        f"from fieldwise import {names}\nfrom fieldwise.models import {names}, Typo\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path),
    ]
    said = subprocess.run([*command, str(program)], capture_output=True, text=True).stdout
    assert 'Module "fieldwise.models" has no attribute "Typo"' in said
    assert "Found 1 error in 1 file" in said


def test_docstrings_name_modules_in_full() -> None:
    source = Path(fieldwise.__file__).parent
    for name in NAMES - {"__version__"}:
        for path in re.findall(r"`(\w+\.[\w.]+)`", getattr(fieldwise, name).__doc__ or ""):
            first, second = path.split(".")[:2]
            assert not (source / first / f"{second}.py").exists(), (
                f"{name}: {path} lacks `fieldwise.`"
            )
            assert first != "fieldwise" or pkgutil.resolve_name(path)

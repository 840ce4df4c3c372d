"""The key of prepared data in the cache: everything that they depend on."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from fieldwise.config import to_plain
from fieldwise.runs.inputs import Inputs
from fieldwise.runs.recipe import Recipe
from fieldwise.version import __version__

SOURCE_FILES = (
    "config.py",
    "layout.py",
    "runs/data.py",
    "runs/data_settings.py",
    "runs/large_table.py",
    "runs/raw_table.py",
    "runs/recipe.py",
)
SOURCE_FOLDERS = ("data", "schema")


def data_key(settings: Mapping[str, Any], inputs: Inputs) -> str:
    """The cache key of prepared data: equal only if settings, files, and the code and versions that prepare are."""
    facts = {
        "settings": settings,
        "files": dict(inputs.files),
        "code": _code_digest(),
        "versions": [__version__, pl.__version__, np.__version__],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def data_settings(recipe: Recipe) -> dict[str, Any]:
    """The settings that determine prepared data, as plain values."""
    path = None if recipe.data.path is None else "file"
    data = dataclasses.replace(recipe.data, path=path, memory=None)
    plain: dict[str, Any] = {}
    for name in ("split", "negatives", "history", "target_encoding"):
        settings = getattr(recipe, name)
        plain[name] = None if settings is None else to_plain(settings)
    plain["data"] = to_plain(data)
    plain["schema"] = recipe.schema.to_dict()
    plain["seed"] = recipe.rows_seed
    return plain


@cache
def _code_digest() -> str:
    """Digest of the source code that prepares data."""
    package = Path(__file__).parents[1]
    paths = [package / name for name in SOURCE_FILES]
    for name in SOURCE_FOLDERS:
        paths += sorted((package / name).rglob("*.py"))

    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()

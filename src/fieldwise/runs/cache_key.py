"""The key of prepared data in the cache: everything that they depend on."""

import dataclasses
import hashlib
import json
import re
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

PACKAGE = Path(__file__).parents[1]
PREPARING_MODULE = "fieldwise.runs.data"
IMPORT = re.compile(r"^from (fieldwise[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
"""An import of the package at the top level of a module; those for types alone and inside functions are indented."""

IMPORT_OF_ALL = b"pkgutil.iter_modules(__path__"
"""In the `__init__.py` of a folder of which every file registers something, such as a kind of field."""


def data_key(settings: Mapping[str, Any], inputs: Inputs) -> str:
    """The cache key of prepared data: equal only if settings, files, and the code and versions that prepare are."""
    facts = {
        "settings": settings,
        "files": dict(inputs.files),
        "code": code_digest(PACKAGE),
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
    plain["features"] = to_plain(recipe.features)
    plain["data"] = to_plain(data)
    plain["schema"] = recipe.schema.to_dict()
    plain["seed"] = recipe.rows_seed
    return plain


@cache
def code_digest(package: Path) -> str:
    """Digest of the source code that prepares data, in the package in a folder."""
    digest = hashlib.sha256()
    for name, source in sorted(preparing_sources(package).items()):
        digest.update(name.encode() + source)
    return digest.hexdigest()


def preparing_sources(package: Path) -> dict[str, bytes]:
    """By path, the content of each file that is loaded when `runs/data.py` is imported."""
    sources: dict[str, bytes] = {}
    modules = [PREPARING_MODULE]
    seen = {""}
    while modules:
        module = modules.pop()
        if module in seen:
            continue
        seen.add(module)
        path = package.joinpath(*module.split(".")[1:])
        is_folder = path.is_dir()
        file = path / "__init__.py" if is_folder else path.with_suffix(".py")
        if not file.is_file():  # a name that a folder's `__init__.py` defines
            continue
        source = file.read_bytes()
        sources[file.relative_to(package).as_posix()] = source
        modules.append(module.rpartition(".")[0])
        for imported, names in IMPORT.findall(source.decode()):
            modules.append(imported)
            if (package / imported.partition(".")[2].replace(".", "/")).is_dir():
                modules += [f"{imported}.{word}" for word in re.findall(r"\w+", names)]
        if is_folder and IMPORT_OF_ALL in source:
            modules += [f"{module}.{inner.stem}" for inner in path.glob("[!_]*.py")]
    return sources

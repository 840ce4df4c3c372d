"""The facts that `fieldwise doctor` reports: packages, extras, devices, compilers, data sets and problems."""

import importlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fieldwise.cli.options import resolve_data_dir
from fieldwise.version import __version__

__all__ = ["EXTRAS", "Extra", "examine"]

# Packages and their import names.
CORE = {
    "torch": "torch",
    "polars": "polars",
    "numpy": "numpy",
    "scikit-learn": "sklearn",
    "safetensors": "safetensors",
    "tomli-w": "tomli_w",
    "typer": "typer",
    "rich": "rich",
}
TESTED_TORCH = "2.13."
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True)
class Extra:
    """An optional extra: its purpose, and its packages with their import names."""

    purpose: str
    packages: dict[str, str]


EXTRAS = {
    "pandas": Extra("pandas frames and pyarrow tables", {"pandas": "pandas", "pyarrow": "pyarrow"}),
    "large": Extra("tables larger than memory, .zst files", {"pyarrow": "pyarrow"}),
    "plots": Extra("compare --plot, .plot() in notebooks", {"matplotlib": "matplotlib"}),
    "lightgbm": Extra("auto: LightGBM as a baseline", {"lightgbm": "lightgbm"}),
    "tensorboard": Extra("train, compare, tune: --tracker tensorboard", {"tensorboard": "tensorboard"}),
    "mlflow": Extra("train, compare, tune: --tracker mlflow", {"mlflow-skinny": "mlflow"}),
    "wandb": Extra("train, compare, tune: --tracker wandb", {"wandb": "wandb"}),
    "tune": Extra("tune: hyperparameter search", {"optuna": "optuna"}),
    "ray": Extra("prepare, predict, train: --engine ray", {"ray": "ray", "pyarrow": "pyarrow"}),
    "report": Extra("report: an HTML page about runs", {"jinja2": "jinja2"}),
    "serve": Extra(
        "serve: predictions over HTTP",
        {
            "fastapi": "fastapi",
            "prometheus-client": "prometheus_client",
            "uvicorn": "uvicorn",
            "httptools": "httptools",
            **({} if sys.platform == "win32" else {"uvloop": "uvloop"}),
        },
    ),
    "redis": Extra("serve, store: features from Redis", {"redis": "redis"}),
    "postgresql": Extra(
        "serve, store: features from PostgreSQL", {"psycopg": "psycopg", "psycopg-pool": "psycopg_pool"}
    ),
    "onnx": Extra("export --to onnx", {"onnx": "onnx", "onnxruntime": "onnxruntime", "onnxscript": "onnxscript"}),
    "docs": Extra("the documentation site", {"mkdocs-material": "material", "mkdocstrings": "mkdocstrings"}),
}


def examine(data_dir: Path | None, *, quick: bool = False) -> dict[str, Any]:
    """The facts as plain values; None for what is unknown because a package is missing or `quick` is set.

    Args:
        data_dir: the folder of public data sets.
        quick: import nothing: versions come from the installation's metadata, and devices are not examined.
    """
    folder = resolve_data_dir(data_dir)
    attention: list[str] = []
    packages = {name: _version(name, module, attention, quick) for name, module in CORE.items()}
    extras = {name: _extra(name, extra, attention, quick) for name, extra in EXTRAS.items()}
    data_sets = None if quick else _data_sets(folder)
    if data_sets == []:
        attention.append(f"no public data set in {folder}: run `fieldwise data fetch NAME`, or give --data-dir")
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        attention.append(
            f"other programs keep the {cores} cores busy (load {load:.1f}): training is slow, --threads 1 may be faster"
        )
    return {
        "fieldwise": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "extras": extras,
        "cores": os.cpu_count(),
        **_torch_facts(None if quick else packages["torch"], attention),
        "compiler": _compiler(),
        "free_disk_gib": shutil.disk_usage(Path.cwd()).free / 2**30,
        "data_dir": str(folder),
        "data_sets": data_sets,
        "attention": attention,
    }


def _extra(name: str, extra: Extra, attention: list[str], quick: bool) -> dict[str, Any]:
    """An extra's purpose, its packages' versions, and whether all can be imported; None if that was not tried."""
    problems: list[str] = []
    versions = {package: _version(package, module, problems, quick) for package, module in extra.packages.items()}
    absent = [package for package, version in versions.items() if version is None]
    if absent and len(absent) < len(versions):
        attention.append(f"the extra {name} ({extra.purpose}) lacks {', '.join(absent)}: {_install(name)}")
    broken = [problem for problem in problems if "cannot be imported" in problem]
    if len(absent) == len(versions):
        attention.extend(broken)
    works = False if absent else None if quick else True
    return {"for": extra.purpose, "works": works, "packages": versions, "install": _install(name)}


def _install(extra: str) -> str:
    return f"pip install 'fieldwise[{extra}]'"


def _compiler() -> str | None:
    """The first line of a C++ compiler's --version; None if there is no compiler."""
    wanted = [os.environ.get("CXX", ""), *COMPILERS]
    path = next((found for name in wanted if name and (found := shutil.which(name))), None)
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(said.splitlines()), path)


def _devices() -> list[str]:
    """The devices on which PyTorch can compute here."""
    import torch

    found = [f"cpu: {_processor()}"]
    for k in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(k)
        version = torch.version.cuda or torch.version.hip
        found.append(f"cuda:{k}: {facts.name}, {facts.total_memory / 2**30:.0f} GiB, CUDA {version} of PyTorch")
    if torch.backends.mps.is_available():
        found.append("mps: Apple's GPU")
    return found


def _operations() -> dict[str, str]:
    """The backend of each operation, on the CPU and on a GPU if there is one."""
    import torch

    from fieldwise.ops.backends import backends_here

    found, kinds = backends_here(), ["cuda"] * torch.cuda.is_available() + ["mps"] * torch.backends.mps.is_available()
    for kind in kinds:
        there = backends_here(torch.device(kind))
        found = {name: f"{backend}; on {kind} {there[name]}" for name, backend in found.items()}
    return found


def _processor() -> str:
    """The processor's name, or its architecture if the system does not report more."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _version(package: str, module: str, attention: list[str], quick: bool) -> str | None:
    """A package's version; None if missing or (not `quick`) failing to import, with a sentence in `attention`."""
    try:
        if not quick:
            importlib.import_module(module)
        elif find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        attention.append(f"{package} is not installed as a package: pip install {package}")
    except (ImportError, OSError, RuntimeError) as e:  # OSError: a shared library that it needs
        if isinstance(e, ModuleNotFoundError) and e.name == module:
            attention.append(f"{package} is not installed: pip install {package}")
        else:
            why = (str(e).splitlines() or [type(e).__name__])[0]
            attention.append(f"{package} cannot be imported ({why}): fix that, or reinstall {package}")
    return None


def _torch_facts(version: str | None, attention: list[str]) -> dict[str, Any]:
    if version is None:
        return {"threads": None, "cpu_capability": None, "devices": None, "ops": None, "bfloat16": None}
    import torch

    from fieldwise.ops.native import NATIVE
    from fieldwise.training.precision import slow_bfloat16

    if not version.startswith(TESTED_TORCH):
        attention.append(f"this version is tested with torch {TESTED_TORCH}x, found {version}")
    if not NATIVE.ready:
        attention.append(f"operations run on the plain PyTorch backend, many times slower; {NATIVE.why}")
    elif not NATIVE.threaded:
        attention.append("native operations run on one thread: PyTorch's OpenMP library was not found")
    return {
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "devices": _devices(),
        "ops": _operations(),
        "bfloat16": slow_bfloat16() or "supported by this CPU",
    }


def _data_sets(folder: Path) -> list[str] | None:
    """Names of the public data sets present; None if a package that reads them is missing (already reported)."""
    try:
        from fieldwise.data.read.public import PUBLIC_SETS
    except ImportError:
        return None
    return [name for name, public in PUBLIC_SETS.items() if public.present(folder)]

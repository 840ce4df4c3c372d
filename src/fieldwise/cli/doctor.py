"""`fieldwise doctor`: report whether this machine is ready, and what is missing.

Only the standard library, Typer and Rich are required: any other package that is missing or broken
is reported.
"""

import contextlib
import importlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from fieldwise.cli.options import AsJson
from fieldwise.cli.resources import data_folder
from fieldwise.cli.show import console, print_json, print_table
from fieldwise.errors import first_line
from fieldwise.version import __version__

CORE = ("torch", "polars", "numpy", "scikit-learn", "safetensors", "tomli-w", "typer", "rich")
# named otherwise
MODULES = {"scikit-learn": "sklearn", "mlflow-skinny": "mlflow", "mkdocs-material": "material"}
TESTED_TORCH = "2.13."
EXTRAS = {  # their purposes and packages
    "pandas": ("pandas frames and pyarrow tables", "pandas pyarrow"),
    "large": ("tables larger than memory, .zst files", "pyarrow"),
    "lightgbm": ("the model lightgbm, which auto tries", "lightgbm"),
    "catboost": ("the model catboost, which auto tries", "catboost"),
    "tensorboard": ("train, compare, tune: --tracker tensorboard", "tensorboard"),
    "mlflow": ("train, compare, tune: --tracker mlflow", "mlflow-skinny"),
    "wandb": ("train, compare, tune: --tracker wandb", "wandb"),
    "tune": ("tune: hyperparameter search", "optuna"),
    "ray": ("prepare, predict, train: --engine ray", "ray pyarrow"),
    "report": ("report: an HTML page about runs", "jinja2"),
    "serve": (
        "serve: predictions over HTTP",
        "fastapi fastapi-offline msgspec prometheus-client uvicorn httptools"
        + ("" if sys.platform == "win32" else " uvloop"),
    ),
    "redis": ("serve, store: features from Redis", "redis"),
    "postgresql": ("serve, store: features from PostgreSQL", "psycopg psycopg-pool"),
    "onnx": ("export --to onnx", "onnx onnxruntime onnxscript"),
    "docs": ("the documentation site", "mkdocs-material mkdocstrings"),
}


def run(*, json: AsJson = False) -> None:
    """Show what is installed here, and what is missing.

    Packages, extras and their purpose, devices, compilers and data sets.
    """
    facts = examine()
    if json:
        print_json(facts)
        return
    out = console()
    out.print(f"fieldwise {facts['fieldwise']}, Python {facts['python']}, {facts['platform']}")
    versions = [f"{name} {version or 'absent'}" for name, version in facts["packages"].items()]
    out.print(f"packages: {', '.join(versions)}")
    rows = [_extra_row(name, extra) for name, extra in facts["extras"].items()]
    print_table(["extra", "for", "works", "packages"], rows)
    for line in _machine_lines(facts):
        out.print(line)
    for problem in facts["attention"]:
        out.print(f"- {problem}")
    if not facts["attention"]:
        out.print("no problems found")


def _extra_row(name: str, extra: Mapping[str, Any]) -> list[str]:
    """An extra with the versions of its packages that are there, or how to install it."""
    versions = [f"{package} {v}" for package, v in extra["packages"].items() if v is not None]
    works = "yes" if extra["works"] else "no"
    return [name, extra["for"], works, ", ".join(versions) or extra["install"]]


def _machine_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """What is known of processor, devices, compiler and data sets."""
    yield (
        f"{facts['cores']} cores, {facts['threads'] or 'unknown'} threads, "
        f"vector instructions {facts['cpu_capability'] or 'unknown'}, {facts['free_disk_gib']:.1f} GiB free on disk"
    )
    for device in facts["devices"] or ():
        yield f"device {device}"
    yield f"C++ compiler: {facts['compiler'] or 'none'} (for training.compile, export --to aoti, and builds)"
    for name, backend in (facts["ops"] or {}).items():
        yield f"operation {name}: {backend}"
    if facts["bfloat16"] is not None:
        yield f"bfloat16: {facts['bfloat16']}"
    if facts["data_sets"] is not None:
        yield f"data sets in {facts['data_dir']}: {', '.join(facts['data_sets']) or 'none'}"


def _extras(attention: list[str]) -> dict[str, Any]:
    """The packages of each extra, and whether it works; `attention` gets what is half installed."""
    extras = dict[str, Any]()
    for name, (purpose, names) in EXTRAS.items():
        problems: list[str] = []
        versions = {package: _version(package, problems) for package in names.split()}
        absent = [package for package, version in versions.items() if version is None]
        install = f"pip install 'fieldwise[{name}]'"
        extras[name] = {
            "for": purpose,
            "works": not absent,
            "packages": versions,
            "install": install,
        }
        if len(absent) == len(versions):
            attention += [problem for problem in problems if "cannot be imported" in problem]
        elif absent:
            attention.append(f"the extra {name} ({purpose}) lacks {', '.join(absent)}: {install}")
    return extras


def examine() -> dict[str, Any]:
    """The facts as plain values; None for what is unknown because a package is missing."""
    folder = data_folder()
    attention = list[str]()
    packages = {name: _version(name, attention) for name in CORE}
    extras = _extras(attention)
    data_sets = None  # a package that reads them is missing, which is reported already
    with contextlib.suppress(ImportError):
        from fieldwise.data.read.public_sets import PUBLIC_SETS

        data_sets = [name for name, public in PUBLIC_SETS.items() if public.present(folder)]
    if data_sets == []:
        attention.append(
            f"no public data set in {folder}: run `fieldwise fetch NAME`, or set FIELDWISE_DATA"
        )
    load = os.getloadavg()[0]
    cores = os.cpu_count() or 1
    if load > cores:
        attention.append(
            f"other programs keep the {cores} cores busy (load {load:.1f}): training is slow, OMP_NUM_THREADS=1 may be "
            "faster"
        )
    return {
        "fieldwise": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "extras": extras,
        "cores": os.cpu_count(),
        **_torch_facts(packages["torch"], attention),
        "compiler": _compiler(),
        "free_disk_gib": shutil.disk_usage(Path.cwd()).free / 2**30,
        "data_dir": str(folder),
        "data_sets": data_sets,
        "attention": attention,
    }


def _compiler() -> str | None:
    """The first line that a C++ compiler says of itself; None without one that works."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        try:
            process = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        lines = process.stdout.splitlines()
        return lines[0] if lines else path
    return None


def _version(package: str, attention: list[str]) -> str | None:
    """A package's version; None if missing or failing to import, with a sentence in `attention`."""
    module = MODULES.get(package, package.replace("-", "_"))
    try:
        importlib.import_module(module)
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        attention.append(f"{package} is not installed as a package: pip install {package}")
    except (ImportError, OSError, RuntimeError) as e:  # OSError: a shared library that it needs
        if isinstance(e, ModuleNotFoundError) and e.name == module:
            attention.append(f"{package} is not installed: pip install {package}")
        else:
            why = first_line(e)
            attention.append(
                f"{package} cannot be imported ({why}): fix that, or reinstall {package}"
            )
    return None


def _torch_facts(version: str | None, attention: list[str]) -> dict[str, Any]:
    """Threads, vector instructions, devices, and the backend of each operation on each kind of device."""
    if version is None:
        return dict.fromkeys(("threads", "cpu_capability", "devices", "ops", "bfloat16"))
    import torch

    from fieldwise.ops.devices import slow_bfloat16
    from fieldwise.ops.native import NATIVE, backends_here

    if not version.startswith(TESTED_TORCH):
        attention.append(f"this version is tested with torch {TESTED_TORCH}x, found {version}")
    if not NATIVE.ready:
        attention.append(
            f"operations run on the plain PyTorch backend, many times slower; {NATIVE.why}"
        )
    elif not NATIVE.threaded:
        attention.append(
            "native operations run on one thread: PyTorch's OpenMP library was not found"
        )
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    devices = [f"cpu: {next(named, platform.processor() or platform.machine())}"]
    for k in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(k)
        cuda = torch.version.cuda or torch.version.hip
        devices.append(
            f"cuda:{k}: {facts.name}, {facts.total_memory / 2**30:.0f} GiB, CUDA {cuda} of PyTorch"
        )
    if torch.backends.mps.is_available():
        devices.append("mps: Apple's GPU")
    ops = backends_here(torch.device("cpu"))
    for kind in sorted({device.partition(":")[0] for device in devices} - {"cpu"}):
        there = backends_here(torch.device(kind))
        ops = {name: f"{backend}; on {kind} {there[name]}" for name, backend in ops.items()}
    return {
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "devices": devices,
        "ops": ops,
        "bfloat16": slow_bfloat16() or "supported by this CPU",
    }

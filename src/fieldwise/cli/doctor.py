"""`fieldwise doctor`: is this machine ready, and what is missing?"""

import importlib.util
import json as json_module
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import fieldwise
from fieldwise.cli.options import resolve_data_dir
from fieldwise.cli.show import console
from fieldwise.data.public import PUBLIC_SETS

__all__ = ["run_doctor"]

CORE = ("torch", "polars", "numpy", "scikit-learn", "safetensors", "tomli-w", "typer", "rich")
EXTRAS = {"pandas": ("pandas", "pandas frames"), "pyarrow": ("pandas", "pyarrow tables and pandas frames")}
TESTED_TORCH = "2.13."


def run_doctor(data_dir: Path | None, as_json: bool) -> None:
    """Print what was found; everything that wants attention comes last, one sentence each."""
    facts = examine(data_dir)
    if as_json:
        json_module.dump(facts, sys.stdout, indent=1)
        print()
        return
    out = console()
    out.print(f"fieldwise {facts['fieldwise']}, Python {facts['python']}, {facts['platform']}")
    out.print("packages: " + ", ".join(f"{name} {v or 'absent'}" for name, v in facts["packages"].items()))
    out.print("extras: " + ", ".join(f"{name} {v or 'absent'}" for name, v in facts["extras"].items()))
    out.print(
        f"{facts['cores']} cores, {facts['threads']} threads, vector instructions {facts['cpu_capability']}, "
        f"GPU {facts['gpu'] or 'none'}, {facts['free_disk_gib']:.1f} GiB free on disk"
    )
    out.print("operations: plain PyTorch for all of them (this version has no native ones)")
    at_hand = ", ".join(facts["data_sets"]) or "none"
    out.print(f"data sets in {facts['data_dir']}: {at_hand}")
    for problem in facts["attention"]:
        out.print(f"- {problem}")
    if not facts["attention"]:
        out.print("nothing wants attention")


def examine(data_dir: Path | None) -> dict[str, Any]:
    """The facts as plain values."""
    folder = resolve_data_dir(data_dir)
    packages = {name: _version(name) for name in CORE}
    extras = {name: _version(name) for name in EXTRAS}
    data_sets = [name for name, public in PUBLIC_SETS.items() if public.present(folder)]
    disk = shutil.disk_usage(next(p for p in (Path.cwd(), *Path.cwd().parents) if p.exists()))
    attention = [f"{name} is not installed: pip install {name}" for name, v in packages.items() if v is None]
    if not torch.__version__.startswith(TESTED_TORCH):
        attention.append(f"this version is tested with torch {TESTED_TORCH}x, found {torch.__version__}")
    for name, (extra, what) in EXTRAS.items():
        if importlib.util.find_spec(name) is None:
            attention.append(f"{name} is absent, so {what} are not read: pip install 'fieldwise[{extra}]'")
    if not data_sets:
        attention.append(f"no public data set in {folder}: `fieldwise data fetch NAME`, or name a folder by --data-dir")
    return {
        "fieldwise": fieldwise.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "extras": extras,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "free_disk_gib": disk.free / 2**30,
        "data_dir": str(folder),
        "data_sets": data_sets,
        "attention": attention,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None

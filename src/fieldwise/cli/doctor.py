"""`fieldwise doctor`: is this machine ready, and what is missing?

Nothing but the standard library, Typer and Rich is taken for granted: a package that is absent or broken is reported.
"""

import importlib
import json as json_module
import os
import platform
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from fieldwise.cli.options import resolve_data_dir
from fieldwise.cli.show import console
from fieldwise.version import __version__

__all__ = ["examine", "run_doctor"]

# Packages and the modules that they are imported as.
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
# Packages of extras, the extra, and what is not read without them.
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
        f"{facts['cores']} cores, {facts['threads'] or 'unknown'} threads, "
        f"vector instructions {facts['cpu_capability'] or 'unknown'}, GPU {facts['gpu'] or 'none'}, "
        f"{facts['free_disk_gib']:.1f} GiB free on disk"
    )
    for name, face in (facts["ops"] or {}).items():
        out.print(f"operation {name}: {face}")
    if facts["bfloat16"] is not None:
        out.print(f"bfloat16: {facts['bfloat16']}")
    at_hand = ", ".join(facts["data_sets"]) or "none"
    out.print(f"data sets in {facts['data_dir']}: {at_hand}")
    for problem in facts["attention"]:
        out.print(f"- {problem}")
    if not facts["attention"]:
        out.print("nothing wants attention")


def examine(data_dir: Path | None) -> dict[str, Any]:
    """The facts as plain values; what cannot be told without an absent package is None."""
    folder = resolve_data_dir(data_dir)
    attention: list[str] = []
    packages = {name: _version(name, module, attention) for name, module in CORE.items()}
    extras = {}
    for name, (extra, what) in EXTRAS.items():
        extras[name] = _version(name, name, [])
        if extras[name] is None:
            attention.append(f"{name} is absent, so {what} are not read: pip install 'fieldwise[{extra}]'")
    data_sets = _data_sets(folder)
    if data_sets == []:
        attention.append(f"no public data set in {folder}: `fieldwise data fetch NAME`, or name a folder by --data-dir")
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
        **_torch_facts(packages["torch"], attention),
        "free_disk_gib": shutil.disk_usage(Path.cwd()).free / 2**30,
        "data_dir": str(folder),
        "data_sets": data_sets or [],
        "attention": attention,
    }


def _version(package: str, module: str, attention: list[str]) -> str | None:
    """A package's version, or None and a sentence where it is absent or cannot be imported."""
    try:
        importlib.import_module(module)
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        attention.append(f"{package} is not installed as a package: pip install {package}")
    except (ImportError, OSError) as e:  # OSError: a shared library that it needs
        if isinstance(e, ModuleNotFoundError) and e.name == module:
            attention.append(f"{package} is not installed: pip install {package}")
        else:
            why = (str(e).splitlines() or [type(e).__name__])[0]
            attention.append(f"{package} cannot be imported ({why}): mend that, or install {package} again")
    return None


def _torch_facts(version: str | None, attention: list[str]) -> dict[str, Any]:
    if version is None:
        return {"threads": None, "cpu_capability": None, "gpu": None, "ops": None, "bfloat16": None}
    import torch

    from fieldwise.ops.faces import faces_here
    from fieldwise.ops.native import NATIVE
    from fieldwise.training.precision import slow_bfloat16

    if not version.startswith(TESTED_TORCH):
        attention.append(f"this version is tested with torch {TESTED_TORCH}x, found {version}")
    if not NATIVE.ready:
        attention.append(f"operations run in plain PyTorch, many times slower; {NATIVE.why}")
    elif not NATIVE.threaded:
        attention.append("native operations run on one thread: PyTorch's OpenMP library was not found")
    return {
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "ops": faces_here(),
        "bfloat16": slow_bfloat16() or "this CPU computes in it",
    }


def _data_sets(folder: Path) -> list[str] | None:
    """Names of the public sets at hand, or None where a package that reads them is absent (which is told already)."""
    try:
        from fieldwise.data.read.public import PUBLIC_SETS
    except ImportError:
        return None
    return [name for name, public in PUBLIC_SETS.items() if public.present(folder)]

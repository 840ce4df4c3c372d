"""The files of a bundle: its manifest, the checks when it is loaded, and the bytes of its tensors."""

import hashlib
import platform
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fieldwise.config import parse
from fieldwise.errors import BundleError, ConfigError
from fieldwise.evaluation.calibration import Calibration, Isotonic, Platt
from fieldwise.models import MODELS, ModelSettings
from fieldwise.models.build import model_from_dict
from fieldwise.models.own import known_models, settings_class
from fieldwise.storage.arrays import write_tensors
from fieldwise.storage.artifact import Kind
from fieldwise.storage.files import Written
from fieldwise.version import __version__

MANIFEST = "bundle.json"
ENTRY = 50  # bytes that a tensor takes at least in the header of a weights file
SCORE_TOLERANCE = 1e-4  # for a logit, relative above 1: other processors and thread counts sum in another order
BUNDLE = Kind(
    name="bundle",
    manifest=MANIFEST,
    format=2,
    parts={"schema": "toml", "encoder": "json", "weights": "safetensors", "samples": "arrow"},
    most={"schema": 1 << 24, "encoder": 1 << 31, "samples": 1 << 28},
    remedy="save it again with this version, or copy it again",
    origin="give the folder that was saved",
    trained=True,
)


def model_settings(plain: Mapping[str, Any], folder: Path, given: type | None) -> ModelSettings:
    """The settings in a manifest; for your own model of the class that is passed or registered."""
    name, settings = plain["name"], {key: value for key, value in plain.items() if key != "name"}
    if given is not None:
        if name in MODELS:
            raise BundleError(f"the bundle {folder} has the built-in model {name!r}: load it without a model")
        return parse(settings_class(given), settings, "the bundle's model")
    if name not in known_models():
        raise BundleError(
            f"the bundle {folder} has the model {name!r}, which is not built in, and a bundle has no code: pass "
            f"it as Bundle.load(folder, model=...), register it first (fieldwise.register_model), or run "
            f"`fieldwise --import {name if ':' in str(name) else 'MODULE'} ...`"
        )
    return model_from_dict(plain, "the bundle's model")


def calibrations(about: Mapping[str, Any]) -> dict[str, Calibration]:
    """The calibrations in a manifest, by label."""
    kept = parse(_Kept, {"calibration": about.get("calibration", {})}, "the bundle's", ConfigError)
    return dict(kept.calibration)


@dataclass(frozen=True)
class _Kept:
    """The manifest's calibrations."""

    calibration: dict[str, Platt | Isotonic]


def bundle_origin(folder: Path) -> dict[str, Any]:
    """When a bundle was saved (`created`, UTC) and with which versions (`versions`, by package), from its manifest.

    Errors:
        BundleError: there is no bundle, or its manifest is damaged.
    """
    about = BUNDLE.open(folder).about
    return {name: about[name] for name in ("created", "versions") if name in about}


def bundle_digest(folder: Path) -> str:
    """The checksum of a bundle's manifest, which covers the checksums of all its files; only the manifest is read.

    Errors:
        BundleError: there is no bundle, or its manifest is damaged.
    """
    return BUNDLE.open(folder).digest


def stopped_by(folder: Path) -> str | None:
    """What ended the training of a saved bundle, by its manifest alone; None if that is missing or damaged."""
    try:
        run = BUNDLE.open(folder).about.get("about", {}).get("run", {})
    except (BundleError, AttributeError):
        return None
    return str(run["stopped"]) if isinstance(run, dict) and "stopped" in run else None


def check_finite(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Check that a bundle's weights are finite numbers."""
    for name, tensor in tensors.items():
        # A sum takes no memory; if it overflows, each weight is looked at.
        if not (tensor.sum().isfinite() or tensor.isfinite().all()):
            count = int((~tensor.isfinite()).sum())
            raise BUNDLE.damaged(folder, f"weights must be finite numbers, found {count:,} in {name} that are not")


def check_scores(folder: Path, found: np.ndarray, expected: np.ndarray) -> None:
    """Check that a loaded bundle scores its sample rows as when it was saved."""
    if (expected.size, expected.shape[:1]) != (found.size, found.shape[:1]):
        needed = f"its {len(found)} sample rows need {found.size} scores"
        raise BUNDLE.damaged(folder, f"{needed}, saved were {expected.size}")
    expected = expected.reshape(found.shape)  # without rows, a list does not show the number of labels
    off = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    if not np.all(off <= SCORE_TOLERANCE):
        place = np.unravel_index(int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape)
        raise BundleError(
            f"a bundle must score as when it was saved: {folder} gives {found[place]:.6g} for sample row {place[0]}, "
            f"saved was {expected[place]:.6g}; train and save it again with this version"
        )


def versions() -> dict[str, str]:
    """The versions to keep in a bundle, by package."""
    return {
        "fieldwise": __version__,
        "torch": torch.__version__,
        "polars": pl.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def write_weights(file: Written, network: nn.Module) -> None:
    """Write a network's tensors as a safetensors file; none is copied as a whole if it is on the CPU."""
    write_tensors(file, {name: value.detach().cpu() for name, value in network.state_dict().items()})


@contextmanager
def parameters_within(weights: bytes | bytearray) -> Iterator[None]:
    """Stop building a network, in this thread, once it has more parameters than a weights file has bytes.

    Every parameter takes at least a byte there, so such a network does not belong to the file; a million layers would
    otherwise be built first.

    Errors:
        BundleError: the network has more parameters.

    >>> with parameters_within(bytes(1000)):
    ...     len([nn.Linear(4, 4) for _ in range(5)])
    5
    >>> with parameters_within(bytes(1000)):
    ...     [nn.Linear(4, 4) for _ in range(10**6)]
    Traceback (most recent call last):
        ...
    fieldwise.errors.BundleError: the settings describe a network that does not fit in its weights file of 1,000 bytes
    """
    thread, most, count = threading.get_ident(), len(weights), 0

    def add(_: nn.Module, __: str, parameter: nn.Parameter) -> None:
        nonlocal count
        if parameter is not None and threading.get_ident() == thread:
            count += parameter.numel() + ENTRY
            if count > most:
                raise BundleError(
                    f"the settings describe a network that does not fit in its weights file of {most:,} bytes"
                )

    handle = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()


class Hashed:
    """What is written, as a SHA-256 digest alone."""

    def __init__(self) -> None:
        self.sum = hashlib.sha256()

    def write(self, content: Any, /) -> int:
        """Append bytes, or what has a buffer of them."""
        self.sum.update(content)
        return memoryview(content).nbytes

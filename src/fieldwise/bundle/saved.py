"""A bundle on disk: which files it has, where it came from, and what of it is checked.

    bundle.json               the manifest (`fieldwise.storage.artifact`): versions, model and training settings,
                              metrics, scores of the sample rows, calibrations
    schema.HASH.toml          what the columns mean
    encoder.HASH.json         vocabularies, scales and bins
    weights.HASH.safetensors  the network's tensors
    samples.HASH.arrow        some raw rows

Nothing is ever unpickled or evaluated.
"""

import platform
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.torch import save as save_tensors
from torch import nn

from fieldwise.errors import BundleError
from fieldwise.schema import Schema
from fieldwise.storage.artifact import Kind
from fieldwise.version import __version__

__all__ = [
    "BUNDLE",
    "MANIFEST",
    "bundle_digest",
    "bundle_origin",
    "check_folder",
    "check_scores",
    "sample_rows",
    "tensor_bytes",
    "versions",
]

MANIFEST = "bundle.json"
SAMPLE_ROWS = 32
SCORE_TOLERANCE = 1e-4  # of a logit, relative above 1: other processors and thread counts add in another order
BUNDLE = Kind(
    name="bundle",
    manifest=MANIFEST,
    format=2,
    parts={"schema": "toml", "encoder": "json", "weights": "safetensors", "samples": "arrow"},
    remedy="save it again with this version, or copy it again",
    origin="give the folder that was saved",
)


def bundle_origin(folder: Path) -> dict[str, Any]:
    """When a bundle was saved (`created`, UTC) and by what (`versions`, by package); nothing but its manifest is read.

    Errors:
        BundleError: there is no bundle, or its manifest is damaged.
    """
    about = BUNDLE.open(folder).about
    return {name: about[name] for name in ("created", "versions") if name in about}


def bundle_digest(folder: Path) -> str:
    """The checksum of a bundle's manifest, which names those of all its files; nothing else is read.

    Errors:
        BundleError: there is no bundle, or its manifest is damaged.
    """
    return BUNDLE.open(folder).digest


def check_folder(folder: Path) -> None:
    """Refuse a folder that a bundle cannot be saved to, before any work is spent on one.

    Errors:
        BundleError: it is a file, or holds files but no bundle.
    """
    BUNDLE.check_folder(folder)


def check_scores(folder: Path, found: np.ndarray, expected: np.ndarray) -> None:
    """Refuse a bundle that does not score its sample rows as when it was saved.

    Errors:
        BundleError: it names the first of the rows that differ most.
    """
    if (expected.size, expected.shape[:1]) != (found.size, found.shape[:1]):
        needed = f"its {len(found)} sample rows need {found.size} scores"
        raise BUNDLE.damaged(folder, f"{needed}, saved were {expected.size}")
    expected = expected.reshape(found.shape)  # without rows, a list does not tell how many labels there are
    off = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    if not np.all(off <= SCORE_TOLERANCE):
        place = np.unravel_index(int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape)
        raise BundleError(
            f"a bundle must score as when it was saved: {folder} gives {found[place]:.6g} for sample row {place[0]}, "
            f"saved was {expected[place]:.6g}; train and save it again with this version"
        )


def sample_rows(schema: Schema, frame: pl.DataFrame) -> pl.DataFrame:
    """Some rows of a table, evenly spread, with the columns that a bundle keeps: keys and fields.

    They stand for what is usual in explanations too: the first rows of a sorted log would be one user's.
    """
    keys = [k for k in schema.keys if k in frame.columns]
    some = np.unique(np.linspace(0, frame.height - 1, min(SAMPLE_ROWS, frame.height)).astype(np.int64))
    return frame.select(list(dict.fromkeys([*keys, *schema.columns])))[some]


def versions() -> dict[str, str]:
    """Of what a bundle is saved by."""
    return {
        "fieldwise": __version__,
        "torch": torch.__version__,
        "polars": pl.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def tensor_bytes(network: nn.Module) -> bytes:
    """A network's tensors as a safetensors file."""
    tensors = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
    return save_tensors(tensors)

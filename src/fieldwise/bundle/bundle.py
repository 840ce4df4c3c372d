"""A bundle: one folder that scores rows exactly as when it was saved, and proves it.

    bundle.json               the manifest: format, versions, model and training settings, metrics, scores of the sample
                              rows, calibrations, and the name, size and SHA-256 of every file below; written last, by
                              renaming
    schema.HASH.toml          what the columns mean
    encoder.HASH.json         vocabularies, scales and bins
    weights.HASH.safetensors  the network's tensors
    samples.HASH.arrow        some raw rows

Files carry the start of their own SHA-256 in their names, so that saving over a bundle touches none of the old files
before the new manifest takes the old one's place: a crash at any moment leaves the old bundle or the new one. Nothing
is ever unpickled or evaluated.
"""

import dataclasses
import hashlib
import io
import json
import platform
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from polars.exceptions import PolarsError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from fieldwise.config import nearest, parse, to_plain
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.errors import BundleError, FieldwiseError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.calibration import Calibration, Isotonic, Platt
from fieldwise.layers.candidates import Split
from fieldwise.models import ModelSettings
from fieldwise.models.build import build_network, model_from_dict, model_to_dict
from fieldwise.schema import Schema
from fieldwise.schema.label import Label
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.scoring.candidates import score_candidates
from fieldwise.scoring.request import context_row, encode_request, split_columns
from fieldwise.storage.files import write_atomically
from fieldwise.storage.locks import one_writer
from fieldwise.version import __version__

__all__ = ["Bundle", "bundle_digest", "bundle_origin", "check_folder", "sample_rows"]

FORMAT = 2
UNCALIBRATED_FORMAT = 1  # older versions read it; they would pass over a calibration, so one makes the format 2
MANIFEST = "bundle.json"
PARTS = ("schema", "encoder", "weights", "samples")
PART_NAME = re.compile(rf"({'|'.join(PARTS)})\.[0-9a-f]{{12}}\.(toml|json|safetensors|arrow)")
SAMPLE_ROWS = 32
SCORE_TOLERANCE = 1e-4  # of a logit, relative above 1: other processors and thread counts add in another order


@dataclass(frozen=True)
class Bundle:
    """A trained network with all that scoring raw rows needs.

    Args:
        network: in evaluation mode.
        samples: raw rows that are scored when saving and again when loading.
        about: plain values kept with it: training settings, metrics, counts, recipe.
        calibration: of binary labels by their names: what turns their scores into logits of `predict`.
    """

    schema: Schema
    encoder: Encoder
    settings: ModelSettings
    network: nn.Module
    samples: pl.DataFrame
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    calibration: Mapping[str, Calibration] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        binary = [label.name for label in self.schema.labels if label.task == "binary"]
        for name in self.calibration:
            if name not in binary:
                raise BundleError(f"a calibration belongs to a binary label, found {name!r}: {nearest(name, binary)}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides its scores: schema, encoder, settings and weights.

        Samples, notes and calibrations, which come after the scores, do not count.
        """
        hasher = hashlib.sha256()
        same_types = model_from_dict(model_to_dict(self.settings))  # as loading gives them: a weight of 0 is 0.0
        settings = json.dumps(model_to_dict(same_types), sort_keys=True).encode()
        for content in (self.schema.to_toml().encode(), self.encoder.to_json().encode(), settings):
            hasher.update(hashlib.sha256(content).digest())
        hasher.update(hashlib.sha256(_tensor_bytes(self.network)).digest())
        return hasher.hexdigest()

    def score(self, frame: TableLike) -> np.ndarray:
        """Logits (binary) or unclipped predictions (regression) of raw rows, float64.

        Shape:
            [N], or [N, T] with several labels, the main one first.

        Args:
            frame: N rows with the columns of the schema's fields; whatever `fieldwise.as_table` takes.

        Errors:
            DataError: a column of the schema's fields is missing or holds what it must not.
        """
        return self.score_table(self.encoder.transform(frame))

    def score_table(self, table: EncodedTable) -> np.ndarray:
        """`score` of rows that the bundle's encoder has encoded."""
        score = score_batches(self.network, table.batches(SCORING_BATCH))
        return score if len(score) or not self.schema.more_labels else np.zeros((0, len(self.schema.labels)))

    def score_candidates(self, context: Mapping[str, Any] | TableLike, candidates: TableLike) -> np.ndarray:
        """`score` of the rows that one context makes with each candidate, up to rounding.

        A field is read from the side that has its column, so that the context is encoded once; many networks do its
        share of the arithmetic once too (`fieldwise.scoring.candidates.score_candidates`). Columns that the schema does
        not name are ignored.

        Args:
            context: one value a column, as a mapping or as a table of one row: most often user and context fields.
            candidates: N rows with the other columns: most often the item fields.

        Shape:
            [N], or [N, T] with several labels, the main one first; N may be 0.

        Errors:
            DataError: a column of the schema's fields is on both sides or on neither, the context has not one row, or
                a column holds what it must not.
        """
        one = context if isinstance(context, Mapping) else as_table(context)
        row, candidates = context_row(one, self.schema.columns), as_table(candidates)
        key = frozenset(row.columns), frozenset(self.schema.columns).intersection(candidates.columns)
        if key not in self._splits:
            self._splits[key] = split_columns(self.encoder, self.encoder.layout, *key)
        split = self._splits[key]
        return (
            score_candidates(self.network, split, *encode_request(self.encoder, split, row, candidates))
            .double()
            .numpy()
        )

    @cached_property
    def _splits(self) -> dict[tuple[frozenset[str], frozenset[str]], Split]:
        """How requests with these columns are split: made once, since requests are many and alike."""
        return {}

    def predict(self, frame: TableLike) -> np.ndarray:
        """Probabilities (binary), or numbers within the label's range (regression), of raw rows, shaped as `score`.

        Probabilities are calibrated where the bundle keeps a calibration.
        """
        return self.prediction(self.score(frame))

    def prediction(self, score: np.ndarray) -> np.ndarray:
        """What `predict` gives for rows of these scores."""
        if not self.schema.more_labels:
            return self._prediction(score, self.schema.label)
        columns = zip(score.T, self.schema.labels, strict=True)
        return np.stack([self._prediction(column, label) for column, label in columns], axis=1)

    def main_prediction(self, score: np.ndarray) -> np.ndarray:
        """Of the main label's scores [N]: probabilities, or numbers within its range."""
        return self._prediction(score, self.schema.label)

    def calibrated(self, score: np.ndarray) -> np.ndarray:
        """Scores, shaped as they are, with each binary label's calibration: `predict` is their sigmoid.

        Scores of labels without a calibration stay as they are.
        """
        if not self.calibration:
            return score
        columns = [score] if not self.schema.more_labels else list(score.T)
        maps = [self.calibration.get(label.name) for label in self.schema.labels]
        found = [column if one is None else one.logit(column) for column, one in zip(columns, maps, strict=True)]
        return np.stack(found, axis=1) if self.schema.more_labels else found[0]

    def _prediction(self, score: np.ndarray, label: Label) -> np.ndarray:
        if label.task == "binary":
            calibration = self.calibration.get(label.name)
            return sigmoid(score if calibration is None else calibration.logit(score))
        return score if label.range is None else np.clip(score, *label.range)

    def _repr_html_(self) -> str:
        from fieldwise.notebook.html import bundle_html

        return bundle_html(self)

    def save(self, folder: Path) -> None:
        """Write the bundle; a bundle that is there already stays whole until the new one is complete.

        Errors:
            BundleError: the folder holds files but no bundle (`check_folder` tells beforehand).
            DataError: the disk is full or the folder cannot be written to.
        """
        check_folder(folder)
        samples = self.samples.head(SAMPLE_ROWS)
        contents = {
            "schema": (".toml", self.schema.to_toml().encode()),
            "encoder": (".json", self.encoder.to_json().encode()),
            "weights": (".safetensors", _tensor_bytes(self.network)),
            "samples": (".arrow", _arrow_bytes(samples)),
        }
        files = {}
        for part, (suffix, content) in contents.items():
            digest = hashlib.sha256(content).hexdigest()
            files[part] = {"name": f"{part}.{digest[:12]}{suffix}", "bytes": len(content), "sha256": digest}
        manifest = {
            "format": FORMAT if self.calibration else UNCALIBRATED_FORMAT,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": _versions(),
            "model": model_to_dict(self.settings),
            "sample_scores": self.score(samples).tolist(),
            "files": files,
            "about": to_plain(self.about),
        }
        if self.calibration:
            manifest["calibration"] = to_plain(self.calibration)
        manifest["sha256"] = _manifest_digest(manifest)
        text = json.dumps(manifest, indent=1, allow_nan=False)
        with one_writer(folder):  # else one run would take the other's new files for old ones
            for part, (_, content) in contents.items():
                write_atomically(folder / str(files[part]["name"]), content)
            write_atomically(folder / MANIFEST, text.encode())
            for stale in _parts_in(folder) - {f["name"] for f in files.values()}:
                (folder / stale).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path | str) -> "Bundle":
        """Read a bundle, check every file, and score its sample rows again.

        Errors:
            BundleError: no bundle there, from a newer version, damaged, or scoring differently than when saved.
        """
        folder = Path(folder)
        manifest = _read_manifest(folder)
        content = {part: _read_part(folder, part, manifest) for part in PARTS}
        try:
            schema = Schema.from_toml(content["schema"].decode())
            encoder = Encoder.from_json(content["encoder"].decode(), "the bundle's encoder")
            settings = model_from_dict(manifest["model"], "the bundle's model")
            network = build_network(settings, encoder.layout, seed=0, labels=len(schema.labels))
            network.load_state_dict(load_tensors(content["weights"]))
            samples = pl.read_ipc(io.BytesIO(content["samples"]))
            expected = np.asarray(manifest["sample_scores"], dtype=np.float64)
            kept = parse(_Kept, {"calibration": manifest.get("calibration", {})}, "the bundle's", BundleError)
            bundle = cls(schema, encoder, settings, network.eval(), samples, manifest["about"], kept.calibration)
            found = bundle.score(samples)
        except (FieldwiseError, SafetensorError, LookupError, TypeError, RuntimeError, ValueError, PolarsError) as e:
            reason = str(e).splitlines()[0]
            raise BundleError(f"the bundle {folder} cannot be read: {reason}; save it again with this version") from e
        _check_scores(folder, found, expected)
        return bundle


@dataclass(frozen=True)
class _Kept:
    """The manifest's calibrations, as they are read."""

    calibration: dict[str, Platt | Isotonic]


def bundle_origin(folder: Path) -> dict[str, Any]:
    """When a bundle was saved (`created`, UTC) and by what (`versions`, by package); nothing but its manifest is read.

    Errors:
        BundleError: there is no bundle, or its manifest is damaged.
    """
    manifest = _read_manifest(folder)
    return {name: manifest[name] for name in ("created", "versions") if name in manifest}


def bundle_digest(folder: Path) -> str:
    """The checksum of a bundle's manifest, which names those of all its files; nothing else is read.

    Errors:
        BundleError: there is no bundle, or its manifest is damaged.
    """
    return _manifest_digest(_read_manifest(folder))


def check_folder(folder: Path) -> None:
    """Refuse a folder that a bundle cannot be saved to, before any work is spent on one.

    Errors:
        BundleError: it is a file, or holds files but no bundle.
    """
    if folder.exists() and not folder.is_dir():
        raise BundleError(f"a bundle is a folder, but {folder} is a file; choose another name")
    if not folder.exists() or (folder / MANIFEST).exists():
        return
    strangers = sorted({p.name for p in folder.iterdir() if not p.name.startswith(".")} - _parts_in(folder))
    if strangers:
        raise BundleError(
            f"a bundle needs a folder of its own: {folder} holds other files, such as {strangers[0]!r}; choose another "
            "folder"
        )


def _check_scores(folder: Path, found: np.ndarray, expected: np.ndarray) -> None:
    if (expected.size, expected.shape[:1]) != (found.size, found.shape[:1]):
        needed = f"its {len(found)} sample rows need {found.size} scores"
        raise BundleError(f"the bundle {folder} is damaged: {needed}, saved were {expected.size}")
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


def _versions() -> dict[str, str]:
    return {
        "fieldwise": __version__,
        "torch": torch.__version__,
        "polars": pl.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _tensor_bytes(network: nn.Module) -> bytes:
    tensors = {name: value.detach().contiguous() for name, value in network.state_dict().items()}
    return save_tensors(tensors)


def _arrow_bytes(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_ipc(buffer)
    return buffer.getvalue()


def _manifest_digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _parts_in(folder: Path) -> set[str]:
    """Names of the files that a bundle's saving, whole or broken off, has put into `folder`."""
    return {p.name for p in folder.iterdir() if PART_NAME.fullmatch(p.name)} if folder.exists() else set()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{folder} is no bundle: it has no {MANIFEST}; give the folder that was saved") from None
    except NotADirectoryError:
        raise BundleError(f"{folder} is no bundle: it is a file; give the folder that was saved") from None
    except (OSError, ValueError) as e:
        raise BundleError(f"the bundle {folder} is damaged: {MANIFEST} cannot be read ({e})") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise BundleError(f"the bundle {folder} is damaged: {MANIFEST} has no format number")
    if manifest["format"] > FORMAT:
        raise BundleError(
            f"the bundle {folder} has format {manifest['format']}, but this fieldwise {__version__} reads up "
            f"to format {FORMAT}: install a newer fieldwise"
        )
    if manifest.get("sha256") != _manifest_digest(manifest):
        raise BundleError(f"the bundle {folder} is damaged: {MANIFEST} does not have the checksum that it names")
    return manifest


def _read_part(folder: Path, part: str, manifest: Mapping[str, Any]) -> bytes:
    try:
        name, expected = str(manifest["files"][part]["name"]), str(manifest["files"][part]["sha256"])
    except (LookupError, TypeError):
        raise BundleError(f"the bundle {folder} is damaged: {MANIFEST} names no file for {part}") from None
    if not PART_NAME.fullmatch(name):
        raise BundleError(f"the bundle {folder} is damaged: {MANIFEST} names {name!r}, which is no file of a bundle")
    try:
        content = (folder / name).read_bytes()
    except OSError as e:
        reason = e.strerror or e
        raise BundleError(f"the bundle {folder} is damaged: {name} ({part}) cannot be read: {reason}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise BundleError(
            f"the bundle {folder} is damaged: {name} has SHA-256 {found[:12]}…, saved was {expected[:12]}…; copy it "
            "again"
        )
    return content

"""Bundles: a trained model in one folder, which is checked to score rows as when it was saved.

    bundle.json               the manifest (`fieldwise.storage.artifact`): versions, model and training settings,
                              metrics, scores of the sample rows, calibrations
    schema.HASH.toml          the schema
    encoder.HASH.json         vocabularies, scalers and bins
    weights.HASH.safetensors  the network's tensors
    samples.HASH.arrow        some raw rows

Nothing is ever unpickled or evaluated.
"""

import dataclasses
import hashlib
import io
import json
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
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
from fieldwise.errors import BundleError, ConfigError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.calibration import Calibration, Isotonic, Platt
from fieldwise.layers.candidates import Split
from fieldwise.models import MODELS, ModelSettings
from fieldwise.models.build import build_network, model_from_dict, model_to_dict
from fieldwise.models.own import is_known, settings_class
from fieldwise.schema import Schema
from fieldwise.schema.label import Label
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.scoring.candidates import score_candidates
from fieldwise.scoring.request import context_row, encode_request, split_columns
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.artifact import Artifact, Kind
from fieldwise.storage.writer import writing
from fieldwise.version import __version__

__all__ = ["MANIFEST", "Bundle", "bundle_digest", "bundle_origin", "check_folder", "sample_rows"]

MANIFEST = "bundle.json"
SAMPLE_ROWS = 32
SCORE_TOLERANCE = 1e-4  # for a logit, relative above 1: other processors and thread counts sum in another order
BUNDLE = Kind(
    name="bundle",
    manifest=MANIFEST,
    format=2,
    parts={"schema": "toml", "encoder": "json", "weights": "safetensors", "samples": "arrow"},
    most={"schema": 1 << 24, "encoder": 1 << 31, "samples": 1 << 28},
    remedy="save it again with this version, or copy it again",
    origin="give the folder that was saved",
)


@dataclass(frozen=True)
class Bundle:
    """A trained network with everything needed to score raw rows.

    Args:
        network: the network, in evaluation mode.
        samples: raw rows that are scored when saving and again when loading.
        about: further plain values: training settings, metrics, counts, recipe.
        calibration: calibrations of binary labels by name, which map scores to the logits of `predict`.
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
        """SHA-256 of everything that determines its scores: schema, encoder, settings and weights.

        Samples, further values and calibrations are not included.
        """
        hasher = hashlib.sha256()
        same_types = parse(type(self.settings), to_plain(self.settings), "model")  # the types after loading: 0 is 0.0
        settings = json.dumps(model_to_dict(same_types), sort_keys=True).encode()
        for content in (self.schema.to_toml().encode(), self.encoder.to_json().encode(), settings):
            hasher.update(hashlib.sha256(content).digest())
        hasher.update(hashlib.sha256(_tensor_bytes(self.network)).digest())
        return hasher.hexdigest()

    def score(self, frame: TableLike) -> np.ndarray:
        """Logits (binary) or unclipped predictions over the label's scale (regression) of raw rows, float64.

        Shape:
            [N], or [N, T] with several labels, the main one first.

        Args:
            frame: N rows with the columns of the schema's fields; any input of `fieldwise.as_table`.

        Errors:
            DataError: a column of the schema's fields is missing or has an invalid value.
        """
        return self.score_table(self.encoder.transform(frame))

    def score_table(self, table: EncodedTable) -> np.ndarray:
        """`score` for rows encoded by the bundle's encoder."""
        score = score_batches(self.network, table.batches(SCORING_BATCH))
        return score if len(score) or not self.schema.more_labels else np.zeros((0, len(self.schema.labels)))

    def score_candidates(self, context: Mapping[str, Any] | TableLike, candidates: TableLike) -> np.ndarray:
        """`score` for one context combined with each candidate, up to rounding.

        A field is read from the side that has its column, so the context is encoded once; many networks also compute
        its part only once (`fieldwise.scoring.candidates.score_candidates`). Columns that are not in the schema are
        ignored.

        Args:
            context: one value per column, as a mapping or a table of one row: usually user and context fields.
            candidates: N rows with the other columns: usually the item fields.

        Shape:
            [N], or [N, T] with several labels, the main one first; N may be 0.

        Errors:
            DataError: a column of the schema's fields is on both sides or on neither, the context does not have one
                row, or a column has an invalid value.
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
        """Cached splits of fields by the columns of requests."""
        return {}

    def predict(self, frame: TableLike) -> np.ndarray:
        """Predictions for raw rows, shaped as `score`: probabilities (binary) or numbers within the label's range.

        Probabilities are calibrated if the bundle has a calibration.
        """
        return self.prediction(self.score(frame))

    def prediction(self, score: np.ndarray) -> np.ndarray:
        """The result of `predict` for rows with these scores."""
        if not self.schema.more_labels:
            return self._prediction(score, self.schema.label)
        columns = zip(score.T, self.schema.labels, strict=True)
        return np.stack([self._prediction(column, label) for column, label in columns], axis=1)

    def main_prediction(self, score: np.ndarray) -> np.ndarray:
        """Predictions from the main label's scores [N]: probabilities, or numbers within its range."""
        return self._prediction(score, self.schema.label)

    def calibrated(self, score: np.ndarray) -> np.ndarray:
        """Scores of the same shape with each binary label's calibration applied: `predict` is their sigmoid.

        Scores of labels without a calibration are unchanged.
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
        return label.predicted(score)

    def _repr_html_(self) -> str:
        from fieldwise.notebook.html import bundle_html

        return bundle_html(self)

    def save(self, folder: Path, *, replaces: str | None = None) -> None:
        """Save the bundle, replacing an existing one atomically.

        Args:
            folder: created if it is missing.
            replaces: `bundle_digest` of the bundle that was read from there and changed, so that another process's new
                bundle is not overwritten.

        Errors:
            BundleError: the folder has files but no bundle (see `check_folder`), or the bundle `replaces` is no longer
                there.
            DataError: the disk is full or the folder is not writable.
        """
        check_folder(folder)
        samples = self.samples.head(SAMPLE_ROWS)
        facts = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": _versions(),
            "model": model_to_dict(self.settings),
            "sample_scores": self.score(samples).tolist(),
            "about": to_plain(self.about),
            "calibration": to_plain(self.calibration),
        }
        with writing(BUNDLE, folder, replaces=replaces) as writer:
            writer.add("schema", self.schema.to_toml().encode())
            writer.add("encoder", self.encoder.to_json().encode())
            writer.add("weights", _tensor_bytes(self.network))
            writer.add("samples", arrow_bytes(samples))
            writer.finish(**facts)

    @classmethod
    def load(cls, folder: Path | str, *, model: type | None = None) -> "Bundle":
        """Load a bundle: check every file, and score its sample rows again.

        A bundle has its model's name but no code. Nothing is imported for your own model: register it
        (`fieldwise.register_model`) or pass it.

        Args:
            folder: folder of the bundle.
            model: the class of your own model, a network or its settings.

        Errors:
            BundleError: no bundle there, or one that is from a newer version, damaged, scores differently than when it
                was saved, or has your own model, neither registered nor passed.
        """
        return BUNDLE.load(Path(folder), partial(cls._read, model=model), (SafetensorError, RuntimeError, PolarsError))

    @classmethod
    def _read(cls, saved: Artifact, model: type | None) -> "Bundle":
        about, content = saved.about, {part: saved.content(part) for part in BUNDLE.parts}
        schema = Schema.from_toml(content["schema"].decode())
        encoder = Encoder.from_json(content["encoder"].decode(), "the bundle's encoder")
        settings = _model(about["model"], saved.folder, model)
        network = build_network(settings, encoder.layout, seed=0, labels=len(schema.labels))
        network.load_state_dict(load_tensors(content["weights"]))
        samples = pl.read_ipc(io.BytesIO(content["samples"]))
        expected = np.asarray(about["sample_scores"], dtype=np.float64)
        kept = parse(_Kept, {"calibration": about.get("calibration", {})}, "the bundle's", ConfigError)
        bundle = cls(schema, encoder, settings, network.eval(), samples, about["about"], kept.calibration)
        _check_scores(saved.folder, bundle.score(samples), expected)
        return bundle


def _model(plain: Mapping[str, Any], folder: Path, given: type | None) -> ModelSettings:
    """The settings in a manifest; for your own model of the class that is passed or registered."""
    name, settings = plain["name"], {key: value for key, value in plain.items() if key != "name"}
    if given is not None:
        if name in MODELS:
            raise BundleError(f"the bundle {folder} has the built-in model {name!r}: load it without a model")
        return parse(settings_class(given), settings, "the bundle's model")
    if not is_known(name):
        raise BundleError(
            f"the bundle {folder} has the model {name!r}, which is not built in, and a bundle has no code: pass "
            f"it as Bundle.load(folder, model=...), register it first (fieldwise.register_model), or run "
            f"`fieldwise --import {name if ':' in str(name) else 'MODULE'} ...`"
        )
    return model_from_dict(plain, "the bundle's model")


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


def check_folder(folder: Path) -> None:
    """Check, before any work, that a bundle can be saved to a folder.

    Errors:
        BundleError: it is a file, or has files but no bundle.
    """
    BUNDLE.check_folder(folder)


def _check_scores(folder: Path, found: np.ndarray, expected: np.ndarray) -> None:
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


def sample_rows(schema: Schema, frame: pl.DataFrame) -> pl.DataFrame:
    """Sample rows of a table, evenly spaced, with the columns that a bundle keeps: keys and fields.

    They are also the background of explanations, so they are not just the first rows, which may be one user's.
    """
    keys = [k for k in schema.row_keys if k in frame.columns]
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

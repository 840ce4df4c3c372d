"""Bundles: a trained model in one folder, which is checked to score rows as when it was saved.

- `bundle.json`: the manifest (`fieldwise.storage.artifact`): versions, model and training settings,
  metrics, scores of the sample rows, calibrations.
- `schema.HASH.toml`: the schema.
- `encoder.HASH.json`: vocabularies, scalers and bins.
- `weights.HASH.safetensors`: the network's tensors.
- `samples.HASH.arrow`: some raw rows.
- `vectors.HASH.safetensors`, if a field has vectors by id: their matrices by field, mapped from
  disk.

Nothing is ever unpickled or evaluated.
"""

import copy
import dataclasses
import hashlib
import io
import json
import platform
import time
from collections.abc import Callable, Mapping
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
from torch import Tensor, nn

from fieldwise.bundle.about import About
from fieldwise.config import nearest, parse, to_plain
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.portable import map_matrices
from fieldwise.data.prepare.labels import LabelledRows
from fieldwise.data.prepare.prepared import SplitPart, encoded_by, group_codes
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.display import Table
from fieldwise.errors import BundleError, ConfigError
from fieldwise.evaluation.calibration import Calibration, Isotonic, Platt, predictions
from fieldwise.evaluation.metrics import METRICS
from fieldwise.layers import kept_rows
from fieldwise.models import MODELS, ModelSettings, parameter_count
from fieldwise.models.build import build_network, grow_network, parameters_within
from fieldwise.models.mean_with_lr import MeanWithLR, mean_sentence, network_share
from fieldwise.models.registry import known_models, settings_class
from fieldwise.models.serialise import model_from_dict, model_to_dict
from fieldwise.ops.devices import device_of, open_device
from fieldwise.schema import Label, Schema
from fieldwise.scoring.batches import SCORING_BATCH, finite, score_batches
from fieldwise.scoring.candidates import CatalogueScorer, candidate_columns, only_row
from fieldwise.scoring.items import ItemTable
from fieldwise.scoring.recommend import recommend
from fieldwise.storage.arrays import arrow_bytes, tensor_chunks, write_matrices, write_tensors
from fieldwise.storage.artifact import Artifact, ArtifactKind, writing
from fieldwise.storage.forks import computing
from fieldwise.storage.scratch import NO_LIMIT
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings
from fieldwise.version import __version__

SAMPLE_ROWS = 32
SLICE_ROWS = 64 * SCORING_BATCH  # encoded at once
MANIFEST = "bundle.json"
IN_MEAN = "mean_with_lr"  # in the manifest: whether the weights are of a mean with LR
# for a logit, relative above 1: other processors and thread counts sum in another order
SCORE_TOLERANCE = 1e-4
VECTORS = "vectors"
BUNDLE = ArtifactKind(
    name="bundle",
    manifest=MANIFEST,
    format=3,
    oldest=3,  # bundles before it have learned other texts of some values (docs/values.md)
    parts={
        "schema": "toml",
        "encoder": "json",
        "weights": "safetensors",
        "samples": "arrow",
        VECTORS: "safetensors",
    },
    most={"schema": 1 << 24, "encoder": 1 << 31, "samples": 1 << 28},
    remedy="train it again with this version, or copy it again",
    origin="give the folder that was saved",
    trained=True,
)


@dataclass(frozen=True, repr=False)
class Bundle:
    """A trained network with everything needed to score raw rows.

    Args:
        network: the network, in evaluation mode.
        samples: raw rows that are scored when saving and again when loading.
        about: what it says about its training: settings, metrics, counts, recipe.
        calibration: calibrations of binary labels by name, which map scores to the logits of
            `predict`.
    """

    schema: Schema
    encoder: Encoder
    settings: ModelSettings
    network: nn.Module
    samples: pl.DataFrame
    about: About = dataclasses.field(default_factory=About)
    calibration: Mapping[str, Calibration] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        binary = [label.name for label in self.schema.labels if label.task == "binary"]
        for name in self.calibration:
            if name not in binary:
                raise BundleError(
                    f"a calibration belongs to a binary label, found {name!r}: {nearest(name, binary)}"
                )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that determines its scores: schema, encoder, settings and weights.

        Samples, further values and calibrations are not included.
        """
        hasher = hashlib.sha256()
        # the types after loading: 0 is 0.0
        same_types = parse(type(self.settings), to_plain(self.settings), "model")
        settings = json.dumps(model_to_dict(same_types), sort_keys=True).encode()
        for content in (self.schema.to_toml().encode(), self.encoder.to_json().encode(), settings):
            hasher.update(hashlib.sha256(content).digest())
        weights = hashlib.sha256()
        for chunk in tensor_chunks(self.network.state_dict()):
            weights.update(chunk)
        hasher.update(weights.digest())
        return hasher.hexdigest()

    @property
    def network_share(self) -> float:
        """The share of the trained network in its mean with LR: 0 if the model is LR alone, 1 without a mean."""
        return network_share(self.network)

    @property
    def mean_sentence(self) -> str | None:
        """A sentence that says which mean with LR the model is; None without one."""
        return mean_sentence(self.network_share)

    def score(self, frame: TableLike) -> np.ndarray:
        """Logits (binary) or unclipped predictions over the label's scale (regression) of raw rows, float64.

        Shape:
            [N], or [N, T] with several labels, the main one first.

        Args:
            frame: N rows with the columns of the schema's fields; any input of
                `fieldwise.as_table`.

        Errors:
            DataError: a column of the schema's fields is missing or has an invalid value.
        """
        rows = as_table(frame, text_columns=self.schema.text_columns)
        if rows.height <= SLICE_ROWS:
            return self.score_table(self.encoder.transform(rows))
        # encoded rows of a long table may need more memory than there is
        starts = range(0, rows.height, SLICE_ROWS)
        parts = (self.encoder.transform(rows[k : k + SLICE_ROWS], first_row=k) for k in starts)
        return np.concatenate([self.score_table(part) for part in parts])

    def score_table(self, table: EncodedTable) -> np.ndarray:
        """`score` for rows encoded by the bundle's encoder."""
        score = finite(score_batches(self.network, table.batches(SCORING_BATCH)))
        if not len(score) and self.schema.more_labels:
            return np.zeros((0, len(self.schema.labels)))
        return score

    def part_scores(self, part: SplitPart, encoder: Encoder) -> np.ndarray:
        """Logits, or numbers within the label's range, of the rows of a part that another encoder has encoded.

        Shape:
            [N, T], the main label first.
        """
        score = self.score_table(encoded_by(self.encoder, part, encoder))
        predicted = self._by_label(lambda column, label: label.predicted(column), score)
        return predicted.reshape(len(predicted), -1)

    def score_candidates(
        self, context: Mapping[str, Any] | TableLike, candidates: TableLike
    ) -> np.ndarray:
        """`score` for one context combined with each candidate, up to rounding.

        A field is read from the side that has its column, so the context is encoded once; many
        networks also compute its part only once (`fieldwise.scoring.candidates.score_candidates`).
        Columns that are not in the schema are ignored.

        Args:
            context: one value per column, as a mapping or a table of one row: usually user and
                context fields.
            candidates: N rows with the other columns: usually the item fields.

        Shape:
            [N], or [N, T] with several labels, the main one first; N may be 0.

        Errors:
            DataError: a column of the schema's fields is on both sides or on neither, the context
                does not have one row, or a column has an invalid value.
        """
        texts = self.schema.text_columns
        table = as_table(candidates, text_columns=texts)
        if not isinstance(context, Mapping):
            context = only_row(as_table(context, text_columns=texts))
        columns = candidate_columns(self.schema, context, table.columns)
        # they need no ids
        scorer = CatalogueScorer(self, ItemTable(id_column="", items=table), columns)
        score = scorer.score(scorer.context(context), torch.arange(table.height))
        return score if self.schema.more_labels else score[:, 0]

    @cached_property
    def encoded_samples(self) -> EncodedTable:
        """`samples`, encoded: the usual background of explanations."""
        return self.encoder.transform(self.samples)

    def meaning(self, label: Label) -> str:
        """A description of a label's prediction: `Label.meaning`, unless the training's loss gives scores alone."""
        loss = self.about.training_settings.get("loss", "logloss")
        gives_scores_alone = not TrainingSettings(loss=loss).gives_probabilities
        if gives_scores_alone and label.name not in self.calibration:
            return f"{loss} score by which “{label.name}” ranks rows of a group, in no unit"
        return label.meaning

    def predict(self, frame: TableLike) -> np.ndarray:
        """Predictions for raw rows, shaped as `score`: probabilities (binary) or numbers within the label's range.

        Probabilities are calibrated if the bundle has a calibration.
        """
        return self.prediction(self.score(frame))

    def prediction(self, score: np.ndarray) -> np.ndarray:
        """The result of `predict` for rows with these scores."""
        return self._by_label(self._prediction, score)

    def main_prediction(self, score: np.ndarray) -> np.ndarray:
        """Predictions from the main label's scores [N]: probabilities, or numbers within its range."""
        return self._prediction(score, self.schema.label)

    def metrics(self, rows: LabelledRows, *, one_class: bool = False) -> dict[str, float]:
        """All metrics of labelled rows, of calibrated scores; `one_class` as for `Objective.metrics`."""
        y = rows.y.astype(np.float64)
        score = self.calibrated(self.score(rows.frame))
        group = group_codes(rows.frame, self.schema, budget=NO_LIMIT)
        return Objective.of(*self.schema.labels).metrics(
            y, score, group, rows.weight, one_class=one_class
        )

    def calibrated(self, score: np.ndarray) -> np.ndarray:
        """Scores of the same shape with each binary label's calibration applied: `predict` is their sigmoid.

        Scores of labels without a calibration are unchanged.
        """
        return self._by_label(self._calibrated, score)

    def _by_label(
        self, change: Callable[[np.ndarray, Label], np.ndarray], score: np.ndarray
    ) -> np.ndarray:
        """The scores with a change of each label's."""
        if not self.schema.more_labels:
            return change(score, self.schema.label)
        columns = zip(score.T, self.schema.labels, strict=True)
        return np.stack([change(column, label) for column, label in columns], axis=1)

    def _calibrated(self, score: np.ndarray, label: Label) -> np.ndarray:
        calibration = self.calibration.get(label.name)
        return score if calibration is None else calibration.logit(score)

    def _prediction(self, score: np.ndarray, label: Label) -> np.ndarray:
        return predictions(score, label, self.calibration.get(label.name))

    recommend = recommend

    def grow(self, rows: TableLike, *, seed: int = 0) -> tuple["Bundle", dict[str, int]]:
        """The bundle with the new values of some rows, and how many values each field got: see `Encoder.grow`.

        It scores other rows to the bit as before. The weights of new values are fresh: train it on
        rows that have them.

        Errors:
            DataError: as for `Encoder.grow`.
            ConfigError: a model of your own with tables that cannot grow
                (`fieldwise.layers.row_blocks`).
        """
        encoder, added = self.encoder.grow(rows)
        if encoder is self.encoder:
            return self, added
        labels = len(self.schema.labels)
        network = grow_network(self.network, self.settings, encoder.layout, seed, labels=labels)
        return dataclasses.replace(self, encoder=encoder, network=network), added

    def with_vectors(self, field: str, path: Path | str) -> "Bundle":
        """The bundle with the vectors of another file for a field of vectors by id: those of new items, for example.

        Nothing is trained: all vectors pass one projection. Save it to serve it.

        Errors:
            DataError: no such field; a file that cannot be read, or with vectors of another length.
        """
        return dataclasses.replace(self, encoder=self.encoder.with_vectors(field, Path(path)))

    def before_growth(self) -> "Bundle | None":
        """The bundle without the values of its encoder's last growth, on its device; None if that has not grown."""
        if not self.encoder.growths:
            return None
        encoder = self.encoder.before_growth()
        tensors = self.network.state_dict()
        labels = len(self.schema.labels)
        in_mean = isinstance(self.network, MeanWithLR)
        network = build_network(
            self.settings, encoder.layout, 0, labels=labels, in_mean=in_mean
        ).eval()
        rows_kept = kept_rows(network, self.network)
        network.load_state_dict(
            {name: tensor.cpu()[rows_kept.get(name, ...)] for name, tensor in tensors.items()}
        )
        return dataclasses.replace(
            self, encoder=encoder, network=network.to(device_of(self.network))
        )

    def on_cpu(self) -> "Bundle":
        """The bundle with its network on the CPU: itself if it is there, else a copy."""
        return self if device_of(self.network).type == "cpu" else copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        """The state that a copy keeps: the network on the CPU, which any machine has."""
        state = dict(vars(self))
        if device_of(self.network).type != "cpu":
            on_cpu: dict[int, Any] = {id(tensor): tensor.cpu() for tensor in self.network.buffers()}
            for parameter in self.network.parameters():
                copied = nn.Parameter(parameter.detach().cpu(), parameter.requires_grad)
                on_cpu[id(parameter)] = copied
            state["network"] = copy.deepcopy(self.network, on_cpu)
        return state

    def __repr__(self) -> str:
        """The model's settings, those of the training that differ from the defaults, labels, fields and parameters."""
        default = to_plain(TrainingSettings())
        changed = {
            name: value
            for name, value in self.about.training_settings.items()
            if default.get(name) != value
        }
        training = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        labels = ", ".join(label.name for label in self.schema.labels)
        fields = ", ".join(f.name for f in self.schema.fields)
        mean = "" if self.network_share == 1 else f", {self.network_share:.0%} of the mean with LR"
        return (
            f"Bundle({self.settings!r}{mean}, training: {training or 'defaults'}, label: {labels}, fields: {fields}, "
            f"{parameter_count(self.network):,} parameters)"
        )

    def _repr_html_(self) -> str:
        """Model, settings, labels and metrics."""
        model = model_to_dict(self.settings)
        kinds = ", ".join(f"{k}: {type(v).__name__}" for k, v in self.calibration.items())
        rows: list[list[object]] = [
            ["model", model.pop("name")],
            ["settings", ", ".join(f"{k} {v}" for k, v in model.items())],
            ["parameters", parameter_count(self.network)],
            ["fields", ", ".join(f.name for f in self.schema.fields)],
            ["labels", ", ".join(label.name for label in self.schema.labels)],
            ["calibration", kinds or "none"],
        ]
        if self.mean_sentence is not None:
            rows.append(["mean with LR", self.mean_sentence])
        parts = {"validation": self.about.valid_metrics, "test": self.about.test_metrics}
        for part, metrics in parts.items():
            names = [
                name
                for name, metric in METRICS.items()
                if metric.watched and metric.is_of_rows and name in metrics
            ]
            if names:
                shown = ", ".join(f"{name} {metrics[name]:.4f}" for name in names)
                rows.append([f"{part} rows", shown])
        rows.append(["digest", self.digest[:12]])
        return Table(title="Bundle", columns=["", ""], rows=rows)._repr_html_()

    def save(
        self, folder: Path | str, *, overwrite: bool = False, replaces: str | None = None
    ) -> None:
        """Save the bundle to a folder.

        Args:
            folder: created if it is missing.
            overwrite: whether a bundle that is there is replaced, atomically.
            replaces: `bundle_digest` of the bundle that was read from there and changed: it is
                replaced, but not if another process has saved a new one since.

        Errors:
            ConfigError: the folder has a bundle that is not to be replaced.
            BundleError: the folder has files but no bundle, or the bundle `replaces` is no longer
                there.
            DataError: the disk is full or the folder is not writable.
        """
        folder = Path(folder)
        BUNDLE.check_folder(folder, overwrite=overwrite or replaces is not None)
        samples = self.samples.head(SAMPLE_ROWS)
        used = {module.__name__: module.__version__ for module in (torch, pl, np)}
        facts = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": {"fieldwise": __version__, **used, "python": platform.python_version()},
            "model": model_to_dict(self.settings),
            IN_MEAN: isinstance(self.network, MeanWithLR),
            "sample_scores": self.score(samples).tolist(),
            "about": self.about.to_plain(),
            "calibration": to_plain(self.calibration),
        }
        with writing(BUNDLE, folder, replaces=replaces) as writer:
            writer.add("schema", self.schema.to_toml().encode())
            writer.add("encoder", self.encoder.to_json().encode())
            with writer.open("weights") as file:
                write_tensors(file, self.network.state_dict())
            writer.add("samples", arrow_bytes(samples))
            if self.encoder.matrices:
                with writer.open(VECTORS) as file:
                    write_matrices(file, self.encoder.matrices)
            writer.finish(**facts)

    @classmethod
    def load(
        cls, folder: Path | str, *, model: type | None = None, device: str = "cpu"
    ) -> "Bundle":
        """Load a bundle: check every file, and score its sample rows again.

        A bundle has its model's name but no code. Nothing is imported for your own model: register
        it (`fieldwise.register_model`) or pass it.

        Args:
            folder: folder of the bundle.
            model: the class of your own model, a network or its settings.
            device: where the network scores (`fieldwise.ops.devices.open_device`). A bundle does
                not keep it.

        Errors:
            ConfigError: there is no such device.
            BundleError: no bundle there, or one that is from a newer version, damaged, scores
                differently than when it was saved, or has your own model, neither registered nor
                passed.
            FieldwiseError: this process was forked from one that has read a table or loaded a
                model.
        """
        computing()
        read = partial(cls._read, model=model, device=open_device(device))
        return BUNDLE.load(Path(folder), read, (SafetensorError, RuntimeError, PolarsError))

    @classmethod
    def _read(cls, saved: Artifact, model: type | None, device: torch.device) -> "Bundle":
        about = saved.about
        folder = saved.folder
        content = {part: saved.content(part) for part in BUNDLE.parts if part != VECTORS}
        schema = Schema.from_toml(content["schema"].decode())
        encoder = Encoder.from_json(content["encoder"].decode(), "the bundle's encoder")
        if encoder.matrices:
            encoder = encoder.with_matrices(map_matrices(saved.path(VECTORS)))
        settings = _model_settings(about["model"], folder, model)
        with parameters_within(content["weights"]):
            labels = len(schema.labels)
            in_mean = bool(about.get(IN_MEAN))
            network = build_network(
                settings, encoder.layout, seed=0, labels=labels, in_mean=in_mean
            )
        tensors = load_tensors(bytes(content.pop("weights")))
        _check_finite(tensors, folder)
        network.load_state_dict(tensors)
        network.to(device)
        samples = pl.read_ipc(io.BytesIO(content["samples"]))
        kept = parse(
            _Kept, {"calibration": about.get("calibration", {})}, "the bundle's", ConfigError
        )
        bundle = cls(
            schema,
            encoder,
            settings,
            network.eval(),
            samples,
            About.from_plain(about["about"], "the bundle's about"),
            dict(kept.calibration),
        )
        saved_scores = np.asarray(about["sample_scores"], dtype=np.float64)
        _check_sample_scores(bundle.score(samples), saved_scores, folder)
        return bundle


def _check_finite(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Check that the saved weights are finite."""
    for name, tensor in tensors.items():
        # A sum takes no memory; if it overflows, each weight is looked at.
        if not (tensor.sum().isfinite() or tensor.isfinite().all()):
            count = int((~tensor.isfinite()).sum())
            raise BUNDLE.damaged(
                folder,
                f"weights must be finite numbers, found {count:,} in {name} that are not",
            )


def _check_sample_scores(scores: np.ndarray, saved: np.ndarray, folder: Path) -> None:
    """Check that a bundle scores its sample rows as when it was saved, both [N] or [N, T]."""
    if (saved.size, saved.shape[:1]) != (scores.size, scores.shape[:1]):
        needed = f"its {len(scores)} sample rows need {scores.size} scores"
        raise BUNDLE.damaged(folder, f"{needed}, saved were {saved.size}")
    # without rows, a list does not show the number of labels
    saved = saved.reshape(scores.shape)
    off = np.abs(scores - saved) / np.maximum(1.0, np.abs(saved))
    if not np.all(off <= SCORE_TOLERANCE):
        worst = np.unravel_index(int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape)
        raise BundleError(
            f"a bundle must score as when it was saved: {folder} gives {scores[worst]:.6g} for sample row "
            f"{worst[0]}, saved was {saved[worst]:.6g}; train and save it again with this version"
        )


def sample_rows(schema: Schema, frame: pl.DataFrame) -> pl.DataFrame:
    """Sample rows of a table, evenly spaced, with the columns that a bundle keeps: keys and fields.

    They are also the background of explanations, so they are not just the first rows, which may be
    one user's.
    """
    keys = [k for k in schema.row_keys if k in frame.columns]
    numbers = np.unique(
        np.linspace(0, frame.height - 1, min(SAMPLE_ROWS, frame.height)).astype(np.int64)
    )
    return frame.select(list(dict.fromkeys([*keys, *schema.columns])))[numbers]


def bundle_origin(folder: Path) -> dict[str, Any]:
    """When a bundle was saved (`created`, UTC) and with which versions (`versions`, by package), from its manifest."""
    about = BUNDLE.open(folder).about
    return {name: about[name] for name in ("created", "versions") if name in about}


def bundle_digest(folder: Path) -> str:
    """The checksum of a bundle's manifest, which covers the checksums of all its files; only the manifest is read."""
    return BUNDLE.open(folder).digest


def stopped_by(folder: Path) -> str | None:
    """What ended the training of a saved bundle, by its manifest alone; None if that is missing or damaged."""
    try:
        about = About.from_plain(BUNDLE.open(folder).about["about"], "the bundle's about")
    except (BundleError, LookupError, AttributeError):
        return None
    return about.run_facts.get("stopped")


@dataclass(frozen=True)
class _Kept:
    """The manifest's calibrations."""

    calibration: dict[str, Platt | Isotonic]


def _model_settings(plain: Mapping[str, Any], folder: Path, given: type | None) -> ModelSettings:
    """The settings in a manifest; for your own model of the class that is passed or registered."""
    name = plain["name"]
    settings = {key: value for key, value in plain.items() if key != "name"}
    if given is not None:
        if name in MODELS:
            raise BundleError(
                f"the bundle {folder} has the built-in model {name!r}: load it without a model"
            )
        return parse(settings_class(given), settings, "the bundle's model")
    if name not in known_models():
        raise BundleError(
            f"the bundle {folder} has the model {name!r}, which is not built in, and a bundle has no code: pass "
            f"it as Bundle.load(folder, model=...), register it first (fieldwise.register_model), or run "
            f"`fieldwise --import {name if ':' in str(name) else 'MODULE'} ...`"
        )
    return model_from_dict(plain, "the bundle's model")

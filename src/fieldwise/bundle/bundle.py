"""Bundles: a trained model in one folder, which is checked to score rows as when it was saved.

    bundle.json               the manifest (`fieldwise.storage.artifact`): versions, model and training settings,
                              metrics, scores of the sample rows, calibrations
    schema.HASH.toml          the schema
    encoder.HASH.json         vocabularies, scalers and bins
    weights.HASH.safetensors  the network's tensors
    samples.HASH.arrow        some raw rows

Nothing is ever unpickled or evaluated.
"""

import copy
import dataclasses
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterable, Mapping
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
from torch import nn

from fieldwise.bundle.files import (
    BUNDLE,
    Hashed,
    calibrations,
    check_finite,
    check_scores,
    model_settings,
    parameters_within,
    versions,
    write_weights,
)
from fieldwise.config import nearest, parse, to_plain
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.labels import LabelledRows
from fieldwise.data.prepare.prepared import group_codes
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.display import Table
from fieldwise.errors import BundleError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.calibration import Calibration
from fieldwise.layers import kept_rows
from fieldwise.layers.candidates import Split
from fieldwise.models import ModelSettings, parameter_count
from fieldwise.models.build import build_network, grow_network, model_to_dict
from fieldwise.ops.devices import device_of, open_device
from fieldwise.schema import Schema
from fieldwise.schema.label import Label
from fieldwise.scoring.batches import SCORING_BATCH, in_numpy, score_batches
from fieldwise.scoring.candidates import context_row, score_candidates, split_columns
from fieldwise.scoring.recommend import Catalogue, recommend
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.artifact import Artifact, writing
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

SAMPLE_ROWS = 32
SLICE_ROWS = 64 * SCORING_BATCH  # encoded at once


@dataclass(frozen=True, repr=False)
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
        weights = Hashed()
        write_weights(weights, self.network)
        hasher.update(weights.sum.digest())
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
        rows = as_table(frame)
        if rows.height <= SLICE_ROWS:
            return self.score_table(self.encoder.transform(rows))
        starts = range(0, rows.height, SLICE_ROWS)  # encoded rows of a long table may need more memory than there is
        parts = (self.encoder.transform(rows[k : k + SLICE_ROWS], first_row=k) for k in starts)
        return np.concatenate([self.score_table(part) for part in parts])

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
        split, encode = self._splits[key], self.encoder.transform
        tables = encode(row, part=split.context.layout), encode(candidates, part=split.candidates.layout)
        return in_numpy(score_candidates(self.network, split, *(one.batch(slice(0, len(one)))[0] for one in tables)))

    @cached_property
    def encoded_samples(self) -> EncodedTable:
        """`samples`, encoded: the usual background of explanations."""
        return self.encoder.transform(self.samples)

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
        return self._by_label(self._prediction, score)

    def main_prediction(self, score: np.ndarray) -> np.ndarray:
        """Predictions from the main label's scores [N]: probabilities, or numbers within its range."""
        return self._prediction(score, self.schema.label)

    def metrics(self, rows: LabelledRows, *, one_class: bool = False) -> dict[str, float]:
        """All metrics of labelled rows, of calibrated scores; `one_class` as for `Objective.metrics`."""
        y, score = rows.y.astype(np.float64), self.calibrated(self.score(rows.frame))
        group = group_codes(rows.frame, self.schema)
        return Objective.of(*self.schema.labels).metrics(y, score, group, rows.weight, one_class=one_class)

    def calibrated(self, score: np.ndarray) -> np.ndarray:
        """Scores of the same shape with each binary label's calibration applied: `predict` is their sigmoid.

        Scores of labels without a calibration are unchanged.
        """
        return self._by_label(self._calibrated, score)

    def _by_label(self, change: Callable[[np.ndarray, Label], np.ndarray], score: np.ndarray) -> np.ndarray:
        """The scores with a change of each label's."""
        if not self.schema.more_labels:
            return change(score, self.schema.label)
        columns = zip(score.T, self.schema.labels, strict=True)
        return np.stack([change(column, label) for column, label in columns], axis=1)

    def _calibrated(self, score: np.ndarray, label: Label) -> np.ndarray:
        calibration = self.calibration.get(label.name)
        return score if calibration is None else calibration.logit(score)

    def _prediction(self, score: np.ndarray, label: Label) -> np.ndarray:
        return sigmoid(self._calibrated(score, label)) if label.task == "binary" else label.predicted(score)

    def recommend(
        self,
        users: Iterable[object] | None = None,
        *,
        log: TableLike,
        catalogue: Catalogue | None = None,
        n: int = 10,
        exclude_seen: bool = True,
    ) -> Any:
        """The n best items of a log for users, all of the log's if omitted: see `fieldwise.scoring.recommend`."""
        return recommend(self, log, catalogue, users=users, n=n, exclude_seen=exclude_seen)

    def grow(self, rows: TableLike, *, seed: int = 0) -> tuple["Bundle", dict[str, int]]:
        """The bundle with the new values of some rows, and how many values each field got: see `Encoder.grow`.

        It scores other rows to the bit as before. The weights of new values are fresh: train it on rows that have them.

        Errors:
            DataError: as for `Encoder.grow`.
            ConfigError: a model of your own with tables that cannot grow (`fieldwise.layers.row_blocks`).
        """
        encoder, added = self.encoder.grow(rows)
        if encoder is self.encoder:
            return self, added
        labels = len(self.schema.labels)
        network = grow_network(self.network, self.settings, encoder.layout, seed, labels=labels)
        return dataclasses.replace(self, encoder=encoder, network=network), added

    def before_growth(self) -> "Bundle | None":
        """The bundle without the values of its encoder's last growth, on its device; None if that has not grown."""
        if not self.encoder.growths:
            return None
        encoder, tensors = self.encoder.before_growth(), self.network.state_dict()
        network = build_network(self.settings, encoder.layout, 0, labels=len(self.schema.labels)).eval()
        kept = kept_rows(network, self.network)
        network.load_state_dict({name: tensor.cpu()[kept.get(name, ...)] for name, tensor in tensors.items()})
        return dataclasses.replace(self, encoder=encoder, network=network.to(device_of(self.network)))

    def on_cpu(self) -> "Bundle":
        """The bundle with its network on the CPU: itself if it is there, else a copy."""
        return self if device_of(self.network).type == "cpu" else copy.deepcopy(self)

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle or a copy keeps: the network on the CPU, so that any machine can read it."""
        state = dict(vars(self))
        if device_of(self.network).type != "cpu":
            kept: dict[int, Any] = {id(tensor): tensor.cpu() for tensor in self.network.buffers()}
            kept |= {id(p): nn.Parameter(p.detach().cpu(), p.requires_grad) for p in self.network.parameters()}
            state["network"] = copy.deepcopy(self.network, kept)
        return state

    def __repr__(self) -> str:
        """The model's settings, those of the training that differ from the defaults, labels, fields and parameters."""
        about = self.about.get("estimator", self.about.get("recipe", {}).get("settings", {}))
        default = to_plain(TrainingSettings())
        changed = {name: value for name, value in about.get("training", {}).items() if default.get(name) != value}
        training = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        labels = ", ".join(label.name for label in self.schema.labels)
        fields = ", ".join(f.name for f in self.schema.fields)
        return (
            f"Bundle({self.settings!r}, training: {training or 'defaults'}, label: {labels}, fields: {fields}, "
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
        run = self.about.get("run", {})  # of a recipe; an estimator keeps its `result` instead
        best = self.about.get("result", {}).get("best", {}).get("metrics", {})
        for part, metrics in {"validation": run.get("valid", best), "test": run.get("test", {})}.items():
            shown = [f"{m} {metrics[m]:.4f}" for m in ("auc", "logloss", "gauc", "rmse", "mae") if m in metrics]
            rows += [[f"{part} rows", ", ".join(shown)]] if shown else []
        return Table(title="Bundle", columns=["", ""], rows=[*rows, ["digest", self.digest[:12]]])._repr_html_()

    def save(self, folder: Path | str, *, replaces: str | None = None) -> None:
        """Save the bundle, replacing an existing one atomically.

        Args:
            folder: created if it is missing.
            replaces: `bundle_digest` of the bundle that was read from there and changed, so that another process's new
                bundle is not overwritten.

        Errors:
            BundleError: the folder has files but no bundle, or the bundle `replaces` is no longer
                there.
            DataError: the disk is full or the folder is not writable.
        """
        folder = Path(folder)
        BUNDLE.check_folder(folder)
        samples = self.samples.head(SAMPLE_ROWS)
        facts = {
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "versions": versions(),
            "model": model_to_dict(self.settings),
            "sample_scores": self.score(samples).tolist(),
            "about": to_plain(self.about),
            "calibration": to_plain(self.calibration),
        }
        with writing(BUNDLE, folder, replaces=replaces) as writer:
            writer.add("schema", self.schema.to_toml().encode())
            writer.add("encoder", self.encoder.to_json().encode())
            with writer.open("weights") as file:
                write_weights(file, self.network)
            writer.add("samples", arrow_bytes(samples))
            writer.finish(**facts)

    @classmethod
    def load(cls, folder: Path | str, *, model: type | None = None, device: str = "cpu") -> "Bundle":
        """Load a bundle: check every file, and score its sample rows again.

        A bundle has its model's name but no code. Nothing is imported for your own model: register it
        (`fieldwise.register_model`) or pass it.

        Args:
            folder: folder of the bundle.
            model: the class of your own model, a network or its settings.
            device: where the network scores (`fieldwise.ops.devices.open_device`). A bundle does not keep it.

        Errors:
            ConfigError: there is no such device.
            BundleError: no bundle there, or one that is from a newer version, damaged, scores differently than when it
                was saved, or has your own model, neither registered nor passed.
        """
        read = partial(cls._read, model=model, device=open_device(device))
        return BUNDLE.load(Path(folder), read, (SafetensorError, RuntimeError, PolarsError))

    @classmethod
    def _read(cls, saved: Artifact, model: type | None, device: torch.device) -> "Bundle":
        about, content = saved.about, {part: saved.content(part) for part in BUNDLE.parts}
        schema = Schema.from_toml(content["schema"].decode())
        encoder = Encoder.from_json(content["encoder"].decode(), "the bundle's encoder")
        settings = model_settings(about["model"], saved.folder, model)
        with parameters_within(content["weights"]):
            network = build_network(settings, encoder.layout, seed=0, labels=len(schema.labels))
        tensors = load_tensors(bytes(content.pop("weights")))
        check_finite(saved.folder, tensors)
        network.load_state_dict(tensors)
        network.to(device)
        samples = pl.read_ipc(io.BytesIO(content["samples"]))
        expected = np.asarray(about["sample_scores"], dtype=np.float64)
        bundle = cls(schema, encoder, settings, network.eval(), samples, about["about"], calibrations(about))
        check_scores(saved.folder, bundle.score(samples), expected)
        return bundle


def sample_rows(schema: Schema, frame: pl.DataFrame) -> pl.DataFrame:
    """Sample rows of a table, evenly spaced, with the columns that a bundle keeps: keys and fields.

    They are also the background of explanations, so they are not just the first rows, which may be one user's.
    """
    keys = [k for k in schema.row_keys if k in frame.columns]
    some = np.unique(np.linspace(0, frame.height - 1, min(SAMPLE_ROWS, frame.height)).astype(np.int64))
    return frame.select(list(dict.fromkeys([*keys, *schema.columns])))[some]

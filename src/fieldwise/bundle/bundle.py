"""Bundles: a trained model in one folder, which is checked to score rows as when it was saved.

    bundle.json               the manifest (`fieldwise.storage.artifact`): versions, model and
    training settings,
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
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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

from fieldwise.config import nearest, parse, to_plain
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.prepare.labels import LabelledRows
from fieldwise.data.prepare.prepared import group_codes
from fieldwise.data.prepare.row_fingerprints import RowFingerprints, TrainTestOverlap
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.data.table import EncodedTable
from fieldwise.display import Table
from fieldwise.errors import BundleError, ConfigError
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.calibration import Calibration, Isotonic, Platt
from fieldwise.layers import FieldEmbedding, kept_rows, row_blocks
from fieldwise.layers.candidates import Part, Side, Split
from fieldwise.models import MODELS, ModelSettings, parameter_count
from fieldwise.models.build import (
    MeanWithLR,
    build_network,
    grow_network,
    mean_sentence,
    model_from_dict,
    model_name,
    model_to_dict,
    network_share,
    parameters_within,
    part_of_mean,
)
from fieldwise.models.registry import known_models, settings_class
from fieldwise.ops.devices import device_of, open_device
from fieldwise.schema import Label, Schema
from fieldwise.scoring import EXCLUDE_SEEN, Seen
from fieldwise.scoring.batches import SCORING_BATCH, finite, score_batches
from fieldwise.scoring.candidates import context_row, score_candidates, split_columns
from fieldwise.scoring.recommend import Catalogue, recommend
from fieldwise.storage.arrays import arrow_bytes, tensor_chunks, write_tensors
from fieldwise.storage.artifact import Artifact, Kind, writing
from fieldwise.storage.forks import computing
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings
from fieldwise.version import __version__

SAMPLE_ROWS = 32
SLICE_ROWS = 64 * SCORING_BATCH  # encoded at once
MANIFEST = "bundle.json"
IN_MEAN = "mean_with_lr"  # in the manifest: whether the weights are of a mean with LR
TRAINED_ROWS = "train_rows"  # the sketch of training rows, among a bundle's further values
# logs have repeated rows: a share above the validation rows' share plus this means training rows
MARGIN = 0.05
# for a logit, relative above 1: other processors and thread counts sum in another order
SCORE_TOLERANCE = 1e-4
BUNDLE = Kind(
    name="bundle",
    manifest=MANIFEST,
    format=3,
    oldest=3,  # bundles before it have learned other texts of some values (docs/values.md)
    parts={"schema": "toml", "encoder": "json", "weights": "safetensors", "samples": "arrow"},
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
        about: further plain values: training settings, metrics, counts, recipe.
        calibration: calibrations of binary labels by name, which map scores to the logits of
            `predict`.
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
        return (
            score
            if len(score) or not self.schema.more_labels
            else np.zeros((0, len(self.schema.labels)))
        )

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
        one = context if isinstance(context, Mapping) else as_table(context, text_columns=texts)
        row = context_row(one, self.schema.columns)
        candidates = as_table(candidates, text_columns=texts)
        key = (
            frozenset(row.columns),
            frozenset(self.schema.columns).intersection(candidates.columns),
        )
        if key not in self._splits:
            self._splits[key] = split_columns(self.encoder, self.encoder.layout, *key)
        split = self._splits[key]

        def part(side: Side, rows: pl.DataFrame) -> Part:
            batch, _ = self.encoder.transform(rows, part=side.layout).batch(slice(0, rows.height))
            return Part(side, batch.to(device_of(self.network)))

        sides = part(split.context, row), part(split.candidates, candidates)
        return finite(score_candidates(self.network, split, *sides).cpu().double().numpy())

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
        y = rows.y.astype(np.float64)
        score = self.calibrated(self.score(rows.frame))
        group = group_codes(rows.frame, self.schema)
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
        return (
            sigmoid(self._calibrated(score, label))
            if label.task == "binary"
            else label.predicted(score)
        )

    def recommend(
        self,
        users: Iterable[object] | None = None,
        *,
        log: TableLike,
        catalogue: Catalogue | None = None,
        n: int = 10,
        exclude_seen: Seen = EXCLUDE_SEEN,
    ) -> Any:
        """The n best items of a log for users, all of the log's if omitted: see `fieldwise.scoring.recommend`."""
        return recommend(self, log, catalogue, users=users, n=n, exclude_seen=exclude_seen)

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
        """What a pickle or a copy keeps: the network on the CPU, so that any machine can read it."""
        state = dict(vars(self))
        if device_of(self.network).type != "cpu":
            kept: dict[int, Any] = {id(tensor): tensor.cpu() for tensor in self.network.buffers()}
            kept |= {
                id(p): nn.Parameter(p.detach().cpu(), p.requires_grad)
                for p in self.network.parameters()
            }
            state["network"] = copy.deepcopy(self.network, kept)
        return state

    def __repr__(self) -> str:
        """The model's settings, those of the training that differ from the defaults, labels, fields and parameters."""
        about = self.about.get("estimator", self.about.get("recipe", {}).get("settings", {}))
        default = to_plain(TrainingSettings())
        changed = {
            name: value
            for name, value in about.get("training", {}).items()
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
        run = self.about.get("run", {})  # of a recipe; an estimator keeps its `result` instead
        best = self.about.get("result", {}).get("best", {}).get("metrics", {})
        for part, metrics in {
            "validation": run.get("valid", best),
            "test": run.get("test", {}),
        }.items():
            shown = [
                f"{m} {metrics[m]:.4f}"
                for m in ("auc", "logloss", "gauc", "rmse", "mae")
                if m in metrics
            ]
            rows += [[f"{part} rows", ", ".join(shown)]] if shown else []
        return Table(
            title="Bundle", columns=["", ""], rows=[*rows, ["digest", self.digest[:12]]]
        )._repr_html_()

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
            "about": to_plain(self.about),
            "calibration": to_plain(self.calibration),
        }
        with writing(BUNDLE, folder, replaces=replaces) as writer:
            writer.add("schema", self.schema.to_toml().encode())
            writer.add("encoder", self.encoder.to_json().encode())
            with writer.open("weights") as file:
                write_tensors(file, self.network.state_dict())
            writer.add("samples", arrow_bytes(samples))
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
        content = {part: saved.content(part) for part in BUNDLE.parts}
        schema = Schema.from_toml(content["schema"].decode())
        encoder = Encoder.from_json(content["encoder"].decode(), "the bundle's encoder")
        settings = _model_settings(about["model"], folder, model)
        with parameters_within(content["weights"]):
            labels = len(schema.labels)
            in_mean = bool(about.get(IN_MEAN))
            network = build_network(
                settings, encoder.layout, seed=0, labels=labels, in_mean=in_mean
            )
        tensors = load_tensors(bytes(content.pop("weights")))
        for name, tensor in tensors.items():
            # A sum takes no memory; if it overflows, each weight is looked at.
            if not (tensor.sum().isfinite() or tensor.isfinite().all()):
                count = int((~tensor.isfinite()).sum())
                raise BUNDLE.damaged(
                    folder,
                    f"weights must be finite numbers, found {count:,} in {name} that are not",
                )
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
            about["about"],
            dict(kept.calibration),
        )
        result = bundle.score(samples)
        expected = np.asarray(about["sample_scores"], dtype=np.float64)
        if (expected.size, expected.shape[:1]) != (result.size, result.shape[:1]):
            needed = f"its {len(result)} sample rows need {result.size} scores"
            raise BUNDLE.damaged(folder, f"{needed}, saved were {expected.size}")
        # without rows, a list does not show the number of labels
        expected = expected.reshape(result.shape)
        off = np.abs(result - expected) / np.maximum(1.0, np.abs(expected))
        if not np.all(off <= SCORE_TOLERANCE):
            place = np.unravel_index(
                int(np.nanargmax(np.where(np.isnan(off), np.inf, off))), off.shape
            )
            raise BundleError(
                f"a bundle must score as when it was saved: {folder} gives {result[place]:.6g} for sample row "
                f"{place[0]}, saved was {expected[place]:.6g}; train and save it again with this version"
            )
        return bundle


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
        run = BUNDLE.open(folder).about.get("about", {}).get("run", {})
    except (BundleError, AttributeError):
        return None
    return str(run["stopped"]) if isinstance(run, dict) and "stopped" in run else None


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


def trained_rows(
    schema: Schema, train: pl.DataFrame, valid: pl.DataFrame, *, refit: bool
) -> dict[str, Any]:
    """The sketch of a bundle's training rows, as plain values; of the validation rows too after a `refit` on them.

    Rows are identified by keys, fields and time, not by labels. The share of validation rows that
    equal a training row is stored too, as an estimate for new rows.
    """
    named = dict.fromkeys(
        [*schema.row_keys, *schema.columns, *([schema.time] if schema.time else [])]
    )
    sketch = RowFingerprints.of(
        train, [name for name in named if name in train.columns and name in valid.columns]
    )
    share = sketch.overlap(valid).share
    if refit:
        parts = [part.select(sketch.columns) for part in (train, valid)]
        sketch = RowFingerprints.of(pl.concat(parts, how="vertical_relaxed"), sketch.columns)
    return {**sketch.to_plain(), "valid_share": share}


def trained_words(rows: int, seen: TrainTestOverlap) -> str:
    """A sentence that rows of a table were trained on: how many were checked and found, and what that means.

    >>> trained_words(5145, TrainTestOverlap(checked=5145, found=4096))
    '4,096 of these 5,145 rows were trained on, so the metrics say little about new rows'
    >>> trained_words(90_000, TrainTestOverlap(checked=5145, found=4096)).partition(", so")[0]
    'a random 5,145 of these 90,000 rows were checked, and 4,096 of them were trained on'
    """
    amount = "nothing" if seen.share == 1 else "little"
    if seen.checked < rows:
        checked = f"a random {seen.checked:,} of these {rows:,} rows were checked"
        result = f"{checked}, and {seen.found:,} of them were trained on"
    else:
        result = f"{seen.found:,} of these {rows:,} rows were trained on"
    return f"{result}, so the metrics say {amount} about new rows"


def rows_trained(bundle: Bundle, frame: pl.DataFrame) -> TrainTestOverlap | None:
    """The number of a table's rows that the bundle was trained on; 0 if the share is no higher than for new rows.

    Of long tables a random sample is compared. None: a table without a column that identifies rows,
    or an old bundle.
    """
    saved = bundle.about.get(TRAINED_ROWS)
    if not isinstance(saved, Mapping):
        return None
    try:
        sketch = RowFingerprints.from_plain(saved)
        usual = float(saved["valid_share"])
    except (LookupError, TypeError, ValueError):
        return None
    if not sketch.rows or any(name not in frame.columns for name in sketch.columns):
        return None
    overlap = sketch.overlap(frame)
    return overlap if overlap.share > usual + MARGIN else TrainTestOverlap(overlap.checked, 0)


SHARED = "embedding.weight"  # the table that multi-task networks share


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """The report of a warm start; from FM into AFM it is the AFM paper's pre-training (Xiao et al., 2017)."""

    source: str  # the name of the bundle's model
    # by parameter, what was copied: `all`, or `n of m rows` of an embedding table
    taken: dict[str, str]
    fresh: dict[str, str]  # by parameter, the reason why it was not copied
    # Whether the bundle's run, and the runs that it started from, had the same rows (known only for
    # recipes); otherwise it may have been trained on those of this run.
    same_test_rows: bool | None = None
    same_valid_rows: bool | None = None

    def sentence(self) -> str:
        """The report as a sentence."""
        taken = ", ".join(
            name if what == "all" else f"{name} ({what})" for name, what in self.taken.items()
        )
        return f"warm start from {self.source}: copied {taken}; not copied: {_by_reason(self.fresh) or 'nothing'}"

    def caution(self) -> str | None:
        """A warning about rows that the bundle may have been trained on; None if it held them out."""
        same_rows = {"test": self.same_test_rows, "validation": self.same_valid_rows}
        unkept = " and ".join(name for name, same in same_rows.items() if not same)
        if not unkept:
            return None
        return (
            f"warning: the bundle of the warm start did not hold out this run's {unkept} rows: it may have been "
            f"trained on them, and {unkept} metrics may be too good"
            + ("" if self.same_valid_rows else ", and early stopping unreliable")
        )


def warm_start(
    network: nn.Module, encoder: Encoder, bundle: Bundle, *, labels: Sequence[Label]
) -> WarmStart:
    """Copy matching weights from a bundle's network into a network, in place.

    Embedding tables of the same width are matched row by row: for a field of the same name, the
    rows of values in both vocabularies, and its missing and unknown rows; bins by rank; a number's
    vector; all rows of hashed fields with the same number of buckets. Other rows stay fresh. Any
    other tensor is copied if name, shape, and the fields' names, roles and order match, since
    otherwise a weight would belong to another field. Other weights by value (crosses of categories,
    DAT's augmented vectors, your own tables with `row_blocks`) need equal vocabularies in equal
    rows. If either network has several labels, heads are matched by label name.

    Args:
        network: a fresh network, built for `encoder.layout`.
        encoder: fitted on the rows for training the network.
        bundle: a trained network with its own encoder.
        labels: the network's labels, the main one first.

    Errors:
        ConfigError: nothing matches; a model of your own with `by_value`
            (`fieldwise.layers.row_blocks`).
    """
    former_network = (
        bundle.network if isinstance(network, MeanWithLR) else part_of_mean(bundle.network)
    )
    state = former_network.state_dict()
    target = network.state_dict()
    names = _new_names(
        state, [label.name for label in bundle.schema.labels], [label.name for label in labels]
    )
    source = {new: state[old] for old, new in names.items()}
    tables = _tables(network)
    former = _tables(former_network)
    former_tables = {new: former[old] for old, new in names.items() if old in former}
    by_value = row_blocks(network)
    same_fields = [(f.name, f.role) for f in encoder.fields] == [
        (f.name, f.role) for f in bundle.encoder.fields
    ]
    new_rows, old_rows = _matching_rows(encoder, bundle.encoder)
    taken = dict[str, str]()
    fresh = dict[str, str]()
    for name, tensor in target.items():
        old = source.get(name)
        if old is None:
            fresh[name] = "the bundle has none"
        elif name in tables and tables[name] != former_tables.get(name):
            fresh[name] = "a field-aware table and a plain one"
        elif name in tables and tables[name] and not same_fields:
            fresh[name] = "the fields differ"
        elif name in tables and old.shape[1] == tensor.shape[1] and len(new_rows):
            tensor[new_rows] = old[old_rows]
            taken[name] = f"{len(new_rows):,} of {len(tensor):,} rows"
        elif name in tables:
            sizes = f"width {old.shape[1]} in the bundle, {tensor.shape[1]} here"
            fresh[name] = sizes if old.shape[1] != tensor.shape[1] else "no field in common"
        elif old.shape != tensor.shape:
            fresh[name] = f"shape {_shape(old)} in the bundle, {_shape(tensor)} here"
        elif not same_fields:
            fresh[name] = "the fields differ"
        elif name in by_value and encoder.fitted != bundle.encoder.fitted:
            fresh[name] = "the vocabularies differ"
        elif name in by_value and not torch.equal(new_rows, old_rows):  # of a bundle that has grown
            fresh[name] = "the rows of equal vocabularies differ"
        else:
            tensor.copy_(old)
            taken[name] = "all"
    report = WarmStart(source=model_name(bundle.settings), taken=taken, fresh=fresh)
    if not taken:
        raise _nothing_matches(report)
    return report


def _nothing_matches(report: WarmStart) -> ConfigError:
    return ConfigError(
        f"a warm start needs matching parameters, but a bundle of {report.source} has none for this model: "
        f"{_by_reason(report.fresh)}; choose another bundle, or the same sizes"
    )


def _new_names(names: Iterable[str], old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """The new names of a bundle's parameters in a network with other labels, without unmatched ones."""
    if len(old) == len(new) == 1:
        return {name: name for name in names}
    results = {}
    for name in names:
        head = ""
        label = old[0]
        if len(old) > 1 and name.startswith("heads."):
            number = name.split(".", 2)[1]
            head = f"heads.{number}."
            label = old[int(number)]
        name_below = name.removeprefix(head)
        if name_below == SHARED:
            results[name] = name_below
        elif label in new:
            results[name] = (
                name_below if len(new) == 1 else f"heads.{new.index(label)}.{name_below}"
            )
    return results


def _tables(network: nn.Module) -> dict[str, bool]:
    """The network's embedding tables by parameter name, and whether each is field-aware."""
    modules = network.named_modules()
    return {
        f"{name}.weight": module.by_field
        for name, module in modules
        if isinstance(module, FieldEmbedding)
    }


def _matching_rows(new: Encoder, old: Encoder) -> tuple[Tensor, Tensor]:
    """Matching rows of the new and the old shared table, as two int64 vectors; each new row once."""
    former = {
        f.name: (at, fitted)
        for f, at, fitted in zip(old.fields, old.layout.fields, old.fitted, strict=True)
    }
    rows: list[tuple[int, int]] = []
    for f, at, fitted in zip(new.fields, new.layout.fields, new.fitted, strict=True):
        if f.name not in former or at.shares is not None:
            continue  # a field that shares rows is matched through the other field
        old_at, other = former[f.name]
        # of the field's own rows, new and old; every encoding has the missing row first
        pairs = [(0, 0)]
        if isinstance(fitted, Vocabulary) and isinstance(other, Vocabulary):
            places = {value: row for row, value in enumerate(other.values, start=2)}
            results = [
                (row, places[value])
                for row, value in enumerate(fitted.values, start=2)
                if value in places
            ]
            pairs += [(1, 1), *results]
        elif type(fitted) is type(other) and fitted.rows == other.rows:
            pairs = [(row, row) for row in range(fitted.rows)]
        rows += [(at.row(a), old_at.row(b)) for a, b in pairs]
    both = torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _by_reason(fresh: dict[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, why in fresh.items():
        reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"

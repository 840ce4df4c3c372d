"""The scikit-learn estimator."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.utils import ClassifierTags, RegressorTags, Tags

from fieldwise.bundle.bundle import Bundle, sample_rows
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.prepare.labels import LabelledRows
from fieldwise.data.prepare.parts import check_columns
from fieldwise.data.prepare.prepared import Part, encode_parts
from fieldwise.data.prepare.repeats import repeat_sentences
from fieldwise.data.prepare.settings import NegativeSampling, PreparationSettings
from fieldwise.data.prepare.splits import hold_out
from fieldwise.data.read.tables import TableLike
from fieldwise.estimator.facts import fit_facts
from fieldwise.estimator.fitted import FittedEstimator, all_binary, is_binary
from fieldwise.estimator.params import (
    changed_params,
    check_params,
    label_column,
    labelled,
    nested_params,
    on_device,
    params_from_plain,
)
from fieldwise.estimator.resuming import from_checkpoint
from fieldwise.estimator.tables import array_columns, estimator_table, infer_from
from fieldwise.models import AutoIntPlus, ModelSettings
from fieldwise.models.own import as_settings
from fieldwise.runs.defaults import limit_reached
from fieldwise.runs.fit_parts import FitInputs, Fitted, fit_with_refit
from fieldwise.runs.fit_settings import FitSettings
from fieldwise.schema import Schema
from fieldwise.training.callbacks import Callback
from fieldwise.training.progress import progress_for
from fieldwise.training.result import result_from_plain
from fieldwise.training.settings import TrainingSettings

__all__ = ["Recommender"]

_MODEL = AutoIntPlus()
_TRAINING = TrainingSettings()


@dataclass(eq=False, repr=False)
class Recommender(FittedEstimator):
    """A recommender with scikit-learn's interface: a classifier or, for a regression label, a regressor.

    With several labels (multi-task) outputs have a column per label, the main label's first, as in scikit-learn's
    multi-output estimators. The main label makes it a classifier or a regressor; `score` and `recommend` use it.

    Tables are polars, pandas or pyarrow frames, dicts of lists, lists of dicts, or paths of files; columns that are not
    in the schema are ignored. An array [N, K] is a table with the columns x0, x1 and so on.

    `clone`, `get_params`, `set_params`, pipelines, cross-validation and searches work, down to single settings:
    `model__embedding_dim`, `training__epochs`.

    `fit` holds out validation rows for early stopping; nothing else is fitted on them. There is no test part: keep the
    test rows out of `fit`, and pass them to `evaluate` or `score`.

    Args:
        schema: the schema of the columns. If omitted, `fit` infers it from the table's names and contents
            (`fieldwise.infer_schema`; every column of a numeric array is a numeric field), for a binary label; check
            the result in `schema_`.
        model: settings of a model, any of `fieldwise.models.MODELS` or of your own (a dataclass with `build(layout)`),
            or a class: a `torch.nn.Module` of your own whose constructor takes the layout; or a name, such as `fm`, for
            a model's default settings; AutoInt+ if omitted, as in `fieldwise init`.
        training: settings of the training run. Settings that are not given, here or in `model`, are chosen from the
            rows (`fieldwise.runs.defaults`); see `bundle_.settings` and `bundle_.about["defaults"]`.
        valid_share: share of the rows that `fit` holds out, within (0, 1); ignored if `fit` gets `valid`.
        valid_by: `random` samples them (a binary label keeps its rate), `time` takes the latest by the schema's time
            column, since most recommenders score future rows.
        negatives: for implicit logs, settings for sampling negatives for training and validation rows (its `parts`).
        warm_start: folder of a bundle whose weights initialise the network, as far as they fit by name
            (`fieldwise.bundle.warm_start`); see `bundle_.about["warm_start"]`. The bundle must not have been trained on
            rows that this model is evaluated on. Fresh weights if omitted or False. (In scikit-learn's own estimators
            this name means continuing from the last fit.)
        checkpoint: an empty or new folder for checkpoints, from which the same `fit` resumes after a kill.
        seed: seed of validation rows, negatives, initial weights, row order and dropout.
        device: where `fit` trains and the fitted network computes, such as `cuda` or `auto`; `training.device` if
            omitted.
        verbose: show progress, in a notebook cell or on standard error, and the schema if it is inferred.

    Attributes:
        schema_: the schema that `fit` used.
        inference_: the reasons for the inferred schema; only if `schema` was omitted.
        bundle_: after `fit`, the fitted network with everything for scoring and saving.
        result_: the result of training: epochs, the best evaluation, the history; missing for a recipe's loaded bundle.
        classes_: 0 and 1, by the label's rule; a list of them with several labels (binary labels only).
        feature_names_in_: the columns that the fields read; missing for an array.
        n_features_in_: their number.

    >>> from fieldwise import AFM, Categorical, Label, simulate
    >>> log = simulate(2000, users=50, items=30)
    >>> schema = Schema(fields=(Categorical("user_id"), Categorical("item_id")), label=Label("liked"))
    >>> recommender = Recommender(schema, AFM(embedding_dim=4), training=TrainingSettings(epochs=2))
    >>> recommender.fit(log[:1500]).predict_proba(log[1500:]).shape
    (500, 2)
    """

    schema: Schema | None = None
    model: ModelSettings | type | str = _MODEL
    _: KW_ONLY
    training: TrainingSettings = _TRAINING
    valid_share: float = 0.1
    valid_by: Literal["random", "time"] = "random"
    negatives: NegativeSampling | None = None
    warm_start: str | Path | Literal[False] | None = None
    checkpoint: str | Path | None = None
    seed: int = 0
    device: str | None = None
    verbose: bool = False

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters by name; if `deep`, with nested settings such as `model__embedding_dim`."""
        params = {name: getattr(self, name) for name in self._get_param_names()}
        return nested_params(params) if deep else params

    def set_params(self, **params: Any) -> "Recommender":
        """Change parameters or nested settings; if one is wrong, nothing is changed.

        Errors:
            ConfigError: an unknown name (the nearest is named), a value of the wrong type or out of range.
        """
        for name, value in changed_params(self.get_params(deep=False), params).items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        X: TableLike,
        y: Any = None,
        sample_weight: Any = None,
        *,
        valid: TableLike | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> "Recommender":
        """Fit the encoder and the network.

        Ctrl-C ends training early: the estimator is then fitted with the best weights so far, and KeyboardInterrupt is
        raised again, so that a search or a script stops.

        Args:
            X: a table; it needs the label's column only if `y` is omitted.
            y: raw labels [N], to which the schema's rule is applied as to the label's column. Give 0 and 1 (and no
                rule) if scikit-learn's own scorers compare them with predictions. With several labels a table with
                their columns.
            sample_weight: row weights of X, at least 0, [N], for the mean loss (as if the row were repeated) and the
                metrics of held-out rows. Vocabularies, scalers and auxiliary losses (IntTower's contrastive loss) do
                not use them. Equal if omitted.
            valid: a table with the label's column for early stopping, instead of rows held out of X; its rows have
                equal weights.
            callbacks: called at the start, after every step and evaluation, and at the end (`fieldwise.Callback`,
                `fieldwise.training.trackers`).

        Errors:
            SchemaError, DataError, ConfigError: the table, the schema and the settings do not fit together.
            TrainingError: the loss is not finite.
        """
        check_params(self.get_params(deep=False))
        schema = self._inferred(X, y) if self.schema is None else self.schema
        rows = labelled(X, y, schema, sample_weight)
        if self.schema is None and rows.dropped:
            warnings.warn(
                f"{rows.dropped:,} rows dropped by the inferred label rule (schema_.label): give a schema to change it",
                stacklevel=2,
            )
        check_columns(rows.frame.columns, schema)
        parts = (
            self._hold_out(rows, schema) if valid is None else {"train": rows, "valid": labelled(valid, None, schema)}
        )
        add = PreparationSettings(negatives=self.negatives)
        encoded = encode_parts(parts, schema, seed=self.seed, add=add)
        for sentence in repeat_sentences(encoded.counts):
            if schema.time is not None:  # without times, equal rows may be different events
                warnings.warn(sentence, stacklevel=2)
            elif self.verbose:
                print(sentence, file=sys.stderr)
        train, held_out = encoded.parts["train"], encoded.parts["valid"]
        fitted = self._trained(schema, encoded.encoder, train, held_out, callbacks)
        settings, samples = fitted.settings, sample_rows(schema, held_out.frame)
        about = fit_facts(self.get_params(deep=False), fitted, encoded, schema, rows.dropped)
        self._set_fitted(Bundle(settings.schema, fitted.encoder, settings.model, fitted.network, samples, about))
        self.result_ = fitted.result
        if fitted.result.stopped == "interrupted":
            raise KeyboardInterrupt
        return self

    def _trained(
        self, schema: Schema, encoder: Encoder, train: Part, valid: Part, callbacks: Sequence[Callback]
    ) -> Fitted:
        settings = FitSettings(
            schema=schema,
            model=as_settings(self.model),
            training=on_device(self.training, self.device),
            seed=self.seed,
            start=Bundle.load(Path(self.warm_start)) if self.warm_start else None,
        )
        progress = progress_for(type(settings.model).__name__, quiet=not self.verbose)
        inputs = FitInputs(encoder=encoder, train=train, valid=valid, callbacks=(progress, *callbacks))
        if self.checkpoint is None:
            fitted = fit_with_refit(settings, inputs)
        else:
            fitted = from_checkpoint(Path(self.checkpoint), settings, inputs, verbose=self.verbose)
        if check := limit_reached(fitted.chosen, fitted.result):
            warnings.warn(check, stacklevel=3)
        return fitted

    def save(self, folder: str | Path) -> None:
        """Save `bundle_` and this estimator's parameters to a folder (see `fieldwise.bundle.bundle`)."""
        self._fitted().save(Path(folder))

    @classmethod
    def load(cls, folder: str | Path, *, model: type | None = None, device: str = "cpu") -> "Recommender":
        """A fitted estimator from a bundle written by `save` or by training a recipe.

        All parameters but `device` and `verbose` are restored. For a recipe's bundle, `valid_share` and `valid_by` are
        not: its split has no equivalent here. Nor have its histories: a table for `fit` must have their column.

        Args:
            folder: folder of the bundle.
            model: the class of your own model, if it is not registered: see `Bundle.load`.
            device: where its network computes.

        Errors:
            BundleError: no bundle there, or one that is from a newer version, damaged, scores differently than when it
                was saved, or has an unknown model.
            ConfigError: there is no such device.
        """
        bundle = Bundle.load(Path(folder), model=model, device=device)
        about = bundle.about
        recipe = about.get("recipe", {}).get("settings", {})
        shared = ("training", "negatives", "warm_start", "seed")
        saved = about.get("estimator", {k: recipe[k] for k in shared if k in recipe})
        loaded = cls(bundle.schema, bundle.settings, **params_from_plain(saved, f"the bundle {folder}: its estimator"))
        loaded._set_fitted(bundle)
        if "result" in about:
            loaded.result_ = result_from_plain(about["result"])
        return loaded

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if is_binary(self):
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags(multi_class=False)
        else:
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        tags.target_tags.required = False  # the label may be a column of X
        tags.target_tags.multi_output = self.schema is not None and bool(self.schema.more_labels)
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As scikit-learn has it; once fitted, with the settings that were used, also those chosen from the data."""
        return super().__repr__(N_CHAR_MAX) if not hasattr(self, "bundle_") else f"Recommender({self.bundle_!r})"

    def _set_fitted(self, bundle: Bundle) -> None:
        self.bundle_, self.schema_ = bundle, bundle.schema
        columns = list(bundle.schema.columns)
        self.n_features_in_ = len(columns)
        if columns != array_columns(len(columns)):
            self.feature_names_in_ = np.array(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if all_binary(self):
            classes = [np.array([0, 1]) for _ in bundle.schema.labels]
            self.classes_ = classes if bundle.schema.more_labels else classes[0]

    def _inferred(self, X: Any, y: Any) -> Schema:
        frame = estimator_table(X)
        name = getattr(y, "name", None)
        name = name if isinstance(name, str) and name and name not in frame.columns else "y"
        column = None if y is None else label_column(y, name, frame.height)
        found = infer_from(X, frame, column)
        for doubt in found.doubts.values():
            warnings.warn(f"the schema was inferred, and {doubt}", stacklevel=3)
        if self.verbose:
            print(found.to_toml(), file=sys.stderr)
        check_params({**self.get_params(deep=False), "schema": found.schema})
        self.inference_ = found
        return found.schema

    def _hold_out(self, rows: LabelledRows, schema: Schema) -> dict[str, LabelledRows]:
        y = rows.main if schema.label.task == "binary" else None
        time = schema.time if self.valid_by == "time" else None
        form = None if time is None else schema.time_format
        stay, held = hold_out(rows.frame, self.valid_share, seed=self.seed, y=y, time=time, time_format=form)
        return {"train": rows.take(stay), "valid": rows.take(held)}

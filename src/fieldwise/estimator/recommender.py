"""The scikit-learn estimator."""

import dataclasses
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score, roc_curve
from sklearn.utils import ClassifierTags, RegressorTags, Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fieldwise.bundle.about import About
from fieldwise.bundle.bundle import Bundle, sample_rows
from fieldwise.bundle.trained_rows import rows_trained, trained_rows, trained_words
from fieldwise.bundle.unknown_ids import unknown_id_doubts
from fieldwise.charts import Chart
from fieldwise.config import changed, check_choice, check_seed, nearest, parse, to_plain
from fieldwise.data.encode.encoder import Encoder, missing_marks
from fieldwise.data.encode.numbers import marks_sentences
from fieldwise.data.prepare.labels import LabelledRows
from fieldwise.data.prepare.preparation import Preparation, check_columns
from fieldwise.data.prepare.prepared import SplitPart
from fieldwise.data.prepare.repeated_rows import repeat_sentences
from fieldwise.data.prepare.settings import NegativeSampling, RandomSplit
from fieldwise.data.prepare.splits import hold_out
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.estimator.inferred_schema import inferred_schema, with_label_rule
from fieldwise.estimator.tables import (
    array_columns,
    estimator_table,
    evaluation_rows,
    is_array,
    labelled,
)
from fieldwise.evaluation import auc, sigmoid
from fieldwise.evaluation.calibration import reliability
from fieldwise.evaluation.classes import LabelClasses, classes_of
from fieldwise.evaluation.ranking import roc_chart
from fieldwise.explain.explanation import Explanation, explain
from fieldwise.explain.subject import Method
from fieldwise.models import ModelSettings
from fieldwise.models.registry import as_settings
from fieldwise.ops.devices import open_device
from fieldwise.runs.data_settings import IN_MEMORY, DataSettings
from fieldwise.runs.default_settings import limit_reached
from fieldwise.runs.pipeline import TrainingResult, fit_again, fit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Label, Schema
from fieldwise.scoring import EXCLUDE_SEEN, Seen
from fieldwise.scoring.recommend import IdColumns, recommend
from fieldwise.storage.scratch import NO_LIMIT
from fieldwise.training.callbacks import Callback
from fieldwise.training.checkpoint import CheckpointFolder
from fieldwise.training.history import History
from fieldwise.training.progress import progress_for
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.tree_run import tree_cautions


def _saved_classes(bundle: Bundle, folder: str | Path) -> list[LabelClasses]:
    """The classes that a bundle keeps; 0 and 1 if an earlier version wrote it for a recipe."""
    count = len(bundle.schema.labels)
    saved = bundle.about.classes
    if saved is None:
        saved = ({},) * count
    if len(saved) != count:
        raise BundleError(
            f"the bundle {folder}: its classes must be a list with one entry for each of {count} labels"
        )
    where = f"the bundle {folder}: its classes"
    return [parse(LabelClasses, plain, where, BundleError) for plain in saved]


Plot = Literal["training", "roc", "calibration"]
_MODEL = as_settings("autoint+")
_TRAINING = TrainingSettings()
# The parameters that a bundle's manifest keeps; schema and model are saved separately, the others
# not at all.
SAVED = ("training", "valid_share", "valid_by", "negatives", "warm_start", "seed")
NESTED = ("model", "training", "negatives")


def _all_binary(estimator: "Recommender") -> bool:
    """Whether every label is binary."""
    return all(label.task == "binary" for label in estimator._labels or ())


@dataclass(eq=False, repr=False)
class Recommender(BaseEstimator):  # type: ignore[misc]
    """A recommender with scikit-learn's interface: a classifier or, for a regression label, a regressor.

    With several labels (multi-task) outputs have a column per label, the main label's first, as in
    scikit-learn's multi-output estimators. The main label makes it a classifier or a regressor;
    `score` and `recommend` use it.

    Tables are polars, pandas or pyarrow frames, dicts of lists, lists of dicts, or paths of files;
    columns that are not in the schema are ignored. An array [N, K] is a table with the columns x0,
    x1 and so on.

    `clone`, `get_params`, `set_params`, pipelines, cross-validation and searches work, down to
    single settings: `model__embedding_dim`, `training__epochs`.

    `fit` holds out validation rows for early stopping; nothing else is fitted on them. There is no
    test part: keep the test rows out of `fit`, and pass them to `evaluate` or `score`.

    Args:
        schema: the schema of the columns; `fit` infers it if omitted, for a binary label
            (`fieldwise.infer_schema`).
        model: settings of a model (a dataclass with `build(layout)`), its name, or your
            `torch.nn.Module` class.
        training: settings of the training run; those not given are chosen from the rows, see
            `bundle_.settings`.
        valid_share: share of the rows that `fit` holds out, within (0, 1); ignored if `fit` gets
            `eval_set`.
        valid_by: `random` samples them (a binary label keeps its rate), `time` takes the latest by
            the schema's time.
        negatives: settings for sampling negatives for training and validation rows of an implicit
            log.
        warm_start: folder of a bundle with initial weights, as `warm_start` of a recipe; fresh ones
            if False.
        checkpoint: an empty or new folder for checkpoints, from which the same `fit` resumes after
            a kill.
        seed: seed of validation rows, negatives, initial weights, row order and dropout.
        device: where `fit` trains and the fitted network computes, as `cuda`; `training.device` if
            omitted.
        verbose: show progress, in a notebook cell or on standard error, and the schema if it is
            inferred.

    Attributes:
        schema_: the schema that `fit` used.
        inference_: the reasons for the inferred schema; only if `schema` was omitted.
        bundle_: after `fit`, the fitted network with everything for scoring and saving.
        history_: the training's evaluations, the best one, what ended it; missing for a recipe's
            loaded bundle.
        classes_: the label's two values, ascending, or 0 and 1 where its rule puts several values
            into one class (ratings, several `positive_values`); a list of them with several labels
            (binary labels only).
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
        for name in NESTED if deep else ():
            settings = params[name]
            if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
                params |= {f"{name}__{f.name}": getattr(settings, f.name) for f in fields(settings)}
        return params

    def set_params(self, **params: Any) -> "Recommender":
        """Change parameters, then nested settings, all of a dataclass together; if one is wrong, nothing is changed.

        Errors:
            ConfigError: an unknown name (the nearest is named), a value of the wrong type or out of
                range.
        """
        changes = self.get_params(deep=False)
        settings: dict[str, dict[str, Any]] = {}
        for key, value in params.items():
            name, nested, setting = key.partition("__")
            if name not in changes or (nested and name not in NESTED):
                raise ConfigError(
                    f"a Recommender has no parameter {key!r}: {nearest(key, self.get_params())}"
                )
            # Searches pass NumPy numbers; settings hold Python's.
            plain = value.item() if isinstance(value, np.generic) else value
            if nested:
                settings.setdefault(name, {})[setting] = plain
            else:
                changes[name] = plain

        for name, values in settings.items():
            current = changes[name]
            if name == "model" and isinstance(current, str):
                current = as_settings(current)
            if not dataclasses.is_dataclass(current) or isinstance(current, type):
                raise ConfigError(
                    f"{name}__{next(iter(values))} needs settings to change, but {name} is "
                    f"{current!r}: set {name} first"
                )
            changes[name] = changed(current, values, name)

        for name, value in changes.items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        X: TableLike,
        y: Any = None,
        sample_weight: Any = None,
        *,
        eval_set: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> "Recommender":
        """Fit the encoder and the network.

        Ctrl-C ends training early: the estimator is then fitted with the best weights so far, and
        KeyboardInterrupt is raised again, so that a search or a script stops.

        Args:
            X: a table; it needs the label's column only if `y` is omitted.
            y: raw labels [N], or a table of several. If X has the label's column too, both must
                agree.
            sample_weight: row weights of X, at least 0, [N], for the mean loss (as if the row were
                repeated) and the metrics of held-out rows; vocabularies, scalers and auxiliary
                losses do not use them.
            eval_set: rows for early stopping, instead of rows held out of X: a table with the
                label's column, or as in other libraries (X, y) or (X, y, sample_weight), also as
                the one element of a list.
            callbacks: called at the start, after every step and evaluation, and at the end
                (`fieldwise.Callback`).

        Errors:
            SchemaError, DataError, ConfigError: the table, the schema and the settings do not fit
                together.
            TrainingError: the loss is not finite.
        """
        self._check_params()
        if self.schema is None:
            schema = self._inferred(X, y)
        else:
            X = estimator_table(X, self.schema)
            schema = with_label_rule(self.schema, X, y)
        rows = self._labelled(X, y, schema, sample_weight)
        if eval_set is None:
            parts = self._held_out(rows, schema)
        else:
            parts = {"train": rows, "valid": evaluation_rows(eval_set, schema)}

        preparation = Preparation(
            schema=schema, split=RandomSplit(), seed=int(self.seed), negatives=self.negatives
        )
        complete, derived_counts = preparation.derived(parts, budget=NO_LIMIT)
        encoder, encoded, _ = preparation.encode(complete)
        counts = {"dropped_by_label": rows.dropped, **derived_counts}
        self._report_rows(rows, schema, counts)

        trained = self._trained(schema, encoder, encoded["train"], encoded["valid"], callbacks)
        samples = sample_rows(schema, encoded["valid"].frame)
        classes = classes_of(rows.frame, rows.y, schema)
        about = self._about(trained, encoded, counts, classes)
        self._set_fitted(dataclasses.replace(trained.bundle, samples=samples, about=about), classes)
        self.history_ = trained.history
        if trained.history.stopped == "interrupted":
            raise KeyboardInterrupt
        return self

    def _labelled(self, X: TableLike, y: Any, schema: Schema, sample_weight: Any) -> LabelledRows:
        """The rows to fit on, with their labels, checked; rows that an inferred rule drops are a warning."""
        if self.valid_by == "time" and schema.time is None:
            raise ConfigError("valid_by = 'time' needs the schema's time column, which is not set")
        rows = labelled(X, y, schema, sample_weight)
        if self.schema is None and rows.dropped:
            rule = "the inferred label rule (schema_.label): give a schema to change it"
            warnings.warn(f"{rows.dropped:,} rows dropped by {rule}", stacklevel=3)
        check_columns(rows.frame.columns, schema)
        return rows

    def _report_rows(self, rows: LabelledRows, schema: Schema, counts: Mapping[str, int]) -> None:
        """Say which marks of missing values the rows have; repeated events are a warning."""
        for sentence in marks_sentences(missing_marks(rows.frame, schema, budget=NO_LIMIT)):
            self._say(sentence)
        for sentence in repeat_sentences(counts):
            if schema.time is not None:  # without times, equal rows may be different events
                warnings.warn(sentence, stacklevel=3)
            else:
                self._say(sentence)

    def _held_out(self, rows: LabelledRows, schema: Schema) -> dict[str, LabelledRows]:
        """Training rows, and those held out of them for early stopping: the latest, or drawn at random."""
        by_time = self.valid_by == "time"
        train_rows, valid_rows = hold_out(
            rows.frame,
            self.valid_share,
            seed=int(self.seed),
            y=rows.main if schema.label.task == "binary" else None,
            time=schema.time if by_time else None,
            time_format=schema.time_format if by_time else None,
            missing=schema.missing,
        )
        return {"train": rows.take(train_rows), "valid": rows.take(valid_rows)}

    def _trained(
        self,
        schema: Schema,
        encoder: Encoder,
        train: SplitPart,
        valid: SplitPart,
        callbacks: Sequence[Callback],
    ) -> TrainingResult:
        """The trained network; given a folder, with checkpoints there, which stay after Ctrl-C."""
        training = self.training
        if self.device is not None:
            training = changed(training, {"device": self.device}, "training")
        recipe = Recipe(
            name="Recommender",
            data=DataSettings(path=IN_MEMORY),
            schema=schema,
            model=as_settings(self.model),
            training=training,
            warm_start=str(self.warm_start) if self.warm_start else None,
            seed=int(self.seed),
        )
        for sentence in tree_cautions(recipe.model, recipe.training, encoder.layout):
            warnings.warn(sentence, stacklevel=3)
        progress = progress_for(type(recipe.model).__name__, quiet=not self.verbose)
        callbacks = (progress, *callbacks)
        checkpoints = None
        if self.checkpoint is not None:
            checkpoints = CheckpointFolder(folder=Path(self.checkpoint), note=self._say)

        with nullcontext() if checkpoints is None else checkpoints.claimed():
            trained = fit_recipe(recipe, encoder, train, valid, callbacks, checkpoints)
            if trained.recipe.training.refit:
                trained = fit_again(trained, train, valid, callbacks, checkpoints)
            if checkpoints is not None and trained.history.stopped != "interrupted":
                checkpoints.remove()

        if trained.bundle.mean_sentence is not None:
            self._say(trained.bundle.mean_sentence)
        too_short = limit_reached(trained.chosen, trained.history)
        if too_short:
            warnings.warn(too_short, stacklevel=3)
        return trained

    def _about(
        self,
        trained: TrainingResult,
        parts: Mapping[str, SplitPart],
        counts: Mapping[str, int],
        classes: Sequence[LabelClasses],
    ) -> About:
        """What the bundle says about its training."""
        parameters = {name: getattr(self, name) for name in SAVED}
        parameters["training"] = trained.recipe.training
        parameters["warm_start"] = trained.recipe.warm_start
        parameters["seed"] = int(self.seed)

        train = parts["train"].frame
        valid = parts["valid"].frame
        refit = trained.refit is not None
        given = {name: value for name, value in parameters.items() if value is not None}
        return About(
            estimator=to_plain(given),
            defaults=tuple(to_plain(trained.chosen)),
            result=to_plain(trained.history.to_plain()),
            counts=counts,
            classes=tuple(to_plain(classes)),
            train_rows=trained_rows(trained.recipe.schema, train, valid, refit=refit),
            refit=trained.facts().get("refit"),
            warm_start=to_plain(trained.warm_start),
        )

    def _say(self, sentence: str) -> None:
        if self.verbose:
            print(sentence, file=sys.stderr)

    def predict(self, X: TableLike) -> np.ndarray:
        """Classes [N], the positive one from a probability of .5; for a regression numbers within the label's range.

        With several labels [N, T], each by its own task; Python objects (dtype `object`) where some
        are text and others numbers.
        """
        predicted = self._fitted().predict(self._checked_rows(X))
        columns = []
        for number, label in enumerate(self.bundle_.schema.labels):
            column = predicted if predicted.ndim == 1 else predicted[:, number]
            if label.task == "binary":
                column = self._classes[number].predicted(column >= 0.5)
            columns.append(column)
        if len(columns) == 1:
            return columns[0]
        are_text = {column.dtype.kind == "U" for column in columns}
        if len(are_text) > 1:
            columns = [column.astype(object) for column in columns]
        return np.stack(columns, axis=1)

    @available_if(_all_binary)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: TableLike) -> np.ndarray | list[np.ndarray]:
        """Probabilities [N, 2], a column per class of `classes_`; with several labels a list of them.

        Binary labels only. The second column is the positive class's, unless its value sorts first
        (see `classes_`).
        """
        bundle = self._fitted()
        logit = bundle.calibrated(bundle.score(self._checked_rows(X)))
        if not bundle.schema.more_labels:
            return self._classes[0].probabilities(logit)
        return [
            classes.probabilities(label_logit)
            for classes, label_logit in zip(self._classes, logit.T, strict=True)
        ]

    @available_if(_all_binary)  # type: ignore[untyped-decorator]
    def decision_function(self, X: TableLike) -> np.ndarray:
        """Logits of the second class of `classes_` [N], or [N, T] with several labels; binary labels only."""
        logit = self._fitted().score(self._table(X))
        if logit.ndim == 1:
            return self._classes[0].logit_of_last(logit)
        columns = [
            classes.logit_of_last(label_logit)
            for classes, label_logit in zip(self._classes, logit.T, strict=True)
        ]
        return np.stack(columns, axis=1)

    def score_candidates(
        self, context: Mapping[str, Any] | TableLike, candidates: TableLike
    ) -> np.ndarray:
        """Scores of one context (a mapping or a row) with candidates [N], or [N, T]: see `Bundle.score_candidates`."""
        return self._fitted().score_candidates(context, candidates)

    def evaluate(self, X: TableLike, y: Any = None, sample_weight: Any = None) -> dict[str, float]:
        """All metrics of the label's task over the rows of X, without those that the label's rule drops.

        With several labels, the main one's by name and the others' as `NAME.metric`. Warns if the
        label's rule dropped rows, if rows of X were used in training, or if most ids of users or
        items are unknown to the model. The arguments are as in `fit`; group AUC needs the group's
        column.
        """
        bundle = self._fitted()
        rows = labelled(self._table(X), y, bundle.schema, sample_weight)
        if rows.dropped:
            warnings.warn(f"{rows.dropped:,} rows dropped by the label's rule", stacklevel=2)
        seen = rows_trained(bundle, rows.frame)
        if seen is not None and seen.found:
            instead = "evaluate on rows that were not passed to `fit`"
            warnings.warn(f"{trained_words(len(rows.frame), seen)}; {instead}", stacklevel=2)
        for doubt in unknown_id_doubts(bundle, rows.frame):
            warnings.warn(f"CHECK: {doubt}", stacklevel=2)
        return bundle.metrics(rows)

    def score(self, X: TableLike, y: Any = None, sample_weight: Any = None) -> float:
        """The score that searches maximize: AUC for a binary label, R² for a regression label, of the main label.

        This differs from scikit-learn's classifiers, which return accuracy: that says little about
        a ranking.
        """
        bundle = self._fitted()
        rows = labelled(self._table(X), y, bundle.schema, sample_weight)
        if bundle.schema.label.task == "binary":
            return bundle.metrics(rows)["auc"]
        predicted = bundle.predict(rows.frame)
        main = predicted if predicted.ndim == 1 else predicted[:, 0]
        return float(r2_score(rows.main, main, sample_weight=rows.weight))

    def explain(
        self,
        X: TableLike,
        *,
        background: TableLike | None = None,
        method: Method | None = None,
        label: str | None = None,
        seed: int = 0,
    ) -> Explanation:
        """Explain the scores of the rows of X, compared with validation rows: see `fieldwise.explain.explain`."""
        return explain(
            self._fitted(),
            self._table(X),
            background=background,
            method=method,
            label=label,
            seed=seed,
        )

    def recommend(
        self,
        log: TableLike | None = None,
        columns: IdColumns | None = None,
        user: object = None,
        *,
        users: Iterable[object] | None = None,
        n: int = 10,
        exclude_seen: Seen = EXCLUDE_SEEN,
        limits: Mapping[str, int] = MappingProxyType({}),
        pinned: Mapping[int, Any] = MappingProxyType({}),
    ) -> Any:
        """The n best items of a log for one, several or all of its users: see `fieldwise.scoring.recommend`."""
        return recommend(
            self._fitted(),
            log,
            columns,
            user,
            users=users,
            n=n,
            exclude_seen=exclude_seen,
            limits=limits,
            pinned=pinned,
        )

    def plot(self, kind: Plot = "training", X: TableLike | None = None, y: Any = None) -> Chart:
        """A chart, which a notebook shows and `save` writes as an SVG file.

        Args:
            kind: `training`: learning curves; `roc`, `calibration`: for a binary main label, on the
                rows of X.
            X: a table, as in `evaluate`.
            y: raw labels, as in `fit`.

        Errors:
            ConfigError: an unknown kind, no rows, a regression, or a loaded bundle without learning
                curves.
        """
        bundle = self._fitted()
        check_choice("kind", kind, get_args(Plot))
        if kind == "training":
            if not hasattr(self, "history_"):
                raise ConfigError(
                    "learning curves are recorded by fit, but this bundle has none: plot a fitted Recommender"
                )
            return self.history_.plot()
        if X is None or bundle.schema.label.task != "binary":
            result = "none" if X is None else "a regression"
            raise ConfigError(
                f"a {kind} plot needs labelled rows of a binary label, found {result}: give X"
            )
        rows = labelled(self._table(X), y, bundle.schema)
        score = bundle.calibrated(bundle.score(rows.frame)).reshape(len(rows.y), -1)[:, 0]
        weight = bundle.schema.label.log_weights(rows.main, rows.weight)
        if kind == "calibration":
            return reliability(rows.main, sigmoid(score), weight=weight).plot()
        area = auc(rows.main, score, weight=weight)  # an error names what is wrong with the rows
        false, true, _ = roc_curve(rows.main, score, sample_weight=weight)
        return roc_chart({f"AUC {area:.4f}": (false, true)})

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Save `bundle_` and this estimator's parameters to a folder.

        Args:
            folder: created if it is missing.
            overwrite: whether a bundle that is there is replaced, atomically.

        Errors:
            ConfigError: the folder has a bundle that is not to be replaced. BundleError: it has
                files but no bundle.
            DataError: it cannot be written.
        """
        self._fitted().save(Path(folder), overwrite=overwrite)

    @classmethod
    def load(
        cls, folder: str | Path, *, model: type | None = None, device: str = "cpu"
    ) -> "Recommender":
        """A fitted estimator from a bundle written by `save` or by training a recipe.

        All parameters but `device` and `verbose` are restored. For a recipe's bundle, `valid_share`
        and `valid_by` are not: its split has no equivalent here. Nor have its histories: a table
        for `fit` must have their column.

        Args:
            folder: folder of the bundle.
            model: the class of your own model, if it is not registered: see `Bundle.load`.
            device: where its network computes.

        Errors:
            BundleError, ConfigError: as for `Bundle.load`.
        """
        bundle = Bundle.load(Path(folder), model=model, device=device)
        about = bundle.about
        parameters = about.estimator
        if parameters is None:
            settings = about.recipe_settings
            parameters = {name: settings[name] for name in SAVED if name in settings}
        loaded = parse(cls, parameters, f"the bundle {folder}: its estimator", BundleError)
        loaded.schema = bundle.schema
        loaded.model = bundle.settings
        loaded._set_fitted(bundle, _saved_classes(bundle, folder))
        if about.result is not None:
            loaded.history_ = History.from_plain(about.result, "the bundle's result")
        return loaded

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if self._labels is None or self._labels[0].task == "binary":
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_class=False)
        else:
            tags.estimator_type = "regressor"
            tags.regressor_tags = RegressorTags()
        tags.target_tags.required = False  # the label may be a column of X
        tags.target_tags.multi_output = self.schema is not None and bool(self.schema.more_labels)
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """As scikit-learn has it; once fitted, with the settings that were used, also those chosen from the data."""
        if hasattr(self, "bundle_"):
            return f"Recommender({self.bundle_!r})"
        return str(super().__repr__(N_CHAR_MAX))

    def _fitted(self) -> Bundle:
        check_is_fitted(self, "bundle_")
        return self.bundle_

    @property
    def _labels(self) -> tuple[Label, ...] | None:
        """The labels; None if the schema is still to be inferred (for a binary label)."""
        schema = getattr(self, "schema_", None) if self.schema is None else self.schema
        return None if schema is None else schema.labels

    def _table(self, X: Any) -> Any:
        """A table unchanged, or an array as a table with the columns that the model was fitted on."""
        if not is_array(X):
            return X
        frame = estimator_table(X)
        columns = set(self._fitted().schema.columns)
        mismatched = columns.symmetric_difference(frame.columns)
        was_array = columns == set(array_columns(len(columns)))
        if mismatched & columns and not was_array:
            names = ", ".join(repr(name) for name in self.bundle_.schema.columns)
            raise DataError(
                f"X must be a table with the columns that the model was fitted on: an array [N, {frame.width}] has no "
                f"names; give a table instead, such as pandas.DataFrame(X, columns=[{names}])"
            )
        if mismatched and was_array:
            raise DataError(
                f"X has {frame.width} features, but Recommender is expecting {self.n_features_in_} features as input: "
                f"{', '.join(self.bundle_.schema.columns)}"
            )
        return frame

    def _checked_rows(self, X: Any) -> pl.DataFrame:
        """The rows to predict for; warns if most ids of users or items are unknown to the model."""
        bundle = self._fitted()
        frame = as_table(self._table(X), text_columns=bundle.schema.text_columns)
        for doubt in unknown_id_doubts(bundle, frame):
            warnings.warn(f"CHECK: {doubt}", stacklevel=3)
        return frame

    def _set_fitted(self, bundle: Bundle, classes: Sequence[LabelClasses]) -> None:
        self.bundle_ = bundle
        self.schema_ = bundle.schema
        self._classes = classes
        columns = list(bundle.schema.columns)
        self.n_features_in_ = len(columns)
        if columns != array_columns(len(columns)):
            self.feature_names_in_ = np.array(columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        if _all_binary(self):
            values = [label_classes.values for label_classes in classes]
            self.classes_ = values if bundle.schema.more_labels else values[0]

    def _inferred(self, X: Any, y: Any) -> Schema:
        """The inferred schema; its doubts are warnings."""
        inference = inferred_schema(X, y)
        for doubt in inference.grouped_doubts().values():
            warnings.warn(f"the schema was inferred, and {doubt}", stacklevel=3)
        self._say(inference.to_toml())
        self.inference_ = inference
        return inference.schema

    def _check_params(self) -> None:
        """Check the parameters in `fit`, since by scikit-learn's conventions constructors do not."""
        warm_start = self.warm_start
        checkpoint = self.checkpoint
        rules = {
            "schema": (
                isinstance(self.schema, Schema | None),
                "be a fieldwise Schema, or None to infer one (a model is given as model=)",
            ),
            "training": (isinstance(self.training, TrainingSettings), "be TrainingSettings"),
            "negatives": (
                isinstance(self.negatives, NegativeSampling | None),
                "be NegativeSampling, or None",
            ),
            "valid_share": (
                isinstance(self.valid_share, Real) and 0 < self.valid_share < 1,
                "lie between 0 and 1, both excluded",
            ),
            "valid_by": (self.valid_by in ("random", "time"), "be 'random' or 'time'"),
            "warm_start": (
                warm_start is False or isinstance(warm_start, str | Path | None),
                "be the folder of a bundle",
            ),
            "checkpoint": (
                isinstance(checkpoint, str | Path | None) and checkpoint != "",
                "be a folder",
            ),
            "device": (isinstance(self.device, str | None), "be a name such as 'cpu' or 'cuda'"),
            "seed": (
                isinstance(self.seed, Integral) and not isinstance(self.seed, bool),
                "be a whole number",
            ),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise ConfigError(f"{name} must {rule}, found {getattr(self, name)!r}")
        as_settings(self.model)  # raises if it is not a model
        open_device(self.device or self.training.device)
        check_seed(self.seed)

"""What a fitted estimator does: predict, evaluate, explain, recommend and plot."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.metrics import r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.trained_rows import rows_trained, trained_words
from fieldwise.data.prepare.labels import LabelledRows
from fieldwise.data.prepare.prepared import group_codes
from fieldwise.data.read.tables import TableLike
from fieldwise.errors import ConfigError, DataError
from fieldwise.estimator.params import labelled
from fieldwise.estimator.tables import array_columns, estimator_table, is_array
from fieldwise.evaluation import sigmoid
from fieldwise.evaluation.reliability import reliability
from fieldwise.explain.explanation import Explanation, explain
from fieldwise.explain.subject import Method
from fieldwise.schema import Label, Schema
from fieldwise.scoring.recommend import Catalogue, recommend
from fieldwise.training.objective import Objective
from fieldwise.training.result import FitResult

__all__ = ["FittedEstimator", "all_binary", "is_binary"]

Plot = Literal["training", "roc", "calibration"]


def is_binary(estimator: "FittedEstimator") -> bool:
    """Whether the main label is binary, which makes the estimator a classifier, else a regressor."""
    return estimator._labels is None or estimator._labels[0].task == "binary"


def all_binary(estimator: "FittedEstimator") -> bool:
    """Whether every label is binary."""
    return all(label.task == "binary" for label in estimator._labels or ())


class FittedEstimator(BaseEstimator):  # type: ignore[misc]
    """The methods of an estimator that need a fitted network; `Recommender` adds fitting, saving and loading.

    Attributes:
        schema: the schema given, or None.
        bundle_: schema, encoder and network.
        schema_: the schema of the bundle.
        result_: the result of training.
        n_features_in_: number of columns that the model reads.
    """

    schema: Schema | None
    bundle_: Bundle
    schema_: Schema
    result_: FitResult
    n_features_in_: int

    def predict(self, X: TableLike) -> np.ndarray:
        """Classes 0 and 1 (1 from a probability of .5), int64 [N]; for a regression numbers within the label's range.

        With several labels [N, T], each by its own task, and float64 if one of them is a regression.
        """
        predicted = self._fitted().predict(self._table(X))
        if all_binary(self):
            return (predicted >= 0.5).astype(np.int64)
        binary = [label.task == "binary" for label in self.bundle_.schema.labels]
        return np.where(binary, predicted >= 0.5, predicted)

    @available_if(all_binary)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: TableLike) -> np.ndarray | list[np.ndarray]:
        """Probabilities of classes 0 and 1 [N, 2]; with several labels a list of them. Binary labels only."""
        bundle = self._fitted()
        logit = bundle.calibrated(bundle.score(self._table(X)))
        both = [np.stack([sigmoid(-z), sigmoid(z)], axis=1) for z in (logit.T if logit.ndim == 2 else [logit])]
        return both if bundle.schema.more_labels else both[0]

    @available_if(all_binary)  # type: ignore[untyped-decorator]
    def decision_function(self, X: TableLike) -> np.ndarray:
        """Logits of class 1 [N], or [N, T] with several labels; binary labels only."""
        return self._fitted().score(self._table(X))

    def score_candidates(self, context: Mapping[str, Any] | TableLike, candidates: TableLike) -> np.ndarray:
        """Scores of one context with each candidate [N], or [N, T]: see `Bundle.score_candidates`.

        Args:
            context: a mapping of columns to values, or a table of one row.
            candidates: a table with the other columns.
        """
        return self._fitted().score_candidates(context, candidates)

    def evaluate(self, X: TableLike, y: Any = None, sample_weight: Any = None) -> dict[str, float]:
        """All metrics of the label's task over the rows of X, without those that the label's rule drops.

        With several labels, the main one's by name and the others' as `NAME.metric`. Warns if the label's rule dropped
        rows, or if rows of X were used in training.

        Args:
            X: a table; it needs the label's column only if `y` is omitted, and the group's for group AUC.
            y: raw labels, as in `fit`.
            sample_weight: row weights, at least 0, [N]; equal if omitted.
        """
        bundle = self._fitted()
        rows = labelled(self._table(X), y, bundle.schema, sample_weight)
        if rows.dropped:
            warnings.warn(f"{rows.dropped:,} rows dropped by the label's rule", stacklevel=2)
        if (seen := rows_trained(bundle, rows.frame)) is not None and seen.found:
            instead = "evaluate on rows that were not passed to `fit`"
            warnings.warn(f"{trained_words(len(rows.frame), seen)}; {instead}", stacklevel=2)
        return self._metrics(rows)

    def _metrics(self, rows: LabelledRows) -> dict[str, float]:
        bundle = self._fitted()
        return Objective.of(*bundle.schema.labels).metrics(
            rows.y.astype(np.float64),
            bundle.calibrated(bundle.score(rows.frame)),
            group_codes(rows.frame, bundle.schema),
            rows.weight,
        )

    def score(self, X: TableLike, y: Any = None, sample_weight: Any = None) -> float:
        """The score that searches maximize: AUC for a binary label, R² for a regression label, of the main label.

        This differs from scikit-learn's classifiers, which return accuracy: that says little about a ranking.
        """
        bundle = self._fitted()
        rows = labelled(self._table(X), y, bundle.schema, sample_weight)
        if is_binary(self):
            return self._metrics(rows)["auc"]
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
        """Explain the scores of rows: see `fieldwise.explain.explain`.

        Args:
            X: a table with the fields' columns.
            background: a table of background rows to compare with; some validation rows if omitted.
            method: `terms`, `integrated_gradients` or `occlusion`; the most exact one for the model if omitted.
            label: the label to explain; the main one if omitted.
            seed: seed for sampling background rows.
        """
        return explain(self._fitted(), self._table(X), background=background, method=method, label=label, seed=seed)

    def recommend(
        self,
        log: TableLike | None = None,
        catalogue: Catalogue | None = None,
        user: object = None,
        *,
        users: Iterable[object] | None = None,
        n: int = 10,
        exclude_seen: bool = True,
    ) -> Any:
        """The n best items of a log for one, several or all of its users: see `fieldwise.scoring.recommend`."""
        return recommend(self._fitted(), log, catalogue, user, users=users, n=n, exclude_seen=exclude_seen)

    def plot(self, kind: Plot = "training", X: TableLike | None = None, y: Any = None, *, ax: Any = None) -> Any:
        """Plot on Matplotlib axes, and return the axes.

        Args:
            kind: `training`: learning curves; `roc`, `calibration`: for a binary main label, on the rows of X.
            X: a table, as in `evaluate`.
            y: raw labels, as in `fit`.
            ax: axes to draw on; new ones of `matplotlib.pyplot` if omitted.

        Errors:
            MissingExtraError: Matplotlib is missing.
            ConfigError: an unknown kind, no rows, a regression, or a loaded bundle without learning curves.
        """
        bundle = self._fitted()
        if kind not in get_args(Plot):
            raise ConfigError(f"kind must be one of {', '.join(map(repr, get_args(Plot)))}, found {kind!r}")
        if kind == "training":
            if not hasattr(self, "result_"):
                raise ConfigError(
                    "learning curves are recorded by fit, but this bundle has none: plot a fitted Recommender"
                )
            return self.result_.plot(ax)
        if X is None or not is_binary(self):
            found = "none" if X is None else "a regression"
            raise ConfigError(f"a {kind} plot needs labelled rows of a binary label, found {found}: give X")
        rows = labelled(self._table(X), y, bundle.schema)
        score = bundle.calibrated(bundle.score(rows.frame)).reshape(len(rows.y), -1)[:, 0]
        from fieldwise.notebook.plots import plot_roc

        return plot_roc(rows.main, score, ax) if kind == "roc" else reliability(rows.main, sigmoid(score)).plot(ax)

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
        frame, columns = estimator_table(X), set(self._fitted().schema.columns)
        others = columns.symmetric_difference(frame.columns)
        if others and (columns == set(array_columns(len(columns))) or others & columns):
            raise DataError(
                f"X has {frame.width} features, but Recommender is expecting {self.n_features_in_} features as input: "
                f"{', '.join(self.bundle_.schema.columns)}"
            )
        return frame

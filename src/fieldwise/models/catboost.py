"""CatBoost: trees over ordered target statistics of categories (Prokhorenkova et al., NeurIPS 2018).

Letters: B batch, C columns.
"""

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from fieldwise.errors import DataError, MissingExtraError, first_line
from fieldwise.layout import Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import NonNegative, Size
from fieldwise.models.trees import Boosting, TreeRows, TreeSettings, TreesNetwork, Watch

ABSENT = -1
"""The code of missing and unknown categories, which are a category of their own."""

CATBOOSTS_L2 = 3.0
"""Its default."""

WEIGHTED = {"AUC": "AUC:use_weights=true"}
"""Metrics that CatBoost does not weigh by default."""


@register_model("catboost")
@dataclass(frozen=True, kw_only=True)
class CatBoost(TreeSettings):
    """Settings of CatBoost, which needs `pip install 'fieldwise[catboost]'`; names and defaults are CatBoost's.

    Args:
        learning_rate: factor of every tree's values; None for CatBoost's own choice, by the number
            of rows and `max_trees`.
        depth: of every tree, whose leaves all have this depth.
        l2_leaf_reg: L2 strength of the leaves' values.

    >>> CatBoost(depth=4).build(Layout.of_sizes([3, 4])).features.categories
    [0, 1]
    """

    max_trees: Size = 1000
    depth: Size = 6
    l2_leaf_reg: NonNegative = CATBOOSTS_L2

    def library(self) -> Any:
        try:
            import catboost
        except ImportError:
            raise MissingExtraError(
                "the model 'catboost' needs CatBoost, which is not installed: pip install 'fieldwise[catboost]'"
            ) from None
        return catboost

    def build(self, layout: Layout) -> "CatBoostNetwork":
        """A network without trees."""
        return CatBoostNetwork(layout, self)


class CatBoostNetwork(TreesNetwork):
    """`logit = sum_t leaf_t(x)`, with categories, and pairs of them, as statistics of the targets of earlier rows."""

    title = "CatBoost"
    metrics: ClassVar[dict[str, str]] = {
        "logloss": "Logloss",
        "auc": "AUC",
        "rmse": "RMSE",
        "mae": "MAE",
    }

    settings: CatBoost

    def fit(self, train: TreeRows, valid: TreeRows | None, boosting: Boosting, watch: Watch) -> Any:
        catboost = self.settings.library()
        metric = self.metrics[boosting.monitor]
        if valid is not None and valid.weight is not None:
            metric = WEIGHTED.get(metric, metric)
        loss = "RMSE"
        if boosting.task == "binary":
            loss = "Logloss"
            train, has_shares = _rows_with_shares(train)
            if has_shares:
                loss = "CrossEntropy"  # which is logloss of targets that are shares
        parameters = self._settings_of_training(boosting, loss, metric)
        # CatBoost chooses another learning rate without it
        parameters["use_best_model"] = valid is not None
        model = catboost.CatBoost(parameters)
        callback = _WatchCallback(metric, watch)
        start = None
        weight = train.weight
        eval_set = None
        if valid is not None:
            eval_set = self._pool(valid.x, valid.y, valid.weight, valid.start)
            if valid.start is not None:
                start = np.zeros(len(train.y))  # CatBoost takes starts of both or of neither
            if weight is None and valid.weight is not None:
                weight = np.ones(len(train.y))  # it weighs metrics of weighted training rows alone
        try:
            model.fit(
                self._pool(train.x, train.y, weight, start),
                eval_set=eval_set,
                callbacks=[callback],
            )
        except catboost.CatBoostError as e:
            reason = re.sub(r"^\S+:\d+: ", "", first_line(e)).rstrip(".")
            raise DataError(
                f"CatBoost needs rows to learn from, and found in these: {reason}; correct them, or choose another "
                "model"
            ) from None
        if callback.raised is not None:
            raise callback.raised
        return model

    def _settings_of_training(self, boosting: Boosting, loss: str, metric: str) -> dict[str, Any]:
        """CatBoost's parameters of a training."""
        settings = self.settings
        parameters: dict[str, Any] = {
            "loss_function": loss,
            "eval_metric": metric,
            "iterations": boosting.trees,
            "depth": settings.depth,
            "thread_count": torch.get_num_threads(),
            "random_seed": boosting.seed,
            "allow_writing_files": False,
            "logging_level": "Silent",
        }
        # given, it ends CatBoost's choice of a learning rate
        if settings.l2_leaf_reg != CATBOOSTS_L2:
            parameters["l2_leaf_reg"] = settings.l2_leaf_reg
        if boosting.learning_rate is not None:
            parameters["learning_rate"] = boosting.learning_rate
        return parameters

    def _pool(
        self,
        x: np.ndarray,
        y: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        start: np.ndarray | None = None,
    ) -> Any:
        import polars as pl  # models load without it

        columns: dict[str, np.ndarray] = {}
        for number in range(x.shape[1]):
            column = np.ascontiguousarray(x[:, number])
            if number in self.features.categories:
                column = np.where(np.isnan(column), ABSENT, column).astype(np.int32)
            columns[f"column_{number}"] = column
        return self.settings.library().Pool(
            pl.DataFrame(columns),
            y,
            cat_features=self.features.categories,
            weight=weight,
            baseline=start,
        )

    def _text_of(self, model: Any, trees: int) -> str:
        model.shrink(min(trees, model.tree_count_))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.json")
            model.save_model(str(path), format="json")
            return path.read_text("utf-8")

    def _read(self, text: str) -> Any:
        json.loads(text)  # CatBoost takes a part of a text for the whole
        model = self.settings.library().CatBoost()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.json")
            path.write_text(text, "utf-8")
            model.load_model(str(path), format="json")
        return model

    def learning_rate_of(self, model: Any) -> float:
        return float(model.learning_rate_)

    def _columns_of(self, model: Any) -> int:
        return len(model.feature_names_)

    def _leaves_of(self, model: Any) -> int:
        return int(np.sum(model.get_tree_leaf_counts()))

    def _scores(self, model: Any, x_BC: np.ndarray) -> np.ndarray:
        pool = self._pool(x_BC)
        return np.asarray(model.predict(pool, prediction_type="RawFormulaVal"), np.float64)

    def _contributions(self, model: Any, x_BC: np.ndarray) -> np.ndarray:
        return np.asarray(model.get_feature_importance(self._pool(x_BC), type="ShapValues"))


def _rows_with_shares(rows: TreeRows) -> tuple[TreeRows, bool]:
    """The rows, of which a positive and the next, negative one with equal columns become one; whether there are such.

    Its target is the share of the positive one's weight: rows of several trials stand so
    (`rows_of_both_classes`). CatBoost's statistics of categories count rows, whatever they weigh,
    and would see a positive and a negative row for each row of trials.
    """
    if rows.weight is None or len(rows.y) < 2:
        return rows, False
    is_pair = np.zeros(len(rows.y), bool)
    is_pair[:-1] = (rows.y[:-1] == 1) & (rows.y[1:] == 0)
    first = np.flatnonzero(is_pair)
    first = first[np.all(_equal(rows.x[first], rows.x[first + 1]), axis=1)]
    weight = np.array(rows.weight, np.float64)
    first = first[weight[first] + weight[first + 1] > 0]
    if not len(first):
        return rows, False
    y = np.array(rows.y, np.float64)
    of_both = weight[first] + weight[first + 1]
    y[first] = weight[first] / of_both
    weight[first] = of_both
    is_kept = np.ones(len(y), bool)
    is_kept[first + 1] = False
    return TreeRows(x=rows.x[is_kept], y=y[is_kept], weight=weight[is_kept]), True


def _equal(x: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether numbers are equal, or both missing."""
    equal: np.ndarray = (x == other) | (np.isnan(x) & np.isnan(other))
    return equal


class _WatchCallback:
    """CatBoost's callback that calls `watch`; what that raises is kept, since CatBoost would change it."""

    def __init__(self, metric: str, watch: Watch) -> None:
        self.metric = metric
        self.watch = watch
        self.raised: BaseException | None = None

    def after_iteration(self, info: Any) -> bool:
        """Whether another tree follows."""
        value = float("nan")
        if "validation" in info.metrics:
            value = info.metrics["validation"][self.metric][-1]
        try:
            return self.watch.after_tree(info.iteration, value)
        except BaseException as e:
            self.raised = e
            return False

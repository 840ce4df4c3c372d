"""LightGBM: trees that grow leaf by leaf over histograms (Ke et al., NeurIPS 2017).

Letters: B batch, C columns.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from fieldwise.errors import MissingExtraError
from fieldwise.layout import Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import NonNegative, Positive, Size, number
from fieldwise.models.trees import Boosting, TreeRows, TreeSettings, TreesNetwork, Watch

Share = Annotated[float, number(lambda x: 0 < x <= 1, "above 0 and at most 1")]


@register_model("lightgbm")
@dataclass(frozen=True, kw_only=True)
class LightGBM(TreeSettings):
    """Settings of LightGBM, which needs `pip install 'fieldwise[lightgbm]'`; names and defaults are LightGBM's.

    Args:
        learning_rate: factor of every tree's values.
        num_leaves: the largest number of leaves of a tree.
        min_data_in_leaf: the least number of training rows in a leaf.
        feature_fraction: share of the columns that each tree reads.
        bagging_fraction: share of the rows that each tree is fitted on.
        lambda_l2: L2 strength of the leaves' values.

    >>> LightGBM(num_leaves=15).build(Layout.of_sizes([3, 4])).features.categories
    [0, 1]
    """

    learning_rate: Positive = 0.1
    num_leaves: Size = 31
    min_data_in_leaf: Size = 20
    feature_fraction: Share = 1.0
    bagging_fraction: Share = 1.0
    lambda_l2: NonNegative = 0.0

    def library(self) -> Any:
        try:
            import lightgbm
        except ImportError:
            raise MissingExtraError(
                "the model 'lightgbm' needs LightGBM, which is not installed: pip install 'fieldwise[lightgbm]'"
            ) from None
        return lightgbm

    def build(self, layout: Layout) -> "LightGBMNetwork":
        """A network without trees."""
        return LightGBMNetwork(layout, self)


class LightGBMNetwork(TreesNetwork):
    """`logit = sum_t leaf_t(x)`, with categories as LightGBM splits them: by their sums of gradients (Fisher, 1958)."""

    title = "LightGBM"
    metrics: ClassVar[dict[str, str]] = {
        "logloss": "binary_logloss",
        "auc": "auc",
        "rmse": "rmse",
        "mae": "l1",
    }

    settings: LightGBM

    def fit(self, train: TreeRows, valid: TreeRows | None, boosting: Boosting, watch: Watch) -> Any:
        lgb = self.settings.library()
        settings = self.settings
        parameters = {
            "objective": "binary" if boosting.task == "binary" else "regression",
            "metric": self.metrics[boosting.monitor],
            "learning_rate": boosting.learning_rate,
            "num_leaves": settings.num_leaves,
            "min_data_in_leaf": settings.min_data_in_leaf,
            "feature_fraction": settings.feature_fraction,
            "bagging_fraction": settings.bagging_fraction,
            "bagging_freq": int(settings.bagging_fraction < 1),
            "lambda_l2": settings.lambda_l2,
            "num_threads": torch.get_num_threads(),
            "seed": boosting.seed,
            "deterministic": True,
            # else LightGBM chooses by timing, and a run is not reproducible to the bit
            "force_row_wise": True,
            "verbosity": -1,
        }
        training_set = lgb.Dataset(
            train.x,
            train.y,
            weight=train.weight,
            categorical_feature=self.features.categories,
            params=parameters,
        )
        booster = lgb.Booster(parameters, training_set)
        if valid is not None:
            validation_set = lgb.Dataset(
                valid.x,
                valid.y,
                weight=valid.weight,
                init_score=valid.start,
                reference=training_set,
            )
            booster.add_valid(validation_set, "valid")

        value = float("nan")
        for trees in range(1, boosting.trees + 1):
            try:
                cannot_split = booster.update()
            except KeyboardInterrupt:
                watch.interrupted()
                break
            if valid is not None:
                value = booster.eval_valid()[0][2]
            if not watch.after_tree(trees, value) or cannot_split:
                break
        return booster

    def _text_of(self, model: Any, trees: int) -> str:
        text: str = model.model_to_string(num_iteration=trees)
        return text

    def _read(self, text: str) -> Any:
        _check_whole(text)
        return self.settings.library().Booster(model_str=text)

    def learning_rate_of(self, model: Any) -> float:
        return self.settings.learning_rate

    def _columns_of(self, model: Any) -> int:
        return int(model.num_feature())

    def _leaves_of(self, model: Any) -> int:
        leaves_by_tree = re.findall(r"^num_leaves=(\d+)$", model.model_to_string(), re.MULTILINE)
        return sum(map(int, leaves_by_tree))

    def _scores(self, model: Any, x_BC: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict(x_BC, raw_score=True, num_threads=_threads(x_BC)))

    def _contributions(self, model: Any, x_BC: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict(x_BC, pred_contrib=True, num_threads=_threads(x_BC)))


def _check_whole(text: str) -> None:
    """Check that a text has all of its trees, in their places: LightGBM ends the process where they are not."""
    header, _, _ = text.partition("\n\nTree=0")
    sizes = re.search(r"^tree_sizes=([0-9 ]+)$", header, re.MULTILINE)
    if not header.startswith("tree\nversion=") or sizes is None:
        raise ValueError("it is no text of LightGBM's trees")
    offset = len(header) + 2
    for tree, size in enumerate(sizes[1].split()):
        if not text.startswith(f"Tree={tree}\n", offset):
            raise ValueError(f"tree {tree} is not where the text says")
        offset += int(size)
    if not text.startswith("end of trees", offset):
        raise ValueError("the text does not end after its trees")


def _threads(x_BC: np.ndarray) -> int:
    """Threads to score rows with: a few rows take longer to share than to score."""
    return 1 if len(x_BC) < 64 else torch.get_num_threads()

"""LightGBM on the encoded rows, for comparison: it cannot become a bundle."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fieldwise.data.encode.columns import field_numbers
from fieldwise.data.prepare.prepared import SplitPart
from fieldwise.errors import MissingExtraError
from fieldwise.layout import FieldLayout
from fieldwise.schema import Schema

MAX_TREES = 5000
PATIENCE_IN_TREES = 50
MAX_BAG_VALUES = 256
LAST_CALLBACK = 99
"""The order of a callback that runs after the others of an iteration."""


@dataclass(frozen=True, kw_only=True)
class Trees:
    """A fitted LightGBM model.

    Args:
        booster: LightGBM's; its raw scores are logits, or numbers for a regression label.
        trees: the number of trees that are used.
        leaves: the number of their leaves.
        seconds: duration of the training.
        stopped: why it ended; `epochs`: at the maximum number of trees.
    """

    booster: Any
    trees: int
    leaves: int
    seconds: float
    stopped: Literal["patience", "epochs", "time"]

    def score(self, part: SplitPart, schema: Schema) -> np.ndarray:
        """Logits of a part's rows, or for a regression label predicted numbers within its range [N]."""
        matrix, _ = features(part, schema)
        raw = self.booster.predict(
            matrix,
            raw_score=True,
            num_threads=torch.get_num_threads(),
            num_iteration=self.trees,
        )
        score = np.asarray(raw, dtype=np.float64)
        label = schema.label
        if label.task == "regression" and label.range is not None:
            score = np.clip(score, *label.range)
        return score


def left_out(part: SplitPart) -> list[str]:
    """Names of the fields that `features` omits: sequences, and bags with more than `MAX_BAG_VALUES` values."""
    bags = [field for field in part.table.layout.fields if field.kind == "bag"]
    return [bag.name for bag in bags if bag.ordered or bag.rows > MAX_BAG_VALUES]


def features(part: SplitPart, schema: Schema) -> tuple[np.ndarray, list[int]]:
    """A feature matrix [N, columns] and the indices of its categorical columns.

    Numbers are unchanged, with NaN for missing cells. A category is its code in the training
    vocabulary, with NaN for missing and unknown values. A bag has one column per value of its
    vocabulary.
    """
    table = part.table
    omitted = set(left_out(part))
    local_rows = table.layout.local_rows()
    columns: list[np.ndarray] = []
    categories: list[int] = []
    vectors = iter(table.vectors)
    next_single = 0
    next_bag = 0
    for field_layout, field in zip(table.layout.fields, schema.fields, strict=True):
        if field_layout.kind == "bag":
            bag = next_bag
            next_bag += 1
            if field_layout.name not in omitted:
                columns += _bag_columns(part, field_layout, bag, local_rows)
            continue

        ids = table.ids[:, next_single]
        next_single += 1
        if field_layout.kind == "vector":
            columns += next(vectors).numbers(slice(None)).numpy().T
            continue
        if field.cell == "number":
            cells = part.frame.get_column(field.column)
            number = field_numbers(field, cells, schema.missing)
            columns.append(number.fill_null(float("nan")).to_numpy())
        else:
            categories.append(len(columns))
            codes = local_rows[ids]
            column = codes.astype(np.float64)
            if (
                field_layout.unknown
            ):  # missing and unknown values: no training row has an unknown one
                column[codes < 2] = np.nan
            columns.append(column)
    matrix = np.column_stack(columns) if columns else np.zeros((len(table), 1))
    return matrix, categories


def _bag_columns(
    part: SplitPart, field: FieldLayout, number_of_bag: int, local_rows: np.ndarray
) -> Iterator[np.ndarray]:
    """How often each value of the vocabulary is in the bag of each row, a column [N] per value."""
    table = part.table
    bag = table.bag(number_of_bag)
    cells = bag.segments * field.rows + torch.from_numpy(local_rows)[bag.ids]
    counts = torch.bincount(cells, minlength=len(table) * field.rows)
    yield from counts.view(len(table), field.rows).double().numpy().T


def fit_trees(
    train: SplitPart, valid: SplitPart, schema: Schema, *, seed: int, seconds: float = float("inf")
) -> Trees:
    """LightGBM with default settings, stopped after 50 trees without a better validation loss or after a time."""
    try:
        import lightgbm as lgb
    except ImportError:
        raise MissingExtraError("trees need LightGBM: pip install 'fieldwise[lightgbm]'") from None
    began = time.perf_counter()
    is_binary = schema.label.task == "binary"
    settings = {
        "objective": "binary" if is_binary else "regression",
        "metric": "binary_logloss" if is_binary else "rmse",
        "num_threads": torch.get_num_threads(),
        "seed": seed,
        "deterministic": True,
        # else LightGBM chooses by timing, and a run is not reproducible to the bit
        "force_row_wise": True,
        "verbosity": -1,
    }
    matrix, categories = features(train, schema)
    training_set = lgb.Dataset(matrix, train.main, categorical_feature=categories, params=settings)
    valid_matrix, _ = features(valid, schema)
    validation_set = lgb.Dataset(valid_matrix, valid.main, reference=training_set)

    is_out_of_time = False

    def stop_out_of_time(env: Any) -> None:
        nonlocal is_out_of_time
        if time.perf_counter() - began >= seconds:
            is_out_of_time = True
            raise lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    stop_out_of_time.order = LAST_CALLBACK  # type: ignore[attr-defined]
    losses: dict[str, Any] = {}
    callbacks: list[Any] = [
        lgb.record_evaluation(losses),
        lgb.early_stopping(PATIENCE_IN_TREES, verbose=False),
        stop_out_of_time,
    ]
    booster = lgb.train(
        settings,
        training_set,
        num_boost_round=MAX_TREES,
        valid_sets=[validation_set],
        callbacks=callbacks,
    )

    loss_by_tree = losses["valid_0"][settings["metric"]]
    trees = int(np.argmin(loss_by_tree)) + 1
    stopped: Literal["patience", "epochs", "time"] = "epochs"
    if is_out_of_time:
        stopped = "time"
    elif len(loss_by_tree) < MAX_TREES:
        stopped = "patience"
    kept_trees = booster.dump_model(num_iteration=trees)["tree_info"]
    return Trees(
        booster=booster,
        trees=trees,
        leaves=sum(int(tree["num_leaves"]) for tree in kept_trees),
        seconds=time.perf_counter() - began,
        stopped=stopped,
    )

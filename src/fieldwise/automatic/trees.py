"""LightGBM on prepared rows, as a baseline: default settings, native categorical features, early stopping."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fieldwise.data.encode.columns import as_number
from fieldwise.data.prepare.prepared import SplitPart
from fieldwise.errors import MissingExtraError
from fieldwise.schema import Schema

if TYPE_CHECKING:
    import lightgbm

MOST_TREES, PATIENCE = 5000, 50
MOST_BAG_VALUES = 256


@dataclass(frozen=True, kw_only=True)
class Trees:
    """A fitted LightGBM model."""

    booster: "lightgbm.Booster"  # its raw scores are logits, or numbers for a regression label
    trees: int  # kept
    leaves: int  # of these trees
    seconds: float
    stopped: Literal["patience", "epochs", "time"]  # epochs: the maximum number of trees

    def score(self, part: SplitPart, schema: Schema) -> np.ndarray:
        """Logits of a part's rows, or for a regression label predicted numbers within its range [N]."""
        raw = self.booster.predict(
            features(part, schema)[0], raw_score=True, num_threads=torch.get_num_threads(), num_iteration=self.trees
        )
        score, label = np.asarray(raw, dtype=np.float64), schema.label
        return np.clip(score, *label.range) if label.task == "regression" and label.range is not None else score


def left_out(part: SplitPart) -> list[str]:
    """Names of the fields that `features` omits: sequences, and bags with more than `MOST_BAG_VALUES` values."""
    return [f.name for f in part.table.layout.fields if f.kind == "bag" and (f.ordered or f.rows > MOST_BAG_VALUES)]


def features(part: SplitPart, schema: Schema) -> tuple[np.ndarray, list[int]]:
    """A feature matrix [N, columns] and the indices of its categorical columns.

    Numbers are unchanged, with NaN for missing cells. A category is its code in the training vocabulary, with NaN for
    missing and unknown values. A bag has one column per value of its vocabulary.
    """
    table, skipped = part.table, set(left_out(part))
    columns: list[np.ndarray] = []
    categories: list[int] = []
    single, local = iter(range(table.ids.shape[1])), table.layout.local_rows()
    bags = iter(range(sum(f.kind == "bag" for f in table.layout.fields)))
    for place, field in zip(table.layout.fields, schema.fields, strict=True):
        if place.kind == "bag":
            position = next(bags)
            if place.name not in skipped:
                bag = table.bag(position)
                cell = bag.segments * place.rows + torch.from_numpy(local)[bag.ids]
                counts = torch.bincount(cell, minlength=len(table) * place.rows).view(len(table), place.rows)
                columns += list(counts.double().numpy().T)
            continue
        codes = local[table.ids[:, next(single)]]
        if field.cell == "number":
            cells = part.frame.get_column(field.column)
            number = as_number(cells, f"column {field.column!r}", form=field.number_format)
            columns.append(number.fill_null(float("nan")).to_numpy())
            continue
        categories.append(len(columns))
        known = codes.astype(np.float64)
        if place.unknown:
            known[codes < 2] = np.nan  # missing and unknown: no training row has an unknown value
        columns.append(known)
    return np.column_stack(columns) if columns else np.zeros((len(table), 1)), categories


def fit_trees(train: SplitPart, valid: SplitPart, schema: Schema, *, seed: int, seconds: float = float("inf")) -> Trees:
    """LightGBM with default settings, stopped after 50 trees without a better validation loss or after a time."""
    try:
        import lightgbm as lgb
    except ImportError:
        raise MissingExtraError("trees need LightGBM: pip install 'fieldwise[lightgbm]'") from None
    began = time.perf_counter()
    binary = schema.label.task == "binary"
    settings = {
        "objective": "binary" if binary else "regression",
        "metric": "binary_logloss" if binary else "rmse",
        "num_threads": torch.get_num_threads(),
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,  # else LightGBM chooses by timing, and a run is not reproducible to the bit
        "verbosity": -1,
    }
    x, categories = features(train, schema)
    data = lgb.Dataset(x, train.main, categorical_feature=categories, params=settings)
    against = lgb.Dataset(features(valid, schema)[0], valid.main, reference=data)
    late = False

    def clock(env: Any) -> None:
        nonlocal late
        if time.perf_counter() - began >= seconds:
            late = True
            raise lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    losses: dict[str, Any] = {}
    callbacks: list[Any] = [lgb.record_evaluation(losses), lgb.early_stopping(PATIENCE, verbose=False), clock]
    clock.order = 99  # type: ignore[attr-defined]  # runs after the other callbacks of an iteration
    booster = lgb.train(settings, data, num_boost_round=MOST_TREES, valid_sets=[against], callbacks=callbacks)
    by_tree = losses["valid_0"][settings["metric"]]
    trees = int(np.argmin(by_tree)) + 1
    return Trees(
        booster=booster,
        trees=trees,
        leaves=sum(int(tree["num_leaves"]) for tree in booster.dump_model(num_iteration=trees)["tree_info"]),
        seconds=time.perf_counter() - began,
        stopped="time" if late else "patience" if len(by_tree) < MOST_TREES else "epochs",
    )

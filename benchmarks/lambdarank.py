"""LightGBM's example of lambdarank beside losses that rank: NDCG@1, 3 and 5 of its test queries, with paired intervals.

python -m benchmarks.lambdarank FOLDER [MODEL ...]    # FOLDER: examples/lambdarank of microsoft/LightGBM

LightGBM runs with the settings of its `train.conf`, on all training queries. Ours hold out 40
queries for early stopping and are trained again on all (`refit`), with seeds 0 to 4; a query's NDCG
is the mean over seeds. A query without a relevant document counts 1, as LightGBM has it.
"""

import argparse
import time
from pathlib import Path

import lightgbm
import numpy as np
import polars as pl
from sklearn.datasets import load_svmlight_file

from fieldwise import Label, Numeric, Recommender, Schema, TrainingSettings
from fieldwise.evaluation.bootstrap import percentile_interval

CUTOFFS = (1, 3, 5)
SEEDS = range(5)
HELD_OUT = 40
CONF = {
    "objective": "lambdarank",
    "num_leaves": 31,
    "learning_rate": 0.1,
    "max_bin": 255,
    "bagging_freq": 1,
    "bagging_fraction": 0.9,
    "min_data_in_leaf": 50,
    "min_sum_hessian_in_leaf": 5.0,
    "verbose": -1,
}
TREES = 100


def read(folder: Path, part: str, features: int | None = None) -> tuple[np.ndarray, ...]:
    """Features [N, K], grades [N] and the query of each row [N]."""
    matrix, grades = load_svmlight_file(str(folder / f"rank.{part}"), n_features=features)
    lengths = np.loadtxt(folder / f"rank.{part}.query", dtype=int)
    return matrix.toarray(), grades, np.repeat(np.arange(len(lengths)), lengths)


def ndcg(grades: np.ndarray, scores: np.ndarray, query: np.ndarray, k: int) -> np.ndarray:
    """NDCG@k of each query, with gains 2^grade - 1; 1 without a relevant document."""
    values = []
    for number in np.unique(query):
        of_query = query == number
        gains = 2.0 ** grades[of_query] - 1
        discounts = 1 / np.log2(2.0 + np.arange(min(k, len(gains))))
        best = (np.sort(gains)[::-1][:k] * discounts).sum()
        ranked = gains[np.argsort(-scores[of_query], kind="stable")][:k]
        values.append(1.0 if best == 0 else (ranked * discounts).sum() / best)
    return np.array(values)


def frame(matrix: np.ndarray, grades: np.ndarray, query: np.ndarray) -> pl.DataFrame:
    """The rows as a table."""
    columns = {f"f{k}": matrix[:, k] for k in range(matrix.shape[1])}
    return pl.DataFrame({**columns, "grade": grades, "query": query})


def main() -> None:
    """Print a line for LightGBM, and for each model and loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=["lr", "fm"])
    options = parser.parse_args()
    matrix, grades, query = read(options.folder, "train")
    test_matrix, test_grades, test_query = read(options.folder, "test", matrix.shape[1])
    varies = np.ptp(matrix, axis=0) > 0
    matrix = matrix[:, varies]
    test_matrix = test_matrix[:, varies]

    began = time.perf_counter()
    rows = lightgbm.Dataset(matrix, grades, group=np.bincount(query))
    trees = lightgbm.train(CONF, rows, num_boost_round=TREES)
    scores = np.asarray(trees.predict(test_matrix))
    baseline = {k: ndcg(test_grades, scores, test_query, k) for k in CUTOFFS}
    means = "  ".join(f"{baseline[k].mean():.4f}" for k in CUTOFFS)
    print(f"LightGBM lambdarank  {means}  {time.perf_counter() - began:.1f} s", flush=True)

    table = frame(matrix, grades, query)
    test = frame(test_matrix, test_grades, test_query)
    fields = tuple(Numeric(name) for name in table.columns if name.startswith("f"))
    schema = Schema(fields=fields, label=Label("grade", task="regression"), group="query")
    held_out = np.random.default_rng(0).choice(query.max() + 1, HELD_OUT, replace=False)
    is_held_out = table["query"].is_in(held_out.tolist())
    for model in options.models:
        for loss in ("logloss", "listwise", "pairwise"):
            began = time.perf_counter()
            by_seed = []
            for seed in SEEDS:
                training = TrainingSettings(loss=loss, refit=True)
                recommender = Recommender(schema, model, training=training, seed=seed)
                recommender.fit(table.filter(~is_held_out), eval_set=table.filter(is_held_out))
                scores = recommender.bundle_.score(test)
                by_seed.append([ndcg(test_grades, scores, test_query, k) for k in CUTOFFS])
            values = np.mean(by_seed, axis=0)
            cells = []
            for k, of_queries in zip(CUTOFFS, values, strict=True):
                low, high = percentile_interval(of_queries - baseline[k])
                cells.append(f"{of_queries.mean():.4f} [{low:+.3f}, {high:+.3f}]")
            seconds = (time.perf_counter() - began) / len(SEEDS)
            print(f"{model} {loss}  {'  '.join(cells)}  {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()

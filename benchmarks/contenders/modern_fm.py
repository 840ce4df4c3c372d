"""modern-fm 1.1: a factorization machine in Rust under a scikit-learn interface."""

import time
from itertools import count
from typing import Any

import numpy as np
from modern_fm import FMClassifier
from scipy.sparse import csr_matrix
from sklearn.metrics import roc_auc_score

from benchmarks.case import Timed
from benchmarks.log import Log


def one_hot(log: Log, ids: np.ndarray) -> csr_matrix:
    """Rows as modern-fm reads them fastest: sparse, sorted, float64."""
    rows, fields = ids.shape
    columns = (ids + log.offsets).reshape(-1)
    shape = (rows, sum(log.sizes))
    return csr_matrix((np.ones(rows * fields), columns, np.arange(0, rows * fields + 1, fields)), shape=shape)


def made(options: dict[str, Any], seed: int) -> FMClassifier:
    settings = options["settings"]
    return FMClassifier(max_iter=options["epochs"], n_jobs=options["threads"], random_state=seed, **settings)


def epoch(options: dict[str, Any]) -> Timed:
    """A turn trains a new model with its own seed, and scores the validation rows outside the measured time."""
    log = Log.open(options["log"])
    x, y, held = one_hot(log, log.ids), log.y.astype(np.int64), one_hot(log, log.valid_ids)
    seeds = count()

    def turn() -> dict[str, float]:
        model = made(options, next(seeds))
        began = time.perf_counter()
        model.fit(x, y)
        seconds = (time.perf_counter() - began) / options["epochs"]
        return {"seconds": seconds, "auc": float(roc_auc_score(log.valid_y, model.predict_proba(held)[:, 1]))}

    return turn, {"parameters": 1 + x.shape[1] * (1 + options["settings"]["n_factors"]), **options["settings"]}


def scoring(options: dict[str, Any]) -> Timed:
    """Probabilities of the training rows from a prepared sparse matrix."""
    log = Log.open(options["log"])
    few = log.first(20_000)
    model = made({**options, "epochs": 1}, 0).fit(one_hot(few, few.ids), few.y.astype(np.int64))
    x = one_hot(log, log.ids)

    def turn() -> dict[str, float]:
        began = time.perf_counter()
        model.predict_proba(x)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "rows per second": len(log.y) / seconds}

    return turn, {"rows": len(log.y)}

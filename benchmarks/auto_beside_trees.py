"""`fieldwise auto` beside LightGBM and CatBoost tuned natively for as many minutes, on the same split.

    python -m benchmarks.auto_beside_trees --tables adult,criteo --minutes 3 --data-dir DATA --out RESULTS.json

The three start at the same moment, with one thread each, so that other work on the machine slows all
of them. The trees get a random search: the library's defaults first, then random settings, each
stopped by the logloss of the validation rows, by which the best is chosen. It is fitted again on
training and validation rows together, as `auto` does. The test rows are scored once. Tables that are
in the results file are not run again; at the end the table of `docs/trees.md` is printed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from benchmarks.defaults.runs import Rows, rows_of
from benchmarks.defaults.tables import TABLES
from benchmarks.tree_columns import features
from fieldwise import Bundle
from fieldwise.evaluation import binary_metrics, delong
from fieldwise.runs.environment import environment
from fieldwise.storage.files import write_atomically

PARTS = ("train", "valid", "test")
MOST_TREES = 5000
PATIENCE = 50
"""Trees without a better logloss of the validation rows."""
LIBRARIES = {"lightgbm": "LightGBM", "catboost": "CatBoost"}


class Part(NamedTuple):
    """Columns [N, C] and labels [N]."""

    x: np.ndarray
    y: np.ndarray


class Training(NamedTuple):
    """Rows to train on, and what ends the training: no better logloss of the validation rows, if any, trees, or time.

    `categories` are the numbers of the columns that hold categories, and `deadline` is of `time.monotonic`.
    """

    train: Part
    valid: Part | None
    categories: list[int]
    trees: int
    deadline: float


class Fitted(NamedTuple):
    """A trained model: its number of trees, the logloss of the validation rows, and a function of columns to logits."""

    trees: int
    loss: float
    score: Callable[[np.ndarray], np.ndarray]


def lightgbm_settings(rng: np.random.Generator) -> dict[str, Any]:
    """Random settings of LightGBM."""
    return {
        "learning_rate": log_uniform(rng, 0.01, 0.3),
        "num_leaves": round(log_uniform(rng, 4, 256)),
        "min_data_in_leaf": round(log_uniform(rng, 5, 200)),
        "feature_fraction": rng.uniform(0.3, 1.0),
        "bagging_fraction": rng.uniform(0.5, 1.0),
        "bagging_freq": 1,
        "lambda_l2": log_uniform(rng, 1e-3, 100),
        "cat_smooth": log_uniform(rng, 1, 100),
        "cat_l2": log_uniform(rng, 1, 100),
    }


def catboost_settings(rng: np.random.Generator) -> dict[str, Any]:
    """Random settings of CatBoost."""
    return {
        "learning_rate": log_uniform(rng, 0.01, 0.3),
        "depth": int(rng.integers(3, 9)),
        "l2_leaf_reg": log_uniform(rng, 1, 100),
        "random_strength": log_uniform(rng, 0.1, 10),
        "bagging_temperature": rng.uniform(0.0, 1.0),
        "one_hot_max_size": int(rng.choice([2, 10, 50])),
    }


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A random number whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def fit_lightgbm(settings: dict[str, Any], training: Training) -> Fitted:
    """LightGBM until `PATIENCE` or the training's trees or deadline end it."""
    import lightgbm

    parameters = {"objective": "binary", "verbosity": -1, "num_threads": 1, "seed": 0, **settings}
    train = training.train
    valid = training.valid
    columns = lightgbm.Dataset(
        train.x,
        train.y,
        categorical_feature=training.categories,
        params=dict(parameters),
    )
    booster = lightgbm.Booster(parameters, columns)
    if valid is not None:
        booster.add_valid(lightgbm.Dataset(valid.x, valid.y, reference=columns), "valid")
    best_trees = training.trees
    best_loss = np.inf
    for tree in range(1, training.trees + 1):
        cannot_split = booster.update()
        if valid is not None:
            loss = booster.eval_valid()[0][2]
            if loss < best_loss:
                best_loss = loss
                best_trees = tree
            if tree - best_trees >= PATIENCE:
                break
        if cannot_split or time.monotonic() > training.deadline:
            break

    def score(x: np.ndarray) -> np.ndarray:
        return np.asarray(booster.predict(x, raw_score=True, num_iteration=best_trees))

    return Fitted(best_trees, float(best_loss), score)


def fit_catboost(settings: dict[str, Any], training: Training) -> Fitted:
    """CatBoost until `PATIENCE` or the training's trees or deadline end it."""
    import catboost

    def pool(x: np.ndarray, y: np.ndarray | None = None) -> Any:
        columns = {}
        for number in range(x.shape[1]):
            column = np.ascontiguousarray(x[:, number])
            if number in training.categories:
                column = np.where(np.isnan(column), -1, column).astype(np.int32)
            columns[f"column_{number}"] = column
        return catboost.Pool(pl.DataFrame(columns), y, cat_features=training.categories)

    class Clock:
        def after_iteration(self, _: Any) -> bool:
            return time.monotonic() < training.deadline

    train = training.train
    valid = training.valid
    model = catboost.CatBoost(
        {
            "loss_function": "Logloss",
            "iterations": training.trees,
            "thread_count": 1,
            "random_seed": 0,
            "allow_writing_files": False,
            "logging_level": "Silent",
            "use_best_model": valid is not None,
            **settings,
        }
    )
    eval_set = None
    if valid is not None:
        eval_set = pool(valid.x, valid.y)
    model.fit(
        pool(train.x, train.y),
        eval_set=eval_set,
        early_stopping_rounds=PATIENCE if valid is not None else None,
        callbacks=[Clock()],
    )
    loss = np.inf
    if valid is not None:
        loss = model.get_best_score()["validation"]["Logloss"]

    def score(x: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict(pool(x), prediction_type="RawFormulaVal"))

    return Fitted(model.tree_count_, float(loss), score)


FITS = {"lightgbm": fit_lightgbm, "catboost": fit_catboost}
SETTINGS = {"lightgbm": lightgbm_settings, "catboost": catboost_settings}


def tune(library: str, folder: Path, deadline: float) -> None:
    """Search settings until the deadline; writes the logits of the test rows.

    The time of the best trial, at first half of all, is kept for the last training.
    """
    stored = np.load(folder / "columns.npz")
    parts = {name: Part(stored[f"{name}_x"], stored[f"{name}_y"]) for name in PARTS}
    categories = stored["categories"].tolist()
    rng = np.random.default_rng(0)
    best: Fitted | None = None
    best_settings: dict[str, Any] = {}
    seconds_of_best = (deadline - time.monotonic()) / 2
    trials = 0
    while best is None or time.monotonic() + seconds_of_best < deadline:
        settings = SETTINGS[library](rng) if trials else {}
        began = time.monotonic()
        training = Training(
            train=parts["train"],
            valid=parts["valid"],
            categories=categories,
            trees=MOST_TREES,
            deadline=deadline - seconds_of_best,
        )
        fitted = FITS[library](settings, training)
        trials += 1
        if best is None or fitted.loss < best.loss:
            best = fitted
            best_settings = settings
            seconds_of_best = time.monotonic() - began
    both = Part(*map(np.concatenate, zip(parts["train"], parts["valid"], strict=True)))
    on_both = Training(
        train=both, valid=None, categories=categories, trees=best.trees, deadline=np.inf
    )
    again = FITS[library](best_settings, on_both)
    about = {"trials": trials, "trees": best.trees, "settings": best_settings}
    write_atomically(folder / f"{library}.json", json.dumps(about).encode())
    np.save(folder / f"{library}.npy", again.score(parts["test"].x))


def prepare(rows: Rows, folder: Path) -> None:
    """Write the table with its split for `auto`, and its columns for the trees."""
    prepared = rows.prepared
    parts = {"train": prepared.train, "valid": prepared.valid, "test": prepared.test}
    frames = [part.frame.with_columns(part_of_split=pl.lit(name)) for name, part in parts.items()]
    pl.concat(frames).write_parquet(folder / "table.parquet")
    (folder / "schema.toml").write_text(rows.schema.to_toml())
    arrays = {}
    for name, part in parts.items():
        arrays[f"{name}_x"], categories = features(part, rows.schema)
        arrays[f"{name}_y"] = np.asarray(part.main, np.float64)
    np.savez(folder / "columns.npz", categories=np.array(categories, np.int64), **arrays)


def commands(folder: Path, minutes: float) -> dict[str, list[str]]:
    """The command of each contender."""
    table = str(folder / "table.parquet")
    auto = [sys.executable, "-m", "fieldwise", "auto", table, "--minutes", str(minutes)]
    auto += ["--schema", str(folder / "schema.toml"), "--split-column", "part_of_split"]
    result = {"auto": [*auto, "--out", str(folder / "auto"), "--quiet"]}
    for library in LIBRARIES:
        result[library] = [sys.executable, "-m", __spec__.name, "--minutes", str(minutes)]
        result[library] += ["--tune", library, "--out", str(folder)]
    return result


def run(rows: Rows, minutes: float) -> dict[str, Any]:
    """All three on a table: figures of the test rows, and what each took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(rows, folder)
        started = {}
        for contender, command in commands(folder, minutes).items():
            log = (folder / f"{contender}.log").open("wb")
            environ = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
            started[contender] = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        cpu = {}
        for contender, process in started.items():
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit((folder / f"{contender}.log").read_text())
            cpu[contender] = round(usage.ru_utime + usage.ru_stime, 1)
        y = np.asarray(rows.prepared.test.main, np.float64)
        bundle = Bundle.load(folder / "auto" / "bundle")
        scores = {"auto": bundle.calibrated(bundle.score(rows.prepared.test.frame))}
        assert bundle.about.recipe is not None, "auto keeps it"
        about = {"auto": {"model": bundle.about.recipe.settings["model"]}}
        for library in LIBRARIES:
            scores[library] = np.load(folder / f"{library}.npy")
            about[library] = json.loads((folder / f"{library}.json").read_text())
    return figures(y, scores) | {
        "rows": len(rows.prepared.train.table),
        "minutes": minutes,
        "cpu_seconds": cpu,
        "about": about,
        "environment": environment(),
    }


def figures(y: np.ndarray, scores: dict[str, np.ndarray]) -> dict[str, Any]:
    """AUC and logloss of each, and what `auto` has more than each library, with half of the 95 % interval."""
    result: dict[str, Any] = {}
    for name, score in scores.items():
        metrics = binary_metrics(y, score)
        result[name] = {"auc": metrics["auc"], "logloss": metrics["logloss"]}
        if name == "auto":
            continue
        pair = delong(y, scores["auto"], score)
        losses = row_losses(y, scores["auto"]) - row_losses(y, score)
        result[name] |= {
            "auc_gain": [pair.difference, 1.96 * pair.standard_error],
            "logloss_gain": [float(losses.mean()), float(1.96 * losses.std() / len(losses) ** 0.5)],
        }
    return result


def row_losses(y: np.ndarray, score: np.ndarray) -> np.ndarray:
    """The logloss of each row [N]."""
    losses: np.ndarray = np.logaddexp(0.0, score) - y * score
    return losses


def line(table: str, found: dict[str, Any]) -> str:
    """A table's line: `auto`'s AUC and logloss, and each library's with `auto`'s difference from it."""
    auto = found["auto"]
    cells = [table, f"{found['rows']:,}", f"{auto['auc']:.4f} / {auto['logloss']:.4f}"]
    for library in LIBRARIES:
        other = found[library]
        differences = []
        for gain, sign in (("auc_gain", 1), ("logloss_gain", -1)):
            value, half = other[gain]
            text = f"{value:+.4f} ± {half:.4f}"
            differences.append(f"**{text}**" if sign * value > half else text)
        cells.append(f"{other['auc']:.4f} / {other['logloss']:.4f}: {', '.join(differences)}")
    cells.append(", ".join(f"{seconds:.0f}" for seconds in found["cpu_seconds"].values()))
    return f"| {' | '.join(cells)} |"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the tables that are missing in the results, and print all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto_beside_trees")
    default = Path(os.environ.get("FIELDWISE_DATA", "data"))
    parser.add_argument("--data-dir", type=Path, default=default)
    parser.add_argument(
        "--tables", default="adult,criteo,avazu,sim-10k,ml1m-time-10k,book-crossing"
    )
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--out", type=Path, default=Path("build/auto-beside-trees.json"))
    parser.add_argument("--tune", choices=list(LIBRARIES), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.tune:
        tune(given.tune, given.out, time.monotonic() + 60 * given.minutes)
        return
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in given.tables.split(","):
        if name not in kept:
            kept[name] = run(rows_of(TABLES[name], 0, given.data_dir), given.minutes)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(given.out, json.dumps(kept, indent=1).encode())
            print(line(name, kept[name]), flush=True)
    print(
        "| table | training rows | auto | LightGBM | CatBoost | processor seconds |\n|---|---|---|---|---|---|"
    )
    for name, found in kept.items():
        print(line(name, found))


if __name__ == "__main__":
    main()

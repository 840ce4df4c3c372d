"""Trees beside networks: AUC and logloss of models with default settings on the development tables.

    python -m benchmarks.trees_beside_networks --data-dir DATA --tables sim-1k,adult --models fm,lightgbm

Every run is added to `benchmarks/trees_beside_networks.json`; runs that are there are not repeated. At the end it
prints the table of `docs/trees.md`: test AUC, and for each model its difference from the best network with a paired
95 % interval (DeLong); `--chart FILE` draws the differences.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.defaults.runs import Rows, rows_of
from benchmarks.defaults.tables import TABLES
from fieldwise.charts import dot_chart
from fieldwise.evaluation import binary_metrics
from fieldwise.evaluation.ranking import delong
from fieldwise.runs.environment import commit
from fieldwise.runs.pipeline import fit_recipe
from fieldwise.runs.recipe import Recipe
from fieldwise.storage.files import write_atomically

NETWORKS = ("lr", "fm", "autoint+", "finalmlp")
TREES = ("lightgbm", "catboost")
KEPT = Path(__file__).with_suffix(".json")


def run(rows: Rows, model: str, seed: int) -> dict[str, Any]:
    """Train a model with default settings; its test scores and figures."""
    table = rows.table
    plain = {
        "data": {"path": f"{table.name}.csv"},
        "schema": rows.schema.to_dict(),
        "model": {"name": model},
        "seed": seed,
    }
    recipe = Recipe.from_dict(plain, f"{table.name}/{model}")
    prepared = rows.prepared
    began = time.perf_counter()
    trained = fit_recipe(recipe, prepared.encoder, prepared.train, prepared.valid)
    seconds = time.perf_counter() - began
    scores = trained.bundle.part_scores(prepared.test, prepared.encoder)[:, 0]
    y = np.asarray(prepared.test.main, np.float64)
    metrics = binary_metrics(y, scores)
    return {
        "auc": metrics["auc"],
        "logloss": metrics["logloss"],
        "seconds": round(seconds, 1),
        "epochs": trained.history.epochs,
        "rows": len(prepared.train.table),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "scores": [round(float(score), 5) for score in scores],
        "y": y.astype(int).tolist(),
    }


def best_network(runs: dict[str, Any]) -> str:
    """The network with the highest test AUC: trees are compared with it, which favours networks."""
    return max((name for name in NETWORKS if name in runs), key=lambda name: runs[name]["auc"])


def gain(runs: dict[str, Any], name: str) -> tuple[float, float]:
    """The AUC of a model less the best network's, and half of its 95 % interval."""
    y = np.array(runs[name]["y"], np.float64)
    other = runs[best_network(runs)]
    pair = delong(y, np.array(runs[name]["scores"]), np.array(other["scores"]))
    return pair.difference, 1.96 * pair.standard_error


def line(table: str, runs: dict[str, Any]) -> str:
    """A table's line: the best network, and each model of trees against it."""
    best = best_network(runs)
    cells = [table, f"{runs[best]['rows']:,}", f"{best} {runs[best]['auc']:.4f}"]
    for name in TREES:
        if name not in runs:
            cells.append("-")
            continue
        difference, half = gain(runs, name)
        text = f"{runs[name]['auc']:.4f} ({difference:+.4f} ± {half:.4f})"
        cells.append(f"**{text}**" if difference > half else text)
    return f"| {' | '.join(cells)} |"


def draw(kept: dict[str, dict[str, Any]], path: Path) -> None:
    """A chart of the differences from the best network, a row for each table and model of trees."""
    names = []
    gains = []
    for table, runs in kept.items():
        for name, title in (("lightgbm", "LightGBM"), ("catboost", "CatBoost")):
            if name in runs and any(network in runs for network in NETWORKS):
                names.append(f"{table}, {title}")
                gains.append(gain(runs, name))
    middle = np.array([difference for difference, _ in gains])
    half = np.array([width for _, width in gains])
    span = (float((middle - half).min()), float((middle + half).max()))
    title = "AUC less that of the best network, 95 % interval; right of the line trees are better"
    colours = [name.endswith("CatBoost") for name in names]
    chart = dot_chart(
        names,
        middle,
        span,
        title=title,
        low=middle - half,
        high=middle + half,
        colours=colours,
        rule=0.0,
    )
    chart.save(path)


def main() -> None:
    """Make the runs that are missing, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trees_beside_networks")
    default = Path(os.environ.get("FIELDWISE_DATA", "data"))
    parser.add_argument("--data-dir", type=Path, default=default)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--models", default=",".join((*NETWORKS, *TREES)))
    parser.add_argument("--kept", type=Path, default=KEPT)
    parser.add_argument("--chart", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, dict[str, Any]] = {}
    if given.kept.exists():
        kept = json.loads(given.kept.read_text())
    for name in given.tables.split(","):
        rows = None
        for model in given.models.split(","):
            if model in kept.get(name, {}):
                continue
            if rows is None:
                rows = rows_of(TABLES[name], 0, given.data_dir)
            kept.setdefault(name, {})[model] = run(rows, model, 0)
            done = kept[name][model]
            print(f"{name} {model}: AUC {done['auc']:.4f}, {done['seconds']:.0f} s", flush=True)
            write_atomically(given.kept, json.dumps(kept).encode())
    print("| table | training rows | best network | LightGBM | CatBoost |\n|---|---|---|---|---|")
    for name, runs in kept.items():
        if any(network in runs for network in NETWORKS):
            print(line(name, runs))
    if given.chart is not None:
        draw(kept, given.chart)


if __name__ == "__main__":
    main()

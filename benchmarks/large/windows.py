"""`windows`: an epoch read window by window against one of a full shuffle of the same encoded rows, in alternation."""

import argparse
import json
import shutil
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.large.log import about
from benchmarks.large.process import environment_with, fieldwise, watched
from benchmarks.large.recipe import write_recipe
from benchmarks.large.results import store
from benchmarks.large.train import measures

__all__ = ["run"]


def run(options: argparse.Namespace) -> int:
    """The command."""
    log, work = about(options.data), (options.work / "windows").absolute()
    shutil.rmtree(work, ignore_errors=True)
    window = options.window_rows or max(1, log["rows"] // 20)
    rows = {"full shuffle": log["rows"], f"windows of {window:,} rows": window}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in rows}
    for number in range(options.rounds):
        for name in list(rows) if number % 2 == 0 else list(rows)[::-1]:
            one = trained(options, work, log, rows[name], number)
            found[name].append(one)
            print(
                f"{name}: {one['epoch']:.2f} s an epoch, {one['peak'] / 1e6:,.0f} MB, AUC {one['auc']:.5f}",
                file=sys.stderr,
                flush=True,
            )
    full, windows = found.values()
    ratios = [a["epoch"] / b["epoch"] for a, b in zip(full, windows, strict=True)]
    aucs = [b["auc"] - a["auc"] for a, b in zip(full, windows, strict=True)]
    store(options.json, "windows", options.words, {"rounds": found, "ratios": ratios, "log": log})
    for name, ones in found.items():
        epoch, peak = (statistics.median(one[key] for one in ones) for key in ("epoch", "peak"))
        print(f"{name}: {epoch:.2f} s an epoch, peak anonymous memory in training {peak / 1e6:,.0f} MB, medians")
    print(
        f"rate of windows to that of a full shuffle: median {statistics.median(ratios):.3f} (least {min(ratios):.3f}, "
        f"most {max(ratios):.3f}); test AUC differs by {min(aucs):+.5f} to {max(aucs):+.5f}, a seed each round"
    )
    shutil.rmtree(work)
    return 0


def trained(
    options: argparse.Namespace, work: Path, log: dict[str, Any], shuffle_rows: int, seed: int
) -> dict[str, Any]:
    """One training; the prepared rows are shared by all."""
    training = {"epochs": options.epochs, "patience": options.epochs, "shuffle_rows": shuffle_rows}
    recipe = write_recipe(work / "recipe.toml", log, options.model, memory=options.memory, training=training)
    words = ["train", recipe, "--out", work / "bundle", "--overwrite", "--threads", options.threads, "--json"]
    done = watched(fieldwise(*words, "--seed", seed, "--set", "data_seed=0"), env=environment_with(work)).checked()
    found = measures(done, json.loads(done.out), {})
    return {
        "epoch": found["seconds"]["epoch"],
        "peak": found["bytes"]["peak anonymous in training"],
        "auc": found["auc"]["test"],
    }

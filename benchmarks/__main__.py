"""`make bench`: seconds a training epoch of every model on the simulated log, beside what the machine itself can do.

Models take turns within one run, each after a warm-up, and medians are shown with their spread: machines are shared, so
only ratios within one run mean anything.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fieldwise.models import parameter_count
from fieldwise.models.build import build_network
from fieldwise.pipeline import prepare_recipe
from fieldwise.recipe import load_recipe
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective

MODELS = ("lr", "fm", "afm", "autoint", "autoint-plus", "inttower")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def machine(repeats: int) -> dict[str, float]:
    """Float32 matrix rate (GFLOP/s) and copy bandwidth (GB/s, read plus written), each the median of `repeats`."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    source, target = torch.randn(2**24), torch.empty(2**24)
    a @ b, target.copy_(source)
    rate = [2 * 1024**3 / seconds(lambda: a @ b) / 1e9 for _ in range(repeats)]
    copy = [2 * source.nbytes / seconds(lambda: target.copy_(source)) / 1e9 for _ in range(repeats)]
    return {"gflops_float32": statistics.median(rate), "copy_gb_per_s": statistics.median(copy)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rows", type=int, default=60_000, help="rows of the simulated log")
    parser.add_argument("--repeats", type=int, default=5, help="measured epochs a model")
    parser.add_argument("--threads", type=int, help="threads; PyTorch's choice where left out")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)

    rows = [f"data.rows={arguments.rows}"]
    recipes = {name: load_recipe(f"simulated/{name}", rows) for name in MODELS}
    prepared = prepare_recipe(recipes["lr"], Path())
    preparing = statistics.median(seconds(lambda: prepare_recipe(recipes["lr"], Path())) for _ in range(3))
    table = prepared.train.table
    networks = {name: build_network(recipe.model, table.layout, seed=0) for name, recipe in recipes.items()}
    sizes = {name: parameter_count(network) for name, network in networks.items()}
    measured: dict[str, list[float]] = {name: [] for name in MODELS}
    for repeat in range(arguments.repeats + 1):
        for name, recipe in recipes.items():
            settings = dataclasses.replace(recipe.training, epochs=1)
            valid = prepared.valid.table
            run = fit(networks[name], table, valid, settings=settings, objective=Objective(), seed=repeat)
            if repeat and run.seconds_per_epoch is not None:  # the first pass warms up
                measured[name].append(run.seconds_per_epoch)
    report = {
        "machine": {
            "cpu": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            **machine(7),
        },
        "torch": torch.__version__,
        "train_rows": len(table),
        "prepare_seconds": preparing,
        "seconds_per_epoch": {
            name: {"median": statistics.median(t), "least": min(t), "most": max(t), "parameters": sizes[name]}
            for name, t in measured.items()
        },
    }
    if arguments.json:
        json.dump(report, sys.stdout, indent=1)
        print()
        return
    facts = report["machine"]
    assert isinstance(facts, dict)
    print(
        f"{facts['threads']} threads, {facts['gflops_float32']:.0f} GFLOP/s float32, "
        f"copy {facts['copy_gb_per_s']:.1f} GB/s; "
        f"{len(table):,} training rows, prepared in {preparing:.2f} s"
    )
    print(f"{'model':14} {'parameters':>10} {'s/epoch':>8} {'least':>7} {'most':>7} {'rows/s':>10}")
    for name, times in measured.items():
        middle = statistics.median(times)
        spread = f"{min(times):7.2f} {max(times):7.2f}"
        print(f"{name:14} {sizes[name]:>10,} {middle:8.2f} {spread} {len(table) / middle:>10,.0f}")


if __name__ == "__main__":
    main()

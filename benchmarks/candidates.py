"""One context x 1,000 candidates compared with 1,000 full rows: `python -m benchmarks.candidates [--json]`.

Both score the same encoded rows in alternation, after a warm-up pass; 30 of 39 fields belong to the context, D 16.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fieldwise.layers.candidates import Split
from fieldwise.layout import Batch, Layout
from fieldwise.models import AFM, DSSM, FM, LR, AutoInt, AutoIntPlus, DeepFM, IntTower, ModelSettings
from fieldwise.ops import use_ops
from fieldwise.scoring.candidates import joined, score_candidates, shares_context

FIELDS, CONTEXT, CATEGORIES, DIM = 39, 30, 1000, 16
MODELS: dict[str, ModelSettings] = {
    "lr": LR(),
    "fm": FM(embedding_dim=DIM),
    "deepfm": DeepFM(embedding_dim=DIM),
    "afm": AFM(embedding_dim=DIM, attention_dim=16),
    "autoint": AutoInt(embedding_dim=DIM, layers=3, heads=2, attention_dim=64),
    "autoint+": AutoIntPlus(embedding_dim=DIM, layers=3, heads=2, attention_dim=64),
    "dssm": DSSM(embedding_dim=DIM),
    "inttower": IntTower(embedding_dim=DIM),
}


def request(candidates: int) -> tuple[Split, Batch, Batch]:
    """A split of 39 categorical fields, a context and its candidates, all at random."""
    split = Split.by_role(Layout.of_sizes([CATEGORIES] * FIELDS, ["context"] * CONTEXT + ["item"] * (FIELDS - CONTEXT)))
    sides = []
    for rows, side in ((1, split.context), (candidates, split.candidates)):
        ids = torch.randint(0, CATEGORIES, (rows, len(side.positions))) + CATEGORIES * torch.tensor(side.positions)
        sides.append(Batch.of_ids(ids.int()))
    return split, *sides


def seconds(work: Callable[[], Tensor]) -> float:
    """Wall time of one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(network: nn.Module, candidates: int, repeats: int) -> dict[str, Any]:
    """Milliseconds of both, the ratio of their medians, and the largest difference of their scores."""
    split, context, items = request(candidates)
    rows = joined(split, context, items)
    blocks = [Batch(ids, rows.values[: len(ids)], *rows[2:]) for ids in rows.ids.split(256)]
    works: dict[str, Callable[[], Tensor]] = {
        "candidates": lambda: score_candidates(network, split, context, items),
        "full_rows": lambda: network(rows),
        "full_rows_by_256": lambda: torch.cat([network(block) for block in blocks]),
    }
    apart = float((works["candidates"]() - works["full_rows"]()).abs().max())
    times: dict[str, list[float]] = {name: [] for name in works}
    for repeat in range(repeats + 1):
        for name, work in works.items():
            took = seconds(work)
            if repeat:  # the first pass is the warm-up
                times[name].append(1e3 * took)
    middle = {name: statistics.median(found) for name, found in times.items()}
    return {
        "milliseconds": {n: {"median": middle[n], "least": min(t), "most": max(t)} for n, t in times.items()},
        "times_faster": middle["full_rows"] / middle["candidates"],
        "times_faster_than_blocks": middle["full_rows_by_256"] / middle["candidates"],
        "largest_difference": apart,
        "shares_context": shares_context(network, split),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.candidates", description=__doc__)
    parser.add_argument("--candidates", type=int, default=1000, help="candidates per request")
    parser.add_argument("--repeats", type=int, default=11, help="measured requests per model")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="which models")
    parser.add_argument("--ops", nargs="+", default=["plain", "auto"], help="backends of the ops: plain, auto, native")
    parser.add_argument("--threads", type=int, help="threads; PyTorch's default if not given")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    layout = request(1)[0].layout
    networks = {name: MODELS[name].build(layout).eval() for name in arguments.models}
    measured: dict[str, dict[str, Any]] = {}
    with torch.no_grad():
        for ops in arguments.ops:
            with use_ops(ops):
                measured[ops] = {
                    name: measure(network, arguments.candidates, arguments.repeats)
                    for name, network in networks.items()
                }
    about = {"fields": FIELDS, "context_fields": CONTEXT, "embedding_dim": DIM, "candidates": arguments.candidates}
    report = {**about, "threads": torch.get_num_threads(), "torch": torch.__version__, "ops": measured}
    if arguments.json:
        json.dump(report, sys.stdout, indent=1)
        print()
        return
    print(f"{report['threads']} threads, {arguments.candidates:,} candidates; milliseconds (least to most)")
    print(f"{'ops':7} {'model':9} {'candidates':>24} {'full rows':>24} {'times':>6} {'full by 256':>12} {'times':>6}")
    for ops, models in measured.items():
        for name, found in models.items():
            cells = {
                n: f"{t['median']:8.2f} ({t['least']:.2f}-{t['most']:.2f})" for n, t in found["milliseconds"].items()
            }
            blocks = found["milliseconds"]["full_rows_by_256"]["median"]
            print(
                f"{ops:7} {name:9} {cells['candidates']:>24} {cells['full_rows']:>24} {found['times_faster']:6.2f} "
                f"{blocks:12.2f} {found['times_faster_than_blocks']:6.2f}"
            )


if __name__ == "__main__":
    main()

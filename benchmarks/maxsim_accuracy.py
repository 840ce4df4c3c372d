"""Accuracy of bfloat16 and int8 item heads compared with float32: `python -m benchmarks.maxsim_accuracy [--json]`.

It uses random heads, and the heads of an IntTower trained for one epoch on the simulated log. Errors of scores are also
divided by the standard deviation of a user's float32 scores over the items, which matters for ranking. Recall is the
share of a user's best items by float32 among as many best items by the storage. All values are means over users.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fieldwise.models.inttower import IntTowerNetwork
from fieldwise.ops.stored_items import Storage, StoredItems
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.pipeline import train_recipe
from fieldwise.runs.recipe import load_recipe

STORAGES: tuple[Storage, ...] = ("bfloat16", "int8")
BEST = (20, 100)
TRAINED = (
    "data.rows=120000", "data.items=3000", "model.hidden=[64, 64, 32]", "model.user_heads=32", "model.item_heads=32",
    "model.head_dim=32", "training.epochs=1", "training.batch_size=256",
)  # fmt: skip


def ranks(score_UN: Tensor) -> Tensor:
    """Of every score within its row, from 0."""
    return score_UN.argsort(1).argsort(1).double()


def compare(user_UHP: Tensor, item_NKP: Tensor) -> dict[str, dict[str, float]]:
    """Errors of scores, Spearman's correlation and recall of each storage, compared with float32."""
    reference = StoredItems.of(item_NKP).scores(user_UHP)
    found = {}
    for storage in STORAGES:
        score = StoredItems.of(item_NKP, storage).scores(user_UHP)
        error, spread = (score - reference).abs(), reference.std(1, keepdim=True)
        a, b = (r - r.mean(1, keepdim=True) for r in (ranks(reference), ranks(score)))
        found[storage] = {
            "max_error": error.max().item(),
            "mean_error": error.mean().item(),
            "max_of_spread": (error / spread).max().item(),
            "mean_of_spread": (error / spread).mean().item(),
            "spearman": ((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))).mean().item(),
        }
        for k in BEST:
            best, given = (s.topk(k, 1).indices.numpy() for s in (reference, score))
            shares = [len(np.intersect1d(x, y)) / k for x, y in zip(best, given, strict=True)]
            found[storage][f"recall_at_{k}"] = float(np.mean(shares))
    return found


def trained_heads(users: int) -> tuple[Tensor, Tensor]:
    """Heads of the users of the first test rows, and of all films in the training rows."""
    recipe = load_recipe("simulated/inttower", list(TRAINED))
    prepared = prepare_recipe(recipe, Path())
    network = train_recipe(recipe, prepared).bundle.network
    assert isinstance(network, IntTowerNetwork)
    frame = prepared.train.frame
    first = np.unique(frame.get_column("item_id").to_numpy(), return_index=True)[1]
    with torch.no_grad():
        network.eval()
        [(films, _)] = prepared.train.table.batches(len(first), order=torch.from_numpy(first))
        rows, _ = next(iter(prepared.test.table.batches(users)))
        return network.user(rows).flatten(1, 2), network.item(films)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.maxsim_accuracy", description=__doc__)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    options = parser.parse_args()
    torch.manual_seed(0)
    cases = {
        "random heads": (torch.randn(options.users, 96, 32), torch.randn(10_000, 32, 32)),
        "IntTower, simulated log": trained_heads(options.users),
    }
    found = {name: compare(*heads) for name, heads in cases.items()}
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        return
    columns = ("max error", "mean error", "max / spread", "mean / spread", "Spearman", *(f"recall@{k}" for k in BEST))
    print(f"| heads | storage | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for name, storages in found.items():
        for storage, numbers in storages.items():
            items = len(cases[name][1])
            print(f"| {name} ({items} items) | {storage} | {' | '.join(f'{x:.4g}' for x in numbers.values())} |")


if __name__ == "__main__":
    main()

"""Recall@100 of a two-tower model that ranks the whole catalogue, by what it is trained on.

python -m benchmarks.recall simulated --items 100000 [--rows N] [--model inttower] [--seeds 3]
python -m benchmarks.recall ml-1m FOLDER    # ratings.csv.gz; ratings of 4 and 5

Positives only, each user's last one held out; the rest, with one negative each for logloss and
early stopping, trains the model. IntTower ranks as it pre-ranks, by the heads of an index. A
user's training items are not ranked.
"""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl

from fieldwise import Categorical, Label, NegativeSampling, Recommender, Schema, TrainingSettings
from fieldwise import simulate as simulated_log
from fieldwise.bundle.bundle import Bundle
from fieldwise.evaluation.bootstrap import percentile_interval
from fieldwise.models.twotower import HeadsNetwork
from fieldwise.serving import Ranker, build_index, item_table

K = 100
LEARNT = {
    "logloss, uniform negatives": ("logloss", "uniform"),
    "logloss, negatives by popularity": ("logloss", "popularity"),
    "logloss, mixed negatives": ("logloss", "mixed"),
    "in-batch softmax, log-Q, mixed uniform": ("in_batch_softmax", "uniform"),
}


def log_of(options: argparse.Namespace) -> pl.DataFrame:
    """User, item and order of the positive rows."""
    if options.source == "simulated":
        log = simulated_log(options.rows, users=options.rows // 50, items=options.items, seed=0)
        positives = log.filter(pl.col("liked") == 1)
        return positives.select(user="user_id", item="item_id", at="timestamp")
    table = pl.read_csv(options.folder / "ratings.csv.gz")
    positives = table.filter(pl.col("rating") >= 4, pl.col("user_id") <= options.users)
    return positives.select(user="user_id", item="movie_id", at="user_order")


def hits(
    bundle: Bundle,
    catalogue: pl.DataFrame,
    held_out: pl.DataFrame,
    items_of_user: Mapping[object, list[object]],
) -> np.ndarray:
    """Whether each user's held-out item is among the K best that the user has not used, as 0 or 1."""
    with TemporaryDirectory() as folder:
        if isinstance(bundle.network, HeadsNetwork):
            index, _ = build_index(bundle, catalogue, folder)
            ranker = Ranker(None, index, tower=bundle)
        else:
            ranker = Ranker(bundle, item_table(catalogue, "item"))
        found = []
        for user, item in held_out.select("user", "item").iter_rows():
            listed = ranker.recommend({"user": user}, k=K, prerank=K, seen=items_of_user[user])
            found.append(float(item in listed.items["item"]))
    return np.array(found)


def main() -> None:
    """Print a line for each way to train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", choices=["simulated", "ml-1m"])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=6040, help="of ml-1m, the first ones")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--tested", type=int, default=1_000, help="users to rank for")
    parser.add_argument("--only", default="", help="ways whose name has this")
    parser.add_argument("--model", default="dssm")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()

    log = log_of(options).unique(["user", "item"], keep="first", maintain_order=True)
    log = log.sort("user", "at", maintain_order=True).with_columns(liked=pl.lit(1))
    is_last = pl.col("user").is_last_distinct() & (pl.len().over("user") > 2)
    held_out = log.filter(is_last)
    train = log.filter(~is_last)
    held_out = held_out.filter(pl.col("item").is_in(train["item"].unique().to_list()))
    catalogue = train.select("item").unique(maintain_order=True)
    seen = train.group_by("user").agg("item")
    items_of_user = dict(zip(seen["user"], seen["item"].to_list(), strict=True))
    users = held_out.filter(pl.col("user").is_in(list(items_of_user))).sample(
        min(options.tested, held_out.height), seed=0
    )
    print(f"{train.height:,} positives, {catalogue.height:,} items, {users.height:,} users tested")

    fields = (Categorical("user", role="user"), Categorical("item", role="item"))
    schema = Schema(fields=fields, label=Label("liked"), user="user", item="item")
    baseline = None
    for title, (loss, kind) in LEARNT.items():
        if options.only not in title:
            continue
        began = time.perf_counter()
        training = TrainingSettings(loss=loss, epochs=options.epochs, monitor="gauc")
        negatives = NegativeSampling(per_positive=1, kind=kind, parts=("train", "valid"))
        hits_of_seeds = []
        for seed in range(options.seeds):
            recommender = Recommender(
                schema, options.model, training=training, negatives=negatives, seed=seed
            )
            recommender.fit(train)
            hits_of_seeds.append(hits(recommender.bundle_, catalogue, users, items_of_user))
            print(f"  seed {seed}: {hits_of_seeds[-1].mean():.4f}", flush=True)
        values = np.mean(hits_of_seeds, axis=0)
        baseline = values if baseline is None else baseline
        low, high = percentile_interval(values - baseline)
        seconds = time.perf_counter() - began
        print(
            f"{title}: {values.mean():.4f} [{low:+.4f}, {high:+.4f}]  {seconds:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()

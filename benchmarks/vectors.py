"""What vectors of items' texts bring to items that no training row has, against the best possible score.

    python -m benchmarks.vectors [--rows 200000] [--model fm] [--seeds 3]

Items have a text, 384 numbers that are a random linear map of 4 of their 6 traits, with noise. The
logit of a row is the product of the user's tastes and the item's traits: the text explains the part
of 4 traits. A fifth of the items is in test rows alone. The best possible score knows each user's
tastes and the 4 traits, and takes the mean over the other two. How much of the distance to it is
that tastes have to be learned says a logistic regression for each user, which knows all traits.
"""

import argparse

import numpy as np
import polars as pl
from sklearn.linear_model import LogisticRegression

from fieldwise import Categorical, Label, Recommender, Schema, Vector
from fieldwise.evaluation import auc
from fieldwise.models import MODELS

USERS = 400
ITEMS = 2_000
COLD_ITEMS = 400
IN_TEXT = 4
NOT_IN_TEXT = 2
NUMBERS = 384
NOISE = 0.05
"""Standard deviation of a text's noise; its numbers have 1."""
TEST_SHARE = 0.25


def simulated(rows: int, seed: int) -> tuple[pl.DataFrame, np.ndarray, np.ndarray]:
    """A log with texts, the best possible score of each row, and the traits of each item."""
    rng = np.random.default_rng(seed)
    traits = rng.normal(size=(ITEMS, IN_TEXT + NOT_IN_TEXT))
    tastes = rng.normal(size=(USERS, IN_TEXT + NOT_IN_TEXT))
    texts = traits[:, :IN_TEXT] @ rng.normal(size=(IN_TEXT, NUMBERS)) / np.sqrt(IN_TEXT)
    texts += rng.normal(scale=NOISE, size=texts.shape)
    user = rng.integers(0, USERS, rows)
    is_test = rng.random(rows) < TEST_SHARE
    item = rng.integers(0, ITEMS - COLD_ITEMS, rows)
    item[is_test] = rng.integers(0, ITEMS, is_test.sum())
    explained = (tastes[user, :IN_TEXT] * traits[item, :IN_TEXT]).sum(1)
    rest = (tastes[user, IN_TEXT:] * traits[item, IN_TEXT:]).sum(1)
    clicked = rng.random(rows) < 1 / (1 + np.exp(-explained - rest))
    best = mean_probability(explained, np.linalg.norm(tastes[user, IN_TEXT:], axis=1))
    log = pl.DataFrame(
        {
            "user": user,
            "item": item,
            "text": pl.Series(texts.astype(np.float32)[item], dtype=pl.Array(pl.Float32, NUMBERS)),
            "click": clicked.astype(int),
            "is_test": is_test,
        }
    )
    return log, best, traits


def mean_probability(logit: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """The mean probability over Gaussian logits [N] of these means and standard deviations."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    logits = logit[:, None] + deviation[:, None] * nodes
    return (1 / (1 + np.exp(-logits))) @ (weights / weights.sum())


def auc_of_learned_tastes(log: pl.DataFrame, traits: np.ndarray) -> float:
    """The AUC of the test rows of cold items by tastes that a logistic regression for each user learns."""
    tastes = np.zeros((USERS, IN_TEXT + NOT_IN_TEXT))
    for (user,), rows in log.filter(~pl.col("is_test")).group_by("user"):
        tastes[user] = LogisticRegression().fit(traits[rows["item"]], rows["click"]).coef_
    cold = log.filter(pl.col("is_test") & (pl.col("item") >= ITEMS - COLD_ITEMS))
    of_row = tastes[cold["user"]]
    explained = (of_row[:, :IN_TEXT] * traits[cold["item"], :IN_TEXT]).sum(1)
    score = mean_probability(explained, np.linalg.norm(of_row[:, IN_TEXT:], axis=1))
    return auc(cold["click"].to_numpy(), score)


def cold_auc(log: pl.DataFrame, model: str, *, texts: bool, seed: int) -> float:
    """The AUC of the test rows of cold items, with or without the items' texts."""
    fields = [Categorical("user", role="user"), Categorical("item", role="item")]
    if texts:
        fields.append(Vector("text", role="item"))
    schema = Schema(fields=tuple(fields), label=Label("click"), user="user", item="item")
    recommender = Recommender(schema, MODELS[model](), seed=seed)
    recommender.fit(log.filter(~pl.col("is_test")))
    cold = log.filter(pl.col("is_test") & (pl.col("item") >= ITEMS - COLD_ITEMS))
    prediction = recommender.bundle_.predict(cold)
    return auc(cold["click"].to_numpy(), prediction)


def main() -> None:
    """Print the AUCs of each seed, and their means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--model", default="fm")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    results = []
    for seed in range(given.seeds):
        log, best, traits = simulated(given.rows, seed)
        is_cold = (log["is_test"] & (log["item"] >= ITEMS - COLD_ITEMS)).to_numpy()
        best_auc = auc(log["click"].to_numpy()[is_cold], best[is_cold])
        without = cold_auc(log, given.model, texts=False, seed=seed)
        with_texts = cold_auc(log, given.model, texts=True, seed=seed)
        learned = auc_of_learned_tastes(log, traits)
        results.append((without, with_texts, learned, best_auc))
        print(
            f"seed {seed}, {is_cold.sum():,} rows of cold items: AUC without texts {without:.4f}, with texts "
            f"{with_texts:.4f}, by true traits {learned:.4f}, best possible with texts {best_auc:.4f}",
            flush=True,
        )
    without, with_texts, learned, best_auc = np.mean(results, axis=0)
    print(
        f"mean: without {without:.4f}, with {with_texts:.4f}, by true traits {learned:.4f}, best possible "
        f"{best_auc:.4f}"
    )


if __name__ == "__main__":
    main()

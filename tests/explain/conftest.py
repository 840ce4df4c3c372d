"""Networks with random weights over rows of every kind of field."""

import numpy as np
import polars as pl
import pytest
import torch

from fieldwise import Bag, Bundle, Categorical, Label, Numeric, Schema, Sequence
from fieldwise.data.encode.encoder import Encoder
from fieldwise.models.build import build_network

SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Sequence("history", role="user", max_length=3, shares="item"),
        Categorical("item", role="item"),
        Bag("genres", role="item"),
        Numeric("price", role="item"),
        Numeric("hour", encoding="quantile", bins=3),
    ),
    label=Label("click"),
)


def log(rows: int = 40, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, 6, rows)],
            "history": ["|".join(f"i{k}" for k in rng.integers(0, 5, n)) for n in rng.integers(0, 5, rows)],
            "item": [f"i{k}" for k in rng.integers(0, 9, rows)],
            "genres": [[f"g{k}" for k in rng.integers(0, 4, n)] for n in rng.integers(0, 4, rows)],
            "price": rng.normal(size=rows),
            "hour": rng.integers(0, 24, rows),
        }
    )


@pytest.fixture
def make():
    """A bundle of a model whose weights are random, not trained."""

    def build(settings, *, schema=SCHEMA, std=0.5, seed=0):
        encoder = Encoder.fit(log(), schema)
        network = build_network(settings, encoder.layout, seed, labels=len(schema.labels)).eval()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed + 100)
            for p in network.parameters():
                p.normal_(std=std)
        return Bundle(schema, encoder, settings, network, log().head(7), {})

    return build


@pytest.fixture
def rows():
    """Rows, among them values that no training row had."""
    return log(12, seed=1).with_columns(user=pl.Series(["new", *log(12, seed=1)["user"].to_list()[1:]]))

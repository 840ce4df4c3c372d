"""An IntTower and two rankers with random weights over one schema, and a catalogue."""

import numpy as np
import polars as pl
import pytest
import torch

from fieldwise import (
    AFM,
    Bag,
    Bundle,
    Categorical,
    Encoder,
    IntTower,
    Label,
    Numeric,
    Schema,
    Sequence,
)
from fieldwise.models.build import build_network

SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Sequence("history", role="user", max_length=3, shares="item"),
        Categorical("item", role="item"),
        Bag("genres", role="item"),
        Numeric("price", role="item"),
        Categorical("device"),
    ),
    label=Label("click"),
)
TOWER = IntTower(
    embedding_dim=4, hidden=(6, 5), user_heads=2, item_heads=3, head_dim=4, cir_weight=0
)


def catalogue(items: int = 30, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "item": [f"i{k}" for k in range(items)],
            "title": [f"Title {k}" for k in range(items)],
            "genres": [
                "|".join(f"g{k}" for k in rng.permutation(4)[:n]) for n in rng.integers(0, 4, items)
            ],
            "price": rng.random(items).round(3),
        }
    )


def log(rows: int = 80, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    users = pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, 6, rows)],
            "history": [
                "|".join(f"i{k}" for k in rng.integers(0, 9, n)) for n in rng.integers(0, 5, rows)
            ],
            "device": rng.choice(["phone", "tv"], rows),
        }
    )
    return pl.concat([users, catalogue()[rng.integers(0, 30, rows)]], how="horizontal")


def make(settings=TOWER, *, schema=SCHEMA, seed=0):
    encoder = Encoder.fit(log(), schema)
    network = build_network(settings, encoder.layout, seed, labels=len(schema.labels)).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed + 100)
        for p in network.parameters():
            p.normal_(std=0.4)
    return Bundle(schema, encoder, settings, network, log().head(7))


@pytest.fixture
def build():
    """A bundle with random weights."""
    return make


@pytest.fixture(scope="session")
def tower():
    """The IntTower."""
    return make()


@pytest.fixture(scope="session")
def ranker():
    """An AFM of other weights."""
    return make(AFM(embedding_dim=4, attention_dim=3), seed=5)


@pytest.fixture(scope="session")
def cascade(tmp_path_factory, tower, ranker):
    """The two over the catalogue."""
    from fieldwise.serving import Ranker, build_index

    return Ranker(
        ranker,
        build_index(tower, catalogue(), tmp_path_factory.mktemp("index") / "ix")[0],
        tower=tower,
    )


@pytest.fixture
def items():
    """The catalogue, with a column that no model reads."""
    return catalogue()


@pytest.fixture
def contexts():
    """Rows with users, contexts, and an item each."""
    return log(12, seed=3)

"""Small encoded tables that the tests of training share."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fieldwise import Bag, Categorical, Encoder, Label, Layout, Schema

SCHEMA = Schema(
    fields=(Categorical("user", role="user"), Categorical("item", role="item"), Categorical("day")),
    label=Label("y"),
)


def _tables(rows: int = 160, seed: int = 0) -> SimpleNamespace:
    """Training and validation rows whose label depends on user and item."""
    rng = np.random.default_rng(seed)
    user, item, day = (rng.integers(0, n, rows) for n in (8, 6, 3))
    effect = np.linspace(-2, 2, 8)[user] + np.linspace(2, -2, 6)[item]
    y = (rng.random(rows) < 1 / (1 + np.exp(-effect))).astype(np.float32)
    frame = pl.DataFrame({"user": user, "item": item, "day": day})
    cut = rows * 3 // 4
    encoder = Encoder.fit(frame[:cut], SCHEMA)
    return SimpleNamespace(
        layout=encoder.layout,
        train=encoder.transform(frame[:cut], y=y[:cut]),
        valid=encoder.transform(frame[cut:], y=y[cut:]),
    )


@pytest.fixture(scope="session")
def bagged() -> SimpleNamespace:
    """As `tables`, with a bag of items in each row and weights in training."""
    rng = np.random.default_rng(1)
    item, user = rng.integers(0, 6, 160), rng.integers(0, 8, 160)
    y = (rng.random(160) < 1 / (1 + np.exp(-np.linspace(2, -2, 6)[item]))).astype(np.float32)
    seen = [rng.integers(0, 6, n).tolist() for n in rng.integers(0, 4, 160)]
    frame = pl.DataFrame(
        {"user": user, "item": item, "seen": seen}, schema_overrides={"seen": pl.List(pl.Int64)}
    )
    fields = (
        Categorical("user", role="user"),
        Categorical("item", role="item"),
        Bag("seen", role="user"),
    )
    encoder = Encoder.fit(frame[:120], Schema(fields=fields, label=Label("y")))
    train = encoder.transform(frame[:120], y=y[:120])
    return SimpleNamespace(
        layout=encoder.layout,
        train=replace(train, weight=rng.gamma(2.0, size=120).astype(np.float32)),
        valid=encoder.transform(frame[120:], y=y[120:]),
    )


@pytest.fixture(scope="session")
def tables() -> SimpleNamespace:
    """Never changed in place."""
    return _tables()


@pytest.fixture(scope="session")
def layout() -> Layout:
    return Layout.of_sizes([4, 3, 5], ["user", "item", "context"])

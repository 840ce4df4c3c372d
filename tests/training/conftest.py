"""Small encoded tables that the tests of training share."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from fieldwise import Categorical, Label, Schema
from fieldwise.data.encode.encoder import Encoder
from fieldwise.layout import Layout

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


@pytest.fixture
def tables() -> SimpleNamespace:
    return _tables()


@pytest.fixture(scope="session")
def layout() -> Layout:
    return Layout.of_sizes([4, 3, 5], ["user", "item", "context"])

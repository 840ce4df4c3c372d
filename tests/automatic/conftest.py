"""A small log with columns that an audit must catch, and few models, so that a run takes seconds."""

import numpy as np
import polars as pl
import pytest
from automatic_runs import shorten

from fieldwise import simulate

ROWS = 2000


@pytest.fixture(scope="session")
def log() -> pl.DataFrame:
    """The simulated log with a column that is known only afterwards, a constant one and a name of each row."""
    frame = simulate(ROWS, users=40, items=30, seed=3)
    rng = np.random.default_rng(0)
    return frame.with_columns(
        minutes_watched=pl.Series(frame["liked"].to_numpy() * 60 + rng.random(ROWS).round(2)),
        country=pl.lit("fi"),
        row_id=pl.Series([f"r{k}" for k in rng.permutation(ROWS)]),
    )


@pytest.fixture
def few_models(monkeypatch):
    """As `shorten`."""
    shorten(monkeypatch)

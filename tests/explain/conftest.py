"""Networks with random weights over rows of every kind of field."""

import polars as pl
import pytest
from random_bundle import random_bundle

from fieldwise.testing import small_log, small_schema

SCHEMA, log = small_schema(), small_log


@pytest.fixture
def make():
    """A bundle of a model whose weights are random, not trained."""

    def build(settings, *, schema=SCHEMA, std=0.5):
        return random_bundle(settings, schema, log(), samples=log().head(7), std=std, seed=100)

    return build


@pytest.fixture
def rows():
    """Rows, among them values that no training row had."""
    return log(12, seed=1).with_columns(
        user=pl.Series(["new", *log(12, seed=1)["user"].to_list()[1:]])
    )

"""Networks with random weights over rows of every kind of field."""

import polars as pl
import pytest
import torch

from fieldwise import Bundle
from fieldwise.data.encode.encoder import Encoder
from fieldwise.models.build import build_network
from fieldwise.testing import small_log, small_schema

SCHEMA, log = small_schema(), small_log


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

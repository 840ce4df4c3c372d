"""Bundles of networks with random weights: no training, but every weight counts."""

from typing import Any

import polars as pl
import torch

from fieldwise import Bundle, Encoder, Schema
from fieldwise.models import ModelSettings
from fieldwise.models.build import build_network


def random_bundle(
    settings: ModelSettings,
    schema: Schema,
    frame: pl.DataFrame,
    *,
    seed: int = 1,
    std: float = 0.4,
    **more: Any,
) -> Bundle:
    """A bundle whose encoder is fitted on the frame, which is also its `samples`, if `more` has no other ones."""
    encoder = more.pop("encoder", None) or Encoder.fit(frame, schema)
    network = build_network(settings, encoder.layout, 0, labels=len(schema.labels)).eval()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for p in network.parameters():
            p.normal_(std=std, generator=generator)
    return Bundle(schema, encoder, settings, network, **({"samples": frame} | more))

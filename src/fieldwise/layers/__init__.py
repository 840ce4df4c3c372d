"""Modules over `fieldwise.ops` that models are built from."""

from fieldwise.layers.embedding import FieldEmbedding, FirstOrder
from fieldwise.layers.fe_block import FEBlock
from fieldwise.layers.interacting import InteractingLayer
from fieldwise.layers.light_se import LightSE
from fieldwise.layers.mlp import MLP, linear
from fieldwise.layers.pair_attention import PairAttention

__all__ = ["MLP", "FEBlock", "FieldEmbedding", "FirstOrder", "InteractingLayer", "LightSE", "PairAttention", "linear"]

"""Modules over `fieldwise.ops` that models are built from."""

from fieldwise.layers.attention import (
    FEBlock,
    InteractingLayer,
    InteractingOptions,
    LightSE,
    PairAttention,
    SENet,
)
from fieldwise.layers.crosses import (
    CIN,
    BilinearFusion,
    BilinearInteraction,
    CrossMatrix,
    CrossMixture,
    CrossVector,
    FactorizedInteraction,
)
from fieldwise.layers.embedding import (
    FieldEmbedding,
    FirstOrder,
    SubsetEmbedding,
    index_buffer,
    kept_rows,
    row_blocks,
)
from fieldwise.layers.mlp import MLP, hidden_layers, linear

__all__ = [
    "CIN",
    "MLP",
    "BilinearFusion",
    "BilinearInteraction",
    "CrossMatrix",
    "CrossMixture",
    "CrossVector",
    "FEBlock",
    "FactorizedInteraction",
    "FieldEmbedding",
    "FirstOrder",
    "InteractingLayer",
    "InteractingOptions",
    "LightSE",
    "PairAttention",
    "SENet",
    "SubsetEmbedding",
    "hidden_layers",
    "index_buffer",
    "kept_rows",
    "linear",
    "row_blocks",
]

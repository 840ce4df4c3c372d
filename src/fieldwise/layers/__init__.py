"""Modules over `fieldwise.ops` that models are built from."""

from fieldwise.layers.bilinear import BilinearFusion, BilinearInteraction
from fieldwise.layers.cin import CIN
from fieldwise.layers.cross import CrossMatrix, CrossMixture, CrossVector
from fieldwise.layers.embedding import FieldEmbedding, FirstOrder, SubsetEmbedding, kept_rows
from fieldwise.layers.factorized_interaction import FactorizedInteraction
from fieldwise.layers.fe_block import FEBlock
from fieldwise.layers.interacting import InteractingLayer, InteractingOptions
from fieldwise.layers.mlp import MLP, hidden_layers, linear
from fieldwise.layers.pair_attention import PairAttention
from fieldwise.layers.senet import LightSE, SENet

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
    "kept_rows",
    "linear",
]

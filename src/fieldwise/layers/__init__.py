"""Modules over `fieldwise.ops` that models are built from."""

from fieldwise.layers.bilinear_fusion import BilinearFusion
from fieldwise.layers.bilinear_interaction import BilinearInteraction
from fieldwise.layers.cin import CIN
from fieldwise.layers.cross import CrossMatrix, CrossMixture, CrossVector
from fieldwise.layers.embedding import FieldEmbedding, FirstOrder
from fieldwise.layers.factorized_interaction import FactorizedInteraction
from fieldwise.layers.fe_block import FEBlock
from fieldwise.layers.interacting import InteractingLayer
from fieldwise.layers.light_se import LightSE
from fieldwise.layers.mlp import MLP, hidden_layers, linear
from fieldwise.layers.pair_attention import PairAttention
from fieldwise.layers.senet import SENet
from fieldwise.layers.subset_embedding import SubsetEmbedding

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
    "LightSE",
    "PairAttention",
    "SENet",
    "SubsetEmbedding",
    "hidden_layers",
    "linear",
]

"""The models, one paper per file: settings that build a network whose forward takes a batch and returns logits [B]."""

from torch import nn

from fieldwise.models.afm import AFM
from fieldwise.models.autoint import AutoInt, AutoIntPlus
from fieldwise.models.cold import COLD
from fieldwise.models.dat import DAT
from fieldwise.models.dcn import DCN
from fieldwise.models.dcnv2 import DCNv2
from fieldwise.models.deepcrossing import DeepCrossing
from fieldwise.models.deepfm import DeepFM
from fieldwise.models.din import DIN
from fieldwise.models.dssm import DSSM
from fieldwise.models.ffm import FFM
from fieldwise.models.fibinet import FiBiNET
from fieldwise.models.finalmlp import FinalMLP
from fieldwise.models.finalnet import FinalNet
from fieldwise.models.fm import FM
from fieldwise.models.fwfm import FwFM
from fieldwise.models.hofm import HOFM
from fieldwise.models.inttower import IntTower
from fieldwise.models.lr import LR
from fieldwise.models.nfm import NFM
from fieldwise.models.settings import EmbeddingSettings, ModelSettings
from fieldwise.models.widedeep import WideDeep
from fieldwise.models.xdeepfm import XDeepFM

__all__ = [
    "AFM",
    "COLD",
    "DAT",
    "DCN",
    "DIN",
    "DSSM",
    "FFM",
    "FM",
    "HOFM",
    "LR",
    "MODELS",
    "NFM",
    "AutoInt",
    "AutoIntPlus",
    "DCNv2",
    "DeepCrossing",
    "DeepFM",
    "EmbeddingSettings",
    "FiBiNET",
    "FinalMLP",
    "FinalNet",
    "FwFM",
    "IntTower",
    "ModelSettings",
    "WideDeep",
    "XDeepFM",
    "parameter_count",
]


MODELS: dict[str, type[ModelSettings]] = {
    "lr": LR,
    "fm": FM,
    "hofm": HOFM,
    "ffm": FFM,
    "fwfm": FwFM,
    "afm": AFM,
    "nfm": NFM,
    "widedeep": WideDeep,
    "deepcrossing": DeepCrossing,
    "deepfm": DeepFM,
    "dcn": DCN,
    "dcnv2": DCNv2,
    "xdeepfm": XDeepFM,
    "fibinet": FiBiNET,
    "autoint": AutoInt,
    "autoint+": AutoIntPlus,
    "finalmlp": FinalMLP,
    "finalnet": FinalNet,
    "din": DIN,
    "dssm": DSSM,
    "dat": DAT,
    "cold": COLD,
    "inttower": IntTower,
}
"""Settings by the names that recipes use."""


def parameter_count(network: nn.Module) -> int:
    """The number of trainable parameters.

    >>> from fieldwise.layout import Layout
    >>> parameter_count(LR().build(Layout.of_sizes([3, 4])))
    8
    """
    return sum(p.numel() for p in network.parameters() if p.requires_grad)

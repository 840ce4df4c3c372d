"""The models, one paper per file: settings that build a network whose forward takes a batch and returns logits [B]."""

from torch import nn

from fieldwise.models.afm import AFM, AFMNetwork
from fieldwise.models.autoint import AutoInt, AutoIntNetwork, AutoIntPlus
from fieldwise.models.cold import COLD, COLDNetwork
from fieldwise.models.dat import DAT, DATNetwork
from fieldwise.models.dcn import DCN, DCNNetwork
from fieldwise.models.dcnv2 import DCNv2, DCNv2Network
from fieldwise.models.deepcrossing import DeepCrossing, DeepCrossingNetwork
from fieldwise.models.deepfm import DeepFM, DeepFMNetwork
from fieldwise.models.din import DIN, DINNetwork
from fieldwise.models.dssm import DSSM, DSSMNetwork
from fieldwise.models.ffm import FFM, FFMNetwork
from fieldwise.models.fibinet import FiBiNET, FiBiNETNetwork
from fieldwise.models.finalmlp import FinalMLP, FinalMLPNetwork
from fieldwise.models.finalnet import FinalNet, FinalNetNetwork
from fieldwise.models.fm import FM, FMNetwork
from fieldwise.models.fwfm import FwFM, FwFMNetwork
from fieldwise.models.hofm import HOFM, HOFMNetwork
from fieldwise.models.inttower import IntTower, IntTowerNetwork
from fieldwise.models.lr import LR, LRNetwork
from fieldwise.models.nfm import NFM, NFMNetwork
from fieldwise.models.settings import EmbeddingSettings, ModelSettings
from fieldwise.models.widedeep import WideDeep, WideDeepNetwork
from fieldwise.models.xdeepfm import XDeepFM, XDeepFMNetwork

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
    "AFMNetwork",
    "AutoInt",
    "AutoIntNetwork",
    "AutoIntPlus",
    "COLDNetwork",
    "DATNetwork",
    "DCNNetwork",
    "DCNv2",
    "DCNv2Network",
    "DINNetwork",
    "DSSMNetwork",
    "DeepCrossing",
    "DeepCrossingNetwork",
    "DeepFM",
    "DeepFMNetwork",
    "EmbeddingSettings",
    "FFMNetwork",
    "FMNetwork",
    "FiBiNET",
    "FiBiNETNetwork",
    "FinalMLP",
    "FinalMLPNetwork",
    "FinalNet",
    "FinalNetNetwork",
    "FwFM",
    "FwFMNetwork",
    "HOFMNetwork",
    "IntTower",
    "IntTowerNetwork",
    "LRNetwork",
    "ModelSettings",
    "NFMNetwork",
    "WideDeep",
    "WideDeepNetwork",
    "XDeepFM",
    "XDeepFMNetwork",
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

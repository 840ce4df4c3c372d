"""The models, one paper per file: settings that build a network whose forward takes a batch and returns logits [B].

A file of this folder that decorates its settings with `register_model` is a model, if it is
imported here and its class stands in `fieldwise.__all__` (`tests/test_public_face.py` compares the
three).
"""

from torch import nn

from fieldwise.models.afm import AFM as AFM
from fieldwise.models.autoint import AutoInt as AutoInt
from fieldwise.models.autoint import AutoIntPlus as AutoIntPlus
from fieldwise.models.catboost import CatBoost as CatBoost
from fieldwise.models.cold import COLD as COLD
from fieldwise.models.dat import DAT as DAT
from fieldwise.models.dcn import DCN as DCN
from fieldwise.models.dcnv2 import DCNv2 as DCNv2
from fieldwise.models.deepcrossing import DeepCrossing as DeepCrossing
from fieldwise.models.deepfm import DeepFM as DeepFM
from fieldwise.models.din import DIN as DIN
from fieldwise.models.dssm import DSSM as DSSM
from fieldwise.models.ffm import FFM as FFM
from fieldwise.models.fibinet import FiBiNET as FiBiNET
from fieldwise.models.finalmlp import FinalMLP as FinalMLP
from fieldwise.models.finalnet import FinalNet as FinalNet
from fieldwise.models.fm import FM as FM
from fieldwise.models.fwfm import FwFM as FwFM
from fieldwise.models.hofm import HOFM as HOFM
from fieldwise.models.inttower import IntTower as IntTower
from fieldwise.models.lightgbm import LightGBM as LightGBM
from fieldwise.models.lr import LR as LR
from fieldwise.models.nfm import NFM as NFM
from fieldwise.models.settings import MODELS as MODELS
from fieldwise.models.settings import EmbeddingSettings as EmbeddingSettings
from fieldwise.models.settings import ModelSettings as ModelSettings
from fieldwise.models.trees import TreeSettings, trees_of
from fieldwise.models.widedeep import WideDeep as WideDeep
from fieldwise.models.xdeepfm import XDeepFM as XDeepFM

NETWORKS = {
    name: settings for name, settings in MODELS.items() if not issubclass(settings, TreeSettings)
}
"""The built-in models that are networks of PyTorch, which batches train."""

_TOOLS = ("MODELS", "NETWORKS", "EmbeddingSettings", "ModelSettings", "parameter_count")
# An `__all__` in the code would hide the models from type checkers.
globals()["__all__"] = [*_TOOLS, *(settings.__name__ for settings in MODELS.values())]


def parameter_count(network: nn.Module) -> int:
    """The number of trainable parameters, and of the leaves of trees.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import LR
    >>> parameter_count(LR().build(Layout.of_sizes([3, 4])))
    8
    """
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
    return parameters + sum(trees.leaves for trees in trees_of(network))

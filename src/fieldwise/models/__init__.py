"""The models, one paper per file: settings that build a network whose forward takes a batch and returns logits [B].

A file of this folder that decorates its settings with `register_model` is a model: `MODELS` and the names below follow.
"""

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from torch import nn

from fieldwise.models.settings import MODELS as MODELS
from fieldwise.models.settings import EmbeddingSettings as EmbeddingSettings
from fieldwise.models.settings import ModelSettings as ModelSettings

if TYPE_CHECKING:  # what editors and type checkers know of a model; it needs no line here
    from fieldwise.models.afm import AFM as AFM
    from fieldwise.models.autoint import AutoInt as AutoInt
    from fieldwise.models.autoint import AutoIntPlus as AutoIntPlus
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
    from fieldwise.models.lr import LR as LR
    from fieldwise.models.nfm import NFM as NFM
    from fieldwise.models.widedeep import WideDeep as WideDeep
    from fieldwise.models.xdeepfm import XDeepFM as XDeepFM

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
_CLASSES = {_settings.__name__: _settings for _settings in MODELS.values()}
_TOOLS = ("MODELS", "EmbeddingSettings", "ModelSettings", "parameter_count")
globals().update(_CLASSES, __all__=[*_TOOLS, *_CLASSES])  # an `__all__` in the code would hide them from type checkers


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def parameter_count(network: nn.Module) -> int:
    """The number of trainable parameters.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import LR
    >>> parameter_count(LR().build(Layout.of_sizes([3, 4])))
    8
    """
    return sum(p.numel() for p in network.parameters() if p.requires_grad)

"""Activations by name against NumPy, and in the MLP of every model that has one."""

import dataclasses
import math
from typing import get_args

import numpy as np
import pytest
import torch
from parity import lab
from parity.reference import FIRST, hardest
from torch import nn

from fieldwise import ConfigError, DeepFM
from fieldwise.layers.activations import Activation, Dice, make_activation


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# In evaluation mode, with the initial slopes of 0; Dice divides by the root of 1 + 1e-8 then.
FORMULAS = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "prelu": lambda x: np.maximum(x, 0),
    "dice": lambda x: x * sigmoid(x / math.sqrt(1 + 1e-8)),
    "gelu": lambda x: (
        x * np.array([(1 + math.erf(v / math.sqrt(2))) / 2 for v in x.flat]).reshape(x.shape)
    ),
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "identity": lambda x: x,
}


def test_every_activation_is_its_formula(subtests):
    assert set(FORMULAS) == set(get_args(Activation))
    x = np.random.default_rng(0).normal(size=(5, 3))
    for name, formula in FORMULAS.items():
        with subtests.test(name=name):
            layer = make_activation(name, 3).double().eval()
            np.testing.assert_allclose(layer(torch.tensor(x)).detach(), formula(x), atol=1e-12)


def test_prelu_has_a_slope_per_unit():
    layer = make_activation("prelu", 2)
    layer.weight.data = torch.tensor([0.5, 2.0])
    assert layer(torch.tensor([[-1.0, -1.0]])).tolist() == [[-0.5, -2.0]]


MODELS = [name for name, settings in FIRST.items() if hasattr(settings, "mlp_activation")]


def test_every_models_mlp_has_the_activation_of_its_settings(subtests):
    assert len(MODELS) == 9
    for name in [*MODELS, "inttower", "dssm", "dat"]:
        setting = "mlp_activation" if name in MODELS else "activation"
        with subtests.test(name=name):
            settings = dataclasses.replace(FIRST[name], **{setting: "dice"})
            layout = lab.LAYOUTS[hardest(name)]
            network = lab.randomized(settings.build(layout)).train()
            layers = [module for module in network.modules() if isinstance(module, Dice)]
            assert len(layers) >= len(settings.hidden)
            assert not any(isinstance(module, (nn.ReLU, nn.Tanh)) for module in network.modules())
            before = [layer.running_mean.clone() for layer in layers]
            network(lab.random_batch(layout, 9))
            for layer, mean in zip(layers, before, strict=True):
                assert not torch.equal(layer.running_mean, mean), "a layer that no row passes"


def test_an_unknown_activation_is_one_sentence():
    with pytest.raises(
        ConfigError, match=r"^mlp_activation must be one of 'relu', .*, found 'swish'$"
    ):
        DeepFM(mlp_activation="swish")

"""Every layer's gradient, of its input and its parameters, against differences in float64."""

import pytest
import torch
from parity import lab
from parity.reference.autoint import VARIANTS

from fieldwise.layers import MLP, FEBlock, FirstOrder, InteractingLayer, LightSE, PairAttention


def interacting(variant, inputs):
    choice = dict(VARIANTS[variant])
    choice["bias"] = choice.pop("projection_bias")
    del choice["field_vectors"]  # of the model, not of its layers
    return InteractingLayer(inputs, 4, 2, **choice)


LAYERS = {
    "pair-attention": (PairAttention(3, 4, 2), (2, 3, 4)),
    "light-se": (LightSE(3), (2, 3, 4)),
    "mlp": (MLP(4, (3, 2), outputs=1), (5, 4)),
    "mlp-batch-norm": (MLP(4, (3, 2), batch_norm=True), (5, 4)),
    **{f"interacting-{v}-{n}": (interacting(v, n), (2, 3, n)) for v in VARIANTS for n in (3, 4)},
}


def check(module, call, *inputs):
    """Gradcheck of `call(*inputs)` in the inputs and in all parameters of the module, at random values."""
    module.double()
    names = [name for name, _ in module.named_parameters()]
    values = [torch.randn_like(p, requires_grad=True) for p in module.parameters()]

    def function(*all_values):
        parameters = dict(zip(names, all_values[: len(names)], strict=True))
        return torch.func.functional_call(module, parameters, call(*all_values[len(names) :]))

    assert torch.autograd.gradcheck(function, (*values, *inputs))


@pytest.mark.parametrize("name", list(LAYERS))
def test_gradients_are_those_of_differences(name):
    module, shape = LAYERS[name]
    torch.manual_seed(0)
    check(module, lambda x: (x,), torch.randn(shape, dtype=torch.float64, requires_grad=True))


def test_first_order_in_its_weights_and_the_numbers():
    layout = lab.LAYOUTS["mixed"]
    batch = lab.random_batch(layout, 3)
    torch.manual_seed(0)
    numbers = batch.values.clone().requires_grad_()
    check(FirstOrder(layout), lambda values: (batch._replace(values=values),), numbers)


class _Joined(torch.nn.Module):
    """FE-Block with both sides in one forward, as a model calls it."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, one, two, item):
        return self.block.score(self.block.user([one, two]), self.block.item(item))


def test_fe_block_in_all_levels():
    torch.manual_seed(0)
    levels = [torch.randn(2, n, dtype=torch.float64, requires_grad=True) for n in (4, 3, 5)]
    block = FEBlock((4, 3), 5, user_heads=2, item_heads=3, head_dim=2)
    check(_Joined(block), lambda *given: given, *levels)

"""Every layer's gradient, of its input and its parameters, against differences in float64."""

import pytest
import torch
from parity import lab
from parity.reference.autoint import VARIANTS
from torch.autograd.gradcheck import GradcheckError

from fieldwise.layers import (
    CIN,
    MLP,
    BilinearFusion,
    BilinearInteraction,
    CrossMatrix,
    CrossMixture,
    CrossVector,
    FactorizedInteraction,
    FEBlock,
    FirstOrder,
    InteractingLayer,
    LightSE,
    PairAttention,
    SENet,
)
from fieldwise.layers.dice import Dice


def interacting(variant, inputs):
    choice = dict(VARIANTS[variant])
    choice["bias"] = choice.pop("projection_bias")
    del choice["field_vectors"]  # of the model, not of its layers
    return InteractingLayer(inputs, 4, 2, **choice)


# A layer, and the shapes of what it reads.
LAYERS = {
    "pair-attention": (PairAttention(3, 4, 2), [(2, 3, 4)]),
    "light-se": (LightSE(3), [(2, 3, 4)]),
    "mlp": (MLP(4, (3, 2), outputs=1), [(5, 4)]),
    "mlp-batch-norm": (MLP(4, (3, 2), batch_norm=True), [(5, 4)]),
    **{f"interacting-{v}-{n}": (interacting(v, n), [(2, 3, n)]) for v in VARIANTS for n in (3, 4)},
    "cross-vector": (CrossVector(4), [(3, 4), (3, 4)]),
    "cross-matrix": (CrossMatrix(4), [(3, 4), (3, 4)]),
    "cross-mixture": (CrossMixture(4, rank=2, experts=3), [(3, 4), (3, 4)]),
    "cin": (CIN(3, (4, 2)), [(2, 3, 4)]),
    "cin-halves": (CIN(3, (4, 2), split_half=True, activation="relu", bias=True), [(2, 3, 4)]),
    "senet": (SENet(4, reduction_ratio=2, activation="sigmoid"), [(2, 4, 3)]),
    **{f"bilinear-{kind}": (BilinearInteraction(3, 2, kind), [(2, 3, 2)]) for kind in ("all", "each", "interaction")},
    "bilinear-fusion": (BilinearFusion((4, 6), heads=2), [(3, 4), (3, 6)]),
    "factorized-concat": (FactorizedInteraction(3, 4), [(2, 3)]),
    "factorized-sum": (FactorizedInteraction(3, 4, residual="sum", activation="sigmoid"), [(2, 3)]),
    "dice": (Dice(3), [(5, 3)]),
}


def matches_differences(module, call, *inputs):
    """Gradcheck of `call(*inputs)` in the inputs and in all parameters of the module, at random values.

    True, or gradcheck's own error with both Jacobians.
    """
    module.double()
    names = [name for name, _ in module.named_parameters()]
    values = [torch.randn_like(p, requires_grad=True) for p in module.parameters()]

    def function(*all_values):
        parameters = dict(zip(names, all_values[: len(names)], strict=True))
        return torch.func.functional_call(module, parameters, call(*all_values[len(names) :]))

    return torch.autograd.gradcheck(function, (*values, *inputs))


def test_gradients_are_those_of_differences(subtests):
    for name in list(LAYERS):
        with subtests.test(name=name):
            module, shapes = LAYERS[name]
            module.eval()  # statistics of normalization stay, from one call to the next
            torch.manual_seed(0)
            given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
            assert matches_differences(module, lambda *inputs: inputs, *given)


@pytest.mark.parametrize("name", ["mlp-batch-norm", "dice"])
def test_gradients_through_the_statistics_of_a_batch(name):
    """In training, mean and variance are functions of the batch, and gradients pass through them."""
    module, shapes = LAYERS[name]
    module.train()
    torch.manual_seed(0)
    (given,) = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    assert matches_differences(module, lambda x: (x,), given)


def test_a_wrong_gradient_is_found():
    """The check itself can fail: of `x` computed so that autograd takes its derivative for 2."""

    class Wrong(torch.nn.Module):
        def forward(self, x):
            return 2 * x - x.detach()

    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        matches_differences(Wrong(), lambda x: (x,), torch.randn(3, dtype=torch.float64, requires_grad=True))


def test_first_order_in_its_weights_and_the_numbers():
    layout = lab.LAYOUTS["mixed"]
    batch = lab.random_batch(layout, 3)
    torch.manual_seed(0)
    numbers = batch.values.clone().requires_grad_()
    assert matches_differences(FirstOrder(layout), lambda values: (batch._replace(values=values),), numbers)


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
    assert matches_differences(_Joined(block), lambda *given: given, *levels)

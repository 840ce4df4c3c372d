import math

import numpy as np
import pytest
import torch

from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.layers import MLP
from fieldwise.layout import Batch, Layout
from fieldwise.models import FinalNet, parameter_count
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

SMALL = {"embedding_dim": 4, "block1_hidden": (6, 8), "block2_hidden": (6,)}


def made_by_hand():
    """x = (2, -1) of one field; the first block's logit is 1, the second's -3."""
    layout = Layout.of_sizes([1])
    options = {"block1_hidden": (2,), "block2_hidden": (2,), "batch_norm": False}
    network = FinalNet(embedding_dim=2, **options).build(layout).double()
    state = {
        "embedding.weight": [[2.0, -1.0]],
        "field_gate.linear.weight": [[0.5]],
        "field_gate.linear.bias": [1.0],  # gates (2, 0.5): the first block reads (2, -1, 4, -0.5)
        "block1.0.0.linear.weight": [[0.0, 0.0, 1.0, 2.0], [1.0, 1.0, 0.0, 0.0]],
        "block1.0.0.linear.bias": [0.0, -2.0],  # z = 3, -1: h = (3, -3), after ReLU (3, 0)
        "head1.weight": [[1.0, 7.0]],
        "head1.bias": [-2.0],
        "block2.0.0.linear.weight": [[0.0, -1.0], [1.0, 0.0]],
        "block2.0.0.linear.bias": [0.0, 0.0],  # z = 1, 2: h = (1, 2)
        "head2.weight": [[-1.0, -1.0]],
        "head2.bias": [0.0],
    }
    network.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in state.items()})
    return layout, network


def test_worked_by_hand(lab):
    layout, network = made_by_hand()
    batch = lab.batch(layout, 1)
    assert [logit.item() for logit in network.block_logits(batch)] == [1.0, -3.0]
    assert network(batch).tolist() == [-1.0]


def test_self_distillation_worked_by_hand(lab):
    """Cross-entropy of either block with the mean's probability as its target, through which no gradient passes."""
    layout, network = made_by_hand()
    logit, auxiliary = network.forward_with_auxiliary(lab.batch(layout, 1), torch.ones(1))
    p = 1 / (1 + math.e)
    softplus = [math.log1p(math.exp(y)) for y in (1.0, -3.0)]
    assert logit.item() == -1.0
    assert auxiliary.item() == pytest.approx(sum(softplus) - p * (1.0 - 3.0))
    auxiliary.backward()
    pulls = [1 / (1 + math.exp(-y)) - p for y in (1.0, -3.0)]
    assert network.head1.bias.grad.item() == pytest.approx(pulls[0])
    assert network.head2.bias.grad.item() == pytest.approx(pulls[1])
    network.distillation_weight = 0.5
    half = network.forward_with_auxiliary(lab.batch(layout, 1), torch.ones(1))[1]
    assert half.item() == pytest.approx(0.5 * auxiliary.item())


@pytest.mark.parametrize("options", [{"blocks": "1B"}, {"distillation_weight": 0.0}])
def test_without_distillation_nothing_is_added(lab, options):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 6)
    network = lab.randomized(FinalNet(**SMALL, **options).build(layout))
    logit, auxiliary = network.forward_with_auxiliary(batch, torch.zeros(6))
    assert auxiliary.item() == 0
    torch.testing.assert_close(logit, network(batch))


def test_a_block_of_one_factor_is_an_mlp(lab, layout):
    settings, batch = FinalNet(**SMALL, blocks="1B", field_gate=False, factors=1), lab.batch(layout, 6)
    network = lab.randomized(settings.build(layout))
    x = network.embedding(batch).flatten(1)
    mlp = MLP(x.shape[1], settings.block1_hidden, outputs=1, batch_norm=True).double().eval()
    state = {name.replace(".0.linear.", ".0."): value for name, value in network.block1.state_dict().items()}
    head = {f"output.{name}": value for name, value in network.head1.state_dict().items()}
    mlp.load_state_dict({f"layers.{name}": value for name, value in state.items()} | head)
    torch.testing.assert_close(network(batch), mlp(x)[:, 0])


def test_the_degree_of_interactions_grows_exponentially(subtests, lab):
    """Without activation and BatchNorm L layers of N factors are a polynomial of degree N^L in the embeddings."""
    for residual in ["concat", "sum"]:
        for depth, factors in [(1, 2), (2, 2), (3, 2), (1, 3), (2, 3)]:
            with subtests.test(residual=residual, depth=depth, factors=factors):
                layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 4)
                network = FinalNet(
                    embedding_dim=2,
                    blocks="1B",
                    block1_hidden=(6,) * depth,
                    factors=factors,
                    residual=residual,
                    field_gate=False,
                    batch_norm=False,
                    activation="none",
                ).build(layout)
                network = lab.randomized(network)
                table, values = network.embedding.weight.detach().clone(), []
                degree = factors**depth
                for t in range(degree + 2):
                    with torch.no_grad():
                        network.embedding.weight.copy_(table * (t / degree))
                        values.append(network(batch))
                line = torch.stack(values)
                for _ in range(degree):
                    line = line.diff(dim=0)
                scale = torch.stack(values).abs().max() * 2**degree
                assert line.abs().max() > 1e-9 * scale  # of that degree
                assert line.diff(dim=0).abs().max() < 1e-12 * scale  # and of no higher one


def test_a_fresh_field_gate_is_one(lab):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 4)
    network = FinalNet(**SMALL).build(layout).double()
    x = network.embedding(batch)
    assert torch.equal(network.field_gate(x), torch.cat([x, x], 1))


def test_the_field_gate_serves_the_first_block_alone():
    layout = Layout.of_sizes([3, 4, 5])
    gated, plain = FinalNet(**SMALL).build(layout), FinalNet(**SMALL, field_gate=False).build(layout)
    assert gated.block1[0][0].linear.in_features == 2 * 3 * 4
    assert plain.block1[0][0].linear.in_features == 3 * 4
    assert gated.block2[0][0].linear.in_features == 3 * 4


def test_the_activation_follows_batch_norm():
    block = FinalNet(**SMALL, block1_dropout=0.1).build(Layout.of_sizes([3])).block1[0]
    kinds = ["FactorizedInteraction", "BatchNorm1d", "ReLU", "Dropout"]
    assert [type(module).__name__ for module in block] == kinds


def test_parameter_count_is_the_formula(subtests):
    for residual, times in [("concat", 1), ("sum", 2)]:
        with subtests.test(residual=residual, times=times):
            dim, fields = 4, 3
            first, second = 2 * fields * dim, fields * dim
            block1 = times * ((first + 1) * 6 + (6 + 1) * 8) + 2 * (6 + 8) + (8 + 1)
            block2 = times * (second + 1) * 6 + 2 * 6 + (6 + 1)
            network = FinalNet(**SMALL, residual=residual).build(Layout.of_sizes([7, 3, 4]))
            assert parameter_count(network) == 14 * dim + fields * (fields + 1) + block1 + block2


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        (
            {"block1_hidden": (6, 5)},
            r"block1_hidden\[1\] must be divisible by factors, found 5 and factors 2: take a",
        ),
        (
            {"block1_hidden": (6,), "block2_hidden": (8,), "factors": 3},
            r"block2_hidden\[0\] must be divisible by factors",
        ),
        ({"factors": 0}, "factors must be a whole number of at least 1, found 0"),
        ({"blocks": "3B"}, "blocks must be one of '1B', '2B', found '3B'"),
        ({"residual": "none"}, "residual must be one of 'concat', 'sum', found 'none'"),
        ({"activation": "sigmoid"}, "activation must be one of 'none', 'relu', found 'sigmoid'"),
        ({"factor_activation": "tanh"}, "factor_activation must be one of 'none', 'relu', 'sigmoid', found 'tanh'"),
        ({"block2_hidden": ()}, "block2_hidden must name the size of at least one layer"),
        ({"block1_dropout": -0.1}, "block1_dropout must be at least 0 and less than 1, found -0.1"),
        ({"block2_dropout": 1}, "block2_dropout"),
        ({"distillation_weight": -1.0}, "distillation_weight must be 0 or more and finite, found -1.0"),
        ({"embedding_std": float("inf")}, "embedding_std must be above 0 and finite"),
        ({"embedding_dim": 2.0}, "embedding_dim must be a whole number of at least 1, found 2.0"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            FinalNet(**settings)


@pytest.mark.parametrize(
    "options", [{"block1_hidden": (5,), "residual": "sum"}, {"blocks": "1B", "block1_hidden": (6,), "factors": 3}]
)
def test_only_sizes_that_are_divided_need_a_divisor(options):
    """Summed factors are not joined, and the second block's sizes do not count where there is one block."""
    network = FinalNet(**options).build(Layout.of_sizes([3])).eval()
    none = torch.empty(0, dtype=torch.int64)
    batch = Batch(torch.tensor([[0], [2]]), torch.empty(2, 0), none, none, torch.empty(0))
    assert torch.isfinite(network(batch)).tolist() == [True, True]


def test_no_field_is_refused():
    with pytest.raises(ConfigError, match="FinalNet reads fields and needs at least 1 field, found none"):
        FinalNet().build(Layout(()))


def test_distillation_is_refused_for_a_regression_label():
    """It is a cross-entropy of probabilities; with its weight at 0, or one block, any task trains."""
    layout = Layout.of_sizes([3, 4])
    ids = np.array([[0, 3], [1, 4], [2, 5], [1, 6]], dtype=np.int32)
    none, offsets = np.empty((4, 0), dtype=np.float32), np.zeros(1, dtype=np.int64)
    y = np.array([1.0, 2.5, -1.0, 0.0], dtype=np.float32)
    table = EncodedTable(layout, ids, none, np.empty(0, dtype=np.int32), offsets, y)

    def run(network):
        settings = TrainingSettings(epochs=1)
        return fit(network, table, table, settings=settings, objective=Objective(task="regression"), seed=0)

    small = {"embedding_dim": 2, "block1_hidden": (4,), "block2_hidden": (4,)}
    with pytest.raises(ConfigError, match=r"is a regression: set model\.distillation_weight = 0$"):
        run(FinalNet(**small).build(layout))
    for settings in (FinalNet(**small, distillation_weight=0.0), FinalNet(**small, blocks="1B")):
        assert run(settings.build(layout)).epochs == 1

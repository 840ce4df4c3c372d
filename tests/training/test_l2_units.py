"""Squared L2 as other libraries and authors' code add it to their losses, in our strengths.

The factors are those of docs/how-to/argument-names.md.
"""

import pytest
import torch
from torch.nn import functional as F

from fieldwise import AFM, LR, AutoIntPlus, Batch, IntTower, Layout, TrainingSettings
from fieldwise.models.build import build_network
from fieldwise.training.optimizers import RunOptimizer

ROWS = 2_048
LABEL = (torch.arange(ROWS) % 3 == 0).double()
SIZES, ROLES = [20, 30, 5], ["user", "item", "context"]
FIRST, TABLE = "first_order.embedding.weight", "embedding.weight"
SMALL_AFM = AFM(embedding_dim=3, attention_dim=4)


def random_network(settings):
    network = build_network(settings, Layout.of_sizes(SIZES, ROLES), 0).double()
    torch.manual_seed(0)
    with torch.no_grad():
        for p in network.parameters():
            p.normal_()
    return network


def squares(network, *names):
    return sum(network.get_parameter(name).square().sum() for name in names)


def logloss(logit, reduction="mean"):
    return F.binary_cross_entropy_with_logits(logit, LABEL, reduction=reduction)


def squared_error(logit):
    return (logit - LABEL).square().mean()


def assert_same_penalty(settings, theirs, strengths, divisor=1.0, own_loss=logloss):
    """The gradient of `theirs(network, logit)`, penalty included, over `divisor` is ours with these strengths."""
    network = random_network(settings)
    ids = torch.stack(
        [torch.randint(0, size, (ROWS,)) + sum(SIZES[:f]) for f, size in enumerate(SIZES)], 1
    )
    batch = Batch.of_ids(ids)
    theirs(network, network(batch)).backward()
    expected = {name: p.grad / divisor for name, p in network.named_parameters()}
    network.zero_grad()
    own_loss(network(batch)).backward()
    without = {name: p.grad.clone() for name, p in network.named_parameters()}
    RunOptimizer(network, TrainingSettings(l2=strengths)).add_l2(batch)
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.grad, expected[name], rtol=1e-9, atol=1e-13, msg=name)
    assert any(not torch.equal(p.grad, without[name]) for name, p in network.named_parameters())


def test_fuxictrs_regularizers_are_halves_of_sums_beside_the_mean_loss():
    """`embedding_regularizer` of all embedding tables, first-order weights too, `net_regularizer` of all the rest."""

    def theirs(network, logit):
        rest = [name for name, _ in network.named_parameters() if name not in (TABLE, FIRST)]
        return (
            logloss(logit)
            + 0.05 / 2 * squares(network, TABLE, FIRST)
            + 0.003 / 2 * squares(network, *rest)
        )

    assert_same_penalty(SMALL_AFM, theirs, {"*embedding.weight": 0.05, "*": 0.003})


def test_deepctr_torchs_are_sums_beside_the_summed_loss():
    def theirs(network, logit):
        penalty = 0.01 * squares(network, TABLE) + 0.02 * squares(network, FIRST)
        return logloss(logit, "sum") + penalty + 0.03 * squares(network, "attention.W")

    strengths = {TABLE: 2 * 0.01 / ROWS, FIRST: 2 * 0.02 / ROWS, "attention.W": 2 * 0.03 / ROWS}
    assert_same_penalty(SMALL_AFM, theirs, strengths, divisor=ROWS)


def test_deepctrs_are_sums_beside_the_mean_loss():
    def theirs(network, logit):
        return logloss(logit) + 0.01 * squares(network, TABLE)

    assert_same_penalty(SMALL_AFM, theirs, {TABLE: 0.02})


def test_1e_5_of_inttowers_authors_is_1e_8_here():
    def theirs(network, logit):
        return logloss(logit, "sum") + 1e-5 * squares(network, TABLE)

    settings = IntTower(
        embedding_dim=3, hidden=(4,), dropout=0.0, user_heads=2, item_heads=2, head_dim=2
    )
    strength = 2 * 1e-5 / ROWS
    assert strength == pytest.approx(9.8e-9, rel=0.01)
    assert_same_penalty(settings, theirs, {TABLE: strength}, divisor=ROWS)


def test_afms_authors_is_a_half_beside_half_the_squared_errors():
    def theirs(network, logit):
        return (logit - LABEL).square().sum() / 2 + 16 / 2 * squares(network, "attention.W")

    assert_same_penalty(
        SMALL_AFM, theirs, {"attention.W": 2 * 16 / ROWS}, divisor=ROWS / 2, own_loss=squared_error
    )


def test_autoints_authors_is_a_half_beside_the_mean_loss():
    def theirs(network, logit):
        hidden = squares(network, "mlp.layers.0.0.weight", "mlp.layers.1.0.weight")
        return logloss(logit) + 0.1 / 2 * hidden

    settings = AutoIntPlus(
        embedding_dim=4, attention_dim=4, layers=1, hidden=(5, 4), batch_norm=True
    )
    assert_same_penalty(settings, theirs, {"mlp.layers.*.0.weight": 0.1})


def test_weight_decay_of_an_optimizer_is_a_strength_of_every_parameter():
    """One step of PyTorch's SGD, which adds weight_decay times the parameter to each gradient."""
    networks = [random_network(LR()) for _ in range(2)]
    for network in networks:
        for p in network.parameters():
            p.grad = torch.zeros_like(p)
    torch.optim.SGD(networks[0].parameters(), lr=0.5, weight_decay=0.1).step()
    settings = TrainingSettings(optimizer="sgd", learning_rate=0.5, l2={"*": 0.1})
    optimizer = RunOptimizer(networks[1], settings)
    optimizer.add_l2(Batch.of_ids(torch.tensor([[0, 20, 50]])))
    optimizer.step()
    for theirs, mine in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach())

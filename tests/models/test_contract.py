"""What every model must do, on the layout with most kinds of fields; `parity` scores its rows on every layout."""

import inspect
import itertools

import numpy as np
import pytest
import torch
from parity.reference import FIRST, REFERENCES, hardest, layouts_of
from torch import nn
from torch.nn import functional as F

from fieldwise.config import parse, to_plain
from fieldwise.models import NETWORKS
from fieldwise.testing import CHECKS, check_model

PLACES = [
    (name, layout) for name, reference in REFERENCES.items() for layout in layouts_of(reference)
]
HARDEST = [(name, hardest(name)) for name in REFERENCES]
# one model of each kind: pairs, attention between fields, towers
QUICK = ("afm", "autoint+", "inttower")


def of_every_model(check):
    """A test of `check` for each model on its hardest layout; it takes what it names of lab, layout, settings, name."""
    wanted = inspect.signature(check).parameters

    def test(lab, subtests):
        for name, layout in HARDEST:
            with subtests.test(name=name):
                given = {
                    "lab": lab,
                    "layout": lab.layouts[layout],
                    "settings": FIRST[name],
                    "name": name,
                }
                check(**{one: given[one] for one in wanted})

    test.__doc__ = check.__doc__
    return test


def test_every_model_is_tested_here():
    assert {name: type(s) for name, s in FIRST.items()} == NETWORKS


def test_settings_survive_plain_values():
    for reference in REFERENCES.values():
        for settings in reference.CASES.values():
            assert parse(type(settings), to_plain(settings), "model") == settings


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in REFERENCES]
)
def test_check_model(lab, name):
    check_model(FIRST[name], lab.layouts[hardest(name)])


@of_every_model
def test_logits_seeds_and_states_of_all_models(layout, settings):
    """The checks of `check_model` that no other test here, and none of parity, has for every model."""
    for check in ("one logit a row", "a seed decides the weights", "weights are all there is"):
        CHECKS[check](settings, layout)


def without_gradient(network):
    """Names of the parameters that cannot change the output in training, by the model's own mathematics."""
    names = set()
    for name, module in network.named_modules():
        if isinstance(module, nn.Sequential):
            names |= {
                f"{name}.{at}.bias"  # batch normalization takes any constant away
                for at, (linear, after) in enumerate(itertools.pairwise(module))
                if isinstance(linear, nn.Linear) and isinstance(after, nn.BatchNorm1d)
            }
    return names


def training_loss(network, batch, label):
    """As the training loop has it: with a network's own loss, where it has one."""
    if hasattr(network, "forward_with_auxiliary"):
        logit, auxiliary = network.forward_with_auxiliary(batch, label)
        return F.binary_cross_entropy_with_logits(logit, label) + auxiliary
    return F.binary_cross_entropy_with_logits(network(batch), label)


@of_every_model
def test_the_loss_is_finite_and_gradients_reach_every_parameter(lab, layout, settings):
    network, batch = lab.randomized(settings.build(layout), seed=1).train(), lab.batch(layout, 24)
    loss = training_loss(network, batch, (torch.arange(24) % 3 == 0).double())
    assert torch.isfinite(loss)
    loss.backward()
    largest = {}
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        largest[name] = float(parameter.grad.abs().max())
    assert {name for name, size in largest.items() if size < 1e-12} == without_gradient(network)


@of_every_model
def test_permuting_fields_only_permutes(lab, layout, settings, name):
    """The same rows with both halves of the fields swapped, and parameters that belong to a field moved with it."""
    half = layout.num_fields // 2
    batch, order = lab.batch(layout, 5), [*range(half, layout.num_fields), *range(half)]
    network, reference = lab.randomized(settings.build(layout)), REFERENCES[name]

    def with_changes(changed):
        return network.state_dict() | {n: torch.from_numpy(np.array(a)) for n, a in changed.items()}

    if hasattr(reference, "ORDER_MATTERS"):
        network.load_state_dict(with_changes(reference.order_free(settings, lab.weights(network))))
    moved_layout, moved_batch = lab.reorder(layout, batch, order)
    moved = settings.build(moved_layout).double().eval()
    permuted = getattr(reference, "permuted", lambda *_: {})
    moved.load_state_dict(with_changes(permuted(settings, layout, order, lab.weights(network))))
    torch.testing.assert_close(moved(moved_batch), network(batch), atol=1e-10, rtol=1e-10)


@of_every_model
def test_train_and_eval_modes_are_respected(lab, layout, settings):
    """Evaluation is a function of the row alone; training draws new dropout masks and moves statistics of the batch."""
    network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 32)
    statistics = {n: b.clone() for n, b in network.named_buffers()}
    assert torch.equal(network(batch), network(batch))
    assert all(torch.equal(b, statistics[n]) for n, b in network.named_buffers())
    network.train()
    drops = any(value for key, value in to_plain(settings).items() if "dropout" in key)
    normalizes = any(hasattr(module, "running_mean") for module in network.modules())
    assert (not torch.equal(network(batch), network(batch))) == drops
    moved = any(not torch.equal(b, statistics[n]) for n, b in network.named_buffers())
    assert moved == normalizes


@pytest.mark.parametrize(
    ("name", "layout_name"),
    [
        pytest.param(
            name,
            layout,
            marks=() if name in QUICK and layout == hardest(name) else pytest.mark.slow,
        )
        for name, layout in PLACES
    ],
)
def test_compiles_without_graph_breaks(lab, name, layout_name):
    layout = lab.layouts[layout_name]
    network, batch = lab.randomized(FIRST[name].build(layout)), lab.batch(layout, 6)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), network(batch))

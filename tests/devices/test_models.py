"""Every model on the device: the same logits, losses, gradients and updates as on the CPU."""

import copy

import pytest
import torch
from parity.lab import LAYOUTS, random_batch, randomized
from parity.reference import FIRST, REFERENCES, hardest

from fieldwise.models.build import build_network
from fieldwise.ops import use_ops
from fieldwise.training.step import HasAuxiliaryLoss

ROWS = 6


def loss_of(network, batch):
    """A loss with the network's auxiliary one, for labels 0 and 1 in turn."""
    y = (torch.arange(batch.size, device=batch.ids.device) % 2).double()
    if isinstance(network, HasAuxiliaryLoss):
        logit, own = network.forward_with_auxiliary(batch, y)
    else:
        logit, own = network(batch), 0.0
    return torch.nn.functional.binary_cross_entropy_with_logits(logit, y) + own


@pytest.mark.parametrize("model", REFERENCES)
def test_a_step_on_the_device_equals_the_cpus(model, device):
    layout = LAYOUTS[hardest(model)]
    here = randomized(build_network(FIRST[model], layout, 0))
    there, batch = copy.deepcopy(here).to(device), random_batch(layout, ROWS)
    with torch.no_grad(), use_ops("plain"):
        torch.testing.assert_close(
            there(batch.to(device)).cpu(), here(batch), rtol=1e-10, atol=1e-10
        )
        losses = []
    for network, rows in ((here, batch), (there, batch.to(device))):
        torch.manual_seed(1)
        loss = loss_of(network.train(), rows)
        loss.backward()
        losses.append(loss.detach().cpu())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-10, atol=1e-10)
    for (key, p), q in zip(here.named_parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-8, atol=1e-10, msg=key)


@pytest.mark.parametrize("model", REFERENCES)
def test_every_case_of_a_model_scores_there(model, device):
    layout = LAYOUTS[hardest(model)]
    for settings in list(REFERENCES[model].CASES.values())[1:]:
        here, batch = randomized(build_network(settings, layout, 0)), random_batch(layout, ROWS)
        expected = here(batch)
        torch.testing.assert_close(
            here.to(device)(batch.to(device)).cpu(), expected, rtol=1e-10, atol=1e-10
        )


@pytest.mark.parametrize("model", ["afm", "autoint+", "inttower"])
def test_dropout_drops_the_same_elements_on_every_device(model, device):
    layout = LAYOUTS[hardest(model)]
    extra = {"afm": "dropout", "autoint+": "attention_dropout", "inttower": "dropout"}
    settings = type(FIRST[model])(embedding_dim=4, **{extra[model]: 0.5})
    here = randomized(build_network(settings, layout, 0)).train()
    there, batch = copy.deepcopy(here).to(device), random_batch(layout, ROWS)
    results = []
    for network, rows in ((here, batch), (there, batch.to(device))):
        torch.manual_seed(5)
        results.append(network(rows).detach().cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-10)
    torch.manual_seed(6)
    assert not torch.allclose(there(batch.to(device)).cpu(), results[0])

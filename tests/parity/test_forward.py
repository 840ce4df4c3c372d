"""Every model's forward pass against its NumPy version, on every kind of layout, and its gradients by differences."""

import numpy as np
import pytest
import torch
from parity import lab
from parity.reference import REFERENCES, hardest, main_cases

from fieldwise.models import NETWORKS
from fieldwise.testing import rows_of


def test_every_model_has_a_reference():
    assert list(REFERENCES) == list(NETWORKS)
    for name, reference in REFERENCES.items():
        assert {type(settings) for settings in reference.CASES.values()} == {NETWORKS[name]}


def test_forward_is_the_equations(subtests):
    for name, case, layout in [(one, *place) for one in REFERENCES for place in main_cases(one)]:
        with subtests.test(name=name, case=case, layout=layout):
            scores_are_the_references(
                REFERENCES[name], REFERENCES[name].CASES[case], lab.LAYOUTS[layout]
            )


def scores_are_the_references(reference, settings, layout):
    network, batch = lab.randomized(settings.build(layout)), lab.random_batch(layout, 5)
    expected = reference.logit(settings, layout, batch, lab.weights(network))
    assert expected.shape == (5,)
    assert expected.std() > 1e-3, "a reference that does not look at its rows proves nothing"
    np.testing.assert_allclose(network(batch).detach().numpy(), expected, atol=1e-10, rtol=1e-10)
    for rows in (0, 1):
        first = network(rows_of(layout, batch, range(rows))).detach().numpy()
        np.testing.assert_allclose(first, expected[:rows], atol=1e-10, rtol=1e-10)


def test_gradients_are_those_of_differences(subtests):
    for name, case in (
        (name, case) for name, reference in REFERENCES.items() for case in reference.CASES
    ):
        with subtests.test(name=name, case=case):
            gradients_are_those_of_differences(
                REFERENCES[name].CASES[case], lab.LAYOUTS[hardest(name)]
            )


def gradients_are_those_of_differences(settings, layout):
    """Along random directions in the space of all parameters, in float64."""
    network, batch = (
        lab.randomized(settings.build(layout), seed=2),
        lab.random_batch(layout, 3, seed=2),
    )
    parameters = dict(network.named_parameters())
    weight_B = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    (network(batch) * weight_B).sum().backward()
    state = {n: p.detach().clone() for n, p in parameters.items()}

    def moved(direction, step):
        with torch.no_grad():
            values = {n: state[n] + step * direction[n] for n in state}
            return float((torch.func.functional_call(network, values, (batch,)) * weight_B).sum())

    generator = torch.Generator().manual_seed(4)
    for _ in range(2):
        direction = {
            n: torch.randn(p.shape, generator=generator, dtype=p.dtype)
            for n, p in parameters.items()
        }
        slope = sum(
            float((p.grad * direction[n]).sum())
            for n, p in parameters.items()
            if p.grad is not None
        )
        step = 1e-6
        numeric = (moved(direction, step) - moved(direction, -step)) / (2 * step)
        assert slope == pytest.approx(numeric, rel=1e-5, abs=1e-5)

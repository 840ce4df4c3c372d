import numpy as np
import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FM, parameter_count


def _truth(lab, layout, batch, w):
    x = lab.fields(layout, batch, w["embedding.weight"])
    out = lab.first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
    for b in range(len(x)):
        for i in range(x.shape[1]):
            for j in range(i + 1, x.shape[1]):
                out[b] += x[b, i] @ x[b, j]
    return out


def test_forward_is_the_sum_over_pairs(lab, layout):
    network, batch = lab.randomized(FM(embedding_dim=3).build(layout)), lab.batch(layout, 7)
    np.testing.assert_allclose(network(batch).detach(), _truth(lab, layout, batch, lab.weights(network)), atol=1e-10)


def test_values_and_fields_matter(lab):
    layout = lab.layouts["mixed"]
    network, batch = lab.randomized(FM(embedding_dim=3).build(layout)), lab.batch(layout, 4)
    doubled = batch._replace(values=batch.values * 2)
    assert not torch.isclose(network(batch), network(doubled)).any()


def test_fields_share_no_row(lab):
    """The same local category of two fields reads, and trains, two different rows."""
    layout = Layout.of_sizes([3, 3])
    network = lab.randomized(FM(embedding_dim=2).build(layout))
    empty = torch.empty(0, dtype=torch.int64)
    batch = lab.batch(layout, 1)._replace(ids=torch.tensor([[1, layout.fields[1].offset + 1]]), bag_ids=empty)
    network(batch).sum().backward()
    touched = network.embedding.weight.grad.abs().sum(1).nonzero().flatten().tolist()
    assert touched == [1, 4]


def test_parameter_count_is_the_formula():
    assert parameter_count(FM(embedding_dim=10).build(Layout.of_sizes([30, 12]))) == 42 * 11 + 1


@pytest.mark.parametrize(
    ("settings", "word"), [({"embedding_dim": 0}, "embedding_dim"), ({"embedding_std": 0.0}, "embedding_std")]
)
def test_bad_settings_name_themselves(settings, word):
    with pytest.raises(ConfigError, match=word):
        FM(**settings)

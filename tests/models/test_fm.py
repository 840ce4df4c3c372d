import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FM


def test_a_case_worked_by_hand(lab):
    """Vectors (1, 2), (3, -1), (0, 4): products 1, 8 and -4; weights 0.5, 1 and -2; bias 10."""
    layout = Layout.of_sizes([1, 1, 1])
    network = FM(embedding_dim=2).build(layout)
    network.embedding.weight.data = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.0, 4.0]])
    network.first_order.embedding.weight.data = torch.tensor([[0.5], [1.0], [-2.0]])
    network.first_order.bias.data = torch.tensor(10.0)
    assert network(lab.batch(layout, 1)).item() == 10 + (0.5 + 1 - 2) + (1 + 8 - 4)


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


def test_values_of_a_bag_do_not_meet_one_another(lab):
    """NOTE[DIFF]: with another field at zero, nothing is left beyond the first order, however many values a bag has."""
    layout = lab.layouts["bags"]
    network, batch = lab.randomized(FM(embedding_dim=2).build(layout)), lab.batch(layout, 6)
    first = layout.fields[0]
    with torch.no_grad():
        network.embedding.weight[first.offset + first.rows :] = 0
    torch.testing.assert_close(network(batch), network.first_order(batch))


def test_bad_settings_name_themselves(subtests):
    for settings, word in [({"embedding_dim": 0}, "embedding_dim"), ({"embedding_std": 0.0}, "embedding_std")]:
        with subtests.test(settings=settings, word=word), pytest.raises(ConfigError, match=word):
            FM(**settings)

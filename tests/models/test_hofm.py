import numpy as np
import pytest
import torch
from parity.reference import hofm as reference

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FM, HOFM, parameter_count
from fieldwise.models.hofm import anova_kernels


def test_a_case_worked_by_hand(lab):
    """Pairs of 1, 2, 3: 2 + 3 + 6. Pairs and the triple of 2, -1, 4 and 1: -8 (2 -1 4), -2, 8 and -4."""
    layout = Layout.of_sizes([1, 1, 1, 1])
    network = HOFM(embedding_dim=1).build(layout)
    network.embedding.weight.data = torch.tensor([[1.0], [2.0], [3.0], [0.0]])
    network.order_embeddings["3"].weight.data = torch.tensor([[2.0], [-1.0], [4.0], [1.0]])
    network.first_order.embedding.weight.data = torch.tensor([[0.5], [1.0], [0.0], [0.25]])
    network.first_order.bias.data = torch.tensor(10.0)
    assert network(lab.batch(layout, 1)).item() == 10 + 1.75 + (2 + 3 + 6) + (-8 - 2 + 8 - 4)


def test_anova_kernels_are_the_coefficients_of_a_polynomial(subtests):
    """prod_f (1 + x_f z) has A^t as its t-th coefficient; 40 fields, beyond any sum over subsets."""
    for order in [2, 3, 5]:
        with subtests.test(order=order):
            x = np.random.default_rng(0).normal(size=(3, 40, 2))
            found = anova_kernels(torch.from_numpy(x), order)
            expected = np.array([[np.poly(-x[b, :, d])[1 : order + 1] for d in range(2)] for b in range(3)])
            assert len(found) == order
            np.testing.assert_allclose(torch.stack(found, 2), expected, rtol=1e-9)


@pytest.mark.parametrize("sharing", ["none", "plain", "weighted"])
@pytest.mark.parametrize("order", [4, 5])
def test_high_orders_are_the_sum_over_subsets(lab, order, sharing):
    layout, settings = lab.layouts["mixed"], HOFM(embedding_dim=2, order=order, sharing=sharing)
    network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 4)
    expected = reference.logit(settings, layout, batch, lab.weights(network))
    np.testing.assert_allclose(network(batch).detach(), expected, atol=1e-10)


def test_order_2_is_fm(lab, layout):
    fm, batch = lab.randomized(FM(embedding_dim=3).build(layout)), lab.batch(layout, 6)
    hofm = HOFM(embedding_dim=3, order=2).build(layout).double()
    hofm.load_state_dict(fm.state_dict())
    torch.testing.assert_close(hofm(batch), fm(batch), rtol=1e-12, atol=1e-12)


def test_starts_from_an_fm(lab):
    """An FM's weights have their places by name; what order 3 adds is then the only difference."""
    layout = lab.layouts["mixed"]
    fm, batch = lab.randomized(FM(embedding_dim=3).build(layout)), lab.batch(layout, 6)
    hofm = lab.randomized(HOFM(embedding_dim=3).build(layout))
    left = hofm.load_state_dict(fm.state_dict(), strict=False)
    assert left.missing_keys == ["order_embeddings.3.weight"]
    assert not left.unexpected_keys
    x = lab.fields(layout, batch, hofm.order_embeddings["3"].weight.detach())
    fields = range(layout.num_fields)
    triples = [x[:, i] * x[:, j] * x[:, k] for i in fields for j in fields for k in fields if i < j < k]
    np.testing.assert_allclose((hofm(batch) - fm(batch)).detach(), sum(triples).sum(1), atol=1e-10)


def test_one_table_and_all_orders_is_the_product_over_all_subsets(lab):
    """sum_t A^t over every order is prod_f (1 + x_f), the paper's all-subsets kernel, less its orders 0 and 1."""
    layout = lab.layouts["mixed"]
    settings = HOFM(embedding_dim=3, order=layout.num_fields, sharing="plain")
    network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 5)
    x = lab.fields(layout, batch, network.embedding.weight.detach())
    expected = ((1 + x).prod(1) - 1 - x.sum(1)).sum(1) + network.first_order(batch).detach().numpy()
    np.testing.assert_allclose(network(batch).detach(), expected, atol=1e-10)


def test_weights_of_orders_start_plain_and_switch_orders_off(lab):
    layout = lab.layouts["categorical"]
    plain = lab.randomized(HOFM(embedding_dim=3, sharing="plain").build(layout))
    weighted = HOFM(embedding_dim=3, sharing="weighted").build(layout).double()
    fm = FM(embedding_dim=3).build(layout).double()
    assert weighted.load_state_dict(plain.state_dict(), strict=False).missing_keys == ["order_weights"]
    fm.load_state_dict(plain.state_dict())
    batch = lab.batch(layout, 6)
    torch.testing.assert_close(weighted(batch), plain(batch))
    with torch.no_grad():
        weighted.order_weights[1] = 0
    torch.testing.assert_close(weighted(batch), fm(batch))


def test_the_first_order_has_weights_of_its_own(subtests, lab):
    """NOTE[DIFF]: with all vectors at zero the first-order term and the bias are what is left."""
    for sharing in ["none", "plain", "weighted"]:
        with subtests.test(sharing=sharing):
            layout = lab.layouts["mixed"]
            network, batch = lab.randomized(HOFM(embedding_dim=3, sharing=sharing).build(layout)), lab.batch(layout, 6)
            w = lab.weights(network)
            expected = lab.first_order(layout, batch, w["first_order.embedding.weight"], w["first_order.bias"])
            with torch.no_grad():
                for name, parameter in network.named_parameters():
                    if not name.startswith("first_order."):
                        parameter.zero_()
            np.testing.assert_allclose(network(batch).detach(), expected, atol=1e-12)


def test_values_of_a_bag_do_not_meet_one_another(lab):
    """NOTE[DIFF]: with one field beside it at zero, three bags of any length give no triple, and one pair."""
    layout = lab.layouts["bags"]
    network, batch = lab.randomized(HOFM(embedding_dim=2).build(layout)), lab.batch(layout, 6)
    last = layout.fields[2]
    with torch.no_grad():
        for table in (network.embedding, network.order_embeddings["3"]):
            table.weight[last.offset :] = 0
    x = lab.fields(layout, batch, network.embedding.weight.detach())
    expected = network.first_order(batch).detach().numpy() + (x[:, 0] * x[:, 1]).sum(1)
    np.testing.assert_allclose(network(batch).detach(), expected, atol=1e-12)


def test_parameter_count_is_the_formula(subtests):
    for settings, per_row, others in [
        (HOFM(embedding_dim=6, order=2), 6 + 1, 1),
        (HOFM(embedding_dim=6, order=4), 3 * 6 + 1, 1),
        (HOFM(embedding_dim=6, order=4, sharing="plain"), 6 + 1, 1),
        (HOFM(embedding_dim=6, order=4, sharing="weighted"), 6 + 1, 1 + 3 * 6),
    ]:
        with subtests.test(settings=settings, per_row=per_row, others=others):
            assert parameter_count(settings.build(Layout.of_sizes([30, 12, 5, 3]))) == 50 * per_row + others


def test_an_order_needs_as_many_fields():
    with pytest.raises(ConfigError, match="HOFM of order 4 multiplies 4 fields and needs at least 4 fields, found 3"):
        HOFM(order=4).build(Layout.of_sizes([3, 3, 3]))


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"order": 1}, "order must be a whole number of at least 2, found 1"),
        ({"order": 2.0}, "order must be a whole number"),
        ({"sharing": "all"}, "sharing must be one of 'none', 'plain', 'weighted', found 'all'"),
        ({"embedding_std": float("nan")}, "embedding_std must be above 0 and finite"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            HOFM(**settings)

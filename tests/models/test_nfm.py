import numpy as np
import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FM, NFM, parameter_count
from fieldwise.models.nfm import bi_interaction

PLAIN = {"pooled_dropout": 0.0, "mlp_dropout": 0.0, "batch_norm": False}


def _set(network, **values):
    state = network.state_dict()
    for name, value in values.items():
        state[name.replace("__", ".")].copy_(torch.tensor(value))


def test_one_row_by_hand(lab):
    layout = Layout.of_sizes([1, 1, 1])
    network = NFM(embedding_dim=2, hidden=(2,), **PLAIN).build(layout).double()
    _set(
        network,
        embedding__weight=[[1.0, 2.0], [3.0, -1.0], [2.0, 1.0]],
        first_order__embedding__weight=[[0.1], [0.2], [0.3]],
        first_order__bias=0.25,
        mlp__layers__0__0__weight=[[1.0, 1.0], [-1.0, 2.0]],
        mlp__layers__0__0__bias=[0.5, -1.0],
        h=[2.0, 5.0],
    )
    # x1*x2 + x1*x3 + x2*x3 = (3, -2) + (2, 2) + (6, -1) = (11, -1); hidden relu(10.5, -14) = (10.5, 0); h gives 21.
    assert network(lab.batch(layout, 1)).item() == pytest.approx(0.6 + 0.25 + 21.0)


def test_without_hidden_layers_it_starts_as_fm_and_has_fms_gradients(lab, layout):
    """NFM-0 with h all ones is FM (Section 3.1.1 of the paper)."""
    fm = lab.randomized(FM(embedding_dim=3).build(layout))
    nfm = NFM(embedding_dim=3, hidden=(), **PLAIN).build(layout).double().eval()
    missing = nfm.load_state_dict(fm.state_dict(), strict=False)
    assert missing.missing_keys == ["h"]
    batch = lab.batch(layout, 6)
    torch.testing.assert_close(nfm(batch), fm(batch), atol=1e-12, rtol=1e-12)
    for network in (nfm, fm):
        network(batch).square().sum().backward()
    for name, parameter in fm.named_parameters():
        torch.testing.assert_close(nfm.get_parameter(name).grad, parameter.grad, atol=1e-10, rtol=1e-10)


def test_dropout_falls_on_entries_of_the_pooled_vector(lab):
    """With one entry and NFM-0, a row keeps twice its second-order term, or nothing of it."""
    layout = lab.layouts["categorical"]
    network = NFM(embedding_dim=1, hidden=(), pooled_dropout=0.5, batch_norm=False).build(layout).double()
    batch = lab.batch(layout, 64)
    calm = network.eval()(batch)
    torch.manual_seed(0)
    ratio = (network.train()(batch) / calm).detach()
    assert set(ratio.round(decimals=6).tolist()) == {0.0, 2.0}


def test_batch_norm_acts_on_the_pooled_vector(lab):
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 32)
    network = NFM(embedding_dim=3, hidden=(), pooled_dropout=0.0).build(layout).double().train()
    pooled = bi_interaction(network.embedding(batch)).detach()
    logit = network(batch)
    expected = ((pooled - pooled.mean(0)) / (pooled.var(0, unbiased=False) + 1e-5).sqrt()).sum(1)
    torch.testing.assert_close(logit, expected)
    torch.testing.assert_close(network.pooled_norm.running_mean, 0.1 * pooled.mean(0))


def test_hidden_layers_start_from_xaviers_normal_and_none_from_ones(lab):
    layout = lab.layouts["categorical"]
    assert NFM(embedding_dim=5, hidden=()).build(layout).h.tolist() == [1.0] * 5
    torch.manual_seed(0)
    deviation = NFM(hidden=(4000,)).build(layout).h.std().item()
    assert deviation == pytest.approx((2 / 4001) ** 0.5, rel=0.05)


def test_the_defaults_are_the_papers():
    s = NFM()
    assert (s.embedding_dim, s.hidden, s.pooled_dropout, s.mlp_dropout, s.batch_norm) == (64, (64,), 0.5, 0.2, True)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_parameter_count_is_the_formula(batch_norm):
    rows, d, hidden = 42, 5, (7, 4)
    layers = (d * 7 + 7) + (7 * 4 + 4)
    norms = 2 * (d + 7 + 4) if batch_norm else 0
    network = NFM(embedding_dim=d, hidden=hidden, batch_norm=batch_norm).build(Layout.of_sizes([30, 12]))
    assert parameter_count(network) == rows * (d + 1) + 1 + layers + norms + hidden[-1]


def test_parameter_counts_are_those_of_the_papers_table_3(subtests):
    for features, dim, millions in [(5_382, 128, 0.71), (5_382, 256, 1.45), (90_445, 128, 11.68), (90_445, 256, 23.31)]:
        with subtests.test(features=features, dim=dim, millions=millions), torch.device("meta"):
            network = NFM(embedding_dim=dim, hidden=(dim,)).build(Layout.of_sizes([features, 0, 0]))
            assert round(parameter_count(network) / 1e6, 2) == millions


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"hidden": [8]}, "hidden must be a tuple of sizes"),
        ({"hidden": (8, 0)}, r"hidden\[1\] must be a whole number of at least 1, found 0"),
        ({"pooled_dropout": 1.0}, "pooled_dropout must be at least 0 and less than 1, found 1.0"),
        ({"mlp_dropout": -0.1}, "mlp_dropout must be at least 0"),
        ({"mlp_dropout": float("nan")}, "mlp_dropout must be at least 0 and less than 1, found nan"),
        ({"embedding_std": np.inf}, "embedding_std must be above 0 and finite"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            NFM(**settings)


def test_one_field_is_refused():
    with pytest.raises(ConfigError, match="NFM pools products of two fields and needs at least 2 fields, found 1"):
        NFM().build(Layout.of_sizes([3]))

import pytest
import torch

from fieldwise import FM, NFM

PLAIN = {"pooled_dropout": 0.0, "mlp_dropout": 0.0, "batch_norm": False}


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
        torch.testing.assert_close(
            nfm.get_parameter(name).grad, parameter.grad, atol=1e-10, rtol=1e-10
        )


def test_dropout_falls_on_entries_of_the_pooled_vector(lab):
    """With one entry and NFM-0, a row keeps twice its second-order term, or nothing of it."""
    layout = lab.layouts["categorical"]
    network = (
        NFM(embedding_dim=1, hidden=(), pooled_dropout=0.5, batch_norm=False).build(layout).double()
    )
    batch = lab.batch(layout, 64)
    calm = network.eval()(batch)
    torch.manual_seed(0)
    ratio = (network.train()(batch) / calm).detach()
    assert set(ratio.round(decimals=6).tolist()) == {0.0, 2.0}


def test_hidden_layers_start_from_xaviers_normal_and_none_from_ones(lab):
    layout = lab.layouts["categorical"]
    assert NFM(embedding_dim=5, hidden=()).build(layout).h.tolist() == [1.0] * 5
    torch.manual_seed(0)
    deviation = NFM(hidden=(4000,)).build(layout).h.std().item()
    assert deviation == pytest.approx((2 / 4001) ** 0.5, rel=0.05)

import torch

from fieldwise import FM, FwFM


def test_strengths_of_one_are_an_fm(lab, layout):
    """And they start so."""
    fm, batch = lab.randomized(FM(embedding_dim=3).build(layout)), lab.batch(layout, 6)
    fwfm = FwFM(embedding_dim=3, linear="weights").build(layout).double()
    assert fwfm.load_state_dict(fm.state_dict(), strict=False).missing_keys == ["r"]
    torch.testing.assert_close(fwfm(batch), fm(batch), atol=1e-12, rtol=1e-12)

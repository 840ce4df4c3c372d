import torch

from fieldwise.layout import Layout
from fieldwise.models import FM, FwFM


def test_linear_terms_of_vectors_differ_in_what_shares_a_vector(lab):
    """Two features of one field: each its own second vector, or one for both."""
    layout = Layout.of_sizes([2, 1])
    assert FwFM(linear="feature_vectors").build(layout).feature_vectors.weight.shape == (3, 16)
    assert FwFM(linear="field_vectors").build(layout).field_vectors.shape == (2, 16)


def test_strengths_of_one_are_an_fm(lab, layout):
    """And they start so."""
    fm, batch = lab.randomized(FM(embedding_dim=3).build(layout)), lab.batch(layout, 6)
    fwfm = FwFM(embedding_dim=3, linear="weights").build(layout).double()
    assert fwfm.load_state_dict(fm.state_dict(), strict=False).missing_keys == ["r"]
    torch.testing.assert_close(fwfm(batch), fm(batch), atol=1e-12, rtol=1e-12)

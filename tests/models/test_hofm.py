import numpy as np
import torch

from fieldwise import FM, HOFM
from fieldwise.models.hofm import anova_kernels


def test_anova_kernels_are_the_coefficients_of_a_polynomial(subtests):
    """prod_f (1 + x_f z) has A^t as its t-th coefficient; 40 fields, beyond any sum over subsets."""
    for order in [2, 3, 5]:
        with subtests.test(order=order):
            x = np.random.default_rng(0).normal(size=(3, 40, 2))
            result = anova_kernels(torch.from_numpy(x), order)
            expected = np.array(
                [[np.poly(-x[b, :, d])[1 : order + 1] for d in range(2)] for b in range(3)]
            )
            assert len(result) == order
            np.testing.assert_allclose(torch.stack(result, 2), expected, rtol=1e-9)


def test_weights_of_orders_start_plain_and_switch_orders_off(lab):
    layout = lab.layouts["categorical"]
    plain = lab.randomized(HOFM(embedding_dim=3, sharing="plain").build(layout))
    weighted = HOFM(embedding_dim=3, sharing="weighted").build(layout).double()
    fm = FM(embedding_dim=3).build(layout).double()
    assert weighted.load_state_dict(plain.state_dict(), strict=False).missing_keys == [
        "order_weights"
    ]
    fm.load_state_dict(plain.state_dict())
    batch = lab.batch(layout, 6)
    torch.testing.assert_close(weighted(batch), plain(batch))
    with torch.no_grad():
        weighted.order_weights[1] = 0
    torch.testing.assert_close(weighted(batch), fm(batch))

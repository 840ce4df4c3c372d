import numpy as np
import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.ops.keep import draw_seeds, keep_factors, keep_threshold

WORD = 2**32


def _mixed(x):
    x = (x ^ (x >> 16)) * 0x21F0AAAD % WORD
    x = (x ^ (x >> 15)) * 0xD35A2D97 % WORD
    return x ^ (x >> 15)


def _kept(seed, row, element, p):
    key = _mixed(_mixed((row + seed) % WORD) ^ (seed >> 32))
    return _mixed((key + element * 0x9E3779B9) % WORD) >> 8 >= round(p * 2**24)


def test_the_mask_is_the_hash_in_whole_numbers(subtests):
    for seed in [0, 1, 2**32 + 5, 2**63 - 2]:
        with subtests.test(seed=seed):
            factors = keep_factors(torch.tensor(seed), 5, 40, 0.25, dtype=torch.float64)
            reference = [[_kept(seed, r, n, 0.25) / 0.75 for n in range(40)] for r in range(5)]
            np.testing.assert_allclose(factors, reference, rtol=1e-15)


def test_as_many_are_dropped_as_asked_for_in_rows_and_columns_alike(subtests):
    for p in [0.0, 0.1, 0.5, 0.9]:
        with subtests.test(p=p):
            kept = keep_factors(torch.tensor(17), 1000, 1000, p).bool().double()
            deviation = (p * (1 - p) / 1000) ** 0.5
            for means in (kept.mean(0), kept.mean(1)):
                assert float((means - (1 - p)).abs().max()) <= 5 * deviation
                if p:
                    assert float(means.std()) == pytest.approx(deviation, rel=0.1)


def test_neighbours_and_other_seeds_are_independent():
    a, b = (keep_factors(torch.tensor(s), 500, 500, 0.5).bool().double() - 0.5 for s in (1, 2))
    for x, y in ((a, b), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1])):
        assert abs(float((x * y).mean() * 4)) < 5 / 500


def test_seeds_follow_the_global_generator():
    torch.manual_seed(3)
    first = draw_seeds(2)
    assert not torch.equal(first, draw_seeds(2))
    torch.manual_seed(3)
    assert torch.equal(first, draw_seeds(2))


def test_a_share_of_one_or_below_zero_is_refused():
    for p in (-0.1, 1.0, float("nan")):
        with pytest.raises(ConfigError, match=r"must be in \[0, 1\), found"):
            keep_threshold(p)

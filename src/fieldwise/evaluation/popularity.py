"""A comparison of two rankings of items by the share of each user's positive items that they find.

Letter: U users.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REPLICATES = 1000


@dataclass(frozen=True, kw_only=True)
class PopularityComparison:
    """Mean shares of found items by a model and by popularity, with the interval of their difference.

    Args:
        model: mean over users of the share of their positive items that the model found.
        popular: the same of the ranking by popularity.
        low: lower end of the 95 % interval of the difference, model minus popular, for other users.
        high: its upper end.
    """

    model: float
    popular: float
    low: float
    high: float

    @property
    def significant(self) -> bool:
        """Whether the interval does not contain 0."""
        return self.low > 0 or self.high < 0


def compare_with_popularity(
    of_model: NDArray[np.float64], of_popular: NDArray[np.float64], *, seed: int
) -> PopularityComparison:
    """The comparison of shares by user, [U] each, paired by user; the bootstrap samples users.

    >>> shares = np.array([0.5, 1.0, 0.5, 1.0])
    >>> result = compare_with_popularity(shares, shares / 2, seed=0)
    >>> result.model, result.popular, result.significant
    (0.75, 0.375, True)
    """
    gain = of_model - of_popular
    replicates = np.random.default_rng(seed).choice(gain, (REPLICATES, len(gain))).mean(1)
    low, high = np.quantile(replicates, (0.025, 0.975))
    return PopularityComparison(
        model=float(of_model.mean()),
        popular=float(of_popular.mean()),
        low=float(low),
        high=float(high),
    )

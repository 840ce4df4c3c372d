"""Random rows of a table that is larger than a job needs."""

import numpy as np


def drawn_rows(rows: int, most: int, seed: int = 0) -> np.ndarray:
    """The numbers of at most `most` of `rows` rows, drawn at random without replacement, in ascending order.

    >>> drawn_rows(3, 5).tolist()
    [0, 1, 2]
    """
    numbers = np.random.default_rng(seed).choice(rows, min(rows, most), replace=False)
    return np.sort(numbers)

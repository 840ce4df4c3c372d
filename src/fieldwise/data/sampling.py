"""Random rows of a table that is larger than a job needs."""

import numpy as np
import polars as pl


def drawn_rows(rows: int, most: int, seed: int = 0) -> np.ndarray:
    """The numbers of at most `most` of `rows` rows, drawn at random without replacement, in ascending order.

    >>> drawn_rows(3, 5).tolist()
    [0, 1, 2]
    """
    numbers = np.random.default_rng(seed).choice(rows, min(rows, most), replace=False)
    return np.sort(numbers)


def drawn_keys(keys: pl.Series, most: int, seed: int = 0) -> np.ndarray:
    """The numbers of at most `most` rows, in ascending order: all rows of keys drawn at random, null being one of them.

    Where every key has more rows than that, rows are drawn.

    >>> drawn_keys(pl.Series(["a", "b", "a", "a"]), 2).tolist()
    [1]
    """
    if len(keys) <= most:
        return np.arange(len(keys))
    by_key = keys.alias("key").to_frame().group_by("key").agg(pl.len().alias("rows")).sort("key")
    few = by_key.filter(pl.col("rows") <= most)
    in_random_order = few.sample(fraction=1, shuffle=True, seed=seed)
    drawn = in_random_order.filter(pl.col("rows").cum_sum() <= most).get_column("key")
    if drawn.is_empty():
        return drawn_rows(len(keys), most, seed)
    return np.flatnonzero(keys.is_in(drawn.implode(), nulls_equal=True).to_numpy())

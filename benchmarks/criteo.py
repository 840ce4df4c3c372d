"""A generated log of clicks in the shape of Criteo's: a label, a time, 13 numbers, 26 categories.

Row i depends on the seed and on i alone: a log is the beginning of every longer one. Memory does
not depend on the number of rows.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from benchmarks.log import CATEGORIES, NUMBERS, zipf

__all__ = ["BLOCK", "LABEL", "SIZES", "TIME", "blocks"]

BLOCK = 125_000  # rows that are generated at once
LABEL = "label"
TIME = "time"
FIRST_MOMENT = 1_767_225_600_000  # 2026-01-01 in milliseconds
# a row every 50 ms, stored up to a minute late: times are nearly sorted
MS_PER_ROW = 50
LATEST = 60_000
SIZES = np.geomspace(4, 2_000_000, len(CATEGORIES)).round().astype(int)
SCALES = np.linspace(0.5, 3.0, len(NUMBERS))
GAPS = np.linspace(0.0, 0.45, len(NUMBERS))  # the share of missing cells; of a category 2 %
LATENT = 4


def blocks(rows: int, seed: int = 0) -> Iterator[pl.DataFrame]:
    """The rows in blocks of at most 125,000.

    A value of rank r has a frequency near 1 / r; odd categories are text of 8 hexadecimal digits,
    even ones integers. Each number and each third category has an effect on the label, and the
    latter with each other.
    """
    rng = np.random.default_rng([seed, 0])
    effects = [
        np.float32(0.4) * rng.standard_normal((size, 1 + LATENT), np.float32) for size in SIZES[::3]
    ]
    weights = rng.normal(0, 0.2, len(NUMBERS))
    for start in range(0, rows, BLOCK):
        rng = np.random.default_rng([seed, 1 + start // BLOCK])
        planted = np.zeros((BLOCK, 1 + LATENT), np.float32)
        columns = dict[str, pl.Series]()
        for name, scale, gap, weight in zip(NUMBERS, SCALES, GAPS, weights, strict=True):
            normal = rng.standard_normal(BLOCK)
            number = pl.Series(np.floor(np.exp(scale + 1.2 * normal)).astype(np.int64) - 1)
            columns[name] = number.set(pl.Series(rng.random(BLOCK) < gap), None)
            planted[:, 0] += weight * normal
        for place, (name, size) in enumerate(zip(CATEGORIES, SIZES.tolist(), strict=True)):
            rank = zipf(rng, BLOCK, size)
            columns[name] = _values(rank, place).set(pl.Series(rng.random(BLOCK) < 0.02), None)
            if place % 3 == 0:
                planted += effects[place // 3][rank]
        logit = planted[:, 0] + 0.5 * np.square(planted[:, 1:]).sum(1) - 4
        moment = (
            FIRST_MOMENT
            + MS_PER_ROW * np.arange(start, start + BLOCK)
            + rng.integers(0, LATEST, BLOCK)
        )
        clicked = pl.Series((rng.random(BLOCK) * (1 + np.exp(-logit)) < 1).astype(np.int8))
        times = pl.Series(moment).cast(pl.Datetime("ms"))
        yield pl.DataFrame({LABEL: clicked, TIME: times, **columns}).head(rows - start)


def _values(rank: np.ndarray, place: int) -> pl.Series:
    """The values of a category by rank, all different: an odd factor permutes the numbers below 2^32."""
    values = (
        rank.astype(np.uint64) * np.uint64(2_654_435_761) + np.uint64(97 * place)
    ) % np.uint64(2**32)
    if place % 2:
        return pl.Series(values.astype(np.int64))
    digits = values.astype(">u4").tobytes().hex()
    return pl.Series([digits[start : start + 8] for start in range(0, len(digits), 8)])

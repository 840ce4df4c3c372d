"""What columns tell of each other, by pairs of rows with the same key: functions of it, and how much it explains."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.infer.profile import ColumnProfile, Columns, is_scalar, value_type
from fieldwise.schema.ids import Who

ENOUGH = 20_000
"""Rows of a sample for one test."""
LEAST_PAIRS = 20
_LEAST_PAIRED_SHARE = 0.3
"""Of a key's rows that follow another one of their value."""
_MOST_DIFFERENT = 0.02
"""The share of pairs that may differ where the key determines a column."""
_MOST_DIFFERENT_BY_CHANCE = 0.1
"""The same, relative to the share of pairs at random that differ."""
_CONSTANT = 0.99
"""Two rows at random have the same cell so often: nothing determines a column that never varies."""
_COMPARED_CELLS = 1 << 22
"""Cells of columns that are compared within the keys at once."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How often two rows of one key have the same cell, and how often two rows at random."""

    same: float
    chance: float

    @property
    def determined(self) -> bool:
        """Whether the column is a function of the key, up to one row in a hundred."""
        most_different = min(_MOST_DIFFERENT, _MOST_DIFFERENT_BY_CHANCE * (1 - self.chance))
        return self.chance < _CONSTANT and 1 - self.same <= most_different


def agreements(
    columns: Columns, keys: Sequence[str], skip: Collection[str] = ()
) -> dict[str, dict[str, Agreement]]:
    """By key, the agreement of each column but those to skip within the key's values; none if too few rows share one.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> rows = pl.DataFrame({"k": [1, 1, 2, 2] * 20, "shade": ["red", "red", "blue", "blue"] * 20, "n": range(80)})
    >>> within = agreements(profile_columns(rows), ["k"])["k"]
    >>> {name: result.determined for name, result in within.items()}
    {'k': True, 'shade': True, 'n': False}
    """
    results: dict[str, dict[str, Agreement]] = {key: {} for key in keys}
    rows_of_keys = {}
    for key in keys:
        rows, is_pair = _rows_by_value(columns[key].cells)
        if is_pair.any():
            rows_of_keys[key] = rows, is_pair
    compared = [
        name
        for name, column in columns.items()
        if name not in skip and is_scalar(value_type(column.dtype))
    ]
    if not rows_of_keys or not compared:
        return results
    height = len(columns[keys[0]].cells)
    columns_at_once = max(1, _COMPARED_CELLS // height)
    for start in range(0, len(compared), columns_at_once):
        block = compared[start : start + columns_at_once]
        codes = np.stack([columns[name].codes() for name in block])
        is_present = np.stack([columns[name].is_present for name in block])
        chances = [_chance(*cells) for cells in zip(codes, is_present, strict=True)]
        for key, (rows, is_pair) in rows_of_keys.items():
            sample = codes[:, rows]
            is_known = is_present[:, rows]
            both = is_pair & is_known[:, 1:] & is_known[:, :-1]
            pairs = both.sum(axis=1)
            equal = ((sample[:, 1:] == sample[:, :-1]) & both).sum(axis=1)
            for k in np.flatnonzero(pairs >= LEAST_PAIRS).tolist():
                chance = chances[k] if len(rows) == height else _chance(sample[k], is_known[k])
                same = float(equal[k] / pairs[k])
                results[key][block[k]] = Agreement(same=same, chance=chance)
    return results


def _rows_by_value(keys: pl.Series, *, shuffle: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a sample of a key's values by value, and whether each and the next are a pair: none are if few rows are.

    The sample has all rows of its values, in the order of the table or shuffled.
    """
    codes = keys.hash(seed=0).to_numpy()
    is_sampled = codes % (len(keys) // ENOUGH + 1) == 0
    rows = np.flatnonzero(is_sampled & keys.is_not_null().to_numpy())
    if shuffle:
        rows = np.random.default_rng(0).permutation(rows)
    rows = rows[np.argsort(codes[rows], kind="stable")][: 3 * ENOUGH]
    is_pair = codes[rows][1:] == codes[rows][:-1]
    if is_pair.sum() < max(LEAST_PAIRS, _LEAST_PAIRED_SHARE * len(rows)):
        is_pair[:] = False
    return rows, is_pair


def _chance(codes: np.ndarray, is_present: np.ndarray) -> float:
    """How often two cells at random of those present are equal."""
    counts = np.bincount(codes[is_present]).astype(np.float64)
    return float((counts**2).sum() / counts.sum() ** 2) if len(counts) else 1.0


def key_pairs(keys: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of different rows with the same key, as two arrays of row numbers; empty if too few rows share one.

    The rows of a key are paired at random, since neighbours in time are more alike than two rows of
    a key.
    """
    rows, is_pair = _rows_by_value(keys, shuffle=True)
    return rows[:-1][is_pair], rows[1:][is_pair]


def explained_shares(
    cells: pl.Series, pairs: Mapping[Who, tuple[np.ndarray, np.ndarray]]
) -> dict[Who, float]:
    """The share of a column's variation that each side's key explains, by the pairs of `key_pairs`.

    It is 1 if each key has one value, and about 0 if the key tells nothing. For categories it is 1
    minus P(two rows of a key differ) / P(two rows at random differ), for numbers also 1 minus their
    mean squared difference within a key / that at random, of ranks, so that neither outliers nor the
    scale count; the greater of both. A side is left out if too few pairs have both cells, and all
    are if the column does not vary.

    >>> rng = np.random.default_rng(0)
    >>> key = np.arange(50).repeat(40)
    >>> price = key * 1.0 + rng.normal(0, 5, 2000)
    >>> round(explained_shares(pl.Series(price), {"item": key_pairs(pl.Series(key))})["item"], 1)
    0.9
    """
    column = ColumnProfile(cells)
    is_present = column.is_present
    codes = column.codes()
    chance = _chance(codes, is_present)
    if chance >= _CONSTANT:
        return {}
    ranks = None
    if cells.dtype.is_numeric():
        ranks = cells.rank().fill_null(0).to_numpy().astype(np.float64)
    shares: dict[Who, float] = {}
    for side, (first, second) in pairs.items():
        both = is_present[first] & is_present[second]
        if both.sum() < LEAST_PAIRS:
            continue
        same = float((codes[first] == codes[second])[both].mean())
        share = (same - chance) / (1 - chance)
        if ranks is not None:
            within = float(((ranks[first] - ranks[second])[both] ** 2).mean())
            share = max(share, 1 - within / (2 * float(ranks[is_present].var())))
        shares[side] = share
    return shares


def is_binning(keys: pl.Series, column: pl.Series) -> bool:
    """Whether a column that a number determines only groups or rescales it, as decades do with years.

    >>> years = pl.Series("year", range(1950, 2000))
    >>> is_binning(years, years // 10), is_binning(years, years % 7)
    (True, False)
    """
    if not keys.dtype.is_numeric():
        return False
    pairs = pl.DataFrame([keys.alias("k"), column.alias("c")])
    cells = pairs.drop_nulls().unique("k").sort("k").head(ENOUGH).get_column("c")
    if cells.dtype.is_numeric():
        steps = np.sign(np.diff(cells.to_numpy().astype(np.float64)))
        steps = steps[steps != 0]
        return bool(len(steps)) and abs(float(steps.mean())) > 0.9
    if cells.dtype.is_nested():
        return False
    codes = cells.hash(seed=0).to_numpy()
    groups = len(np.unique(codes))
    names_keys = groups >= 0.8 * len(codes)  # one to one with the numbers
    changes = int((codes[1:] != codes[:-1]).sum())
    return not names_keys and changes <= 1.5 * (groups - 1) + 1

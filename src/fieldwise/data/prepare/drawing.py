"""Random sampling of rows for the parts of a split, stratified by class if classes are given."""

import numpy as np

from fieldwise.errors import DataError

__all__ = ["classes_of", "draw_parts"]


def draw_parts(rows: int, shares: tuple[float, float], seed: int, classes: np.ndarray | None) -> np.ndarray:
    """Part of each row: 1 and 2 by `shares`, stratified if classes are given, else 0."""
    codes = np.zeros(rows, dtype=np.int64) if classes is None else classes
    counts = np.bincount(codes) if rows else np.zeros(1, dtype=np.int64)
    test = _apportion(counts, shares[1], counts)
    valid = _apportion(counts, shares[0], counts - test)
    shuffled = np.random.default_rng(seed).permutation(rows)
    shuffled = shuffled[np.argsort(codes[shuffled], kind="stable")]
    place = np.arange(rows) - (np.cumsum(counts) - counts)[codes[shuffled]]  # position within its class
    test_end, valid_end = test[codes[shuffled]], (test + valid)[codes[shuffled]]
    part = np.empty(rows, dtype=np.int64)
    part[shuffled] = np.where(place < test_end, 2, np.where(place < valid_end, 1, 0))
    return part


def classes_of(y: np.ndarray | None) -> np.ndarray:
    """The class of each row [N], from its target.

    Errors:
        DataError: no targets, or a class of fewer than 3 rows.
    """
    if y is None:
        raise DataError("a stratified split needs the label: give y, or omit stratify")
    values, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(counts) and counts.min() < 3:
        rare = values[np.argmin(counts)]
        raise DataError(
            f"a stratified split needs at least 3 rows of each value of the label: {rare:g} has {int(counts.min())}; "
            "omit stratify"
        )
    return codes.astype(np.int64)


def _apportion(counts: np.ndarray, share: float, room: np.ndarray) -> np.ndarray:
    """Counts per class: the whole part of its quota, plus the rest by the largest remainders."""
    total = int(np.floor(counts.sum() * share + 0.5))
    quota = counts * share
    given: np.ndarray = np.minimum(np.floor(quota).astype(np.int64), room)
    for k in np.argsort(given - quota, kind="stable").tolist() * 2:
        if given.sum() < total and given[k] < room[k]:
            given[k] += 1
    return given

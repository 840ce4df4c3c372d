"""Random sampling of rows for the parts of a split, stratified by class if classes are given."""

import numpy as np

from fieldwise.errors import DataError
from fieldwise.storage.scratch import IN_MEMORY, Scratch

__all__ = ["classes_of", "draw_parts"]


def draw_parts(
    rows: int, shares: tuple[float, float], seed: int, classes: np.ndarray | None, scratch: Scratch = IN_MEMORY
) -> np.ndarray:
    """Part of each row [N], int8: 1 and 2 by `shares`, stratified if classes are given, else 0."""
    counts = np.array([rows]) if classes is None else np.bincount(classes, minlength=1)
    test = _apportion(counts, shares[1], counts)
    valid = _apportion(counts, shares[0], counts - test)
    shuffled = scratch.numbers(rows)
    np.random.default_rng(seed).shuffle(shuffled)
    part = scratch.empty(rows, np.int8)
    done = np.zeros(len(counts), dtype=np.int64)  # rows of each class before the piece
    for at in scratch.pieces(rows):
        drawn = shuffled[at]
        code = np.zeros(len(drawn), dtype=np.int64) if classes is None else classes[drawn].astype(np.int64)
        by_class = np.argsort(code, kind="stable")
        drawn, code = drawn[by_class], code[by_class]
        own = np.bincount(code, minlength=len(counts))
        place = np.arange(len(drawn)) + (done - (np.cumsum(own) - own))[code]  # position within its class
        part[drawn] = np.where(place < test[code], 2, np.where(place < (test + valid)[code], 1, 0))
        done += own
    return part


def classes_of(y: np.ndarray | None, scratch: Scratch = IN_MEMORY) -> np.ndarray:
    """The class of each row [N], int32, from its target.

    Errors:
        DataError: no targets, or a class of fewer than 3 rows.
    """
    if y is None:
        raise DataError("a stratified split needs the label: give y, or omit stratify")
    values = np.empty(0, y.dtype)
    for at in scratch.pieces(len(y)):
        values = np.union1d(values, y[at])
    codes = scratch.empty(len(y), np.int32)
    counts = np.zeros(len(values), dtype=np.int64)
    for at in scratch.pieces(len(y)):
        codes[at] = np.searchsorted(values, y[at])
        counts += np.bincount(codes[at], minlength=len(values))
    if len(counts) and counts.min() < 3:
        rare = values[np.argmin(counts)]
        raise DataError(
            f"a stratified split needs at least 3 rows of each value of the label: {rare:g} has {int(counts.min())}; "
            "omit stratify"
        )
    return codes


def _apportion(counts: np.ndarray, share: float, room: np.ndarray) -> np.ndarray:
    """Counts per class: the whole part of its quota, plus the rest by the largest remainders."""
    total = int(np.floor(counts.sum() * share + 0.5))
    quota = counts * share
    given: np.ndarray = np.minimum(np.floor(quota).astype(np.int64), room)
    for k in np.argsort(given - quota, kind="stable").tolist() * 2:
        if given.sum() < total and given[k] < room[k]:
            given[k] += 1
    return given

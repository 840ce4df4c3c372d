"""Splitting rows into training, validation (for early stopping) and test rows."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.split_settings import ColumnSplit, LeaveLastOutSplit, RandomSplit, SplitSettings, TimeSplit
from fieldwise.errors import DataError

__all__ = [
    "ColumnSplit",
    "LeaveLastOutSplit",
    "RandomSplit",
    "Split",
    "SplitSettings",
    "TimeSplit",
    "hold_out",
    "split_table",
]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Row numbers of each part: sorted, int64; every row of the table is in exactly one part.

    Shape:
        train [N_train], valid [N_valid], test [N_test].
    """

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    users_kept_in_train: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each part."""
        return {"train": len(self.train), "valid": len(self.valid), "test": len(self.test)}


def split_table(
    frame: pl.DataFrame,
    settings: SplitSettings,
    *,
    seed: int = 0,
    y: np.ndarray | None = None,
    time: str | None = None,
    user: str | None = None,
    time_format: str | None = None,
) -> Split:
    """Split a table's rows.

    Args:
        frame: the table, after the label's rule has dropped rows.
        settings: settings of the split.
        seed: random seed; ignored by splits without randomness.
        y: targets [N], needed to stratify.
        time: the schema's time column, if the settings have none.
        user: the schema's column of users, if the settings have none.
        time_format: format of the schema's time column, if it is text.

    Errors:
        DataError: a column is missing or has nulls, a value belongs to no part, a part would be empty.

    >>> frame = pl.DataFrame({"t": [5, 1, 2, 4, 3]})
    >>> split_table(frame, TimeSplit(valid=0.2, test=0.2), time="t").test
    array([0])
    """
    if y is not None and len(y) != frame.height:
        raise DataError(f"targets must match the table's rows: found {len(y)} targets and {frame.height} rows")
    kept = 0
    match settings:
        case RandomSplit():
            part = _random(frame.height, settings, seed, y)
        case TimeSplit():
            part = _by_time(frame, settings, time, time_format)
        case LeaveLastOutSplit():
            part, kept = _last_out(frame, settings, time, user, time_format)
        case ColumnSplit():
            part = _by_column(frame, settings, seed, y)
    train, valid, test = (np.flatnonzero(part == k).astype(np.int64) for k in range(3))
    split = Split(train=train, valid=valid, test=test, users_kept_in_train=kept)
    empty = [name for name, n in split.sizes.items() if n == 0]
    if empty:
        raise DataError(
            f"every part needs rows: the {settings.kind} split of {frame.height} rows leaves {' and '.join(empty)} "
            f"empty; {_advice(settings, kept)}"
        )
    return split


def hold_out(
    frame: pl.DataFrame,
    share: float,
    *,
    seed: int = 0,
    y: np.ndarray | None = None,
    time: str | None = None,
    time_format: str | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into kept rows and a held-out share.

    Args:
        frame: the table.
        share: share of held-out rows, within (0, 1).
        seed: random seed.
        y: targets [N] for a stratified random sample.
        time: hold out the latest rows by this column instead; rows of equal time are never separated.
        time_format: format of that column, if it is text.

    Returns:
        Sorted row numbers, int64: of the kept rows, of the held-out rows.

    Errors:
        DataError: a side would be empty.

    >>> hold_out(pl.DataFrame({"t": [5, 1, 2, 4, 3]}), 0.4, time="t")[1].tolist()
    [0, 3]
    """
    if time is None:
        classes = None if y is None else np.unique(y, return_inverse=True)[1].astype(np.int64)
        held = _draw(frame.height, (share, 0.0), seed, classes) == 1
    else:
        values = order_values(frame, time, "time", time_format)
        moments, rank, counts = np.unique(values, return_inverse=True, return_counts=True)
        before = np.cumsum(counts)[:-1]  # rows before each cut that leaves rows on both sides
        cut = np.argmin(np.abs(before - frame.height * (1 - share))) if len(moments) > 1 else 0
        held = rank > cut
    if held.all() or not held.any():
        raise DataError(f"both held-out and kept rows are needed: {share:g} of {frame.height} leaves one side empty")
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)


def _advice(settings: SplitSettings, kept: int) -> str:
    match settings:
        case LeaveLastOutSplit():
            return f"{kept} users have too few rows: lower valid_rows, test_rows or min_train, or choose another split"
        case ColumnSplit(column=column, valid_share=None):
            return f"give their values in column {column!r}, or valid_share to sample validation rows from train"
        case ColumnSplit(column=column):
            return f"give their values in column {column!r}, or change valid_share"
        case _:
            return "give more rows or change the shares valid and test"


def _random(rows: int, settings: RandomSplit, seed: int, y: np.ndarray | None) -> np.ndarray:
    return _draw(rows, (settings.valid, settings.test), seed, _classes(y) if settings.stratify else None)


def _by_time(frame: pl.DataFrame, settings: TimeSplit, time: str | None, time_format: str | None) -> np.ndarray:
    name = settings.column or time
    if name is None:
        raise DataError("a time split needs a time column: give the split's column or the schema's time")
    values = order_values(frame, name, "time", time_format if name == time else None)
    moments, rank, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(moments) < 3:
        raise DataError(
            f"a time split needs at least 3 different times: column {name!r} holds {len(moments)}; choose another split"
        )
    before = np.cumsum(counts)[:-1]  # rows before each cut that leaves rows on both sides
    shares = np.array([settings.valid + settings.test, settings.test])
    target = np.round(frame.height * (1 - shares), 6)  # rounded, so that equally close cuts compare as equal
    first, second = (int(np.argmin(np.abs(before - t))) for t in target)
    if first == second:
        # Both distances grow away from the common cut, so the best pair has one of the two cuts there.
        pairs = [(a, b) for a, b in ((second - 1, second), (first, first + 1)) if a >= 0 and b < len(before)]
        first, second = min(pairs, key=lambda p: float(np.abs(before[list(p)] - target).sum()))
    return np.where(rank <= first, 0, np.where(rank <= second, 1, 2))


def _last_out(
    frame: pl.DataFrame,
    settings: LeaveLastOutSplit,
    time: str | None,
    named: str | None,
    time_format: str | None,
) -> tuple[np.ndarray, int]:
    user, order = settings.user or named, settings.order or time
    if user is None or order is None:
        missing = "user (or the schema's)" if user is None else "order (or the schema's time)"
        raise DataError(f"a leave-last-out split needs columns of users and order: give the split's {missing}")
    values = order_values(frame, order, "order", time_format if order == time else None)
    if user not in frame.columns:
        raise DataError(
            f"the split's user column {user!r} must be in the table, found only: {', '.join(frame.columns)}"
        )
    users = as_text(frame.get_column(user))
    if users.null_count():
        row = int(users.is_null().arg_max() or 0)
        raise DataError(f"every row needs a user: column {user!r} has none in row {row} (counting from 0)")
    code = users.rank("dense").to_numpy().astype(np.int64) - 1
    sequence = np.lexsort((values, code))  # stable: equal values keep the table's order
    counts = np.bincount(code)
    ends = np.cumsum(counts)[code[sequence]]
    from_end = ends - 1 - np.arange(frame.height)
    enough = counts >= settings.min_train + settings.valid_rows + settings.test_rows
    held = np.where(
        from_end < settings.test_rows, 2, np.where(from_end < settings.test_rows + settings.valid_rows, 1, 0)
    )
    part = np.zeros(frame.height, dtype=np.int64)
    part[sequence] = np.where(enough[code[sequence]], held, 0)
    return part, int((~enough).sum())


def _by_column(frame: pl.DataFrame, settings: ColumnSplit, seed: int, y: np.ndarray | None) -> np.ndarray:
    if settings.column not in frame.columns:
        found = ", ".join(frame.columns)
        raise DataError(f"the split's column {settings.column!r} must be in the table, found only: {found}")
    text = as_text(frame.get_column(settings.column))
    part = np.full(frame.height, -1, dtype=np.int64)
    for k, names in enumerate((settings.train, settings.valid, settings.test)):
        part[text.is_in(list(names)).fill_null(False).to_numpy()] = k
    if (part < 0).any():
        row = int(np.argmax(part < 0))
        raise DataError(
            f"every value of the split's column must belong to a part: column {settings.column!r} holds {text[row]!r} "
            "in "
            f"row {row} (counting from 0); add it to train, valid or test, or remove such rows"
        )
    if settings.valid_share is None:
        return part
    if (part == 1).any():
        raise DataError(
            f"valid_share is for tables without validation rows: column {settings.column!r} has "
            f"{int((part == 1).sum())}; omit valid_share, or add their values to train"
        )
    train = np.flatnonzero(part == 0)
    classes = _classes(None if y is None else y[train]) if settings.stratify else None
    part[train] = _draw(len(train), (settings.valid_share, 0.0), seed, classes)
    return part


def _draw(rows: int, shares: tuple[float, float], seed: int, classes: np.ndarray | None) -> np.ndarray:
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


def _apportion(counts: np.ndarray, share: float, room: np.ndarray) -> np.ndarray:
    """Counts per class: the whole part of its quota, plus the rest by the largest remainders."""
    total = int(np.floor(counts.sum() * share + 0.5))
    quota = counts * share
    given: np.ndarray = np.minimum(np.floor(quota).astype(np.int64), room)
    for k in np.argsort(given - quota, kind="stable").tolist() * 2:
        if given.sum() < total and given[k] < room[k]:
            given[k] += 1
    return given


def _classes(y: np.ndarray | None) -> np.ndarray:
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

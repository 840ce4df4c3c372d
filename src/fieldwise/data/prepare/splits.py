"""Splits of a table's rows into training, validation and test rows.

Letters: N rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import check_column, order_values
from fieldwise.data.prepare.rows_by_value import group_rows, rank_texts, shuffled_rows
from fieldwise.data.prepare.settings import (
    PARTS,
    ColumnSplit,
    LeaveLastOutSplit,
    RandomSplit,
    SplitSettings,
    TimeSplit,
)
from fieldwise.errors import DataError, Row
from fieldwise.schema import Schema
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

TRAIN, VALID, TEST, DROPPED = range(4)
"""The parts of rows, as numbers."""
_NO_PART = -1


def _bounds_of_value(ordered: np.ndarray, position: int) -> tuple[int, int]:
    """The first position of the value at a position, and the first behind it."""
    value = ordered[position]
    first = np.searchsorted(ordered, value, side="left")
    end = np.searchsorted(ordered, value, side="right")
    return int(first), int(end)


def _nearest_cut(ordered: np.ndarray, target: float) -> int:
    """The cut (number of rows before it) nearest to a target, with rows before and after it."""
    cuts = _bounds_of_value(ordered, min(max(int(target), 0), len(ordered) - 1))
    allowed = [cut for cut in cuts if 0 < cut < len(ordered)]
    return min(allowed, key=lambda cut: (abs(cut - target), cut))


def assign_random_split(
    rows: int,
    shares: tuple[float, float],
    seed: int,
    classes: np.ndarray | None,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """Part of each row [N], int8; `shares` of valid and test, stratified by classes."""
    counts = np.array([rows]) if classes is None else np.bincount(classes, minlength=1)
    test = _apportion(counts, shares[1], counts)
    valid = _apportion(counts, shares[0], counts - test)
    shuffled = shuffled_rows(rows, seed, budget=budget)
    part = budget.empty(rows, np.int8)
    earlier = np.zeros(len(counts), dtype=np.int64)  # rows of each class before the chunk
    for chunk in budget.chunk_slices(rows):
        drawn = shuffled[chunk]
        codes = np.zeros(len(drawn), dtype=np.int64)
        if classes is not None:
            codes = classes[drawn].astype(np.int64)
        by_class = np.argsort(codes, kind="stable")
        drawn = drawn[by_class]
        codes = codes[by_class]

        class_rows = np.bincount(codes, minlength=len(counts))
        first_of_class = np.cumsum(class_rows) - class_rows
        number_in_class = np.arange(len(drawn)) - first_of_class[codes] + earlier[codes]
        is_test = number_in_class < test[codes]
        is_valid = number_in_class < (test + valid)[codes]
        part[drawn] = np.where(is_test, TEST, np.where(is_valid, VALID, TRAIN))
        earlier += class_rows
    return part


def classes_of(y: np.ndarray, *, budget: MemoryBudget) -> np.ndarray:
    """The class of each row [N], int32, from its target, of which every one has at least 3 rows."""
    values = np.empty(0, y.dtype)
    for chunk in budget.chunk_slices(len(y)):
        values = np.union1d(values, y[chunk])
    codes = budget.empty(len(y), np.int32)
    counts = np.zeros(len(values), dtype=np.int64)
    for chunk in budget.chunk_slices(len(y)):
        codes[chunk] = np.searchsorted(values, y[chunk])
        counts += np.bincount(codes[chunk], minlength=len(values))
    if len(counts) and counts.min() < 3:
        rare = values[np.argmin(counts)]
        raise DataError(
            f"a stratified split needs at least 3 rows of each value of the label: {rare:g} has {int(counts.min())}; "
            "omit stratify"
        )
    return codes


def _apportion(counts: np.ndarray, share: float, available: np.ndarray) -> np.ndarray:
    """Counts per class: the whole part of its quota, plus the rest by the largest remainders."""
    total = int(np.floor(counts.sum() * share + 0.5))
    quota = counts * share
    seats: np.ndarray = np.minimum(np.floor(quota).astype(np.int64), available)
    by_remainder = np.argsort(seats - quota, kind="stable").tolist()
    for k in 2 * by_remainder:
        if seats.sum() < total and seats[k] < available[k]:
            seats[k] += 1
    return seats


@dataclass(frozen=True, kw_only=True)
class Split:
    """Row numbers of each part: sorted, int64; every row of the table is in exactly one part, or dropped."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray
    users_kept_in_train: int = 0
    dropped: int = 0

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each part."""
        return {"train": len(self.train), "valid": len(self.valid), "test": len(self.test)}


def split_table(
    frame: pl.DataFrame,
    settings: SplitSettings,
    schema: Schema,
    *,
    seed: int = 0,
    y: np.ndarray,
    budget: MemoryBudget,
) -> Split:
    """Split a table's rows, by the seed and, to stratify, targets [N].

    The schema's columns are used where the settings name none; its group stands for users where it
    does not say who they are.
    """
    users_in_train = 0
    remedy = "give more rows or change the shares valid and test"
    if isinstance(settings, RandomSplit):
        part = _at_random(frame, settings, schema, seed, y, budget=budget)
    elif isinstance(settings, TimeSplit):
        part = _by_time(frame, settings, schema, budget=budget)
    elif isinstance(settings, LeaveLastOutSplit):
        part, users_in_train = _by_user(frame, settings, schema, budget=budget)
        remedy = (
            f"{users_in_train} users have too few rows: lower valid_rows, test_rows or min_train, or choose another "
            "split"
        )
    else:
        part = _by_column(frame, settings, seed, y, budget=budget)
        remedy = f"mark rows of the empty parts in column {settings.column!r}, or "
        if settings.valid_share is None:
            remedy += "valid_share to sample validation rows from train"
        else:
            remedy += "change valid_share"

    rows = {
        name: _rows_of_part(part, number, budget=budget)
        for name, number in zip(PARTS, (TRAIN, VALID, TEST), strict=True)
    }
    empty = [name for name in PARTS if not len(rows[name])]
    if empty:
        if frame.height == 1:
            remedy = (
                "a table needs at least 3 rows, and for a model that is of use hundreds: add rows"
            )
        raise DataError(
            f"every part needs rows: the {settings.kind} split of {frame.height} rows leaves {' and '.join(empty)} "
            f"empty; {remedy}"
        )
    dropped = frame.height - sum(len(numbers) for numbers in rows.values())
    return Split(**rows, users_kept_in_train=users_in_train, dropped=dropped)


def _rows_of_part(part: np.ndarray, number: int, *, budget: MemoryBudget) -> np.ndarray:
    """The numbers of the rows of a part, ascending, int64."""
    return budget.where(len(part), lambda chunk: part[chunk] == number)


def _at_random(
    frame: pl.DataFrame,
    settings: RandomSplit,
    schema: Schema,
    seed: int,
    y: np.ndarray,
    *,
    budget: MemoryBudget,
) -> np.ndarray:
    """The part of each row [N], int8."""
    classes = classes_of(y, budget=budget) if settings.stratify else None
    drawn_share = settings.valid if settings.valid_last_by is None else 0.0
    part = assign_random_split(
        frame.height, (drawn_share, settings.test), seed, classes, budget=budget
    )
    if settings.drop_without_positive is not None:
        _drop_without_positive(frame, settings.drop_without_positive, part, y, budget=budget)
    if settings.valid_last_by is not None:
        name = settings.valid_last_by
        values = order_values(
            frame,
            name,
            "split's valid_last_by",
            schema.format_of(name),
            schema.missing,
            budget=budget,
        )
        rest = _rows_of_part(part, TRAIN, budget=budget)
        in_order = rest[np.argsort(budget.take(values, rest), kind="stable")]
        share = settings.valid / (1 - settings.test)
        valid_rows = int(np.floor(len(rest) * share + 0.5))
        part[in_order[len(rest) - valid_rows :]] = VALID
    return part


def _drop_without_positive(
    frame: pl.DataFrame, name: str, part: np.ndarray, y: np.ndarray, *, budget: MemoryBudget
) -> None:
    """Drop each row whose value in a column has no positive row on its side: among the test rows, or the others."""
    check_column(frame, name, "the split's drop_without_positive column")
    ranks, counts = rank_texts(frame.get_column(name), budget=budget)
    has_positive = np.zeros((2, len(counts)), dtype=bool)  # by side and value
    for chunk in budget.chunk_slices(len(part)):
        is_test = (part[chunk] == TEST).astype(np.int8)
        positive = y[chunk] > 0
        has_positive[is_test[positive], ranks[chunk][positive]] = True
    for chunk in budget.chunk_slices(len(part)):
        is_test = (part[chunk] == TEST).astype(np.int8)
        part[chunk] = np.where(has_positive[is_test, ranks[chunk]], part[chunk], DROPPED)


def _by_time(
    frame: pl.DataFrame, settings: TimeSplit, schema: Schema, *, budget: MemoryBudget
) -> np.ndarray:
    """The part of each row [N], int8."""
    name = settings.column or schema.time
    if name is None:
        raise DataError(
            "a time split needs a time column: give the split's column or the schema's time"
        )
    values = order_values(
        frame, name, "time", schema.format_of(name), schema.missing, budget=budget
    )
    ordered = budget.fill(len(values), values.dtype.type, values.__getitem__)
    ordered.sort()
    different_times = int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(1, len(ordered))
    if different_times < 3:
        raise DataError(
            f"a time split needs at least 3 different times: column {name!r} holds {different_times}; choose another "
            "split"
        )
    first, second = _time_cuts(ordered, settings)
    first_valid = ordered[first]
    first_test = ordered[second]

    def parts_of(chunk: slice) -> np.ndarray:
        is_valid = values[chunk] >= first_valid
        is_test = values[chunk] >= first_test
        return np.where(is_test, TEST, np.where(is_valid, VALID, TRAIN))

    return budget.fill(len(values), np.int8, parts_of)


def _time_cuts(ordered: np.ndarray, settings: TimeSplit) -> tuple[int, int]:
    """The numbers of rows before validation and before test rows, of at least 3 different times.

    They are the pair that is closest to the shares (see `TimeSplit`) among those that leave rows in
    every part.
    """
    shares_after = np.array([settings.valid + settings.test, settings.test])
    # rounded, so that equally close cuts compare as equal
    targets = np.round(len(ordered) * (1 - shares_after), 6)
    first, second = (_nearest_cut(ordered, float(target)) for target in targets)
    if first != second:
        return first, second
    # Both distances grow away from the common cut, so the best pair has one of the two cuts there.
    cut_before, _ = _bounds_of_value(ordered, first - 1)
    _, cut_after = _bounds_of_value(ordered, first)
    pairs = [(cut_before, first), (first, cut_after)]
    allowed = [(a, b) for a, b in pairs if a > 0 and b < len(ordered)]
    return min(allowed, key=lambda pair: float(np.abs(np.array(pair) - targets).sum()))


def _by_user(
    frame: pl.DataFrame, settings: LeaveLastOutSplit, schema: Schema, *, budget: MemoryBudget
) -> tuple[np.ndarray, int]:
    """The part of each row [N], and how many users have too few rows to be held out."""
    user = settings.user or schema.user or schema.group
    order = settings.order or schema.time
    if user is None or order is None:
        missing = "user (or the schema's)" if user is None else "order (or the schema's time)"
        raise DataError(
            f"a leave-last-out split needs columns of users and order: give the split's {missing}"
        )
    values = order_values(
        frame, order, "order", schema.format_of(order), schema.missing, budget=budget
    )
    check_column(frame, user, "the split's user column")
    ranks, counts = rank_texts(frame.get_column(user), budget=budget)
    if counts[0]:
        row = int(np.argmin(ranks))
        raise DataError(f"every row needs a user: column {user!r} has none in ", Row(row))
    part = budget.empty(frame.height, np.int8)
    users_in_train = 0
    needed_rows = settings.min_train + settings.valid_rows + settings.test_rows
    for rows, user_numbers, user_rows in group_rows(ranks, counts, values, budget=budget):
        has_enough = user_rows >= needed_rows
        users_in_train += int((~has_enough & (user_rows > 0)).sum())
        end_of_user = np.cumsum(user_rows)[user_numbers]
        rows_after = end_of_user - 1 - np.arange(len(rows))
        is_test = rows_after < settings.test_rows
        is_valid = rows_after < settings.test_rows + settings.valid_rows
        held_out = np.where(is_test, TEST, np.where(is_valid, VALID, TRAIN))
        part[rows] = np.where(has_enough[user_numbers], held_out, TRAIN)
    return part, users_in_train


def _by_column(
    frame: pl.DataFrame, settings: ColumnSplit, seed: int, y: np.ndarray, *, budget: MemoryBudget
) -> np.ndarray:
    """The part of each row [N]."""
    name = settings.column
    check_column(frame, name, "the split's column")
    part = budget.empty(frame.height, np.int8)
    for chunk in budget.chunk_slices(frame.height):
        text = as_text(frame[name][chunk])
        part_of_row = np.full(len(text), _NO_PART, dtype=np.int8)
        for number, names in (
            (TRAIN, settings.train),
            (VALID, settings.valid),
            (TEST, settings.test),
        ):
            part_of_row[text.is_in(list(names)).fill_null(False).to_numpy()] = number
        has_none = part_of_row == _NO_PART
        if has_none.any():
            row = int(np.argmax(has_none))
            raise DataError(
                f"every value of the split's column must belong to a part: column {name!r} holds {text[row]!r} in ",
                Row(chunk.start + row),
                "; add it to train, valid or test, or remove such rows",
            )
        part[chunk] = part_of_row
    if settings.valid_share is None:
        return part

    valid_rows = int(np.count_nonzero(part == VALID))
    if valid_rows:
        raise DataError(
            f"valid_share is for tables without validation rows: column {name!r} has {valid_rows}; omit valid_share, "
            "or add their values to train"
        )
    train = _rows_of_part(part, TRAIN, budget=budget)
    classes = classes_of(budget.take(y, train), budget=budget) if settings.stratify else None
    part[train] = assign_random_split(
        len(train), (settings.valid_share, 0.0), seed, classes, budget=budget
    )
    return part


def hold_out(
    frame: pl.DataFrame,
    share: float,
    *,
    seed: int = 0,
    y: np.ndarray | None = None,
    time: str | None = None,
    time_format: str | None = None,
    missing: Sequence[str] = MISSING_MARKS,
) -> tuple[np.ndarray, np.ndarray]:
    """The sorted numbers of kept rows and of a held-out share.

    With targets `y` the sample is stratified. With the column `time` the latest rows are held out,
    and rows of equal time are never separated.
    """
    if time is None:
        classes = None if y is None else np.unique(y, return_inverse=True)[1].astype(np.int64)
        held = (
            assign_random_split(frame.height, (share, 0.0), seed, classes, budget=NO_LIMIT) == VALID
        )
    else:
        values = order_values(frame, time, "time", time_format, missing, budget=NO_LIMIT)
        ordered = np.sort(values)
        first_held = -np.inf  # without two different times
        if len(values) and ordered[0] < ordered[-1]:
            first_held = ordered[_nearest_cut(ordered, frame.height * (1 - share))]
        held = values >= first_held
    if held.all() or not held.any():
        raise DataError(
            f"both held-out and kept rows are needed: {share:g} of {frame.height} leaves one side empty"
        )
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)

"""Rows by the values of a column, such as their user, and split into training, validation and test rows.

Letters: N rows, K different texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text, coded
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.settings import (
    ColumnSplit,
    LeaveLastOutSplit,
    RandomSplit,
    SplitSettings,
    TimeSplit,
)
from fieldwise.errors import DataError
from fieldwise.schema import MISSING_MARKS, Schema
from fieldwise.storage import scratch


def distinct_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """The different rows of a table, in memory and in any order."""
    chunks = (frame[at].unique() for at in scratch.chunk_slices(frame.height))
    return reduce(lambda known, chunk: pl.concat([known, chunk]).unique(), chunks)


def rank_texts(column: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """The rank of each cell's text (see `as_text`) among the column's sorted texts, from 1, and the rows of each rank.

    Rank 0 is a missing cell. The different texts are held in memory.
    """
    chunks = (coded(column[at]).texts for at in scratch.chunk_slices(len(column)))
    texts = reduce(
        lambda known, more: pl.concat([known, more]).unique(), chunks, pl.Series(dtype=pl.String)
    ).sort()
    known = pl.int_range(1, len(texts) + 1, eager=True)
    ranks = scratch.empty(len(column), np.int32)
    counts = np.zeros(len(texts) + 1, dtype=np.int64)
    for at in scratch.chunk_slices(len(column)):
        cells = coded(column[at])
        own = cells.texts.replace_strict(texts, known, default=0, return_dtype=pl.Int32).to_numpy()
        ranks[at] = cells.look_up(own, 0)
        counts += np.bincount(ranks[at], minlength=len(counts))
    return ranks, counts


def group_rows(
    ranks: np.ndarray, counts: np.ndarray, values: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All rows with a rank above 0, by consecutive ranks, about a chunk at a time; the rows of a rank stay together.

    `ranks` and `counts` are those of `rank_texts`. Rows of one rank come in the order of `values`
    [N]; equal ones in that of the table. Yields the rows' numbers, the rank of each, less the first
    one's, and the rows of each rank.
    """
    starts = np.cumsum(counts) - counts
    grouped = scratch.empty(len(ranks), np.int64)
    place = starts.copy()
    for at in scratch.chunk_slices(len(ranks)):
        order = np.argsort(ranks[at], kind="stable")
        rank = ranks[at][order]
        own = np.bincount(rank, minlength=len(place))
        grouped[place[rank] + np.arange(len(rank)) - (np.cumsum(own) - own)[rank]] = (
            order + at.start
        )
        place += own
    first = 1
    most = scratch.budget().chunk_rows or max(len(ranks), 1)
    while first < len(starts):
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + most, side="right")) - 1)
        last = len(starts) if starts[-1] + counts[-1] <= starts[first] + most else last
        some = counts[first:last]
        rows = grouped[starts[first] : starts[first] + int(some.sum())]
        codes = np.repeat(np.arange(len(some)), some)
        yield rows[np.lexsort((values[rows], codes))], codes, some
        first = last


def _ends(ordered: np.ndarray, place: int) -> tuple[int, int]:
    """The first place of the value at a place, and the first behind it."""
    first, after = (
        int(np.searchsorted(ordered, ordered[place], side=side)) for side in ("left", "right")
    )
    return first, after


def _nearest(ordered: np.ndarray, target: float) -> int:
    """The cut (number of rows before it) nearest to a target, with rows before and after it."""
    cuts = _ends(ordered, min(max(int(target), 0), len(ordered) - 1))
    return min(
        (cut for cut in cuts if 0 < cut < len(ordered)), key=lambda cut: (abs(cut - target), cut)
    )


def assign_random_split(
    rows: int, shares: tuple[float, float], seed: int, classes: np.ndarray | None
) -> np.ndarray:
    """Part of each row [N], int8: 0 train, 1 valid, 2 test; `shares` of valid and test, stratified by classes."""
    counts = np.array([rows]) if classes is None else np.bincount(classes, minlength=1)
    test = _apportion(counts, shares[1], counts)
    valid = _apportion(counts, shares[0], counts - test)
    shuffled = scratch.fill(rows, np.int64, lambda at: np.arange(at.start, at.stop))
    np.random.default_rng(seed).shuffle(shuffled)
    part = scratch.empty(rows, np.int8)
    done = np.zeros(len(counts), dtype=np.int64)  # rows of each class before the chunk
    for at in scratch.chunk_slices(rows):
        drawn = shuffled[at]
        code = (
            np.zeros(len(drawn), dtype=np.int64)
            if classes is None
            else classes[drawn].astype(np.int64)
        )
        by_class = np.argsort(code, kind="stable")
        drawn = drawn[by_class]
        code = code[by_class]
        own = np.bincount(code, minlength=len(counts))
        # position within its class
        place = np.arange(len(drawn)) + (done - (np.cumsum(own) - own))[code]
        part[drawn] = np.where(place < test[code], 2, np.where(place < (test + valid)[code], 1, 0))
        done += own
    return part


def classes_of(y: np.ndarray) -> np.ndarray:
    """The class of each row [N], int32, from its target, of which every one has at least 3 rows."""
    values = reduce(
        np.union1d, (y[at] for at in scratch.chunk_slices(len(y))), np.empty(0, y.dtype)
    )
    codes = scratch.empty(len(y), np.int32)
    counts = np.zeros(len(values), dtype=np.int64)
    for at in scratch.chunk_slices(len(y)):
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
    frame: pl.DataFrame, settings: SplitSettings, schema: Schema, *, seed: int = 0, y: np.ndarray
) -> Split:
    """Split a table's rows, by the seed and, to stratify, targets [N].

    The schema's columns are used where the settings name none; its group stands for users where it
    does not say who they are.
    """
    kept = 0
    fix = "give more rows or change the shares valid and test"
    if isinstance(settings, RandomSplit):
        part = _at_random(frame, settings, schema, seed, y)
    elif isinstance(settings, TimeSplit):
        part = _by_time(frame, settings, schema)
    elif isinstance(settings, LeaveLastOutSplit):
        part, kept = _by_user(frame, settings, schema)
        fix = f"{kept} users have too few rows: lower valid_rows, test_rows or min_train, or choose another split"
    else:
        part = _by_column(frame, settings, seed, y)
        share = (
            "valid_share to sample validation rows from train"
            if settings.valid_share is None
            else ""
        )
        fix = f"mark rows of the empty parts in column {settings.column!r}, or {share or 'change valid_share'}"
    train, valid, test = (
        scratch.where(len(part), lambda at, k=k: part[at] == k)  # type: ignore[misc]
        for k in (TRAIN, VALID, TEST)
    )
    dropped = frame.height - len(train) - len(valid) - len(test)
    split = Split(train=train, valid=valid, test=test, users_kept_in_train=kept, dropped=dropped)
    empty = [
        name for name, rows in (("train", train), ("valid", valid), ("test", test)) if not len(rows)
    ]
    if empty:
        if frame.height == 1:
            fix = "a table needs at least 3 rows, and for a model that is of use hundreds: add rows"
        raise DataError(
            f"every part needs rows: the {settings.kind} split of {frame.height} rows leaves {' and '.join(empty)} "
            f"empty; {fix}"
        )
    return split


TRAIN, VALID, TEST, DROPPED = range(4)


def _at_random(
    frame: pl.DataFrame, settings: RandomSplit, schema: Schema, seed: int, y: np.ndarray
) -> np.ndarray:
    """The part of each row [N], int8."""
    classes = classes_of(y) if settings.stratify else None
    drawn_share = settings.valid if settings.valid_last_by is None else 0.0
    part = assign_random_split(frame.height, (drawn_share, settings.test), seed, classes)
    if settings.drop_without_positive is not None:
        _drop_without_positive(frame, settings.drop_without_positive, part, y)
    if settings.valid_last_by is not None:
        name = settings.valid_last_by
        values = order_values(
            frame, name, "split's valid_last_by", schema.format_of(name), schema.missing
        )
        rest = scratch.where(len(part), lambda at: part[at] == TRAIN)
        in_order = rest[np.argsort(scratch.take(values, rest), kind="stable")]
        share = settings.valid / (1 - settings.test)
        valid_rows = int(np.floor(len(rest) * share + 0.5))
        part[in_order[len(rest) - valid_rows :]] = VALID
    return part


def _drop_without_positive(frame: pl.DataFrame, name: str, part: np.ndarray, y: np.ndarray) -> None:
    """Drop each row whose value in a column has no positive row on its side: among the test rows, or the others."""
    if name not in frame.columns:
        raise DataError(
            f"the split's drop_without_positive column {name!r} must be in the table, found only: "
            f"{', '.join(frame.columns)}"
        )
    ranks, counts = rank_texts(frame.get_column(name))
    has_positive = np.zeros((2, len(counts)), dtype=bool)  # by side and value
    for at in scratch.chunk_slices(len(part)):
        is_test = (part[at] == TEST).astype(np.int8)
        positive = y[at] > 0
        has_positive[is_test[positive], ranks[at][positive]] = True
    for at in scratch.chunk_slices(len(part)):
        is_test = (part[at] == TEST).astype(np.int8)
        part[at] = np.where(has_positive[is_test, ranks[at]], part[at], DROPPED)


def _by_time(frame: pl.DataFrame, settings: TimeSplit, schema: Schema) -> np.ndarray:
    """The part of each row [N], int8: 0 train, 1 valid, 2 test."""
    name = settings.column or schema.time
    if name is None:
        raise DataError(
            "a time split needs a time column: give the split's column or the schema's time"
        )
    values = order_values(frame, name, "time", schema.format_of(name), schema.missing)
    ordered = scratch.fill(len(values), values.dtype.type, values.__getitem__)
    ordered.sort()
    few = int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(1, len(ordered))
    if few < 3:
        raise DataError(
            f"a time split needs at least 3 different times: column {name!r} holds {few}; choose another split"
        )
    # The cuts are the pair that is closest to the shares (see `TimeSplit`) among those that leave
    # rows in every part.
    after = np.array([settings.valid + settings.test, settings.test])
    # rounded, so that equally close cuts compare as equal
    targets = np.round(len(ordered) * (1 - after), 6)
    first, second = (_nearest(ordered, float(target)) for target in targets)
    if first == second:
        # Both distances grow away from the common cut, so the best pair has one of the two cuts
        # there.
        pairs = [(_ends(ordered, first - 1)[0], first), (first, _ends(ordered, first)[1])]
        allowed = [(a, b) for a, b in pairs if a > 0 and b < len(ordered)]
        first, second = min(allowed, key=lambda pair: float(np.abs(np.array(pair) - targets).sum()))
    valid = ordered[first]
    test = ordered[second]
    return scratch.fill(
        len(values),
        np.int8,
        lambda at: (values[at] >= valid).astype(np.int8) + (values[at] >= test),
    )


def _by_user(
    frame: pl.DataFrame, settings: LeaveLastOutSplit, schema: Schema
) -> tuple[np.ndarray, int]:
    """The part of each row [N], and how many users have too few rows to be held out."""
    user = settings.user or schema.user or schema.group
    order = settings.order or schema.time
    if user is None or order is None:
        missing = "user (or the schema's)" if user is None else "order (or the schema's time)"
        raise DataError(
            f"a leave-last-out split needs columns of users and order: give the split's {missing}"
        )
    values = order_values(frame, order, "order", schema.format_of(order), schema.missing)
    if user not in frame.columns:
        raise DataError(
            f"the split's user column {user!r} must be in the table, found only: {', '.join(frame.columns)}"
        )
    ranks, counts = rank_texts(frame.get_column(user))
    if counts[0]:
        row = int(np.argmin(ranks))
        raise DataError(
            f"every row needs a user: column {user!r} has none in row {row} (counting from 0)"
        )
    part = scratch.empty(frame.height, np.int8)
    kept = 0
    for some, users, rows in group_rows(ranks, counts, values):
        enough = rows >= settings.min_train + settings.valid_rows + settings.test_rows
        kept += int((~enough & (rows > 0)).sum())
        from_end = np.cumsum(rows)[users] - 1 - np.arange(len(some))
        held = (from_end < settings.test_rows + settings.valid_rows).astype(np.int8) + (
            from_end < settings.test_rows
        )
        part[some] = np.where(enough[users], held, 0)
    return part, kept


def _by_column(frame: pl.DataFrame, settings: ColumnSplit, seed: int, y: np.ndarray) -> np.ndarray:
    """The part of each row [N]."""
    name = settings.column
    if name not in frame.columns:
        raise DataError(
            f"the split's column {name!r} must be in the table, found only: {', '.join(frame.columns)}"
        )
    part = scratch.empty(frame.height, np.int8)
    for at in scratch.chunk_slices(frame.height):
        text = as_text(frame[name][at])
        own = np.full(len(text), -1, dtype=np.int8)
        for k, names in enumerate((settings.train, settings.valid, settings.test)):
            own[text.is_in(list(names)).fill_null(False).to_numpy()] = k
        if (own < 0).any():
            row = int(np.argmax(own < 0))
            raise DataError(
                f"every value of the split's column must belong to a part: column {name!r} holds {text[row]!r} in row "
                f"{at.start + row} (counting from 0); add it to train, valid or test, or remove such rows"
            )
        part[at] = own
    if settings.valid_share is None:
        return part
    if valid := int(np.count_nonzero(part == 1)):
        raise DataError(
            f"valid_share is for tables without validation rows: column {name!r} has {valid}; omit valid_share, or add "
            "their values to train"
        )
    train = scratch.where(len(part), lambda at: part[at] == 0)
    classes = classes_of(scratch.take(y, train)) if settings.stratify else None
    part[train] = assign_random_split(len(train), (settings.valid_share, 0.0), seed, classes)
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
        held = assign_random_split(frame.height, (share, 0.0), seed, classes) == 1
    else:
        values = order_values(frame, time, "time", time_format, missing)
        ordered = np.sort(values)
        several = len(values) > 0 and ordered[0] < ordered[-1]
        held = values >= (
            ordered[_nearest(ordered, frame.height * (1 - share))] if several else -np.inf
        )
    if held.all() or not held.any():
        raise DataError(
            f"both held-out and kept rows are needed: {share:g} of {frame.height} leaves one side empty"
        )
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)

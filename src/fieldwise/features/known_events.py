"""Aggregates over the events that were known before each row, for the keys of one partition.

An event counts for a row of its key at time t, in a window w, if its known time k lies before t and
its event time e does not lie before t - w: for k < t <= e + w. Since k is never before e, the
events with k - e >= w count for no row, and of the others each one that has left the window
(e + w < t) was known before. So a sum over the window is the difference of two running sums: over
the events by known time, up to those before t, and by event time, up to those before t - w.

Letters: Q rows, E events; both sorted by key, then by time.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

MISSING = np.int64(np.iinfo(np.int64).min)
"""Stands for a missing value among whole numbers."""
LARGEST_EXACT = 2**53


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownEvents:
    """The events of a feature, and the rows that ask for it.

    Args:
        row_base: for each row its key's number times `span` [Q] int64, so that a sum with a time
            sorts by key, then by time.
        row_time: times of the rows [Q], from 0 to `span` - 2.
        base: as `row_base` for the events [E].
        time: event times [E], within the same range.
        known: known times [E]; None: all are known `delay` after their event time.
        span: more than any time.
        second: how many units of time a second has.
        value: the events' values [E], none of which is missing.
        trials: for values that are numbers of positive trials, the number of all [E], by which a
            mean is divided.
        prior: for a smoothed mean, the value of the added events for each row [Q], NaN for none.
        found: places that were searched for, which the features of equal events share.
    """

    row_base: np.ndarray
    row_time: np.ndarray
    base: np.ndarray
    time: np.ndarray
    known: np.ndarray | None
    delay: int
    span: int
    second: float
    value: np.ndarray | None = None
    trials: np.ndarray | None = None
    prior: np.ndarray | None = None
    found: dict[int | None, np.ndarray] = field(default_factory=dict)

    def count(self, window: int | None) -> np.ndarray:
        """The number of events [Q]."""
        counts = self._known_end - self._left_before(window)
        late = self._too_late(window)
        if late is not None:
            known_late = _running(late[self._by_known])[self._known_end]
            counts = counts - known_late + _running(late)[self._left_before(window)]
        return np.asarray(counts)

    def total(self, window: int | None) -> np.ndarray:
        """The sum of the values [Q]; 0 without events."""
        return self._total_of(self._values, window)

    def _total_of(self, value: np.ndarray, window: int | None) -> np.ndarray:
        late = self._too_late(window)
        if late is not None:
            value = np.where(late, 0, value)
        by_time = _running_by_key(value, self.base)
        by_known = by_time
        if self.known is not None:
            by_known = _running_by_key(value[self._by_known], self.base)
        sums = self._sum_before(by_known, self._known_end)
        if window is not None:
            sums = sums - self._sum_before(by_time, self._left_before(window))
        return np.asarray(np.where(self.count(window) > 0, sums, 0.0))

    def mean(self, window: int | None, prior_rows: float, prior: float | None) -> np.ndarray:
        """The mean of the values and of `prior_rows` values `prior` (None: that of the row) [Q], NaN without any."""
        added = np.full(len(self.row_time), np.nan if prior is None else prior)
        if prior is None and self.prior is not None:
            added = self.prior
        weight = np.where(np.isnan(added), 0.0, prior_rows)
        events = self.count(window)
        if self.trials is not None:
            events = self._total_of(self.trials, window)
        rows = events + weight
        sums = self.total(window) + weight * np.nan_to_num(added)
        means = np.divide(sums, rows, out=np.full(len(rows), np.nan), where=rows > 0)
        return np.asarray(means)

    def last(self, window: int | None) -> np.ndarray:
        """The value of the last event by its time, of several at one time the greatest [Q]."""
        order = np.arange(len(self.time))
        is_tie = self._moment[1:] == self._moment[:-1]
        tied = np.flatnonzero(np.append(is_tie, False) | np.append(False, is_tie))
        if len(tied):
            # equal times are next to each other, so that times stay sorted
            order[tied] = tied[np.lexsort((self._values[tied], self._moment[tied]))]
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        latest = np.maximum.accumulate(rank[self._by_known])
        found = order[latest[np.maximum(self._known_end - 1, 0)]] if len(order) else self._start
        return self._where_known(found, self._values, window)

    def seconds_since_last(self, window: int | None) -> np.ndarray:
        """The seconds since the last event's time [Q], NaN without one."""
        latest = np.maximum.accumulate(self._moment[self._by_known])
        return self._since(latest, window)

    def seconds_since_first(self) -> np.ndarray:
        """The seconds since the first event's time [Q], NaN without one."""
        # reversed within the key, so that the first is the greatest
        reversed_moments = (self.base + (self.span - 1 - self.time))[self._by_known]
        greatest = np.maximum.accumulate(reversed_moments)
        moments = 2 * self.base[self._by_known] + self.span - 1 - greatest
        return self._since(moments, None)

    def distinct(self, window: int | None) -> np.ndarray:
        """The number of different values [Q].

        The times at which a row sees some event of a value are the union of the intervals (k, e + w];
        a row counts the unions that have begun and not ended.
        """
        known = self.time + self.delay if self.known is None else self.known
        known = np.minimum(known, self.span - 1)
        end = np.full(len(known), self.span - 1)
        if window is not None:
            end = np.minimum(self.time + window, self.span - 1)
        value = dense_numbers(self._values)
        pair = dense_numbers(self.base // self.span * (len(value) + 1) + value)
        begins = pair * self.span + known
        ends = pair * self.span + end
        order = np.argsort(begins, kind="stable")
        order = order[(known < end)[order]]
        begins = begins[order]
        reached = np.maximum.accumulate(ends[order])
        is_first = np.append(True, begins[1:] > reached[:-1])[: len(order)]
        is_last = np.append(is_first[1:], True)[: len(order)]
        base = self.base[order]
        begun = np.sort((base + known[order])[is_first])
        ended = np.sort(base[is_last] + reached[is_last] % self.span)
        row = self.row_base + self.row_time
        return np.asarray(np.searchsorted(begun, row) - np.searchsorted(ended, row))

    @cached_property
    def _moment(self) -> np.ndarray:
        """Keys and event times of the events, ascending."""
        return np.asarray(self.base + self.time)

    @cached_property
    def _by_known(self) -> Any:
        """The order of the events by key and known time: an index."""
        if self.known is None:
            return slice(None)
        known = self.base + np.minimum(self.known, self.span - 1)
        return np.argsort(known, kind="stable")

    @property
    def _start(self) -> np.ndarray:
        """The place of the first event of each row's key [Q]."""
        return self._left_before(None)

    @cached_property
    def _known_end(self) -> np.ndarray:
        """The place among the events by known time behind those that a row's key has known before it [Q]."""
        if self.known is None:
            return self._left_before(self.delay)
        known = (self.base + np.minimum(self.known, self.span - 1))[self._by_known]
        return np.asarray(np.searchsorted(known, self.row_base + self.row_time))

    def _left_before(self, duration: int | None) -> np.ndarray:
        """The place behind the events of each row's key that are more than a duration older than it [Q].

        None: before all events of the key.
        """
        if duration not in self.found:
            earliest = self.row_base
            if duration is not None:
                earliest = self.row_base + np.maximum(self.row_time - duration, 0)
            self.found[duration] = np.asarray(np.searchsorted(self._moment, earliest))
        return self.found[duration]

    def _too_late(self, window: int | None) -> np.ndarray | None:
        """Which events are known only when they have left the window [E]; None if none are."""
        if window is None or self.known is None:
            return None
        late = self.known - self.time >= window
        return late if late.any() else None

    @property
    def _values(self) -> np.ndarray:
        assert self.value is not None, "the feature has a value"
        return self.value

    def _sum_before(self, sums: np.ndarray, end: np.ndarray) -> np.ndarray:
        """The running sum [E] of each row's key up to a place [Q]."""
        if not len(sums):
            return np.zeros(len(end))
        return np.where(end > self._start, sums[np.maximum(end - 1, 0)], 0.0)

    def _since(self, moments: np.ndarray, window: int | None) -> np.ndarray:
        """The seconds since times of events by known time, of those that a row knows [Q]."""
        if not len(moments):
            return np.full(len(self.row_time), np.nan)
        passed = self.row_base + self.row_time - moments[np.maximum(self._known_end - 1, 0)]
        is_known = self._known_end > self._start
        if window is not None:
            is_known &= passed <= window
        return np.asarray(np.where(is_known, passed / self.second, np.nan))

    def _where_known(self, found: np.ndarray, values: np.ndarray, window: int | None) -> np.ndarray:
        """The values of found events [Q], missing where a row's key has known none, or none in the window."""
        missing = np.nan if values.dtype == np.float64 else MISSING
        if not len(values):
            return np.full(len(self.row_time), missing, values.dtype)
        is_known = self._known_end > self._start
        if window is not None:
            is_known &= self.row_time - self.time[found] <= window
        return np.asarray(np.where(is_known, values[found], missing))


def dense_numbers(values: np.ndarray) -> np.ndarray:
    """The number of each value among the different ones, from 0 and ascending, int64.

    >>> dense_numbers(np.array([30, 10, 30])).tolist()
    [1, 0, 1]
    """
    return pl.Series(values).rank("dense").to_numpy().astype(np.int64) - 1


def run_starts(values: np.ndarray) -> np.ndarray:
    """For each value, where the equal ones next to it begin.

    >>> run_starts(np.array([5, 5, 7, 7, 7])).tolist()
    [0, 0, 2, 2, 2]
    """
    is_first = np.append(True, values[1:] != values[:-1])[: len(values)]
    return np.asarray(np.maximum.accumulate(np.where(is_first, np.arange(len(values)), 0)))


def _running(flags: np.ndarray) -> np.ndarray:
    """How many flags are set before each place [E + 1]."""
    return np.append(0, np.cumsum(flags))


def _running_by_key(value: np.ndarray, base: np.ndarray) -> np.ndarray:
    """Running sums that begin anew at each key; for whole numbers those over all keys, less the key's first.

    Each key is summed by itself, so that no key's large numbers round those of another.
    """
    whole = np.abs(value)
    if (value == np.floor(value)).all() and whole.sum() < LARGEST_EXACT:
        sums = np.cumsum(value)
        before = (sums - value)[run_starts(base)]
        return np.asarray(sums - before)
    rows = pl.DataFrame({"key": base, "value": value})
    return rows.select(pl.col("value").cum_sum().over("key")).to_series().to_numpy()

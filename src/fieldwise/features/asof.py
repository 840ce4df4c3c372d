"""Columns of features: each row's aggregates over the events of its key that were known before it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.read.load_table import whole_table
from fieldwise.data.read.mapped_rows import join_rows
from fieldwise.errors import ConfigError, DataError
from fieldwise.features.definitions import Feature, OfEvents, OfTime, Rate
from fieldwise.features.known_events import MISSING, KnownEvents, dense_numbers, run_starts
from fieldwise.features.partitions import LONGEST_SPAN, Partitions, partition_count
from fieldwise.features.timed_rows import (
    DAY_US,
    MICROSECOND,
    Decode,
    TimedRows,
    in_chunks,
    shared_codes,
)
from fieldwise.storage.scratch import MemoryBudget

YEAR_US = 365 * DAY_US


def feature_columns(
    rows: TimedRows,
    log: TimedRows,
    features: Sequence[Feature],
    *,
    tables: Mapping[str, pl.DataFrame] | None = None,
    budget: MemoryBudget,
) -> list[pl.Series]:
    """The columns of features for rows; `log` has the events of features without a table.

    Each row sees the events of its key that were known strictly before its time.
    """
    check_names(features, rows.frame.columns)
    budget = in_chunks(budget)
    columns: dict[str, pl.Series] = {}
    of_events: list[OfEvents] = []
    for feature in features:
        if isinstance(feature, OfTime):
            columns[feature.label] = _column_of_times(rows, feature, budget=budget)
        else:
            of_events.append(feature)
    by_events = sorted(of_events, key=lambda feature: (_source(feature), feature.keys))
    for (source, keys), grouped in groupby(
        by_events, key=lambda feature: (_source(feature), feature.keys)
    ):
        asked = list(grouped)
        events = _events(source, log, tables or {}, budget=budget)
        columns |= _columns_of_key(rows, events, keys, asked, budget=budget)
    return [columns[name] for feature in features for name in feature.columns]


def _column_of_times(rows: TimedRows, feature: OfTime, *, budget: MemoryBudget) -> pl.Series:
    """The column of a feature that depends on the rows' times alone."""
    chunks = (
        feature.values(rows.times[chunk]).to_frame()
        for chunk in budget.chunk_slices(len(rows.times))
    )
    return join_rows(chunks, budget=budget).to_series()


def check_names(features: Iterable[Feature], existing: Sequence[str]) -> None:
    """Check that features make new columns, each once."""
    taken = set(existing)
    for feature in features:
        for name in feature.columns:
            if name in taken:
                raise ConfigError(
                    f"a feature makes a new column, but there is one named {name!r} already: give the feature "
                    f"{feature.label!r} another name"
                )
            taken.add(name)


Source = tuple[str, str, str]
"""A table of events, its column of times and their format; empty texts for the log."""


def _source(feature: OfEvents) -> Source:
    return (feature.table or "", feature.time or "", feature.time_format or "")


def _events(
    source: Source,
    log: TimedRows,
    tables: Mapping[str, pl.DataFrame],
    *,
    budget: MemoryBudget,
) -> TimedRows:
    """The events of features with one source."""
    name, time, time_format = source
    if not name:
        return log
    frame = tables.get(name)
    if frame is None:
        frame = whole_table(Path(name), memory=budget.memory, parent=budget.folder)
    where = f"the table {name}"
    return TimedRows.of(frame, time, time_format or None, where=where, budget=budget)


def _columns_of_key(
    rows: TimedRows,
    events: TimedRows,
    keys: tuple[str, ...],
    features: Sequence[OfEvents],
    *,
    budget: MemoryBudget,
) -> dict[str, pl.Series]:
    """The columns of features that have one key and one table of events."""
    for key in keys:
        for table in (rows, events):
            table.check(key, f"the key of the feature {features[0].label!r}")
    known = _known_times(events, features, budget=budget)
    clock = _Clock.of(rows, events, known, features, budget=budget)
    count = partition_count(max(len(rows.times), len(events.times)), clock.span)
    codes = [shared_codes(key, rows, events, budget=budget) for key in keys]
    by_key = _ByKey.of([code for code, _ in codes], rows, count, budget=budget)
    events_by_key = by_key
    if events is not rows:
        of_events = [code for _, code in codes]
        events_by_key = _ByKey.of(of_events, events, count, budget=budget)

    first_day = clock.origin // DAY_US
    asked = []
    for feature in features:
        known_times = known.get(feature.known or "")
        if known_times is not None:
            known_times = events_by_key.parts.arrange(known_times)
        value = _value_of(feature, events, events_by_key, first_day, budget=budget)
        asked.append(_Asked.of(feature, clock, known_times, value, by_key, budget=budget))
    for number in range(count):
        partition = _Partition.of(by_key, events_by_key, number, clock)
        for asked_feature in asked:
            partition.fill(asked_feature)
    columns: dict[str, pl.Series] = {}
    for asked_feature in asked:
        columns |= asked_feature.columns(by_key, budget=budget)
    return columns


@dataclass(frozen=True, kw_only=True)
class _Clock:
    """Times as whole numbers from the earliest one on.

    Args:
        origin: the earliest time, in microseconds.
        unit: the microseconds of a unit, the largest of which all times are whole numbers.
        span: more than any time.
    """

    origin: int
    unit: int
    span: int

    @classmethod
    def of(
        cls,
        rows: TimedRows,
        events: TimedRows,
        known: Mapping[str, np.ndarray],
        features: Sequence[OfEvents],
        *,
        budget: MemoryBudget,
    ) -> "_Clock":
        """The clock of all times; a DataError if a delay is longer than they are apart."""
        both = (rows.times, events.times)
        latest = max((int(times.max()) for times in both if len(times)), default=0)
        earliest = min((int(times.min()) for times in both if len(times)), default=0)
        for feature in features:
            delay = feature.delay_microseconds
            if delay and delay >= latest - earliest:
                raise DataError(
                    f"a delay must be shorter than {events.where}, or nothing is ever known: the feature "
                    f"{feature.label!r} has the delay {feature.delay!r}, and all times are within "
                    f"{(latest - earliest) / DAY_US:.3g} days"
                )
        unit = MICROSECOND
        for times in (*both, *known.values()):
            for chunk in budget.chunk_slices(len(times)):
                while (times[chunk] % unit).any():
                    unit //= 1000
        origin = earliest // MICROSECOND * MICROSECOND
        span = (latest - origin) // unit + 2
        if span > LONGEST_SPAN:
            first = np.datetime64(earliest, "us").astype("datetime64[D]")
            last = np.datetime64(latest, "us").astype("datetime64[D]")
            raise DataError(
                f"times to the microsecond must lie within {LONGEST_SPAN // YEAR_US} years: those of {events.where} "
                f"are from {first} to {last}; correct the outlying ones, or round all to milliseconds"
            )
        return cls(origin=origin, unit=unit, span=span)

    def units(self, times: np.ndarray) -> np.ndarray:
        """Times in microseconds as numbers of units."""
        return np.asarray((times - self.origin) // self.unit)


@dataclass(frozen=True, kw_only=True, eq=False)
class _ByKey:
    """Keys and times, in microseconds, of rows in the order of the partitions."""

    parts: Partitions
    keys: Sequence[np.ndarray]
    times: np.ndarray

    @classmethod
    def of(
        cls,
        codes: Sequence[np.ndarray],
        rows: TimedRows,
        count: int,
        *,
        budget: MemoryBudget,
    ) -> "_ByKey":
        """The rows by the whole numbers of their key's columns."""
        parts = Partitions.of(codes, count, budget=budget)
        return cls(
            parts=parts,
            keys=[parts.arrange(code) for code in codes],
            times=parts.arrange(rows.times),
        )

    def partition(self, number: int) -> slice:
        """The rows of a partition."""
        return slice(int(self.parts.bounds[number]), int(self.parts.bounds[number + 1]))

    @property
    def without_key(self) -> slice:
        """The rows that have no key."""
        return slice(int(self.parts.bounds[-1]), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Value:
    """A feature's values of the events, in the order of the partitions, and how its results become cells.

    Args:
        prior: for a smoothed mean, the mean of all events by day.
        trials: of `KnownEvents`.
        kind: the type of the results.
    """

    value: np.ndarray | None
    prior: "_MeanBeforeDay | None"
    kind: type[np.generic]
    decode: Decode
    trials: np.ndarray | None = None


def _value_of(
    feature: OfEvents,
    events: TimedRows,
    events_by_key: _ByKey,
    first_day: int,
    *,
    budget: MemoryBudget,
) -> _Value:
    """What a feature reads of its events."""
    what = f"the feature {feature.label!r}"
    if feature.value is None:
        if feature.kind == "count":
            return _Value(value=None, prior=None, kind=np.int64, decode=_counts)
        return _Value(value=None, prior=None, kind=np.float64, decode=_numbers)
    events.check(feature.value, f"the value of {what}")
    if not feature.needs_number:
        value, decode = events.code(feature.value, budget=budget)
        arranged = events_by_key.parts.arrange(value)
        if feature.kind == "distinct":
            return _Value(value=arranged, prior=None, kind=np.int64, decode=_counts)
        return _Value(value=arranged, prior=None, kind=value.dtype.type, decode=decode)
    value = events.number(feature.value, what, budget=budget)
    prior = None
    if isinstance(feature, Rate) and feature.prior is None:
        prior = _MeanBeforeDay.of(feature, events, value, first_day, budget=budget)
    arranged = events_by_key.parts.arrange(value)
    trials = events.trials.get(feature.value)
    if trials is not None:
        trials = events_by_key.parts.arrange(trials)
    return _Value(value=arranged, prior=prior, kind=np.float64, decode=_numbers, trials=trials)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Asked:
    """A feature with what it reads, and its results in the order of the partitions.

    Args:
        delay: in units of the clock, as `windows`, of which None is all earlier events.
        known: known times of the events.
        results: one for each window.
    """

    feature: OfEvents
    delay: int
    windows: Sequence[int | None]
    known: np.ndarray | None
    value: _Value
    results: Sequence[np.ndarray]

    @classmethod
    def of(
        cls,
        feature: OfEvents,
        clock: _Clock,
        known: np.ndarray | None,
        value: _Value,
        by_key: _ByKey,
        *,
        budget: MemoryBudget,
    ) -> "_Asked":
        """A feature whose results are missing for rows without a key, and not computed for others."""
        windows = []
        for name in feature.windows:
            window = feature.window_microseconds(name)
            windows.append(None if window is None else window // clock.unit)
        results = [budget.empty(len(by_key.times), value.kind) for _ in windows]
        for result in results:
            result[by_key.without_key] = np.nan if value.kind is np.float64 else MISSING
        return cls(
            feature=feature,
            delay=feature.delay_microseconds // clock.unit,
            windows=windows,
            known=known,
            value=value,
            results=results,
        )

    def columns(self, by_key: _ByKey, *, budget: MemoryBudget) -> dict[str, pl.Series]:
        """The results as columns, in the order of the rows."""
        columns = {}
        for name, result in zip(self.feature.columns, self.results, strict=True):
            cells = (
                self.value.decode(by_key.parts.restore(result, chunk)).alias(name).to_frame()
                for chunk in budget.chunk_slices(len(result))
            )
            columns[name] = join_rows(cells, budget=budget).to_series()
        return columns


@dataclass(frozen=True, kw_only=True, eq=False)
class _Partition:
    """Rows and events of some keys, sorted by key and time.

    Args:
        rows, events: where they stand in the order of the partitions, and `row_order` and
            `event_order` how they are sorted.
        row_moment: times of the rows in microseconds, in the order of the partitions.
        row_base, row_time, base, time: as of `KnownEvents`.
        found: of `KnownEvents`, for features of all events.
    """

    rows: slice
    events: slice
    row_order: np.ndarray
    event_order: np.ndarray
    row_moment: np.ndarray
    row_base: np.ndarray
    row_time: np.ndarray
    base: np.ndarray
    time: np.ndarray
    clock: _Clock
    found: dict[int | None, np.ndarray]

    @classmethod
    def of(cls, by_key: _ByKey, events_by_key: _ByKey, number: int, clock: _Clock) -> "_Partition":
        """The partition of a number."""
        rows = by_key.partition(number)
        events = events_by_key.partition(number)
        row_moment = by_key.times[rows]
        row_time = clock.units(row_moment)
        keys = [key[rows] for key in by_key.keys]
        is_shared = events_by_key is by_key
        if not is_shared:
            of_events = [key[events] for key in events_by_key.keys]
            keys = [np.concatenate(pair) for pair in zip(keys, of_events, strict=True)]
        code = dense_numbers(keys[0])
        for key in keys[1:]:
            value = dense_numbers(key)
            code = dense_numbers(code * (len(value) + 1) + value)
        assert int(code.max(initial=0)) < (1 << 62) // clock.span, "a partition has few keys"

        row_code = code[: len(row_time)]
        row_order = _sorted_order(row_code, row_time, clock.span)
        row_time = row_time[row_order]
        row_base = row_code[row_order] * clock.span
        event_order = row_order
        time = row_time
        base = row_base
        # rows that are events need no search for where their key, and their key's equal times, begin
        found = {None: run_starts(base), 0: run_starts(base + time)}
        if not is_shared:
            time = clock.units(events_by_key.times[events])
            event_code = code[len(row_time) :]
            event_order = _sorted_order(event_code, time, clock.span)
            time = time[event_order]
            base = event_code[event_order] * clock.span
            found = {}
        return cls(
            rows=rows,
            events=events,
            row_order=row_order,
            event_order=event_order,
            row_moment=row_moment,
            row_base=row_base,
            row_time=row_time,
            base=base,
            time=time,
            clock=clock,
            found=found,
        )

    def fill(self, asked: _Asked) -> None:
        """Write the results of a feature."""
        events = self._events(asked)
        for window, result in zip(asked.windows, asked.results, strict=True):
            result[self.rows][self.row_order] = asked.feature.values(events, window)

    def _events(self, asked: _Asked) -> KnownEvents:
        """The events of a feature: those that have a value."""
        prior = None
        if asked.value.prior is not None:
            prior = asked.value.prior.at(self.row_moment)[self.row_order]
        known = asked.known
        if known is not None:
            known = self.clock.units(known[self.events])[self.event_order]
        value = asked.value.value
        events = KnownEvents(
            row_base=self.row_base,
            row_time=self.row_time,
            base=self.base,
            time=self.time,
            known=known,
            delay=asked.delay,
            span=self.clock.span,
            second=MICROSECOND / self.clock.unit,
            prior=prior,
            found=self.found,
        )
        if value is None:
            return events
        value = value[self.events][self.event_order]
        trials = asked.value.trials
        if trials is not None:
            trials = trials[self.events][self.event_order]
        is_present = ~np.isnan(value) if value.dtype == np.float64 else value != MISSING
        if is_present.all():
            return replace(events, value=value, trials=trials)
        return replace(
            events,
            base=self.base[is_present],
            time=self.time[is_present],
            known=None if known is None else known[is_present],
            value=value[is_present],
            trials=None if trials is None else trials[is_present],
            found={},
        )


def _sorted_order(codes: np.ndarray, time: np.ndarray, span: int) -> np.ndarray:
    """The order of rows by the number of their key and time."""
    has_few_keys = int(codes.max(initial=0)) < 1 << 16
    if has_few_keys and (time[1:] >= time[:-1]).all():
        # a log by time: small numbers are sorted without comparing them
        return np.argsort(codes.astype(np.uint16), kind="stable")
    return np.argsort(codes * span + time, kind="stable")


def _numbers(values: np.ndarray) -> pl.Series:
    return pl.Series(values).fill_nan(None)


def _counts(values: np.ndarray) -> pl.Series:
    counts = pl.Series(values)
    return counts.set(counts == MISSING, None)


def _known_times(
    events: TimedRows, features: Sequence[OfEvents], *, budget: MemoryBudget
) -> dict[str, np.ndarray]:
    """The columns of known times that features name."""
    known = {}
    for feature in features:
        if feature.known is not None and feature.known not in known:
            what = f"the feature {feature.label!r}"
            events.check(feature.known, f"the known time of {what}")
            known[feature.known] = events.known(feature.known, what, budget=budget)
    return known


@dataclass(frozen=True, kw_only=True, eq=False)
class _MeanBeforeDay:
    """The mean value of all events that were known before a day in UTC.

    Args:
        first_day: in days since 1970.
        means: by day from the first one on [D], NaN where none was known.
    """

    first_day: int
    means: np.ndarray

    @classmethod
    def of(
        cls,
        feature: OfEvents,
        events: TimedRows,
        value: np.ndarray,
        first_day: int,
        *,
        budget: MemoryBudget,
    ) -> "_MeanBeforeDay":
        """The means for a feature of the events' values [E], from a day on that is not after the first event."""
        known = events.times
        if feature.known is not None:
            known = events.known(feature.known, feature.label, budget=budget)
        latest = int(known.max(initial=0)) + feature.delay_microseconds
        days = max(latest // DAY_US - first_day, 0) + 1
        trials = events.trials.get(feature.value or "")
        counts = np.zeros(days + 1)
        sums = np.zeros(days + 1)
        for chunk in budget.chunk_slices(len(known)):
            day = (known[chunk] + feature.delay_microseconds) // DAY_US - first_day
            values = value[chunk]
            is_present = ~np.isnan(values)
            weights = is_present if trials is None else np.where(is_present, trials[chunk], 0)
            counts += np.bincount(day, weights, minlength=len(counts))
            np.add.at(sums, day, np.where(is_present, values, 0))
        counts_before = np.append(0, np.cumsum(counts))
        sums_before = np.append(0, np.cumsum(sums))
        empty = np.full(len(counts_before), np.nan)
        means = np.divide(sums_before, counts_before, out=empty, where=counts_before > 0)
        return cls(first_day=first_day, means=means[: days + 1])

    def at(self, times: np.ndarray) -> np.ndarray:
        """The means before the days of times in microseconds [Q]."""
        day = np.minimum(times // DAY_US - self.first_day, len(self.means) - 1)
        return np.asarray(self.means[day])

"""The features of a log for a server: those of each user or item at one moment, and of all rows of a range."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text, stable_hash
from fieldwise.data.prepare.labels import read_labels
from fieldwise.data.prepare.ordering import latest_values
from fieldwise.errors import ConfigError, DataError
from fieldwise.features.asof import feature_columns
from fieldwise.features.definitions import OfTime, microseconds
from fieldwise.features.log_features import LogFeatures
from fieldwise.features.timed_rows import MICROSECOND, TimedRows
from fieldwise.schema import Role
from fieldwise.schema.ids import FEATURES_TIME, FEATURES_TTL
from fieldwise.storage.scratch import NO_LIMIT

SAMPLED_BUCKETS = 1_000_000
SKEW_TOLERANCE = 1e-6


def latest_features(
    log: pl.DataFrame,
    of: LogFeatures,
    column: str,
    *,
    at: str | None = None,
    ttl: str | None = None,
) -> pl.DataFrame:
    """A row per value of an id column: its latest fields, and its features as known before a moment.

    Args:
        log: the rows.
        of: the features of a recipe, of which those with this key alone are computed: others come in
            requests.
        column: the key.
        at: the moment in ISO format, in UTC, to which only rows before it are known; a second after
            the log's last row if omitted.
        ttl: after which a server takes the features as missing, such as `1d`; never if omitted.

    Returns:
        The id, fields of its side, `FEATURES_TIME` and `FEATURES_TTL` in seconds, the features.
    """
    asked = [feature for feature in of.features if feature.keys == (column,)]
    if not asked:
        keys = sorted({", ".join(feature.keys) for feature in of.features if feature.keys})
        raise ConfigError(
            f"latest features need features of the key {column!r}, and the recipe has those of: "
            f"{'; '.join(keys) or 'no key'}"
        )
    if log.is_empty():
        raise DataError(
            "the latest features are those of a log's rows, found none: give the rows so far"
        )
    events = _events(log, of)
    events.check(column, "the key of the latest features")
    row_times = of.rows(log, [], budget=NO_LIMIT).times
    moment = int(row_times.max()) + MICROSECOND if at is None else _moment(at)
    log = log.filter(row_times < moment)
    if log.is_empty():
        raise ConfigError(
            f"a moment must lie after the log's first row, found {at!r}: give a later one"
        )
    role: Role = "item" if column == of.schema.item else "user"
    fields = [field.column for field in of.schema.with_role(role) if field.column in log.columns]
    times = [of.schema.time] if of.schema.time else []
    columns = dict.fromkeys([column, *times, *fields])
    latest = latest_values(log.select(list(columns)), column, [of.schema], role)
    latest = latest.select(list(dict.fromkeys([column, *fields])))
    rows = TimedRows(frame=latest, times=np.full(latest.height, moment))
    values = feature_columns(rows, events, asked, budget=NO_LIMIT)
    seconds = None if ttl is None else microseconds(ttl, "--ttl") / MICROSECOND
    stamps = [
        pl.lit(moment / MICROSECOND).alias(FEATURES_TIME),
        pl.lit(seconds, pl.Float64).alias(FEATURES_TTL),
    ]
    return latest.with_columns(stamps).with_columns(values)


def backfilled(
    log: pl.DataFrame, of: LogFeatures, *, since: str | None = None, until: str | None = None
) -> pl.DataFrame:
    """The rows of a log with all features, as of their own times; of the times from `since` to before `until`."""
    events = _events(log, of)
    rows = of.rows(log, [], budget=NO_LIMIT)
    computed = log.with_columns(feature_columns(rows, events, of.features, budget=NO_LIMIT))
    is_in_range = np.ones(log.height, bool)
    if since is not None:
        is_in_range &= rows.times >= _moment(since)
    if until is not None:
        is_in_range &= rows.times < _moment(until)
    return computed.filter(is_in_range)


def late_features(rows: pl.DataFrame, log: pl.DataFrame, of: LogFeatures, by: str) -> pl.DataFrame:
    """Rows with the features that a server would have had whose values were written some time before, such as `1h`."""
    without = rows.drop(of.made, strict=False)
    on_time = of.rows(without, [], budget=NO_LIMIT)
    late = replace(on_time, times=on_time.times - microseconds(by, "--by"))
    events = _events(log, of)
    if late.times.max() <= events.times.min():
        raise ConfigError(
            f"features that are {by} late know nothing: all rows are within {by} of the log's first; give a "
            "shorter time"
        )
    # a server knows the time of a request
    of_times = [feature for feature in of.features if isinstance(feature, OfTime)]
    of_events = [feature for feature in of.features if feature not in of_times]
    columns = feature_columns(on_time, events, of_times, budget=NO_LIMIT)
    columns += feature_columns(late, events, of_events, budget=NO_LIMIT)
    return without.with_columns(columns)


def skew(
    logged: pl.DataFrame, log: pl.DataFrame, of: LogFeatures, *, share: float = 1.0
) -> pl.DataFrame:
    """How the features that a server logged differ from those computed from a log for the same moments.

    Args:
        logged: keys, times and features of requests.
        log: the rows.
        of: the features of a recipe, of which the columns that `logged` has are compared.
        share: of the first key, whose rows are compared.

    Returns:
        For each feature the `rows`, how many are `unequal` (by more than 1e-6, relative above 1)
        and the `largest` difference of numbers.
    """
    asked = [
        feature for feature in of.features if not set(feature.columns).isdisjoint(logged.columns)
    ]
    if not asked:
        raise ConfigError(
            f"logged requests must have a column of the recipe's features, found none of {', '.join(of.made)}"
        )
    keys = [key for feature in asked for key in feature.keys]
    if keys:
        buckets = stable_hash(as_text(logged[keys[0]]).fill_null(""), SAMPLED_BUCKETS)
        logged = logged.filter(buckets < share * SAMPLED_BUCKETS)
    if logged.is_empty():
        raise ConfigError(
            f"logged requests must have rows to compare: a share of {share:g} of the keys has none; raise --share"
        )
    rows = of.rows(logged.drop(of.made, strict=False), [], budget=NO_LIMIT)
    columns = feature_columns(rows, _events(log, of), asked, budget=NO_LIMIT)
    figures = []
    compared = [column for column in columns if column.name in logged.columns]
    for computed in compared:
        unequal, largest = _unequal_cells(logged[computed.name], computed)
        figures.append((computed.name, len(computed), unequal, largest))
    return pl.DataFrame(figures, ["feature", "rows", "unequal", "largest"], orient="row")


def _unequal_cells(served: pl.Series, computed: pl.Series) -> tuple[int, Any]:
    """How many cells differ, and the largest difference of numbers, None if there is none."""
    if not computed.dtype.is_numeric():
        return int(as_text(served).ne_missing(as_text(computed)).sum()), None
    logged = served.cast(pl.Float64, strict=False).fill_nan(None)
    is_no_number = logged.is_null() & as_text(served).is_not_null()
    numbers = computed.cast(pl.Float64)
    difference = (logged - numbers).abs()
    is_far = difference > SKEW_TOLERANCE * numbers.abs().clip(1.0)
    is_unequal = is_far.fill_null(logged.is_null() != numbers.is_null())
    return int((is_unequal | is_no_number).sum()), difference.max()


def _events(log: pl.DataFrame, of: LogFeatures) -> TimedRows:
    """The events of a log: as in training, rows that a label's rule drops are none.

    The newest rows of a live log may have no label yet: they count where the value is no label.
    """
    columns = {label.column for label in of.schema.labels}
    if not columns <= set(log.columns):
        return of.rows(log, [], budget=NO_LIMIT)
    labelled: Any = read_labels(
        log,
        of.schema.labels,
        missing=of.schema.missing,
        all_negative=True,
        absent_allowed=True,
        budget=NO_LIMIT,
    )
    return of.rows(labelled.frame, [labelled.y], budget=NO_LIMIT)


def _moment(text: str) -> int:
    """A moment in ISO format as microseconds since 1970."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"a moment is written as 2026-01-31 or 2026-01-31T17:05, in UTC, found {text!r}"
        ) from None
    return round(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * MICROSECOND)

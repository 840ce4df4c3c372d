"""The features of a log for a server: those of each user or item at one moment, and of all rows of a range."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl

from fieldwise.data.prepare.labels import read_labels
from fieldwise.data.prepare.ordering import latest_values
from fieldwise.errors import ConfigError
from fieldwise.features.asof import feature_columns
from fieldwise.features.definitions import microseconds
from fieldwise.features.log_features import LogFeatures
from fieldwise.features.timed_rows import MICROSECOND, TimedRows
from fieldwise.schema import Role
from fieldwise.schema.ids import FEATURES_TIME, FEATURES_TTL
from fieldwise.storage.scratch import NO_LIMIT


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
        at: the moment in ISO format, in UTC; a second after the log's last row if omitted.
        ttl: after which a server takes the features as missing, such as `1d`; never if omitted.

    Returns:
        The id, fields of its side, `FEATURES_TIME` and `FEATURES_TTL` in seconds, the features.
    """
    asked = [feature for feature in of.features if feature.keys == (column,)]
    if not asked:
        keys = sorted({", ".join(feature.keys) for feature in of.features})
        raise ConfigError(
            f"latest features need features of the key {column!r}, and the recipe has those of: {'; '.join(keys)}"
        )
    events = _events(log, of)
    moment = int(events.times.max()) + MICROSECOND if at is None else _moment(at)
    role: Role = "item" if column == of.schema.item else "user"
    fields = [field.column for field in of.schema.with_role(role) if field.column in log.columns]
    columns = dict.fromkeys([column, *([of.schema.time] if of.schema.time else []), *fields])
    own = latest_values(log.select(list(columns)), column, [of.schema], role)
    own = own.select(list(dict.fromkeys([column, *fields])))
    rows = TimedRows(frame=own, times=np.full(own.height, moment))
    values = feature_columns(rows, events, asked, budget=NO_LIMIT)
    seconds = None if ttl is None else microseconds(ttl, "--ttl") / MICROSECOND
    stamps = [
        pl.lit(moment / MICROSECOND).alias(FEATURES_TIME),
        pl.lit(seconds, pl.Float64).alias(FEATURES_TTL),
    ]
    return own.with_columns(stamps).with_columns(values)


def backfilled(
    log: pl.DataFrame, of: LogFeatures, *, since: str | None = None, until: str | None = None
) -> pl.DataFrame:
    """The rows of a log with all features, as of their own times; of the times from `since` to before `until`."""
    events = _events(log, of)
    rows = of.rows(log, [], budget=NO_LIMIT)
    made = log.with_columns(feature_columns(rows, events, of.features, budget=NO_LIMIT))
    is_in_range = np.ones(log.height, bool)
    if since is not None:
        is_in_range &= rows.times >= _moment(since)
    if until is not None:
        is_in_range &= rows.times < _moment(until)
    return made.filter(is_in_range)


def _events(log: pl.DataFrame, of: LogFeatures) -> TimedRows:
    """The events of a log: as in training, rows that a label's rule drops are none."""
    columns = {label.column for label in of.schema.labels}
    if not columns <= set(log.columns):
        return of.rows(log, [], budget=NO_LIMIT)
    labelled: Any = read_labels(
        log, of.schema.labels, missing=of.schema.missing, all_negative=True, budget=NO_LIMIT
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

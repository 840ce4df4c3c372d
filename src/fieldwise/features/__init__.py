"""Features as of their time: counts, sums, means, rates and last values that each row could have known.

An event has an event time, and a known time at which a server could have used it: the event time
plus a delay, or a column. A row sees only the events that were known strictly before its own time;
those of equal times are excluded, and with them its own label.

>>> import polars as pl
>>> from fieldwise.features import Count, Rate, compute
>>> log = pl.DataFrame({"user": ["a", "a", "a"], "day": ["2026-01-01", "2026-01-02", "2026-01-03"], "click": [1, 0, 1]})
>>> asked = [Count(key="user"), Rate(key="user", value="click", delay="1d", prior_rows=2, prior=0.5)]
>>> compute(log, asked, time="day").drop("day", "click").rows()
[('a', 0, 0.5), ('a', 1, 0.5), ('a', 2, 0.6666666666666666)]
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fieldwise.features.definitions import (
    Age,
    Count,
    Distinct,
    Feature,
    Hour,
    Last,
    Mean,
    Rate,
    Sum,
    TimeSince,
    Weekday,
)

if TYPE_CHECKING:
    import polars as pl

    from fieldwise.data.read.tables import TableLike

__all__ = [
    "Age",
    "Count",
    "Distinct",
    "Feature",
    "Hour",
    "Last",
    "Mean",
    "Rate",
    "Sum",
    "TimeSince",
    "Weekday",
    "compute",
]


def compute(
    log: "TableLike",
    features: Sequence[Feature],
    *,
    time: str,
    time_format: str | None = None,
    tables: "Mapping[str, TableLike] | None" = None,
) -> "pl.DataFrame":
    """The log with a column for each feature and window, as known strictly before each row's time.

    Args:
        log: the rows, which are also the events of features without a `table`.
        features: what is computed.
        time: the log's column of event times.
        time_format: format of times in text, such as `%d.%m.%Y %H:%M`, if it is not a supported one.
        tables: tables by the name in a feature's `table`; others are files.

    Errors:
        ConfigError, DataError: a column that is not there, times that are none, a known time before
            its event time, a delay that leaves nothing known.
    """
    from fieldwise.data.read.tables import as_table
    from fieldwise.features.asof import feature_columns
    from fieldwise.features.timed_rows import TimedRows
    from fieldwise.storage.scratch import NO_LIMIT

    frame = as_table(log)
    rows = TimedRows.of(frame, time, time_format, budget=NO_LIMIT)
    given = {name: as_table(table) for name, table in (tables or {}).items()}
    return frame.with_columns(feature_columns(rows, rows, features, tables=given, budget=NO_LIMIT))

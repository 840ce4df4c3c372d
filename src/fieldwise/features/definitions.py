"""The kinds of features as of their time, as settings; they need neither NumPy nor polars."""

import re
import zoneinfo
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fieldwise.config import convert_settings, parse
from fieldwise.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import polars as pl

    from fieldwise.features.known_events import KnownEvents

ALL = "all"
"""The window of all earlier events."""
MICROSECONDS = {"s": 10**6, "m": 60 * 10**6, "h": 3600 * 10**6, "d": 86_400 * 10**6}
MICROSECONDS["w"] = 7 * MICROSECONDS["d"]
DURATION = re.compile(rf"(\d{{1,6}})([{''.join(MICROSECONDS)}])")


def microseconds(duration: str, what: str) -> int:
    """The microseconds of a duration; errors name the setting by `what`.

    >>> microseconds("2h", "delay")
    7200000000
    """
    parts = DURATION.fullmatch(duration)
    if parts is None:
        raise ConfigError(
            f"{what} must be a number with a unit of s, m, h, d or w, such as '7d', found {duration!r}"
        )
    return int(parts[1]) * MICROSECONDS[parts[2]]


@dataclass(frozen=True, kw_only=True)
class _Feature(ABC):
    """What every kind has: a key, windows, the events' table with its times, and when an event is known.

    Args:
        key: column of the key, or several: events count for the rows that have the same value.
        windows: durations such as `1h` or `7d`, or `all`; each is a column. A window ends at the
            row's time, which it excludes, and begins that much before it.
        table: file of the events, or their name in `fieldwise.features.compute`; the log itself if
            omitted. It has the key's columns.
        time: the table's column of event times; needed with `table`.
        time_format: format of the table's times in text.
        known: column of the times at which events were known, not before their event times.
        delay: known time less event time, if there is no column: an event counts for rows that are
            more than this later. It must be given where the value is a label.
        name: the column's name, with the window behind it if there are several; if omitted it is
            made of key, value and kind.
    """

    key: str | tuple[str, ...]
    windows: tuple[str, ...] = (ALL,)
    table: str | None = None
    time: str | None = None
    time_format: str | None = None
    known: str | None = None
    delay: str | None = None
    name: str = ""
    needs_number: ClassVar[bool] = False
    """Whether the value must be a number."""

    def __post_init__(self: Any) -> None:
        convert_settings(self)
        if not self.keys or not all(self.keys):
            raise ConfigError(f"a feature needs a key, the name of a column, found {self.key!r}")
        if len(set(self.keys)) != len(self.keys):
            raise ConfigError(f"a feature's key has different columns, found {list(self.keys)}")
        if self.value == "":
            raise ConfigError(
                f"the feature {self.label!r} needs a value, the name of a column, found ''"
            )
        if not self.windows or len(set(self.windows)) != len(self.windows):
            raise ConfigError(
                f"the feature {self.label!r} needs different windows, found {list(self.windows)}"
            )
        if self.known is not None and self.delay is not None:
            raise ConfigError(
                f"the feature {self.label!r} takes known, a column, or delay, not both: remove one"
            )
        if (self.table is None) != (self.time is None):
            raise ConfigError(
                f"the feature {self.label!r} needs a table and the time column of its events together: give "
                f"{'table' if self.table is None else 'time'}, or remove the other"
            )
        for window in self.windows:
            size = self.window_microseconds(window)
            if size is not None and size <= self.delay_microseconds:
                raise ConfigError(
                    f"a window must be longer than the delay, or no event in it is ever known: the feature "
                    f"{self.label!r} has the window {window!r} and the delay {self.delay or '0s'!r}"
                )

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return (self.key,) if isinstance(self.key, str) else self.key

    @property
    def label(self: Any) -> str:
        """The name, as it is given or made."""
        values = () if self.value is None else (self.value,)
        return self.name or "_".join([*self.keys, *values, self.kind])

    @property
    def columns(self) -> tuple[str, ...]:
        """The new columns, one for each window.

        >>> Count(key=("user", "genre"), windows=("1h", "all")).columns
        ('user_genre_count_1h', 'user_genre_count_all')
        >>> Count(key="user").columns
        ('user_count',)
        """
        if len(self.windows) == 1:
            only = self.windows[0]
            return (self.label if self.name or only == ALL else f"{self.label}_{only}",)
        return tuple(f"{self.label}_{window}" for window in self.windows)

    @property
    def delay_microseconds(self) -> int:
        """The delay; 0 if there is none, or a column of known times."""
        return 0 if self.delay is None else microseconds(self.delay, f"{self.label}: delay")

    def window_microseconds(self, window: str) -> int | None:
        """The length of a window; None for all earlier events."""
        if window == ALL:
            return None
        return microseconds(window, f"{self.label}: a window other than 'all'")

    @abstractmethod
    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """The feature's value for each row, by the events that it knew; missing where there is none."""


@dataclass(frozen=True, kw_only=True)
class Count(_Feature):
    """The number of events."""

    kind: Literal["count"] = "count"
    value: ClassVar[None] = None

    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """As in the base class."""
        return events.count(window)


@dataclass(frozen=True, kw_only=True)
class TimeSince(_Feature):
    """The seconds since the last event's time."""

    kind: Literal["time_since"] = "time_since"
    value: ClassVar[None] = None

    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """As in the base class."""
        return events.seconds_since_last(window)


@dataclass(frozen=True, kw_only=True)
class Age(_Feature):
    """The seconds since the first event's time, such as the age of an item.

    Its window is `all`.
    """

    kind: Literal["age"] = "age"
    value: ClassVar[None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.windows != (ALL,):
            raise ConfigError(
                f"the feature {self.label!r} is the time since the first of all events: remove its windows "
                f"{list(self.windows)}"
            )

    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """As in the base class."""
        return events.seconds_since_first()


@dataclass(frozen=True, kw_only=True)
class _Valued(_Feature):
    """A feature of a column's values; an event without a value is none.

    Args:
        value: column of the values, or the name or column of a label, for its targets; not of
            `count`, `time_since` and `age`.
    """

    value: str


@dataclass(frozen=True, kw_only=True)
class Sum(_Valued):
    """The sum of a number over the events; 0 without events."""

    kind: Literal["sum"] = "sum"
    needs_number: ClassVar[bool] = True

    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """As in the base class."""
        return events.total(window)


@dataclass(frozen=True, kw_only=True)
class Mean(_Valued):
    """The mean of a number over the events."""

    kind: Literal["mean"] = "mean"
    needs_number: ClassVar[bool] = True

    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """As in the base class."""
        return events.mean(window, 0.0, None)


@dataclass(frozen=True, kw_only=True)
class Rate(_Valued):
    """The smoothed mean of a number, such as a click rate: `prior_rows` events with the value `prior` are added.

    Args:
        prior_rows: number of added events of a `rate`.
        prior: their value; if omitted, the mean over all keys of what was known before the row's
            day (UTC), and no event is added before anything was.
    """

    prior_rows: float = 10.0
    prior: float | None = None
    kind: Literal["rate"] = "rate"
    needs_number: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior_rows <= 0:
            raise ConfigError(
                f"the feature {self.label!r} needs prior_rows above 0, found {self.prior_rows:g}: a mean has none"
            )

    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """As in the base class."""
        return events.mean(window, self.prior_rows, self.prior)


@dataclass(frozen=True, kw_only=True)
class Last(_Valued):
    """The value of the last event, of several at one time the greatest.

    With `table` it is the as-of join of a table that changes slowly, and its window is the time to
    live: an older value is missing.
    """

    kind: Literal["last"] = "last"

    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """As in the base class."""
        return events.last(window)


@dataclass(frozen=True, kw_only=True)
class Distinct(_Valued):
    """The number of different values of the events."""

    kind: Literal["distinct"] = "distinct"

    def values(self, events: "KnownEvents", window: int | None) -> "np.ndarray":
        """As in the base class."""
        return events.distinct(window)


@dataclass(frozen=True, kw_only=True)
class _OfTime(ABC):
    """A part of the row's own time, which depends on no event; a server takes its present time.

    Args:
        time_zone: of `hour` and `weekday`: the name of a time zone, such as `Europe/Helsinki`.
        name: the column's name; that of the kind if omitted.
    """

    time_zone: str = "UTC"
    name: str = ""
    keys: ClassVar[tuple[str, ...]] = ()
    value: ClassVar[None] = None
    table: ClassVar[None] = None
    known: ClassVar[None] = None
    delay: ClassVar[None] = None

    def __post_init__(self: Any) -> None:
        convert_settings(self)
        try:
            zoneinfo.ZoneInfo(self.time_zone)
        except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
            raise ConfigError(
                f"the feature {self.label!r} needs a time zone such as 'UTC' or 'Europe/Helsinki', found "
                f"{self.time_zone!r}"
            ) from None

    @property
    def label(self: Any) -> str:
        """The name, as it is given, or that of the kind."""
        return self.name or str(self.kind)

    @property
    def columns(self) -> tuple[str, ...]:
        """The new column."""
        return (self.label,)

    def values(self, times: "np.ndarray") -> "pl.Series":
        """The column of times, in microseconds since 1970."""
        import polars as pl

        moments = pl.Series(self.label, times).cast(pl.Datetime("us", "UTC"))
        return self.part(moments.dt.convert_time_zone(self.time_zone))

    @abstractmethod
    def part(self, moments: "pl.Series") -> "pl.Series":
        """The part of times of the time zone."""


@dataclass(frozen=True, kw_only=True)
class Hour(_OfTime):
    """The hour of the row's time, 0 to 23.

    >>> import numpy as np
    >>> Hour(time_zone="Europe/Helsinki").values(np.array([1_700_000_000 * 10**6])).item()
    0
    """

    kind: Literal["hour"] = "hour"

    def part(self, moments: "pl.Series") -> "pl.Series":
        """As in the base class."""
        return moments.dt.hour()


@dataclass(frozen=True, kw_only=True)
class Weekday(_OfTime):
    """The weekday of the row's time, `Monday` to `Sunday`."""

    kind: Literal["weekday"] = "weekday"

    def part(self, moments: "pl.Series") -> "pl.Series":
        """As in the base class."""
        return moments.dt.to_string("%A")


OfTime = Hour | Weekday
"""What depends on the row's time alone."""
OfEvents = Count | Sum | Mean | Rate | Last | TimeSince | Age | Distinct
"""What depends on the events that were known before the row's time."""
Feature = OfEvents | OfTime


@dataclass(frozen=True, kw_only=True)
class _RecipeSettings:
    """The part of a recipe's settings with features."""

    features: tuple[Feature, ...] = ()


def features_of(settings: Mapping[str, Any]) -> tuple[Feature, ...]:
    """The features of a recipe's settings as plain values, such as those of a bundle.

    >>> [feature.columns for feature in features_of({"features": [{"kind": "hour"}]})]
    [('hour',)]
    """
    part = {"features": settings.get("features", ())}
    return parse(_RecipeSettings, part, "recipe:").features


def check_has_features(
    columns: Collection[str], settings: Mapping[str, Any], needed: Collection[str]
) -> None:
    """Check that a log's columns have those of a recipe's features that a model needs.

    Errors:
        DataError: one is missing; it says how it is made.
    """
    for feature in features_of(settings):
        for column in feature.columns:
            if column in needed and column not in columns:
                raise DataError(
                    f"the rows must have the features of the bundle's recipe, found no column {column!r}: write them "
                    "with `fieldwise features backfill`; for a server's users and items, with `fieldwise features "
                    "latest`"
                )

"""Features as of their time, against plain Python, against DuckDB, and by hand."""

import math
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from fieldwise.errors import ConfigError, DataError
from fieldwise.features import (
    Age,
    Count,
    Distinct,
    Feature,
    Last,
    Mean,
    Rate,
    Sum,
    TimeSince,
    compute,
)
from fieldwise.features import partitions as partitions_module
from fieldwise.features.asof import feature_columns
from fieldwise.features.definitions import microseconds
from fieldwise.features.timed_rows import TimedRows
from fieldwise.storage.scratch import MemoryBudget

HOUR = 3600
START = 1_700_000_000 // 86_400 * 86_400


def brute_force(rows: list[dict], events: list[dict], feature: Feature, window: str) -> list:
    """Each row's value by going through all events in plain Python; times are seconds."""
    return [_value_of_row(row, events, feature, window) for row in rows]


def _known(event: dict, feature: Feature) -> float:
    if feature.known is not None:
        return event[feature.known]
    return event["time"] + feature.delay_microseconds / 1e6


def _value_of_row(row: dict, events: list[dict], feature: Feature, window: str):
    key = tuple(row[name] for name in feature.keys)
    if None in key:
        return None
    now = row["time"]
    earliest = -math.inf if window == "all" else now - microseconds(window, "") / 1e6
    seen = [
        event
        for event in events
        if tuple(event[name] for name in feature.keys) == key
        and _known(event, feature) < now
        and event["time"] >= earliest
        and (feature.value is None or event[feature.value] is not None)
    ]
    if feature.kind == "count":
        return len(seen)
    if feature.kind == "time_since":
        return now - max(event["time"] for event in seen) if seen else None
    if feature.kind == "age":
        return now - min(event["time"] for event in seen) if seen else None
    values = [event[feature.value] for event in seen]
    if feature.kind == "distinct":
        return len(set(values))
    if feature.kind == "sum":
        return float(sum(values))
    if feature.kind == "mean":
        return sum(values) / len(values) if values else None
    if feature.kind == "last":
        return max((event["time"], event[feature.value]) for event in seen)[1] if seen else None
    prior = feature.prior
    if prior is None:
        today = now // 86_400
        before = [
            event[feature.value]
            for event in events
            if _known(event, feature) // 86_400 < today and event[feature.value] is not None
        ]
        prior = sum(before) / len(before) if before else None
    weight = 0 if prior is None else feature.prior_rows
    if len(values) + weight == 0:
        return None
    return (sum(values) + weight * (prior or 0)) / (len(values) + weight)


def event_strategy() -> st.SearchStrategy[dict]:
    """An event of few users, items and times, so that ties are frequent; some come late."""
    return st.fixed_dictionaries(
        {
            "time": st.integers(0, 60).map(lambda n: START + n * HOUR // 2),
            "user": st.sampled_from(["a", "b", None]),
            "item": st.sampled_from([7, 8, 9]),
            "genre": st.sampled_from(["x", "y", None]),
            "click": st.sampled_from([0, 1]),
            "price": st.one_of(st.none(), st.floats(-9, 9, width=32)),
            "late": st.sampled_from([0, 0, HOUR, 5 * HOUR, 30 * HOUR]),
        }
    )


def asked(delay: str | None, known: str | None) -> list[Feature]:
    """All kinds of features, with a delay or a column of known times."""
    when = {"delay": delay, "known": known}
    windows = ("3h", "1d", "all")
    return [
        Count(key="user", windows=windows, **when),
        Count(key=("user", "item"), windows=windows, **when),
        Sum(key="user", value="price", windows=windows, **when),
        Mean(key="item", value="price", windows=windows, **when),
        Rate(key="item", value="click", windows=windows, prior_rows=3, **when),
        Rate(key="genre", value="click", prior_rows=2, prior=0.25, **when),
        Last(key="user", value="genre", windows=windows, **when),
        Last(key="user", value="item", windows=windows, **when),
        Last(key="item", value="price", windows=windows, **when),
        TimeSince(key="user", windows=windows, **when),
        Age(key="item", **when),
        Distinct(key="user", value="item", windows=windows, **when),
        Distinct(key="item", value="genre", windows=windows, **when),
    ]


TYPES = {
    "time": pl.Int64, "user": pl.String, "item": pl.Int64, "genre": pl.String,
    "click": pl.Int64, "price": pl.Float64, "late": pl.Int64, "known": pl.Int64,
}  # fmt: skip


def frame_of(events: list[dict]) -> pl.DataFrame:
    return pl.DataFrame(events, schema_overrides=TYPES)


def with_known(events: list[dict]) -> list[dict]:
    return [{**event, "known": event["time"] + event["late"]} for event in events]


def assert_as_brute_force(made: pl.DataFrame, rows, events, features) -> None:
    for feature in features:
        for name, window in zip(feature.columns, feature.windows, strict=True):
            expected = brute_force(rows, events, feature, window)
            found = made.get_column(name).to_list()
            for number, (value, right) in enumerate(zip(found, expected, strict=True)):
                is_equal = value == right or (
                    isinstance(right, float) and value == pytest.approx(right, rel=1e-9, abs=1e-9)
                )
                assert is_equal, (name, number, value, right)


@pytest.mark.parametrize(
    ("delay", "known"), [(None, None), ("2h", None), (None, "known")], ids=["none", "2h", "late"]
)
def test_every_kind_equals_brute_force(delay: str | None, known: str | None) -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.lists(event_strategy(), min_size=1, max_size=25))
    def holds(events: list[dict]) -> None:
        rows = with_known(events)
        rows.append({**rows[0], "time": START + 40 * HOUR, "known": START + 40 * HOUR})
        features = asked(delay, known)
        made = compute(frame_of(rows), features, time="time")
        assert_as_brute_force(made, rows, rows, features)

    holds()


def test_another_table_equals_brute_force() -> None:
    @settings(max_examples=100, deadline=None)
    @given(
        st.lists(event_strategy(), min_size=1, max_size=12),
        st.lists(event_strategy(), min_size=1, max_size=12),
    )
    def holds(rows: list[dict], events: list[dict]) -> None:
        rows = with_known(rows)
        events = with_known(events)
        of_table = {"table": "events", "time": "at", "known": "known"}
        features = [
            Last(key="item", value="price", windows=("6h", "all"), **of_table),
            Count(key=("user", "item"), **of_table),
            Distinct(key="user", value="genre", windows=("5h",), **of_table),
        ]
        # the table's items are texts: they are equal by their text
        table = frame_of(events).with_columns(pl.col("item").cast(pl.String))
        made = compute(
            frame_of(rows),
            features,
            time="time",
            tables={"events": table.rename({"time": "at"})},
        )
        assert_as_brute_force(made, rows, events, features)

    holds()


def log_of(rows: int, seed: int = 0) -> pl.DataFrame:
    draw = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "time": START + draw.integers(0, 9 * 86_400, rows),
            "user": draw.integers(0, rows // 20, rows).astype(str),
            "item": draw.integers(0, rows // 50, rows),
            "genre": draw.choice(["x", "y", "z"], rows),
            "click": draw.integers(0, 2, rows),
            "price": np.where(draw.random(rows) < 0.1, np.nan, draw.normal(size=rows)),
            "late": draw.integers(0, 86_400, rows),
        }
    ).with_columns(known=pl.col("time") + pl.col("late"), price=pl.col("price").fill_nan(None))


def test_chunks_and_partitions_do_not_matter(tmp_path, monkeypatch) -> None:
    log = log_of(3_000)
    features = asked(None, "known")
    whole = compute(log, features, time="time")
    budget = MemoryBudget(tmp_path, 170)
    monkeypatch.setattr(partitions_module, "ROWS_OF_A_PARTITION", 100)
    rows = TimedRows.of(log, "time", None, budget=budget)
    chunked = log.with_columns(feature_columns(rows, rows, features, budget=budget))
    assert_frame_equal(whole, chunked, check_exact=True)


def test_one_far_time_changes_nothing() -> None:
    log = log_of(2_000).sort("time")
    features = [Count(key="user", windows=("2d", "all")), Last(key="item", value="genre")]
    names = [name for one in features for name in one.columns]
    whole = compute(log, features, time="time")
    times = (log["time"] * 1_000_000 + 5).cast(pl.Datetime("us"))
    far = log.with_columns(time=times.scatter(1_999, datetime(2090, 1, 1)))
    made = compute(far, features, time="time")
    assert_frame_equal(made[:-1].select(names), whole[:-1].select(names))


def test_the_order_of_the_rows_does_not_matter() -> None:
    log = log_of(2_000).with_row_index("number")
    features = [one for one in asked("2h", None) if one.value != "price"]
    made = compute(log, features, time="time")
    shuffled = compute(log.sample(fraction=1, shuffle=True, seed=3), features, time="time")
    assert_frame_equal(made, shuffled.sort("number"), check_exact=True)


def test_later_events_and_labels_change_nothing() -> None:
    log = log_of(2_000).sort("time")
    features = asked("2h", None)
    now = log["time"][1_000]
    of_past = pl.col("time") <= now
    made = compute(log, features, time="time").filter(of_past)
    changed = log.with_columns(
        click=pl.when(pl.col("time") < now - 7200).then("click").otherwise(9)
    )
    assert_frame_equal(made, compute(log.filter(of_past), features, time="time"))
    names = [name for one in features for name in one.columns]
    again = compute(changed, features, time="time").filter(of_past)
    assert_frame_equal(made.select(names), again.select(names))


def test_the_prior_of_later_rows_has_all_events_that_were_known() -> None:
    clicks = pl.DataFrame({"item": ["a", "b"], "click": [1, 0], "at": ["2026-01-01", "2026-01-01"]})
    rows = pl.DataFrame({"item": ["c", "c"], "time": ["2026-01-02", "2026-01-09"]})
    where = {"table": "clicks", "time": "at"}
    rate = Rate(key="item", value="click", delay="1d", **where)
    made = compute(rows, [rate], time="time", tables={"clicks": clicks})
    # a day in UTC sees the events that were known before it began
    assert made["item_click_rate"].to_list() == [None, 0.5]


def test_duckdb_agrees() -> None:
    duckdb = pytest.importorskip("duckdb")
    log = log_of(5_000).with_row_index("number")
    query = """
        SELECT log.number, count(event.number) AS n, sum(event.click) AS clicks,
               arg_max(event.genre, (event.time, event.genre)) AS genre,
               count(DISTINCT event.item) AS items, log.time - max(event.time) AS since
        FROM log LEFT JOIN log AS event
        ON event.user = log.user AND event.time + 7200 < log.time AND event.time >= log.time - 86400
        GROUP BY log.number, log.time ORDER BY log.number
    """
    connection = duckdb.connect()
    connection.register("log", log.to_arrow())
    expected = connection.execute(query).fetchall()
    when = {"key": "user", "windows": ("1d",), "delay": "2h"}
    features = [
        Count(**when),
        Sum(value="click", **when),
        Last(value="genre", **when),
        Distinct(value="item", **when),
        TimeSince(**when),
    ]
    made = compute(log, features, time="time")
    names = [feature.columns[0] for feature in features]
    for found, right in zip(made.select(names).rows(), expected, strict=True):
        assert found == (right[1], right[2] or 0, right[3], right[4], right[5])


def test_times_of_every_type_are_the_same() -> None:
    seconds = [START, START + 60, START + 7200]
    moments = [datetime.fromtimestamp(second, UTC).replace(tzinfo=None) for second in seconds]
    columns = [
        pl.Series(seconds),
        pl.Series([second * 1000 for second in seconds]),
        pl.Series([second + 0.0 for second in seconds]),
        pl.Series([str(moment) for moment in moments]),
        pl.Series(moments, dtype=pl.Datetime("ms")),
        pl.Series(moments, dtype=pl.Datetime("ns")),
    ]
    for times in columns:
        log = pl.DataFrame({"time": times, "user": [1, 1, 1]})
        made = compute(
            log, [TimeSince(key="user"), Count(key="user", windows=("1h",))], time="time"
        )
        assert made["user_time_since"].to_list() == [None, 60, 7140], times
        assert made["user_count_1h"].to_list() == [0, 1, 0], times


def test_known_times_in_text_have_the_format_of_the_times() -> None:
    days = ["03.04.2024", "05.04.2024", "06.04.2024"]
    log = pl.DataFrame({"user": [1, 1, 1], "time": days, "known": [days[1], days[2], days[2]]})
    counts = [Count(key="user", known="known")]
    made = compute(log, counts, time="time", time_format="%d.%m.%Y")
    assert made["user_count"].to_list() == [0, 0, 1]


def test_large_ids_and_large_numbers_stay_exact() -> None:
    large = 2**60 + 1
    log = pl.DataFrame(
        {
            "time": [START + n for n in range(4)],
            "user": [1, 1, 2, 2],
            "item": [large, large + 1, large, large],
            "price": [1e15, 1e15, 0.1, 0.2],
        }
    )
    features = [
        Last(key="user", value="item"),
        Distinct(key="user", value="item"),
        Sum(key="user", value="price"),
    ]
    made = compute(log, features, time="time")
    assert made["user_item_last"].to_list() == [None, large, None, large]
    # no key's large numbers round those of another
    assert made["user_price_sum"].to_list() == [0.0, 1e15, 0.0, 0.1]


def test_definitions_are_refused_in_one_sentence(subtests) -> None:
    cases = {
        "a feature needs a key": lambda: Count(key=()),
        "key has different columns": lambda: Count(key=("user", "user")),
        "needs different windows": lambda: Count(key="user", windows=("1d", "1d")),
        "must be a number with a unit of s, m, h, d or w": lambda: Count(
            key="user", windows=("1y",)
        ),
        "known, a column, or delay, not both": lambda: Count(key="user", known="k", delay="1h"),
        "needs a table and the time column": lambda: Count(key="user", table="a.csv"),
        "a window must be longer than the delay": lambda: Count(
            key="user", windows=("1h",), delay="1h"
        ),
        "remove its windows": lambda: Age(key="user", windows=("1h",)),
        "prior_rows above 0": lambda: Rate(key="user", value="click", prior_rows=0),
    }
    for words, make in cases.items():
        with subtests.test(words), pytest.raises(ConfigError, match=words):
            make()


def test_tables_are_refused_in_one_sentence(subtests) -> None:
    log = log_of(100).with_columns(early=pl.col("time") - 1, when=pl.lit("soon"))
    days = log.with_columns(time=pl.int_range(100))
    microseconds = (log["time"] * 1_000_000 + 5).cast(pl.Datetime("us"))
    lists = log.with_columns(tags=pl.concat_list("genre", "user"))
    cases = [
        (log, Count(key="usr"), "time", "'usr' is not; did you mean 'user'"),
        (log, Count(key="user"), "tme", "has no 'tme'; did you mean 'time'"),
        (log, Count(key="user", known="early"), "time", "nothing is known before it happens"),
        (log, Count(key="user", delay="20d"), "time", "a delay must be shorter than the log"),
        (
            log.with_columns(time=START + 3600 * (pl.int_range(100) % 2)),
            Count(key="user", delay="1h"),
            "time",
            "a delay must be shorter than the log",
        ),
        (log, Mean(key="user", value="genre"), "time", "genre.*or take its last value"),
        (log, Mean(key="user", value="nothing"), "time", "'nothing' is not"),
        (
            lists,
            Count(key="tags"),
            "time",
            "the key of the feature 'tags_count' needs one value in each",
        ),
        (
            lists,
            Last(key="user", value="tags"),
            "time",
            "the value of the feature 'user_tags_last' needs",
        ),
        (log, Count(key="user", name="price"), "time", "there is one named 'price' already"),
        (log, Count(key="user"), "when", "soon"),
        (days, Count(key="user", windows=("1h",)), "time", "since 1970"),
        (
            log.with_columns(price=pl.lit(math.inf)),
            Sum(key="user", value="price"),
            "time",
            "numbers must be finite",
        ),
        *(
            (
                log.with_columns(time=pl.Series(microseconds).scatter(7, far)),
                Count(key="user"),
                "time",
                f"must lie within 71 years: those of the log are from {span}",
            )
            for far, span in (
                (datetime(2200, 1, 1), "2023-11-14 to 2200-01-01"),
                (datetime(1, 1, 1), "0001-01-01 to 2023-11-2"),
            )
        ),
    ]
    for frame, feature, time, words in cases:
        with subtests.test(words), pytest.raises((ConfigError, DataError), match=words) as caught:
            compute(frame, [feature], time=time)
        assert "\n" not in str(caught.value)


def test_an_empty_log_and_rows_without_a_key_have_nothing() -> None:
    nothing = compute(log_of(100).head(0), asked(None, None)[4:5], time="time")
    assert nothing.height == 0
    log = pl.DataFrame({"time": [START], "user": [None]}, schema_overrides={"user": pl.String})
    features = [Count(key="user"), TimeSince(key="user")]
    assert compute(log, features, time="time").select("user_count", "user_time_since").rows() == [
        (None, None)
    ]

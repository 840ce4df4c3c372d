"""Times in text, and lines of files that errors name."""

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from chunks_lab import prepare

from fieldwise import (
    Categorical,
    DataError,
    Label,
    Schema,
    SchemaError,
    TimeSplit,
    as_table,
    infer_schema,
)
from fieldwise.data.infer.profile import profile_columns
from fieldwise.data.infer.time_column import time_columns
from fieldwise.data.prepare.ordering import latest_rows, mixed_units, order_values
from fieldwise.data.prepare.suggested_split import suggest_split
from fieldwise.data.prepare.timestamps import parse_timestamps
from fieldwise.data.read.row_numbers import naming_lines, renumbering_rows
from fieldwise.data.read.text_format import TextFormat
from fieldwise.errors import Row
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget


def stamp(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp() * 1_000_000)  # type: ignore[arg-type]


MOMENT = stamp(2026, 1, 31, 17, 5, 9)
DAY, MINUTE = stamp(2026, 1, 31), stamp(2026, 1, 31, 17, 5)


def test_a_date_as_it_is_written(subtests):
    for text, expected in [
        ("2026-01-31", DAY), ("2026/01/31", DAY), ("2026.01.31", DAY), ("2026/1/31", DAY),
        ("20260131 17:05", MINUTE), ("2026-01-31 17:05", MINUTE), ("2026-01-31T17:05:09", MOMENT),
        ("2026-01-31T17:05:09Z", MOMENT), ("2026-01-31 17:05:09 UTC", MOMENT),
        ("2026-01-31T17:05:09.25", MOMENT + 250_000), ("2026-01-31T18:05:09+01:00", MOMENT),
        ("2026-01-31 12:05:09 -0500", MOMENT), ("31 Jan 2026", DAY), ("31-Jan-2026", DAY), ("31-JAN-26", DAY),
        ("Jan 31, 2026", DAY), ("January 31, 2026 5:05 PM", MINUTE), ("31 January 2026 17:05:09", MOMENT),
        ("Sat, 31 Jan 2026 17:05:09 +0000", MOMENT), ("Sat Jan 31 17:05:09 +0000 2026", MOMENT),
        ("Saturday, January 31, 2026", DAY), ("31/01/2026", DAY), ("31.01.2026 17:05", MINUTE), ("31-01-26", DAY),
        ("01/31/2026", DAY), ("1/31/26 5:05pm", MINUTE), ("31/Jan/2026:17:05:09 +0000", MOMENT),
    ]:  # fmt: skip
        with subtests.test(text=text, expected=expected):
            assert parse_timestamps(pl.Series([text, None, f" {text} "])).values.to_list() == [
                expected,
                None,
                expected,
            ]


def test_what_is_no_date_is_null(subtests):
    for text in [
        "soon",
        "31",
        "2026-13-01",
        "32/01/2026",
        "2026-02-30",
        "17:05",
        "0026-01-31",
        "1.5",
    ]:
        with subtests.test(text=text):
            assert parse_timestamps(pl.Series([text])).values.to_list() == [None]


def test_the_whole_column_tells_day_from_month_or_nothing_does() -> None:
    dates = pl.Series("day", ["01/02/2026", "03/04/2026"] * 400)
    assert parse_timestamps(dates).other == ("%d/%m/%Y", "%m/%d/%Y")
    assert parse_timestamps(dates).values.null_count() == 800
    last = pl.concat([dates, pl.Series(["13/02/2026"])])
    assert parse_timestamps(last).format == "%d/%m/%Y"
    assert parse_timestamps(last).values[0] == stamp(2026, 2, 1)
    last = pl.concat([dates, pl.Series(["02/13/2026"])])
    assert parse_timestamps(last).format == "%m/%d/%Y"
    assert parse_timestamps(last).values[0] == stamp(2026, 1, 2)
    both = pl.concat([dates, pl.Series(["13/02/2026", "02/13/2026"])])
    assert parse_timestamps(both).values.null_count() > 0


def test_formats_may_be_mixed_where_none_is_in_doubt() -> None:
    result = parse_timestamps(pl.Series(["2026-01-31", "31 Jan 2026 17:05", "2026-01-31T17:05:09"]))
    assert (result.values.to_list(), result.mixed) == ([DAY, MINUTE, MOMENT], "")
    zoned = [
        "2026-01-31T18:05:09+01:00",
        "Sat Jan 31 17:05:09 +0000 2026",
        "2026-01-31 17:05:09Z",
        None,
    ]
    result = parse_timestamps(pl.Series(zoned))
    assert (result.values.to_list(), result.mixed) == ([MOMENT, MOMENT, MOMENT, None], "")


@pytest.mark.parametrize("bare", ["2026-01-31 17:05:09", "31-01-2026", "31/01/2026 17:05"])
def test_times_with_and_without_an_offset_are_not_compared(bare: str) -> None:
    frame = pl.DataFrame(
        {"day": [bare, "2026-01-31T18:05:09+01:00", "2026-01-31T17:05:09Z", bare, bare]}
    )
    with pytest.raises(
        DataError, match=r"column 'day' 2 of 5 cells have an offset .*'2026-01-31T18:05:09\+01:00'"
    ):
        order_values(frame, "day", "time", budget=NO_LIMIT)
    times = time_columns(profile_columns(frame), ())
    assert list(times) == ["day"]
    assert (
        f"2 of 5 cells have an offset from UTC ('2026-01-31T18:05:09+01:00'), the others do not ({bare!r})"
        in times["day"].doubt
    )


def test_a_format_that_is_given_decides() -> None:
    for cell, form, expected in (
        ("01/02/2026", "%m/%d/%Y", stamp(2026, 1, 2)),
        ("01/02/2026", "%d/%m/%Y", stamp(2026, 2, 1)),
        ("Q1 2026-01-31", "Q1 %Y-%m-%d", DAY),
    ):
        assert order_values(
            pl.DataFrame({"day": [cell]}), "day", "time", form, budget=NO_LIMIT
        ).tolist() == [expected]
    with pytest.raises(DataError, match="'x' in row 1"):
        order_values(
            pl.DataFrame({"day": ["Q1 2026-01-31", "x"]}),
            "day",
            "time",
            "Q1 %Y-%m-%d",
            budget=NO_LIMIT,
        )
    with pytest.raises(DataError, match="written with % signs"):
        order_values(
            pl.DataFrame({"day": ["01.02.2026"]}), "day", "time", "dd.mm.yyyy", budget=NO_LIMIT
        )


def test_order_values_ask_and_name_what_they_read() -> None:
    frame = pl.DataFrame({"day": ["01/02/2026", "02/03/2026"]})
    with pytest.raises(
        DataError, match=r"'01/02/2026'.* as '%d/%m/%Y' and as '%m/%d/%Y'; .*time_format"
    ):
        order_values(frame, "day", "time", budget=NO_LIMIT)
    assert order_values(frame, "day", "time", "%d/%m/%Y", budget=NO_LIMIT).tolist() == [
        stamp(2026, 2, 1),
        stamp(2026, 3, 2),
    ]
    with pytest.raises(
        DataError,
        match=r"time_format '%Y' must fit every cell.*'01/02/2026' in row 0 .*2 of 2 rows",
    ):
        order_values(frame, "day", "time", "%Y", budget=NO_LIMIT)
    with pytest.raises(DataError, match=r"holds 'x' in row 1 .*2026-01-31, 2026/01/31"):
        order_values(pl.DataFrame({"day": ["2026-01-01", "x"]}), "day", "time", budget=NO_LIMIT)


def rows(times: list[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "x": [k % 3 for k in range(len(times))],
            "t": times,
            "y": [k % 2 for k in range(len(times))],
        }
    )


FIELDS = {"fields": (Categorical("x"),), "label": Label("y"), "time": "t"}


def test_a_time_split_by_text_that_does_not_sort_as_text() -> None:
    times = [f"{day:02d}.{month:02d}.2026" for month in range(1, 11) for day in range(1, 11)]
    prepared = prepare(
        rows(times), Schema(**FIELDS, time_format="%d.%m.%Y"), split=TimeSplit(), seed=0
    )
    assert set(prepared.test.frame["t"]) == {f"{day:02d}.10.2026" for day in range(1, 11)}
    with pytest.raises(DataError, match="day and month are ambiguous"):
        prepare(rows(times), Schema(**FIELDS), split=TimeSplit(), seed=0)
    split, why = suggest_split(rows(times), Schema(**FIELDS))
    assert split.kind == "random"
    assert "ambiguous" in why
    assert suggest_split(rows(times), Schema(**FIELDS, time_format="%d.%m.%Y"))[0] == TimeSplit()


def test_a_time_format_is_kept_and_checked() -> None:
    schema = Schema(**FIELDS, time_format="%d.%m.%Y")
    assert Schema.from_toml(schema.to_toml()) == schema
    for wrong in ({"time_format": "dd.mm.yyyy"}, {"time_format": "%Y", "time": None}):
        with pytest.raises(SchemaError, match="time_format"):
            Schema(**{**FIELDS, **wrong})


def line_of(path, row, columns=None):
    """The line that an error about a row names; None if there is no such row."""
    with pytest.raises(DataError) as e, naming_lines(path, TextFormat(columns=columns)):
        raise DataError(Row(row))
    result = re.fullmatch(rf"line (\d+) of {re.escape(str(path))}", str(e.value))
    if result is None:
        assert str(e.value) == f"row {row} (counting from 0)"
    return result and int(result[1])


@pytest.mark.filterwarnings("ignore:the first line")
def test_the_line_of_each_row(subtests, tmp_path):
    for text, lines, header in [
        ("a,b\n1,x\n2,y\n", [2, 3], True),
        ("a,b\r\n1,x\r\n2,y\r\n", [2, 3], True),
        ("\n\na,b\n1,x\n2,y\n", [4, 5], True),
        ('a,b\n1,"x\n\n"\n2,y\n3,z\n', [2, 5, 6], True),
        ('"a\nA",b\n1,x\n', [3], True),
        ("1,x\n2,y\n", [1, 2], False),
    ]:
        with subtests.test(text=text, lines=lines, header=header):
            path = tmp_path / "t.csv"
            path.write_bytes(text.encode())
            columns = None if header else ["a", "b"]
            table = as_table(path, columns=columns)
            assert [line_of(path, row, columns) for row in range(table.height)] == lines
            assert line_of(path, table.height, columns) is None
            written = path.read_bytes().split(b"\n")
            for row, line in enumerate(lines):
                assert written[line - 1].startswith(str(table.row(row)[0]).encode())


def test_one_column_with_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n\n2\n")
    assert as_table(path).get_column("a").to_list() == [1, None, 2]
    assert [line_of(path, row) for row in range(3)] == [2, 3, 4]


def test_other_errors_and_files_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(DataError, match=r"^nothing of rows$"), naming_lines(tmp_path / "t.csv"):
        raise DataError("nothing of rows")
    with (
        pytest.raises(DataError, match=r"bad cell in line 2 of .*t\.csv; mend"),
        naming_lines(tmp_path / "t.csv"),
    ):
        raise DataError("bad cell in ", Row(0), "; mend")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "t.parquet")
    with (
        pytest.raises(DataError, match=r"in row 0 \(counting from 0\)$"),
        naming_lines(tmp_path / "t.parquet"),
    ):
        raise DataError("bad cell in ", Row(0))
    with pytest.raises(DataError, match=r"in row 7 \(counting from 0\)"), renumbering_rows([3, 7]):
        raise DataError("bad cell in ", Row(1))


def test_rows_that_the_label_drops_are_counted() -> None:
    frame = pl.DataFrame(
        {"x": [1, 2] * 10, "t": [*range(15), None, *range(4)], "y": [3, 1] + [3, 5, 1] * 6}
    )
    schema = Schema(
        fields=(Categorical("x"),), label=Label("y", positive_above=3, drop_values=(3,)), time="t"
    )
    with pytest.raises(DataError, match=r"in row 15 \(counting from 0\)"):
        prepare(frame, schema, split=TimeSplit(), seed=0)


def test_a_row_of_several_files_is_named_with_its_file(tmp_path):
    def told(pattern, row, **reading):
        with pytest.raises(DataError) as e, naming_lines(tmp_path / pattern, TextFormat(**reading)):
            raise DataError("bad cell in ", Row(row), "; mend it")
        return str(e.value).replace(str(tmp_path) + "/", "")

    (tmp_path / "a.csv").write_text("x,y\n1,2\n\n\n")
    (tmp_path / "b.csv").write_text('x,y\n3,"q\nr"\n5,6\n')
    for k, rows in enumerate((3, 2)):
        pl.DataFrame({"n": range(rows)}).write_parquet(tmp_path / f"{k}.parquet")
    assert as_table(tmp_path / "*.csv").height == 3
    assert [told("*.csv", row) for row in range(3)] == [
        f"bad cell in line {line}; mend it" for line in ("2 of a.csv", "2 of b.csv", "4 of b.csv")
    ]
    assert told("*.parquet", 3) == "bad cell in row 0 (counting from 0) of 1.parquet; mend it"


def test_of_equal_times_the_last_row_of_the_table_is_the_latest():
    times = np.random.default_rng(0).integers(0, 3, 500)
    log = pl.DataFrame({"time": times, "user": np.arange(500) % 2, "row": np.arange(500)})
    expected = [
        max((t, row) for t, user, row in log.iter_rows() if user == one)[1] for one in (0, 1)
    ]
    schema = Schema(fields=(Categorical("user"),), label=Label("click"), time="time")
    assert latest_rows(log, "user", [schema])["row"].to_list() == expected
    assert latest_rows(log.drop("time"), "user", [schema])["row"].to_list() == [498, 499]


def test_times_of_several_units_are_refused_where_they_order_rows(subtests):
    seconds = 1_700_000_000 + 60 * np.arange(1_000)
    mixed = np.where(np.arange(1_000) % 4 == 1, 1_000 * seconds, seconds)
    for column in (
        pl.Series("ts", mixed),
        pl.Series("ts", mixed.astype(float)),
        pl.Series("ts", mixed).cast(pl.String),
    ):
        with subtests.test(kind=column.dtype), pytest.raises(DataError) as e:
            order_values(column.to_frame(), "ts", "time", budget=NO_LIMIT)
        assert (
            "must have one unit: in the time column 'ts' 250 of 1,000 rows are in milliseconds"
            in str(e.value)
        )
        assert "750 in seconds, the first of the former is row 1 (counting from 0)" in str(e.value)
    some_missing = np.where(np.arange(1_000) % 200 == 0, 0, mixed)
    units, _ = mixed_units(some_missing, budget=NO_LIMIT)
    assert "250 of 1,000 rows are in milliseconds" in units, "marks of missing times hide nothing"
    late = np.where(np.arange(1_000) < 990, seconds, 10**6 * seconds)
    units, row = mixed_units(late, budget=MemoryBudget(chunk_rows=100))
    assert "10 of 1,000 rows are in microseconds" in units
    assert units.endswith("the first of the former is ")
    assert row == Row(990)


def test_numbers_that_order_rows_and_are_no_times_of_two_units(subtests):
    seconds = 1_700_000_000 + 60 * np.arange(1_000)
    # microseconds, one as small as milliseconds of 1980
    dates = pl.Series(["1970-01-05", "2026-01-31", "2026-02-01"])
    for name, column in {
        "seconds": pl.Series(seconds),
        "nanoseconds": pl.Series(seconds * 10**9),
        "counts": pl.Series(np.arange(1_000) * 10**9),
        "dates as numbers": pl.Series([20260131, 20260201, 202601311200, 20260131120000]),
        "dates": dates,
        "datetimes": dates.str.to_datetime(),
    }.items():
        with subtests.test(name=name):
            values = order_values(column.alias("ts").to_frame(), "ts", "time", budget=NO_LIMIT)
            assert len(values) == len(column)


def test_the_guess_of_a_schema_tells_times_of_several_units():
    n = 400
    rng = np.random.default_rng(0)
    seconds = 1_700_000_000 + 60 * np.arange(n)
    frame = pl.DataFrame(
        {
            "user_id": rng.integers(0, 20, n),
            "item_id": rng.integers(0, 15, n),
            "ts": np.where(np.arange(n) % 2, 1_000 * seconds, seconds),
            "click": rng.integers(0, 2, n),
        }
    )
    assert "200 of 400 rows are in" in infer_schema(frame).doubts["ts"]
    assert "ts" not in infer_schema(frame.with_columns(ts=pl.Series(seconds))).doubts

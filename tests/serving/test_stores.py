"""Stores on real servers: equal rows whatever holds them, and what cannot be a store is refused in a sentence."""

import asyncio
import datetime as dt
from decimal import Decimal

import polars as pl
import pytest
from serving.servers import PASSWORD, QUOTED, postgres_server, redis_server

from fieldwise.errors import ConfigError
from fieldwise.serving.stores import StoreURL, TableStore, open_store
from fieldwise.serving.stores.load import load_table

redis = pytest.fixture(scope="session")(redis_server)
postgres = pytest.fixture(scope="session")(postgres_server)

NAMES = ["u1", "07", "ü ñ 漢", "x'; DROP TABLE users; --", 'a"b', "100%", "{}", "*", "u1:rows", "\\n"]
ROWS = pl.DataFrame(
    {
        "user": NAMES,
        "whole": [1, None, -(2**63), 2**63 - 1, 0, 5, 6, 7, 8, 9],
        "real": [0.1, float("nan"), None, 1e300, -0.0, 1 / 3, 2.0, 1e-7, 8.0, 9.5],
        "yes": [True, False, None, *[True] * 7],
        "text": ["a", "", None, 'It\'s "quoted" {x,y} %s \\', "línea\nnueva\t", "NULL", "\\N", "null", "[1]", "9"],
        "tags": [["a", "b,c"], [], None, ['"q"', "{}"], ["NULL"], ["\\"], ["ü"], [""], ["x", None], ["i"]],
        "counts": pl.Series([[1, 2], [], None, *[[3]] * 7], dtype=pl.List(pl.Int32)),
        "day": [dt.date(2026, 1, 2), None, *[dt.date(1969, 12, 31)] * 8],
        "moment": [dt.datetime(2026, 1, 2, 3, 4, 5), None, *[dt.datetime(1900, 1, 1)] * 8],
        "paid": pl.Series([Decimal("1.50"), None, *[Decimal("10.00")] * 8], dtype=pl.Decimal(10, 2)),
        "took": pl.Series([dt.timedelta(seconds=90), None, *[dt.timedelta(days=1)] * 8]),
        'odd "name\'s" %s {} ü': ["x"] * 10,
    }
)


@pytest.fixture(params=["redis", "postgres"])
def server(request):
    """Each server in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def write(tmp_path):
    """Write a frame to an address, through a Parquet file."""

    def call(frame, url, column="user"):
        path = tmp_path / "rows.parquet"
        frame.write_parquet(path)
        return load_table(path, StoreURL.parse(url), column)

    return call


def ask(url, *several, column="user"):
    """The rows of lists of ids, one after the other."""

    async def run():
        store = open_store(url, column, "users")
        await store.open()
        try:
            return [await store.get(ids) for ids in several]
        finally:
            await store.close()

    return asyncio.run(run())


def refused(url, *parts, column="user"):
    with pytest.raises(ConfigError) as caught:
        ask(url, [], column=column)
    message = str(caught.value)
    assert "\n" not in message
    assert PASSWORD not in message
    assert QUOTED not in message
    for part in parts:
        assert part in message


# the same rows


def test_rows_are_equal_in_every_store(server, write):
    loaded = write(ROWS, server.url("equal"))
    assert (loaded.rows, loaded.before, loaded.columns) == (10, None, ROWS.columns)
    memory = asyncio.run(TableStore("user", ROWS).get([*NAMES, "nobody"]))
    (found,) = ask(server.url("equal"), [*NAMES, "nobody"])
    assert found == memory
    assert found[0] == {
        "user": "u1",
        "whole": 1,
        "real": 0.1,
        "yes": True,
        "text": "a",
        "tags": ["a", "b,c"],
        "counts": [1, 2],
        "day": "2026-01-02",
        "moment": "2026-01-02 03:04:05.000000",
        "paid": "1.5",
        "took": 90,
        'odd "name\'s" %s {} ü': "x",
    }
    assert found[1]["real"] is None
    assert found[-1] is None


def test_ids_that_no_store_has_are_unknown_and_harm_nothing(server, write):
    write(ROWS, server.url("harm"))
    odd = ["", "\0", "u1\0", "u2", "' OR '1'='1", "1; DROP TABLE harm", "u1'--", "*", "?", "x" * 10_000, "current"]
    found, again = ask(server.url("harm"), odd, ["u1"])
    assert [row is not None for row in found] == [one == "*" for one in odd]
    assert again[0]["whole"] == 1


def test_ids_are_texts_whatever_the_table_has(server, write):
    for ids in (pl.Series("user", [1, 2, 3]), pl.Series("user", [1.0, 2.0, 3.0]), pl.Series("user", ["1", "2", "3"])):
        write(pl.DataFrame([ids, pl.Series("n", [10, 20, 30])]), server.url("ids"))
        assert ask(server.url("ids"), ["3", "1"])[0] == [{"user": "3", "n": 30}, {"user": "1", "n": 10}]


def test_a_thousand_ids_at_once(server, write):
    write(pl.DataFrame({"user": [f"u{k}" for k in range(12_000)], "n": range(12_000)}), server.url("many"))
    ids = [f"u{k}" for k in range(0, 12_000, 12)]
    (found,) = ask(server.url("many"), ids)
    assert [row["n"] for row in found] == list(range(0, 12_000, 12))


def test_names_are_quoted(server, write):
    for name in ("it's", 'a"b', "x; DROP TABLE y", "%s {}", "ünï"):
        from urllib.parse import quote

        write(ROWS.rename({"user": f"id {name}"}), server.url(quote(name)), f"id {name}")
        (found,) = ask(server.url(quote(name)), ["u1", "07"], column=f"id {name}")
        assert [row["whole"] for row in found] == [1, None]

"""Stores on real servers: equal rows whatever holds them, and what cannot be a store is refused in a sentence."""

import asyncio
import datetime as dt
from decimal import Decimal
from urllib.parse import quote

import polars as pl
import pytest
from serving.servers import PASSWORD, QUOTED, until

from fieldwise import ConfigError, DataError
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.serving.stores import UNREADABLE, Lookup, TableStore, load_table, open_store

NAMES = [
    "u1",
    "07",
    "ü ñ 漢",
    "x'; DROP TABLE users; --",
    'a"b',
    "100%",
    "{}",
    "*",
    "u1:rows",
    "\\n",
]
ROWS = pl.DataFrame(
    {
        "user": NAMES,
        "whole": [1, None, -(2**63), 2**63 - 1, 0, 5, 6, 7, 8, 9],
        "real": [0.1, float("nan"), None, 1e300, -0.0, 1 / 3, 2.0, 1e-7, 8.0, 9.5],
        "yes": [True, False, None, *[True] * 7],
        "text": [
            "a",
            "",
            None,
            'It\'s "quoted" {x,y} %s \\',
            "línea\nnueva\t",
            "NULL",
            "\\N",
            "null",
            "[1]",
            "9",
        ],
        "tags": [
            ["a", "b,c"],
            [],
            None,
            ['"q"', "{}"],
            ["NULL"],
            ["\\"],
            ["ü"],
            [""],
            ["x", None],
            ["i"],
        ],
        "counts": pl.Series([[1, 2], [], None, *[[3]] * 7], dtype=pl.List(pl.Int32)),
        "day": [dt.date(2026, 1, 2), None, *[dt.date(1969, 12, 31)] * 8],
        "moment": [dt.datetime(2026, 1, 2, 3, 4, 5), None, *[dt.datetime(1900, 1, 1)] * 8],
        "paid": pl.Series(
            [Decimal("1.50"), None, *[Decimal("10.00")] * 8], dtype=pl.Decimal(10, 2)
        ),
        "took": pl.Series([dt.timedelta(seconds=90), None, *[dt.timedelta(days=1)] * 8]),
        'odd "name\'s" %s {} ü': ["x"] * 10,
    }
)


@pytest.fixture
def write(tmp_path):
    """Write a frame to an address, through a Parquet file."""

    def call(frame, url, column="user"):
        path = tmp_path / "rows.parquet"
        frame.write_parquet(path)
        return load_table(SlicedTable(path), open_store(url, column))

    return call


def ask(url, *several, column="user"):
    """The rows of lists of ids, one after the other."""

    async def run():
        store = open_store(url, column, "users")
        try:
            await store.open()
            return [await store.get(ids) for ids in several]
        finally:
            await store.close()

    return asyncio.run(run())


def refused(url, *parts, column="user"):
    with pytest.raises(ConfigError) as caught:
        ask(url, [], column=column)
    message = str(caught.value)
    assert not [word for word in ("\n", PASSWORD, QUOTED) if word in message]
    assert not [part for part in parts if part not in message]


def test_rows_are_equal_in_every_store(server, write):
    loaded = write(ROWS, server.url("equal"))
    assert loaded == {"rows": 10, "before": None, "columns": ROWS.columns}
    memory = asyncio.run(TableStore("user", ROWS).get([*NAMES, "nobody"]))
    (result,) = ask(server.url("equal"), [*NAMES, "nobody"])
    assert result == memory
    assert result[0] == {
        "user": "u1", "whole": 1, "real": 0.1, "yes": True, "text": "a", "tags": ["a", "b,c"], "counts": [1, 2],
        "day": "2026-01-02", "moment": "2026-01-02 03:04:05", "paid": "1.5", "took": 90,
        'odd "name\'s" %s {} ü': "x",
    }  # fmt: skip
    assert result[1]["real"] is None
    assert result[-1] is None
    odd = [
        "",
        "\0",
        "u1\0",
        "u2",
        "' OR '1'='1",
        "1; DROP TABLE equal",
        "u1'--",
        "*",
        "?",
        "x" * 10_000,
        "current",
    ]
    result, again = ask(server.url("equal"), odd, ["u1"])
    assert [row is not None for row in result] == [one == "*" for one in odd]
    assert again[0]["whole"] == 1
    write(ROWS.clear(), server.url("equal"))
    assert ask(server.url("equal"), ["u1"])[0] == [None]


def test_ids_of_every_type_and_odd_names(server, write):
    for ids in (
        pl.Series("user", [1, 2, 3]),
        pl.Series("user", [1.0, 2.0, 3.0]),
        pl.Series("user", ["1", "2", "3"]),
    ):
        write(pl.DataFrame([ids, pl.Series("n", [10, 20, 30])]), server.url("ids"))
        assert ask(server.url("ids"), ["3", "1"])[0] == [
            {"user": "3", "n": 30},
            {"user": "1", "n": 10},
        ]
    write(
        pl.DataFrame({"user": [f"u{k}" for k in range(12_000)], "n": range(12_000)}),
        server.url("many"),
    )
    (result,) = ask(server.url("many"), [f"u{k}" for k in range(0, 12_000, 12)])
    assert [row["n"] for row in result] == list(range(0, 12_000, 12))
    for name in ("it's", 'a"b', "x; DROP TABLE y", "%s {}", "ünï"):
        write(ROWS.rename({"user": f"id {name}"}), server.url(quote(name)), f"id {name}")
        (result,) = ask(server.url(quote(name)), ["u1", "07"], column=f"id {name}")
        assert [row["whole"] for row in result] == [1, None]


def test_postgresql_searches_users_and_redis_does_not(server, write):
    """By the beginnings of their ids."""
    write(pl.DataFrame({"user": ["b", "a%", "a", "ab", "B", "a_b", "ü"]}), server.url("found"))

    async def run():
        lookup = Lookup("users", open_store(server.url("found"), "user", "users"), timeout=120)
        await lookup.store.open()
        try:
            return [(await lookup.search(prefix, 0, 2))[0] for prefix in ("", "a", "a%", "ü", "zz")]
        finally:
            await lookup.store.close()

    results = [["B", "a"], ["a", "a%"], ["a%"], ["ü"], []]
    assert asyncio.run(run()) == (results if server.kind == "postgresql" else [[]] * 5)


def test_what_is_no_address():
    for text, part in (
        ("mysql://h/d#users", "begins with redis://"),
        ("redis://u:a/b@h/0#users", "%2F %23"),
        ("postgresql://u:secret#1@h/d#users", "%2F %23"),
        ("postgresql://u:secret:x@h:port/d#users", "%2F %23"),
        ("redis://h/0", "must name the table, as in redis://HOST"),
    ):
        with pytest.raises(ConfigError, match=part) as caught:
            open_store(text, "user")
        assert "secret" not in str(caught.value)
    address = open_store(f"rediss://me:{QUOTED}@h:1/0?ssl_ca_certs=/x", "user", "users")
    assert (address.kind, address.table, address.shown) == (
        "redis",
        "users",
        "rediss://h:1/0#users",
    )
    assert "p%40" not in repr(address)
    assert address.redacted(ValueError(f"bad {PASSWORD} and {QUOTED}\nmore")) == "bad *** and ***"
    refused = 'password authentication failed for user "me", User me has no permissions for memory'
    expected = (
        'password authentication failed for user "***", User *** has no permissions for memory'
    )
    assert address.redacted(ValueError(refused)) == expected
    assert address.redacted(ValueError('role "root" does not exist')) == 'role "***" does not exist'


def test_stores_that_do_not_open(server, write):
    write(ROWS, server.url("opens"))
    refused(server.url("nothing"), "holds no table of this name", "#nothing")
    refused(server.url("opens"), "'id'", column="id")
    refused(server.url("opens").replace(QUOTED, "wrong"), "must answer", "password")
    refused(server.url("opens").replace(str(server.port), "1"), "must answer", ":1")
    refused(
        server.url("opens").replace("://", "://nobody:x@h@").replace(":x@h@", ":"), "must answer"
    )
    wrong = server.url("opens").replace("#", "?sokcet_timeout=3#")
    refused(wrong, "must answer")
    with pytest.raises(ConfigError, match="was not written") as caught:
        write(ROWS, wrong)
    assert QUOTED not in str(caught.value)


def test_keys_and_rows_of_other_programs_in_redis(redis, write):
    """Keys that are no tables stay as they are; rows may have other columns, fewer, or be no rows."""
    client = redis.client()
    client.set("text", "hello")
    client.hset("hash", "user", "x")
    refused(redis.url("text"), "must answer", "WRONGTYPE")
    refused(redis.url("hash"), "holds no table of this name")
    for name in ("text", "hash"):
        with pytest.raises(
            ConfigError, match=f"#{name} is something that fieldwise store load did not write"
        ):
            write(ROWS, redis.url(name))
    assert (client.get("text"), client.hgetall("hash")) == ("hello", {"user": "x"})
    write(ROWS, redis.url("own"))
    client.hset("own", "new", '{"whole": 3, "more": [1]}')
    assert ask(redis.url("own"), ["new"])[0] == [{"user": "new", "whole": 3, "more": [1]}]
    client.hset("own", "new", "")
    good, bad = ask(redis.url("own"), ["u1", "new"])[0]
    assert good["whole"] == 1
    assert bad is UNREADABLE


def test_what_a_load_that_did_not_end_left_is_removed(redis, write, monkeypatch):
    """Redis removes it; a load that ended stays."""
    write(ROWS, redis.url("left"))
    monkeypatch.setattr("fieldwise.serving.stores.redis.EXPIRY_S", 1)
    with pytest.raises(DataError, match="finite"):
        write(
            pl.concat([ROWS] * 2).with_columns(user=pl.int_range(20), real=float("inf")),
            redis.url("left"),
        )
    client = redis.client()
    until(lambda: len(list(client.scan_iter("left*"))) == 1)
    assert client.ttl("left") == -1


def test_tables_of_other_programs_in_postgresql(postgres, write):
    """Other types and views are read; tables without a unique index are refused; none is ever replaced."""
    with postgres.client() as client:
        client.execute("""CREATE SCHEMA shop;
            CREATE TABLE shop.people (id int PRIMARY KEY, name varchar(9), paid numeric, born date, seen timestamptz,
                tags text[], about jsonb, took interval, x float4);
            INSERT INTO shop.people VALUES (7, 'Eve', 1.50, '2000-01-02', '2026-01-02 03:04:05+02', '{a,NULL}',
                '{"a": 1}', '90s', 'NaN'), (8, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
            CREATE TABLE shop.twice (id text, n int);
            INSERT INTO shop.twice VALUES ('a', 1), ('a', 2);
            CREATE VIEW shop.seen AS SELECT id, n FROM shop.twice;
            CREATE TABLE shop.real (id float8 PRIMARY KEY);
            CREATE TABLE shop.keyed (id uuid PRIMARY KEY);
            INSERT INTO shop.keyed VALUES ('00000000-0000-0000-0000-00000000000a');
            CREATE ROLE reader LOGIN PASSWORD 'reads'""")
    ids = ["7", "8", "07", "7.0", str(2**70), "-7"]
    (rows,) = ask(postgres.url("shop.people"), ids, column="id")
    assert rows[0] == {
        "id": "7", "name": "Eve", "paid": "1.5", "born": "2000-01-02", "seen": "2026-01-02 01:04:05+00:00",
        "tags": ["a", None], "about": {"a": 1}, "took": 90, "x": None,
    }  # fmt: skip
    assert rows[1] == {"id": "8", **dict.fromkeys(list(rows[0])[1:])}
    assert rows[2:] == [None] * 4
    key = "00000000-0000-0000-0000-00000000000a"
    assert ask(postgres.url("shop.keyed"), [key, key.upper(), "x"], column="id")[0] == [
        {"id": key},
        None,
        None,
    ]
    refused(postgres.url("shop.twice"), "no unique index on 'id'", column="id")
    refused(postgres.url("shop.real"), "integers, text or UUIDs", column="id")
    refused(postgres.url("a.b.c"), "holds no table")
    refused(postgres.url("nowhere.people"), "holds no table")
    assert ask(postgres.url("shop.seen"), ["a"], column="id")[0] == [UNREADABLE], (
        "which of the two?"
    )
    with pytest.raises(ConfigError, match="did not write, and stays as it is"):
        write(ROWS, postgres.url("shop.people"))
    reader = postgres.url("readable").replace(f"tester:{QUOTED}", "reader:reads")
    write(ROWS, postgres.url("readable"))
    refused(reader, "let its user read: permission denied")
    with postgres.client() as client:
        client.execute("GRANT SELECT ON readable TO reader")
    assert write(ROWS.head(3), postgres.url("readable"))["before"] == 10
    assert ask(reader, ["u1", NAMES[5]])[0][1] is None, "the new table, with the old one's grants"
    with pytest.raises(ConfigError, match=r"was not written: permission denied"):
        write(ROWS, reader)


def test_a_query_that_timed_out_is_cancelled(postgres):
    """The time limit holds, the server ends the query, and the next question is answered."""
    with postgres.client() as client:
        client.execute("CREATE TABLE quick (id text PRIMARY KEY)")
        client.execute("INSERT INTO quick VALUES ('a')")
        client.execute("CREATE VIEW slow AS SELECT id, pg_sleep(600)::text AS s FROM quick")

        async def run():
            lookup = Lookup("users", open_store(postgres.url("slow"), "id", "users"), timeout=1)
            await lookup.store.open()
            assert await lookup.get([]) == []
            assert await lookup.get(["a"], ["s"]) == [UNREADABLE]
            assert await lookup.get([]) == []
            await lookup.store.close()

        asyncio.run(run())
        asleep = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        # sooner than the query itself takes
        until(lambda: client.execute(asleep).fetchone() == (0,))


def test_a_table_that_is_in_use_stays_and_nothing_is_left_behind(postgres, write, monkeypatch):
    monkeypatch.setattr("fieldwise.serving.stores.postgres.LOCK_S", 1)
    write(ROWS, postgres.url("used"))
    with postgres.client() as client:
        with client.transaction():
            client.execute("SELECT * FROM used")
            with pytest.raises(
                ConfigError, match=r"was not written: .* lock timeout; the old table stays"
            ):
                write(ROWS.head(3), postgres.url("used"))
        count = client.execute(
            "SELECT count(*) FROM pg_class WHERE relname LIKE 'fieldwise\\_%' AND relkind = 'r'"
        )
        assert count.fetchone() == (0,)
    assert len([row for row in ask(postgres.url("used"), NAMES)[0] if row]) == 10


def test_tables_that_cannot_be_loaded(server, write):
    write(ROWS, server.url("stays"))
    for frame, part in (
        (ROWS.drop("user"), "must have the column 'user'"),
        (pl.concat([ROWS, ROWS.head(1)]), "'u1' in column 'user' .*occurs twice"),
        (ROWS.with_columns(user=pl.lit(None, pl.String)), "found None in column 'user'"),
        (ROWS.with_columns(real=pl.lit(float("inf"))), "finite: column 'real' holds inf in row 0"),
        (ROWS.with_columns(at=pl.struct("whole")), "column 'at'"),
    ):
        with pytest.raises(DataError, match=part):
            write(frame, server.url("stays"))
    assert len([row for row in ask(server.url("stays"), NAMES)[0] if row]) == 10
    if server.kind == "postgresql":
        with pytest.raises(ConfigError, match=r"was not written: .*NUL"):
            write(ROWS.with_columns(text=pl.lit("a\0b")), server.url("cannot"))
        with pytest.raises(DataError, match="1 to 63 bytes"):
            write(ROWS.rename({"text": "x" * 64}), server.url("cannot"))
        refused(server.url("cannot"), "holds no table")

"""A row of a store that cannot be read is that row's alone: no other request fails, and the store is not left alone."""

import asyncio
import json
import time
from decimal import Decimal

import polars as pl
import pytest
from serving.asgi import patient_app, talking
from serving.servers import postgres_server, redis_server

from fieldwise import FM, Categorical, Label, Numeric, Schema
from fieldwise.data.read.chunked_table import SlicedTable
from fieldwise.errors import ConfigError
from fieldwise.serving.service import Service
from fieldwise.serving.stores import UNREADABLE, Lookup, StoreError, Stores, TableStore, load_table, open_store

own_redis = pytest.fixture(scope="module")(redis_server)
own_postgres = pytest.fixture(scope="module")(postgres_server)
DEEP = "[" * 100_000
UNREADABLE_ROWS = ("[]", "{", '"x"', DEEP, f'{{"paid": {DEEP}', '{"paid": [[1]]}', '{"paid": 1e999}', "\0")
SCHEMA = Schema(
    fields=(Categorical("user", role="user"), Numeric("paid", role="user"), Categorical("since", role="user")),
    label=Label("click"),
)


@pytest.fixture(scope="module")
def service():
    import torch

    from fieldwise import Bundle
    from fieldwise.data.encode.encoder import Encoder
    from fieldwise.models.build import build_network

    rows = pl.DataFrame({"user": ["u1", "u2"], "paid": [1.0, 2.0], "since": ["2026-01-02", "x"], "click": [0, 1]})
    encoder = Encoder.fit(rows, SCHEMA)
    settings = FM(embedding_dim=2)
    with torch.random.fork_rng(devices=[]):
        network = build_network(settings, encoder.layout, 0, labels=1).eval()
    return Service(Bundle(SCHEMA, encoder, settings, network, rows.drop("click"), {}))


def answers(service, url, asks, policy="refuse", timeout=120):
    """The answers to many requests at once, each a list of rows, then the store's state and what was counted."""

    async def run():
        users = Lookup("users", open_store(url, "user", "users"), timeout=timeout)
        app = patient_app(service, Stores(users=users, on_failure=policy))
        async with app.router.lifespan_context(app), talking(app) as client:
            calls = (client.post("/v1/predict", json={"rows": rows}) for rows in asks)
            result = await asyncio.gather(*calls)
            ready = (await client.get("/readyz")).json()["stores"]["users"]["state"]
            return result, ready, (await client.get("/metrics")).text

    return asyncio.run(run())


def people(client, **changed):
    """A table of ten users in PostgreSQL, one of whom has other values; `unread` is a column that no model reads."""
    client.execute("DROP VIEW IF EXISTS divided; DROP TABLE IF EXISTS people")
    client.execute('CREATE TABLE people ("user" text PRIMARY KEY, paid numeric, since timestamp, unread timestamp)')
    client.execute("INSERT INTO people SELECT 'u' || n, n, '2026-01-02', '2026-01-02' FROM generate_series(0, 9) n")
    for column, value in changed.items():
        client.execute(f"UPDATE people SET {column} = '{value}' WHERE \"user\" = 'u3'")


LONG = "CASE WHEN paid = 3 THEN repeat('x', 1048577) ELSE 'x' END"
LONGER = "CASE WHEN paid = 3 THEN repeat('x', paid::int * 66666666) ELSE 'x' END"
ASKS = [[{"user": f"u{n % 10}"}] for n in range(40)]


def test_a_value_that_no_model_reads_is_not_asked_for(service, own_postgres):
    with own_postgres.client() as client:
        people(client, unread="infinity")
    result, state, _ = answers(service, own_postgres.url("people"), ASKS)
    assert {one.status_code for one in result} == {200}
    assert state == "ok"
    with own_postgres.client() as client:
        client.execute("ALTER TABLE people DROP COLUMN unread")
    assert {one.status_code for one in answers(service, own_postgres.url("people"), ASKS)[0]} == {200}


@pytest.mark.parametrize(
    ("column", "value"), [("since", "infinity"), ("since", "0044-03-15 BC"), ("paid", "Infinity"), ("paid", "1e90")]
)
def test_a_value_that_cannot_be_read_is_its_users_alone(service, own_postgres, column, value):
    with own_postgres.client() as client:
        people(client, **{column: value})
    result, state, metrics = answers(service, own_postgres.url("people"), ASKS)
    for number, one in enumerate(result):
        assert one.status_code == (503 if number % 10 == 3 else 200), one.text
    assert result[3].json()["error"]["field"] == "rows[0].user"
    assert result[3].headers["retry-after"] == "1"
    assert state == "ok"
    assert 'fieldwise_store_refused_total{reason="damaged",store="users"} 4.0' in metrics
    result, state, metrics = answers(service, own_postgres.url("people"), ASKS, "degrade")
    assert {one.status_code for one in result} == {200}
    for number, one in enumerate(result):
        missing = [(m["ids"], m["columns"], m["reason"]) for m in one.json()["degraded"]]
        assert missing == ([(["u3"], ["paid", "since"], "damaged")] if number % 10 == 3 else [])
    assert 'fieldwise_degraded_total{reason="damaged",store="users"} 4.0' in metrics


def test_a_number_that_is_none_is_null_and_no_panic(service, own_postgres, own_redis, rows_in_redis):
    with own_postgres.client() as client:
        people(client, paid="NaN")
    rows_in_redis("u3", '{"paid": NaN, "since": NaN}')
    for url in (own_postgres.url("people"), own_redis.url("users")):
        result, state, _ = answers(service, url, ASKS)
        assert {one.status_code for one in result} == {200}
        assert state == "ok"


STATES = ("08006", "22012", "42501", "42703", "42P01", "57014", "XX000")  # and what the store itself acts upon


@pytest.mark.parametrize("state", STATES)
def test_a_row_that_the_server_itself_fails_at_is_its_users_alone(service, own_postgres, state):
    """A view whose function raises an error at one row: all 40 requests for other users are answered."""
    with own_postgres.client() as client:
        people(client)
        client.execute(f"""CREATE OR REPLACE FUNCTION checked(id text, paid numeric) RETURNS numeric AS $$ BEGIN
            IF id = 'u3' THEN RAISE EXCEPTION 'bad' USING ERRCODE = '{state}'; END IF; RETURN paid; END $$
            LANGUAGE plpgsql""")
        client.execute('CREATE VIEW divided AS SELECT "user", checked("user", paid) AS paid, since FROM people')
    asks = [[{"user": f"u{n % 10 if n % 10 != 3 or n == 3 else 4}"}] for n in range(41)]
    result, now, _ = answers(service, own_postgres.url("divided"), asks)
    assert [one.status_code for one in result] == [503 if n == 3 else 200 for n in range(41)]
    assert now == "ok"


@pytest.mark.parametrize(
    ("paid", "since"),
    [("CASE WHEN paid = 3 THEN length(pg_sleep(600)::text) ELSE paid END", "since"), ("paid", LONG), ("paid", LONGER)],
)
def test_a_row_that_takes_long_or_is_long_is_its_users_alone(service, own_postgres, paid, since):
    with own_postgres.client() as client:
        people(client)
        client.execute(f'CREATE VIEW divided AS SELECT "user", {paid} AS paid, {since} AS since FROM people')
    result, state, _ = answers(service, own_postgres.url("divided"), ASKS, timeout=3)
    assert [one.status_code for one in result] == [503 if n % 10 == 3 else 200 for n in range(40)]
    assert state == "ok"


def test_ids_whose_rows_fail_are_not_asked_for_with_others_again(own_postgres, monkeypatch):
    """Twenty rows that the server fails at, asked for beside eight good ones: to find them takes queries, once."""
    with own_postgres.client() as client:
        client.execute("DROP VIEW IF EXISTS divided; DROP TABLE IF EXISTS people")
        client.execute("CREATE TABLE people AS SELECT 'u' || n AS \"user\", n FROM generate_series(0, 27) n")
        client.execute('CREATE VIEW divided AS SELECT "user", 1 / greatest(n - 19, 0) AS part FROM people')
    ids, queries = [f"u{n}" for n in range(28)], []
    monkeypatch.setattr("fieldwise.serving.stores.QUARANTINE_S", 600.0)

    async def run():
        store = open_store(own_postgres.url("divided"), "user", "people")
        asked = store.get
        monkeypatch.setattr(store, "get", lambda *given: queries.append(given[0]) or asked(*given))
        users = Lookup("users", store, timeout=120)
        await store.open()

        async def told():
            queries.clear()
            rows = await users.get(ids, ["part"])
            assert [row["user"] for row in rows[20:]] == ids[20:]
            return sum(row is UNREADABLE for row in rows)

        assert await told() == 20
        assert [one for asked in queries if len(asked) == 1 for one in asked] == ids
        assert await told() == 20
        assert queries == [ids[20:]]
        assert await users.get(["u1"], []) == [UNREADABLE], "whatever its columns"
        users._quarantine = dict.fromkeys(users._quarantine, 0.0)  # the pause is over
        assert await told() == 20
        assert {one for asked in queries if len(asked) == 1 for one in asked} == {"u0", "u1", "u2", "u3"}
        with own_postgres.client() as client:
            client.execute("UPDATE people SET n = 20")
        users._quarantine = dict.fromkeys(users._quarantine, 0.0)
        assert [await told() for _ in range(6)] == [16, 12, 8, 4, 0, 0]
        await store.close()

    asyncio.run(run())


def test_columns_that_come_later_are_read(own_postgres, monkeypatch):
    monkeypatch.setattr("fieldwise.serving.stores.postgres.FRESH_S", 0.0)

    async def run():
        with own_postgres.client() as client:
            people(client)
            store = open_store(own_postgres.url("people"), "user", "people")
            await store.open()
            assert await store.get(["u1"], ["paid", "more"]) == [{"user": "u1", "paid": "1"}]
            client.execute("ALTER TABLE people ADD COLUMN more int DEFAULT 5")
            assert await store.get(["u1"], ["paid", "more"]) == [{"user": "u1", "paid": "1", "more": 5}]
            assert "more" in store.columns
            await store.close()

    asyncio.run(run())


@pytest.fixture
def rows_in_redis(own_redis, tmp_path):
    """Ten users in Redis; `write(user, text)` puts another text in the place of one's row."""
    frame = pl.DataFrame({"user": [f"u{n}" for n in range(10)], "paid": [1.0] * 10, "since": ["x"] * 10})
    frame.write_parquet(tmp_path / "users.parquet")
    load_table(SlicedTable(tmp_path / "users.parquet"), open_store(own_redis.url("users"), "user"))
    return lambda user, text: own_redis.client().hset("users", user, text)


@pytest.mark.parametrize("text", UNREADABLE_ROWS)
def test_a_row_that_cannot_be_read_is_its_users_alone(service, own_redis, rows_in_redis, text):
    rows_in_redis("u3", text)
    result, state, _ = answers(service, own_redis.url("users"), ASKS)
    assert [one.status_code for one in result] == [503 if n % 10 == 3 else 200 for n in range(40)]
    assert state == "ok"
    result, _, _ = answers(service, own_redis.url("users"), ASKS, "degrade")
    assert {one.status_code for one in result} == {200}
    assert result[3].json()["degraded"][0]["reason"] == "damaged"


@pytest.mark.parametrize(
    "manifest",
    ['{"format": 1, "column": "user", "columns": []}', '{"format": 2, "column": "user", "columns": 5}', DEEP, "[]"],
)
def test_a_manifest_that_cannot_be_read_is_a_503_and_no_pause(service, own_redis, rows_in_redis, manifest):
    async def run():
        store = open_store(own_redis.url("users"), "user", "users")
        users = Lookup("users", store, timeout=120)
        await store.open()
        whole = own_redis.client().hget("users", "")
        rows_in_redis("", manifest)
        for _ in range(5):
            with pytest.raises(StoreError) as caught:
                await users.get(["u1"])
            assert caught.value.reason == "damaged"
        rows_in_redis("", whole)
        assert (await users.get(["u1"]))[0]["paid"] == 1.0, "at once"
        await store.close()

    asyncio.run(run())
    rows_in_redis("", manifest)
    with pytest.raises(ConfigError, match="was not written by this version"):
        answers(service, own_redis.url("users"), ASKS)


def panic():
    return pl.Series("", [Decimal("NaN")])


def overflow():
    return json.loads(DEEP)


@pytest.mark.parametrize("fault", [panic, overflow, lambda: 1 / 0])
def test_whatever_a_store_raises_is_no_outage(fault):
    class Lying(TableStore):
        kind = "lying"

        async def get(self, ids, columns=None):
            return fault() if "u3" in ids else await super().get(ids, columns)

    async def run():
        users = Lookup("users", Lying("user", pl.DataFrame({"user": ["u1"], "paid": [1]})), timeout=120)
        for _ in range(5):
            assert await users.get(["u3"], ["paid"]) == [UNREADABLE]
        assert await users.get(["u1"]) == [{"user": "u1", "paid": 1}]

    asyncio.run(run())


@pytest.mark.parametrize("fault", [panic, overflow, lambda: 1 / 0])
def test_whatever_is_raised_is_an_answer_in_the_one_form_and_the_requests_beside_it_are_answered(service, fault):
    """The fault of one request of a batch, on reading it and on scoring it; the worker goes on."""
    whole = service.predict_all

    def predict_all(requests):
        time.sleep(0.05)  # until the others wait together
        if any(rows[0]["user"] == "bad" for rows in requests):
            fault()
        return whole(requests)

    service.predict_all = predict_all
    try:
        app = patient_app(service)

        async def run():
            async with talking(app) as client:
                row = {"paid": 1, "since": "x"}
                users = ["u1", "u2", "bad", "u1", "u2"]
                calls = (client.post("/v1/predict", json={"rows": [{**row, "user": user}]}) for user in users)
                return await asyncio.gather(*calls)

        result = asyncio.run(run())
    finally:
        del service.predict_all
    assert [one.status_code for one in result] == [200, 200, 500, 200, 200]
    assert result[2].json()["error"]["field"] == "server"
    assert "Traceback" not in result[2].text


def test_a_row_whose_reading_panics_is_that_requests_alone(service, monkeypatch):
    from fieldwise.serving import service as module

    whole = module.frame_of
    monkeypatch.setattr(module, "frame_of", lambda rows, fields: panic() if "bad" in rows[0] else whole(rows, fields))
    row = {"user": "u1", "paid": 1, "since": "x"}
    good, bad = service.predict_all([[row], [{"bad": 1}]])
    assert good[0].keys() == {"score", "prediction"}
    assert isinstance(bad, pl.exceptions.PanicException)

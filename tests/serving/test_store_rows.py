"""A row of a store that cannot be read is that row's alone: no other request fails, and the store is not left alone."""

import asyncio
import json
import time
from decimal import Decimal

import polars as pl
import pytest
from serving.asgi import patient_app, talking

from fieldwise import FM, Categorical, ConfigError, Label, Numeric, Schema
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.serving.service import Service
from fieldwise.serving.stores import (
    UNREADABLE,
    Lookup,
    StoreError,
    Stores,
    TableStore,
    load_table,
    open_store,
)

DEEP = "[" * 100_000
UNREADABLE_ROWS = (
    "[]",
    "{",
    '"x"',
    DEEP,
    f'{{"paid": {DEEP}',
    '{"paid": [[1]]}',
    '{"paid": 1e999}',
    "\0",
)
SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Numeric("paid", role="user"),
        Categorical("since", role="user"),
    ),
    label=Label("click"),
)


@pytest.fixture(scope="module")
def service():
    import torch

    from fieldwise import Bundle, Encoder
    from fieldwise.models.build import build_network

    rows = pl.DataFrame(
        {"user": ["u1", "u2"], "paid": [1.0, 2.0], "since": ["2026-01-02", "x"], "click": [0, 1]}
    )
    encoder = Encoder.fit(rows, SCHEMA)
    settings = FM(embedding_dim=2)
    with torch.random.fork_rng(devices=[]):
        network = build_network(settings, encoder.layout, 0, labels=1).eval()
    return Service(Bundle(SCHEMA, encoder, settings, network, rows.drop("click")))


ASKS = [[{"user": f"u{n % 10}"}] for n in range(20)]


def answers(service, url, asks=ASKS, policy="refuse", timeout=120):
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


def only_refused(service, url, bad, **more):
    """Check that requests for these users alone are refused, and that the store counts as well; gives all answers."""
    result, state, metrics = answers(service, url, **more)
    assert [one.status_code for one in result] == [
        503 if f"u{n % 10}" in bad else 200 for n in range(20)
    ]
    assert state == "ok"
    return result, metrics


def people(client, paid="paid", since="since", changed=None):
    """A table of ten users in PostgreSQL with other values of some users, and a view of it with other expressions.

    `unread` is a column that no model reads.
    """
    client.execute("DROP VIEW IF EXISTS divided; DROP TABLE IF EXISTS people")
    client.execute(
        'CREATE TABLE people ("user" text PRIMARY KEY, paid numeric, since timestamp, unread timestamp)'
    )
    client.execute(
        "INSERT INTO people SELECT 'u' || n, n, '2026-01-02', 'infinity' FROM generate_series(0, 9) n"
    )
    for user, (column, value) in (changed or {}).items():
        client.execute(f"UPDATE people SET {column} = '{value}' WHERE \"user\" = '{user}'")
    client.execute(
        f'CREATE VIEW divided AS SELECT "user", {paid} AS paid, {since} AS since FROM people'
    )


def test_columns_that_no_model_reads_are_not_queried(service, postgres):
    with postgres.client() as client:
        people(client)
        only_refused(service, postgres.url("people"), ())
        client.execute("ALTER TABLE people DROP COLUMN unread")
        only_refused(service, postgres.url("people"), ())


def test_unreadable_values_affect_only_their_users(service, postgres):
    bad = {"u3": ("since", "infinity"), "u4": ("since", "0044-03-15 BC")}
    bad |= {"u5": ("paid", "Infinity"), "u6": ("paid", "1e90")}
    with postgres.client() as client:
        people(client, changed=bad | {"u7": ("paid", "NaN")})
    result, metrics = only_refused(service, postgres.url("people"), bad)
    assert result[3].json()["error"]["field"] == "rows[0].user"
    assert result[3].headers["retry-after"] == "1"
    assert 'fieldwise_store_refused_total{reason="damaged",store="users"} 8.0' in metrics
    result, _, metrics = answers(service, postgres.url("people"), policy="degrade")
    assert {one.status_code for one in result} == {200}
    for number, one in enumerate(result):
        missing = [(m["ids"], m["columns"], m["reason"]) for m in one.json()["degraded"]]
        name = f"u{number % 10}"
        assert missing == ([([name], ["paid", "since"], "damaged")] if name in bad else [])
    assert 'fieldwise_degraded_total{reason="damaged",store="users"} 8.0' in metrics


# and what the store itself acts upon
STATES = ("08006", "22012", "42501", "42703", "42P01", "57014", "XX000")


def test_rows_at_which_a_query_fails_affect_only_their_users(service, postgres):
    """A view whose function raises another error at each of some rows, and returns a text that is too long for one."""
    cases = " ".join(
        f"IF id = 'u{n}' THEN RAISE EXCEPTION 'bad' USING ERRCODE = '{state}'; END IF;"
        for n, state in enumerate(STATES)
    )
    with postgres.client() as client:
        client.execute(f"""CREATE OR REPLACE FUNCTION checked(id text, paid numeric) RETURNS numeric AS $$ BEGIN
            {cases} RETURN paid; END $$ LANGUAGE plpgsql""")
        long = "CASE WHEN paid = 8 THEN repeat('x', 1048577) ELSE 'x' END"
        people(client, 'checked("user", paid)', long)
    only_refused(service, postgres.url("divided"), {*(f"u{n}" for n in range(len(STATES))), "u8"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("paid", "since"),
    [
        ("CASE WHEN paid = 3 THEN length(pg_sleep(600)::text) ELSE paid END", "since"),
        ("paid", "CASE WHEN paid = 3 THEN repeat('x', paid::int * 66666666) ELSE 'x' END"),
    ],
)
def test_a_slow_or_huge_row_affects_only_its_user(service, postgres, paid, since):
    with postgres.client() as client:
        people(client, paid, since)
    only_refused(service, postgres.url("divided"), ["u3"], timeout=3)


def test_ids_whose_rows_fail_are_quarantined(postgres, monkeypatch):
    """Queries fail at twenty of 28 rows: they are found by single queries once, and retried a few at a time."""
    with postgres.client() as client:
        client.execute("DROP VIEW IF EXISTS divided; DROP TABLE IF EXISTS people")
        client.execute(
            "CREATE TABLE people AS SELECT 'u' || n AS \"user\", n FROM generate_series(0, 27) n"
        )
        client.execute(
            'CREATE VIEW divided AS SELECT "user", 1 / greatest(n - 19, 0) AS part FROM people'
        )
    ids, queries = [f"u{n}" for n in range(28)], []
    monkeypatch.setattr("fieldwise.serving.stores.lookup.QUARANTINE_S", 600.0)

    async def run():
        store = open_store(postgres.url("divided"), "user", "people")
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
        assert {one for asked in queries if len(asked) == 1 for one in asked} == {
            "u0",
            "u1",
            "u2",
            "u3",
        }
        with postgres.client() as client:
            client.execute("UPDATE people SET n = 20")
        users._quarantine = dict.fromkeys(users._quarantine, 0.0)
        assert [await told() for _ in range(6)] == [16, 12, 8, 4, 0, 0]
        await store.close()

    asyncio.run(run())


def test_columns_that_come_later_are_read(postgres, monkeypatch):
    monkeypatch.setattr("fieldwise.serving.stores.postgres.FRESH_S", 0.0)

    async def run():
        with postgres.client() as client:
            people(client)
            store = open_store(postgres.url("people"), "user", "people")
            await store.open()
            assert await store.get(["u1"], ["paid", "more"]) == [{"user": "u1", "paid": "1"}]
            client.execute("ALTER TABLE people ADD COLUMN more int DEFAULT 5")
            assert await store.get(["u1"], ["paid", "more"]) == [
                {"user": "u1", "paid": "1", "more": 5}
            ]
            assert "more" in store.columns
            await store.close()

    asyncio.run(run())


@pytest.fixture
def rows_in_redis(redis, tmp_path):
    """Ten users in Redis; `write(user, text)` puts another text in the place of one's row."""
    frame = pl.DataFrame(
        {"user": [f"u{n}" for n in range(10)], "paid": [1.0] * 10, "since": ["x"] * 10}
    )
    frame.write_parquet(tmp_path / "users.parquet")
    load_table(SlicedTable(tmp_path / "users.parquet"), open_store(redis.url("guarded"), "user"))
    return lambda user, text: redis.client().hset("guarded", user, text)


def test_unreadable_rows_of_redis_affect_only_their_users(service, redis, rows_in_redis):
    bad = {f"u{number}": text for number, text in enumerate(UNREADABLE_ROWS)}
    for user, text in bad.items():
        rows_in_redis(user, text)
    rows_in_redis("u9", '{"paid": NaN, "since": NaN}')  # no number is null
    only_refused(service, redis.url("guarded"), bad)
    result, _, _ = answers(service, redis.url("guarded"), policy="degrade")
    assert {one.status_code for one in result} == {200}
    assert [bool(one.json()["degraded"]) for one in result] == [
        f"u{n % 10}" in bad for n in range(20)
    ]
    assert result[3].json()["degraded"][0]["reason"] == "damaged"


@pytest.mark.parametrize(
    "manifest",
    [
        '{"format": 1, "column": "user", "columns": []}',
        '{"format": 2, "column": "user", "columns": 5}',
        DEEP,
        "[]",
    ],
)
def test_a_manifest_that_cannot_be_read_is_a_503_and_no_pause(
    service, redis, rows_in_redis, manifest
):
    async def run():
        store = open_store(redis.url("guarded"), "user", "guarded")
        users = Lookup("users", store, timeout=120)
        await store.open()
        whole = redis.client().hget("guarded", "")
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
        answers(service, redis.url("guarded"), ASKS)


def panic():
    return pl.Series("", [Decimal("NaN")])


FAULTS = [panic, lambda: json.loads(DEEP), lambda: 1 / 0]


@pytest.mark.parametrize("fault", FAULTS)
def test_any_exception_affects_only_its_request(service, fault, monkeypatch):
    """By a store: its row is unreadable, and the store is not paused; by a bundle: 500 for one request of a batch."""

    class Lying(TableStore):
        kind = "lying"

        async def get(self, ids, columns=None):
            return fault() if "u3" in ids else await super().get(ids, columns)

    async def run():
        users = Lookup(
            "users", Lying("user", pl.DataFrame({"user": ["u1"], "paid": [1]})), timeout=120
        )
        for _ in range(5):
            assert await users.get(["u3"], ["paid"]) == [UNREADABLE]
        assert await users.get(["u1"]) == [{"user": "u1", "paid": 1}]
        async with talking(patient_app(service)) as client:
            rows = (
                [{"paid": 1, "since": "x", "user": user}]
                for user in ("u1", "u2", "bad", "u1", "u2")
            )
            return await asyncio.gather(
                *(client.post("/v1/predict", json={"rows": one}) for one in rows)
            )

    whole = service.predict_all

    def predict_all(requests):
        time.sleep(0.05)  # until the others wait together
        return fault() if any(rows[0]["user"] == "bad" for rows in requests) else whole(requests)

    monkeypatch.setattr(service, "predict_all", predict_all, raising=False)
    result = asyncio.run(run())
    assert [one.status_code for one in result] == [200, 200, 500, 200, 200]
    assert result[2].json()["error"]["field"] == "server"
    assert "Traceback" not in result[2].text


def test_a_panic_while_a_row_is_read_affects_only_its_request(service, monkeypatch):
    from fieldwise.serving import service as module

    whole = module.request_frame

    def request_frame(rows, fields, **marks):
        return panic() if "bad" in rows[0] else whole(rows, fields, **marks)

    monkeypatch.setattr(module, "request_frame", request_frame)
    good, bad = service.predict_all([[{"user": "u1", "paid": 1, "since": "x"}], [{"bad": 1}]])
    assert good[0].keys() == {"score", "prediction"}
    assert isinstance(bad, pl.exceptions.PanicException)


ODD_NUMBERS = (Decimal("sNaN"), 10**400, "2026-13-45", b"1", {}, [[1]])


@pytest.mark.parametrize("fault", [False, True], ids=["values", "fault"])
def test_values_that_a_field_does_not_take_are_taken_as_null_but_no_fault_is(
    service, fault, monkeypatch
):
    """A fault of the code that reads them is no damage of the store: the request is answered by 500."""

    class Odd(TableStore):
        kind = "odd"

        async def get(self, ids, columns=None):
            return [
                {"user": name, "paid": ODD_NUMBERS[int(name[1:])], "since": "x"} for name in ids
            ]

    async def run():
        store = Odd("user", pl.DataFrame({"user": ["u1"], "paid": [1], "since": ["x"]}))
        stores = Stores(users=Lookup("users", store, timeout=120), on_failure="degrade")
        async with talking(patient_app(service, stores)) as client:
            calls = (
                client.post("/v1/predict", json={"rows": [{"user": f"u{n}"}]})
                for n in range(len(ODD_NUMBERS))
            )
            return await asyncio.gather(*calls)

    def broken(*values, **marks):
        raise AttributeError("a fault of the code")

    if fault:
        monkeypatch.setattr("fieldwise.serving.stores.enrich.values_of", broken)
    for answer in asyncio.run(run()):
        if fault:
            assert answer.status_code == 500
        else:
            missing = [(m["columns"], m["reason"]) for m in answer.json()["degraded"]]
            assert (answer.status_code, missing) == (200, [(["paid"], "damaged")])

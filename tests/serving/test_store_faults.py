"""Stores that are slow, gone and back again: every answer in time, and whole, refused, or saying what is missing."""

import asyncio
import contextlib
import re
from contextlib import asynccontextmanager

import polars as pl
import pytest
from serving.asgi import patient_app, talking
from serving.servers import PASSWORD, QUOTED, postgres_server, redis_server

from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.serving.service import Service
from fieldwise.serving.stores import Lookup, StoreError, Stores, TableStore, load_table, open_store

TIMEOUT = 0.3  # of a lookup: long enough for a machine that does other work too
# seconds after which an answer that waits for a hanging store is given up: it would never come
HANGS = 120
USERS = pl.DataFrame(
    {"user": [f"u{k}" for k in range(60)], "history": [f"i{k % 9}|i{k % 7}" for k in range(60)]}
)
ASK = {"user": "u3", "context": {"device": "tv"}, "k": 5}

own_redis = pytest.fixture(scope="module")(redis_server)
own_postgres = pytest.fixture(scope="module")(postgres_server)


@pytest.fixture(scope="module")
def service(ranker, cascade):
    return Service(ranker, cascade)


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "users.parquet"
    USERS.write_parquet(path)
    return path


@pytest.fixture(params=["own_redis", pytest.param("own_postgres", marks=pytest.mark.slow)])
def own(request, users):
    """Each server in turn, running, with the users."""
    running = request.getfixturevalue(request.param)
    load_table(SlicedTable(users), open_store(running.url("users"), "user"))
    yield running
    if running.process.poll() is None:
        running.resume()
    else:
        running.start()


@asynccontextmanager
async def asking(service, stores):
    app = patient_app(service, stores)
    async with app.router.lifespan_context(app), talking(app) as client:
        yield client


async def in_time(client, body=ASK):
    """An answer that waits for no hanging store; how soon it comes depends on the machine."""
    answer = await asyncio.wait_for(client.post("/v1/recommend", json=body), HANGS)
    assert answer.status_code in (200, 503), answer.text
    return answer


async def until_whole(client):
    """The first answer with all fields."""
    async with asyncio.timeout(300):
        while True:
            answer = await in_time(client)
            if answer.status_code == 200 and not answer.json()["degraded"]:
                return answer
            await asyncio.sleep(0.05)


def same(answer, other):
    """Whether two answers recommend the same: requests that are answered together differ in the last bit."""
    first, second = (
        {item["id"]: item["prediction"] for item in one.json()["items"]} for one in (answer, other)
    )
    return first == pytest.approx(second, rel=1e-5)


def sample(text, name, **labels):
    """The sum of a metric's samples with these labels."""
    result = re.findall(rf"^{name}{{(.*)}} (.+)$", text, re.M)
    return sum(
        float(value)
        for given, value in result
        if all(f'{k}="{v}"' in given for k, v in labels.items())
    )


@pytest.mark.parametrize(
    ("own", "fault"),
    [
        ("own_redis", "gone"),
        pytest.param("own_redis", "slow", marks=pytest.mark.slow),
        pytest.param("own_postgres", "gone", marks=pytest.mark.slow),
        pytest.param("own_postgres", "slow", marks=pytest.mark.slow),
    ],
    indirect=["own"],
)
def test_a_store_that_fails_and_comes_back(own, users, service, fault):
    """Two servers over one store: one degrades its answers, one refuses; twelve clients at once get what one gets."""
    by_hand = {"context": {"user": "u3", "history": "i3|i3", "device": "tv"}, "k": 5}

    async def run():
        url = own.url("users")
        degrading, refusing = (
            asking(
                service,
                Stores(
                    users=Lookup("users", open_store(url, "user"), timeout=TIMEOUT),
                    on_failure=policy,
                ),
            )
            for policy in ("degrade", "refuse")
        )
        async with degrading as degrades, refusing as refuses:
            # else no connection to a paused server is ever closed
            with contextlib.ExitStack() as paused:
                whole = await in_time(refuses, body=by_hand)
                for client in (degrades, refuses):
                    assert same(await until_whole(client), whole)
                if fault == "slow":
                    own.pause()
                    paused.callback(own.resume)
                else:
                    own.kill()
                failed = [
                    [await in_time(client) for _ in range(4)] for client in (degrades, refuses)
                ]
                for client, answers in zip((degrades, refuses), failed, strict=True):
                    answers += await asyncio.gather(*(in_time(client) for _ in range(12)))
                    assert same(await in_time(client, body=by_hand), whole), "asks no store"
                    assert (await client.get("/readyz")).json()["stores"]["users"]["state"] in (
                        "slow",
                        "gone",
                    )
                nothing = {"context": {"user": "u3", "history": None, "device": "tv"}, "k": 5}
                nothing = await in_time(degrades, body=nothing)
                for answer in failed[0]:
                    assert answer.status_code == 200, answer.text
                    (missing,) = answer.json()["degraded"]
                    assert missing["reason"] in ("slow", "gone", "paused")
                    assert (missing["store"], missing["ids"], missing["columns"]) == (
                        "users",
                        ["u3"],
                        ["history"],
                    )
                    assert same(answer, nothing)
                for answer in failed[1]:
                    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                    assert answer.json()["error"]["field"] == "user"
                    assert "the users' store" in answer.json()["error"]["message"]
                if fault == "slow":
                    own.resume()
                else:
                    own.start()
                    load_table(SlicedTable(users), open_store(url, "user"))
                for client in (degrades, refuses):
                    assert same(await until_whole(client), whole)
                    many = await asyncio.gather(*(until_whole(client) for _ in range(12)))
                    assert all(same(answer, whole) for answer in many)
                    ready = (await client.get("/readyz")).json()["stores"]
                    assert ready == {"users": {"kind": own.kind, "state": "ok"}}
                    metrics = (await client.get("/metrics")).text
                    assert sample(metrics, "fieldwise_store_failures_total", store="users") >= 4
                    assert sample(metrics, "fieldwise_store_seconds_count", store="users") > 4
                    degraded = sample(metrics, "fieldwise_degraded_total", store="users")
                    assert degraded >= 16 if client is degrades else degraded == 0
                for answer in (*failed[0], *failed[1]):
                    assert PASSWORD not in answer.text
                    assert QUOTED not in answer.text

    asyncio.run(run())


def test_no_lookup_waits_while_a_store_is_paused(own, monkeypatch):
    """Of 20 lookups in a row, three wait for the limit; the others are not sent until the pause is over."""
    monkeypatch.setattr("fieldwise.serving.stores.lookup.PAUSE_S", 600.0)

    async def run():
        lookup = Lookup("users", open_store(own.url("users"), "user", "users"), timeout=TIMEOUT)
        await lookup.store.open()
        own.pause()
        reasons = []
        for _ in range(20):
            try:
                await lookup.get(["u1"], ["history"])
            except StoreError as e:
                reasons.append(e.reason)
        # a server stops although its store hangs
        await asyncio.wait_for(lookup.store.close(), HANGS)
        own.resume()
        assert reasons == ["slow"] * 3 + ["paused"] * 17

    asyncio.run(run())


def test_connections_that_lead_nowhere_are_given_up(own):
    """As when a firewall forgets them: what is sent vanishes, no error comes, and new connections work."""

    async def run():
        connections, tasks, writers = [], set(), []

        async def forward(source, target, alive):
            while data := await source.read(65536):
                if alive.is_set():
                    target.write(data)
            if alive.is_set():
                target.close()

        async def accept(reader, writer):
            alive = asyncio.Event()
            alive.set()
            connections.append(alive)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", own.port)
            writers.extend((writer, far_writer))
            tasks.add(asyncio.create_task(forward(reader, far_writer, alive)))
            tasks.add(asyncio.create_task(forward(far_reader, writer, alive)))

        proxy = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = proxy.sockets[0].getsockname()[1]
        store = open_store(own.url("users").replace(f":{own.port}/", f":{port}/"), "user", "users")
        lookup = Lookup("users", store, timeout=HANGS)
        await lookup.store.open()
        for _ in range(8):
            await lookup.get(["u1"], ["history"])
        await asyncio.sleep(0.5)  # until the pool is full
        lookup.timeout = TIMEOUT
        for alive in connections:
            alive.clear()
        async with asyncio.timeout(300):
            row = None
            while row is None:
                with contextlib.suppress(StoreError):
                    (row,) = await lookup.get(["u1"], ["history"])
                await asyncio.sleep(0.05)
        assert row["history"] == USERS["history"][1]
        await lookup.store.close()
        proxy.close()
        for task in tasks:
            task.cancel()
        for writer in writers:
            writer.close()
        await asyncio.gather(
            *tasks, *(writer.wait_closed() for writer in writers), return_exceptions=True
        )

    asyncio.run(run())


def test_a_reader_never_sees_half_a_table(server, tmp_path):
    """While tables of sevens and of eights replace one another, every lookup gets a whole one."""
    ids = [f"u{k}" for k in range(300)]
    for value in (7, 8):
        more = {"more": [0] * 300} if value == 8 else {}
        pl.DataFrame({"user": ids, **more, "n": [value] * 300}).write_parquet(
            tmp_path / f"{value}.parquet"
        )
    halves = open_store(server.url("halves"), "user")
    load_table(SlicedTable(tmp_path / "7.parquet"), halves)

    async def run():
        store = open_store(server.url("halves"), "user", "halves")
        await store.open()

        async def write():
            for number in range(300):
                if number >= 6 and number % 2 == 0 and seen == {7, 8}:
                    break
                table = SlicedTable(tmp_path / f"{8 - number % 2}.parquet")
                await asyncio.to_thread(load_table, table, halves)

        seen, writing = set(), asyncio.create_task(write())
        while not writing.done():
            values = {row["n"] for row in await store.get(ids)}
            assert len(values) == 1
            seen |= values
        await writing
        assert seen == {7, 8}
        assert {row["n"] for row in await store.get(ids)} == {7}
        await store.close()

    asyncio.run(run())
    if server.kind == "redis":
        assert list(server.client().scan_iter("halves*")) == ["halves"]


def test_a_store_in_memory_never_fails(service):
    async def run():
        in_memory = Stores(users=Lookup("users", TableStore("user", USERS)))
        async with asking(service, in_memory) as client:
            assert (await in_time(client)).json()["degraded"] == []
            ready = (await client.get("/readyz")).json()["stores"]
            assert ready == {"users": {"kind": "memory", "state": "ok"}}
            document = (await client.get("/openapi.json")).json()["components"]["schemas"]
            for name in ("PredictResponse", "RecommendResponse", "ExplainResponse"):
                listed = document[name]["properties"]["degraded"]["items"]
                assert listed == {"$ref": "#/components/schemas/Missing"}
            assert document["Missing"]["properties"]["reason"]["enum"] == [
                "slow",
                "gone",
                "paused",
                "damaged",
                "stale",
            ]

    asyncio.run(run())

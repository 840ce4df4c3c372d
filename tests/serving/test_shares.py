"""While the server is busy, the address that takes most of it waits for the others; nobody waits otherwise."""

import asyncio
import json
import time

import httpx
import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from concurrent.futures import ThreadPoolExecutor

from serving.hostile import ROW
from serving.test_overload import HEADERS, slow_service

from fieldwise.serving import shares as module
from fieldwise.serving.batching import Batcher, BatchLimits
from fieldwise.serving.http import ServerSettings, create_app
from fieldwise.serving.service import Service
from fieldwise.serving.shares import VISIT, Shares, Visit, timed


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def entered(shares, *addresses):
    async def run():
        for address in addresses:
            await shares.enter(address)

    asyncio.run(run())


def test_one_address_never_waits():
    shares = Shares(clock=Clock())
    entered(shares, *["a"] * 100)
    shares.add("a", 1000.0)
    assert not shares.is_over("a")


def test_nobody_waits_while_the_server_is_not_busy():
    shares = Shares(clock=Clock())
    entered(shares, "a", "b")
    shares.add("a", 0.4)
    assert not shares.is_over("a")
    shares.add("a", 0.2)
    assert shares.is_over("a")
    assert not shares.is_over("b")


def test_equal_addresses_never_wait():
    shares = Shares(clock=Clock())
    entered(shares, "a", "b", "c")
    for address in "abc":
        shares.add(address, 0.9)
    assert not any(map(shares.is_over, "abc"))


def test_use_is_forgotten():
    clock = Clock()
    shares = Shares(clock=clock)
    entered(shares, "a", "b")
    shares.add("a", 3.0)
    assert shares.is_over("a")
    clock.now += 1.0
    assert shares.is_over("a"), "3 seconds are 1.1 after one, of which b has none"
    clock.now += 1.0
    assert not shares.is_over("a"), "less than half of the time is used"


def test_who_waits_goes_on_in_order_once_it_may_or_after_its_longest_wait():
    clock, order = Clock(), []
    shares = Shares(clock=clock)

    async def ask(name, most=None):
        await shares.enter("a", most=most)
        order.append(name)

    async def run():
        await shares.enter("b")
        shares.add("a", 5.0)
        tasks = [asyncio.create_task(ask(number)) for number in range(3)]
        await ask("impatient", most=0.03)
        cancelled = asyncio.create_task(ask("cancelled"))
        await asyncio.sleep(0.02)
        cancelled.cancel()
        assert order == ["impatient"]
        clock.now += 10
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert order == ["impatient", 0, 1, 2]
    assert shares._all.inside == 5


def test_addresses_that_are_gone_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MOST_ACCOUNTS", 10)
    clock = Clock()
    shares = Shares(clock=clock)
    for number in range(100):
        shares.add(f"a{number}", 0.1)
        clock.now += 10
    assert len(shares._accounts) <= 11


def test_the_time_of_a_coroutine_is_its_processor_time_and_it_can_be_cancelled():
    async def work():
        try:
            await asyncio.sleep(10)
        finally:
            end = time.thread_time() + 0.02
            while time.thread_time() < end:
                pass

    async def run():
        visit = Visit("a")
        VISIT.set(visit)
        task = asyncio.create_task(_await(timed(work())))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return visit.seconds

    assert 0.02 <= asyncio.run(run()) < 1


async def _await(one):
    return await one


def test_addresses_take_turns_in_a_batch():
    batches = []

    def run(asked):
        batches.append(list(asked))
        time.sleep(0.02)
        return asked

    async def ask(batcher, address, name):
        VISIT.set(Visit(address))
        return await batcher.ask(name)

    async def whole():
        with ThreadPoolExecutor(1) as worker:
            batcher = Batcher(worker, run, BatchLimits(most=3))
            names = ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "c0"]
            return await asyncio.gather(*(ask(batcher, name[0], name) for name in names)), names

    found, names = asyncio.run(whole())
    assert found == names
    assert batches == [["a0", "b0", "c0"], ["a1", "b1", "a2"], ["a3", "a4"]]


def test_fifty_connections_of_one_client_leave_eight_others_their_rate(ranker):
    """All ask for the same, 5 ms of the model's thread each."""
    app = create_app(slow_service(ranker, 0.005), ServerSettings(timeout=20))

    async def ask(address, body):
        messages, status = [{"type": "http.request", "body": body, "more_body": False}], []

        async def receive():
            return messages.pop() if messages else await asyncio.Future()

        async def send(message):
            if message["type"] == "http.response.start":
                status.append(message["status"])

        scope = {"type": "http", "method": "POST", "path": "/v1/predict", "raw_path": b"/v1/predict"}
        scope |= {"query_string": b"", "root_path": "", "scheme": "http", "http_version": "1.1", "headers": HEADERS}
        await app({**scope, "server": ("s", 80), "client": (address, 1), "asgi": {"version": "3.0"}}, receive, send)
        return status[0]

    async def keep_asking(address, until, answered):
        body = json.dumps({"rows": [ROW]}).encode()
        while time.perf_counter() < until:
            answered.append((address, await ask(address, body)))

    async def run():
        answered, until = [], time.perf_counter() + 3
        honest = [keep_asking(f"honest {number}", until, answered) for number in range(8)]
        await asyncio.gather(*honest, *(keep_asking("hostile", until, answered) for _ in range(50)))
        return answered

    answered = asyncio.run(run())
    assert {status for _, status in answered} == {200}
    hostile = sum(address == "hostile" for address, _ in answered)
    assert hostile < 0.35 * len(answered), "58 connections in the order of arrival would give it 86 %"


def test_requests_that_waited_are_counted_and_health_waits_little(ranker):
    app = create_app(Service(ranker))
    entered(app.state.shares, "another")
    app.state.shares.add("127.0.0.1", 100.0)

    async def run():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
            return await asking.get("/healthz")

    began = time.monotonic()
    assert asyncio.run(run()).status_code == 200
    assert 0.04 < time.monotonic() - began < 5
    assert app.state.registry.get_sample_value("fieldwise_requests_delayed_total") == 1

"""While the server is busy, the address that takes most of it waits for the others; nobody waits otherwise."""

import asyncio
import json
import time

import httpx
import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from concurrent.futures import ThreadPoolExecutor

from serving.asgi import post
from serving.hostile import ROW
from serving.test_overload import slow_service

from fieldwise.serving import shares as module
from fieldwise.serving.batching import Batcher, BatchLimits
from fieldwise.serving.http import ServerSettings, create_app
from fieldwise.serving.rows import RequestError
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


def test_a_turn_that_is_passed_over_while_its_wait_ends_begins_once():
    clock = Clock()
    shares = Shares(clock=clock)

    def forget_and_let_in():
        clock.now += 1000
        shares._let_in()

    async def run():
        await shares.enter("b")
        shares.add("a", 5.0)
        asyncio.get_running_loop().call_soon(forget_and_let_in)  # the wait is over then
        await shares.enter("a", most=0)

    asyncio.run(run())
    assert shares._all.inside == 2


def test_expensive_requests_of_one_address_do_not_pile_up():
    """Fifty of 70 ms at once, before any other address comes: five begin, the others wait in order."""
    clock, begun = Clock(), []
    shares = Shares(clock=clock)

    async def ask(number):
        begun.append((number, await shares.enter("a", least=0.07)))

    async def run():
        tasks = [asyncio.create_task(ask(number)) for number in range(50)]
        await asyncio.sleep(0.05)
        assert [number for number, _ in begun] == [0, 1, 2, 3, 4]
        assert await shares.enter("b") > 0, "another address begins at once"
        shares.leave("b", 0.001, 0.001)
        assert await shares.enter("a") > 0, "and a cheap request of the same one, such as for the server's health"
        shares.leave("a", 0.001, 0.001)
        for _, counted in list(begun)[:2]:
            shares.leave("a", counted, 0.07)
        await asyncio.sleep(0.05)
        clock.now += 10  # what was used is forgotten
        await asyncio.sleep(0.05)
        assert [number for number, _ in begun] == [0, 1, 2, 3, 4, 5, 6]
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, counted in begun[2:]:
            shares.leave("a", counted, 0.07)

    asyncio.run(run())
    assert shares._all.inside == 0
    assert shares._all.pending == 0


def test_many_cheap_requests_of_one_address_begin_at_once():
    shares = Shares(clock=Clock())
    entered(shares, *["a"] * 1000)
    assert shares._all.inside == 1000


def test_a_server_whose_loop_is_late_is_busy_however_little_it_computes():
    """Other programs take the processor: the server's own use stays small."""

    async def run():
        shares = Shares()
        await shares.enter("a")
        await shares.enter("b")
        shares.add("a", 0.2)
        assert not shares.is_over("a")
        for _ in range(20):
            time.sleep(0.06)
            await asyncio.sleep(0.001)
        assert shares.is_over("a")
        assert not shares.is_over("b")
        shares.leave("a", 0, 0)
        shares.leave("b", 0, 0)
        await asyncio.sleep(0.05)
        assert not shares.is_over("a"), "nothing is answered any more"

    asyncio.run(run())


def test_addresses_that_are_gone_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "MOST_ACCOUNTS", 10)
    clock = Clock()
    shares = Shares(clock=clock)
    for number in range(100):
        shares.add(f"a{number}", 0.1)
        clock.now += 10
    assert len(shares._accounts) <= 11


def test_the_time_of_a_coroutine_is_that_of_its_steps_and_it_can_be_cancelled():
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


def test_a_route_in_a_thread_is_charged_to_who_asks(ranker):
    """Searches of items run beside the event loop."""
    service = Service(ranker)
    app = create_app(service)

    def browser(_):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        raise RequestError("none", "server", 404)

    service.browser = browser

    async def run():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://server") as asking:
            return await asking.get("/v1/items?search=e")

    taken = []
    app.state.shares.leave = lambda address, _, seconds: taken.append((address, seconds))
    assert asyncio.run(run()).status_code == 404
    assert [address for address, _ in taken] == ["127.0.0.1"]
    assert taken[0][1] >= 0.05


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

    async def keep_asking(address, until, answered):
        body = json.dumps({"rows": [ROW]}).encode()
        while time.perf_counter() < until:
            answered.append((address, await post(app, "/v1/predict", body, client=(address, 1))))

    async def run():
        answered, until = [], time.perf_counter() + 3
        honest = [keep_asking(f"honest {number}", until, answered) for number in range(8)]
        await asyncio.gather(*honest, *(keep_asking("hostile", until, answered) for _ in range(50)))
        return answered

    answered = asyncio.run(run())
    assert {status for _, status in answered} == {200}
    hostile = sum(address == "hostile" for address, _ in answered)
    assert hostile < 0.6 * len(answered), "58 connections in the order of arrival would give it 86 %"


def test_requests_that_waited_are_counted_and_health_waits_little(ranker):
    app = create_app(Service(ranker))
    entered(app.state.shares, "another")
    app.state.shares.add("127.0.0.1", 1e40)  # more than decays within the test

    async def run():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as asking:
            return await asking.get("/healthz")

    assert asyncio.run(run()).status_code == 200
    assert app.state.registry.get_sample_value("fieldwise_requests_delayed_total") == 1

"""What waits for the worker is answered together, each to its own asker."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fieldwise.serving.batching import Batcher
from fieldwise.serving.rows import RequestError


class Recorder:
    """Doubles numbers, remembers its batches, and can be held."""

    def __init__(self):
        self.batches, self.go, self.began = [], threading.Event(), threading.Event()
        self.go.set()

    def __call__(self, asked):
        self.began.set()
        self.go.wait(60)
        self.batches.append(list(asked))
        return [ValueError(f"odd {x}") if x % 2 else 2 * x for x in asked]


def run(scenario, *, cost=lambda _: 0, **limits):
    recorder = Recorder()

    async def whole():
        with ThreadPoolExecutor(1) as worker:
            await scenario(Batcher(worker, recorder, cost=cost, **limits), recorder)

    asyncio.run(whole())
    return recorder.batches


async def held(batcher, recorder, numbers):
    """One request that keeps the worker, and the others behind it."""
    recorder.go.clear()
    recorder.began.clear()
    tasks = [asyncio.create_task(batcher.ask(x)) for x in numbers[:1]]
    await begun(recorder)
    tasks += [asyncio.create_task(batcher.ask(x)) for x in numbers[1:]]
    await asyncio.sleep(0.02)
    return tasks


async def begun(recorder):
    """Wait until the worker has begun its batch."""
    while not recorder.began.is_set():
        await asyncio.sleep(0.001)


def test_what_came_meanwhile_is_the_next_batch():
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, [0, 2, 4, 6, 8, 10])
        recorder.go.set()
        assert await asyncio.gather(*tasks) == [0, 4, 8, 12, 16, 20]

    assert run(scenario, most=3) == [[0], [2, 4, 6], [8, 10]]


@pytest.fixture
def patient(monkeypatch):
    """A moment is long enough for a machine that does other work."""
    monkeypatch.setattr("fieldwise.serving.batching.GAP", 60)
    monkeypatch.setattr("fieldwise.serving.batching.PART", 6000)


@pytest.mark.usefixtures("patient")
def test_those_who_were_just_answered_are_awaited_for_a_moment():
    """Four ask again, two of them a little later: a lone request would take as long as all of them."""

    async def scenario(batcher, recorder):
        async def ask(first, late, times=2):
            for number in range(times):
                await batcher.ask(first + 10 * number)
                for _ in range(late):
                    await asyncio.sleep(0)

        recorder.go.clear()
        first = asyncio.create_task(ask(0, 0, times=3))
        await begun(recorder)
        tasks = [asyncio.create_task(ask(*one)) for one in ((2, 0), (4, 2), (6, 2))]
        await asyncio.sleep(0.02)
        recorder.go.set()
        await asyncio.gather(first, *tasks)

    batches = run(scenario)
    assert [sorted(batch) for batch in batches] == [[0], [2, 4, 6, 10], [12, 14, 16, 20]]


@pytest.mark.usefixtures("patient")
def test_those_who_take_turns_become_one_batch():
    """Who asks again some turns of the loop later joins those who wait, instead of waiting for them in turn."""

    async def scenario(batcher, recorder):
        def slow(asked):
            time.sleep(0.1)
            return recorder(asked)

        batcher.run = slow

        async def turns():
            for _ in range(20):
                await asyncio.sleep(0)

        async def ask(first, times):
            for number in range(times):
                await batcher.ask(first + 10 * number)
                await turns()

        recorder.go.clear()
        early = asyncio.create_task(ask(0, 4))
        await begun(recorder)
        others = [asyncio.create_task(ask(one, 3)) for one in (2, 4, 6)]
        await turns()
        recorder.go.set()
        await asyncio.gather(early, *others)

    batches = run(scenario)
    assert [sorted(batch) for batch in batches] == [[0], [2, 4, 6, 10], [12, 14, 16, 20], [22, 24, 26, 30]]


def test_who_waits_is_answered_though_nobody_asks_again():
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, [0, 2])
        recorder.go.set()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == [0, 4]

    assert run(scenario) == [[0], [2]]


def test_nobody_is_awaited_for_long():
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, [0, 2, 4, 6])
        recorder.go.set()
        await asyncio.gather(*tasks)
        assert await asyncio.wait_for(batcher.ask(8), 60) == 16

    assert run(scenario) == [[0], [2, 4, 6], [8]]


def test_an_error_is_its_askers_alone():
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, [0, 2, 3, 4])
        recorder.go.set()
        result = await asyncio.gather(*tasks, return_exceptions=True)
        assert [result[0], result[1], result[3]] == [0, 4, 8]
        assert str(result[2]) == "odd 3"

    assert run(scenario) == [[0], [2, 3, 4]]


def test_a_fault_is_everyones_and_the_next_batch_is_answered():
    async def scenario(batcher, recorder):
        batcher.run = lambda _: 1 / 0
        assert all(
            isinstance(e, ZeroDivisionError)
            for e in await asyncio.gather(batcher.ask(2), batcher.ask(4), return_exceptions=True)
        )
        batcher.run = recorder
        assert await batcher.ask(2) == 4

    run(scenario)


def test_who_has_gone_is_left_out():
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, [0, 2, 4])
        tasks[1].cancel()
        recorder.go.set()
        assert (await asyncio.gather(*tasks, return_exceptions=True))[2] == 8

    assert run(scenario) == [[0], [4]]


def test_only_so_many_wait():
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, [0, 2, 4])
        with pytest.raises(RequestError, match="the queue is full"):
            await batcher.ask(6)
        recorder.go.set()
        assert await asyncio.gather(*tasks) == [0, 4, 8]
        assert await batcher.ask(6) == 12

    run(scenario, waiting=2)


def test_a_batch_is_bounded_by_its_work():
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, [0, 2, 4, 6, 100, 2])
        recorder.go.set()
        assert await asyncio.gather(*tasks) == [0, 4, 8, 12, 200, 4]

    assert run(scenario, cost=lambda x: x, budget=10) == [[0], [2, 4], [6], [100], [2]]

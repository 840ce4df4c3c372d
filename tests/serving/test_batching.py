"""Requests that wait for the worker are answered together, each by its own answer."""

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


def run(scenario, **limits):
    recorder = Recorder()

    async def whole():
        with ThreadPoolExecutor(1) as worker:
            await scenario(Batcher(worker, recorder, **limits), recorder)

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


@pytest.mark.parametrize(
    ("numbers", "limits", "batches"),
    [
        ([0, 2, 4, 6, 8, 10], {"most": 3}, [[0], [2, 4, 6], [8, 10]]),
        ([0, 2], {}, [[0], [2]]),
        ([0, 2, 3, 4], {}, [[0], [2, 3, 4]]),  # an error is one request's alone
        ([0, 2, 4, 6, 100, 2], {"cost": lambda x: x, "budget": 10}, [[0], [2, 4], [6], [100], [2]]),
    ],
)
def test_requests_that_arrive_during_a_batch_are_the_next_one(numbers, limits, batches):
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, numbers)
        recorder.go.set()
        result = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert [str(one) for one in result] == [
            f"odd {x}" if x % 2 else str(2 * x) for x in numbers
        ]
        assert await asyncio.wait_for(batcher.ask(8), 60) == 16, "nobody is awaited for long"

    assert run(scenario, **limits) == [*batches, [8]]


def test_clients_that_take_turns_become_one_batch(monkeypatch):
    """A client that asks again some turns of the loop later joins those who wait."""
    # enough for a machine that does other work
    monkeypatch.setattr("fieldwise.serving.batching.ARRIVAL_GAP_S", 60)
    monkeypatch.setattr("fieldwise.serving.batching.AWAITED_SHARE", 6000)

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
    assert [sorted(batch) for batch in batches] == [
        [0],
        [2, 4, 6, 10],
        [12, 14, 16, 20],
        [22, 24, 26, 30],
    ]


def test_an_error_of_a_whole_batch():
    async def scenario(batcher, recorder):
        batcher.run = lambda _: 1 / 0
        result = await asyncio.gather(batcher.ask(2), batcher.ask(4), return_exceptions=True)
        assert [type(one) for one in result] == [ZeroDivisionError] * 2
        batcher.run = recorder
        assert await batcher.ask(2) == 4

    run(scenario)


def test_a_full_queue_and_a_client_that_has_gone():
    async def scenario(batcher, recorder):
        tasks = await held(batcher, recorder, [0, 2, 4])
        with pytest.raises(RequestError, match="the queue is full"):
            await batcher.ask(6)
        tasks[1].cancel()
        recorder.go.set()
        assert (await asyncio.gather(*tasks, return_exceptions=True))[2] == 8
        assert await batcher.ask(6) == 12

    assert run(scenario, waiting=2) == [[0], [4], [6]]

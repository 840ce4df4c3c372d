"""More requests than can be answered: some are refused at once; explanations are computed between others."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from serving.asgi import patient_app, post
from serving.conftest import make
from serving.hostile import ROW

from fieldwise import AFM, AutoInt
from fieldwise.serving import batching, middleware, routes
from fieldwise.serving.service import Service


async def ask(app, path, body):
    """The status of an answer."""
    return await post(app, path, json.dumps(body).encode())


def test_past_capacity_some_are_answered_and_others_refused(ranker):
    """A hundred requests while the model works; an endless queue would refuse nobody."""
    slow, go = Service(ranker), threading.Event()
    slow.predict_all = lambda requests: go.wait(120) and [[{"score": 0.0}] for _ in requests]
    app = patient_app(slow, max_batch=4, max_waiting=24)

    async def run():
        asked = [asyncio.create_task(ask(app, "/v1/predict", {"rows": [ROW]})) for _ in range(100)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        go.set()
        return await asyncio.gather(*asked)

    assert set(asyncio.run(run())) == {200, 503}


def test_bodies_that_do_not_arrive_do_not_fill_the_queue(ranker):
    """Fifty clients send half a body each, and one a whole request."""
    app = patient_app(Service(ranker), max_waiting=8)

    async def run():
        halves = (
            post(app, "/v1/predict", b"{", client=("b", number), whole=False)
            for number in range(50)
        )
        waiting = [asyncio.create_task(half) for half in halves]
        await asyncio.sleep(0.05)  # until they wait for the rest
        result = await ask(app, "/v1/predict", {"rows": [ROW]})
        assert not any(half.done() for half in waiting)
        for half in waiting:
            half.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return result

    assert asyncio.run(run()) == 200


def test_the_parts_of_a_body_are_freed_before_it_is_answered():
    freed, answered = [], []

    class Part(bytes):
        def __del__(self):
            freed.append(bytes(self))

    async def application(scope, receive, send):
        answered.append((scope[middleware.BODY], sorted(freed)))

    async def ask():
        texts = [b"a", b"b", b"c"]

        async def receive():
            return {"type": "http.request", "body": Part(texts.pop(0)), "more_body": bool(texts)}

        async def send(message):
            pass

        scope = {"type": "http", "method": "POST", "path": "/v1/predict", "headers": []}
        await middleware.RequestMiddleware(application, middleware.ServerSettings(), MagicMock())(
            scope, receive, send
        )

    asyncio.run(ask())
    assert answered == [(b"abc", [b"a", b"b", b"c"])]


def test_explanations_have_a_tenth_of_the_worker_while_others_are_served(monkeypatch):
    """Each step rests for nine times the last one's time, less what it waited for the worker."""
    rests, busy, now, waits = [], [True], [0.0], [0.0]

    async def rest(seconds):
        rests.append(seconds)
        now[0] += seconds

    def timed(call):
        now[0] += waits[0] + 0.25
        return 0.25, call()

    async def run(chunks):
        with ThreadPoolExecutor(1) as worker:
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0], raising=False)
            queue = batching.ChunkQueue(worker, 1, lambda: busy[0])
            return await queue.run(lambda: [lambda k=k: [k] for k in range(chunks)])

    monkeypatch.setattr(batching, "MAX_HOLD_UP_S", -1.0)
    monkeypatch.setattr(batching, "_timed", timed)
    monkeypatch.setattr(batching.asyncio, "sleep", rest)
    assert asyncio.run(run(2)) == [0, 1]
    assert rests == [2.25] * 2, "the cut into chunks too; none after the last"
    waits[0] = 2.0
    assert asyncio.run(run(2)) == [0, 1]
    assert rests[2:] == [0.25] * 2
    busy[0] = False
    assert asyncio.run(run(3)) == [0, 1, 2]
    assert len(rests) == 4


def test_quick_chunks_are_run_together_as_long_as_others_can_wait(monkeypatch):
    now, runs = [0.0], []

    def chunk(seconds):
        def call():
            now[0] += seconds
            runs[-1] += 1
            return [seconds]

        return call

    def timed(call):
        runs.append(0)
        return 0.0, call()

    async def run(*seconds):
        runs.clear()
        with ThreadPoolExecutor(1) as worker:
            queue = batching.ChunkQueue(worker, 1, lambda: True)
            assert await queue.run(lambda: list(map(chunk, seconds))) == list(seconds)
        return runs[1:]  # the cut into chunks is the first

    monkeypatch.setattr(batching, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(batching, "_timed", timed)
    assert asyncio.run(run(0.02, 0.02, 0.02, 0.06, 0.01)) == [2, 2, 1]
    assert asyncio.run(run(*[0.003] * 40)) == [16, 16, 8]


@pytest.mark.parametrize(
    ("pairs", "model", "sizes"),
    [(True, AFM, [10, 10, 3]), (False, AutoInt, [10, 10, 3]), (True, AutoInt, [1] * 23)],
)
def test_only_where_pairs_are_measured_a_chunk_is_one_row(pairs, model, sizes, monkeypatch):
    results = []

    def explained(bundle, frame, *, pairs):
        results.append(frame.height)
        return [{} for _ in range(frame.height)]

    monkeypatch.setattr(routes, "explanations", explained)
    app = patient_app(Service(make(model(embedding_dim=4))))
    assert asyncio.run(ask(app, "/v1/explain", {"rows": [ROW] * 23, "pairs": pairs})) == 200
    assert results == sizes

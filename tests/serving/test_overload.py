"""More than can be answered: who is let in is answered in time, others are refused at once; explanations wait."""

import asyncio
import json
import time

import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from concurrent.futures import ThreadPoolExecutor

from serving.asgi import post
from serving.conftest import make
from serving.hostile import ROW

from fieldwise import AFM, AutoInt
from fieldwise.serving import pieces as pieces_module
from fieldwise.serving import served as served_module
from fieldwise.serving.http import ServerSettings, create_app
from fieldwise.serving.pieces import Pieces
from fieldwise.serving.service import Service


async def ask(app, path, body):
    """The status of an answer."""
    return await post(app, path, json.dumps(body).encode())


def slow_service(ranker, seconds):
    """A service whose predictions take some seconds each, without the processor."""
    slow = Service(ranker)

    def predict_all(requests):
        time.sleep(seconds * len(requests))
        return [[{"score": 0.0}] for _ in requests]

    slow.predict_all = predict_all
    return slow


def test_past_capacity_as_much_is_answered_as_at_capacity(ranker):
    """Three times 100 requests a second, for three seconds; an endless queue would answer none in time."""
    each, timeout = 0.01, 0.5
    app = create_app(slow_service(ranker, each), ServerSettings(timeout=timeout, max_batch=4, max_waiting=24))

    async def run():
        tasks, began, number = [], time.perf_counter(), 0
        while (now := time.perf_counter() - began) < 3:
            while number < 3 * now / each:
                tasks.append(asyncio.create_task(ask(app, "/v1/predict", {"rows": [ROW]})))
                number += 1
            await asyncio.sleep(0.002)
        return await asyncio.gather(*tasks)

    statuses = asyncio.run(run())
    assert set(statuses) == {200, 503}
    assert statuses.count(200) > 0.3 * 3 / each, "a busy machine is granted a part"


def test_bodies_that_do_not_arrive_keep_nobody_out(ranker):
    """Only what waits for the model counts: fifty clients send half a body each, and one asks."""
    app = create_app(Service(ranker), ServerSettings(timeout=0.5))

    def half(number):
        return post(app, "/v1/predict", b"{", client=("b", number), whole=False)

    async def run():
        first = await asyncio.gather(*(half(number) for number in range(50)))
        waiting = [asyncio.create_task(half(number)) for number in range(50)]
        await asyncio.sleep(0.05)
        found = await ask(app, "/v1/predict", {"rows": [ROW]})
        return {*first, *await asyncio.gather(*waiting)}, found

    assert asyncio.run(run()) == ({408}, 200)


def test_explanations_leave_most_of_the_worker_to_others(ranker, monkeypatch):
    """Twelve large explanations at once: four clients that ask one prediction after the other lose a part, not all."""

    def slowly(bundle, frame, *, pairs):
        time.sleep(0.04 * frame.height)
        return [{} for _ in range(frame.height)]

    monkeypatch.setattr(served_module, "explanations", slowly)
    app = create_app(slow_service(ranker, 0.005), ServerSettings(timeout=5))

    async def client(until, answers):
        while time.perf_counter() < until:
            answers.append(await ask(app, "/v1/predict", {"rows": [ROW]}))

    async def rate(seconds):
        answers, until = [], time.perf_counter() + seconds
        await asyncio.gather(*(client(until, answers) for _ in range(4)))
        assert set(answers) == {200}
        return len(answers) / seconds

    async def run():
        alone = await rate(1)
        body = {"rows": [ROW] * 50, "pairs": True}
        hostile = [asyncio.create_task(ask(app, "/v1/explain", body)) for _ in range(12)]
        await asyncio.sleep(0.1)
        beside = await rate(2)
        for one in hostile:
            one.cancel()
        await asyncio.gather(*hostile, return_exceptions=True)
        return alone, beside

    alone, beside = asyncio.run(run())
    assert beside > 0.3 * alone, "nine tenths, less what a busy machine takes; a queue would leave nearly nothing"


def test_explanations_have_a_tenth_of_the_worker_while_others_are_served(monkeypatch):
    """Each step rests for nine times the last one's time, less what it waited for the worker."""
    rests, busy, now, waits = [], [True], [0.0], [0.0]

    async def rest(seconds):
        rests.append(seconds)
        now[0] += seconds

    def timed(call):
        now[0] += waits[0] + 0.25
        return 0.25, call()

    async def run(pieces):
        with ThreadPoolExecutor(1) as worker:
            monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0], raising=False)
            return await Pieces(worker, 1, lambda: busy[0]).run(lambda: [lambda k=k: [k] for k in range(pieces)])

    monkeypatch.setattr(pieces_module, "timed_call", timed)
    monkeypatch.setattr(pieces_module.asyncio, "sleep", rest)
    monkeypatch.setattr(pieces_module, "TURN", 0)
    assert asyncio.run(run(2)) == [0, 1]
    assert rests == [2.25] * 2, "the cut into pieces too; none after the last"
    waits[0] = 2.0
    assert asyncio.run(run(2)) == [0, 1]
    assert rests[2:] == [0.25] * 2
    busy[0] = False
    monkeypatch.setattr(pieces_module, "TURN", 60)
    assert asyncio.run(run(3)) == [0, 1, 2]
    assert len(rests) == 4


@pytest.mark.parametrize(
    ("pairs", "model", "sizes"), [(True, AFM, [10, 10, 3]), (False, AutoInt, [10, 10, 3]), (True, AutoInt, [1] * 23)]
)
def test_only_where_pairs_are_measured_a_piece_is_one_row(pairs, model, sizes, monkeypatch):
    found = []

    def explained(bundle, frame, *, pairs):
        found.append(frame.height)
        return [{} for _ in range(frame.height)]

    monkeypatch.setattr(served_module, "explanations", explained)
    app = create_app(Service(make(model(embedding_dim=4))))
    assert asyncio.run(ask(app, "/v1/explain", {"rows": [ROW] * 23, "pairs": pairs})) == 200
    assert found == sizes


def test_an_explanation_in_pieces_is_the_one_at_once(ranker):
    from serving.conftest import log
    from serving.test_http import client, rows_of

    from fieldwise.serving.asked import Explained

    rows = rows_of(log(23, seed=8))
    service = Service(ranker)
    whole = service.explain(Explained(rows=rows))
    found = client(service).post("/v1/explain", {"rows": rows}).json()["explanations"]
    assert [one["score"] for one in found] == pytest.approx([one["score"] for one in whole], rel=1e-6)
    assert len(found) == 23

"""Bundle and index are replaced while the server runs: one of them answers each request, damage changes nothing."""

import asyncio
import gc
import os
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import SimpleNamespace

import httpx
import polars as pl
import pytest
from serving.asgi import client, patient_app, talking
from serving.commands import serving
from serving.conftest import catalogue, log
from serving.servers import until
from serving.test_http import rows_of

from fieldwise import Bundle, BundleError
from fieldwise.explain import explain
from fieldwise.serving import Ranker, build_index, item_table, open_index, routes
from fieldwise.serving.bodies import RecommendRequest
from fieldwise.serving.replacement import Live, Watcher, WatcherStatus
from fieldwise.serving.service import Service

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}


def best(service):
    result = service.recommend(RecommendRequest(context=CONTEXT, k=5, prerank=5))
    return [item["id"] for item in result["items"]]


@pytest.fixture
def place(tmp_path, tower, ranker):
    """A tower, a ranker and an index on disk, what serves them, and a watcher that is polled by hand."""
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    place = SimpleNamespace(
        folder=tmp_path, notes=[], title=None, manifest=tmp_path / "ix/index.json"
    )

    def build(items, bundle=tower):
        build_index(bundle, items, tmp_path / "ix")

    def load():
        ranker, tower = (Bundle.load(tmp_path / name) for name in ("ranker", "tower"))
        return Service(
            ranker, Ranker(ranker, open_index(tmp_path / "ix"), tower=tower), title=place.title
        )

    def settle():
        """What changed stays for a poll, and is loaded."""
        for _ in range(2):
            place.watcher.poll()

    build(catalogue())
    manifests = [tmp_path / "tower/bundle.json", tmp_path / "ranker/bundle.json", place.manifest]
    place.build, place.load, place.settle, place.live = build, load, settle, Live(load())
    place.watcher = Watcher(place.live, load, manifests, every=60, note=place.notes.append)
    place.size = lambda: len(place.live.service.ranker.index)
    return place


def test_a_newer_index_replaces_the_old_one_once_it_stays(place):
    place.watcher.poll()
    assert not place.notes
    before = Watcher.state(place.watcher.files)
    place.live.service.recommend(RecommendRequest(context=CONTEXT, k=1, where={"genres": ["g1"]}))
    place.build(catalogue().head(7))
    place.watcher.poll()  # it changed: wait for it to stay
    assert place.size() == 30
    place.watcher.poll()
    assert (place.size(), place.live.replaced, place.live.refused) == (7, 1, None)
    assert place.live.service.ranker.filters.prepared == ["genres"], (
        "filters that were asked for are ready"
    )
    assert "7 items" in place.notes[0]
    place.watcher.poll()
    assert len(place.notes) == 1
    # A change while the first service was loaded is seen by the state that was taken before.
    late = Watcher(Live(place.load()), place.load, place.watcher.files, every=60, state=before)
    late.poll()
    late.poll()
    assert late.live.replaced == 1


def test_a_newer_tower_waits_for_its_index(place, build):
    before, newer = best(place.live.service), build(seed=9)
    newer.save(place.folder / "tower", overwrite=True)
    place.settle()
    assert "belongs to the model that made it" in place.live.refused
    assert best(place.live.service) == before
    place.build(catalogue(), newer)
    place.settle()
    assert place.live.refused is None
    assert place.live.service.ranker.tower.digest == newer.digest
    assert best(place.live.service) != before


@pytest.mark.parametrize("what", ["ix", "ranker"])
def test_a_damaged_file_is_refused_and_the_old_service_stays(place, what):
    before = best(place.live.service)
    large = max(
        (f for f in (place.folder / what).iterdir() if f.suffix != ".json"),
        key=lambda f: f.stat().st_size,
    )
    whole = large.read_bytes()
    large.unlink()  # mapped files of the old one stay as they are
    large.write_bytes(whole[:-3] + b"xyz")
    manifest = place.manifest if what == "ix" else place.folder / what / "bundle.json"
    os.utime(manifest)
    place.settle()
    assert "damaged" in place.live.refused
    assert place.notes[0].startswith("not replaced, the loaded one stays active: ")
    assert best(place.live.service) == before
    large.write_bytes(whole)
    os.utime(manifest)
    place.settle()
    assert place.live.refused is None


def test_a_missing_manifest_and_errors_of_loading(place, caplog):
    text = place.manifest.read_bytes()
    place.manifest.unlink()
    for _ in range(3):
        place.watcher.poll()
    assert place.notes == [f"missing, the loaded one stays active: {place.manifest}"], "once"
    place.manifest.write_bytes(text)
    place.settle()
    assert place.live.replaced == 1
    whole, calls, errors = place.load, [], [OSError(24, "Too many open files")] * 2

    def load():
        calls.append(1)
        if errors:
            raise errors.pop()
        return whole()

    place.watcher.load = load  # too few files or too little memory: tried again at each poll
    os.utime(place.manifest)
    for _ in range(5):
        place.watcher.poll()
    assert (len(calls), place.live.replaced, place.live.refused) == (3, 2, None)
    errors.append(RuntimeError("who knows"))  # any other error: once
    os.utime(place.manifest)
    for _ in range(4):
        place.watcher.poll()
    assert (len(calls), place.live.refused) == (4, "RuntimeError: who knows")
    assert "who knows" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # at its end
def test_a_panic_of_polars_does_not_end_the_watcher(place, monkeypatch):
    """While loading, and while polling: later versions are loaded, and `/readyz` has the watcher's state."""

    def panic(*_):
        pl.Series("", [Decimal("NaN")])

    def ready():
        return client(place.live).get("/readyz").json()["watcher"]

    watcher, polls = place.watcher, []
    watcher.every, whole_poll, watcher.load = 0.02, watcher.poll, panic
    watcher.start()
    try:
        assert ready() == "ok"
        place.build(catalogue().head(7))
        until(lambda: place.live.refused is not None)
        assert "PanicException" in place.live.refused
        watcher.load = place.load
        monkeypatch.setattr(watcher, "poll", lambda: polls.append(1) or panic())
        until(lambda: len(polls) > 2)
        monkeypatch.setattr(watcher, "poll", whole_poll)
        place.build(catalogue().head(5))
        until(lambda: place.size() == 5)
        place.manifest.rename(place.folder / "aside")
        until(lambda: watcher.status.state == "gone")
        assert ready().endswith("ix/index.json")
        (place.folder / "aside").rename(place.manifest)
        until(lambda: watcher.status.state == "ok")
    finally:
        monkeypatch.setattr(watcher, "poll", sys.exit)
        until(lambda: watcher.status.state == "dead")


def test_what_was_replaced_is_freed_at_once(place):
    """The server freezes its garbage collector at times: nothing may wait for it."""
    server = client(place.live)
    for path in ("/v1/about", "/v1/items", "/v1/items/i1/similar"):
        assert server.get(path).status_code == 200
    best(place.live.service)
    gc.collect()
    gc.disable()
    try:
        service = place.live.service
        old = (
            weakref.ref(service),
            weakref.ref(service.ranker._scorer),
            weakref.ref(service.ranker),
        )
        del service
        place.build(catalogue().head(7))
        place.settle()
        assert place.live.replaced == 1
        assert [one() for one in old] == [None] * 3
    finally:
        gc.enable()


def test_items_without_the_title_are_refused(place):
    server, place.title = client(place.live), "title"
    for size, before in ((7, 30), (8, 8)):  # the title is required as long as the server runs
        place.build(catalogue().head(size).drop("title"))
        place.settle()
        assert "a title must be a column of the items, found 'title'" in place.live.refused
        assert server.get("/v1/about").json()["items"]["count"] == before
        place.build(catalogue().head(8))
        place.settle()
        assert place.live.refused is None


def test_readiness_and_metrics(place):
    server = client(place.live)

    def fail():
        raise BundleError("the index /secret/place is damaged")

    place.live.replace(fail)
    place.live.watched = lambda: WatcherStatus(state="gone", missing=("/secret/place",))
    about = server.get("/readyz").json()
    assert about["refused"] == "the index /secret/place is damaged"
    assert about["index"] == place.live.service.ranker.index.generation
    assert "fieldwise_replacement_refused 1.0" in server.get("/metrics").text
    closed = client(place.live, token="t").get("/readyz")
    assert "/secret" not in closed.text, "paths are shown with the token alone"
    assert closed.json()["watcher"] == "gone"
    assert "use the token for details" in closed.json()["refused"]
    place.live.replace(lambda: place.live.service)
    assert "fieldwise_replacements 1.0" in client(place.live).get("/metrics").text


def test_a_request_is_answered_whole_by_one_service(ranker, build, monkeypatch):
    """Requests whose computation has begun are answered by the old service, later ones by the new one."""
    newer, rows = build(ranker.settings, seed=8), log(23, seed=8)
    old, new = (
        Service(one, Ranker(one, item_table(catalogue(), "item"))) for one in (ranker, newer)
    )
    live, began, go = Live(old), threading.Event(), threading.Event()
    app = patient_app(live)
    asks = {
        "predict": (
            {"rows": rows_of(rows)},
            lambda answer: [one["score"] for one in answer["predictions"]],
        ),
        "explain": (
            {"rows": rows_of(rows)},
            lambda answer: [one["score"] for one in answer["explanations"]],
        ),
        "recommend": (
            {"context": CONTEXT, "k": 30},
            lambda answer: [
                (one["id"], pytest.approx(one["prediction"], rel=1e-4)) for one in answer["items"]
            ],
        ),
    }
    explained = {
        service: [explain(service.bundle, rows).row(n)["score"] for n in range(23)]
        for service in (old, new)
    }

    def expected(service):
        items = service.ranker.recommend(CONTEXT, k=30)
        pairs = zip(items.items["item"], items.scores["prediction"], strict=True)
        return {
            "predict": service.bundle.score(rows),
            "explain": explained[service],
            "recommend": [*pairs],
        }

    def held(call):
        def wait(*given, **more):
            result = call(*given, **more)
            began.set()
            assert go.wait(120)
            return result

        return wait

    wanted = {service: expected(service) for service in (old, new)}
    assert wanted[old]["recommend"][0] != wanted[new]["recommend"][0]
    monkeypatch.setattr(old, "predict_all", held(old.predict_all))
    monkeypatch.setattr(old.ranker, "prepare", held(old.ranker.prepare))
    monkeypatch.setattr(routes, "explanations", held(routes.explanations))

    async def answered(name):
        live.service = old
        began.clear()
        go.clear()
        async with talking(app) as asking:
            body, values = asks[name]
            task = asyncio.create_task(asking.post(f"/v1/{name}", json=body))
            await asyncio.to_thread(began.wait, 120)
            live.replace(lambda: new)
            go.set()
            for answer, by in (
                (await task, old),
                (await asking.post(f"/v1/{name}", json=body), new),
            ):
                assert answer.status_code == 200, answer.text
                result = values(answer.json())
                wants = wanted[by][name]
                assert result == (
                    wants if name == "recommend" else pytest.approx(wants, rel=1e-4, abs=1e-5)
                ), name

    for name in asks:
        asyncio.run(answered(name))


@pytest.mark.slow
def test_no_request_fails_while_the_command_replaces(place, tower, ranker, build):
    """A newer tower and its index, then the first ones again, under requests from four threads."""
    newer, expected = build(seed=9), {tuple(best(place.live.service))}
    index = build_index(newer, catalogue(), place.folder / "newer")[0]
    expected.add(tuple(best(Service(ranker, Ranker(ranker, index, tower=newer)))))
    assert len(expected) == 2
    answers, stop = [], threading.Event()
    with serving(
        place.folder, "ranker", "--tower", "tower", "--index", "ix", "--watch", 0.1
    ) as server:

        def ask():
            with httpx.Client(base_url=server.place, timeout=120) as client:
                while not stop.is_set():
                    answer = client.post(
                        "/v1/recommend", json={"context": CONTEXT, "k": 5, "prerank": 5}
                    )
                    answers.append(
                        (
                            answer.status_code,
                            tuple(one["id"] for one in answer.json().get("items", [])),
                        )
                    )

        with ThreadPoolExecutor(4) as threads:
            asking = [threads.submit(ask) for _ in range(4)]
            try:
                for one in (newer, tower):
                    one.save(place.folder / "tower", overwrite=True)
                    place.build(catalogue(), one)
                    generation = open_index(place.folder / "ix").generation
                    until(
                        lambda generation=generation: (
                            server.get("/readyz").json()["index"] == generation
                        )
                    )
                    least = len(answers) + 8  # at most four of them began before
                    until(lambda least=least: len(answers) >= least)
            finally:
                stop.set()
        for one in asking:
            one.result()
    assert {status for status, _ in answers} == {200}
    assert {items for _, items in answers} == expected

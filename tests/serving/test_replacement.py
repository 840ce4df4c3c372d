"""A bundle and an index replaced under load: every request is answered, by one of the two; damage changes nothing."""

import gc
import os
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest
from serving.asgi import client
from serving.commands import serving
from serving.conftest import catalogue

from fieldwise import Bundle
from fieldwise.errors import BundleError
from fieldwise.serving import Ranker, build_index, open_index
from fieldwise.serving.bodies import RecommendRequest
from fieldwise.serving.replacement import Live, Watcher
from fieldwise.serving.service import Service

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}


def best(service):
    result = service.recommend(RecommendRequest(context=CONTEXT, k=5, prerank=5))
    return [item["id"] for item in result["items"]]


@pytest.fixture
def place(tmp_path, tower, ranker):
    """A tower, a ranker and an index on disk."""
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    build_index(tower, catalogue(), tmp_path / "ix")

    place = SimpleNamespace(folder=tmp_path, notes=[], title=None)

    def load():
        ranker, tower = (Bundle.load(tmp_path / name) for name in ("ranker", "tower"))
        return Service(ranker, Ranker(ranker, open_index(tmp_path / "ix"), prerank=tower), title=place.title)

    manifests = [tmp_path / "tower/bundle.json", tmp_path / "ranker/bundle.json", tmp_path / "ix/index.json"]
    place.live = Live(load())
    place.watcher = Watcher(place.live, load, manifests, every=60, note=place.notes.append)

    def settle():
        """What changed stays for a poll, and is loaded."""
        for _ in range(2):
            place.watcher.poll()

    place.settle = settle
    return place


def test_a_newer_index_takes_over_once_it_stays(place, tower):
    place.watcher.poll()
    assert not place.notes
    build_index(tower, catalogue().head(7), place.folder / "ix")
    place.watcher.poll()  # it changed: wait for it to stay
    assert len(place.live.service.cascade.index) == 30
    place.watcher.poll()
    assert len(place.live.service.cascade.index) == 7
    assert (place.live.replaced, place.live.refused) == (1, None)
    assert "7 items" in place.notes[0]
    place.watcher.poll()
    assert len(place.notes) == 1


def test_a_newer_tower_waits_for_its_index(place, build):
    before, newer = best(place.live.service), build(seed=9)
    newer.save(place.folder / "tower")
    place.settle()
    assert "belongs to the model that made it" in place.live.refused
    assert best(place.live.service) == before
    build_index(newer, catalogue(), place.folder / "ix")
    place.settle()
    assert place.live.refused is None
    assert place.live.service.cascade.prerank.digest == newer.digest
    assert best(place.live.service) != before


@pytest.mark.parametrize("what", ["ix", "ranker"])
def test_a_damaged_one_is_refused_and_the_old_one_serves(place, what):
    before = best(place.live.service)
    large = max((f for f in (place.folder / what).iterdir() if f.suffix != ".json"), key=lambda f: f.stat().st_size)
    whole = large.read_bytes()
    large.unlink()  # mapped files of the old one stay as they are
    large.write_bytes(whole[:-3] + b"xyz")
    manifest = place.folder / what / ("index.json" if what == "ix" else "bundle.json")
    text = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(text)
    place.settle()
    assert "damaged" in place.live.refused
    assert place.notes[0].startswith("not replaced, the loaded one stays active: ")
    assert best(place.live.service) == before
    large.write_bytes(whole)
    os.utime(manifest)
    place.settle()
    assert place.live.refused is None


def test_a_manifest_that_is_gone_is_waited_for(place):
    manifest = place.folder / "ix/index.json"
    text = manifest.read_bytes()
    manifest.unlink()
    for _ in range(3):
        place.watcher.poll()
    assert place.notes == [f"missing, the loaded one stays active: {manifest}"], "once"
    manifest.write_bytes(text)
    place.settle()
    assert place.live.replaced == 1


def test_whatever_a_loader_raises_the_watcher_goes_on(place, caplog):
    def load():
        raise RuntimeError("who knows")

    place.watcher.load = load
    os.utime(place.folder / "ix/index.json")
    for _ in range(4):
        place.watcher.poll()
    assert place.live.refused == "RuntimeError: who knows"
    assert len(place.notes) == 1
    assert "who knows" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # at its end
def test_a_panic_of_polars_does_not_end_the_watcher(place, tower, monkeypatch):
    """On loading, and on polling: what is good later is loaded, and readiness tells how the watcher is."""
    from decimal import Decimal

    import polars as pl

    def panic(*_):
        pl.Series("", [Decimal("NaN")])

    watcher = place.watcher
    watcher.every = 0.02
    whole_load, whole_poll = watcher.load, watcher.poll
    watcher.load = panic
    watcher.start()
    try:
        assert client(place.live).get("/readyz").json()["watcher"] == "ok"
        build_index(tower, catalogue().head(7), place.folder / "ix")
        until(lambda: place.live.refused is not None)
        assert "PanicException" in place.live.refused
        watcher.load = whole_load
        polls = []

        def poll():
            polls.append(1)
            panic()

        monkeypatch.setattr(watcher, "poll", poll)
        until(lambda: len(polls) > 2)
        monkeypatch.setattr(watcher, "poll", whole_poll)
        build_index(tower, catalogue().head(5), place.folder / "ix")
        until(lambda: len(place.live.service.cascade.index) == 5)
        (place.folder / "ix" / "index.json").rename(place.folder / "aside")
        until(lambda: watcher.about.startswith("gone: "))
        assert client(place.live).get("/readyz").json()["watcher"].endswith("ix/index.json")
        (place.folder / "aside").rename(place.folder / "ix" / "index.json")
        until(lambda: watcher.about == "ok")
    finally:
        monkeypatch.setattr(watcher, "poll", sys.exit)
        until(lambda: watcher.about == "dead")


def until(happened):
    end = time.monotonic() + 300
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_paths_are_told_with_the_token_alone(place):
    place.live.refused = "the index /secret/place is damaged"
    place.live.watched = lambda: "gone: /secret/place"
    server = client(place.live, token="t")
    bare = server.get("/readyz")
    assert "/secret" not in bare.text
    assert bare.json()["watcher"] == "gone"
    assert "use the token for details" in bare.json()["refused"]
    place.live.watched = lambda: "ok"
    assert "/secret" in client(place.live).get("/readyz").text, "without a token everybody is let in"


def test_want_of_files_or_memory_is_tried_again(place):
    whole, calls = place.watcher.load, []

    def load():
        calls.append(1)
        if len(calls) < 3:
            raise OSError(24, "Too many open files")
        return whole()

    place.watcher.load = load
    os.utime(place.folder / "ix/index.json")
    for _ in range(4):
        place.watcher.poll()
    assert (len(calls), place.live.replaced, place.live.refused) == (3, 1, None)
    assert len(place.notes) == 2
    place.watcher.poll()
    assert len(calls) == 3


def test_what_changes_while_the_first_is_loaded_is_seen(place, tower):
    manifests = place.watcher.files
    state = Watcher.state(manifests)
    live = Live(place.watcher.load())
    build_index(tower, catalogue().head(7), place.folder / "ix")
    watcher = Watcher(live, place.watcher.load, manifests, every=60, state=state)
    watcher.poll()
    watcher.poll()
    assert len(live.service.cascade.index) == 7


def test_filters_asked_for_are_ready_after_a_replacement(place, tower):
    place.live.service.recommend(RecommendRequest(context=CONTEXT, k=1, where={"genres": ["g1"]}))
    build_index(tower, catalogue().head(20), place.folder / "ix")
    place.settle()
    assert place.live.service.cascade.filters.prepared == ["genres"]


def test_what_was_replaced_leaves_the_memory_at_once(place, tower):
    """The server freezes its garbage collector at times: nothing may wait for it."""
    server = client(place.live)
    for path in ("/v1/about", "/v1/items", "/v1/items/i1/similar"):
        assert server.get(path).status_code == 200
    best(place.live.service)
    gc.collect()
    gc.disable()
    try:
        service = place.live.service
        old = weakref.ref(service), weakref.ref(service.cascade._scorer), weakref.ref(service.cascade)
        del service
        build_index(tower, catalogue().head(7), place.folder / "ix")
        place.settle()
        assert place.live.replaced == 1
        assert [one() for one in old] == [None] * 3
    finally:
        gc.enable()


def test_items_without_the_title_are_refused(place, tower):
    server, place.title = client(place.live), "title"
    build_index(tower, catalogue().head(7).drop("title"), place.folder / "ix")
    place.settle()
    assert "a title must be a column of the items, found 'title'" in place.live.refused
    assert server.get("/v1/about").json()["items"]["count"] == 30
    for size in (8, 9):  # the title is asked for as long as the server runs
        build_index(tower, catalogue().head(size), place.folder / "ix")
        place.settle()
        assert place.live.refused is None
        build_index(tower, catalogue().head(size).drop("title"), place.folder / "ix")
        place.settle()
        assert place.live.refused is not None
        assert server.get("/v1/about").json()["items"]["count"] == size


def test_readiness_and_metrics_say_it(place):
    server = client(place.live)

    def fail():
        raise BundleError("no more")

    place.live.replace(fail)
    about = server.get("/readyz").json()
    assert about["refused"] == "no more"
    assert about["index"] == place.live.service.cascade.index.generation
    assert "fieldwise_replacement_refused 1.0" in server.get("/metrics").text
    place.live.replace(lambda: place.live.service)
    assert "fieldwise_replacements 1.0" in server.get("/metrics").text


def test_no_request_fails_while_the_command_replaces(tmp_path, tower, ranker, build):
    """Two towers and their indexes in turn, under requests from four threads."""
    towers = [tower, build(seed=9)]
    expected = set()
    for number, one in enumerate(towers):
        index = build_index(one, catalogue(), tmp_path / f"ix{number}")[0]
        expected.add(tuple(best(Service(ranker, Ranker(ranker, index, prerank=one)))))
    assert len(expected) == 2
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    build_index(tower, catalogue(), tmp_path / "ix")
    answers, stop = [], threading.Event()
    with serving(tmp_path, "ranker", "--prerank", "tower", "--index", "ix", "--watch", 0.1) as server:

        def ask():
            with httpx.Client(base_url=server.place, timeout=120) as client:
                while not stop.is_set():
                    answer = client.post("/v1/recommend", json={"context": CONTEXT, "k": 5, "prerank": 5})
                    answers.append((answer.status_code, [item["id"] for item in answer.json().get("items", [])]))

        with ThreadPoolExecutor(4) as threads:
            try:
                asking = [threads.submit(ask) for _ in range(4)]
                for newer in (towers[1], towers[0]):
                    newer.save(tmp_path / "tower")
                    build_index(newer, catalogue(), tmp_path / "ix")
                    generation = open_index(tmp_path / "ix").generation
                    until(lambda generation=generation: server.get("/readyz").json()["index"] == generation)
                    so_far = len(answers)
                    until(lambda so_far=so_far: len(answers) >= so_far + 8)  # at most four of them began before
            finally:
                stop.set()
        for one in asking:
            one.result()  # raises what ended it
    assert {status for status, _ in answers} == {200}
    assert {tuple(items) for _, items in answers} == expected

"""Requests that are refused when their heads are read: in the same form as in the application, and nothing is lost."""

import asyncio
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")
import uvicorn
from prometheus_client import CollectorRegistry, Counter, Histogram
from serving.hostile import ROW, TOO_LARGE

from fieldwise.cli.listening import ACCEPTED, accepting
from fieldwise.serving import connections as connections_module
from fieldwise.serving.admission import Admission
from fieldwise.serving.connection_limits import ConnectionLimits, Connections
from fieldwise.serving.connections import limited_protocol
from fieldwise.serving.early_refusal import EarlyRefusal, admissions, plain_path
from fieldwise.serving.http import create_app
from fieldwise.serving.service import Service
from fieldwise.serving.shares import Shares
from fieldwise.serving.worker import Worker

BODY = json.dumps({"rows": [ROW]}).encode()
HEAD = b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
REQUEST = HEAD % len(BODY) + b"\r\n" + BODY
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def running(app):
    """The application behind the limited protocol, in a thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    connections = Connections(ConnectionLimits(), app.state.registry, app.state.shares, app.state.early)
    config = uvicorn.Config(app, http=limited_protocol(connections), log_level="warning", timeout_keep_alive=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def shut():
    """Whether the server is full."""
    return [False]


@pytest.fixture(scope="module")
def app(ranker, shut):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admission, "is_full", lambda *_: shut[0])
        yield create_app(Service(ranker))


@pytest.fixture(scope="module")
def port(app):
    with running(app) as found:
        yield found


def answers(port, *parts, number):
    """Statuses, and what comes with them, of requests on one connection, whose bytes are sent in these parts."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        for part in parts:
            one.sendall(part)
            time.sleep(0.05)
        stream, found = one.makefile("rb"), []
        for _ in range(number):
            status = int(stream.readline().split()[1])
            lines = iter(stream.readline, b"\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
            found.append((status, fields, json.loads(stream.read(int(fields[b"content-length"])))))
    return found


@pytest.mark.parametrize(
    "parts",
    [
        (REQUEST,),
        (REQUEST[:9], REQUEST[9:]),
        (HEAD % len(BODY) + b"\r\n", BODY),
        (HEAD % len(BODY) + b"Connection: close\r\n\r\n" + BODY,),
        (HEAD % len(BODY) + b"Expect: 100-continue\r\n\r\n", BODY),
        (HEAD.replace(b"Content-Length: %d", b"Transfer-Encoding: chunked") + b"\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",),
    ],
    ids=["whole", "in parts", "head and body", "close", "expects", "chunked"],
)
def test_every_way_to_be_refused_says_the_same(port, shut, parts):
    shut[0] = True
    ((status, fields, body),) = answers(port, *parts, number=1)
    assert (status, fields[b"retry-after"], fields[b"content-type"]) == (503, b"1", b"application/json")
    assert body == {"error": {"message": "the server is overloaded: retry later", "field": "server"}}


def test_a_connection_goes_on_after_refusals(port, shut):
    """Refused, refused, health, and a whole answer once there is room, also where all is sent at once."""
    shut[0] = True
    assert [one[0] for one in answers(port, REQUEST, REQUEST, GET, number=3)] == [503, 503, 200]
    assert [one[0] for one in answers(port, 2 * REQUEST + GET + REQUEST, number=4)] == [503, 503, 200, 503]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(REQUEST)
        assert one.recv(1000).startswith(b"HTTP/1.1 503")
        shut[0] = False
        one.sendall(REQUEST)
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
    assert answers(port, REQUEST + REQUEST, number=2)[1][2]["predictions"]


def test_a_refused_connection_that_falls_silent_is_closed(port, shut):
    shut[0] = True
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        for _ in range(3):
            one.sendall(REQUEST)
            assert one.recv(1000).startswith(b"HTTP/1.1 503")
        assert one.recv(1000) == b""


def test_refusals_are_counted(app, port, shut):
    def counted():
        labels = {"method": "POST", "path": "/v1/predict", "status": "503"}
        return app.state.registry.get_sample_value("fieldwise_requests_total", labels)

    shut[0], before = True, counted()
    answers(port, REQUEST, HEAD % len(BODY) + b"\r\n", BODY, REQUEST[:-1], REQUEST[-1:], number=3)
    assert counted() == before + 3


def test_only_plain_requests_are_refused_unread(subtests):
    for data, path in [
        (REQUEST, b"/v1/predict"),
        (HEAD % len(BODY) + b"Connection: keep-alive\r\n\r\n" + BODY, b"/v1/predict"),
        (REQUEST.replace(b"Content-Length", b"content-length"), b"/v1/predict"),
        (REQUEST[:-1], b""),
        (REQUEST + b"G", b""),
        (GET, b""),
        (HEAD % len(BODY) + b"Connection: close\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"Connection: keep-alive, upgrade\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"Upgrade: x\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"Expect: 100-continue\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"Transfer-Encoding: chunked\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"Content-Length: 2\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"Content-Length : 2\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"X: y\nTransfer-Encoding: chunked\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"X: y\r\n Transfer-Encoding: chunked\r\n\r\n" + BODY, b""),
        (HEAD % len(BODY) + b"X: y\rTransfer-Encoding: chunked\r\n\r\n" + BODY, b""),
        (REQUEST.replace(b"Content-Length: ", b"Content-Length: +"), b""),
        (REQUEST.replace(b"Content-Length: ", b"Content-Length:\t"), b""),
        (REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"), b""),
        (REQUEST.replace(b"POST", b"PUT"), b""),
    ]:
        with subtests.test(data=data, path=path):
            assert plain_path(data) == path


def test_many_connections_are_accepted_in_one_turn_of_the_loop():
    """Thirty clients connect while the loop is busy: with one socket, uvloop would need thirty turns."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is absent, as on Windows")
    accepted = []

    async def run():
        loop = asyncio.get_running_loop()
        listening = socket.create_server(("127.0.0.1", 0))

        class Counted(asyncio.Protocol):
            def connection_made(self, transport):
                accepted.append(transport)

        servers = [await loop.create_server(Counted, sock=one) for one in accepting(listening)]
        clients = [socket.create_connection(listening.getsockname()) for _ in range(30)]  # the loop waits meanwhile
        turns = 0
        while len(accepted) < len(clients):
            turns += 1
            await asyncio.sleep(0)
        for one in (*clients, *accepted, *servers):
            one.close()
        return turns

    turns = uvloop.new_event_loop().run_until_complete(run())
    assert ACCEPTED == 16
    assert turns < 20


def test_who_goes_on_asking_for_refused_explanations_waits_while_over_its_share(app, port, shut, monkeypatch):
    over, explain = [False], REQUEST.replace(b"/v1/predict", b"/v1/explain")
    monkeypatch.setattr(app.state.shares, "is_over", lambda *_: over[0])
    monkeypatch.setattr(app.state.early, "is_overloaded", lambda _: False)
    shut[0] = True
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(GET)
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
        over[0] = True
        one.sendall(explain)
        assert one.recv(1000).startswith(b"HTTP/1.1 503"), "it is told at once"
        one.sendall(explain)
        one.settimeout(0.3)
        with pytest.raises(TimeoutError):
            one.recv(1000)
        over[0] = False
        one.settimeout(10)
        assert one.recv(1000).startswith(b"HTTP/1.1 503")


def test_a_new_connection_of_an_address_over_its_share_waits_though_it_has_sent_already(app, port, monkeypatch):
    """The loop reads what is there before the connection can tell it to wait."""
    over = [True]
    monkeypatch.setattr(app.state.shares, "is_over", lambda *_: over[0])
    monkeypatch.setattr(connections_module, "CHECK", 0.01)
    slow, counted = Connections.enter, "fieldwise_connections_delayed_total"
    before = app.state.registry.get_sample_value(counted)

    def enter(*arguments):
        time.sleep(0.1)  # the request is there before the connection begins
        return slow(*arguments)

    monkeypatch.setattr(Connections, "enter", enter)
    with socket.create_connection(("127.0.0.1", port), timeout=0.5) as one:
        one.sendall(GET)
        with pytest.raises(TimeoutError):
            one.recv(1000)
        over[0] = False
        one.settimeout(10)
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
        one.sendall(GET)
        assert one.recv(1000).startswith(b"HTTP/1.1 200")
    assert app.state.registry.get_sample_value(counted) == before + 1


def sent_until_it_waits(one):
    sent = 0
    while sent < 100_000_000:
        try:
            sent += one.send(b"x" * 100_000)
        except TimeoutError:
            break
    return sent


def test_who_sends_on_after_an_answer_is_read_no_more_and_reads_it(port, shut, monkeypatch):
    """The connection does not break at once: who is cut off comes back."""
    shut[0] = False
    monkeypatch.setattr(connections_module, "LINGER", 60.0)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        one.sendall(TOO_LARGE)
        one.settimeout(0.5)
        sent = sent_until_it_waits(one)
        assert sent < 100_000_000
        assert one.recv(1000).startswith(b"HTTP/1.1 413")


def test_the_loop_rests_only_while_the_models_thread_computes():
    worker, go = Worker(), threading.Event()
    worker.let_run(60)
    first, second = worker.submit(go.wait), worker.submit(time.sleep, 0.05)
    worker.let_run(0.05)
    assert not first.done()
    go.set()
    worker.let_run(60)
    assert second.done()


class Held:
    """A connection that is not let in."""

    answer = None

    def refuse(self, answer):
        self.answer = answer


def test_a_refused_connection_is_held_until_it_ends_or_its_place_is_needed(monkeypatch):
    limits = ConnectionLimits(connections=4, per_address=1)
    one, two, three = Held(), Held(), Held()

    async def run():
        monkeypatch.setattr("fieldwise.serving.connection_limits.HELD", 60.0)
        counts = Connections(limits, CollectorRegistry())
        assert [counts.enter(address) for address in "aaa"] == [None, "address", "address"]
        counts.hold(one, b"1")
        counts.hold(two, b"2")
        assert (one.answer, two.answer) == (None, None)
        assert [counts.enter(address) for address in "bc"] == [None, None]
        assert (one.answer, two.answer) == (b"1", None), "three are open and one is held"
        counts.let_go(two)
        assert counts.enter("d") is None
        assert two.answer is None, "it has ended"
        counts.hold(three, b"3")
        assert three.answer == b"3", "four are open"

    asyncio.run(run())


def test_a_held_connection_is_answered_after_a_while(monkeypatch):
    monkeypatch.setattr("fieldwise.serving.connection_limits.HELD", 0.0)
    one = Held()

    async def run():
        Connections(ConnectionLimits(), CollectorRegistry()).hold(one, b"1")
        assert one.answer is None
        await asyncio.sleep(0.01)

    asyncio.run(run())
    assert one.answer == b"1"


def test_a_connection_too_many_of_an_address_over_its_share_is_held(app, port, monkeypatch):
    held = []
    monkeypatch.setattr(app.state.shares, "is_over", lambda *_: True)
    monkeypatch.setattr(Connections, "enter", lambda *_: "address")
    monkeypatch.setattr(Connections, "hold", lambda _, one, answer: held.append(answer) or one.refuse(answer))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
        assert one.recv(1000).startswith(b"HTTP/1.1 503")
    assert len(held) == 1


def early_refusal(rest):
    requests = Counter("requests", "-", ("method", "path", "status"), registry=None)
    seconds = Histogram("seconds", "-", ("path",), registry=None)
    return EarlyRefusal(requests, seconds, admissions(10, 1, 1.0), Shares(), rest)


def test_the_loop_rests_once_in_a_turn(monkeypatch):
    rests = []
    monkeypatch.setattr(Admission, "is_full", lambda *_: True)

    async def run(early):
        for _ in range(3):
            assert all(early.refuses(b"/v1/predict", "a") for _ in range(20))
            assert not early.refuses(b"/healthz", "a")
            await asyncio.sleep(0)
        assert early.refuses(b"/v1/explain", "a")
        await asyncio.sleep(0)

    asyncio.run(run(early_refusal(rests.append)))
    assert len(rests) == 3, "none for the explanation: predictions are not to wait for refusals of those"
    assert sum(rests) < 0.02

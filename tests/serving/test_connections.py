"""Connections within limits: heads, silence, slow readers, how many; asked with raw sockets on loopback."""

import asyncio
import json
import socket
import time

import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from prometheus_client.parser import text_string_to_metric_families
from serving.commands import serving
from serving.hostile import CHUNKED, ENDLESS_FRAMING, GET, LONG_HEADS, MALFORMED, TOO_LARGE, WRONG_HOSTS

LIMITS = {
    "--max-connections": 12,
    "--max-connections-per-address": 8,
    "--max-head": 4000,
    "--head-timeout": 0.6,
    "--idle-timeout": 0.8,  # whole seconds between requests: 1
    "--max-body": 20_000,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, ranker):
    made = tmp_path_factory.mktemp("served")
    ranker.save(made / "ranker")
    return made


@pytest.fixture(scope="module")
def server(folder):
    with serving(folder, "ranker", *(word for pair in LIMITS.items() for word in pair)) as running:
        yield running


@pytest.fixture
def connect(server):
    """Open a connection from an address of loopback; all are closed at the end, and the server has noticed."""
    opened = []

    def call(address="127.0.0.1"):
        one = socket.create_connection(("127.0.0.1", server.port), timeout=10, source_address=(address, 0))
        opened.append(one)
        return one

    yield call
    for one in opened:
        one.close()
    until = time.monotonic() + 10
    while counted(server, "fieldwise_connections") > 1:  # the one that asks
        assert time.monotonic() < until
        time.sleep(0.05)


def counted(server, name, **labels):
    text = server.get("/metrics", headers={"Connection": "close"}).text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


def read_all(connection):
    """What comes until the server closes."""
    found = b""
    try:
        while data := connection.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def refused(answer, status):
    """An answer of the server's one form that closes the connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status), answer
    assert b"connection: close" in head.lower()
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "field"}
    return error["message"]


@pytest.mark.parametrize("head", LONG_HEADS.values(), ids=LONG_HEADS)
def test_a_head_has_a_limit(server, connect, head):
    before = counted(server, "fieldwise_connections_closed_total", limit="head_bytes")
    one = connect()
    one.sendall(head)
    answer = read_all(one)
    assert "4,000 bytes and 100 fields" in refused(answer, 431)
    assert counted(server, "fieldwise_connections_closed_total", limit="head_bytes") == before + 1


def test_a_sender_of_endless_headers_is_cut_off(server, connect):
    """200 MB are never taken: the connection breaks within what the system buffers, and the server stays small."""
    one, sent = connect(), 0
    one.sendall(GET[:-2])
    try:
        while sent < 200_000_000:
            one.sendall(b"X: " + b"a" * 100_000 + b"\r\n")
            sent += 100_005
    except OSError:
        pass
    assert sent < 30_000_000


@pytest.mark.parametrize(
    ("sent", "status"), [(b"", None), (b"\r\n", None), (GET[:20], 408), (GET[:-2] + b"X: a\r\n", 408)]
)
def test_a_head_has_a_time(connect, sent, status):
    one = connect()
    one.sendall(sent)
    answer = read_all(one)
    if status is None:
        assert answer == b""
    else:
        assert "0.6 s to arrive" in refused(answer, status)


def test_dripping_bytes_do_not_prolong_it(connect):
    one = connect()
    one.sendall(GET)
    assert b"200 OK" in one.recv(65536)
    closed = False
    for _ in range(1000):
        try:
            one.sendall(b"\r\n")
        except OSError:
            closed = True
            break
        time.sleep(0.1)
    assert closed


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(connect):
    one = connect()
    for _ in range(3):
        one.sendall(GET)
        answer = b""
        while not answer.endswith(b"}"):  # head and body may come apart
            answer += one.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        time.sleep(0.1)
    read_all(one)
    one.close()


def test_connections_of_an_address_and_of_all(server, connect):
    held = [connect() for _ in range(8)]
    one = connect()
    answer = read_all(one)
    assert "8 connections of one address may be open" in refused(answer, 503)
    assert b"retry-after: 1" in answer
    held += [connect("127.0.0.2") for _ in range(4)]
    assert "12 connections may be open" in refused(read_all(connect("127.0.0.3")), 503)
    for two in held:
        two.close()
    time.sleep(0.2)
    assert server.get("/healthz").status_code == 200
    assert counted(server, "fieldwise_connections_refused_total", limit="address") >= 1
    assert counted(server, "fieldwise_connections_refused_total", limit="all") >= 1


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
def test_malformed_requests_are_answered_in_the_one_form(connect, sent):
    one = connect()
    one.sendall(sent)
    refused(read_all(one), 400)


def test_bytes_behind_a_request_that_are_no_http_leave_nothing_in_the_log(server, connect):
    """The request is still being answered when its connection is ended."""
    for _ in range(3):
        one = connect()
        one.sendall(GET.replace(b"/healthz", b"/v1/about") + b"\0" * 50)
        refused(read_all(one), 400)
    assert "Traceback" not in server.log
    assert "Invalid" not in server.log, "each would be a line that anybody can have written"


@pytest.mark.parametrize("hosts", WRONG_HOSTS)
def test_a_request_has_one_host(connect, hosts):
    one = connect()
    one.sendall(b"GET /healthz HTTP/1.1\r\n" + hosts + b"\r\n")
    assert "one header Host" in refused(read_all(one), 400)


def test_little_is_read_behind_a_refusal(connect):
    """A body beyond the limit, after its 413: what is sent on and on is cut off."""
    one, sent = connect(), 0
    one.sendall(TOO_LARGE)
    try:
        while sent < 300_000_000:
            one.sendall(b"x" * 100_000)
            sent += 100_000
    except OSError:
        pass
    assert sent < 30_000_000


@pytest.mark.parametrize("framing", ENDLESS_FRAMING)
def test_framing_and_trailers_have_limits(connect, framing):
    one, sent = connect(), 0
    one.sendall(CHUNKED)
    try:
        while sent < 200_000_000:
            one.sendall(framing)
            sent += len(framing)
    except OSError:
        pass
    assert sent < 30_000_000


def test_framing_is_limited_by_the_body_that_came(server, connect):
    """Three bytes of a body in 9,000 are too few; one in six is usual."""
    before = counted(server, "fieldwise_connections_closed_total", limit="body")
    one = connect()
    one.sendall(CHUNKED)
    time.sleep(0.1)  # what comes with the head is not counted
    one.sendall(3 * ENDLESS_FRAMING[0])
    assert "8 bytes for each of the body, and 4,000" in refused(read_all(one), 413)
    assert counted(server, "fieldwise_connections_closed_total", limit="body") == before + 1
    one, rows = connect(), b'{"rows": []}' + b" " * 9000
    one.sendall(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in rows) + b"0\r\n\r\n")
    assert one.recv(1000).startswith(b"HTTP/1.1 422"), "an answer to what was asked"


def test_a_reader_that_takes_nothing_is_cut_off_without_a_word_in_the_log(server, connect):
    one = connect()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    ask = GET.replace(b"/healthz", b"/openapi.json")
    before = counted(server, "fieldwise_connections_closed_total", limit="reading")
    until = time.monotonic() + 10
    one.settimeout(0.2)
    while counted(server, "fieldwise_connections_closed_total", limit="reading") == before:
        assert time.monotonic() < until
        try:
            one.send(ask * 50)
        except OSError:
            time.sleep(0.1)
    assert "Traceback" not in server.log


class Wire(asyncio.Transport):
    """A connection in memory: what was written, and whether bytes are read."""

    def __init__(self):
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written, self.is_read = b"", True

    def write(self, data):
        self.written += data

    def pause_reading(self):
        self.is_read = False

    def resume_reading(self):
        self.is_read = True

    def is_closing(self):
        return False

    def close(self):
        pass


def test_few_requests_of_one_connection_are_under_way():
    """A thousand are sent at once: the rest is neither parsed nor read until the first are answered, in order."""
    from prometheus_client import CollectorRegistry
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from fieldwise.serving.connection_limits import ConnectionLimits, Connections
    from fieldwise.serving.connections import limited_protocol

    async def run():
        let, asked, under_way = asyncio.Semaphore(0), [], []

        async def app(scope, receive, send):
            asked.append(scope["path"])
            await receive()
            await let.acquire()
            under_way.append(len(protocol.pipeline))
            body = scope["path"].encode()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
            await send({"type": "http.response.body", "body": body})

        made = limited_protocol(Connections(ConnectionLimits(), CollectorRegistry()))
        protocol, wire = made(Config(app, lifespan="off"), ServerState(), {}), Wire()
        protocol.connection_made(wire)
        sent = [f"/{n:04}" for n in range(1000)]
        protocol.data_received(b"".join(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode() for path in sent))
        await asyncio.sleep(0)
        assert asked == sent[:1]
        assert len(protocol.pipeline) < 200
        assert not wire.is_read
        for number in range(1000):
            let.release()
            while len(asked) < min(number + 2, 1000):
                await asyncio.sleep(0)
        while not wire.written.endswith(b"/0999"):
            await asyncio.sleep(0)
        assert max(under_way) < 200
        assert wire.is_read
        assert [part[-5:].decode() for part in wire.written.split(b"HTTP/1.1 200 OK")[1:]] == sent
        protocol.connection_lost(None)

    asyncio.run(run())


def test_a_server_that_stops_answers_a_request_that_is_half_sent(folder):
    with serving(folder, "ranker") as server:
        where = ("127.0.0.1", server.port)
        with socket.create_connection(where, timeout=20) as idle, socket.create_connection(where, timeout=20) as one:
            one.sendall(GET[:20])
            idle.sendall(GET)
            assert idle.recv(15) == b"HTTP/1.1 200 OK"
            server.process.terminate()
            read_all(idle)  # until it is closed: the server stops
            one.sendall(GET[20:])
            answer = read_all(one)
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b"connection: close" in answer.lower()
        server.process.wait(20)


def test_few_files_are_no_end_of_service(folder):
    """Half heads from 400 connections where the system allows 200 files: others are answered once those are late."""

    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))"
    with serving(folder, "ranker", "--head-timeout", 1, before=few) as server:
        assert "at most 72 connections, because of the system's limit of open files" in server.log
        held = []
        for _ in range(400):
            try:
                held.append(socket.create_connection(("127.0.0.1", server.port), timeout=5))
                held[-1].sendall(GET[:20])
            except OSError:
                pass
        until = time.monotonic() + 10
        while True:
            try:
                if server.get("/healthz").status_code == 200:
                    break
            except Exception:  # refused, or closed at once
                pass
            assert time.monotonic() < until
            time.sleep(0.1)
        for one in held:
            one.close()
        assert "Traceback" not in server.log

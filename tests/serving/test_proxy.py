"""`deploy/nginx.conf` in a real nginx before the server: what passes, and that hostile traffic stops nobody else."""

import contextlib
import os
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving.commands import serving
from serving.hostile import ROW
from serving.servers import free_port, until
from serving.test_http import refused

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
CLIENTS = "127.0.0.2"  # of the hostile ones


def listens(port):
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def proxied(tmp_path_factory, ranker):
    """A server with a token behind nginx: the server, the port and the client's TLS settings."""
    nginx, openssl = (
        shutil.which("nginx", path="/usr/sbin:" + os.environ["PATH"]),
        shutil.which("openssl"),
    )
    if nginx is None or openssl is None:
        pytest.skip("nginx or openssl is absent: install nginx")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    place = tmp_path_factory.mktemp("nginx")
    ranker.save(place / "ranker")
    make = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=recommend.example",
    ]
    files = ["-keyout", str(place / "recommend.key"), "-out", str(place / "recommend.pem")]
    subprocess.run([openssl, *make, *files], check=True, capture_output=True)
    with serving(place, "ranker", FIELDWISE_TOKEN="secret") as server:
        port = free_port()
        text = CONFIGURATION.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace(
            "/etc/ssl", str(place)
        )
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{name}_temp_path {place}/{name};" for name in kinds)
        user = "user root;" if os.getuid() == 0 else ""
        (place / "nginx.conf").write_text(
            f"{user}daemon off;worker_processes 1;pid {place}/pid;error_log {place}/error.log;"
            f"events {{worker_connections 4096;}}\nhttp {{access_log off;{temporary}\n{text}}}\n"
        )
        words = [nginx, "-c", place / "nginx.conf", "-p", place]
        proxy = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        try:
            until(lambda: proxy.poll() is not None or listens(port))
            assert proxy.poll() is None, proxy.stderr.read()
            trusting = ssl.create_default_context(cafile=place / "recommend.pem")
            trusting.check_hostname = False
            yield server, port, trusting
        finally:
            proxy.terminate()
            proxy.wait(120)
            proxy.stderr.close()


@contextlib.contextmanager
def asking(proxied):
    _, port, trusting = proxied
    headers = {"Authorization": "Bearer secret", "Host": "recommend.example"}
    with httpx.Client(
        base_url=f"https://127.0.0.1:{port}", verify=trusting, headers=headers, timeout=120
    ) as client:
        yield client


def test_what_passes_the_proxy(proxied):
    with asking(proxied) as client:
        answer = client.post("/v1/predict", json={"rows": [ROW]})
        assert answer.status_code == 200, answer.text
        assert client.get("/healthz").status_code == 200
        assert client.get("/metrics").status_code == 404
        assert client.get("/docs").status_code == 404
        for _ in range(5):  # an answer that comes before the body's end is not lost
            refused(client.post("/v1/predict", content=b"x" * (1 << 21)), 413, field="body")
            wrong = {"Authorization": "Bearer x"}
            refused(client.post("/v1/predict", content=b"x" * (1 << 20), headers=wrong), 401)
        refused(client.post("/v1/predict", json={"rows": []}), 422, field="rows")
        refused(
            client.post("/v1/predict", json={"rows": [ROW]}, headers={"Authorization": "Bearer x"}),
            401,
        )


HEAD = b"Host: recommend.example\r\n"
GET, POST = b"GET /healthz HTTP/1.1\r\n" + HEAD, b"POST /v1/predict HTTP/1.1\r\n" + HEAD
CHUNK = b"8000\r\n%b\r\n" % (b"x" * 32768)
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("connections", "tls", "sent"),
    [
        pytest.param(50, True, GET[:-19], id="slow heads"),
        pytest.param(
            1, True, POST + b"Content-Length: 1000000\r\n\r\n" + b"[" * 1_000_000, id="large bodies"
        ),
        pytest.param(1, True, (GET + b"\r\n") * 5_000, id="pipelining", marks=SLOW),
        pytest.param(1_500, False, b"", id="silent connections", marks=SLOW),
        pytest.param(
            1,
            True,
            POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNK * 1000,
            id="endless",
            marks=SLOW,
        ),
        pytest.param(1, True, GET + b"A: b\r\n" * 20_000, id="a flood of headers", marks=SLOW),
    ],
)
def test_hostile_traffic_stops_nobody_else(proxied, connections, tls, sent):
    """Others' `/healthz` and predictions are all answered while another address is hostile."""
    _, port, trusting = proxied
    opened, done, answered = [], threading.Event(), []

    def others():
        with asking(proxied) as client:
            while not done.is_set():
                assert client.get("/healthz").status_code == 200
                assert client.post("/v1/predict", json={"rows": [ROW]}).status_code == 200
                answered.append(1)
                time.sleep(0.01)  # the proxy lets 200 a second pass

    def attack():
        for _ in range(connections):
            one = socket.create_connection(
                ("127.0.0.1", port), timeout=120, source_address=(CLIENTS, 0)
            )
            opened.append(trusting.wrap_socket(one) if tls else one)
            with contextlib.suppress(OSError):  # the proxy may close it, which is what it is for
                opened[-1].sendall(sent)

    with ThreadPoolExecutor(2) as pool:
        honest = pool.submit(others)
        try:
            pool.submit(attack).result()
            so_far = len(answered)
            until(lambda: len(answered) >= so_far + 20 or honest.done())
        finally:
            done.set()
            for one in opened:
                one.close()
        honest.result()
    assert len(answered) >= so_far + 20

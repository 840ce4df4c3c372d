"""`deploy/nginx.conf` in a real nginx before the server: what passes, and that hostile traffic stops nobody else."""

import contextlib
import json
import os
import resource
import shutil
import socket
import ssl
import statistics
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from serving.commands import serving
from serving.hostile import ROW
from serving.servers import free_port
from serving.test_http import refused

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx.conf"
CLIENTS = "127.0.0.2"  # of the hostile ones


def listens(port):
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def proxied(tmp_path_factory, ranker):
    """A server with a token behind nginx: the server, the port and the client's TLS settings."""
    nginx, openssl = shutil.which("nginx", path="/usr/sbin:" + os.environ["PATH"]), shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("nginx or openssl is absent: install nginx")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    place = tmp_path_factory.mktemp("nginx")
    ranker.save(place / "ranker")
    make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=recommend.example"]
    files = ["-keyout", str(place / "recommend.key"), "-out", str(place / "recommend.pem")]
    subprocess.run([openssl, *make, *files], check=True, capture_output=True)
    with serving(place, "ranker", FIELDWISE_TOKEN="secret") as server:
        port = free_port()
        text = CONFIGURATION.read_text().replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("/etc/ssl", str(place))
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
            until = time.monotonic() + 300
            while not listens(port):
                assert proxy.poll() is None, proxy.stderr.read()
                assert time.monotonic() < until
                time.sleep(0.05)
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
    with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusting, headers=headers, timeout=120) as client:
        yield client


def test_what_passes_the_proxy(proxied):
    with asking(proxied) as client:
        answer = client.post("/v1/predict", json={"rows": [ROW]})
        assert answer.status_code == 200, answer.text
        assert client.get("/healthz").status_code == 200
        assert client.get("/metrics").status_code == 404
        assert client.get("/docs").status_code == 404
        for _ in range(20):  # an answer that comes before the body's end is not lost
            refused(client.post("/v1/predict", content=b"x" * (1 << 21)), 413, field="body")
            wrong = {"Authorization": "Bearer x"}
            refused(client.post("/v1/predict", content=b"x" * (1 << 20), headers=wrong), 401)
        refused(client.post("/v1/predict", json={"rows": []}), 422, field="rows")
        refused(client.post("/v1/predict", json={"rows": [ROW]}, headers={"Authorization": "Bearer x"}), 401)


class Hostile:
    """Connections of another address to the proxy, with TLS."""

    def __init__(self, port, trusting):
        self.port, self.trusting, self.open = port, trusting, []

    def connect(self, *, tls=True):
        one = socket.create_connection(("127.0.0.1", self.port), timeout=120, source_address=(CLIENTS, 0))
        one = self.trusting.wrap_socket(one) if tls else one
        self.open.append(one)
        return one

    def send(self, data, *, times=1, then=b""):
        one = self.connect()
        with contextlib.suppress(OSError):  # it is thrown out, which is what the proxy is for
            one.sendall(data * times)
            for _ in range(1000 if then else 0):
                one.sendall(then)

    def close(self):
        for one in self.open:
            one.close()


HEAD = b"Host: recommend.example\r\n"
POST = b"POST /v1/predict HTTP/1.1\r\n" + HEAD
ATTACKS = {
    "pipelining": lambda it: it.send(b"GET /healthz HTTP/1.1\r\n" + HEAD + b"\r\n", times=5_000),
    "slow heads": lambda it: [it.connect().sendall(b"GET /healthz HTTP/1.1\r\nHost: r") for _ in range(50)],
    "silent connections": lambda it: [it.connect(tls=False) for _ in range(1_500)],
    "an endless body": lambda it: it.send(
        POST + b"Transfer-Encoding: chunked\r\n\r\n", then=b"8000\r\n%b\r\n" % (b"x" * 32768)
    ),
    "large bodies": lambda it: it.send(POST + b"Content-Length: 1000000\r\n\r\n" + b"[" * 1_000_000),
    "a flood of headers": lambda it: it.send(b"GET /healthz HTTP/1.1\r\n" + HEAD + b"A: b\r\n" * 20_000),
}


QUICK = ("slow heads", "large bodies")


@pytest.mark.parametrize(
    "attack", [one if one in QUICK else pytest.param(one, marks=pytest.mark.slow) for one in ATTACKS]
)
def test_hostile_traffic_stops_nobody_else(proxied, attack, record_property):
    """Others' /healthz and predictions are all answered; the seconds are printed with -rA, not asserted."""
    _, port, trusting = proxied
    hostile, done, seconds = Hostile(port, trusting), threading.Event(), []

    def others():
        with asking(proxied) as client:
            while not done.is_set():
                began = time.perf_counter()
                assert client.get("/healthz").status_code == 200
                seconds.append(time.perf_counter() - began)
                assert client.post("/v1/predict", json={"rows": [ROW]}).status_code == 200
                time.sleep(0.01)  # the proxy lets 200 a second pass

    with ThreadPoolExecutor(2) as pool:
        honest = pool.submit(others)
        try:
            pool.submit(ATTACKS[attack], hostile).result()
            until, so_far = time.monotonic() + 120, len(seconds)
            while len(seconds) < so_far + 20 and not honest.done() and time.monotonic() < until:
                time.sleep(0.05)
        finally:
            done.set()
            hostile.close()
        honest.result()
    results = {"median": statistics.median(seconds), "most": max(seconds), "answers": len(seconds)}
    record_property("others", results)
    print(f"{attack}: others' /healthz {json.dumps(results)}")

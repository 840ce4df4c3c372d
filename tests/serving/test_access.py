"""Whom a server lets in: tokens that are none, addresses that others reach, names that lead here; and a real proxy."""

import os
import re
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import httpx
import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from serving.commands import serving
from serving.hostile import ROW
from serving.servers import free_port
from serving.test_http import client, refused

from fieldwise.cli import run
from fieldwise.errors import ConfigError
from fieldwise.serving.http import ServerSettings
from fieldwise.serving.service import Service

PRODUCTION = Path(__file__).parents[2] / "docs" / "how-to" / "production.md"


def listens(port):
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory, ranker):
    made = tmp_path_factory.mktemp("served")
    ranker.save(made / "ranker")
    return made


@pytest.mark.parametrize(
    ("arguments", "token", "said"),
    [
        ([], "", "found an empty one: give --token or FIELDWISE_TOKEN a value, or unset it"),
        ([], "  ", "found an empty one"),
        (["--token", ""], None, "found an empty one"),
        (["--host", "0.0.0.0"], None, "a server on a non-loopback address needs a token, found --host 0.0.0.0"),
        (["--host", "::"], None, "needs a token, found --host ::"),
        (["--host", "a-name-of-some-machine"], None, "needs a token"),
        (["--no-token"], "secret", "--no-token allows access without a token, found a token too"),
    ],
)
def test_what_would_let_everyone_in_is_refused(folder, monkeypatch, capsys, arguments, token, said):
    if token is None:
        monkeypatch.delenv("FIELDWISE_TOKEN", raising=False)
    else:
        monkeypatch.setenv("FIELDWISE_TOKEN", token)
    assert run(["serve", str(folder / "ranker"), "--port", "0", *arguments]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert said in told


def test_an_empty_token_is_refused_in_python():
    for token in ("", " "):
        with pytest.raises(ConfigError, match="must not be empty"):
            ServerSettings(token=token)


def test_a_server_has_names(ranker):
    named = client(Service(ranker), allow_hosts=frozenset({"localhost", "[::1]", "shop.example"}))
    for host in ("localhost", "LOCALHOST:8000", "[::1]:8000", "[::1]", "shop.example:"):
        assert named.get("/v1/about", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "localhost.evil.example", "evil.example:8000", "localhost:x", "[::1", ""):
        refused(named.get("/v1/about", headers={"Host": host}), 421, "--allow-host", field="host")
        refused(named.get("/", headers={"Host": host}), 421)
        assert named.get("/healthz", headers={"Host": host}).status_code == 200, "probes call it by its address"


def test_the_host_of_an_absolute_target_is_the_one_that_counts(folder):
    def status(target, host):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as one:
            one.sendall(f"GET {target}/v1/about HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return one.makefile("rb").readline().split()[1]

    with serving(folder, "ranker") as server:
        assert status("", "localhost") == b"200"
        assert status("http://localhost", "localhost") == b"200"
        assert status("http://localhost:80", "evil.example") == b"200", "the header is not looked at"
        for target in ("http://evil.example", "https://evil.example:80", "http://localhost@evil.example"):
            assert status(target, "localhost") == b"421", target


def test_names_on_loopback(folder):
    """Without a token those of this machine; with one, or with `--allow-host '*'`, any."""
    other = {"Host": "evil.example"}
    with serving(folder, "ranker") as server:
        assert server.get("/v1/about").status_code == 200
        assert server.get("/v1/about", headers={"Host": f"localhost:{server.port}"}).status_code == 200
        assert server.get("/v1/about", headers=other).status_code == 421
    with serving(folder, "ranker", "--host", "0.0.0.0", "--no-token", "--allow-host", "shop.example") as server:
        assert server.get("/v1/about", headers=other).status_code == 421
        assert server.get("/v1/about", headers={"Host": "shop.example"}).status_code == 200


def test_the_proxys_configuration_of_the_documentation(folder, tmp_path):
    """nginx as docs/how-to/production.md has it, with ports, a certificate and folders of this test."""
    nginx, openssl = shutil.which("nginx", path="/usr/sbin:" + os.environ["PATH"]), shutil.which("openssl")
    if nginx is None or openssl is None:
        pytest.skip("nginx or openssl is absent: install nginx")
    block = re.search(r"```nginx\n(.*?)```", PRODUCTION.read_text(), re.S)
    assert block is not None
    make = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=recommend.example"]
    files = ["-keyout", str(tmp_path / "recommend.key"), "-out", str(tmp_path / "recommend.pem")]
    subprocess.run([openssl, *make, *files], check=True, capture_output=True)
    with serving(folder, "ranker", FIELDWISE_TOKEN="secret") as server:
        port = free_port()
        text = block[1].replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
        text = text.replace("127.0.0.1:8001", f"127.0.0.1:{free_port()}")  # the second one is down
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("/etc/ssl", str(tmp_path))
        text = text.replace("/etc/ssl/recommend", str(tmp_path / "recommend"))
        temporary = "".join(
            f"{name}_temp_path {tmp_path}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.getuid() == 0 else ""
        (tmp_path / "nginx.conf").write_text(
            f"{user}daemon off;worker_processes 1;pid {tmp_path}/pid;error_log {tmp_path}/error.log;events {{}}\n"
            f"http {{access_log off;{temporary}\n{text}}}\n"
        )
        proxy = subprocess.Popen(
            [nginx, "-c", tmp_path / "nginx.conf", "-p", tmp_path], stderr=subprocess.PIPE, text=True
        )
        try:
            until = time.monotonic() + 10
            while not listens(port):
                assert proxy.poll() is None, proxy.stderr.read()
                assert time.monotonic() < until
                time.sleep(0.05)
            trusting = ssl.create_default_context(cafile=tmp_path / "recommend.pem")
            trusting.check_hostname = False
            headers = {"Authorization": "Bearer secret", "Host": "recommend.example"}
            base = f"https://127.0.0.1:{port}"
            with httpx.Client(base_url=base, verify=trusting, headers=headers, timeout=20) as asking:
                for _ in range(8):  # whichever of the two servers is asked first
                    answer = asking.post("/v1/predict", json={"rows": [ROW]})
                    assert answer.status_code == 200, answer.text
                assert asking.get("/metrics").status_code == 404
                assert asking.get("/docs").status_code == 404
                answer = asking.post("/v1/predict", content=b"x" * (1 << 21))
                assert answer.status_code == 413
                refused(asking.post("/v1/predict", json={"rows": []}), 422, field="rows")
                refused(asking.post("/v1/predict", json={"rows": [ROW]}, headers={"Authorization": "Bearer x"}), 401)
                time.sleep(5.5)  # both close idle connections: no request meets one that is closing
                assert asking.post("/v1/predict", json={"rows": [ROW]}).status_code == 200
        finally:
            proxy.terminate()
            proxy.wait(10)
            proxy.stderr.close()

"""Several server processes on one port, by uvicorn's supervisor: what they share, say and count, and how they end."""

import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from forked import Command
from serving.commands import serving
from serving.conftest import log, make
from serving.servers import until

from fieldwise import FM
from fieldwise.serving import loader
from fieldwise.serving.loader import ServiceLoader, share_weights
from fieldwise.serving.settings import Sources
from fieldwise.storage.arrays import SharedArrays

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tests read /proc")


def children(process):
    return [
        int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ]


def is_running(process):
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def is_read(connection):
    """Whether a process has taken the other end of a connection, and has read all that was sent."""
    ours, theirs = (
        f"{port:04X}" for _, port in (connection.getsockname(), connection.getpeername())
    )
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, _, _, _, _, inode, *_ = line.split()
        if (local[-4:], remote[-4:]) == (theirs, ours):
            return inode != "0" and int(queues.rpartition(":")[2], 16) == 0
    return False


def scores(server, rows):
    """What a worker answers on a connection of its own."""
    answer = httpx.post(f"{server.place}/v1/predict", json={"rows": rows.to_dicts()}, timeout=120)
    assert answer.status_code == 200, answer.text
    return pytest.approx([one["score"] for one in answer.json()["predictions"]], abs=1e-6)


def test_a_server_with_two_workers(tmp_path, ranker):
    ranker.save(tmp_path / "ranker")
    rows, newer = log(4, seed=9), make(FM(embedding_dim=4), seed=6)
    body = httpx.Request("POST", "http://a/", json={"rows": rows.to_dicts()}).content
    with serving(tmp_path, "ranker", "--workers", 2, "--watch", 0.2) as server:
        assert "2 workers" in server.log

        def counted():
            text = server.get("/metrics").text
            assert text.count("# TYPE fieldwise_requests_total counter") == 1
            return sum(
                float(n)
                for n in re.findall(r"^fieldwise_requests_total\{.*predict.*\} (\S+)$", text, re.M)
            )

        for _ in range(8):
            assert scores(server, rows) == ranker.score(rows).tolist()
        until(lambda: counted() == 8)  # whichever worker is asked; counted after the answer
        newer.save(tmp_path / "ranker", overwrite=True)
        # the least of all workers
        until(lambda: "fieldwise_replacements 1.0" in server.get("/metrics").text)
        for _ in range(6):
            assert scores(server, rows) == newer.score(rows).tolist()
        until(lambda: counted() == 14)

        # Half of a request has come when the server is told to stop; the rest comes afterwards, and
        # is answered.
        lines = ["POST /v1/predict HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
        with socket.create_connection(("127.0.0.1", server.port), timeout=300) as one:
            one.sendall(head.encode() + body[:20])
            until(lambda: is_read(one))
            server.process.terminate()
            time.sleep(1)
            one.sendall(body[20:])
            assert one.makefile("rb").readline().split()[1] == b"200"
        assert server.process.wait() == 0
        assert "Traceback" not in server.log


@pytest.mark.slow
def test_workers_that_start_again_while_the_bundle_is_damaged_serve_the_next_good_one(
    tmp_path, ranker
):
    ranker.save(tmp_path / "ranker")
    rows, newest = log(4, seed=9), make(FM(embedding_dim=4), seed=7)
    with serving(tmp_path, "ranker", "--workers", 2, "--watch", 0.2) as server:
        (tmp_path / "ranker" / "bundle.json").write_text("{}")
        for worker in children(server.process.pid):
            os.kill(worker, signal.SIGKILL)
        server.process.heard(r"is damaged: ")
        newest.save(tmp_path / "ranker", overwrite=True)
        until(lambda: all(scores(server, rows) == newest.score(rows).tolist() for _ in range(6)))


@pytest.mark.slow
@pytest.mark.parametrize("when", ["they serve", "they start"])
def test_workers_end_with_the_first_process(tmp_path, ranker, monkeypatch, when):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ranker.save(tmp_path / "ranker")
    with serving(tmp_path, "ranker", "--workers", 2) as server:
        if when == "they serve":
            assert server.get("/healthz").status_code == 200
        workers = []
        while len(workers) < 3:  # two, and multiprocessing's tracker of resources
            assert server.process.poll() is None
            workers = children(server.process.pid)
            time.sleep(0.01)
        os.kill(server.process.pid, signal.SIGKILL)
        until(lambda: not any(map(is_running, workers)))


@pytest.mark.slow
def test_a_bundle_that_cannot_be_served_is_one_error(tmp_path, ranker):
    ranker.save(tmp_path / "ranker")
    (tmp_path / "ranker" / "bundle.json").write_text("{}")
    command = Command("serve", "ranker", "--workers", "2", "--port", "0", folder=tmp_path)
    assert command.wait() == 2
    assert command.errors.count("is damaged") == 1
    assert "Traceback" not in command.errors


def test_a_replaced_bundle_leaves_no_shared_memory(tmp_path, monkeypatch, tower, ranker, items):
    monkeypatch.setattr(loader, "LEAST_SHARED_BYTES", 0)
    (tmp_path / "shared").mkdir()
    items.write_parquet(tmp_path / "items.parquet")
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    items_file = str(tmp_path / "items.parquet")
    sources = Sources(bundle=tmp_path / "ranker", tower=tmp_path / "tower", items=items_file)
    load = ServiceLoader(sources, shared=tmp_path / "shared")
    first = load()

    def files():
        return {path.name for path in (tmp_path / "shared").iterdir()}

    before = files()
    kinds = {name.partition("-")[0] for name in before}
    assert kinds >= {"weights", "index", "items", "encoded_ids", "vectors_1"}
    rows = log(4, seed=9)
    wanted = first.bundle.score(rows).tolist()
    make(seed=8).save(tmp_path / "tower", overwrite=True)
    make(ranker.settings, seed=6).save(tmp_path / "ranker", overwrite=True)
    second = load()
    after = files()
    assert len(after) == len(before)
    assert {name.partition("-")[0] for name in after - before} == kinds
    assert first.bundle.score(rows).tolist() == wanted
    assert second.bundle.score(rows).tolist() != wanted


def test_weights_in_shared_memory_are_equal(tmp_path):
    shared = SharedArrays(tmp_path / "shared")
    shared.folder.mkdir()
    bundle = make(FM(embedding_dim=16), seed=1)
    bundle.network.extra = torch.nn.Parameter(torch.randn(300, 100))
    before = {name: value.clone() for name, value in bundle.network.state_dict().items()}
    share_weights(bundle.network, shared)
    assert all(
        torch.equal(value, before[name]) for name, value in bundle.network.state_dict().items()
    )
    stored = [path for path in shared.folder.iterdir() if path.name.startswith("weights-")]
    assert [np.load(path).shape for path in stored] == [(300, 100)]
    assert str(stored[0]) in Path("/proc/self/maps").read_text()

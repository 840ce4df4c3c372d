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

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from forked import Command
from serving.commands import serving
from serving.conftest import log, make

from fieldwise.cli.listening import Listening
from fieldwise.cli.serve_options import LogReading, ServeOptions
from fieldwise.cli.serve_sources import Loader
from fieldwise.models import FM
from fieldwise.serving import weights
from fieldwise.serving.index import build_index, open_index
from fieldwise.serving.weights import share_weights
from fieldwise.storage.shared import SharedArrays

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tests read /proc")


def children(process):
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def is_running(process):
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False


def gone(processes):
    deadline = time.monotonic() + 60
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, processes
        time.sleep(0.02)


def test_a_server_with_two_workers(tmp_path, ranker):
    ranker.save(tmp_path / "ranker")
    rows = log(4, seed=9).to_dicts()
    with serving(tmp_path, "ranker", "--workers", 2, "--watch", 0.2) as server:
        assert "2 workers" in server.log

        def predict():
            with httpx.Client() as client:  # a connection of its own
                answer = client.post(f"{server.place}/v1/predict", json={"rows": rows}, timeout=60)
            assert answer.status_code == 200, answer.text
            return [one["score"] for one in answer.json()["predictions"]]

        def counted():
            text = server.get("/metrics").text
            assert text.count("# TYPE fieldwise_requests_total counter") == 1
            return sum(float(n) for n in re.findall(r"^fieldwise_requests_total\{.*predict.*\} (\S+)$", text, re.M))

        wanted = ranker.score(log(4, seed=9)).tolist()
        for _ in range(12):
            assert predict() == pytest.approx(wanted, abs=1e-6)
        assert counted() == 12  # whichever worker is asked
        newer = make(FM(embedding_dim=4), seed=6)
        newer.save(tmp_path / "ranker")
        deadline = time.monotonic() + 60
        while "fieldwise_replacements 1.0" not in server.get("/metrics").text:  # the least of all workers
            assert time.monotonic() < deadline, server.log
            time.sleep(0.05)
        wanted = newer.score(log(4, seed=9)).tolist()
        for _ in range(6):
            assert predict() == pytest.approx(wanted, abs=1e-6)
        assert counted() == 18


def test_workers_that_are_started_again_serve_the_last_good_bundle(tmp_path, ranker):
    ranker.save(tmp_path / "ranker")
    rows = log(4, seed=9)
    with serving(tmp_path, "ranker", "--workers", 2, "--watch", 0.2) as server:

        def scores():
            answer = httpx.post(f"{server.place}/v1/predict", json={"rows": rows.to_dicts()}, timeout=30)
            return [one["score"] for one in answer.json()["predictions"]]

        (tmp_path / "ranker" / "bundle.json").write_text("{}")
        for worker in children(server.process.pid):
            os.kill(worker, signal.SIGKILL)
        server.process.heard(r"is damaged: .*the last good one is served")
        assert scores() == pytest.approx(ranker.score(rows).tolist(), abs=1e-6)
        newer = make(FM(embedding_dim=4), seed=6)
        newer.save(tmp_path / "ranker")
        wanted, deadline = pytest.approx(newer.score(rows).tolist(), abs=1e-6), time.monotonic() + 60
        while not all(scores() == wanted for _ in range(6)):
            assert time.monotonic() < deadline, server.log


def test_workers_that_stop_answer_what_is_under_way(tmp_path, ranker):
    """Half of a request has come when the server is told to stop; the rest comes afterwards."""
    ranker.save(tmp_path / "ranker")
    body = httpx.Request("POST", "http://a/", json={"rows": log(4, seed=9).to_dicts()}).content
    lines = ["POST /v1/predict HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])
    with serving(tmp_path, "ranker", "--workers", 2) as server:
        assert server.get("/healthz").status_code == 200
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as one:
            one.sendall(head.encode() + body[:20])
            time.sleep(1)  # it is read by a worker
            server.process.terminate()
            time.sleep(1)
            one.sendall(body[20:])
            assert one.makefile("rb").readline().split()[1] == b"200"
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.log


def test_workers_end_with_the_first_process(tmp_path, ranker, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ranker.save(tmp_path / "ranker")
    with serving(tmp_path, "ranker", "--workers", 2) as server:
        assert server.get("/healthz").status_code == 200
        workers = children(server.process.pid)
        assert len(workers) >= 2
        os.kill(server.process.pid, signal.SIGKILL)
        gone(workers)


def test_what_cannot_be_served_is_said_once(tmp_path, ranker):
    ranker.save(tmp_path / "ranker")
    (tmp_path / "ranker" / "bundle.json").write_text("{}")
    command = Command("serve", "ranker", "--workers", "2", "--port", "0", folder=tmp_path)
    assert command.wait(90) == 2
    assert command.errors.count("is damaged") == 1
    assert "Traceback" not in command.errors


def mapped(path):
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_replaced_bundle_leaves_no_shared_memory(tmp_path, monkeypatch, tower, ranker, items):
    monkeypatch.setattr(weights, "LEAST", 0)
    (tmp_path / "shared").mkdir()
    items.write_parquet(tmp_path / "items.parquet")
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    listening = Listening()
    options = ServeOptions(
        bundle=tmp_path / "ranker", prerank=tmp_path / "tower", items=str(tmp_path / "items.parquet"),
        reading=LogReading(), listening=listening,
    )  # fmt: skip
    load = Loader(options, lambda _: None, tmp_path / "shared")
    first = load()
    before = {path.name for path in (tmp_path / "shared").iterdir()}
    kinds = {name.partition("-")[0] for name in before}
    assert kinds >= {"weights", "index", "items", "encoded_ids", "vectors_1"}
    rows = log(4, seed=9)
    wanted = first.bundle.score(rows).tolist()
    make(seed=8).save(tmp_path / "tower")
    make(ranker.settings, seed=6).save(tmp_path / "ranker")
    second = load()
    after = {path.name for path in (tmp_path / "shared").iterdir()}
    assert len(after) == len(before)
    assert {name.partition("-")[0] for name in after - before} == kinds
    assert first.bundle.score(rows).tolist() == wanted
    assert second.bundle.score(rows).tolist() != wanted


def test_weights_and_heads_in_shared_memory_are_equal(tmp_path, tower, items):
    shared = SharedArrays(tmp_path / "shared")
    shared.folder.mkdir()
    bundle = make(FM(embedding_dim=16), seed=1)
    bundle.network.extra = torch.nn.Parameter(torch.randn(300, 100))
    before = {name: value.clone() for name, value in bundle.network.state_dict().items()}
    share_weights(bundle.network, shared)
    assert all(torch.equal(value, before[name]) for name, value in bundle.network.state_dict().items())
    stored = [path for path in shared.folder.iterdir() if path.name.startswith("weights-")]
    assert [np.load(path).shape for path in stored] == [(300, 100)]
    build_index(tower, items, tmp_path / "index")
    plain = open_index(tmp_path / "index")
    heads = [open_index(tmp_path / "index", shared=shared).stored.tensors()["heads"] for _ in range(2)]
    assert all(torch.equal(one, plain.stored.tensors()["heads"]) for one in heads)
    assert len(list(shared.folder.glob("heads-*.npy"))) == 1
    assert mapped(stored[0])
    assert mapped(next(shared.folder.glob("heads-*.npy")))

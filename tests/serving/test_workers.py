"""Several server processes on one port: started again when they die, stopped together, with shared memory."""

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from serving.commands import serving
from serving.conftest import log, make

from fieldwise.cli.listening import Listening
from fieldwise.cli.serve_options import LogReading, ServeOptions
from fieldwise.cli.serve_sources import Loader
from fieldwise.cli.workers import Supervisor, _Process
from fieldwise.models import FM
from fieldwise.serving import weights
from fieldwise.serving.index import build_index, open_index
from fieldwise.serving.weights import share_weights
from fieldwise.storage.locks import LOCK
from fieldwise.storage.shared import SharedArrays

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tests read /proc")

# A worker that answers each connection with its number and process, or fails.
SMALL = """
import os, sys, time
from fieldwise.cli.workers import Worker

def prepare(worker):
    if sys.argv[-1] == "lingers":
        print("port 1", flush=True)
        time.sleep(60)
    if sys.argv[-1] == "fails":
        print("no bundle here", file=sys.stderr)
        return 1
    (worker.shared / "made").touch()
    return 0

def work(worker):
    if sys.argv[-1] == "fails":
        print("no bundle here", file=sys.stderr)
        return 1
    listening = worker.socket()
    worker.begin()
    while True:
        connection = listening.accept()[0]
        connection.sendall(f"{worker.number} {os.getpid()}".encode())
        connection.close()

if __name__ == "__main__" and Worker.current():
    sys.exit(work(Worker.current()))
"""
FIRST = """
import socket, sys
from fieldwise.cli.workers import Supervisor
exec(sys.argv[1])
listening = socket.create_server(("127.0.0.1", 0))
say = lambda text: print(text, flush=True)
supervisor = Supervisor(command=[sys.executable, "-c", sys.argv[1], sys.argv[3]], count=2, listening=listening,
    grace=0.0, say=say, ready=lambda: say(f"port {listening.getsockname()[1]}"),
    work=work if sys.argv[2] == "forked" else None, prepare=prepare if sys.argv[2] == "forked" else None)
sys.exit(supervisor.run())
"""
# prometheus_client must be loaded when the first process has said where metrics of several processes lie.
FRESH = """
import sys
for name in list(sys.modules):
    if name.startswith(("prometheus_client", "fieldwise.serving")):
        del sys.modules[name]
"""
WAYS = ["forked", "started"]  # how workers begin, on Linux and elsewhere


@contextmanager
def first_process(how="works", way="forked"):
    words = [sys.executable, "-c", FIRST, SMALL, way, how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def asked(port):
    """The number and process of the worker that answers."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        number, process = connection.recv(100).decode().split()
    return int(number), int(process)


def both(port, known=frozenset()):
    """The processes of both workers, once both answer and none is a known one."""
    deadline, found = time.monotonic() + 60, {}
    while len(found) < 2 or set(found.values()) & known:
        assert time.monotonic() < deadline, found
        number, process = asked(port)
        found[number] = process
    return found


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


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_that_dies_is_started_again_and_all_are_stopped_together(way):
    with first_process(way=way) as first:
        port = int(first.stdout.readline().split()[1])
        before = both(port)
        os.kill(before[2], signal.SIGKILL)
        said = first.stdout.readline()
        assert re.fullmatch(r"worker 2 ended with signal 9: it is started again (in 1 s|now)\n", said), said
        after = both(port, {before[2]})
        assert after[1] == before[1]
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        gone(after.values())


def folder_in(place):
    """The folder that workers share, made in a folder of temporary files."""
    (folder,) = place.iterdir()
    return folder


def test_what_workers_share_is_made_before_them_by_a_process_that_ends(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with first_process() as first:
        workers = both(int(first.stdout.readline().split()[1]))
        assert (folder_in(tmp_path) / "shared" / "made").exists()
        assert set(children(first.pid)) == set(workers.values())
    with first_process("lingers") as first:
        assert first.stdout.readline() == "port 1\n"
        (lingering,) = children(first.pid)
        first.send_signal(signal.SIGTERM)
        assert (first.wait(30), first.stdout.read()) == (0, "")
        assert not is_running(lingering)


@pytest.mark.parametrize("way", WAYS)
def test_workers_end_with_the_first_process_and_leave_nothing(way, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with first_process(way=way) as first:
        workers = both(int(first.stdout.readline().split()[1]))
        folder = folder_in(tmp_path)
        assert {one.name for one in folder.iterdir()} == {"metrics", "shared", LOCK}
        first.kill()
        gone(workers.values())
        assert not folder.exists()


def test_what_servers_that_were_killed_have_left_is_removed(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    left = tmp_path / ".fieldwise-scratch.abcd1234"
    (left / "shared").mkdir(parents=True)
    (left / "shared" / "weights.npy").write_bytes(bytes(100))
    for path in (left / "shared" / "weights.npy", left / "shared", left):
        os.utime(path, (0, 0))
    with first_process() as first:
        both(int(first.stdout.readline().split()[1]))
        folder = folder_in(tmp_path)
        os.utime(folder, (0, 0))
        with first_process() as second:
            both(int(second.stdout.readline().split()[1]))
            assert folder.exists(), "its server runs"
            second.send_signal(signal.SIGTERM)
            assert second.wait(30) == 0
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
    assert not list(tmp_path.iterdir())


def test_a_hangup_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which nohup does
    try:
        with first_process() as first:
            port = int(first.stdout.readline().split()[1])
            workers = both(port)
            first.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            assert both(port) == workers
            first.send_signal(signal.SIGTERM)
            assert first.wait(30) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_worker_that_cannot_be_started_is_tried_again(tmp_path):
    said, worker = [], _Process(number=2)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        first = Supervisor(command=[str(tmp_path / "gone")], count=2, listening=listening, grace=0.0, say=said.append)
        first._keep(worker, str(tmp_path), 0)
    assert worker.process is None
    assert worker.pause == 1
    assert re.fullmatch(r"worker 2 cannot be started \(.*gone'\): the next attempt is in 1 s", said[0]), said


def test_a_signal_that_ends_a_process_before_the_server_is_ready_is_said(subtests, monkeypatch):
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")  # set by the supervisor, and put back after the test

    def dies(_):
        os.kill(os.getpid(), signal.SIGKILL)

    for stage, work, prepare in (
        ("the process that makes what workers share", None, dies),
        ("the first worker", dies, None),
    ):
        with subtests.test(stage), socket.create_server(("127.0.0.1", 0)) as listening:
            said = []
            first = Supervisor(command=[], count=2, listening=listening, grace=0.0, say=said.append, work=work)
            first.prepare = prepare
            before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
            try:
                assert first.run() == 137
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)
            assert said == [f"{stage} ended with signal 9 before the server was ready; memory may have run out"]


@pytest.mark.parametrize("way", WAYS)
def test_what_stops_the_first_worker_is_said_once(way):
    with first_process("fails", way) as first:
        out, errors = first.communicate(timeout=60)
        assert (first.returncode, out, errors) == (1, "", "no bundle here\n")


def test_a_server_with_two_workers(tmp_path, ranker):
    ranker.save(tmp_path / "ranker")
    rows = log(4, seed=9).to_dicts()
    with serving(tmp_path, "ranker", "--workers", 2, "--watch", 0.2, before=FRESH) as server:
        assert "2 workers" in server.log

        def predict():
            with httpx.Client() as client:  # a connection of its own
                answer = client.post(f"{server.place}/v1/predict", json={"rows": rows}, timeout=30)
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

        def spread(count):
            with contextlib.ExitStack() as stack:
                for _ in range(count):
                    stack.enter_context(httpx.Client()).get(f"{server.place}/healthz", timeout=30)
                return sorted(map(connections, children(server.process.pid)))

        deadline = time.monotonic() + 60
        while spread(2) != [1, 1]:  # until the second one is there
            assert time.monotonic() < deadline, server.log
        assert spread(8) == [4, 4]
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
    with serving(tmp_path, "ranker", "--workers", 2, "--watch", 0.2, before=FRESH) as server:

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


def is_refused(port):
    with socket.socket() as new:
        return new.connect_ex(("127.0.0.1", port)) == errno.ECONNREFUSED


def test_workers_that_stop_answer_what_is_under_way_and_refuse_new_connections(tmp_path, ranker):
    slow = """
import time
from fieldwise.serving.service import Service
answer = Service.predict_all
def slowly(service, requests):
    print("under way", file=sys.stderr, flush=True)
    time.sleep(2)
    return answer(service, requests)
Service.predict_all = slowly
"""
    ranker.save(tmp_path / "ranker")
    with serving(tmp_path, "ranker", "--workers", 2, before=FRESH + slow) as server, ThreadPoolExecutor() as pool:
        rows = {"rows": log(4, seed=9).to_dicts()}
        one = pool.submit(httpx.post, f"{server.place}/v1/predict", json=rows, timeout=30)
        server.process.heard("under way")
        server.process.terminate()
        while not is_refused(server.port):
            assert not one.done()
        assert one.result().status_code == 200
        assert server.process.wait(30) == 0
        assert "Traceback" not in server.log


def children(process):
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def connections(process):
    """The number of connections of a process: its sockets among the system's established ones."""
    table = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    established = {columns[9] for columns in table if columns[3] == "01"}
    found = []
    for path in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(path))
    return sum(name.removeprefix("socket:[").removesuffix("]") in established for name in found)


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

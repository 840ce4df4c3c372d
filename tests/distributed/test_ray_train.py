"""`fieldwise train --engine ray`: Ray Train starts the processes, here in a cluster of one machine."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ray_cluster import cluster

from fieldwise import Bundle
from fieldwise.cli import run
from fieldwise.distributed.ray_desk import Desk, _interface
from fieldwise.distributed.ray_train import Launch, start_on_ray
from fieldwise.version import __version__

__all__ = ["cluster"]

pytestmark = pytest.mark.filterwarnings("ignore:::ray", "ignore::ResourceWarning", "ignore::FutureWarning")
SMALL = ["simulated/fm", "--set", "data.rows=6000", "--set", "training.epochs=2", "--quiet", "--out"]
LONG = [
    "simulated/inttower", "--set", "data.rows=8000", "--set", "training.epochs=8", "--set", "training.patience=8",
    "--set", "training.checkpoint_minutes=0.001", "--quiet", "--out",
]  # fmt: skip
ON_RAY = ["--processes", "2", "--engine", "ray"]


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def started(address: str, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "fieldwise", "train", *arguments, "--ray-address", address]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ranks() -> dict[int, int]:
    """The processes that train in this folder, by rank."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and (folder / "cwd").resolve() == Path.cwd():
                environment = dict(x.split("=", 1) for x in (folder / "environ").read_text().split("\0") if "=" in x)
                found[int(environment["RANK"])] = int(folder.name)
        except (OSError, KeyError):
            continue
    return found


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def broken_off(address: str, out: str, number: int, rank: int | None, *, worker: bool = False) -> tuple[int, str]:
    """A training whose command, or one process, or that one's worker, gets a signal after the first checkpoint.

    Returns the command's exit code and errors.
    """
    with started(address, *LONG, out, *ON_RAY) as parent:
        while parent.poll() is None and not list(Path().glob(f".{out}.unfinished/*/*/checkpoint.json")):
            time.sleep(0.05)
        trained = ranks()
        whom = parent.pid if rank is None else trained[rank]
        os.kill(parent_of(whom) if worker else whom, number)
        _, errors = parent.communicate(timeout=240)
    assert sorted(trained) == [0, 1]
    end = time.monotonic() + 60
    while ranks() and time.monotonic() < end:
        time.sleep(0.1)
    assert ranks() == {}
    return parent.returncode, errors


@pytest.mark.slow
def test_the_bundle_is_that_of_processes_of_one_machine(cluster):
    command = [sys.executable, "-m", "fieldwise", "train", *SMALL, "here", "--processes", "2"]
    here = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert here.returncode == 0, here.stderr
    with started(cluster, *SMALL, "there", *ON_RAY) as parent:
        said, errors = parent.communicate(timeout=300)
    assert parent.returncode == 0, errors
    assert Bundle.load(Path("there")).digest == Bundle.load(Path("here")).digest
    assert said.replace("there", "here").splitlines()[:-1] == here.stdout.splitlines()[:-1]
    assert "auc" in said
    assert errors == here.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_with_a_checkpoint_and_the_run_resumes(cluster, number):
    code, errors = broken_off(cluster, "b", number, None)
    assert code in (-number, 130), errors
    assert "the same command resumes it" in errors
    assert "Traceback" not in errors
    assert Bundle.load(Path("b")).about["run"]["stopped"] == "interrupted"
    with started(cluster, *LONG, "b", "--overwrite", *ON_RAY) as parent:
        _, errors = parent.communicate(timeout=300)
    assert parent.returncode == 0, errors
    assert Bundle.load(Path("b")).about["run"]["stopped"] == "epochs"
    assert not list(Path().glob(".*unfinished"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_process_ends_the_others_in_one_sentence(cluster, rank):
    code, errors = broken_off(cluster, "b", signal.SIGKILL, rank)
    assert code == 1
    assert errors.startswith(f"fieldwise: process {rank} of 2 was ended by signal 9 (")
    assert errors.count("\n") == 1


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
def test_a_lost_worker_ends_all_and_is_named_in_one_sentence(cluster):
    code, errors = broken_off(cluster, "b", signal.SIGKILL, 1, worker=True)
    assert code in (1, 3)
    *before, reason = errors.splitlines()
    assert reason.startswith("fieldwise: process 1 of 2: its Ray worker is lost (")
    assert "the same command resumes from the last checkpoint" in reason
    # The lost worker's process ends itself as by SIGTERM, and all save after a step, unless Ray ends the other first.
    assert len(before) <= 1
    assert all(line.startswith("interrupted in epoch") for line in before)


@pytest.mark.slow
def test_an_error_of_the_processes_is_one_sentence(cluster, capfd):
    assert run(["train", *SMALL, "b", "--set", "training.batch_size=1", *ON_RAY]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("fieldwise: each of the 2 processes needs a row of every batch, found")
    assert errors.count("\n") == 1


@pytest.mark.slow
def test_more_processes_than_the_machine_of_a_cluster_has_cores_are_refused(cluster, capfd):
    assert run(["train", *SMALL, "b", "--processes", "3", "--engine", "ray"]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("fieldwise: the 3 processes need 3 CPUs, and the Ray cluster has 2: lower --processes")


@pytest.mark.slow
def test_a_named_cluster_without_room_is_waited_for_until_a_signal(cluster):
    with started(cluster, *SMALL, "b", "--processes", "3", "--engine", "ray") as parent:
        assert parent.stderr is not None
        said = parent.stderr.readline()
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=120)
    assert said == "waiting for the Ray cluster: the 3 processes need 3 CPUs, and the Ray cluster has 2\n"
    assert parent.returncode in (-signal.SIGINT, 130)
    assert errors in ("", "fieldwise: interrupted\n")
    assert not Path("b").exists()


def test_an_early_signal_ends_the_command_at_once_while_ray_still_starts_workers(monkeypatch):
    """Else the connection is closed while a thread waits for Ray, which then ends the process with exit code 1."""
    done, found = threading.Event(), []

    class Group:
        started, ready, begun, desk = (), (), False, None

        def __init__(self, size: int) -> None:
            pass

        def fit(self, _: object) -> None:
            done.wait(60)

        def gather(self, received: list[int], _: object) -> None:
            signal.raise_signal(signal.SIGINT)
            assert received == [signal.SIGINT]

        def leave(self) -> None:
            pass

    monkeypatch.setattr("fieldwise.distributed.ray_train._Group", Group)
    monkeypatch.setattr("fieldwise.distributed.ray_train._trainer", lambda *_: None)
    monkeypatch.setattr(os, "kill", lambda *given: found.append((*given, signal.getsignal(signal.SIGINT))))
    before = signal.getsignal(signal.SIGINT)
    try:
        start_on_ray(Launch(command=[], size=2), print)
    finally:
        signal.signal(signal.SIGINT, before)
        done.set()
    assert found == [(os.getpid(), signal.SIGINT, signal.SIG_DFL)]


@pytest.mark.parametrize(
    ("asked", "there", "sentence"),
    [
        ({"size": 4, "cores": 2}, {"CPU": 8.0}, ""),
        ({"size": 4, "cores": 3}, {"CPU": 8.0}, "the 4 processes need 12 CPUs, and the Ray cluster has 8"),
        (
            {"size": 2, "gpus": True},
            {"CPU": 8.0, "GPU": 1.0},
            "the 2 processes need 2 CPUs and 2 GPUs, and the Ray cluster has 8 and 1",
        ),
    ],
)
def test_what_a_cluster_lacks_is_said(asked, there, sentence):
    assert Launch(command=[], **asked).missing(there) == sentence


@pytest.mark.slow
def test_a_machine_that_does_not_see_the_folder_is_named(cluster, monkeypatch, capfd):
    monkeypatch.setattr("fieldwise.distributed.engine.PATIENCE", 0.1)
    hidden = {"task": '{"given": {}, "reads": {"/elsewhere/mine.toml": 9}, "writes": null, "version": "%s"}'}
    about = Launch.about
    monkeypatch.setattr(Launch, "about", lambda self: about(self) | {"task": hidden["task"] % __version__})
    assert run(["train", *SMALL, "b", *ON_RAY]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("fieldwise: all machines must see the same files, but ")
    assert "does not see /elsewhere/mine.toml: put it in a folder that all machines share" in errors
    assert errors.count("\n") == 1
    assert not Path("b").exists()


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        (["--engine", "ray"], {}, "--engine ray needs the number of processes: add --processes N"),
        ([*ON_RAY, "--ray-address", "127.0.0.1:1"], {}, "no Ray cluster can be reached at 127.0.0.1:1 ("),
        (["--ray-address", "auto"], {}, "--ray-address is for --engine ray"),
        (
            ON_RAY,
            {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            "--engine ray starts the processes itself: leave it out where torchrun starts them",
        ),
    ],
)
def test_what_cannot_be_started_is_one_sentence(arguments, environment, sentence, monkeypatch, capsys):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert run(["train", *SMALL, "b", *arguments]) == 2
    errors = capsys.readouterr().err
    assert sentence in errors
    assert errors.count("\n") == 1


def test_the_desk_keeps_orders_until_they_are_fetched():
    desk = Desk()
    assert desk.tell(0, {"ready": {}}) == []
    assert desk.look([(0, {"signal": 2}), (1, {"leave": True}), (0, {"signal": 9})]) == [(0, {"ready": {}})]
    assert desk.tell(0, {}) == [{"signal": 2}, {"signal": 9}]
    assert desk.tell(0, {}) == []
    assert desk.tell(1, {"code": 3}) == [{"leave": True}]
    assert desk.look([]) == [(1, {"code": 3})]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux")
def test_the_interface_of_an_address_is_found():
    assert _interface("127.0.0.1") == "lo"
    assert _interface("192.0.2.1") is None

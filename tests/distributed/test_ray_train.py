"""`fieldwise train --engine ray`: `TorchTrainer` starts the processes, here in a cluster of one machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray_cluster import cluster

from fieldwise import Bundle, DataError
from fieldwise.cli import run
from fieldwise.cli.processes import _cause
from fieldwise.errors import LostProcessError

__all__ = ["cluster"]

pytestmark = pytest.mark.filterwarnings(
    "ignore:::ray", "ignore::ResourceWarning", "ignore::FutureWarning"
)
SMALL = [
    "simulated/fm",
    "--set",
    "data.rows=6000",
    "--set",
    "training.epochs=2",
    "--quiet",
    "--out",
]
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
    command = [sys.executable, "-m", "fieldwise", "train", *arguments]
    environment = {**os.environ, "RAY_ADDRESS": address}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def workers() -> dict[int, int]:
    """The processes that train in this folder, by rank."""
    results = {}
    for folder in Path("/proc").iterdir():
        try:
            here = folder.name.isdecimal() and (folder / "cwd").resolve() == Path.cwd()
            if here and b"RayTrainWorker" in (folder / "cmdline").read_bytes():
                results[len(results)] = int(folder.name)
        except OSError:
            continue
    return results


def broken_off(address: str, out: str, number: int, *, worker: bool) -> tuple[int, str]:
    """A training whose command, or one of whose workers, gets a signal after the first checkpoint.

    Returns the command's exit code and errors.
    """
    with started(address, *LONG, out, *ON_RAY) as parent:
        while parent.poll() is None and not list(
            Path().glob(f".{out}.unfinished/*/*/checkpoint.json")
        ):
            time.sleep(0.05)
        trained = workers()
        os.kill(trained[1] if worker else parent.pid, number)
        _, errors = parent.communicate(timeout=240)
    assert len(trained) == 2
    end = time.monotonic() + 60
    while workers() and time.monotonic() < end:
        time.sleep(0.1)
    assert workers() == {}
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
    assert not list(Path().glob(".fieldwise-ray-*"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_and_the_run_resumes_from_its_checkpoint(cluster, number):
    code, errors = broken_off(cluster, "b", number, worker=False)
    assert code in (-number, 130), errors
    assert errors == "fieldwise: interrupted\n"
    with started(cluster, *LONG[:-2], "--out", "b", *ON_RAY) as parent:
        _, errors = parent.communicate(timeout=300)
    assert parent.returncode == 0, errors
    assert "resumes the unfinished run in " in errors
    assert Bundle.load(Path("b")).about.run["stopped"] == "epochs"
    assert not list(Path().glob(".*unfinished"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="reads /proc")
def test_a_lost_worker_ends_all_in_one_sentence(cluster):
    code, errors = broken_off(cluster, "b", signal.SIGKILL, worker=True)
    assert code in (2, 3)
    assert "Traceback" not in errors
    # Ray's core may write more
    (said,) = (line for line in errors.splitlines() if line.startswith("fieldwise: "))
    assert "the same command resumes from the last checkpoint" in said


@pytest.mark.slow
def test_an_error_of_the_processes_and_too_many_of_them_are_one_sentence(cluster, capfd):
    assert run(["train", *SMALL, "b", "--set", "training.batch_size=1", *ON_RAY]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("fieldwise: each of the 2 processes needs a row of every batch, found")
    assert errors.count("\n") == 1
    assert run(["train", *SMALL, "b", "--processes", "3", "--engine", "ray"]) == 2
    errors = capfd.readouterr().err
    assert errors.startswith(
        "fieldwise: the processes need 3 CPUs, and the Ray cluster has 2: lower --processes"
    )


def test_the_error_of_the_process_that_failed_first_is_raised():
    damaged = DataError("the file is damaged")
    assert (
        _cause({0: LostProcessError("process 1 of 2 failed"), 1: damaged, 2: RuntimeError("ended")})
        is damaged
    )
    full = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert _cause({0: RuntimeError("the actor died"), 1: full}) is full, (
        "which the command explains"
    )
    lost = _cause({1: RuntimeError("the actor died\nand more")})
    assert isinstance(lost, LostProcessError)
    assert str(lost).startswith(
        "process 1 is lost (RuntimeError: the actor died): see `ray status`"
    )


@pytest.mark.parametrize("arguments", [["--engine", "ray"], ON_RAY])
def test_what_cannot_be_started_is_one_sentence(arguments, monkeypatch, capsys):
    if arguments == ON_RAY:  # under torchrun
        found = {
            "WORLD_SIZE": "2",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
        }
        for name, value in found.items():
            monkeypatch.setenv(name, value)
    assert run(["train", *SMALL, "b", *arguments]) == 2
    errors = capsys.readouterr().err
    assert (
        "--engine ray starts the processes itself: give --processes N, without torchrun" in errors
    )
    assert errors.count("\n") == 1

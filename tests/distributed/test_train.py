"""`fieldwise train` in several processes, started by `--processes` and by `torchrun`."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import Command

from fieldwise import Bundle, ConfigError
from fieldwise.cli import run
from fieldwise.cli.processes import launch_processes

SMALL = ["simulated/fm", "--set", "data.rows=6000", "--set", "training.epochs=2"]
LONG = [
    "simulated/inttower", "--set", "data.rows=8000", "--set", "training.epochs=6", "--set", "training.patience=6",
    "--set", "training.checkpoint_minutes=0.001", "--set", "training.average=0.9", "--set", "model.dropout=0.1",
]  # fmt: skip
READS_PROC = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(autouse=True)
def _apart(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path_factory.getbasetemp() / "shared-cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def fieldwise(
    *arguments: str, starter: tuple[str, ...] = ("-m", "fieldwise")
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *starter, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of PyTorch's launcher
def test_two_processes_save_the_bundle_of_one(capfd):
    assert run(["train", *SMALL, "--out", "one", "--quiet", "--json"]) == 0
    one = json.loads(capfd.readouterr().out)
    assert run(["train", *SMALL, "--out", "two", "--json", "--processes", "2"]) == 0
    said, errors = capfd.readouterr()
    two = json.loads(said)
    assert one["test"].keys() == two["test"].keys()
    for metric in ("auc", "logloss"):
        assert two["valid"][metric] == pytest.approx(one["valid"][metric], abs=1e-4)
        assert two["test"][metric] == pytest.approx(one["test"][metric], abs=1e-4)
    assert errors.count("epoch 1/2") == 1, "one process reports the training"
    assert errors.count("2 processes share this training") == 1
    loaded = Bundle.load(Path("two"))
    assert type(loaded.network) is type(Bundle.load(Path("one")).network)
    assert not list(Path().glob(".*unfinished"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of PyTorch's launcher
def test_torchrun_starts_the_same_training(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    before = dict(os.environ)
    assert (
        run(["train", *SMALL, "--set", "training.batch_size=1", "--quiet", "--processes", "2"]) == 2
    )
    assert dict(os.environ) == before, "a caller's environment is as before"
    done = fieldwise("train", *SMALL, "--out", "two", "--quiet", "--processes", "2")
    assert done.returncode == 0, done.stderr
    done = fieldwise(
        "train", *SMALL, "--out", "run", "--quiet", starter=(*TORCHRUN, "-m", "fieldwise")
    )
    assert done.returncode == 0, done.stderr
    assert Bundle.load(Path("run")).digest == Bundle.load(Path("two")).digest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--set", "training.batch_size=1"],
            "each of the 2 processes needs a row of every batch, found",
        ),
        (["--out", "file"], "file is a file"),
        (["--set", "training.monitor=gauc", "--set", "training.l2.nothing=1"], "nothing"),
    ],
)
def test_an_error_is_one_sentence_of_one_process(arguments, sentence):
    Path("file").write_text("")
    done = fieldwise("train", *SMALL, "--quiet", *arguments, "--processes", "2")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_thousand_processes_are_refused_before_any_is_started(monkeypatch):
    monkeypatch.setattr(
        "torch.distributed.run.run", lambda _: pytest.fail("processes were started")
    )
    monkeypatch.setattr("fieldwise.cli.processes.available_cores", lambda: 3)
    with pytest.raises(
        ConfigError,
        match="--processes may be at most 12 on this machine, which has 3 cores, found 13",
    ):
        launch_processes([], 13)


@pytest.mark.skipif(sys.platform == "win32", reason="ends by signals")
@pytest.mark.parametrize(
    ("number", "ignored"), [(signal.SIGTERM, None), (signal.SIGINT, signal.SIGTERM)]
)
def test_a_signal_ends_a_process_that_waits_for_the_others_to_meet(number, ignored):
    """One that is ignored from the start does not."""
    before = f"import signal; signal.signal({ignored:d}, signal.SIG_IGN)" if ignored else ""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        place = {
            "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}",
        }  # fmt: skip
        process = Command("train", *SMALL, "--out", "never", "--quiet", before=before, **place)
        try:
            listening.settimeout(300)
            connection, _ = listening.accept()  # it has begun to meet, and nobody answers
            with connection:
                if ignored:
                    process.send_signal(ignored)
                process.send_signal(number)
                assert process.wait() == -number
        finally:
            process.send_signal(signal.SIGKILL)


def test_commands_whose_processes_share_nothing_are_refused_under_torchrun(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(["predict", "bundle", "--data", "rows.csv", "--out", "scores.csv"]) == 2
    assert capsys.readouterr().err == (
        "fieldwise: torchrun is for train, compare, tune, whose processes share the work, found 2 processes of "
        "`fieldwise predict`: run it once, without torchrun\n"
    )
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert run(["predict", "bundle", "--data", "rows.csv", "--out", "scores.csv"]) == 2
    assert "torchrun" not in capsys.readouterr().err


def test_torchrun_with_another_number_of_processes_is_refused(monkeypatch):
    found = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    sentence = "--processes must be the number of processes that were started, 2, found 3"
    with pytest.raises(ConfigError, match=sentence):
        launch_processes([], 3)


def ranks_of(parent: int) -> dict[int, int]:
    """The processes that a process has started, by rank."""
    results = {}
    for folder in Path("/proc").iterdir():
        try:
            if (
                folder.name.isdecimal()
                and int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            ):
                environment = dict(
                    x.split("=", 1)
                    for x in (folder / "environ").read_text().split("\0")
                    if "=" in x
                )
                results[int(environment["RANK"])] = int(folder.name)
        except (OSError, KeyError, IndexError):
            continue
    return results


def broken_off(
    out: str, number: int, seconds: float, whom: int | None, epochs: int = 6
) -> tuple[int, str]:
    """A training that gets a signal after its first checkpoint: exit code and errors, once all have ended."""
    command = [
        sys.executable,
        "-m",
        "fieldwise",
        "train",
        *LONG,
        "--set",
        f"training.epochs={epochs}",
    ]
    command += ["--set", f"training.patience={epochs}", "--out", out, "--quiet", "--processes", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as parent:
        while parent.poll() is None and not list(
            Path().glob(f".{out}.unfinished/*/*/checkpoint.json")
        ):
            time.sleep(0.01)
        time.sleep(seconds)
        ranks = ranks_of(parent.pid)
        if parent.poll() is None:
            os.kill(parent.pid if whom is None else ranks.get(whom, parent.pid), number)
        _, errors = parent.communicate(timeout=300)
    assert not [pid for pid in ranks.values() if Path(f"/proc/{pid}").exists()]
    return parent.returncode, errors


@pytest.mark.slow
@READS_PROC
def test_kills_of_each_process_lose_nothing():
    """FIELDWISE_KILLS is how many processes are killed, in turns, and FIELDWISE_KILLS_SEED chooses other moments."""
    kills, seed = (
        int(os.environ.get(f"FIELDWISE_KILLS{name}", default))
        for name, default in (("", 10), ("_SEED", 0))
    )
    assert (
        fieldwise("train", *LONG, "--out", "whole", "--quiet", "--processes", "2").returncode == 0
    )
    whole, draws = Bundle.load(Path("whole")).digest, random.Random(seed)
    for attempt in range(kills):
        code, errors = broken_off(f"b{attempt}", signal.SIGKILL, draws.uniform(0, 2), attempt % 2)
        if code:
            assert code == 1
            assert f"process {attempt % 2} of 2 was ended by signal 9" in errors
            assert "Traceback" not in errors
        done = fieldwise(
            "train", *LONG, "--out", f"b{attempt}", "--quiet", "--overwrite", "--processes", "2"
        )
        assert done.returncode == 0, done.stderr
        assert Bundle.load(Path(f"b{attempt}")).digest == whole


@pytest.mark.slow
@READS_PROC
@pytest.mark.parametrize("lost", [0, 1])
def test_a_restart_of_torchrun_after_a_lost_process_is_equal_to_the_bit(lost):
    assert (
        fieldwise("train", *LONG, "--out", "whole", "--quiet", "--processes", "2").returncode == 0
    )
    command = [
        sys.executable,
        *TORCHRUN,
        "--max-restarts",
        "1",
        "-m",
        "fieldwise",
        "train",
        *LONG,
        "--out",
        "b",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as parent:
        while parent.poll() is None and not list(Path().glob(".b.unfinished/*/*/checkpoint.json")):
            time.sleep(0.01)
        os.kill(ranks_of(parent.pid)[lost], signal.SIGKILL)
        _, errors = parent.communicate(timeout=300)
    assert parent.returncode == 0, errors
    assert "resumes the unfinished run in" in errors
    assert Bundle.load(Path("b")).digest == Bundle.load(Path("whole")).digest


@pytest.mark.slow
@READS_PROC
@pytest.mark.parametrize("whom", [None, 0, 1])
def test_a_signal_ends_all_processes_after_the_same_step(whom):
    code, errors = broken_off("b", signal.SIGTERM, 0.2, whom, epochs=200)
    assert code in (-signal.SIGTERM, 130, 1), errors
    assert "the same command resumes it" in errors
    assert "Traceback" not in errors
    assert Bundle.load(Path("b")).about.run["stopped"] == "interrupted"
    assert len(list(Path().glob(".b.unfinished/*/*/checkpoint.json"))) == 2

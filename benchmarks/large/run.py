"""`run`: train on a log with the command line, and measure its memory and the seconds of its phases.

Memory is that of a process and its descendants, what only they can give back (not pages of mapped files), five times a
second.
"""

import argparse
import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import tomli_w

from benchmarks.large.log import CATEGORIES, LABEL, NUMBERS, TIME, about
from fieldwise.runs.environment import environment
from fieldwise.storage.files import write_atomically

ROOT = Path(__file__).parents[2]
MODELS = ("fm", "autoint", "inttower")
MIN_COUNT = 4  # categories with fewer training rows share a row
ITEM = 13  # the first so many categories are the item's, for models with two towers
STATES = {"adam": 2.0, "adagrad": 1.0, "rowwise_adagrad": 1.0, "sgd": 0.0}  # numbers per parameter, at most


@dataclass(frozen=True)
class Watched:
    """What a command did.

    Args:
        code: exit status; negative for a signal.
        out: standard output.
        lines: lines of standard error, each with its second since the start.
        seconds: from start to end.
        cpu: processor seconds of its processes.
        memory: samples of its bytes, each with its second.
    """

    code: int
    out: str
    lines: Sequence[tuple[float, str]]
    seconds: float
    cpu: float
    memory: Sequence[tuple[float, int]]

    def peak(self, start: float = 0.0, stop: float = float("inf")) -> int:
        """The most memory between two seconds, 0 without samples."""
        return max((size for at, size in self.memory if start <= at < stop), default=0)

    def checked(self) -> "Watched":
        """Itself; ends this program if the command failed."""
        if self.code != 0:
            told = "\n".join(line for _, line in self.lines[-20:])
            sys.exit(f"the command failed with status {self.code}:\n{told}")
        return self


def watched(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    show: bool = False,
    stop: Callable[[float, Sequence[tuple[float, str]]], bool] = lambda *_: False,
) -> Watched:
    """Run a command to its end; all of its processes are ended with this one.

    Args:
        command: its words.
        env: its environment.
        show: whether its standard error is shown too.
        stop: says, given the seconds since the start and the lines so far, whether to end it by kill -9.
    """
    began, used = time.perf_counter(), _cpu()
    lines, memory, sampled = list[tuple[float, str]](), list[tuple[float, int]](), 0.0
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        child = subprocess.Popen(
            command, env=env, cwd=ROOT, stdout=out, stderr=subprocess.PIPE, text=True, start_new_session=True
        )

        def read() -> None:
            assert child.stderr is not None
            with child.stderr as errors:
                for line in errors:
                    lines.append((time.perf_counter() - began, line.rstrip("\n")))
                    if show:
                        print(line, end="", file=sys.stderr, flush=True)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while child.poll() is None and not stop(now := time.perf_counter() - began, lines):
                if now - sampled >= 0.2:
                    sampled = now
                    memory.append((now, anonymous(child.pid)))
                time.sleep(0.01)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            code = child.wait()
        seconds = time.perf_counter() - began
        reader.join(10)
        out.seek(0)
        return Watched(code, out.read(), lines, seconds, _cpu() - used, memory)


def anonymous(pid: int) -> int:
    """Bytes of a process and its descendants without mapped files and shared memory."""
    found = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                memory = one.memory_info()
                found += memory.rss - getattr(memory, "shared", 0)
    return found


def fieldwise(*words: object) -> list[str]:
    """A command of this checkout's program."""
    return [sys.executable, "-m", "fieldwise", *(str(word) for word in words)]


def environment_with(folder: Path, threads: int | None = None) -> dict[str, str]:
    """This environment, with the program's cache and temporary files in `folder`."""
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    found = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    if threads is not None:
        found |= {"POLARS_MAX_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    return found


def write_recipe(
    path: Path, data: Mapping[str, Any], model: str, training: Mapping[str, Any], memory: str | None = None
) -> Path:
    """Write a recipe that states a model's name, and else only what is given; the newest tenth of the rows tests."""
    logs = ("count", "amount")
    numbers = [
        {"kind": "numeric", "name": one.name, "transform": "log" if one.kind in logs else "standard"} for one in NUMBERS
    ]
    categories = [
        {"kind": "categorical", "name": one.name, "role": "item" if k < ITEM else "user", "min_count": MIN_COUNT}
        for k, one in enumerate(CATEGORIES)
    ]
    recipe = {
        "data": {"path": data["path"]} | ({} if memory is None else {"memory": memory}),
        "schema": {"label": {"column": LABEL}, "time": TIME, "fields": [*numbers, *categories]},
        "split": {"kind": "time", "valid": 0.1, "test": 0.1},
        "model": {"name": model},
        "training": dict(training),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, tomli_w.dumps(recipe).encode())
    return path


def store(path: Path, name: str, words: Sequence[str], found: Mapping[str, Any]) -> None:
    """Append a line to a file of results, with the command, date, machine, versions and commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python -m benchmarks.large", *words])
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"name": name, "command": command, "environment": environment(), **found}) + "\n")


def run(options: argparse.Namespace) -> int:
    """The command: one training with an empty cache."""
    log, work = about(options.data), options.work.absolute() / "run"
    shutil.rmtree(work, ignore_errors=True)
    training = ({} if options.epochs is None else {"epochs": options.epochs}) | settings(options.set)
    recipe = write_recipe(work / "recipe.toml", log, options.model, training, options.memory)
    words = ["train", recipe, "--out", work / "bundle", "--threads", options.threads, "--json", "--progress", "json"]
    done = watched(fieldwise(*words), env=environment_with(work), show=True).checked()
    record = json.loads(done.out)
    counted = sum(record["counts"][f"{part}_rows"] for part in ("train", "valid", "test"))
    if counted != log["rows"]:
        sys.exit(f"the log has {log['rows']:,} rows, and {counted:,} were prepared")
    found = measures(done, record)
    found["bytes"]["disk"] = sum(one.stat().st_size for one in work.rglob("*") if one.is_file())
    store(options.json, "run", options.words, found | {"log": log})
    show(found, log)
    if not options.keep:
        shutil.rmtree(work)
    return 0


def measures(done: Watched, record: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and bytes of a training, by phase."""
    rows = {part: record["counts"][f"{part}_rows"] for part in ("train", "valid", "test")}
    prepared, ends = marks(done)
    parameters = 4 * record["parameters"]
    epoch = record["seconds_per_epoch"]
    trained = ends[-1] if ends else prepared
    return {
        "seconds": {
            "all": round(done.seconds, 2),
            "preparation": record["seconds_preparing"],
            "epoch": None if epoch is None else round(epoch, 2),
            "training and evaluation": record["seconds"],
            "after the last epoch": round(done.seconds - trained, 2),
            "processor": round(done.cpu, 2),
        },
        "rows a second": {
            "preparation": round(sum(rows.values()) / record["seconds_preparing"]),
            "epoch": None if epoch is None else round(rows["train"] / epoch),
        },
        "bytes": {
            "peak anonymous": done.peak(),
            "peak anonymous in preparation": done.peak(stop=prepared),
            "peak anonymous in training": done.peak(prepared, trained),
            "peak anonymous afterwards": done.peak(trained),
            "parameters": parameters,
            "optimizer": int(STATES[record["training"]["optimizer"]] * parameters),
        },
        "auc": {part: record[part].get("auc") for part in ("valid", "test")},
    }


def marks(done: Watched) -> tuple[float, list[float]]:
    """When preparation had ended, and when each evaluation in training had, in seconds since the start."""
    prepared = next((at for at, line in done.lines if is_prepared(line)), 0.0)
    return prepared, [at for at, line in done.lines if line.startswith("{") and "evaluation" in json.loads(line)]


def is_prepared(line: str) -> bool:
    """Whether a line of `train` says how many rows were prepared."""
    return " train, " in line and line.endswith(" test rows")


def show(found: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    """The measures, on standard output."""
    print(f"{log['rows']:,} rows in {log['files']} files, {log['bytes'] / 1e6:,.0f} MB")
    for name, value in found["seconds"].items():
        rate = f", {found['rows a second'][name]:,} rows/s" if found["rows a second"].get(name) else ""
        print(f"  {name:32} {'-' if value is None else f'{value:,.1f} s'}{rate}")
    for name, value in found["bytes"].items():
        print(f"  {name:32} {value / 1e6:,.0f} MB")
    print(f"  AUC: validation {found['auc']['valid']:.4f}, test {found['auc']['test']:.4f}")


def settings(words: list[str] | None) -> dict[str, Any]:
    """`KEY=VALUE` of `training`, with values as in JSON, else as text."""
    found: dict[str, Any] = {}
    for word in words or ():
        key, _, value = word.partition("=")
        try:
            found[key.removeprefix("training.")] = json.loads(value)
        except ValueError:
            found[key.removeprefix("training.")] = value
    return found


def _cpu() -> float:
    """Processor seconds of all children that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime

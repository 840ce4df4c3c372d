"""Commands that several processes run together: `--processes N`, here or on a Ray cluster, or started by `torchrun`."""

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fieldwise.cli.options import GIVEN, command_again
from fieldwise.cli.show import say
from fieldwise.distributed.environment import EXIT_LOST, LAUNCHED, DistributedEnvironment
from fieldwise.errors import ConfigError
from fieldwise.storage.cores import available_cores

if TYPE_CHECKING:
    from fieldwise.distributed.process_group import ProcessGroup
    from fieldwise.distributed.ray_train import RayJob

__all__ = ["check_count", "check_started", "in_process_group", "launch_processes", "most_processes", "run_on_ray"]

SHARING = ("train", "compare", "tune")  # commands whose processes share the work
PER_CORE = 4  # more processes would take the machine's memory and gain nothing
PASSED = ("FIELDWISE_", "NCCL_", "GLOO_", "TORCH_", "XDG_CACHE_HOME")


def check_started(command: str | None) -> None:
    """Check that `torchrun` has started several processes of a command only if they share its work.

    Errors:
        ConfigError: each of them would do all of it, and write the same files.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and size != "1" and command not in SHARING:
        raise ConfigError(
            f"torchrun is for {', '.join(SHARING)}, whose processes share the work, found {size} processes of "
            f"`fieldwise {command}`: run it once, without torchrun"
        )


def most_processes() -> int:
    """How many processes this machine may run: four a core, 8 at least."""
    return max(8, PER_CORE * available_cores())


def check_count(option: str, found: int) -> None:
    """Check that a number of processes is not too large for this machine.

    Errors:
        ConfigError: more than 8 and more than four a core.
    """
    if found > (most := most_processes()):
        raise ConfigError(
            f"{option} may be at most {most} on this machine, which has {available_cores()} cores, found "
            f"{found}: give about one a core"
        )


def launch_processes(processes: int | None) -> bool:
    """Run this command in the given number of processes, unless this is one of them or no number is given.

    Args:
        processes: `--processes`.

    Returns:
        Whether they have run, all of them with success.

    Errors:
        ConfigError: another number of processes was started, or too many are asked for.
        typer.Exit: one of them failed, and has said why.
    """
    environment = DistributedEnvironment.read()
    if environment is not None and processes not in (None, environment.world_size):
        raise ConfigError(
            f"--processes must be the number of processes that were started, {environment.world_size}, found "
            f"{processes}: leave it out where torchrun starts them"
        )
    if environment is not None or processes is None or processes == 1:
        return False
    check_count("--processes", processes)
    from fieldwise.distributed.launcher import launch

    if code := launch(command_again(), processes):
        raise typer.Exit(code)
    return True


@contextlib.contextmanager
def in_process_group() -> Iterator["ProcessGroup | None"]:
    """A context in which this process is one of several; None if it is alone. Only process 0 prints.

    Errors:
        ConfigError: the processes cannot meet.
    """
    environment = DistributedEnvironment.read()
    if environment is None:
        yield None
        return
    from fieldwise.distributed.process_group import process_group

    with contextlib.ExitStack() as stack:
        if environment.rank > 0:
            nowhere = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield stack.enter_context(process_group(environment))


def run_on_ray(address: str | None, job: "RayJob", reads: tuple[Path, ...]) -> None:
    """Run this command in processes on a Ray cluster, until all have ended.

    Args:
        address: `--ray-address`.
        job: how many processes, and what each takes.
        reads: files and folders that all machines must see.

    Errors:
        ConfigError: the cluster is too small, cannot be reached, or one of its machines does not see the files.
        MissingExtraError: Ray is not installed. typer.Exit: a process failed, and its sentence is printed.
    """
    if DistributedEnvironment.read() is not None:
        raise ConfigError("--engine ray starts the processes itself: leave it out where torchrun starts them")
    from fieldwise.distributed.engine import Task
    from fieldwise.distributed.ray_cluster import library, ray_cluster, ray_failure
    from fieldwise.distributed.ray_train import WorkerFailure, fit_on_ray

    folder = Path.cwd()
    config = {
        "task": Task(given={}, reads=(folder, *reads), writes=job.folder).to_json(),
        "arguments": list(GIVEN),
        "folder": str(folder),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
        | {"OMP_NUM_THREADS": str(job.cores)},
    }
    with ray_cluster(address, say), ray_failure():
        if missing := job.missing(library("ray").cluster_resources()):
            if not (address or os.environ.get("RAY_ADDRESS")):
                raise ConfigError(
                    f"{missing}: lower --processes or --threads, or name a larger cluster with --ray-address"
                )
            say(f"waiting for the Ray cluster: {missing}")
        try:
            done = fit_on_ray(_train_loop, config, job)
        except WorkerFailure as e:
            done = {"stdout": "", "stderr": f"fieldwise: {e.sentence}\n", "code": e.code}
    sys.stdout.write(done["stdout"])
    sys.stderr.write(done["stderr"])
    if done["code"]:
        raise typer.Exit(done["code"])


def _train_loop(config: dict[str, Any]) -> dict[str, Any]:
    """Run the command in a worker of Ray Train; returns what it prints, and raises its error's sentence."""
    from fieldwise.cli import run
    from fieldwise.distributed.engine import answered, done_here
    from fieldwise.distributed.ray_train import RAY_WORKER, WorkerFailure

    answered(done_here(dict, config["task"]))
    out, told = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as place:
        failure = Path(place) / "error.json"
        os.chdir(config["folder"])
        os.environ.update(config["environment"])
        os.environ.update({RAY_WORKER: "1", LAUNCHED: "1", "TORCHELASTIC_ERROR_FILE": str(failure)})
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
            code = run(config["arguments"])
        sentence = json.loads(failure.read_text())["message"]["message"] if failure.exists() else ""
    if code not in (0, EXIT_LOST):
        raise WorkerFailure(sentence, code)
    said = told.getvalue() + (f"fieldwise: {sentence}\n" if sentence else "")
    return {"stdout": out.getvalue(), "stderr": said, "code": code}

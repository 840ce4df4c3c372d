"""Commands that several processes run together: by `--processes N`, by `torchrun`, or on a Ray cluster."""

import contextlib
import io
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fieldwise.cli.options import GIVEN, command_again
from fieldwise.cli.show import say
from fieldwise.distributed.environment import EXIT_LOST, LAUNCHED, DistributedEnvironment
from fieldwise.errors import ConfigError, LostProcessError, first_line
from fieldwise.storage.threads import available_cores

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from fieldwise.distributed.engine import Engine
    from fieldwise.distributed.process_group import ProcessGroup

__all__ = [
    "EngineName",
    "check_count",
    "check_started",
    "engine_for",
    "in_process_group",
    "launch",
    "launch_processes",
    "train_on_ray",
]

SHARING = ("train", "compare", "tune")  # commands whose processes share the work
PER_CORE = 4  # more processes would take the machine's memory and gain nothing
SHUTDOWN_S = 600  # that the processes have to save after a signal
INTERRUPTED = 130
PASSED = ("FIELDWISE_", "NCCL_", "GLOO_", "TORCH_", "XDG_CACHE_HOME")  # variables that the processes on Ray get


def _check_engine(name: str) -> str:
    """Check the option before any work."""
    if name not in ("local", "ray"):
        raise ConfigError(f"--engine must be local or ray, found {name!r}")
    return name


EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        callback=_check_engine,
        help="Where the work is done: `local`, on this machine, or `ray`, on the Ray cluster in RAY_ADDRESS "
        "(HOST:PORT, or auto for the one on this machine) whose machines share the files (extra `ray`). Without "
        "RAY_ADDRESS a cluster is started on this machine.",
    ),
]


@contextlib.contextmanager
def engine_for(name: str) -> Iterator["Engine | None"]:
    """A context with the engine of that name; None for the local one.

    Errors:
        ConfigError: no Ray cluster can be reached.
    """
    if name == "local":
        yield None
        return
    from fieldwise.distributed.ray_cluster import RayEngine, ray_cluster

    with ray_cluster(say):
        yield RayEngine()


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


def check_count(option: str, count: int) -> None:
    """Check that a number of processes is not too large for this machine.

    Errors:
        ConfigError: more than 8 and more than four a core.
    """
    cores = available_cores()
    if count > (most := max(8, PER_CORE * cores)):
        raise ConfigError(
            f"{option} may be at most {most} on this machine, which has {cores} cores, found {count}: give about one a "
            "core"
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
    if code := launch(command_again(), processes):
        raise typer.Exit(code)
    return True


def launch(command: Sequence[str], processes: int) -> int:
    """Run a command in processes that train together; returns the exit code of the one that failed first, or 0.

    Process 0 writes to this process's streams. A signal that interrupts this process ends all by SIGTERM.
    """
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import get_args_parser, run

    before = os.environ.copy()
    given = {LAUNCHED: "1", "OMP_NUM_THREADS": str(max(1, available_cores() // processes))}
    if Path("/sys/class/net/lo").exists():
        given["GLOO_SOCKET_IFNAME"] = "lo"
    options = {
        "nproc-per-node": processes,
        "local-addr": "localhost",
        "local-ranks-filter": 0,
        "shutdown-timeout": SHUTDOWN_S,
        "signals-to-handle": "SIGQUIT",  # the others raise KeyboardInterrupt, by which the launcher ends all
    }
    os.environ |= given | before
    logging.disable(logging.CRITICAL)  # the launcher's own log
    try:
        with tempfile.TemporaryDirectory(prefix="fieldwise-launch-") as folder:
            said = [f"--{name}={value}" for name, value in (options | {"log-dir": folder}).items()]
            run(get_args_parser().parse_args(["--standalone", *said, "--no-python", *command]))  # type: ignore[no-untyped-call]
    except ChildFailedError as e:
        return _report(e.failures, processes)
    finally:
        logging.disable(logging.NOTSET)
        for name in os.environ.keys() - before.keys():  # PyTorch's too
            del os.environ[name]
    return 0


def _report(failures: "dict[int, ProcessFailure]", processes: int) -> int:
    """Write to standard error why the processes failed, in one sentence; returns the exit code."""
    ended = (EXIT_LOST, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)  # also by the launcher, as another one failed
    rank, first = min(failures.items(), key=lambda item: (item[1].exitcode in ended, item[0]))
    code, told = first.exitcode, first.error_file_data["message"]
    if code in ended[1:]:
        return INTERRUPTED  # which the command line says
    if isinstance(told, dict):
        said = f"process {rank} of {processes}: {told['message']}" if rank else told["message"]
    else:
        how = f"failed with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        said = (
            f"process {rank} of {processes} {how} (the system ends processes when memory is full), and the others with "
            "it: the same command resumes from the last checkpoint, if there is one"
        )
    print(f"fieldwise: {said}", file=sys.stderr)
    return max(1, code)


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


def train_on_ray(processes: int | None, *, gpus: bool, folder: Path) -> None:
    """Run this command in processes on a Ray cluster, each with OMP_NUM_THREADS cores, until all have ended.

    Args:
        processes: `--processes`.
        gpus: whether each takes a GPU.
        folder: that of the bundle, which all machines see; Ray's own files lie there meanwhile.

    Errors:
        ConfigError: the cluster is too small, or cannot be reached. LostProcessError: a process or machine is lost.
        typer.Exit: a process failed, and its sentence is printed.
    """
    if processes is None or DistributedEnvironment.read() is not None:
        raise ConfigError("--engine ray starts the processes itself: give --processes N, without torchrun")
    from fieldwise.distributed.ray_cluster import ray_cluster

    with ray_cluster(say), tempfile.TemporaryDirectory(dir=folder, prefix=".fieldwise-ray-") as storage:
        import ray.train.torch

        cores = int(os.environ.get("OMP_NUM_THREADS") or 1)
        resources = {"CPU": cores} | ({"GPU": 1} if gpus else {})
        _check_resources({kind: count * processes for kind, count in resources.items()})
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
        trainer = ray.train.torch.TorchTrainer(
            _train_on_worker,
            train_loop_config={
                "arguments": list(GIVEN),
                "environment": {**passed, "OMP_NUM_THREADS": str(cores), "FIELDWISE_RAY_WORKER": "1"},
                "folder": str(Path.cwd()),
            },
            scaling_config=ray.train.ScalingConfig(
                num_workers=processes, use_gpu=gpus, resources_per_worker=resources, placement_strategy="PACK"
            ),
            run_config=ray.train.RunConfig(name="fieldwise", storage_path=storage),
        )
        try:
            printed = trainer.fit().return_value
        except SystemExit:  # by Ray's handler of signals
            raise KeyboardInterrupt from None
        except ray.train.TrainingFailedError as e:
            raise _cause(getattr(e, "worker_failures", {0: e})) from None
    sys.stdout.write(printed["stdout"])
    sys.stderr.write(printed["stderr"])


def _check_resources(needed: dict[str, int]) -> None:
    """Tell which resources the Ray cluster lacks; raise a ConfigError if it is one of this machine alone."""
    import ray

    there = ray.cluster_resources()
    for kind, count in needed.items():
        if (has := there.get(kind, 0)) < count:
            lacking = f"the processes need {count} {kind}s, and the Ray cluster has {has:.0f}"
            if not os.environ.get("RAY_ADDRESS"):
                raise ConfigError(f"{lacking}: lower --processes or OMP_NUM_THREADS, or name another in RAY_ADDRESS")
            say(f"waiting for the Ray cluster: {lacking}")


class CommandFailure(Exception):  # noqa: N818  # it carries an exit code
    """A command has failed in a process on Ray: what it printed on standard error, and its exit code."""


def _train_on_worker(config: dict[str, Any]) -> dict[str, str]:
    """Run the command in a worker of Ray Train; returns what it prints."""
    from fieldwise.cli import run

    os.chdir(config["folder"])
    os.environ.update(config["environment"])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(config["arguments"])
    if code:
        raise CommandFailure(err.getvalue(), code)
    return {"stdout": out.getvalue(), "stderr": err.getvalue()}


def _cause(failures: dict[int, Exception]) -> Exception:
    """What ends the command because of the processes' errors, by rank; the sentence of a command is printed."""
    causes = {rank: getattr(one, "_base_exc", one) for rank, one in failures.items()}
    told = [one.args for one in causes.values() if isinstance(one, CommandFailure)]
    if told:
        sentence, code = min(told, key=lambda one: one[1] == EXIT_LOST)
        sys.stderr.write(sentence)
        return typer.Exit(code)
    rank = min(causes)
    return LostProcessError(
        f"process {rank} is lost ({type(causes[rank]).__name__}: {first_line(causes[rank])}): see `ray status` and the "
        "machine's memory; the same command resumes from the last checkpoint, if there is one"
    )

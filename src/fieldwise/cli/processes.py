"""Commands that several processes run together: by `--processes N`, by `torchrun`, or on a Ray cluster."""

import contextlib
import io
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from fieldwise.cli.options import one_of
from fieldwise.cli.outcome import INTERRUPTED, LOST, is_out_of_memory
from fieldwise.cli.show import command_again, say
from fieldwise.distributed.engine import Engine, ray_cluster
from fieldwise.distributed.environment import LAUNCHED, DistributedEnvironment
from fieldwise.errors import ConfigError, FieldwiseError, LostProcessError, first_line
from fieldwise.storage.machine import available_cores

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

PROCESSES_PER_CORE = 4
"""More would take the machine's memory and gain nothing."""
LEAST_LIMIT = 8
"""Processes that any machine may run."""
PASSED_PREFIXES = ("FIELDWISE_", "NCCL_", "GLOO_", "TORCH_", "XDG_CACHE_HOME")
"""Of the variables that the processes on Ray get."""
LAUNCH = "--standalone --local-addr=localhost --local-ranks-filter=0 --shutdown-timeout=600 --signals-to-handle=SIGQUIT"
"""Only process 0 prints. After a signal, which interrupts the launcher, all have 10 minutes to save."""

EngineName = Annotated[
    str,
    Option(
        callback=one_of("local", "ray"),
        help="`local`, or `ray`: the cluster in RAY_ADDRESS, else one made here.",
    ),
]


@dataclass(frozen=True)
class Invocation:
    """The call of a command.

    Args:
        arguments: those of the command line, with which further processes of the command start.
        began: when it began (`time.perf_counter`), so that a time budget includes loading PyTorch.
        execute: runs another command line here, and raises its errors.
    """

    arguments: Sequence[str]
    _: KW_ONLY
    began: float
    execute: Callable[[Sequence[str]], int | None]


def engine_for(name: str) -> contextlib.AbstractContextManager[Engine | None]:
    """A context with the engine of that name, as `ray_cluster` gives it; None for the local one."""
    return contextlib.nullcontext() if name == "local" else ray_cluster(say)


def check_count(option: str, count: int) -> None:
    """Check that a number of processes is not too large for this machine; else raise a ConfigError."""
    cores = available_cores()
    limit = max(LEAST_LIMIT, PROCESSES_PER_CORE * cores)
    if count > limit:
        raise ConfigError(
            f"{option} may be at most {limit} on this machine, which has {cores} cores, found {count}: give about one "
            "a core"
        )


def launch_processes(arguments: Sequence[str], processes: int | None) -> bool:
    """Run a command in several processes, as its `--processes` says, unless this is one of them or it is not given.

    A signal that interrupts this process ends all by SIGTERM. Returns whether they have run, all of
    them with success; where one failed, its sentence is printed and typer.Exit raised.
    """
    environment = DistributedEnvironment.read()
    if environment is not None:
        if processes not in (None, environment.world_size):
            raise ConfigError(
                f"--processes must be the number of processes that were started, {environment.world_size}, found "
                f"{processes}: leave it out where torchrun starts them"
            )
        return False
    if processes is None or processes == 1:
        return False
    check_count("--processes", processes)

    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    with _launcher_environment(processes):
        try:
            with tempfile.TemporaryDirectory(prefix="fieldwise-launch-") as folder:
                options = [
                    *LAUNCH.split(),
                    f"--nproc-per-node={processes}",
                    f"--log-dir={folder}",
                    "--no-python",
                ]
                run(parse_args([*options, *command_again(arguments)]))  # type: ignore[no-untyped-call]
        except ChildFailedError as e:
            raise typer.Exit(_report(e.failures, processes)) from None
    return True


@contextlib.contextmanager
def _launcher_environment(processes: int) -> Iterator[None]:
    """A context with the variables that processes to launch need and lack, and without the launcher's own log."""
    before = os.environ.copy()
    variables = {LAUNCHED: "1", "OMP_NUM_THREADS": str(max(1, available_cores() // processes))}
    if Path("/sys/class/net/lo").exists():
        variables["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ |= variables | before
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        for name in os.environ.keys() - before.keys():  # PyTorch's too
            del os.environ[name]


def _report(failures: "dict[int, ProcessFailure]", processes: int) -> int:
    """Write to standard error why the processes failed, in one sentence; returns the exit code."""
    interrupted = (INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
    # Codes that a process also has if the launcher ended it because another one failed.
    secondary = (LOST, *interrupted)
    rank, failure = min(failures.items(), key=lambda item: (item[1].exitcode in secondary, item[0]))
    code = failure.exitcode
    if code in interrupted:
        return INTERRUPTED  # which the command line says
    message = failure.error_file_data["message"]
    if not isinstance(message, dict):
        how = f"failed with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        sentence = (
            f"process {rank} of {processes} {how} (the system ends processes when memory is full), and the others with "
            "it: the same command resumes from the last checkpoint, if there is one"
        )
    elif rank:
        sentence = f"process {rank} of {processes}: {message['message']}"
    else:
        sentence = message["message"]
    print(f"fieldwise: {sentence}", file=sys.stderr)
    return max(1, code)


def train_on_ray(
    invocation: Invocation, processes: int | None, *, gpus: bool, folder: Path
) -> None:
    """Run this command in as many processes as `--processes` says on a Ray cluster, until all have ended.

    Each takes OMP_NUM_THREADS cores, and with `gpus` a GPU. All machines see `folder`, the
    bundle's, where Ray's files lie meanwhile. The error of a process is raised; a lost one or too
    small a cluster are a FieldwiseError, too.
    """
    if processes is None or DistributedEnvironment.read() is not None:
        raise ConfigError(
            "--engine ray starts the processes itself: give --processes N, without torchrun"
        )
    execute = invocation.execute

    def train_on_worker(config: dict[str, Any]) -> tuple[str, str]:
        return _execute_on_worker(execute, config)

    with (
        ray_cluster(say),
        tempfile.TemporaryDirectory(dir=folder, prefix=".fieldwise-ray-") as storage,
    ):
        import ray.train.torch

        cores = int(os.environ.get("OMP_NUM_THREADS") or 1)
        resources = {"CPU": cores, "GPU": int(gpus)}
        _check_resources(ray.cluster_resources(), resources, processes)
        variables = {
            name: value for name, value in os.environ.items() if name.startswith(PASSED_PREFIXES)
        }
        variables |= {"OMP_NUM_THREADS": str(cores), "FIELDWISE_RAY_WORKER": "1"}
        trainer = ray.train.torch.TorchTrainer(
            train_on_worker,
            train_loop_config={
                "arguments": list(invocation.arguments),
                "environment": variables,
                "folder": str(Path.cwd()),
            },
            scaling_config=ray.train.ScalingConfig(
                num_workers=processes, use_gpu=gpus, resources_per_worker=resources
            ),
            run_config=ray.train.RunConfig(name="fieldwise", storage_path=storage),
        )
        try:
            out, err = trainer.fit().return_value
        except SystemExit:  # by Ray's handler of signals
            raise KeyboardInterrupt from None
        except ray.train.TrainingFailedError as e:
            raise _cause(getattr(e, "worker_failures", {0: e})) from None
    sys.stdout.write(out)
    sys.stderr.write(err)


def _check_resources(
    available: Mapping[str, float], per_process: Mapping[str, int], processes: int
) -> None:
    """Check that a cluster made here has what the processes need; another one may grow, and is waited for."""
    for resource, amount in per_process.items():
        needed = amount * processes
        present = available.get(resource, 0)
        if present >= needed:
            continue
        shortage = f"the processes need {needed} {resource}s, and the Ray cluster has {present:.0f}"
        if not os.environ.get("RAY_ADDRESS"):
            raise ConfigError(
                f"{shortage}: lower --processes or OMP_NUM_THREADS, or name another in RAY_ADDRESS"
            )
        say(f"waiting for the Ray cluster: {shortage}")


def _execute_on_worker(
    execute: Callable[[Sequence[str]], int | None], config: dict[str, Any]
) -> tuple[str, str]:
    """Run the command in a worker of Ray Train; returns what it prints on standard output, and on standard error."""
    os.chdir(config["folder"])
    os.environ.update(config["environment"])
    with (
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        execute(config["arguments"])
    return out.getvalue(), err.getvalue()


def _cause(failures: dict[int, Exception]) -> Exception:
    """The root cause of the processes' errors, by rank; an unexpected error becomes a LostProcessError with advice."""
    expected = (FieldwiseError, OSError, ImportError)
    expected_errors = [
        error
        for error in failures.values()
        if isinstance(error, expected) or is_out_of_memory(error)
    ]
    if expected_errors:
        return min(expected_errors, key=lambda error: isinstance(error, LostProcessError))
    rank = min(failures)
    error = failures[rank]
    return LostProcessError(
        f"process {rank} is lost ({type(error).__name__}: {first_line(error)}): see `ray status` and the machine's "
        "memory; the same command resumes from the last checkpoint, if there is one"
    )

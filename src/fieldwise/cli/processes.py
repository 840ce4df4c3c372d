"""Commands that several processes run together: by `--processes N`, by `torchrun`, or on a Ray cluster."""

import contextlib
import io
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from fieldwise.cli import INTERRUPTED, LOST, is_out_of_memory
from fieldwise.cli.options import one_of
from fieldwise.cli.show import GIVEN, command_again, say
from fieldwise.distributed.engine import Engine, ray_cluster
from fieldwise.distributed.environment import LAUNCHED, DistributedEnvironment
from fieldwise.errors import ConfigError, FieldwiseError, LostProcessError, first_line
from fieldwise.storage.machine import available_cores

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

PER_CORE = 4  # more processes would take the machine's memory and gain nothing
# variables that the processes on Ray get
PASSED = ("FIELDWISE_", "NCCL_", "GLOO_", "TORCH_", "XDG_CACHE_HOME")
# Only process 0 prints. After a signal, which interrupts the launcher, all have 10 minutes to save.
LAUNCH = "--standalone --local-addr=localhost --local-ranks-filter=0 --shutdown-timeout=600 --signals-to-handle=SIGQUIT"

EngineName = Annotated[
    str,
    Option(
        callback=one_of("local", "ray"),
        help="`local`, or `ray`: the cluster in RAY_ADDRESS, else one made here.",
    ),
]


def engine_for(name: str) -> contextlib.AbstractContextManager[Engine | None]:
    """A context with the engine of that name, as `ray_cluster` gives it; None for the local one."""
    return contextlib.nullcontext() if name == "local" else ray_cluster(say)


def check_count(option: str, count: int) -> None:
    """Check that a number of processes is not too large for this machine; else raise a ConfigError."""
    cores = available_cores()
    if count > (most := max(8, PER_CORE * cores)):
        raise ConfigError(
            f"{option} may be at most {most} on this machine, which has {cores} cores, found {count}: give about one a "
            "core"
        )


def launch_processes(processes: int | None) -> bool:
    """Run this command in several processes, as `--processes` says, unless this is one of them or it is not given.

    A signal that interrupts this process ends all by SIGTERM. Returns whether they have run, all of
    them with success; where one failed, its sentence is printed and typer.Exit raised.
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
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    before = os.environ.copy()
    given = {LAUNCHED: "1", "OMP_NUM_THREADS": str(max(1, available_cores() // processes))}
    if Path("/sys/class/net/lo").exists():
        given["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ |= given | before
    logging.disable(logging.CRITICAL)  # the launcher's own log
    try:
        with tempfile.TemporaryDirectory(prefix="fieldwise-launch-") as folder:
            options = [
                *LAUNCH.split(),
                f"--nproc-per-node={processes}",
                f"--log-dir={folder}",
                "--no-python",
            ]
            run(parse_args([*options, *command_again()]))  # type: ignore[no-untyped-call]
    except ChildFailedError as e:
        raise typer.Exit(_report(e.failures, processes)) from None
    finally:
        logging.disable(logging.NOTSET)
        for name in os.environ.keys() - before.keys():  # PyTorch's too
            del os.environ[name]
    return True


def _report(failures: "dict[int, ProcessFailure]", processes: int) -> int:
    """Write to standard error why the processes failed, in one sentence; returns the exit code."""
    # Codes that a process also has if the launcher ended it because another one failed.
    ended = (LOST, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT)
    rank, first = min(failures.items(), key=lambda item: (item[1].exitcode in ended, item[0]))
    code = first.exitcode
    message = first.error_file_data["message"]
    if code in ended[1:]:
        return INTERRUPTED  # which the command line says
    if isinstance(message, dict):
        said = (
            f"process {rank} of {processes}: {message['message']}" if rank else message["message"]
        )
    else:
        how = f"failed with exit code {code}" if code > 0 else f"was ended by signal {-code}"
        said = (
            f"process {rank} of {processes} {how} (the system ends processes when memory is full), and the others with "
            "it: the same command resumes from the last checkpoint, if there is one"
        )
    print(f"fieldwise: {said}", file=sys.stderr)
    return max(1, code)


def train_on_ray(processes: int | None, *, gpus: bool, folder: Path) -> None:
    """Run this command in as many processes as `--processes` says on a Ray cluster, until all have ended.

    Each takes OMP_NUM_THREADS cores, and with `gpus` a GPU. All machines see `folder`, the
    bundle's, where Ray's files lie meanwhile. The error of a process is raised; a lost one or too
    small a cluster are a FieldwiseError, too.
    """
    if processes is None or DistributedEnvironment.read() is not None:
        raise ConfigError(
            "--engine ray starts the processes itself: give --processes N, without torchrun"
        )
    with (
        ray_cluster(say),
        tempfile.TemporaryDirectory(dir=folder, prefix=".fieldwise-ray-") as storage,
    ):
        import ray.train.torch

        cores = int(os.environ.get("OMP_NUM_THREADS") or 1)
        resources = {"CPU": cores, "GPU": int(gpus)}
        there = ray.cluster_resources()
        for kind, each in resources.items():
            if (has := there.get(kind, 0)) < (need := each * processes):
                small = f"the processes need {need} {kind}s, and the Ray cluster has {has:.0f}"
                if not os.environ.get("RAY_ADDRESS"):
                    raise ConfigError(
                        f"{small}: lower --processes or OMP_NUM_THREADS, or name another in RAY_ADDRESS"
                    )
                say(f"waiting for the Ray cluster: {small}")
        passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
        passed |= {"OMP_NUM_THREADS": str(cores), "FIELDWISE_RAY_WORKER": "1"}
        trainer = ray.train.torch.TorchTrainer(
            _train_on_worker,
            train_loop_config={
                "arguments": list(GIVEN),
                "environment": passed,
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


def _train_on_worker(config: dict[str, Any]) -> tuple[str, str]:
    """Run the command in a worker of Ray Train; returns what it prints on standard output, and on standard error."""
    from fieldwise.cli import execute

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
    known = (FieldwiseError, OSError, ImportError)
    known_failures = [
        one for one in failures.values() if isinstance(one, known) or is_out_of_memory(one)
    ]
    if known_failures:
        return min(known_failures, key=lambda one: isinstance(one, LostProcessError))
    rank, why = min(failures.items(), key=lambda item: item[0])
    return LostProcessError(
        f"process {rank} is lost ({type(why).__name__}: {first_line(why)}): see `ray status` and the machine's "
        "memory; the same command resumes from the last checkpoint, if there is one"
    )

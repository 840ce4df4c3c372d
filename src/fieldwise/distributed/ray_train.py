"""`fieldwise train --engine ray`: Ray Train's `TorchTrainer` runs the command in processes of a cluster.

`TorchTrainer` finds the places for all processes, sets up PyTorch's process group with `torchrun`'s variables, hands
out GPUs and notices lost machines. A process then is one of several as everywhere else.
"""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldwise.distributed.environment import EXIT_LOST
from fieldwise.distributed.ray_cluster import library
from fieldwise.errors import FieldwiseError, LostProcessError

__all__ = ["RAY_WORKER", "RayJob", "WorkerFailure", "fit_on_ray"]

RAY_WORKER = "FIELDWISE_RAY_WORKER"  # set in the processes that Ray Train has started
QUIET = {"RAY_TRAIN_METRICS_ENABLED": "0"}


class WorkerFailure(Exception):  # noqa: N818  # it carries an exit code, and is printed by nobody
    """A command has failed in a process, with a sentence for the user and an exit code."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence, code)
        self.sentence, self.code = sentence, code


@dataclass(frozen=True, kw_only=True)
class RayJob:
    """What is run on a cluster.

    Args:
        processes: how many.
        cores: of each process.
        gpus: whether each takes a GPU.
        folder: of the results, which all machines see.
    """

    processes: int
    cores: int = 1
    gpus: bool = False
    folder: Path = Path()

    @property
    def resources(self) -> dict[str, int]:
        """What each process takes, in Ray's words."""
        return {"CPU": self.cores} | ({"GPU": 1} if self.gpus else {})

    def missing(self, there: Mapping[str, float]) -> str:
        """What a cluster with these resources lacks for all processes, as words; empty if it has enough."""
        wanted = {kind: count * self.processes for kind, count in self.resources.items()}
        if all(there.get(kind, 0) >= count for kind, count in wanted.items()):
            return ""
        needed = " and ".join(f"{count} {kind}s" for kind, count in wanted.items())
        found = " and ".join(f"{there.get(kind, 0):.0f}" for kind in wanted)
        return f"the {self.processes} processes need {needed}, and the Ray cluster has {found}"


def fit_on_ray(
    train_loop: Callable[[dict[str, Any]], dict[str, Any]], config: dict[str, Any], job: RayJob
) -> dict[str, Any]:
    """Call a function in processes on the Ray cluster that this process is connected to.

    Args:
        train_loop: called with `config` in each.
        config: plain values.
        job: how many, and what each takes.

    Returns:
        What process 0 returned.

    Errors:
        WorkerFailure, FieldwiseError: a process has failed with it. LostProcessError: a process or machine is lost.
        KeyboardInterrupt: Ctrl-C.
    """
    os.environ.update(QUIET)
    train, torch = library("ray.train"), library("ray.train.torch")
    with tempfile.TemporaryDirectory(dir=job.folder, prefix=".fieldwise-ray-") as storage:
        trainer = torch.TorchTrainer(
            train_loop,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(
                num_workers=job.processes,
                use_gpu=job.gpus,
                resources_per_worker=job.resources,
                placement_strategy="PACK",
            ),
            run_config=train.RunConfig(name="fieldwise", storage_path=storage),
        )
        try:
            returned: dict[str, Any] | None = trainer.fit().return_value
        except train.TrainingFailedError as e:
            raise _cause(e, job.processes) from None
        except SystemExit:  # of Ray's handler of Ctrl-C
            raise KeyboardInterrupt from None
    if returned is None:  # Ray has ended the processes after Ctrl-C
        raise KeyboardInterrupt
    return returned


def _cause(error: Exception, processes: int) -> Exception:
    """The error of the process that failed first, as far as it is known."""
    failures = getattr(error, "worker_failures", None) or {0: getattr(error, "controller_failure", error)}
    causes = {rank: getattr(one, "_base_exc", one) for rank, one in sorted(failures.items())}
    own = [one for one in causes.values() if isinstance(one, (WorkerFailure, FieldwiseError))]
    for one in sorted(own, key=lambda one: isinstance(one, WorkerFailure) and one.code == EXIT_LOST):
        return one
    rank, cause = next(iter(causes.items()))
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return LostProcessError(
        f"process {rank} of {processes}: its Ray worker is lost ({type(cause).__name__}: {lines[0] if lines else ''}): "
        "see `ray status` and the machine's memory; the same command resumes from the last checkpoint, if there is one"
    )

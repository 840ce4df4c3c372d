"""Checkpoints in parts: of sharded tables, each process writes its rows; any number of them reads them.

FOLDER/first-0of2-training/0, .../1     process 0's part of the last two checkpoints
FOLDER/first-1of2-training/0, .../1     process 1's
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from fieldwise.distributed.part import Part
from fieldwise.errors import FieldwiseError
from fieldwise.storage.artifact import Artifact
from fieldwise.training.unfinished import CHECKPOINT, Unfinished, open_checkpoint

__all__ = ["SHARED_OUT", "newest_whole", "part_name", "read_parts"]

SHARED_OUT = "shared out"  # in a checkpoint's facts: the rows of whole tables, by the names of their parts' tensors


def part_name(name: str, part: Part) -> str:
    """The name of a process's part of a training's checkpoints.

    >>> part_name("first", Part(rank=1, size=4))
    'first-1of4'
    """
    return f"{name}-{part.rank}of{part.size}"


def newest_whole(place: Unfinished, name: str) -> list[Artifact]:
    """The parts of the last checkpoint that all processes of a run have written; none if there is none.

    Args:
        place: the unfinished run.
        name: the training in it.
    """
    sizes = {int(found[1]) for path in place.folder.glob(f"{name}-*") if (found := re.search(r"-0of(\d+)-", path.name))}
    every = [parts for size in sizes for parts in _of_size(place, name, size)]
    return max(every, key=lambda parts: parts[0].about["number"], default=[])


def _of_size(place: Unfinished, name: str, size: int) -> Iterator[list[Artifact]]:
    """The whole checkpoints that `size` processes have written."""
    folders = [place.part(part_name(name, Part(rank=rank, size=size))) for rank in range(size)]
    for slot in ("0", "1"):
        if not all((folder / slot / CHECKPOINT.manifest).exists() for folder in folders):
            continue
        try:
            parts = [open_checkpoint(folder / slot) for folder in folders]
            for part in parts:
                part.path("tensors")  # which checks its digest
        except (FieldwiseError, OSError) as e:
            warnings.warn(f"a checkpoint is damaged, and is passed over: {e}", stacklevel=5)
            continue
        if len({part.about["number"] for part in parts}) == 1:  # else a kill came between two processes' writes
            yield parts


def read_parts(folders: list[Path], part: Part) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """The facts of a checkpoint, and its tensors for one of any number of processes.

    Row r of a table is row `r // size` of process `r % size`, in the checkpoint and in the result.

    Args:
        folders: of the parts, in order.
        part: the process.

    Errors:
        DataError: a part is damaged.
    """
    saved = [open_checkpoint(folder) for folder in folders]
    facts = saved[0].about["run"]
    whole: Mapping[str, int] = facts[SHARED_OUT]
    tensors: dict[str, Tensor] = {}
    for rank, artifact in enumerate(saved):
        with safe_open(artifact.path("tensors", verify=False), "pt") as file:
            for name in [name for name in file.keys() if rank == 0 or name in whole]:  # noqa: SIM118  # no mapping
                found = file.get_tensor(name)
                if name not in whole:
                    tensors[name] = found.clone()
                    continue
                if name not in tensors:
                    own = len(range(part.rank, whole[name], part.size))
                    tensors[name] = found.new_empty(own, *found.shape[1:])
                number = torch.arange(rank, whole[name], len(saved))  # of each row in the whole table
                mine = number % part.size == part.rank
                tensors[name][number[mine] // part.size] = found[mine]
    return facts, tensors

"""Which of several processes this one is, as `torchrun` says it by its variables. PyTorch is not loaded for it."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fieldwise.errors import ConfigError

__all__ = ["EXIT_LOST", "LAUNCHED", "WHOLE_BATCH", "BatchShard", "DistributedEnvironment", "record_failure"]

LAUNCHED = "FIELDWISE_LAUNCHED"  # set in processes that `--processes` has started: their launcher prints errors
EXIT_LOST = 3  # exit code of a process that ends because another one has
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
REQUIRED = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True)
class DistributedEnvironment:
    """A process among those that were started together.

    Args:
        rank: its number, from 0.
        world_size: how many there are.
        local_rank: its number on its machine.

    >>> met = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    >>> DistributedEnvironment.read({**met, "LOCAL_RANK": "1"})
    DistributedEnvironment(rank=3, world_size=4, local_rank=1)
    >>> DistributedEnvironment.read({}) is None
    True
    """

    rank: int
    world_size: int
    local_rank: int

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "DistributedEnvironment | None":
        """What `torchrun`'s variables say; None for a process alone.

        Errors:
            ConfigError: variables that are missing or are not numbers in range.
        """
        if environment.get("WORLD_SIZE", "1") == "1":
            return None
        if missing := [name for name in REQUIRED if not environment.get(name)]:
            raise ConfigError(
                f"WORLD_SIZE = {environment['WORLD_SIZE']} says that several processes train together, but "
                f"{', '.join(missing)} is not set: start them with torchrun, or unset WORLD_SIZE"
            )
        numbers = {}
        for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            if not environment[name].isdecimal():
                raise ConfigError(
                    f"{name} must be a whole number, found {environment[name]!r}: start the processes with torchrun"
                )
            numbers[name] = int(environment[name])
        if numbers["RANK"] >= numbers["WORLD_SIZE"]:
            raise ConfigError(
                f"RANK must be below WORLD_SIZE = {numbers['WORLD_SIZE']}, found {numbers['RANK']}: start the "
                "processes with torchrun"
            )
        return cls(rank=numbers["RANK"], world_size=numbers["WORLD_SIZE"], local_rank=numbers["LOCAL_RANK"])


@dataclass(frozen=True, kw_only=True)
class BatchShard:
    """The consecutive rows of every batch that process `rank` of `size` takes; shards differ by one row at most.

    >>> [BatchShard(rank=rank, size=3).of(7) for rank in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """

    rank: int = 0
    size: int = 1

    def of(self, rows: int) -> tuple[int, int]:
        """The first of its rows in a batch of `rows`, and one more than the last."""
        return rows * self.rank // self.size, rows * (self.rank + 1) // self.size

    def within(self, rows: int, first: int) -> slice:
        """Its rows in a chunk of a batch of `rows` that begins at the batch's row `first`, as places in the chunk.

        >>> shard = BatchShard(rank=1, size=2)
        >>> [list(range(10, 14))[shard.within(6, 0)], list(range(14, 16))[shard.within(6, 4)]]
        [[13], [14, 15]]
        """
        low, high = self.of(rows)
        return slice(max(0, low - first), max(0, high - first))


WHOLE_BATCH = BatchShard()
"""All rows: there is one process."""


def record_failure(sentence: str) -> bool:
    """Write why this process ends for PyTorch's launcher to read; returns whether the launcher prints it."""
    if path := os.environ.get(ERROR_FILE):
        extra = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        Path(path).write_text(json.dumps({"message": {"message": sentence, "extraInfo": extra}}))
    return bool(path) and LAUNCHED in os.environ

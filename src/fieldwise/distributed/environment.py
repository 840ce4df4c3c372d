"""Which of several processes this one is, as `torchrun` says it by its variables. PyTorch is not loaded for it."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fieldwise.errors import ConfigError

__all__ = ["EXIT_LOST", "LAUNCHED", "BatchShard", "DistributedEnvironment", "record_failure"]

LAUNCHED = "FIELDWISE_LAUNCHED"  # set in processes that `--processes` has started: their launcher prints errors
EXIT_LOST = 3  # exit code of a process that ends because another one has
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


@dataclass(frozen=True, kw_only=True)
class DistributedEnvironment:
    """A process among those that were started together.

    Args:
        rank: its number, from 0.
        world_size: how many there are.
        local_rank: its number on its machine.

    >>> DistributedEnvironment.read({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
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
            ConfigError: RANK or LOCAL_RANK is missing, one of them is no number, or RANK is out of range.
        """
        size = environment.get("WORLD_SIZE", "1")
        if size == "1":
            return None
        try:
            rank, local_rank = int(environment["RANK"]), int(environment["LOCAL_RANK"])
            if not 0 <= rank < int(size):
                raise ValueError(f"RANK = {rank} must be from 0 to WORLD_SIZE - 1")
            return cls(rank=rank, world_size=int(size), local_rank=local_rank)
        except (KeyError, ValueError) as e:
            raise ConfigError(
                f"WORLD_SIZE = {size} says that several processes train together, which need RANK and LOCAL_RANK as "
                f"numbers ({type(e).__name__}: {e}): start them with torchrun, or unset WORLD_SIZE"
            ) from None


@dataclass(frozen=True, kw_only=True)
class BatchShard:
    """The consecutive rows of every batch that process `rank` of `size` takes; shards differ by one row at most.

    By default all rows: there is one process.

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


def record_failure(sentence: str) -> bool:
    """Write why this process ends for PyTorch's launcher to read; returns whether the launcher prints it."""
    if path := os.environ.get(ERROR_FILE):
        extra = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        Path(path).write_text(json.dumps({"message": {"message": sentence, "extraInfo": extra}}))
    return bool(path) and LAUNCHED in os.environ

"""Which of several processes this one is, as `torchrun` says it by its variables. PyTorch is not loaded for it."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fieldwise.errors import ConfigError

# set in processes that `--processes` has started: their launcher prints errors
LAUNCHED = "FIELDWISE_LAUNCHED"


class DistributedEnvironment(NamedTuple):
    """A process among those that were started together: its number, how many there are, its number on its machine.

    >>> DistributedEnvironment.read({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"})
    DistributedEnvironment(rank=3, world_size=4, local_rank=1)
    """

    rank: int
    world_size: int
    local_rank: int

    @classmethod
    def read(cls, environment: Mapping[str, str] = os.environ) -> "DistributedEnvironment | None":
        """What `torchrun`'s variables say, None for a process alone; a ConfigError if they do not fit together."""
        size = environment.get("WORLD_SIZE", "1")
        if size == "1":
            return None
        try:
            result = cls(int(environment["RANK"]), int(size), int(environment["LOCAL_RANK"]))
            if not 0 <= result.rank < result.world_size:
                raise ValueError(f"RANK = {result.rank} must be from 0 to WORLD_SIZE - 1")
            return result
        except (KeyError, ValueError) as e:
            raise ConfigError(
                f"WORLD_SIZE = {size} says that several processes train together, which need RANK and LOCAL_RANK as "
                f"numbers ({type(e).__name__}: {e}): start them with torchrun, or unset WORLD_SIZE"
            ) from None


def record_failure(sentence: str) -> bool:
    """Write why this process ends for PyTorch's launcher to read; returns whether the launcher prints it."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return False
    extra = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
    Path(path).write_text(json.dumps({"message": {"message": sentence, "extraInfo": extra}}))
    return LAUNCHED in os.environ

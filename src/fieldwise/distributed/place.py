"""Which of several processes this one is, as `torchrun` tells it. PyTorch is not loaded for it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from fieldwise.errors import ConfigError

__all__ = ["Place"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A process among those that were started together.

    Args:
        rank: its number, from 0.
        size: how many there are.
        local_rank: its number on its machine; None if that is found once they have met.

    >>> met = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    >>> Place.of({**met, "LOCAL_RANK": "1"})
    Place(rank=3, size=4, local_rank=1)
    >>> Place.of({}) is None
    True
    """

    rank: int
    size: int
    local_rank: int | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> "Place | None":
        """The place that `torchrun`'s variables name; None for a process alone.

        Errors:
            ConfigError: variables that are missing or are not numbers in range.
        """
        if environment.get("WORLD_SIZE", "1") == "1":
            return None
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]
        if missing:
            raise ConfigError(
                f"WORLD_SIZE = {environment['WORLD_SIZE']} says that several processes train together, but "
                f"{', '.join(missing)} is not set: start them with torchrun, or unset WORLD_SIZE"
            )
        numbers = {}
        for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            text = environment.get(name)
            if text is None and name == "LOCAL_RANK":
                continue
            if text is None or not text.isdecimal():
                raise ConfigError(f"{name} must be a whole number, found {text!r}: start the processes with torchrun")
            numbers[name] = int(text)
        if not numbers["RANK"] < numbers["WORLD_SIZE"]:
            raise ConfigError(
                f"RANK must be below WORLD_SIZE = {numbers['WORLD_SIZE']}, found {numbers['RANK']}: start the "
                "processes with torchrun"
            )
        return cls(rank=numbers["RANK"], size=numbers["WORLD_SIZE"], local_rank=numbers.get("LOCAL_RANK"))

"""What a command knows of the call that runs it: Typer's context holds it as `obj`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """The call of a command.

    Args:
        began: when it began (`time.perf_counter`), so that a time budget includes loading PyTorch.
        execute: runs another command line here, and raises its errors.
    """

    began: float
    execute: Callable[[Sequence[str]], int | None]

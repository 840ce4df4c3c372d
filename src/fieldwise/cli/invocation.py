"""What a command knows of the call that runs it: Typer's context holds it as `obj`."""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass


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

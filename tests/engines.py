"""An engine for tests: every task and answer goes through the text that another machine would get, in this process."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from fieldwise.distributed.engine import Task, Work, answered, done_here


def batched(tasks: Iterable[Task], size: int) -> Iterator[list[Task]]:
    """So many tasks at a time."""
    left = iter(tasks)
    while some := list(islice(left, size)):
        yield some


class HereEngine:
    """Does the tasks here, the last one first, so that nothing can depend on the order of the work."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def map(self, work: Work, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
        texts = [done_here(work, task.to_json()) for task in reversed(tasks)]
        self.done += [work.__name__] * len(texts)
        yield from map(answered, reversed(texts))

    def stream(self, work: Work, tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
        for some in batched(tasks, 3):
            yield from self.map(work, some)

"""Work on pieces of a table that several machines may share.

A piece of work is a function of this package and plain values: paths, numbers and texts go to where it is done, numbers
and texts come back, and rows lie in files of a folder that all machines see. So the same functions serve any engine.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from fieldwise import errors
from fieldwise.errors import FieldwiseError

__all__ = ["Engine", "Task", "Work", "answered", "done_here"]

Task = Mapping[str, Any]
"""What a piece of work is given: plain values that JSON can hold."""
Work = Callable[[Task], dict[str, Any]]
"""Plain values to plain values; a function of a module, so that its name is enough to find it elsewhere."""


class Engine(Protocol):
    """Interface of what does tasks somewhere."""

    def map(self, work: Work, tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
        """The answers to all tasks, in their order; of an iterator, few tasks are taken ahead of the answers.

        Errors:
            FieldwiseError: that of the first task that fails.
        """


def done_here(work: Work, task: str) -> str:
    """Do a task, given as JSON, in this process: the answer, or the user error, as text for `answered`.

    >>> def double(given):
    ...     return {"twice": 2 * given["n"]}
    >>> answered(done_here(double, '{"n": 4}'))
    {'twice': 8}
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            done: dict[str, Any] = {"answer": work(json.loads(task))}
        except FieldwiseError as e:
            done = {"error": type(e).__name__, "sentence": str(e)}
    done["warnings"] = [str(one.message) for one in caught if one.category is UserWarning]
    return json.dumps(done)


def answered(text: str) -> dict[str, Any]:
    """The answer from `done_here`; its warnings are given here.

    Errors:
        FieldwiseError: the task failed with it.
    """
    done = json.loads(text)
    for sentence in done["warnings"]:
        warnings.warn(sentence, stacklevel=2)
    if "error" in done:
        raise getattr(errors, done["error"], FieldwiseError)(done["sentence"])
    answer: dict[str, Any] = done["answer"]
    return answer

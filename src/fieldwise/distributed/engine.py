"""Work on pieces of a table that several machines may share.

A piece of work is a function of this package and plain values: paths, numbers and texts go to where it is done, numbers
and texts come back, and rows lie in files of a folder that all machines see. So the same functions serve any engine.
"""

import json
import socket
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fieldwise import errors
from fieldwise.errors import ConfigError, FieldwiseError
from fieldwise.version import __version__

__all__ = ["Engine", "Task", "Work", "answered", "done_here"]

PATIENCE = 5.0  # seconds
GLANCE = 0.2
Work = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Plain values to plain values; a function of a module, so that its name is enough to find it elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A piece of work for any machine.

    Args:
        given: plain values that JSON can hold.
        reads: files and folders that it reads.
        writes: the folder that it writes to, which exists.
    """

    given: Mapping[str, Any]
    reads: tuple[Path, ...] = ()
    writes: Path | None = None

    def to_json(self) -> str:
        """The task as text for `done_here`."""
        sizes = {str(path): path.stat().st_size if path.is_file() else None for path in self.reads}
        writes = None if self.writes is None else str(self.writes)
        return json.dumps({"given": self.given, "reads": sizes, "writes": writes, "version": __version__})


class Engine(Protocol):
    """Interface of what does tasks somewhere."""

    def map(self, work: Work, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
        """The answers to all tasks, in their order.

        Errors:
            FieldwiseError: that of the first task that fails; a machine does not see a file that it needs.
        """

    def stream(self, work: Work, tasks: Iterable[Task]) -> Iterator[dict[str, Any]]:
        """As `map`, for tasks that are made one by one: so few are taken ahead of the answers that no core waits."""


def done_here(work: Work, task: str) -> str:
    """Do a task in this process: the answer, or the user error, as text for `answered`.

    >>> def double(given):
    ...     return {"twice": 2 * given["n"]}
    >>> answered(done_here(double, Task(given={"n": 4}).to_json()))
    {'twice': 8}
    """
    about = json.loads(task)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            _check_place(about)
            found: dict[str, Any] = {"answer": work(about["given"])}
        except FieldwiseError as e:
            found = {"error": type(e).__name__, "said": str(e)}
    found["warnings"] = [str(one.message) for one in caught if one.category is UserWarning]
    return json.dumps(found)


def answered(text: str) -> dict[str, Any]:
    """The answer from `done_here`; its warnings are given here.

    Errors:
        FieldwiseError: the task failed with it.
    """
    found = json.loads(text)
    for sentence in found["warnings"]:
        warnings.warn(sentence, stacklevel=2)
    if "error" in found:
        kind = getattr(errors, found["error"], FieldwiseError)
        raise kind(found["said"])
    answer: dict[str, Any] = found["answer"]
    return answer


def _check_place(about: Mapping[str, Any]) -> None:
    """Check that this machine has the version and sees the files of the one that asks."""
    node = socket.gethostname()
    if about["version"] != __version__:
        raise ConfigError(
            f"all machines need one version of fieldwise: {node} has {__version__}, and {about['version']} asks; "
            "install the same there"
        )
    for name, size in about["reads"].items():
        path = Path(name)
        if not _appears(path):
            raise ConfigError(_unseen(node, path))
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise ConfigError(
                f"all machines must see the same files, but {path} has {found} bytes on {node}, and {size} where the "
                "command runs: put it in a folder that all machines share"
            )
    if about["writes"] is not None and not _appears(Path(about["writes"])):
        raise ConfigError(_unseen(node, Path(about["writes"])))


def _appears(path: Path) -> bool:
    """Whether a path exists, now or soon: network file systems show what is new only after a while."""
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(GLANCE)
    return True


def _unseen(node: str, path: Path) -> str:
    return (
        f"all machines must see the same files, but {node} does not see {path}: put it in a folder that all machines "
        "share, at the same path (FIELDWISE_CACHE is the folder of prepared rows)"
    )

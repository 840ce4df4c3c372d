"""Forked children of a process that has read a table: the threads of Polars are not in them, and they would wait."""

import contextlib
import os
import re
from pathlib import Path

from fieldwise.errors import FieldwiseError

_THREADS = Path("/proc/self/task")  # of Linux
_POLARS_THREAD = re.compile(r"polars-\d+")
_has_computed = False
_is_child_of_one_that_has = False


def computing() -> None:
    """Note that this process computes with Polars, or refuse it in a process that was forked from one that has.

    Errors:
        FieldwiseError: the process was forked from one that has, so that it would wait for ever.
    """
    global _has_computed
    if _is_child_of_one_that_has:
        raise FieldwiseError(
            "a forked process cannot read tables or predict once its parent has, since the parent's threads are "
            "missing in it: start it by multiprocessing.get_context('spawn') and load the model there (gunicorn: "
            "without --preload)"
        )
    _has_computed = True


def _note_threads() -> None:
    """Note whether Polars has threads: a program may have computed with it by itself."""
    global _has_computed
    _has_computed = _has_computed or any(_POLARS_THREAD.fullmatch(name) for name in _thread_names())


def _thread_names() -> list[str]:
    """The names of this process's threads; none where the system does not tell them."""
    names = []
    for thread in _THREADS.iterdir() if _THREADS.is_dir() else ():
        with contextlib.suppress(OSError):  # it has just ended
            names.append((thread / "comm").read_text("utf-8", "replace").strip())
    return names


def _note_fork() -> None:
    global _is_child_of_one_that_has
    _is_child_of_one_that_has = _has_computed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_threads, after_in_child=_note_fork)

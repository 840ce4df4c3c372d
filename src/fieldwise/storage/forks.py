"""Forked children of a process that has read a table: the threads of Polars are not in them, and they would wait."""

import os

from fieldwise.errors import FieldwiseError

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


def _note_fork() -> None:
    global _is_child_of_one_that_has
    _is_child_of_one_that_has = _has_computed


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)

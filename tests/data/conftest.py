"""Fixtures of the data room's tests."""

import gc
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def calls_of() -> Callable[[Callable[[], object]], int]:
    """Counts the functions, Python's and built-in ones, that a piece of work calls.

    Vectorized work makes the same number for any number of rows: a measure that no busy machine
    disturbs.
    """

    def count_calls(work: Callable[[], object]) -> int:
        count = 0

        def step(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        gc.disable()  # its callbacks would be counted
        sys.setprofile(step)
        try:
            work()
        finally:
            sys.setprofile(None)
            gc.enable()
        return count

    return count_calls

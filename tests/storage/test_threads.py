import threading
import time
from collections.abc import Iterator

import pytest

from fieldwise.storage.threads import ahead


def test_one_item_is_made_ahead_in_another_thread() -> None:
    made: list[int] = []
    threads = set()

    def numbers() -> Iterator[int]:
        for k in range(5):
            threads.add(threading.get_ident())
            made.append(k)
            yield k

    for k in ahead(numbers()):
        limit = time.monotonic() + 30
        while len(made) < min(k + 2, 5) and time.monotonic() < limit:
            time.sleep(0.001)
        assert made == list(range(min(k + 2, 5)))
    assert threading.get_ident() not in threads


def test_an_error_comes_after_the_items_before_it() -> None:
    items = ahead(6 // k for k in (3, 2, 0, 1))
    assert [next(items), next(items)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(items)


def test_no_thread_is_left_when_the_rest_is_not_wanted() -> None:
    before = threading.active_count()
    items = ahead(iter(range(100)))
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before

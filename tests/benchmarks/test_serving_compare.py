"""Answers of two servers count as the same up to the order of equal predictions."""

import pytest

pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")

from benchmarks.serving.__main__ import same_answers

OURS = [("a", 0.9), ("b", 0.7), ("c", 0.7), ("d", 0.5)]


def test_items_may_differ_only_where_predictions_are_equal(subtests):
    for theirs, same in [
        (OURS, True),
        ([("a", 0.9), ("c", 0.7), ("b", 0.7), ("d", 0.5)], True),
        # more items may have the last prediction
        ([("a", 0.900001), ("b", 0.7), ("c", 0.7), ("e", 0.5)], True),
        ([("b", 0.9), ("a", 0.7), ("c", 0.7), ("d", 0.5)], False),
        ([("a", 0.9), ("b", 0.7), ("e", 0.7), ("d", 0.5)], False),
        ([("a", 0.9), ("b", 0.7), ("c", 0.69), ("d", 0.5)], False),
        (OURS[:3], False),
    ]:
        with subtests.test(theirs=theirs, same=same):
            assert same_answers(OURS, theirs) is same

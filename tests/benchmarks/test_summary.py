"""Medians and spreads against NumPy's."""

import numpy as np
import pytest
from benchmarks.summary import ratio, summarize
from benchmarks.timing import seconds_of, steps_to_time


def test_quartiles_are_numpys(subtests):
    for count in [1, 2, 3, 7, 10]:
        with subtests.test(count=count):
            samples = np.random.default_rng(count).random(count).tolist()
            found = summarize(samples)
            assert [found.low, found.median, found.high] == pytest.approx(np.percentile(samples, [25, 50, 75]))


def test_no_samples_have_no_median():
    with pytest.raises(ValueError, match="must not be empty"):
        summarize([])


def test_a_ratio_pairs_the_rounds():
    # A machine half as fast in the second round slows both sides: no round's ratio moves.
    found = ratio([10.0, 20.0, 10.0, 40.0], [1.0, 2.0, 1.0, 4.0])
    assert (found.median, found.low, found.high) == (10.0, 10.0, 10.0)
    uneven = ratio([4.0, 6.0, 9.0], [1.0, 2.0, 3.0])
    assert (uneven.median, uneven.low, uneven.high) == (3.0, 3.0, 3.5)


def test_rounds_must_match():
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])


def test_steps_are_scaled_to_an_epoch():
    assert steps_to_time(1000, 100, 4) == (400, 2.5)
    assert steps_to_time(1000, 100, None) == (1000, 1.0)
    assert steps_to_time(1000, 100, 40) == (1000, 1.0)


def test_short_work_alternates_and_the_least_counts(monkeypatch):
    clock, order = [0.0], []

    def work(name, costs):
        def run():
            order.append(name)
            clock[0] += next(costs)

        return run

    monkeypatch.setattr("benchmarks.timing.time.perf_counter", lambda: clock[0])
    found = seconds_of(work("a", iter([3.0, 1.0, 2.0])), work("b", iter([5.0, 6.0, 4.0])), at_least=20.0)
    assert found == [1.0, 4.0]
    assert order == ["a", "b"] * 3

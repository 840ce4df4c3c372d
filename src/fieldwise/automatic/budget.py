"""How the minutes are spent: what an epoch costs, which models fit, and when a training has to end."""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from torch import Tensor

from fieldwise.evaluation.registry import METRICS
from fieldwise.training.progress import OutOfTime, Silent
from fieldwise.training.result import Evaluation

__all__ = ["Clock", "Hopeless", "Probe", "Trial", "Until", "admitted", "allotted"]

LEAST_EPOCHS = 3.0  # a model that has time for fewer is not begun
MANY_EPOCHS = 100.0  # epochs that a model may have where the others keep their least
MOST_SHARE = 0.25  # of what is left, for a model that others follow, unless it has a greater share by cost
PROBE_STEPS = 6
BEHIND = 0.01  # a trial is broken off where it is worse by this share of the other's figure


class Clock:
    """The time that is left of a budget.

    Args:
        seconds: of the whole.
        now: tells the time in seconds.
        began: by `now`; this moment where left out.
    """

    def __init__(
        self, seconds: float, now: Callable[[], float] = time.perf_counter, began: float | None = None
    ) -> None:
        self.seconds, self._now = seconds, now
        self._began = now() if began is None else began

    @property
    def spent(self) -> float:
        """Seconds since it began."""
        return self._now() - self._began

    @property
    def left(self) -> float:
        """Seconds until the end; below 0 afterwards."""
        return self.seconds - self.spent


class Until(Silent):
    """Ends a training after a number of seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    def step(self, rows: int, loss: Tensor) -> None:
        """A step is done."""
        if time.perf_counter() >= self._end:
            raise OutOfTime


class Hopeless(Exception):  # noqa: N818  # no fault
    """A trial is so far behind that it is broken off."""


class Trial(Until):
    """`Until`, and the end of a trial that falls behind.

    From half of the other training's best epoch on, a trial whose best figure is worse than what the other had then,
    by a hundredth, is broken off.

    Args:
        seconds: at most.
        other: the evaluations of the training to beat.
        metric: what counts.
    """

    def __init__(self, seconds: float, other: Sequence[Evaluation], metric: str) -> None:
        super().__init__(seconds)
        self._metric, self._sign = metric, -1.0 if METRICS[metric].higher else 1.0
        self._other = [(look.epoch, self._sign * look.metrics[metric]) for look in other]
        self._from = min(self._other, key=lambda pair: pair[1])[0] / 2
        self._best = np.inf

    def evaluation(self, look: Evaluation, monitor: str, better: bool) -> None:
        """The validation rows were scored."""
        self._best = min(self._best, self._sign * look.metrics[self._metric])
        then = [value for epoch, value in self._other if epoch <= look.epoch]
        if then and look.epoch >= self._from and self._best > min(then) + BEHIND * abs(min(then)):
            raise Hopeless


class Probe(Silent):
    """Ends a training after a few steps, and knows what an epoch would take."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._rows, self._of = 0, 1
        self._ended = False

    def epoch(self, number: int, of: int, rows: int) -> None:
        """A pass over `rows` rows begins."""
        self._of = rows
        if not self._times:
            self._times.append(time.perf_counter())

    def step(self, rows: int, loss: Tensor) -> None:
        """A step is done."""
        self._times.append(time.perf_counter())
        self._rows = max(self._rows, rows)
        if len(self._times) > PROBE_STEPS:
            self._ended = True
            raise OutOfTime

    def evaluation(self, look: Evaluation, monitor: str, better: bool) -> None:
        """The validation rows were scored."""
        self._times.append(time.perf_counter())
        if not self._ended:  # the first look ends it too; but after its end there is one more
            self._ended = True
            raise OutOfTime

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds of an epoch's steps, the first of which is left out as it prepares much, and of one evaluation."""
        spans = np.diff(self._times)
        steps, look = spans[:-1], float(spans[-1])
        usual = float(np.median(steps[1:] if len(steps) > 1 else steps)) if len(steps) else 0.0
        return usual * max(1.0, self._of / max(self._rows, 1)) + look


def admitted(costs: Mapping[str, float], seconds: float) -> list[str]:
    """Which models fit into the seconds, the cheapest first: the most costly go until the rest have three epochs.

    >>> admitted({"lr": 1.0, "afm": 4.0, "autoint": 30.0}, 20)
    ['lr', 'afm']
    """
    names = sorted(costs, key=lambda name: costs[name])
    while names and sum(costs[name] for name in names) * LEAST_EPOCHS > seconds:
        names.pop()
    return names


def allotted(costs: Sequence[float], seconds: float) -> float:
    """Seconds that the first of some models may take: its share by cost, or what it may need if there is more.

    It may need a hundred epochs, and has a quarter of the time at most while others follow. What it does not use,
    since its training ends by itself, is the others'.

    Args:
        costs: seconds of an epoch of each, the model's own first.
        seconds: for all of them.

    >>> allotted([1.0, 9.0], 100.0), allotted([1.0, 9.0], 50.0), allotted([5.0], 60.0)
    (25.0, 12.5, 60.0)
    """
    share = seconds * costs[0] / sum(costs)
    spare = seconds - LEAST_EPOCHS * sum(costs[1:])
    return max(share, min(MANY_EPOCHS * costs[0], spare, MOST_SHARE * seconds))

"""A search for few trials: each tries settings one step from the best ones so far."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fieldwise.config import to_plain
from fieldwise.runs.bounds import OneOf, Range
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.search_space import search_space
from fieldwise.runs.setting_paths import value_at, with_values

FIRST_SEARCHED = (".learning_rate", "training.l2.", "dropout", "model.embedding_dim")
"""Parts of paths, in the order in which they are searched: these settings matter most."""
STEPS_OF_RANGE = 6
"""From one end of a range to the other, on a log scale where the range has one."""
MOST_DRAWS = 200
"""Proposals that are drawn in search of an untried one."""

Move = tuple[str, int]
"""The path of a setting, and the direction of a step: -1 or 1."""


class Climb:
    """Proposes recipes close to the best one so far: each differs from it by one step of one setting.

    Optuna's samplers, which `tune` has, gain less from the dozen trials that `auto` has time for,
    where much is to gain: on 1,500 simulated rows, two seeds, 12 trials took AutoInt+'s validation
    logloss from .5806 and .5860 to .5658 and .5088, `GPSampler` to .5806 and .5247, `TPESampler` to
    .5806 (seed 0), also within one step around the start. FM, from .6249 and .5693: .6249 and .4992
    here, .6249 and .4935 by `GPSampler`, .6073 and .5262 by `TPESampler`.

    The settings and their ranges are those of `fieldwise tune`'s search space for the model. A step
    that helped is repeated. When every single step was tried, proposals change two settings at
    once, sampled at random.

    >>> from fieldwise import load_recipe
    >>> climb = Climb(load_recipe("simulated/lr"), seed=0)
    >>> path, value = next(iter(climb.propose().items()))
    >>> path, value < value_at(climb.best, path)
    ('training.learning_rate', True)
    """

    def __init__(self, recipe: Recipe, *, seed: int) -> None:
        self.best = recipe
        self.space = search_space(recipe)
        self.changed: dict[str, Any] = {}
        self._rng = np.random.default_rng(seed)
        self._tried: set[str] = set()
        self._last: list[Move] = []
        self._moves = deque(self._all_moves())

    def propose(self) -> dict[str, Any] | None:
        """Settings to change in the best recipe, values by dotted path; None if no untried change is found."""
        for _ in range(MOST_DRAWS):
            self._last = [self._moves.popleft()] if self._moves else self._random_moves()
            values = {}
            for path, direction in self._last:
                value = self._step(path, direction)
                if value is not None:
                    values[path] = value
            proposal = repr(sorted({**self.changed, **values}.items()))
            if values and proposal not in self._tried:
                self._tried.add(proposal)
                return values
        return None

    def tell(self, values: Mapping[str, Any], *, better: bool) -> None:
        """Report the result of the last proposal; if it was better, it becomes the best recipe."""
        if not better:
            return
        self.best = with_values(self.best, values)
        self.changed |= values
        helped = dict(self._last)
        untried = [move for move in self._moves if move[0] not in helped]
        others = [
            move for move in self._all_moves() if move not in untried and move[0] not in helped
        ]
        self._moves = deque([*helped.items(), *untried, *others])

    def _random_moves(self) -> list[Move]:
        """Steps of two settings at once, or of as many as there are."""
        count = min(2, len(self.space))
        if count == 0:
            return []
        paths = self._rng.choice(sorted(self.space), count, replace=False)
        return [(str(path), int(self._rng.choice([-1, 1]))) for path in paths]

    def _all_moves(self) -> list[Move]:
        """Both steps of every setting, in a random order but for those that are searched first."""
        shuffled = [str(path) for path in self._rng.permutation(sorted(self.space))]
        moves = []
        for path in sorted(shuffled, key=_search_rank):
            moves += [(path, -1), (path, 1)]
        return moves

    def _step(self, path: str, direction: int) -> Any:
        """The next value in a direction; None at the end of the range."""
        bounds = self.space[path]
        value = value_at(self.best, path)
        if isinstance(bounds, OneOf):
            step = _next_choice(bounds.choices, value, direction)
            return None if step is None or to_plain(step) == value else step

        if not isinstance(value, (int, float)) or (bounds.log and value <= 0):
            step = _middle(bounds)
        elif (direction < 0 and value <= bounds.low) or (direction > 0 and value >= bounds.high):
            return None
        else:
            step = _next_number(bounds, value, direction)
        step = min(max(step, float(bounds.low)), float(bounds.high))
        step = round(step) if bounds.whole else float(f"{step:.4g}")
        return None if step == value else step


def _search_rank(path: str) -> int:
    """When a setting is searched: the lower the rank, the earlier."""
    for rank, part in enumerate(FIRST_SEARCHED):
        if part in path:
            return rank
    return len(FIRST_SEARCHED)


def _next_choice(choices: Sequence[Any], value: Any, direction: int) -> Any:
    """The choice beside a value in a direction; None at the end. A value that is no choice goes to the nearest one."""
    plain = [to_plain(choice) for choice in choices]
    if value in plain:
        index = plain.index(value) + direction
        return choices[index] if 0 <= index < len(choices) else None
    if isinstance(value, (int, float)) and all(isinstance(c, (int, float)) for c in plain):
        beyond = [choice for choice in plain if (choice - value) * direction > 0]
        return min(beyond, key=lambda choice: abs(choice - value), default=None)
    return choices[0] if direction < 0 else choices[-1]


def _middle(bounds: Range) -> float:
    """The middle of a range, on a log scale where it has one."""
    low = float(bounds.low)
    high = float(bounds.high)
    middle: float = (low + high) / 2
    if bounds.log:
        middle = (low * high) ** 0.5
    return middle


def _next_number(bounds: Range, value: float, direction: int) -> float:
    """The number one step from a value in a direction."""
    low = float(bounds.low)
    high = float(bounds.high)
    if bounds.log:
        factor: float = (high / low) ** (direction / STEPS_OF_RANGE)
        return value * factor
    if bounds.step is not None:
        return value + direction * float(bounds.step)
    if bounds.whole:
        return value + direction
    return value + direction * ((high - low) / STEPS_OF_RANGE)

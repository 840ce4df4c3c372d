"""What is kept for the search while models are trained, with the tests' own clock and trainings."""

from types import SimpleNamespace

import pytest

from fieldwise.automatic import schedule, trial
from fieldwise.automatic.budget import Clock
from fieldwise.automatic.trial import TITLES, Trial, seconds_on_all

COSTS = {"lr": 0.5, "fm": 1.0, "afm": 1.0, "finalmlp": 1.0}


class Run:
    """Runs `try_models` with trainings that take given seconds of a clock that stands still otherwise."""

    def __init__(self, patch, seconds: dict[str, float], budget: float) -> None:
        self.now, self.said, self.allowed, self.trials = 0.0, [], {}, 0
        self.problem = SimpleNamespace(metric="logloss", settings={"seed": 0})
        self.seconds, self.clock = seconds, Clock(budget, lambda: self.now)
        patch.setattr(
            trial, "constant", lambda _: Trial(raw=None, title="constant", valid=None, value=9.0)
        )
        patch.setattr(schedule, "recipes_for", lambda *_: {name: name for name in seconds})
        patch.setattr(schedule, "fit_trial", self.fit)
        patch.setattr(schedule, "seconds_of", lambda recipe, _: COSTS[recipe])
        patch.setattr(schedule, "Deadline", lambda seconds: seconds)
        patch.setattr(schedule, "train_trees", lambda *_: None)
        patch.setattr(schedule, "search_settings", self.search)
        patch.setattr(schedule, "train_again", lambda _: None)
        self.tried = schedule.try_models(
            self.problem, "x", self.clock, reserve=0.0, note=self.said.append
        )

    def fit(self, title, recipe, problem, allowed):
        taken = min(self.seconds[recipe], allowed)
        self.allowed[recipe], self.now = allowed, self.now + taken
        result = SimpleNamespace(
            seconds=taken, best=SimpleNamespace(epoch=1), epochs=1, unit="epoch"
        )
        value = 1.0 - 0.1 * len(self.allowed)  # each model is better than those before it
        trained = SimpleNamespace(history=result)
        return Trial(
            raw=None,
            title=title,
            valid=None,
            value=value,
            seconds=taken,
            trained=trained,
            stopped="time",
        )

    def search(self, tried):
        best = tried.models[:2]
        self.left = tried.left
        self.trials = int(
            tried.left >= max(map(seconds_on_all, best)) + min(one.seconds for one in best) / 2
        )


def test_time_that_holds_no_trial_goes_to_the_models_that_follow(monkeypatch):
    long = Run(monkeypatch, {"lr": 1.0, "fm": 90.0, "afm": 90.0, "finalmlp": 90.0}, budget=100.0)
    # 99 s are left after LR, 39.6 s of them kept, and FM gets a third of the rest, 19.8 s: training
    # it again takes 1.4 * 19.8 + 2 = 29.72 s, and a trial at least half a second, since LR is the
    # other one of the best two.
    assert long.allowed["fm"] == pytest.approx(19.8)
    assert long.allowed["afm"] == pytest.approx(19.8)
    # Then both of the best take 19.8 s, and a trial 9.9 s: 39.62 s are needed, .02 more than were
    # kept.
    assert long.allowed["finalmlp"] == pytest.approx(59.4 - 29.72)
    assert long.left == pytest.approx(29.72)  # to train the best of these again
    assert [line for line in long.said if "hold no trial" in line] == [
        "the 40 s kept for the search hold no trial: 10 s go to the next models"
    ]


def test_time_that_holds_a_trial_is_kept(monkeypatch):
    short = Run(monkeypatch, {"lr": 1.0, "fm": 15.0, "afm": 15.0, "finalmlp": 90.0}, budget=100.0)
    assert short.allowed["finalmlp"] == pytest.approx(99.0 - 30.0 - 39.6)
    assert short.left == pytest.approx(39.6)
    assert not [line for line in short.said if "hold no trial" in line]


def test_nothing_is_kept_where_the_best_could_not_be_trained_again(monkeypatch):
    monkeypatch.setattr(schedule, "DEFAULTS_SHARE", 0.9)
    none = Run(monkeypatch, {"lr": 1.0, "fm": 90.0, "afm": 90.0, "finalmlp": 90.0}, budget=100.0)
    # 9.9 s are kept, but training FM again would take 1.4 * 29.7 + 2 s.
    assert none.allowed["fm"] == pytest.approx(29.7)
    assert none.allowed["afm"] == pytest.approx((99.0 - 29.7) / 2)
    assert none.left == pytest.approx(0.0, abs=1e-9)
    assert TITLES["finalmlp"] not in none.tried.skipped

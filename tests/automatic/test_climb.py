"""The search around given settings: it goes where a known function is lower, stays in its bounds, ends by itself."""

import math

from fieldwise import load_recipe
from fieldwise.runs.climb import Climb
from fieldwise.runs.setting_paths import with_values


def value_of(recipe):
    """Least at a learning rate of .002 and an attention of 64."""
    rate = math.log10(recipe.training.learning_rate / 0.002) ** 2
    return rate + abs(math.log2(recipe.model.attention_dim / 64))


def climbed(recipe, trials, seed=0):
    climb, best, values = Climb(recipe, seed=seed), value_of(recipe), []
    for _ in range(trials):
        proposed = climb.propose()
        if proposed is None:
            break
        values.append(proposed)
        new = value_of(with_values(climb.best, proposed))
        climb.tell(proposed, better=new < best)
        best = min(best, new)
    return climb, best, values


def test_it_finds_the_lowest_of_a_simple_function():
    recipe = load_recipe("simulated/afm", ["training.learning_rate=0.02", "model.attention_dim=16"])
    climb, best, _ = climbed(recipe, 40)
    assert best < 0.05
    assert climb.best.model.attention_dim == 64
    assert climb.changed["training.learning_rate"] == climb.best.training.learning_rate
    assert climb.best.data == recipe.data


def test_proposals_differ_from_the_best_by_one_step_and_never_repeat():
    recipe = load_recipe("simulated/afm")
    climb = Climb(recipe, seed=1)
    seen = [climb.propose() for _ in range(8)]
    assert len({repr(values) for values in seen}) == 8
    for values in seen:
        assert len(values) == 1
        with_values(climb.best, values)  # is a recipe
    assert next(iter(seen[0])) == "training.learning_rate"


def test_values_stay_within_the_space_and_without_gain_it_ends_in_pairs():
    recipe = load_recipe("simulated/lr")
    climb, proposals = Climb(recipe, seed=0), []
    while (values := climb.propose()) is not None and len(proposals) < 100:
        proposals.append(values)
        for path, value in values.items():
            assert climb.space[path].low <= value <= climb.space[path].high
        climb.tell(values, better=False)
    assert climb.best is recipe
    assert len(proposals) < 100, "a space of two settings is soon tried"
    assert any(len(values) == 2 for values in proposals)

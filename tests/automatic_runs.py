"""Makes runs of `auto` short: few models, few epochs, few trials. Tests of its command share it."""

from fieldwise import Recipe
from fieldwise.automatic import schedule
from fieldwise.automatic.task import AutoTask
from fieldwise.automatic.trial import TITLES, TREES


def shorten(patch, most=2):
    """LR, FM and LightGBM alone, two epochs each in large batches, and so many trials."""

    def recipe(problem, model, name):
        return Recipe.from_dict(
            {**problem.settings, "model": model, "training": {"epochs": 2, "batch_size": 256}}, name
        )

    for name in set(TITLES) - {"lr", "fm"}:
        patch.delitem(TITLES, name)
    patch.delitem(TREES, "catboost")
    patch.setattr(AutoTask, "recipe", recipe)
    patch.setattr(schedule, "MAX_TRIALS", most)

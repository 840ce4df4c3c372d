"""The rules for settings chosen from the data, each with a reason.

docs/defaults.md explains each rule, with measurements and rejected alternatives. L2 strengths are `c / rows`: with the
mean loss over rows they are Gaussian priors of variance `1 / c` on each weight, independent of the table's size (`c` =
1 is the strength of scikit-learn's `LogisticRegression(C=1)`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fieldwise.runs.defaults.facts import Facts
from fieldwise.training.settings import LBFGS, OPTIMIZERS

__all__ = ["RULES", "Rule", "label_scale", "model_rules", "training_rules"]

RULES = 6  # increased when a rule changes, so that stored runs with other rules are run again

STEPS_AN_EPOCH = 50
SMALLEST_BATCH, LARGEST_BATCH = 32, 2048
LARGE_VOCABULARY = 2**18  # minimum rows of the shared table for lazy updates
MANY_ROWS = 100_000  # minimum rows for several evaluations per epoch
STEPS_PER_EVALUATION = 100
LEAST_DEVIATION, MOST_DEVIATION = (
    0.5,
    2.0,
)  # range of standard deviations of regression labels that need no scale, such as ratings


@dataclass(frozen=True)
class Plan:
    """Initialisation, regularisation and learning rate of a kind of model.

    Args:
        std: standard deviation of the embeddings' initial values.
        prior: `c` of the embeddings' L2 strength `c / rows`.
        rate: Adam's learning rate.
        few: number of training rows below which `slow` is the learning rate.
        slow: see `few`.
        of_pairs: whether `prior` is divided by the number of pairs of fields, because of AFM's mean over pairs.
    """

    std: float
    prior: float
    rate: float = 0.003
    few: int = 0
    slow: float = 0.003
    of_pairs: bool = False


FACTORIZED = Plan(std=0.05, prior=30.0)
DEEP = Plan(std=0.2, prior=300.0, few=5_000, slow=0.002)
PLANS: Mapping[str, Plan] = {
    "lr": Plan(std=0.0, prior=0.0, rate=0.01, few=20_000, slow=0.003),
    "fm": FACTORIZED,
    "hofm": FACTORIZED,
    "fwfm": FACTORIZED,
    "ffm": FACTORIZED,
    "afm": Plan(std=0.2, prior=120.0, rate=0.015, few=20_000, slow=0.006, of_pairs=True),
    "inttower": Plan(std=0.3, prior=300.0, few=5_000, slow=0.002),
}
UNKNOWN_SHARE = 0.3
NO_STEPS = {"monitor", "refit", "device", "checkpoint_minutes"}  # settings that mean the same for an exact solution
LINEAR_START = ("fm", "afm")

DROPOUT, WIDTH = 0.2, 128
SIZES: Mapping[str, Mapping[str, Any]] = {
    "afm": {"variant": "pooled", "dropout": DROPOUT},
    "nfm": {"embedding_dim": 16, "hidden": (WIDTH,), "pooled_dropout": DROPOUT, "batch_norm": False},
    "widedeep": {"embedding_dim": 16, "hidden": (WIDTH,), "mlp_dropout": DROPOUT},
    "deepcrossing": {"embedding_dim": 16, "hidden": (WIDTH,), "unit_dropout": DROPOUT},
    "deepfm": {"embedding_dim": 16, "hidden": (WIDTH,), "mlp_dropout": DROPOUT},
    "dcn": {"embedding_dim": 16, "layers": 2, "hidden": (WIDTH,), "mlp_dropout": DROPOUT, "batch_norm": False},
    "dcnv2": {"embedding_dim": 16, "hidden": (WIDTH,), "mlp_dropout": DROPOUT},
    "xdeepfm": {"embedding_dim": 16, "cin_layers": (32, 32), "hidden": (WIDTH,), "mlp_dropout": DROPOUT},
    "fibinet": {"embedding_dim": 16, "hidden": (WIDTH,), "mlp_dropout": DROPOUT},
    "autoint": {"layers": 2, "attention_dim": 64, "embedding_dropout": 0.1},
    "autoint+": {
        "layers": 1,
        "attention_dim": 32,
        "embedding_dropout": 0.1,
        "hidden": (WIDTH,),
        "mlp_dropout": DROPOUT,
        "wide": True,
    },
    "finalmlp": {
        "embedding_dim": 16,
        "stream1_hidden": (WIDTH,),
        "stream2_hidden": (WIDTH,),
        "stream1_dropout": DROPOUT,
        "stream2_dropout": DROPOUT,
    },
    "finalnet": {"embedding_dim": 16, "block1_hidden": (WIDTH,), "block2_hidden": (WIDTH,), "batch_norm": False},
    "din": {"mlp_dropout": DROPOUT},
    "dssm": {"hidden": (WIDTH,), "output_dim": 32, "mlp_dropout": DROPOUT},
    "dat": {"embedding_dim": 16, "hidden": (WIDTH,), "mlp_dropout": DROPOUT},
    "cold": {"hidden": (WIDTH,), "mlp_dropout": DROPOUT},
    "ffm": {"first_order": True},
    "inttower": {
        "embedding_dim": 16,
        "hidden": (WIDTH,),
        "dropout": 0.3,
        "batch_norm": False,
        "user_heads": 2,
        "item_heads": 2,
        "head_dim": 16,
        "output_bias": True,
        "cir_weight": 0.0,
    },
}

NORMALIZED = ("autoint+",)  # batch normalization in the MLP, with many rows
ROWS_A_VALUE = 4.0  # minimum training rows per row of the embedding table for it


Rule = tuple[Any, str]
"""A value with its reason from the data."""


def training_rules(model: str, facts: Facts, tables: Mapping[str, int], fixed: Mapping[str, Any]) -> dict[str, Rule]:
    """Rules for training settings.

    Args:
        model: its name in `fieldwise.models.MODELS`; "" for your own model.
        facts: facts about the training rows.
        tables: the width of each embedding table by parameter name; width 1 for first-order weights.
        fixed: the training settings that are given, on which others depend.
    """
    rows, binary = f"{facts.rows:,} rows", facts.task == "binary"
    monitor: Rule = ("logloss" if binary else "rmse", f"a {facts.task} label")
    if fixed.get("optimizer") == LBFGS:
        return {"monitor": monitor}
    if model == "lr" and facts.exact and fixed.keys() <= NO_STEPS:
        return {"optimizer": (LBFGS, f"solved exactly, {rows}"), "monitor": monitor}
    batch = fixed.get("batch_size", batch_size(facts.rows))
    steps = math.ceil(facts.rows / batch)
    evaluations = min(4, max(1, steps // STEPS_PER_EVALUATION)) if facts.rows >= MANY_ROWS else 1
    evaluations = fixed.get("evaluations_per_epoch", evaluations)
    rules: dict[str, Rule] = {
        "batch_size": (batch, rows),
        "l2": (_strengths(model, facts, tables), f"Gaussian priors, divided by {rows}"),
        "start_at_base_rate": (True, f"{facts.mean:.1%} positive" if binary else f"the mean label is {facts.mean:.4g}"),
        "monitor": monitor,
        "epochs": (100, "early stopping ends the run"),
        "evaluations_per_epoch": (evaluations, f"{steps:,} steps per epoch"),
        "patience": (5 * evaluations, "five epochs"),
        "plateau_patience": (2 * evaluations, "two epochs"),
        "unknown_share": (0.0 if model == "lr" else UNKNOWN_SHARE, "rare values represent unseen ones"),
        "plateau_factor": (0.3, "when the validation metric stops improving"),
    }
    if model == "lr" and facts.exact and "optimizer" not in fixed:
        steps_of = ", ".join(sorted(fixed.keys() - NO_STEPS))
        rules["optimizer"] = ("adam", f"not solved exactly on {rows}, because of the given {steps_of}")
    if model in LINEAR_START and facts.exact:
        rules["linear_start"] = (True, "starts from LR, and ends as their best mean")
    optimizer = fixed.get("optimizer", "adam")
    if optimizer == "adam":  # other optimizers need other rates
        rules["learning_rate"] = _rate(PLANS.get(model, DEEP), facts, model or "a model")
    if OPTIMIZERS[optimizer].rows_only:
        rules["l2_rows"] = ("touched", f"{optimizer} updates only the rows of a batch")
    if facts.vocabulary < LARGE_VOCABULARY or fixed.get("embedding_update", "lazy") != "lazy":
        return rules | {"average": (0.99, "average of the latest steps' weights")}
    large = f"{facts.vocabulary:,} rows of the embedding table"
    return rules | {
        "embedding_update": ("lazy", large),
        "l2_rows": ("touched", large),
        "average": (0.0, f"none for {large}"),
    }


def model_rules(model: str, facts: Facts) -> dict[str, Rule]:
    """Rules for a model's settings; none for your own model.

    Args:
        model: its name in `fieldwise.models.MODELS`; "" for your own model.
        facts: facts about the training rows.
    """
    if model in ("", "lr"):
        return {}
    plan = PLANS.get(model, DEEP)
    found: dict[str, Rule] = {"embedding_std": (plan.std, f"for {model}")}
    found |= {name: (value, f"of {model} by default") for name, value in SIZES.get(model, {}).items()}
    if model in NORMALIZED:
        share = facts.rows / facts.vocabulary
        found["batch_norm"] = (share >= ROWS_A_VALUE, f"{share:.3g} rows per value")
    return found


def batch_size(rows: int) -> int:
    """The largest power of 2 with at least 50 steps per epoch, between 32 and 2,048.

    >>> [batch_size(rows) for rows in (100, 9_731, 10_000_000)]
    [32, 128, 2048]
    """
    wanted = max(1, rows // STEPS_AN_EPOCH)
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, 1 << (wanted.bit_length() - 1)))


def label_scale(deviation: float) -> Rule | None:
    """The scale of a regression label's targets; None if their standard deviation is about 1.

    >>> label_scale(96_431.0), label_scale(1.12)
    ((96000.0, "the label's standard deviation is 9.643e+04"), None)
    """
    if not deviation or LEAST_DEVIATION <= deviation <= MOST_DEVIATION:
        return None
    return (float(f"{deviation:.2g}"), f"the label's standard deviation is {deviation:.4g}")


def _rate(plan: Plan, facts: Facts, model: str) -> Rule:
    few = facts.rows < plan.few
    rows = f", {facts.rows:,} rows" if plan.few else ""
    return (plan.slow if few else plan.rate, f"Adam's, for {model}{rows}")


def _strengths(model: str, facts: Facts, tables: Mapping[str, int]) -> dict[str, float]:
    plan = PLANS.get(model, DEEP)
    prior = plan.prior / facts.pairs if plan.of_pairs else plan.prior
    return {
        name: float(f"{(1 / facts.effects if width == 1 else prior) / facts.rows:.4g}")
        for name, width in tables.items()
    }

"""Defaults chosen from the training rows for settings that were not given, each with its reason.

`resolve` fills in missing settings of a model and its training by rules; given settings are not
changed. docs/defaults.md explains each rule, with measurements and rejected alternatives. L2
strengths are `c / rows`: with the mean loss over rows they are Gaussian priors of variance `1 / c`
on each weight, independent of the table's size (`c` = 1 is the strength of scikit-learn's
`LogisticRegression(C=1)`).
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from fieldwise.config import given, parse, to_plain
from fieldwise.data.table import EncodedTable, deviations, mean_target
from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Layout
from fieldwise.models import ModelSettings
from fieldwise.models.build import as_former, build_network, model_name, takes_mean
from fieldwise.models.settings import DataDefaults
from fieldwise.schema import Label, Schema, Task
from fieldwise.training.history import History
from fieldwise.training.settings import LBFGS, OPTIMIZERS, TrainingSettings

RULES = 9  # increased when a rule changes, so that stored runs with other rules are run again

STEPS_AN_EPOCH = 50
SMALLEST_BATCH = 32
LARGEST_BATCH = 2048
LARGE_VOCABULARY = 2**18  # minimum rows of the shared table for lazy updates
MANY_ROWS = 100_000  # minimum rows for several evaluations per epoch
STEPS_PER_EVALUATION = 100
LAZY_EVALUATIONS = 4  # per epoch, for tables of many values
# evaluations, for such tables: weights are not averaged, so the rate must drop soon
LAZY_PATIENCE = 5
LAZY_PLATEAU = 3
# of regression labels that need no scale, such as ratings
LEAST_DEVIATION = 0.5
MOST_DEVIATION = 2.0
MOST_CELLS = 2**24  # the matrix of a regression has 20 bytes for each
# variances of first-order weights
LEAST_VARIANCE = 0.1
MOST_VARIANCE = 3.0
LEAST_LAZY_VARIANCE = 1e-4  # of a table of many values
# candidates up to the largest, evenly spaced in the logarithm
VARIANCES = 31
LAZY_VARIANCES = 92
EFFECT_ROWS = 200_000  # maximum number of rows read for the variance, evenly spaced

DEFAULTS = DataDefaults()  # of the training of a model without its own
# settings that mean the same for an exact solution
NO_STEPS = {"monitor", "refit", "device", "checkpoint_minutes"}
ROWS_A_VALUE = 4.0  # minimum training rows per row of the embedding table for it


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about the training rows; validation and test rows are not used."""

    layout: Layout
    rows: int
    task: Task = "binary"  # of the main label
    mean: float = 0.5  # of the main label's targets: the positive rate for a binary label
    labels: int = 1
    deviations: tuple[float, ...] = (1.0,)  # of each label's targets, the main one's first
    # the variance of first-order weights (`effect_variance`); 1 for a regression label
    effects: float = 1.0
    # whether LR can be solved exactly: one label, no bag of `max`, no warm start, `MOST_CELLS`
    exact: bool = False
    # whether LR has to be trained by steps for a mean with it: `exact` but for `MOST_CELLS`
    stepped: bool = False

    @classmethod
    def of(cls, train: EncodedTable, labels: Sequence[Label], *, warm: bool = False) -> "Facts":
        """Facts about encoded training rows with targets; of a `warm` start or not. The main label comes first."""
        main = train.targets[:, 0]
        sums = not any(f.kind == "bag" and f.pooling == "max" for f in train.layout.fields)
        solvable = len(labels) == 1 and not warm and sums
        large = train.ids.size + train.bag_ids.size > MOST_CELLS
        return cls(
            layout=train.layout,
            rows=len(train),
            task=labels[0].task,
            mean=mean_target(main, train.weight),
            labels=len(labels),
            deviations=deviations(train.targets),
            effects=effect_variance(train, main) if labels[0].task == "binary" else 1.0,
            exact=solvable and not large,
            stepped=solvable and large,
        )


def effect_variance(train: EncodedTable, y: np.ndarray) -> float:
    """The maximum-likelihood variance of a Gaussian prior on first-order weights.

    Empirical Bayes with one Newton step: around the base rate p, a value of a field whose rows have
    the summed residual g and the information i = p (1 - p) sum of x^2 has a log-odds weight of
    about g / i. With a prior of variance t, g is Gaussian with variance i + i^2 t; the t of maximum
    likelihood over all values is returned. Values are treated independently, so correlated fields
    count twice; one step underestimates large weights, so a variance of 2 is found as about 1.2.

    At most 200,000 of the encoded rows, evenly spaced, with their binary targets y [N], are read.
    The variance is between 0.1, or .0001 for a table of many values (`LARGE_VOCABULARY`), and 3;
    1.0, scikit-learn's default, if all targets are equal.
    """
    rows = np.arange(0, len(train), -(-len(train) // EFFECT_ROWS))
    weight = (
        np.asarray(train.weight[rows], np.float64)
        if train.weight is not None
        else np.ones(len(rows))
    )
    target = np.asarray(y[rows], np.float64)
    weight = weight / weight.mean()
    rate = float(np.average(target, weights=weight))
    if not 0.0 < rate < 1.0:
        return 1.0
    residual = weight * (target - rate)
    certain = weight * rate * (1 - rate)
    score, information = (np.zeros(train.layout.num_rows) for _ in range(2))
    # one pass over a table that may be on disk
    row_ids = train.ids[rows]
    values = train.values[rows]
    bags = [f for f in train.layout.fields if f.kind == "bag"]
    singles = [f for f in train.layout.fields if f.kind != "bag"]
    numbers = iter(range(train.values.shape[1]))
    for place, field in enumerate([*singles, *bags]):
        if field.kind == "bag":
            bag = train.bags.take(torch.from_numpy(rows * len(bags) + place - len(singles)))
            ids = bag.ids.numpy()
            at = bag.segments.numpy()
            x = (
                (1 / bag.lengths.numpy().clip(1))[at]
                if field.pooling == "mean"
                else np.ones(len(at))
            )
        else:
            ids = row_ids[:, place]
            at = np.arange(len(rows))
            x = (
                values[:, next(numbers)].astype(np.float64)
                if field.kind == "value"
                else np.ones(len(rows))
            )
        score += np.bincount(ids, x * residual[at], minlength=len(score))
        information += np.bincount(ids, x * x * certain[at], minlength=len(score))
    seen = information > 0
    score = score[seen]
    information = information[seen]
    variances = np.geomspace(LEAST_VARIANCE, MOST_VARIANCE, VARIANCES)
    if train.layout.num_rows >= LARGE_VOCABULARY:
        variances = np.geomspace(LEAST_LAZY_VARIANCE, MOST_VARIANCE, LAZY_VARIANCES)
    likelihoods = []
    for variance in variances:
        spread = information + information**2 * variance
        likelihoods.append(-np.sum(np.log(spread) + score**2 / spread))
    return float(variances[np.argmax(likelihoods)])


Rule = tuple[Any, str]
"""A value with its reason from the data."""


def training_rules(
    model: ModelSettings,
    facts: Facts,
    tables: Mapping[str, int],
    fixed: Mapping[str, Any],
    *,
    in_mean: bool,
) -> dict[str, Rule]:
    """Rules for training settings, by the width of each embedding table (1: first-order weights) and what is given.

    `in_mean`: whether the network can be in a mean with LR.
    """
    rows = f"{facts.rows:,} rows"
    binary = facts.task == "binary"
    own: DataDefaults | None = vars(type(model)).get("data_defaults")
    by_model = own or DEFAULTS
    monitor: Rule = ("logloss" if binary else "rmse", f"a {facts.task} label")
    if fixed.get("optimizer") == LBFGS:
        return {"monitor": monitor}
    if by_model.solved_exactly and facts.exact and fixed.keys() <= NO_STEPS:
        return {"optimizer": (LBFGS, f"solved exactly, {rows}"), "monitor": monitor}
    # a power of 2 with at least 50 steps
    usual = 1 << (max(1, facts.rows // STEPS_AN_EPOCH).bit_length() - 1)
    batch = fixed.get("batch_size", min(LARGEST_BATCH, max(SMALLEST_BATCH, usual)))
    steps = math.ceil(facts.rows / batch)
    evaluations = min(4, max(1, steps // STEPS_PER_EVALUATION)) if facts.rows >= MANY_ROWS else 1
    lazy = is_lazy(facts, fixed)
    if lazy:
        evaluations = min(LAZY_EVALUATIONS, steps)
    evaluations = fixed.get("evaluations_per_epoch", evaluations)
    fields = facts.layout.num_fields
    prior = by_model.lazy_prior if lazy and by_model.lazy_prior is not None else by_model.prior
    prior = prior / (max(1, fields * (fields - 1) // 2) if by_model.of_pairs else 1)
    first_order = float(f"{1 / facts.effects / facts.rows:.4g}")
    of_vectors = float(f"{prior / facts.rows:.4g}")
    l2 = {name: first_order if width == 1 else of_vectors for name, width in tables.items()}
    rules: dict[str, Rule] = {
        "batch_size": (batch, rows),
        "l2": (l2, f"Gaussian priors, divided by {rows}"),
        "start_at_base_rate": (
            True,
            f"{facts.mean:.1%} positive" if binary else f"the mean label is {facts.mean:.4g}",
        ),
        "monitor": monitor,
        "epochs": (100, "early stopping ends the run"),
        "evaluations_per_epoch": (evaluations, f"{steps:,} steps per epoch"),
        "patience": (LAZY_PATIENCE, "evaluations") if lazy else (5 * evaluations, "five epochs"),
        "plateau_patience": (LAZY_PLATEAU, "evaluations")
        if lazy
        else (2 * evaluations, "two epochs"),
        "unknown_share": (by_model.unknown_share, "rare values represent unseen ones"),
        "plateau_factor": (0.3, "when the validation metric stops improving"),
    }
    if own is not None and facts.exact:
        rules |= _rules_by_lr(own, rows, fixed, in_mean=in_mean)
    if own is not None and facts.stepped and in_mean and not own.solved_exactly:
        rules["mean_with_lr"] = (True, "where the validation rows say so")
        rules["l2_of_lr"] = (first_order, f"LR trained by steps on {rows}")
    optimizer = fixed.get("optimizer", "adam")
    if optimizer == "adam":  # other optimizers need other rates
        rate = (
            by_model.small_table_rate if facts.rows < by_model.small_table_rows else by_model.rate
        )
        if lazy and by_model.lazy_rate is not None:
            rate = min(rate, by_model.lazy_rate)
        of = model_name(model) if own else "a model"
        rules["learning_rate"] = (
            rate,
            f"Adam's, for {of}{f', {rows}' if by_model.small_table_rows else ''}",
        )
    if OPTIMIZERS[optimizer].rows_only:
        rules["l2_rows"] = ("touched", f"{optimizer} updates only the rows of a batch")
    if not lazy:
        return rules | {"average": (0.99, "average of the latest steps' weights")}
    large = f"{facts.layout.num_rows:,} rows of the embedding table"
    return rules | {
        "embedding_update": ("lazy", large),
        "l2_rows": ("all", large),
        "average": (0.0, f"none for {large}"),
    }


def is_lazy(facts: Facts, fixed: Mapping[str, Any]) -> bool:
    """Whether the rules, with these given settings of the training, update the rows of the embedding table lazily."""
    return (
        facts.layout.num_rows >= LARGE_VOCABULARY
        and fixed.get("embedding_update", "lazy") == "lazy"
    )


def _rules_by_lr(
    own: DataDefaults, rows: str, fixed: Mapping[str, Any], *, in_mean: bool
) -> dict[str, Rule]:
    """Rules for a model that takes steps on rows on which LR can be solved exactly."""
    rules: dict[str, Rule] = {}
    if own.solved_exactly and "optimizer" not in fixed:
        steps_of = ", ".join(sorted(fixed.keys() - NO_STEPS))
        rules["optimizer"] = (
            "adam",
            f"not solved exactly on {rows}, because of the given {steps_of}",
        )
    if own.starts_from_lr:
        rules["start_from_lr"] = (True, f"LR solved exactly on {rows}")
    if in_mean and not own.solved_exactly:
        rules["mean_with_lr"] = (True, "where the validation rows say so")
    return rules


@dataclass(frozen=True)
class ResolvedSetting:
    """A setting chosen from the data: its path in a recipe, its plain value, and the rule's reason: `9,731 rows`."""

    setting: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{self.words} {self.shown}: {self.reason}"

    @property
    def words(self) -> str:
        """The setting's name for display."""
        return self.setting.partition(".")[2].replace("_", " ").replace(".", " ")

    @property
    def shown(self) -> str:
        """The value for display."""
        return _shown(self.value)


class ResolvedSettings(NamedTuple):
    """Complete settings, and those of them that were chosen from the data."""

    model: ModelSettings
    training: TrainingSettings
    chosen: tuple[ResolvedSetting, ...]


def resolve(
    model: ModelSettings, training: TrainingSettings, facts: Facts, former: nn.Module | None = None
) -> ResolvedSettings:
    """Complete settings: those that were not given are chosen by the rules, except settings of a user's own model.

    `former` is the network of a warm start's bundle.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import FM
    >>> facts = Facts(layout=Layout.of_sizes([500, 300]), rows=9_731, mean=0.93)
    >>> result = resolve(FM(embedding_dim=8), TrainingSettings(epochs=3), facts)
    >>> result.model.embedding_dim, result.training.epochs, result.training.batch_size
    (8, 3, 128)
    >>> str(result.chosen[1])
    'batch size 128: 9,731 rows'
    """
    rules: dict[str, Rule] = {}
    fixed = {name: getattr(training, name) for name in given(training)}
    # what the class itself says
    chosen: DataDefaults | None = vars(type(model)).get("data_defaults")
    if chosen is not None:
        name = model_name(model)
        lazy_std = chosen.lazy_std if is_lazy(facts, fixed) else None
        if hasattr(model, "embedding_std"):
            rules["embedding_std"] = (chosen.std if lazy_std is None else lazy_std, f"for {name}")
        rules |= {
            setting: (value, f"of {name} by default") for setting, value in chosen.settings.items()
        }
        if chosen.normalizes:
            share = facts.rows / facts.layout.num_rows
            rules["batch_norm"] = (share >= ROWS_A_VALUE, f"{share:.3g} rows per value")
    resolved, by_model = _fill(model, rules, "model")
    with torch.device("meta"):  # without allocating memory
        network = as_former(
            build_network(resolved, facts.layout, 0, labels=facts.labels), facts.layout, former
        )
    # a table that two modules share has one name
    names = {name for name, _ in network.named_parameters()}
    modules = {
        f"{path}.weight": m for path, m in network.named_modules() if isinstance(m, FieldEmbedding)
    }
    tables = {name: m.weight.shape[1] for name, m in modules.items() if name in names}
    rules_of_training = training_rules(model, facts, tables, fixed, in_mean=takes_mean(network))
    trained, by_training = _fill(training, rules_of_training, "training")
    return ResolvedSettings(resolved, trained, (*by_model, *by_training))


def scaled_labels(
    schema: Schema, facts: Facts, before: Mapping[str, Label]
) -> tuple[Schema, tuple[ResolvedSetting, ...]]:
    """The schema with a scale for each regression label that needs one and has none.

    The labels `before`, by name, are those of the warm start's bundle, whose scales are kept.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.schema import Categorical
    >>> schema = Schema(fields=(Categorical("city"),), label=Label("price", task="regression"))
    >>> facts = Facts(layout=Layout.of_sizes([3]), rows=9, task="regression", deviations=(81_234.0,))
    >>> scaled, chosen = scaled_labels(schema, facts, {})
    >>> scaled.label.scale, str(chosen[0])
    (81000.0, "label scale 81000: the label's standard deviation is 8.123e+04")
    """
    labels = list(schema.labels)
    chosen = []
    for number, (label, deviation) in enumerate(zip(schema.labels, facts.deviations, strict=True)):
        if label.task != "regression" or label.scale is not None:
            continue
        scale = float(f"{deviation:.2g}")
        reason = f"the label's standard deviation is {deviation:.4g}"
        if label.name in before:
            kept = before[label.name].scale
            if kept is None:
                continue
            scale = kept
            reason = "of the bundle that training starts from"
        elif not deviation or LEAST_DEVIATION <= deviation <= MOST_DEVIATION:
            continue
        labels[number] = dataclasses.replace(label, scale=scale)
        where = "label" if number == 0 else f"more_labels.{number - 1}"
        chosen.append(ResolvedSetting(f"schema.{where}.scale", scale, reason))
    return dataclasses.replace(schema, label=labels[0], more_labels=tuple(labels[1:])), tuple(
        chosen
    )


def sentence_of(chosen: Iterable[ResolvedSetting]) -> str:
    """Choices on one line, with reasons that are numbers from the data.

    >>> batch = ResolvedSetting("training.batch_size", 128, "9,731 rows")
    >>> sentence_of([batch, ResolvedSetting("model.layers", 1, "of this model")])
    'batch size 128: 9,731 rows; layers 1'
    """
    return "; ".join(
        str(one) if any(map(str.isdigit, one.reason)) else f"{one.words} {one.shown}"
        for one in chosen
    )


def limit_reached(chosen: Iterable[ResolvedSetting], result: History) -> str | None:
    """A sentence about a training that a limit of epochs ended which nobody has set; None about any other.

    >>> from fieldwise.training.history import Evaluation
    >>> best = Evaluation(epoch=99.0, learning_rate=0.1, seconds=1.0, metrics={})
    >>> ended = History(epochs=100, best=best, evaluations=(best,), seconds=1.0, monitor="auc", stopped="epochs")
    >>> limit_reached([ResolvedSetting("training.epochs", 100, "early stopping ends the run")], ended)
    'CHECK training.epochs: 100 epochs ended the training, the best was epoch 99: more epochs may be better'
    """
    if result.stopped != "epochs" or not any(one.setting == "training.epochs" for one in chosen):
        return None
    epochs = "1 epoch" if result.epochs == 1 else f"{result.epochs} epochs"
    return (
        f"CHECK training.epochs: {epochs} ended the training, the best was epoch "
        f"{result.best.epoch:.4g}: more epochs may be better"
    )


def _fill(
    settings: Any, rules: Mapping[str, Rule], where: str
) -> tuple[Any, list[ResolvedSetting]]:
    fixed = given(settings)
    chosen = {name: rule for name, rule in rules.items() if name not in fixed}
    if not chosen:
        return settings, []
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.init}
    filled = parse(
        type(settings), values | {name: value for name, (value, _) in chosen.items()}, where
    )
    return filled, [
        ResolvedSetting(f"{where}.{name}", to_plain(value), reason)
        for name, (value, reason) in chosen.items()
    ]


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return " x ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

"""Defaults chosen from the training rows for settings that were not given, each with its reason.

`resolve` fills in missing settings of a model and its training by rules; given settings are not
changed. docs/defaults.md explains each rule, with measurements and rejected alternatives. L2
strengths are `c / rows`: with the mean loss over rows they are Gaussian priors of variance `1 / c`
on each weight, independent of the table's size (`c` = 1 is the strength of scikit-learn's
`LogisticRegression(C=1)`).
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from fieldwise.config import given, parse, to_plain
from fieldwise.evaluation.metrics import GROUP_METRICS, LOSSES
from fieldwise.layers import FieldEmbedding
from fieldwise.models import ModelSettings
from fieldwise.models.build import build_network
from fieldwise.models.mean_with_lr import as_former, takes_mean
from fieldwise.models.serialise import model_name
from fieldwise.models.settings import DataDefaults
from fieldwise.models.trees import TreeSettings
from fieldwise.runs.training_facts import Facts, has_large_vocabulary
from fieldwise.schema import Label, Schema
from fieldwise.training.history import History
from fieldwise.training.settings import LBFGS, OPTIMIZERS, TrainingSettings

RULES_VERSION = 9
"""Increased when a rule changes, so that stored runs with other rules are run again."""

STEPS_PER_EPOCH = 50
SMALLEST_BATCH = 32
LARGEST_BATCH = 2048
MANY_ROWS = 100_000
"""The least number of rows for several evaluations per epoch."""
STEPS_PER_EVALUATION = 100
MOST_EVALUATIONS_PER_EPOCH = 4
LAZY_EVALUATIONS_PER_EPOCH = 4
"""For tables of many values."""
LAZY_PATIENCE = 5
"""Evaluations, for such tables: weights are not averaged, so the rate must drop soon."""
LAZY_PLATEAU_PATIENCE = 3
LEAST_ROWS_PER_VALUE = 4.0
"""Training rows per row of the embedding table, for batch normalization."""
LEAST_DEVIATION = 0.5
"""Regression labels with a standard deviation from this to `MOST_DEVIATION` need no scale, such as ratings."""
MOST_DEVIATION = 2.0
MODEL_DEFAULTS = DataDefaults()
"""Of the training of a model without its own."""
SETTINGS_OF_AN_EXACT_SOLUTION = {"monitor", "refit", "device", "checkpoint_minutes"}
"""They mean the same for a model that is solved exactly as for one that takes steps."""

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
    own_defaults = _own_defaults(model)
    defaults = MODEL_DEFAULTS if own_defaults is None else own_defaults
    rows = f"{facts.rows:,} rows"
    monitor = _monitor(facts, fixed)
    if fixed.get("optimizer") == LBFGS or isinstance(model, TreeSettings):
        return {"monitor": monitor}
    takes_steps = bool(fixed.keys() - SETTINGS_OF_AN_EXACT_SOLUTION)
    if defaults.solved_exactly and facts.exact and not takes_steps:
        return {"optimizer": (LBFGS, f"solved exactly, {rows}"), "monitor": monitor}

    lazy = is_lazy(facts, fixed)
    base_rate = f"the mean label is {facts.mean:.4g}"
    if facts.task == "binary":
        base_rate = f"{facts.mean:.1%} positive"
    first_order_l2 = float(f"{1 / facts.effects / facts.rows:.4g}")
    l2 = _l2_by_table(tables, defaults, facts, first_order_l2, lazy=lazy)
    batch = fixed.get("batch_size", _batch_size(facts.rows))
    rules: dict[str, Rule] = {
        "batch_size": (batch, rows),
        "l2": (l2, f"Gaussian priors, divided by {rows}"),
        "start_at_base_rate": (True, base_rate),
        "monitor": monitor,
        **_schedule_rules(facts, fixed, batch, lazy=lazy),
        "unknown_share": (defaults.unknown_share, "rare values represent unseen ones"),
        "plateau_factor": (0.3, "when the validation metric stops improving"),
    }
    if own_defaults is not None:
        rules |= _rules_by_lr(own_defaults, facts, fixed, first_order_l2, in_mean=in_mean)

    optimizer = fixed.get("optimizer", "adam")
    if optimizer == "adam":  # other optimizers need other rates
        words = "a model" if own_defaults is None else model_name(model)
        reason = f"Adam's, for {words}"
        if defaults.small_table_rows:
            reason += f", {rows}"
        rules["learning_rate"] = (_adam_rate(defaults, facts.rows, lazy=lazy), reason)
    return rules | _rules_by_table_size(optimizer, facts, lazy=lazy)


def _schedule_rules(
    facts: Facts, fixed: Mapping[str, Any], batch: int, *, lazy: bool
) -> dict[str, Rule]:
    """How long a training lasts, and how often it is evaluated."""
    steps = math.ceil(facts.rows / batch)
    evaluations = fixed.get(
        "evaluations_per_epoch", _evaluations_per_epoch(facts.rows, steps, lazy=lazy)
    )
    patience: Rule = (5 * evaluations, "five epochs")
    plateau_patience: Rule = (2 * evaluations, "two epochs")
    if lazy:
        patience = (LAZY_PATIENCE, "evaluations")
        plateau_patience = (LAZY_PLATEAU_PATIENCE, "evaluations")
    return {
        "epochs": (100, "early stopping ends the run"),
        "evaluations_per_epoch": (evaluations, f"{steps:,} steps per epoch"),
        "patience": patience,
        "plateau_patience": plateau_patience,
    }


def _rules_by_table_size(optimizer: str, facts: Facts, *, lazy: bool) -> dict[str, Rule]:
    """How the rows of the embedding table are updated, and whether weights are averaged."""
    rules: dict[str, Rule] = {}
    if OPTIMIZERS[optimizer].rows_only:
        rules["l2_rows"] = ("touched", f"{optimizer} updates only the rows of a batch")
    if lazy:
        large = f"{facts.layout.num_rows:,} rows of the embedding table"
        rules["embedding_update"] = ("lazy", large)
        rules["l2_rows"] = ("all", large)
        rules["average"] = (0.0, f"none for {large}")
    else:
        rules["average"] = (0.99, "average of the latest steps' weights")
    return rules


def is_lazy(facts: Facts, fixed: Mapping[str, Any]) -> bool:
    """Whether the rules, with these given settings of the training, update the rows of the embedding table lazily."""
    return has_large_vocabulary(facts.layout) and fixed.get("embedding_update", "lazy") == "lazy"


def gives_probabilities(fixed: Mapping[str, Any]) -> bool:
    """Whether the loss among the given settings of the training, if there is one, gives probabilities."""
    return TrainingSettings(loss=fixed.get("loss", "logloss")).gives_probabilities


def _monitor(facts: Facts, fixed: Mapping[str, Any]) -> Rule:
    if not gives_probabilities(fixed):
        return GROUP_METRICS[facts.task], f"loss {fixed['loss']}"
    return LOSSES[facts.task], f"a {facts.task} label"


def _own_defaults(model: ModelSettings) -> DataDefaults | None:
    """The defaults that a model's class itself has; those of its base class do not count."""
    defaults: DataDefaults | None = vars(type(model)).get("data_defaults")
    return defaults


def _batch_size(rows: int) -> int:
    """A power of 2 with at least 50 steps, within the limits."""
    most_rows = max(1, rows // STEPS_PER_EPOCH)
    power_of_2 = 1 << (most_rows.bit_length() - 1)
    return min(LARGEST_BATCH, max(SMALLEST_BATCH, power_of_2))


def _evaluations_per_epoch(rows: int, steps: int, *, lazy: bool) -> int:
    if lazy:
        return min(LAZY_EVALUATIONS_PER_EPOCH, steps)
    if rows < MANY_ROWS:
        return 1
    return min(MOST_EVALUATIONS_PER_EPOCH, max(1, steps // STEPS_PER_EVALUATION))


def _l2_by_table(
    tables: Mapping[str, int],
    defaults: DataDefaults,
    facts: Facts,
    first_order_l2: float,
    *,
    lazy: bool,
) -> dict[str, float]:
    """The L2 strength of each embedding table, by the tables' widths."""
    prior = defaults.prior
    if lazy and defaults.lazy_prior is not None:
        prior = defaults.lazy_prior
    if defaults.of_pairs:
        fields = facts.layout.num_fields
        prior = prior / max(1, fields * (fields - 1) // 2)
    vectors_l2 = float(f"{prior / facts.rows:.4g}")
    strengths = {}
    for name, width in tables.items():
        strengths[name] = first_order_l2 if width == 1 else vectors_l2
    return strengths


def _adam_rate(defaults: DataDefaults, rows: int, *, lazy: bool) -> float:
    rate = defaults.rate
    if rows < defaults.small_table_rows:
        rate = defaults.small_table_rate
    if lazy and defaults.lazy_rate is not None:
        rate = min(rate, defaults.lazy_rate)
    return rate


def _rules_by_lr(
    defaults: DataDefaults,
    facts: Facts,
    fixed: Mapping[str, Any],
    first_order_l2: float,
    *,
    in_mean: bool,
) -> dict[str, Rule]:
    """Rules for a model that takes steps on rows on which LR can be solved, exactly or by steps."""
    rows = f"{facts.rows:,} rows"
    has_mean_with_lr = in_mean and not defaults.solved_exactly and gives_probabilities(fixed)
    rules: dict[str, Rule] = {}
    if facts.exact:
        if defaults.solved_exactly and "optimizer" not in fixed:
            causes = ", ".join(sorted(fixed.keys() - SETTINGS_OF_AN_EXACT_SOLUTION))
            reason = f"not solved exactly on {rows}, because of the given {causes}"
            rules["optimizer"] = ("adam", reason)
        if defaults.starts_from_lr:
            rules["start_from_lr"] = (True, f"LR solved exactly on {rows}")
    if has_mean_with_lr and (facts.exact or facts.stepped):
        rules["mean_with_lr"] = (True, "where the validation rows say so")
    if has_mean_with_lr and facts.stepped:
        rules["l2_of_lr"] = (first_order_l2, f"LR trained by steps on {rows}")
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
    fixed = {name: getattr(training, name) for name in given(training)}
    resolved_model, chosen_for_model = _fill(model, _model_rules(model, facts, fixed), "model")
    with torch.device("meta"):  # without allocating memory
        network = build_network(resolved_model, facts.layout, 0, labels=facts.labels)
        network = as_former(network, facts.layout, former)
    rules = training_rules(model, facts, _table_widths(network), fixed, in_mean=takes_mean(network))
    resolved_training, chosen_for_training = _fill(training, rules, "training")
    return ResolvedSettings(
        resolved_model, resolved_training, (*chosen_for_model, *chosen_for_training)
    )


def _model_rules(model: ModelSettings, facts: Facts, fixed: Mapping[str, Any]) -> dict[str, Rule]:
    """Rules for a model's settings, with these given settings of the training."""
    defaults = _own_defaults(model)
    if defaults is None:
        return {}
    name = model_name(model)
    rules: dict[str, Rule] = {}
    if hasattr(model, "embedding_std"):
        std = defaults.std
        if defaults.lazy_std is not None and is_lazy(facts, fixed):
            std = defaults.lazy_std
        rules["embedding_std"] = (std, f"for {name}")
    for setting, value in defaults.settings.items():
        rules[setting] = (value, f"of {name} by default")
    if defaults.normalizes:
        rows_per_value = facts.rows / facts.layout.num_rows
        rules["batch_norm"] = (
            rows_per_value >= LEAST_ROWS_PER_VALUE,
            f"{rows_per_value:.3g} rows per value",
        )
    return rules


def _table_widths(network: nn.Module) -> dict[str, int]:
    """The width of each embedding table by the name of its weight; a table that two modules share has one name."""
    names = {name for name, _ in network.named_parameters()}
    widths = {}
    for path, module in network.named_modules():
        name = f"{path}.weight"
        if isinstance(module, FieldEmbedding) and name in names:
            widths[name] = module.weight.shape[1]
    return widths


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
    labels = []
    chosen = []
    for number, (label, deviation) in enumerate(zip(schema.labels, facts.deviations, strict=True)):
        scale_and_reason = _label_scale(label, deviation, before)
        if scale_and_reason is None:
            labels.append(label)
            continue
        scale, reason = scale_and_reason
        labels.append(dataclasses.replace(label, scale=scale))
        section = "label" if number == 0 else f"more_labels.{number - 1}"
        chosen.append(ResolvedSetting(f"schema.{section}.scale", scale, reason))
    main_label, *more_labels = labels
    scaled = dataclasses.replace(schema, label=main_label, more_labels=tuple(more_labels))
    return scaled, tuple(chosen)


def _label_scale(
    label: Label, deviation: float, before: Mapping[str, Label]
) -> tuple[float, str] | None:
    """The scale that a regression label without one needs, with its reason; else None."""
    if label.task != "regression" or label.scale is not None:
        return None
    if label.name in before:
        former_scale = before[label.name].scale
        if former_scale is None:
            return None
        return former_scale, "of the bundle that training starts from"
    if deviation == 0 or LEAST_DEVIATION <= deviation <= MOST_DEVIATION:
        return None
    return float(f"{deviation:.2g}"), f"the label's standard deviation is {deviation:.4g}"


def sentence_of(chosen: Iterable[ResolvedSetting]) -> str:
    """Choices on one line, with reasons that are numbers from the data.

    >>> batch = ResolvedSetting("training.batch_size", 128, "9,731 rows")
    >>> sentence_of([batch, ResolvedSetting("model.layers", 1, "of this model")])
    'batch size 128: 9,731 rows; layers 1'
    """
    phrases = []
    for setting in chosen:
        has_number = any(map(str.isdigit, setting.reason))
        phrases.append(str(setting) if has_number else f"{setting.words} {setting.shown}")
    return "; ".join(phrases)


def limit_reached(chosen: Iterable[ResolvedSetting], result: History) -> str | None:
    """A sentence about a training that a limit of epochs ended which nobody has set; None about any other.

    >>> from fieldwise.training.history import Evaluation
    >>> best = Evaluation(epoch=99.0, learning_rate=0.1, seconds=1.0, metrics={})
    >>> ended = History(epochs=100, best=best, evaluations=(best,), seconds=1.0, monitor="auc", stopped="epochs")
    >>> limit_reached([ResolvedSetting("training.epochs", 100, "early stopping ends the run")], ended)
    'CHECK training.epochs: 100 epochs ended the training, the best was epoch 99: more epochs may be better'
    """
    is_chosen = any(setting.setting == "training.epochs" for setting in chosen)
    if result.stopped != "epochs" or not is_chosen:
        return None
    epochs = "1 epoch" if result.epochs == 1 else f"{result.epochs} epochs"
    return (
        f"CHECK training.epochs: {epochs} ended the training, the best was epoch "
        f"{result.best.epoch:.4g}: more epochs may be better"
    )


def _fill(
    settings: Any, rules: Mapping[str, Rule], where: str
) -> tuple[Any, list[ResolvedSetting]]:
    """Complete settings, and those that were not given and have a rule."""
    fixed = given(settings)
    chosen = {name: rule for name, rule in rules.items() if name not in fixed}
    if not chosen:
        return settings, []
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.init}
    resolved = []
    for name, (value, reason) in chosen.items():
        values[name] = value
        resolved.append(ResolvedSetting(f"{where}.{name}", to_plain(value), reason))
    return parse(type(settings), values, where), resolved


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return " x ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)

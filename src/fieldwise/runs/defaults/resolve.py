"""Filling in settings that were not given, with the reason of every choice."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fieldwise.config import given, parse, to_plain
from fieldwise.layers import FieldEmbedding
from fieldwise.models import MODELS, ModelSettings
from fieldwise.models.build import build_network, model_name
from fieldwise.runs.defaults.facts import Facts
from fieldwise.runs.defaults.rules import Rule, label_scale, model_rules, training_rules
from fieldwise.schema import Schema
from fieldwise.schema.label import Label
from fieldwise.training.history import History
from fieldwise.training.settings import TrainingSettings

__all__ = ["Chosen", "Resolved", "limit_reached", "resolve", "scaled_labels", "sentence_of"]


@dataclass(frozen=True)
class Chosen:
    """A setting chosen from the data.

    Args:
        setting: its path in a recipe, such as `training.batch_size`.
        value: the value, as a plain value.
        reason: the rule's reason, with the number that it used: `9,731 rows`.
    """

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


class Resolved(NamedTuple):
    """Complete settings, and those of them that were chosen from the data."""

    model: ModelSettings
    training: TrainingSettings
    chosen: tuple[Chosen, ...]


def resolve(model: ModelSettings, training: TrainingSettings, facts: Facts) -> Resolved:
    """Complete settings: those that were not given are chosen by the rules.

    Args:
        model: settings of a model; those of your own model are not changed.
        training: settings of the run.
        facts: facts about the training rows.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import FM
    >>> facts = Facts(layout=Layout.of_sizes([500, 300]), rows=9_731, mean=0.93)
    >>> found = resolve(FM(embedding_dim=8), TrainingSettings(epochs=3), facts)
    >>> found.model.embedding_dim, found.training.epochs, found.training.batch_size
    (8, 3, 128)
    >>> str(found.chosen[1])
    'batch size 128: 9,731 rows'
    """
    name = model_name(model) if type(model) in MODELS.values() else ""
    resolved, by_model = _fill(model, model_rules(name, facts), "model")
    tables = _embeddings(resolved, facts)
    trained, by_training = _fill(
        training, training_rules(name, facts, tables, {n: getattr(training, n) for n in given(training)}), "training"
    )
    return Resolved(resolved, trained, (*by_model, *by_training))


def scaled_labels(schema: Schema, facts: Facts, before: Mapping[str, Label]) -> tuple[Schema, tuple[Chosen, ...]]:
    """The schema with a scale for each regression label that needs one and has none.

    Args:
        schema: the schema.
        facts: facts about the training rows.
        before: the labels of the warm start's bundle, by name, whose scales are kept.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.schema import Categorical
    >>> schema = Schema(fields=(Categorical("city"),), label=Label("price", task="regression"))
    >>> facts = Facts(layout=Layout.of_sizes([3]), rows=9, task="regression", deviations=(81_234.0,))
    >>> scaled, chosen = scaled_labels(schema, facts, {})
    >>> scaled.label.scale, str(chosen[0])
    (81000.0, "label scale 81000: the label's standard deviation is 8.123e+04")
    """
    labels, chosen = [], []
    for number, (label, deviation) in enumerate(zip(schema.labels, facts.deviations, strict=True)):
        if label.task != "regression" or label.scale is not None:
            labels.append(label)
            continue
        rule = label_scale(deviation)
        if label.name in before:
            kept = before[label.name].scale
            rule = None if kept is None else (kept, "of the bundle that training starts from")
        if rule is None:
            labels.append(label)
            continue
        labels.append(dataclasses.replace(label, scale=rule[0]))
        where = "label" if number == 0 else f"more_labels.{number - 1}"
        chosen.append(Chosen(f"schema.{where}.scale", *rule))
    return dataclasses.replace(schema, label=labels[0], more_labels=tuple(labels[1:])), tuple(chosen)


def sentence_of(chosen: Iterable[Chosen]) -> str:
    """Choices on one line, with reasons that are numbers from the data.

    >>> sentence_of([Chosen("training.batch_size", 128, "9,731 rows"), Chosen("model.layers", 1, "of this model")])
    'batch size 128: 9,731 rows; layers 1'
    """
    return "; ".join(str(one) if any(map(str.isdigit, one.reason)) else f"{one.words} {one.shown}" for one in chosen)


def limit_reached(chosen: Iterable[Chosen], result: History) -> str | None:
    """A sentence about a training that a limit of epochs ended which nobody has set; None about any other.

    >>> from fieldwise.training.history import Evaluation
    >>> best = Evaluation(epoch=99.0, learning_rate=0.1, seconds=1.0, metrics={})
    >>> ended = History(epochs=100, best=best, history=(best,), seconds=1.0, monitor="auc", stopped="epochs")
    >>> limit_reached([Chosen("training.epochs", 100, "early stopping ends the run")], ended)
    'CHECK training.epochs: 100 epochs ended the training, the best was epoch 99: more epochs may be better'
    """
    if result.stopped != "epochs" or not any(one.setting == "training.epochs" for one in chosen):
        return None
    return (
        f"CHECK training.epochs: {result.epochs} epochs ended the training, the best was epoch "
        f"{result.best.epoch:.4g}: more epochs may be better"
    )


def _fill(settings: Any, rules: Mapping[str, Rule], where: str) -> tuple[Any, list[Chosen]]:
    fixed = given(settings)
    chosen = {name: rule for name, rule in rules.items() if name not in fixed}
    if not chosen:
        return settings, []
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.init}
    filled = parse(type(settings), values | {name: value for name, (value, _) in chosen.items()}, where)
    return filled, [Chosen(f"{where}.{name}", to_plain(value), reason) for name, (value, reason) in chosen.items()]


def _embeddings(model: ModelSettings, facts: Facts) -> dict[str, int]:
    """The width of every embedding table of the model, by parameter name, without allocating memory."""
    with torch.device("meta"):
        network = build_network(model, facts.layout, 0, labels=facts.labels)
    modules = network.named_modules()
    tables = {f"{path}.weight": m.weight.shape[1] for path, m in modules if isinstance(m, FieldEmbedding)}
    names = {name for name, _ in network.named_parameters()}  # a table that two modules share has one name
    return {name: width for name, width in tables.items() if name in names}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(one)}" for key, one in value.items())
    if isinstance(value, (list, tuple)):
        return " x ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

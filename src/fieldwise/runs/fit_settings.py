"""Settings of a training run, completed from its training rows."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.prepare.prepared import Part
from fieldwise.models import ModelSettings
from fieldwise.models.own import as_settings
from fieldwise.runs.defaults import Chosen, Facts, resolve, scaled_labels
from fieldwise.schema import Schema
from fieldwise.training.settings import TrainingSettings

__all__ = ["FitSettings"]


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Settings of a training run.

    Args:
        schema: schema of the rows, with the labels to learn.
        model: settings of the model, or the class of your own model.
        training: optimizer, penalty and stopping.
        defaults: `data`: settings of model and training that are not given are chosen from the training rows; `fixed`:
            they have the classes' defaults.
        seed: seed of initial weights, row order and dropout.
        start: a bundle for a warm start.
    """

    schema: Schema
    model: ModelSettings
    training: TrainingSettings
    defaults: Literal["data", "fixed"] = "data"
    seed: int = 0
    start: Bundle | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", as_settings(self.model))

    def settled(self, train: Part) -> tuple["FitSettings", tuple[Chosen, ...]]:
        """Complete settings, and those of them that were chosen from the training rows.

        Settings with `of_schema` take the fields of user and item ids from the schema.
        """
        model = self.model.of_schema(self.schema) if hasattr(self.model, "of_schema") else self.model
        if self.defaults == "fixed":
            return (self if model is self.model else dataclasses.replace(self, model=model)), ()
        facts = Facts.of(train.table, self.schema.labels, warm=self.start is not None)
        found = resolve(model, self.training, facts)
        before = {} if self.start is None else {one.name: one for one in self.start.schema.labels}
        schema, scales = scaled_labels(self.schema, facts, before)
        settings = dataclasses.replace(
            self, schema=schema, model=found.model, training=found.training, defaults="fixed"
        )
        return settings, (*found.chosen, *scales)

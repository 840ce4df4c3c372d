"""The facts about a recipe and its data that `fieldwise describe` shows, as plain values."""

from typing import Any

from torch import nn

from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network, model_to_dict
from fieldwise.runs.fitting import settled
from fieldwise.runs.recipe import Recipe
from fieldwise.training.memory import bytes_of_parameters, bytes_saved_for_backward
from fieldwise.training.settings import TrainingSettings

__all__ = ["MIB", "describe"]

MIB = 2**20


def describe(recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """Fields, sizes, parameters and memory of training a recipe on these rows, as plain values."""
    recipe, chosen = settled(recipe, prepared)
    layout = prepared.encoder.layout
    labels = recipe.schema.labels
    network = build_network(recipe.model, layout, recipe.seed, labels=len(labels))
    parameters = parameter_count(network)
    unseen = prepared.unseen["test"]
    return {
        "recipe": recipe.name,
        "protocol": recipe.protocol,
        "model": model_to_dict(recipe.model),
        "training": to_plain(recipe.training),
        "defaults": to_plain(chosen),
        "fields": [
            {
                "name": f.name,
                "role": f.role,
                "kind": f.kind,
                "rows": f.rows,
                "shares": f.shares,
                "unseen_in_test": unseen.get(f.name),
            }
            for f in layout.fields
        ],
        "labels": [{"name": label.name, "task": label.task, "weight": label.weight} for label in labels],
        "parameters": [
            {"name": name, "shape": list(p.shape), "numbers": p.numel()} for name, p in network.named_parameters()
        ],
        "parameter_count": parameters,
        "counts": dict(prepared.counts),
        "memory_mib": _memory(network, prepared, recipe.training),
    }


def _memory(network: nn.Module, prepared: Prepared, training: TrainingSettings) -> dict[str, float]:
    """Memory estimates in MiB, by purpose."""
    parts = (prepared.train, prepared.valid, prepared.test)
    memory = {
        "raw_rows": sum(part.frame.estimated_size() for part in parts) / MIB,
        "encoded_rows": sum(part.table.nbytes for part in parts) / MIB,
        "parameters_gradients_and_optimizer": bytes_of_parameters(network, training) / MIB,
        "kept_for_the_backward_pass": bytes_saved_for_backward(network, prepared.train.table, training.batch_size)
        / MIB,
    }
    memory["sum"] = sum(memory.values())
    return memory

"""The facts about a recipe and its data that `fieldwise describe` shows, as plain values."""

import sys
from collections.abc import Sequence
from typing import Any

from torch import nn

from fieldwise.config import to_plain
from fieldwise.data.encode.fitted import Vocabulary
from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.layout import Layout
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network, model_to_dict
from fieldwise.runs.defaults import Chosen
from fieldwise.runs.large import large_table
from fieldwise.runs.recipe import Recipe
from fieldwise.training.memory import bytes_of_checkpoint, bytes_of_parameters, bytes_of_rows, bytes_of_step
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

__all__ = ["MIB", "describe"]

MIB = 2**20
PROGRAM_MIB = 175.0  # Python, PyTorch and Polars, where the system does not tell
FIRST_STEP_MIB = 68.0  # what PyTorch loads for the first gradients and the first update
HEAP = 1.5  # memory of a step by its tensors' bytes: freed blocks between used ones, and work space of kernels
CHECKPOINTS = 3  # two are kept while the next one is written


def describe(
    recipe: Recipe, chosen: Sequence[Chosen], prepared: Prepared, program_mib: float = PROGRAM_MIB
) -> dict[str, Any]:
    """Fields, sizes, parameters, memory and disk of training a recipe on these rows, as plain values.

    Args:
        recipe: its complete settings.
        chosen: those of them that were chosen from the rows.
        prepared: its rows.
        program_mib: memory of the process before it read any row.
    """
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
        "memory_mib": _memory(recipe, network, prepared, program_mib),
        "disk_mib": _disk(recipe.training, network, prepared),
    }


def _memory(recipe: Recipe, network: nn.Module, prepared: Prepared, program_mib: float) -> dict[str, float]:
    """Estimates of the memory for training in MiB, by purpose."""
    training, labels = recipe.training, recipe.schema.labels
    mapped = large_table(recipe.data) is not None
    raw = 0 if mapped else sum(part.raw_bytes for part in _parts(prepared))

    def build(layout: Layout) -> nn.Module:
        return build_network(recipe.model, layout, recipe.seed, labels=len(labels))

    step = bytes_of_step(build, prepared.train.table, training, Objective.of(*labels))
    memory = {
        "program": program_mib + FIRST_STEP_MIB,
        "raw_rows": raw / MIB,
        "vocabularies": _bytes_of_vocabularies(prepared) / MIB,
        "windows_and_order_of_rows": bytes_of_rows(prepared.train.table, len(prepared.valid.table), training) / MIB,
        "parameters_gradients_and_optimizer": bytes_of_parameters(network, training) / MIB,
        "step": HEAP * step / MIB,
    }
    memory["copy_for_a_checkpoint"] = bytes_of_checkpoint(network, training) / MIB if training.checkpoint_minutes else 0
    return memory | {"sum": sum(memory.values())}


def _bytes_of_vocabularies(prepared: Prepared) -> int:
    """Bytes of the texts that the encoder keeps, and of the references to them."""
    vocabularies = {id(f): f for f in prepared.encoder.fitted if isinstance(f, Vocabulary)}
    return sum(sum(map(sys.getsizeof, one.values)) + sys.getsizeof(one.values) for one in vocabularies.values())


def _disk(training: TrainingSettings, network: nn.Module, prepared: Prepared) -> dict[str, float]:
    """Estimates of the disk space in MiB, by purpose."""
    weights = sum(p.nbytes for p in network.parameters()) / MIB
    checkpoint = bytes_of_checkpoint(network, training) / MIB + weights  # and the best weights so far
    disk = {
        "encoded_rows": sum(part.table.nbytes for part in _parts(prepared)) / MIB,
        "cached_raw_rows": sum(part.raw_bytes for part in _parts(prepared)) / MIB,
        "checkpoints": CHECKPOINTS * checkpoint if training.checkpoint_minutes else 0.0,
        "bundle": weights,
    }
    found = disk | {"sum": sum(disk.values())}
    if prepared.train.bound is not None:
        as_read = disk["cached_raw_rows"] - disk["encoded_rows"]  # beside the rows of the parts, before any is encoded
        found["more_while_preparing"] = max(as_read, prepared.train.table.nbytes / MIB)  # encoded, then saved
    return found


def _parts(prepared: Prepared) -> tuple[Part, ...]:
    return prepared.train, prepared.valid, prepared.test

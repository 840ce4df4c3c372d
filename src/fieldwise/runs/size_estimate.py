"""What training a recipe takes, before it is trained: parameters, and estimates of memory and disk."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.layers import FirstOrder
from fieldwise.layout import Layout
from fieldwise.models.build import build_network
from fieldwise.models.mean_with_lr import as_former
from fieldwise.models.trees import trees_of
from fieldwise.runs.large_table import large_table
from fieldwise.runs.recipe import Recipe
from fieldwise.training.memory import (
    bytes_of_parameters,
    bytes_of_regression,
    bytes_of_rows,
    bytes_of_step,
    first_lr_of,
)
from fieldwise.training.objective import Objective
from fieldwise.training.with_lr import settings_of_lr

MIB = 2**20
BYTES_PER_LR_WEIGHT = 8 + 4
"""Of the solved LR, and of the LR in the mean."""
FIRST_STEP_MIB = 68.0
"""What PyTorch loads for the first gradients and the first update."""
STEP_OVERHEAD = 1.5
"""Memory of a step by its tensors' bytes: freed blocks between used ones, and work space of kernels."""
CHECKPOINTS_ON_DISK = 3
"""Two are kept while the next one is written."""
WHILE_TRAINING = (
    "windows_and_order_of_rows",
    "parameters_gradients_and_optimizer",
    "step",
    "copy_for_a_checkpoint",
)
"""Purposes of memory that is not yet taken while LR is solved exactly, before there are gradients and states."""


def training_sizes(
    recipe: Recipe, prepared: Prepared, *, program_mib: float, former: nn.Module | None
) -> dict[str, Any]:
    """Parameters, rows, and estimates of memory and disk in MiB, by purpose, of training complete settings on rows.

    `former` is the network of a warm start's bundle. Parameters include LR's, if the training may
    end as a mean with it (`mean_with_lr`).
    """
    label_count = len(recipe.schema.labels)
    layout = prepared.encoder.layout

    def build(layout: Layout) -> nn.Module:
        network = build_network(recipe.model, layout, recipe.seed, labels=label_count)
        return as_former(network, layout, former)

    network = build(layout)
    parameters = list(network.named_parameters())
    lr_parameters = []
    if recipe.training.mean_with_lr:
        for name, parameter in FirstOrder(layout).named_parameters():
            lr_parameters.append((f"lr.{name}", parameter))
    parameters += lr_parameters

    trained_bytes, checkpoint_bytes = bytes_of_parameters(network, recipe.training)
    trees = next(trees_of(network), None)
    if trees is None:
        step_bytes = bytes_of_step(
            build, prepared.train.table, recipe.training, Objective.of(*recipe.schema.labels)
        )
    else:
        rows = len(prepared.train.table) + len(prepared.valid.table)
        step_bytes = rows * trees.features.bytes_per_row
    memory = _memory_of_rows(recipe, prepared, program_mib)
    memory["parameters_gradients_and_optimizer"] = trained_bytes
    memory["step"] = STEP_OVERHEAD * step_bytes
    memory["copy_for_a_checkpoint"] = checkpoint_bytes if recipe.training.checkpoint_minutes else 0
    if recipe.training.solves_lr and recipe.training.l2_of_lr is None:
        memory |= _memory_of_solved_lr(recipe, prepared, network, memory)
    memory["sum"] = sum(memory.values())

    bundle_bytes = _weight_bytes(network.parameters())
    bundle_bytes += _weight_bytes(parameter for _, parameter in lr_parameters)
    disk = _disk(recipe, prepared, network, checkpoint_bytes, bundle_bytes)
    return {
        "parameters": [
            {"name": name, "shape": list(parameter.shape), "numbers": parameter.numel()}
            for name, parameter in parameters
        ],
        "parameter_count": sum(parameter.numel() for _, parameter in parameters),
        "lr_parameter_count": sum(parameter.numel() for _, parameter in lr_parameters),
        "counts": dict(prepared.counts),
        "memory_mib": _in_mib(memory),
        "disk_mib": _in_mib(disk),
    }


def _memory_of_rows(recipe: Recipe, prepared: Prepared, program_mib: float) -> dict[str, float]:
    """Bytes of the program, the rows and the vocabularies, by purpose."""
    raw_bytes = 0
    encoded_bytes = 0
    # Large tables are mapped; a training that makes the rows itself has them in memory.
    if large_table(recipe.data, text_columns=recipe.text_columns) is None:
        raw_bytes = _raw_bytes(prepared)
        encoded_bytes = _encoded_bytes(prepared)
    texts_by_vocabulary = {  # one that several fields share is counted once
        id(fitted): fitted.values
        for fitted in prepared.encoder.fitted
        if isinstance(fitted, Vocabulary)
    }
    vocabulary_bytes = 0
    for texts in texts_by_vocabulary.values():
        vocabulary_bytes += sum(map(sys.getsizeof, texts)) + sys.getsizeof(texts)
    train = prepared.train.table
    return {
        "program": (program_mib + FIRST_STEP_MIB) * MIB,
        "raw_rows": raw_bytes,
        "encoded_rows": encoded_bytes,
        "vocabularies": vocabulary_bytes,
        "windows_and_order_of_rows": bytes_of_rows(
            train, len(prepared.valid.table), recipe.training
        ),
    }


def _memory_of_solved_lr(
    recipe: Recipe, prepared: Prepared, network: nn.Module, memory: Mapping[str, float]
) -> dict[str, float]:
    """Bytes of an LR that is solved exactly, and what solving it takes more than the training by steps."""
    weight_copies = 2 if recipe.training.average else 1
    solving = weight_copies * _weight_bytes(network.parameters())
    solving += bytes_of_regression(prepared.train.table, prepared.valid.table)
    while_training = sum(memory[purpose] for purpose in WHILE_TRAINING)
    return {
        "lr_solution": BYTES_PER_LR_WEIGHT * (prepared.encoder.layout.num_rows + 1),
        "more_while_lr_is_solved": max(0, solving - while_training),
    }


def _disk(
    recipe: Recipe,
    prepared: Prepared,
    network: nn.Module,
    checkpoint_bytes: int,
    bundle_bytes: int,
) -> dict[str, float]:
    """Bytes on disk, by purpose, with their sum."""
    checkpoint_bytes += _weight_bytes(network.parameters())  # with the best weights so far
    first_lr = first_lr_of(network, recipe.training)
    if first_lr is not None:
        _, lr_checkpoint_bytes = bytes_of_parameters(first_lr, settings_of_lr(recipe.training))
        checkpoint_bytes += lr_checkpoint_bytes
        checkpoint_bytes += _weight_bytes(first_lr.parameters())

    raw_bytes = _raw_bytes(prepared)
    encoded_bytes = _encoded_bytes(prepared)
    has_checkpoints = bool(recipe.training.checkpoint_minutes)
    disk: dict[str, float] = {
        "encoded_rows": encoded_bytes,
        "cached_raw_rows": raw_bytes,
        "checkpoints": CHECKPOINTS_ON_DISK * checkpoint_bytes if has_checkpoints else 0,
        "bundle": bundle_bytes,
    }
    disk["sum"] = sum(disk.values())
    # beside the rows of the parts, before any is encoded; encoded, then saved
    if prepared.train.budget.folder is not None:
        disk["more_while_preparing"] = max(raw_bytes - encoded_bytes, prepared.train.table.nbytes)
    return disk


def _raw_bytes(prepared: Prepared) -> int:
    return sum(part.raw_bytes for part in (prepared.train, prepared.valid, prepared.test))


def _encoded_bytes(prepared: Prepared) -> int:
    return sum(part.table.nbytes for part in (prepared.train, prepared.valid, prepared.test))


def _weight_bytes(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def _in_mib(sizes: Mapping[str, float]) -> dict[str, float]:
    return {purpose: size / MIB for purpose, size in sizes.items()}

"""`fieldwise describe`: what a recipe would train, without training it."""

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import nn

from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import cache_for, existing_data_dir
from fieldwise.cli.show import console, say
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.prepare.repeats import repeat_sentences
from fieldwise.data.table import EncodedTable
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network, model_to_dict
from fieldwise.runs.pipeline import prepare_recipe, settled
from fieldwise.runs.recipe import Recipe, load_recipe

__all__ = ["run_describe"]

OPTIMIZER_STATES = {"adam": 2, "adagrad": 1, "rowwise_adagrad": 1, "sgd": 0}
PROBE_ROWS = 64
MIB = 2**20


def run_describe(
    name: str, settings: Sequence[str], protocol: str | None, data_dir: Path | None, as_json: bool, cache: bool
) -> None:
    """Print fields, sizes, parameters and the memory that training would take."""
    recipe = load_recipe(name, settings, protocol=protocol)
    prepared = prepare_recipe(recipe, existing_data_dir(data_dir, recipe.data.name), cache=cache_for(cache))
    facts = describe(recipe, prepared)
    if as_json:
        json_module.dump(facts, sys.stdout, indent=1)
        print()
        return
    out = console()
    out.print(f"{recipe.name}: {recipe.description}".rstrip(": "))
    if recipe.protocol:
        out.print(f"protocol: {recipe.protocol}")
    for sentence in repeat_sentences(prepared.counts):
        say(f"WARNING: {sentence}")
    if recipe.mean_labels is not None and (caution := recipe.mean_labels.caution()):
        say(caution)
    fields = Table("field", "role", "kind", "rows of the table", "unseen in test", box=None)
    for f in facts["fields"]:
        unseen = f["unseen_in_test"]
        rows = f"{f['rows']:,}" if f["shares"] is None else f"those of {f['shares']}"
        fields.add_row(f["name"], f["role"], f["kind"], rows, "" if unseen is None else f"{unseen:.1%}")
    out.print(fields)
    if len(facts["labels"]) > 1:
        out.print("labels: " + ", ".join(f"{label['name']} ({label['task']})" for label in facts["labels"]))
    parts = Table("parameter", "shape", "numbers", box=None)
    for p in facts["parameters"]:
        parts.add_row(p["name"], " x ".join(map(str, p["shape"])), f"{p['numbers']:,}")
    out.print(parts)
    rows = ", ".join(f"{count:,} {part.replace('_', ' ')}" for part, count in facts["counts"].items())
    memory = ", ".join(f"{what.replace('_', ' ')} {size:,.1f}" for what, size in facts["memory_mib"].items())
    if facts["defaults"]:
        chosen = Table("by the data", "value", "why", box=None)
        for choice in settled(recipe, prepared)[1]:
            chosen.add_row(choice.setting, choice.shown, choice.reason)
        out.print(chosen)
    out.print(f"{facts['parameter_count']:,} parameters; {rows}")
    out.print(f"memory estimate in MiB: {memory}")
    given = [part for setting in settings for part in ("--set", setting)]
    given += [*([] if protocol is None else ["--protocol", protocol]), *data_options(data_dir)]
    suggest("train it", "train", name, *given)


def describe(recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """The facts as plain values."""
    recipe, chosen = settled(recipe, prepared)
    layout = prepared.encoder.layout
    labels = recipe.schema.labels
    network = build_network(recipe.model, layout, recipe.seed, labels=len(labels))
    parameters = parameter_count(network)
    copies = 3 + OPTIMIZER_STATES[recipe.training.optimizer]  # value, gradient, best so far, the optimizer's own
    unseen = prepared.unseen["test"]
    memory = {
        "encoded_rows": sum(p.table.nbytes for p in (prepared.train, prepared.valid, prepared.test)) / MIB,
        "parameters_gradients_and_optimizer": 4 * parameters * copies / MIB,
        "kept_for_the_backward_pass": _saved_bytes(network, prepared.train.table, recipe.training.batch_size) / MIB,
    }
    memory["sum"] = sum(memory.values())
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
        "memory_mib": memory,
    }


def _saved_bytes(network: nn.Module, table: EncodedTable, batch_size: int) -> float:
    """Bytes that autograd keeps for one batch: counted on a few rows, scaled up. Parameters are not counted."""
    rows = min(PROBE_ROWS, len(table))
    batch, _ = table.batch(slice(0, rows))
    own = {p.data_ptr() for p in network.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in own:
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    alive = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        alive.append(network.train()(batch))  # alive, so that no two tensors share an address
    return sum(kept.values()) * min(batch_size, len(table)) / max(rows, 1)

"""`fieldwise describe`: what a recipe would train, without training it."""

import importlib.util
import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import cache_for, existing_data_dir
from fieldwise.cli.show import console, say
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.prepare.repeats import repeat_sentences
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network, model_to_dict
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.fitting import settled
from fieldwise.runs.recipe import Recipe, load_recipe
from fieldwise.training.memory import bytes_of_parameters, bytes_saved_for_backward

__all__ = ["run_describe"]

MIB = 2**20


def run_describe(
    name: str, settings: Sequence[str], protocol: str | None, data_dir: Path | None, as_json: bool, cache: bool
) -> None:
    """Print fields, sizes, parameters and the memory that training would take."""
    recipe = load_recipe(name, settings, protocol=protocol)
    prepared = prepare_recipe(recipe, existing_data_dir(data_dir, recipe.data.name), cache=cache_for(cache))
    peak = _peak_mib()  # of preparing, where that was not done before
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
    if peak is not None:
        out.print(f"memory of this process so far, Python and PyTorch with it, in MiB: {peak:,.0f} at its peak")
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
    unseen = prepared.unseen["test"]
    parts, training = (prepared.train, prepared.valid, prepared.test), recipe.training
    memory = {
        "raw_rows": sum(part.frame.estimated_size() for part in parts) / MIB,
        "encoded_rows": sum(part.table.nbytes for part in parts) / MIB,
        "parameters_gradients_and_optimizer": bytes_of_parameters(network, training) / MIB,
        "kept_for_the_backward_pass": bytes_saved_for_backward(network, prepared.train.table, training.batch_size)
        / MIB,
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


def _peak_mib() -> float | None:
    """The most memory that this process has had; None where the system does not tell (Windows)."""
    if importlib.util.find_spec("resource") is None:
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak * 1024 / MIB

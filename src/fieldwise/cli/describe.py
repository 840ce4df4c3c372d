"""`fieldwise describe`: what a recipe would train and what that takes, or the names of all recipes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fieldwise.cli import options as opt
from fieldwise.cli import resources, show
from fieldwise.data.reports import memory_mib, peak_mib
from fieldwise.runs.recipe import Recipe
from fieldwise.runs.recipe_files import load_recipe, recipe_names

if TYPE_CHECKING:
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.runs.default_settings import ResolvedSetting

PROGRAM_MIB = 175.0
"""Memory of Python, PyTorch and Polars, where the system does not tell."""


def run(
    *, recipe: opt.RecipeName = "", settings: opt.Settings = None, json: opt.AsJson = False
) -> None:
    """Show a recipe's fields, parameters and memory, or list all.

    Nothing is trained. Without RECIPE the names of the package's recipes are listed.
    """
    if not recipe:
        opt.check_no_settings(settings)
        if json:
            show.print_json({"recipes": recipe_names()})
            return
        print(*recipe_names(), sep="\n")
        show.suggest("see what a recipe trains", "describe", "simulated/afm")
        return

    loaded = load_recipe(recipe, settings or ())
    from fieldwise.bundle.bundle import Bundle
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import resolve_defaults
    from fieldwise.runs.size_estimate import training_sizes

    program_mib = memory_mib() or PROGRAM_MIB
    cache = resources.cache_for()
    if cache is not None:
        # Files of the cache are not checked: that takes longer than all else, and training checks
        # them.
        cache = replace(cache, verify=False)
    prepared = prepare_recipe(loaded, resources.data_folder(loaded.data.name), cache=cache)
    peak = peak_mib()  # of preparing the data, or of reading them from the cache
    start = None if loaded.warm_start is None else Bundle.load(Path(loaded.warm_start))
    complete, choices = resolve_defaults(loaded, prepared.train, start)
    former = None if start is None else start.network
    facts = _facts(complete, choices, prepared)
    facts |= training_sizes(complete, prepared, program_mib=program_mib, former=former)
    if json:
        show.print_json(facts)
        return

    out = show.console()
    out.print(f"{loaded.name}: {loaded.description}".rstrip(": "))
    if loaded.protocol:
        out.print(f"protocol: {loaded.protocol}")
    show.say_cautions(loaded, prepared)
    _show_facts(facts, choices)
    if peak is not None:
        out.print(
            f"peak memory of reading or preparing the rows, mapped files included: {peak:,.0f} MiB"
        )
    show.suggest("train it", "train", recipe, *opt.setting_words(settings))


def _facts(
    recipe: Recipe, choices: "Sequence[ResolvedSetting]", prepared: "Prepared"
) -> dict[str, Any]:
    """What a recipe with complete settings would train, as plain values."""
    from fieldwise.config import to_plain
    from fieldwise.models.serialise import model_to_dict

    return {
        "recipe": recipe.name,
        "protocol": recipe.protocol,
        "model": model_to_dict(recipe.model),
        "training": to_plain(recipe.training),
        "defaults": to_plain(choices),
        "fields": _field_facts(prepared),
        "labels": [
            {"name": label.name, "task": label.task, "weight": label.weight}
            for label in recipe.schema.labels
        ],
    }


def _field_facts(prepared: "Prepared") -> list[dict[str, Any]]:
    """The fields with their embedding rows, and the share of their values in the test rows that are unseen."""
    unseen = prepared.unseen["test"]
    encoder = prepared.encoder
    facts = []
    for field_layout, field in zip(encoder.layout.fields, encoder.fields, strict=True):
        facts.append(
            {
                "name": field_layout.name,
                "role": field_layout.role,
                "rows": field_layout.rows,
                "shares": field_layout.shares,
                "kind": field.kind,
                "unseen_in_test": unseen.get(field_layout.name),
            }
        )
    return facts


def _show_facts(facts: Mapping[str, Any], choices: "Sequence[ResolvedSetting]") -> None:
    """Print the facts as tables."""
    out = show.console()
    _show_fields(facts["fields"])
    if len(facts["labels"]) > 1:
        labels = [f"{label['name']} ({label['task']})" for label in facts["labels"]]
        out.print(f"labels: {', '.join(labels)}")
    _show_parameters(facts["parameters"])
    if choices:
        rows = [[choice.setting, choice.shown, choice.reason] for choice in choices]
        show.print_table(["chosen from the data", "value", "why"], rows)

    of_lr = ""
    if facts["lr_parameter_count"]:
        of_lr = f", {facts['lr_parameter_count']:,} of them LR's in the mean"
    counts = [f"{count:,} {part.replace('_', ' ')}" for part, count in facts["counts"].items()]
    out.print(f"{facts['parameter_count']:,} parameters{of_lr}; {', '.join(counts)}")
    out.print(_sizes_line("memory estimate for training", facts["memory_mib"]))
    out.print(_sizes_line("disk estimate", facts["disk_mib"]))


def _show_fields(fields: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for field in fields:
        embedding_rows = f"{field['rows']:,}"
        if field["shares"] is not None:
            embedding_rows = f"shared with {field['shares']}"
        unseen = field["unseen_in_test"]
        unseen_text = "" if unseen is None else f"{unseen:.1%}"
        rows.append([field["name"], field["role"], field["kind"], embedding_rows, unseen_text])
    show.print_table(["field", "role", "kind", "embedding rows", "unseen in test"], rows)


def _show_parameters(parameters: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for parameter in parameters:
        shape = " x ".join(map(str, parameter["shape"]))
        rows.append([parameter["name"], shape, f"{parameter['numbers']:,}"])
    show.print_table(["parameter", "shape", "numbers"], rows)


def _sizes_line(what: str, sizes: Mapping[str, float]) -> str:
    parts = [f"{purpose.replace('_', ' ')} {size:,.1f}" for purpose, size in sizes.items()]
    return f"{what} in MiB: {', '.join(parts)}"

"""`fieldwise describe`: show what a recipe would train, without training it."""

import dataclasses
import importlib.util
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fieldwise.cli.next import data_options, suggest
from fieldwise.cli.options import (
    AsJson,
    DataDir,
    Protocol,
    RecipeName,
    Settings,
    UseCache,
    cache_for,
    existing_data_dir,
)
from fieldwise.cli.show import console, print_json, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.runs.defaults.resolve import Chosen
    from fieldwise.runs.recipe import Recipe

__all__ = ["DescribeOptions", "run"]

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class DescribeOptions:
    """Options of `fieldwise describe`."""

    recipe: RecipeName
    settings: Settings = None
    protocol: Protocol = None
    data_dir: DataDir = None
    json: AsJson = False
    cache: UseCache = True


def run(options: DescribeOptions) -> None:
    """Show a recipe's fields, sizes, parameter count and memory estimate. Nothing is trained."""
    from fieldwise.runs.recipe import check_recipe, load_recipe

    check_recipe(options.recipe, options.settings or [], protocol=options.protocol)  # before PyTorch is loaded
    from fieldwise.cli.describe_facts import PROGRAM_MIB, describe
    from fieldwise.data.reports import memory_mib
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.fitting import settled

    recipe = load_recipe(options.recipe, options.settings or [], protocol=options.protocol)
    data_dir = existing_data_dir(options.data_dir, recipe.data.name)
    program = memory_mib() or PROGRAM_MIB
    cache = cache_for(options.cache)
    # Files of the cache are not checked: that takes longer than all else, and training checks them.
    prepared = prepare_recipe(
        recipe, data_dir, cache=None if cache is None else dataclasses.replace(cache, verify=False)
    )
    peak = _peak_mib()  # of preparing the data, or of reading them from the cache
    complete, chosen = settled(recipe, prepared)
    facts = describe(complete, chosen, prepared, program)
    if options.json:
        print_json(facts)
        return
    _tell(recipe, prepared)
    _show(facts, chosen)
    if peak is not None:
        shown = f"peak memory of reading or preparing the rows, mapped files included: {peak:,.0f} MiB"
        console().print(shown)
    given = [part for setting in options.settings or () for part in ("--set", setting)]
    given += [] if options.protocol is None else ["--protocol", options.protocol]
    suggest("train it", "train", options.recipe, *given, *data_options(options.data_dir))


def _tell(recipe: "Recipe", prepared: "Prepared") -> None:
    """Print the recipe's name and description, and warnings about its data."""
    from fieldwise.data.prepare.repeats import repeat_sentences

    console().print(f"{recipe.name}: {recipe.description}".rstrip(": "))
    if recipe.protocol:
        console().print(f"protocol: {recipe.protocol}")
    for sentence in repeat_sentences(prepared.counts):
        say(f"WARNING: {sentence}")
    if recipe.target_encoding is not None and (caution := recipe.target_encoding.caution()):
        say(caution)


def _show(facts: dict[str, Any], choices: "Sequence[Chosen]") -> None:
    """Print the facts as tables."""
    from rich.table import Table

    out = console()
    fields = Table("field", "role", "kind", "rows of the table", "unseen in test", box=None)
    for f in facts["fields"]:
        unseen = f["unseen_in_test"]
        rows = f"{f['rows']:,}" if f["shares"] is None else f"shared with {f['shares']}"
        fields.add_row(f["name"], f["role"], f["kind"], rows, "" if unseen is None else f"{unseen:.1%}")
    out.print(fields)
    if len(facts["labels"]) > 1:
        out.print("labels: " + ", ".join(f"{label['name']} ({label['task']})" for label in facts["labels"]))
    parts = Table("parameter", "shape", "numbers", box=None)
    for p in facts["parameters"]:
        parts.add_row(p["name"], " x ".join(map(str, p["shape"])), f"{p['numbers']:,}")
    out.print(parts)
    rows = ", ".join(f"{count:,} {part.replace('_', ' ')}" for part, count in facts["counts"].items())
    memory, disk = (
        ", ".join(f"{what.replace('_', ' ')} {size:,.1f}" for what, size in facts[name].items())
        for name in ("memory_mib", "disk_mib")
    )
    if facts["defaults"]:
        chosen = Table("chosen from the data", "value", "why", box=None)
        for choice in choices:
            chosen.add_row(choice.setting, choice.shown, choice.reason)
        out.print(chosen)
    out.print(f"{facts['parameter_count']:,} parameters; {rows}")
    out.print(f"memory estimate for training in MiB: {memory}")
    out.print(f"disk estimate in MiB: {disk}")


def _peak_mib() -> float | None:
    """The peak memory of this process; None if the system does not report it (Windows)."""
    if importlib.util.find_spec("resource") is None:
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak * 1024 / MIB

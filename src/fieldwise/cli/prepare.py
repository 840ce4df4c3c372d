"""`fieldwise prepare` and `fieldwise describe`: a recipe's rows in the cache, and what it will train."""

import dataclasses
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.cli.processes import EngineName, engine_for
from fieldwise.data.reports import memory_mib, peak_mib
from fieldwise.errors import ConfigError, DataError
from fieldwise.runs.recipe import Recipe, load_recipe, recipe_names
from fieldwise.storage.cache import Cache, default_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.runs.default_settings import ResolvedSetting

PROGRAM_MIB = 175.0  # Python, PyTorch and Polars, where the system does not tell
FIRST_STEP_MIB = 68.0  # what PyTorch loads for the first gradients and the first update
HEAP = 1.5  # memory of a step by its tensors' bytes: freed blocks between used ones, and work space of kernels
CHECKPOINTS = 3  # two are kept while the next one is written


def run(
    *,
    recipe: opt.RecipeName = "",
    settings: opt.Settings = None,
    clear: Annotated[bool, Option(help="Remove all entries of the cache.")] = False,
    json: opt.AsJson = False,
    quiet: opt.Quiet = False,
    progress: opt.Shown = "text",
    engine: EngineName = "local",
) -> None:
    """Prepare a recipe's rows in the cache, or list the cache.

    All commands read the rows from there. Without RECIPE the entries are listed; --clear removes them. With --engine
    ray the machines of a Ray cluster share the work; the result is the same to the bit.
    """
    cache = default_cache() if quiet else default_cache(show.say)
    if clear or not recipe:
        if clear and recipe:
            raise ConfigError(f"--clear removes all entries, found the recipe {recipe} too: give one of them")
        _check_unused(settings)
        if engine != "local":
            raise ConfigError(f"--engine {engine} prepares a recipe, which is not given: name one, or omit --engine")
        if not clear:
            _list(cache, json)
            return
        removed = cache.clear()
        size, number = sum(entry.size for entry in removed), show.counted(len(removed), "entry", "entries")
        if json:
            show.print_json({"cache": str(cache.folder), "removed": len(removed), "bytes": size})
        else:
            show.say(f"{number} removed, {size / show.MIB:,.1f} MiB, from {cache.folder}")
        return
    loaded = load_recipe(recipe, settings or ())  # PyTorch is loaded only if all else is valid
    from fieldwise.runs.data import prepare_recipe

    began = time.time()
    with engine_for(engine) as cluster, opt.reports_for(progress, quiet=quiet) as reports:
        reports.begin("preparation", run=loaded.name)
        prepared = prepare_recipe(
            loaded, opt.data_folder(loaded.data.name), cache=cache, reports=reports, engine=cluster
        )
    if not any(entry.used >= began - 1 for entry in cache.entries()):
        raise DataError(
            f"the prepared rows could not be stored in the cache {cache.folder}: free some space there, or set "
            "FIELDWISE_CACHE to another folder"
        )
    seconds = round(time.time() - began, 1)
    if json:
        show.print_json(
            {"recipe": loaded.name, "counts": prepared.counts, "cache": str(cache.folder), "seconds": seconds}
        )
        return
    show.say(
        f"{loaded.name}: {show.row_counts(prepared.counts)}; prepared in {seconds:,.1f} s, in the cache {cache.folder}"
    )
    if not quiet:
        show.suggest("train on them", "train", recipe, *opt.setting_words(settings))


def _list(cache: Cache, as_json: bool) -> None:
    """List the entries of the cache, most recently used first."""
    entries = cache.entries()
    if as_json:
        shown = [{"title": e.title, "bytes": e.size, "used": e.used, "folder": str(e.folder)} for e in entries]
        show.print_json({"cache": str(cache.folder), "limit": cache.limit, "entries": shown})
        return
    rows = []
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)) if entry.used else ""
        rows.append([entry.title, f"{entry.size / show.MIB:,.1f}", used, entry.folder.name[:12]])
    if rows:
        show.print_table(["prepared", "MiB", "last used", "entry"], rows)
    size, number = sum(entry.size for entry in entries) / show.MIB, show.counted(len(entries), "entry", "entries")
    show.console().print(f"{number}, {size:,.1f} of at most {cache.limit / show.MIB:,.0f} MiB, in {cache.folder}")


def _check_unused(settings: "Sequence[str] | None") -> None:
    if settings:
        raise ConfigError("--set changes a recipe, which is not given: name one, or omit --set")


def run_describe(*, recipe: opt.RecipeName = "", settings: opt.Settings = None, json: opt.AsJson = False) -> None:
    """Show a recipe's fields, parameters and memory, or list all.

    Nothing is trained. Without RECIPE the names of the package's recipes are listed.
    """
    if not recipe:
        _check_unused(settings)
        if json:
            show.print_json({"recipes": recipe_names()})
            return
        print(*recipe_names(), sep="\n")
        show.suggest("see what a recipe trains", "describe", "simulated/afm")
        return
    loaded = load_recipe(recipe, settings or ())
    from fieldwise.config import to_plain
    from fieldwise.models.build import model_to_dict
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import resolve_defaults

    program = memory_mib() or PROGRAM_MIB
    cache = opt.cache_for()
    # Files of the cache are not checked: that takes longer than all else, and training checks them.
    unchecked = None if cache is None else dataclasses.replace(cache, verify=False)
    prepared = prepare_recipe(loaded, opt.data_folder(loaded.data.name), cache=unchecked)
    peak = peak_mib()  # of preparing the data, or of reading them from the cache
    complete, chosen = resolve_defaults(loaded, prepared.train)
    unseen, encoder = prepared.unseen["test"], prepared.encoder
    facts = {
        "recipe": complete.name,
        "protocol": complete.protocol,
        "model": model_to_dict(complete.model),
        "training": to_plain(complete.training),
        "defaults": to_plain(chosen),
        "fields": [
            {name: getattr(f, name) for name in ("name", "role", "rows", "shares")}
            | {"kind": field.kind, "unseen_in_test": unseen.get(f.name)}
            for f, field in zip(encoder.layout.fields, encoder.fields, strict=True)
        ],
        "labels": [{"name": one.name, "task": one.task, "weight": one.weight} for one in complete.schema.labels],
        **_sizes(complete, prepared, program),
    }
    if json:
        show.print_json(facts)
        return
    out = show.console()
    out.print(f"{loaded.name}: {loaded.description}".rstrip(": "))
    if loaded.protocol:
        out.print(f"protocol: {loaded.protocol}")
    show.say_cautions(loaded, prepared)
    _show(facts, chosen)
    if peak is not None:
        out.print(f"peak memory of reading or preparing the rows, mapped files included: {peak:,.0f} MiB")
    show.suggest("train it", "train", recipe, *opt.setting_words(settings))


def _show(facts: dict[str, Any], choices: "Sequence[ResolvedSetting]") -> None:
    """Print the facts as tables."""
    out, rows = show.console(), []
    for f in facts["fields"]:
        own = f"{f['rows']:,}" if f["shares"] is None else f"shared with {f['shares']}"
        unseen = f["unseen_in_test"]
        rows.append([f["name"], f["role"], f["kind"], own, "" if unseen is None else f"{unseen:.1%}"])
    show.print_table(["field", "role", "kind", "rows of the table", "unseen in test"], rows)
    if len(facts["labels"]) > 1:
        out.print("labels: " + ", ".join(f"{label['name']} ({label['task']})" for label in facts["labels"]))
    rows = [[p["name"], " x ".join(map(str, p["shape"])), f"{p['numbers']:,}"] for p in facts["parameters"]]
    show.print_table(["parameter", "shape", "numbers"], rows)
    if facts["defaults"]:
        chosen = ([choice.setting, choice.shown, choice.reason] for choice in choices)
        show.print_table(["chosen from the data", "value", "why"], chosen)
    counts = ", ".join(f"{count:,} {part.replace('_', ' ')}" for part, count in facts["counts"].items())
    out.print(f"{facts['parameter_count']:,} parameters; {counts}")
    for name, words in (("memory_mib", "memory estimate for training"), ("disk_mib", "disk estimate")):
        sizes = ", ".join(f"{what.replace('_', ' ')} {size:,.1f}" for what, size in facts[name].items())
        out.print(f"{words} in MiB: {sizes}")


def _sizes(recipe: Recipe, prepared: "Prepared", program_mib: float) -> dict[str, Any]:
    """Parameters, rows, and estimates of memory and disk in MiB, by purpose, of training complete settings on rows."""
    from fieldwise.data.encode.fitted_fields import Vocabulary
    from fieldwise.models import parameter_count
    from fieldwise.models.build import build_network
    from fieldwise.runs.data import large_table
    from fieldwise.training.memory import bytes_of_parameters, bytes_of_rows, bytes_of_step
    from fieldwise.training.objective import Objective

    training, labels, train = recipe.training, recipe.schema.labels, prepared.train
    build = partial(build_network, recipe.model, seed=recipe.seed, labels=len(labels))
    network, parts = build(prepared.encoder.layout), (train, prepared.valid, prepared.test)
    raw, encoded = sum(part.raw_bytes for part in parts), sum(part.table.nbytes for part in parts)
    texts = {id(f): f.values for f in prepared.encoder.fitted if isinstance(f, Vocabulary)}
    weights = sum(p.nbytes for p in network.parameters())
    parameters, checkpoint = bytes_of_parameters(network, training)
    mapped = large_table(recipe.data) is not None  # else a training that makes the rows itself has them in memory
    memory: dict[str, float] = {
        "program": (program_mib + FIRST_STEP_MIB) * show.MIB,
        "raw_rows": 0 if mapped else raw,
        "encoded_rows": 0 if mapped else encoded,
        "vocabularies": sum(sum(map(sys.getsizeof, one)) + sys.getsizeof(one) for one in texts.values()),
        "windows_and_order_of_rows": bytes_of_rows(train.table, len(prepared.valid.table), training),
        "parameters_gradients_and_optimizer": parameters,
        "step": HEAP * bytes_of_step(build, train.table, training, Objective.of(*labels)),
        "copy_for_a_checkpoint": checkpoint if training.checkpoint_minutes else 0,
    }
    disk: dict[str, float] = {
        "encoded_rows": encoded,
        "cached_raw_rows": raw,
        # with the best weights so far
        "checkpoints": CHECKPOINTS * (checkpoint + weights) if training.checkpoint_minutes else 0,
        "bundle": weights,
    }
    sizes = {"memory_mib": memory | {"sum": sum(memory.values())}, "disk_mib": disk | {"sum": sum(disk.values())}}
    if train.bound is not None:  # beside the rows of the parts, before any is encoded; encoded, then saved
        sizes["disk_mib"]["more_while_preparing"] = max(raw - encoded, train.table.nbytes)
    return {
        "parameters": [
            {"name": name, "shape": list(p.shape), "numbers": p.numel()} for name, p in network.named_parameters()
        ],
        "parameter_count": parameter_count(network),
        "counts": dict(prepared.counts),
        **{name: {what: size / show.MIB for what, size in result.items()} for name, result in sizes.items()},
    }

"""The option `--device`, bundles on a device, and the rows that a bundle was trained with."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fieldwise.cli.options import cache_for, data_folder
from fieldwise.cli.show import say
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from fieldwise.bundle.bundle import Bundle
    from fieldwise.data.prepare.prepared import Prepared

__all__ = ["BundleDevice", "Device", "check_device", "load_bundle", "rows_of_bundle"]


def _named(device: str | None) -> str | None:
    """Check that a word can be a device's name; whether there is one is known once PyTorch is loaded."""
    from fieldwise.training.settings import DEVICE

    if device is not None and not DEVICE.fullmatch(device):
        raise ConfigError(f"--device must be auto, cpu, cuda, cuda:N or mps, found {device!r}")
    return device


Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        callback=_named,
        help="Where networks compute: cpu, cuda, cuda:N (a GPU by its number), mps, or auto (a GPU if there is one). "
        "Default: the recipe's training.device, cpu if it has none.",
    ),
]
BundleDevice = Annotated[
    str,
    typer.Option(
        "--device",
        callback=_named,
        help="Where the network computes: cpu, cuda, cuda:N (a GPU by its number), mps, or auto (a GPU if there is "
        "one).",
    ),
]


def check_device(flag: str | None, *others: str) -> None:
    """Check before any work that devices exist, and say which one `auto` is here.

    Args:
        flag: the value of --device; None if it is not given.
        others: those of recipes, which an error does not blame on the flag.

    Errors:
        ConfigError: one does not.
    """
    from fieldwise.ops.devices import auto_words, open_device

    if flag is not None:
        open_device(flag, what="--device")
    for device in others:
        open_device(device)
    if "auto" in (flag, *others):
        say(auto_words())


def load_bundle(folder: Path, device: str) -> "Bundle":
    """A bundle, on the device that --device names.

    Errors:
        ConfigError: there is no such device.
    """
    from fieldwise.bundle.bundle import Bundle

    check_device(device)
    return Bundle.load(folder, device=device)


def rows_of_bundle(
    bundle: "Bundle", folder: Path, parts: "Sequence[Literal['valid', 'test']]", instead: str
) -> "tuple[Prepared, list[pl.DataFrame]]":
    """The prepared data of a bundle's recipe, and the raw rows of some parts.

    Errors:
        BundleError, DataError: as `recipe_of` and `rows_of_run` raise; they end with `instead`.
    """
    from fieldwise.runs.data import prepare_recipe
    from fieldwise.runs.pipeline import UNCHECKED, recipe_of, rows_of_run

    recipe = recipe_of(bundle, folder, instead)
    prepared = prepare_recipe(recipe, data_folder(recipe.data.name), cache=cache_for())
    found = [rows_of_run(bundle, recipe, prepared, part, instead) for part in parts]
    if not found[0][1]:
        say(UNCHECKED.format({"valid": "validation"}.get(parts[0], parts[0])))
    return prepared, [frame for frame, _ in found]

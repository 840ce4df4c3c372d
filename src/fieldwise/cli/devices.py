"""The option `--device`, and the errors that name it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fieldwise.cli.show import say
from fieldwise.errors import ConfigError

if TYPE_CHECKING:
    from fieldwise.bundle.bundle import Bundle

__all__ = ["BundleDevice", "Device", "check_device", "load_bundle", "with_device"]


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


def with_device(settings: list[str] | None, device: str | None) -> list[str]:
    """The values of --set, with that of --device."""
    return [*(settings or []), *([] if device is None else [f"training.device={json.dumps(device)}"])]


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

"""Building a network from settings: with a seed, for a grown layout, and no larger than its weights file."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fieldwise.errors import BundleError, ConfigError
from fieldwise.layers import kept_rows
from fieldwise.layout import Layout
from fieldwise.models.mean_with_lr import MeanWithLR, mean_with_lr
from fieldwise.models.multitask import MultiTask, MultiTaskWithAuxiliary
from fieldwise.models.settings import ModelSettings
from fieldwise.models.trees import trees_of
from fieldwise.ops.devices import device_of

ENTRY = 50  # bytes that a tensor takes at least in the header of a weights file


def build_network(
    settings: ModelSettings, layout: Layout, seed: int, *, labels: int = 1, in_mean: bool = False
) -> nn.Module:
    """A network with seeded weights; the global random state is not changed.

    With several labels it has one head per label and returns scores [B, T] (`MultiTask`). `in_mean`
    is for the weights of a mean with LR (`MeanWithLR`).

    >>> from fieldwise.models import FM
    >>> network = build_network(FM(embedding_dim=4), Layout.of_sizes([3, 4]), 0, labels=2)
    >>> [name for name in network.state_dict() if not name.startswith("heads.1.")]
    ['embedding.weight', 'heads.0.first_order.bias', 'heads.0.first_order.embedding.weight']
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [settings.build(layout) for _ in range(labels)]
    if in_mean:
        return mean_with_lr(networks[0], layout)
    if labels == 1:
        return networks[0]
    if hasattr(networks[0], "forward_with_auxiliary"):
        return MultiTaskWithAuxiliary(networks)
    return MultiTask(networks)


@torch.no_grad()
def grow_network(
    former: nn.Module, settings: ModelSettings, layout: Layout, seed: int, *, labels: int = 1
) -> nn.Module:
    """A network for a grown encoder's layout with the weights of its former network, on that one's device.

    Rows of the encoder from before score to the bit as they did. The weights of new values are
    those of `build_network`; a cross of categories (Wide & Deep) with a new value is new.

    Errors:
        ConfigError: a tensor beside the tables has another shape, which only a model of your own
            can have; or trees.
    """
    if any(trees_of(former)):
        raise ConfigError(
            "trees cannot learn new values without a new training: train on all rows, without warm start"
        )
    network = build_network(
        settings, layout, seed, labels=labels, in_mean=isinstance(former, MeanWithLR)
    )
    rows_kept = kept_rows(former, network)
    before = former.state_dict()
    for name, tensor in network.state_dict().items():
        tensor[rows_kept.get(name, ...)] = before[name].to(tensor.device)
    return network.to(device_of(former)).train(former.training)


@contextmanager
def parameters_within(weights: bytes | bytearray) -> Iterator[None]:
    """Stop building a network, in this thread, once it has more parameters than a weights file has bytes.

    Every parameter takes at least a byte there, so such a network does not belong to the file; a
    million layers would otherwise be built first.

    >>> with parameters_within(bytes(1000)):
    ...     len([nn.Linear(4, 4) for _ in range(5)])
    5
    >>> with parameters_within(bytes(1000)):
    ...     [nn.Linear(4, 4) for _ in range(10**6)]
    Traceback (most recent call last):
        ...
    fieldwise.errors.BundleError: the settings describe a network that does not fit in its weights file of 1,000 bytes
    """
    thread = threading.get_ident()
    most = len(weights)
    count = 0

    def add(_: nn.Module, __: str, parameter: nn.Parameter) -> None:
        nonlocal count
        if parameter is not None and threading.get_ident() == thread:
            count += parameter.numel() + ENTRY
            if count > most:
                raise BundleError(
                    f"the settings describe a network that does not fit in its weights file of {most:,} bytes"
                )

    handle = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()

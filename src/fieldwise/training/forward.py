"""A network's forward pass in a training step, in the chosen precision, compiled or not.

Letters: B batch, T labels.
"""

import warnings
from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layout import Batch
from fieldwise.training.precision import in_precision, slow_bfloat16
from fieldwise.training.settings import TrainingSettings

__all__ = ["Forward", "HasAuxiliaryLoss"]

COMPILER = "a working C++ compiler", "install g++ or clang++"
# PyTorch's own generator also in compiled code, so that dropout masks equal those of eager mode.
COMPILING: dict[str, bool | int | str | Callable[..., Any]] = {"fallback_random": True}


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """Interface of networks with an auxiliary loss, such as IntTower's contrastive regularization."""

    def forward_with_auxiliary(self, batch: Batch, label: Tensor) -> tuple[Tensor, Tensor]:
        """The logit [B] and a scalar to add to the mean loss; for T labels [B, T] and one number per label [T]."""
        ...


class Forward:
    """Computes a batch's scores and the network's auxiliary loss, both float32.

    Compilation does not change the network: a separate function is compiled, so that the weights keep their names.

    Args:
        network: the network to train.
        settings: only `precision` and `compile` are used.

    Shape:
        call: Batch of B rows, labels [B, T] -> scores [B, T], or [B] of one label, and a scalar or [T]; None without an
        auxiliary loss.

    Errors:
        ConfigError: at the first call, if the network cannot be compiled here.
    """

    def __init__(self, network: nn.Module, settings: TrainingSettings) -> None:
        self.auxiliary = isinstance(network, HasAuxiliaryLoss)
        self.device = next((p.device.type for p in network.parameters()), "cpu")
        self.half = settings.precision == "bfloat16"
        self.compiled = settings.compile
        warning = slow_bfloat16(self.device) if self.half else None
        if warning:
            warnings.warn(warning, stacklevel=2)
        run: Callable[..., Any] = network
        if isinstance(network, HasAuxiliaryLoss):
            run = network.forward_with_auxiliary
        self.run: Callable[..., Any] = torch.compile(run, options=COMPILING) if settings.compile else run

    def __call__(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scores and the auxiliary loss."""
        if self.compiled:
            return self._compiled(batch, y)
        return self._plain(batch, y)

    def _plain(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.half:
            return self._call(batch, y)
        with in_precision("bfloat16", self.device):
            score, own = self._call(batch, y)
        return score.float(), None if own is None else own.float()

    def _call(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        label = y if y.shape[1] > 1 else y[:, 0]  # a network of one label has no dimension of labels
        found = self.run(batch, label) if self.auxiliary else (self.run(batch), None)
        return cast(tuple[Tensor, Tensor | None], found)

    def _compiled(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        for tensor in (*batch, y):  # one compilation for all batch sizes, including the last batch's
            if tensor.numel():
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            return self._plain(batch, y)
        except torch._dynamo.exc.TorchDynamoException as e:
            why = next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)
            needs, remedy = ("Triton", "install it") if self.device == "cuda" else COMPILER
            raise ConfigError(
                f"training.compile = true needs {needs} and a network that torch.compile supports, but it failed with "
                f"{type(e).__name__} ({why}): {remedy}, or set compile = false"
            ) from e

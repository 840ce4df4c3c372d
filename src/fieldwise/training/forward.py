"""A network's scores in a training step: in the precision that is asked for, compiled or not.

Letters: B batch, T labels.
"""

import warnings
from collections.abc import Callable
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layout import Batch
from fieldwise.training.precision import slow_bfloat16
from fieldwise.training.settings import TrainingSettings

__all__ = ["Forward", "HasAuxiliaryLoss"]

# PyTorch's own generator in compiled code too: a seed then drops the same elements as without compilation.
COMPILING: dict[str, bool | int | str | Callable[..., Any]] = {"fallback_random": True}


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """A network with a loss of its own beside that on the logit, such as IntTower's contrastive regularization."""

    def forward_with_auxiliary(self, batch: Batch, label: Tensor) -> tuple[Tensor, Tensor]:
        """Logit [B] and a scalar that is added to the mean loss; with T labels [B, T] and one number a label [T]."""
        ...


class Forward:
    """Scores of a batch and the network's own loss, both float32; what is asked of every step is settled once.

    The network stays as it is: what is compiled is a function beside it, so that its weights keep their names.

    Args:
        network: to be trained.
        settings: `precision` and `compile` count.

    Shape:
        call: Batch of B rows, labels [B] or [B, T] -> scores [B] or [B, T], and a scalar or [T]; None without such a
        loss.

    Errors:
        ConfigError: from the first call, where the network cannot be compiled here.
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
        """Scores and own loss."""
        if self.compiled:
            return self._compiled(batch, y)
        return self._plain(batch, y)

    def _plain(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        if not self.half:
            return self._call(batch, y)
        with torch.autocast(self.device, dtype=torch.bfloat16):
            score, own = self._call(batch, y)
        return score.float(), None if own is None else own.float()

    def _call(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        found = self.run(batch, y) if self.auxiliary else (self.run(batch), None)
        return cast(tuple[Tensor, Tensor | None], found)

    def _compiled(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        for tensor in (*batch, y):  # one compilation for all batch sizes, the last one's too
            if tensor.numel():
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            return self._plain(batch, y)
        except torch._dynamo.exc.TorchDynamoException as e:
            why = next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)
            raise ConfigError(
                "training.compile = true needs a working C++ compiler and a network that torch.compile takes, but it "
                f"stopped with {type(e).__name__} ({why}): install g++ or clang++, or set compile = false"
            ) from e

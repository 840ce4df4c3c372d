"""One step of training: forward pass in the chosen precision, gradients, the update of all weights and of their mean.

Letters: B batch, T labels.
"""

import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError
from fieldwise.layout import Batch
from fieldwise.training.objective import Objective
from fieldwise.training.oov_dropout import OutOfVocabularyDropout
from fieldwise.training.optimizers import run_optimizer
from fieldwise.training.parallel import GradientSync, broadcast_parameters
from fieldwise.training.penalty import L2Penalty
from fieldwise.training.precision import in_precision, slow_bfloat16
from fieldwise.training.settings import TrainingSettings

__all__ = ["Forward", "HasAuxiliaryLoss", "Step", "averaged"]

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

    Compilation does not change the network: a separate function is compiled, so that the weights keep their names. Of
    the settings `precision` and `compile` are used.

    Shape:
        call: Batch of B rows, labels [B, T] -> scores [B, T], or [B] of one label, and a scalar or [T]; None without an
        auxiliary loss.

    Errors:
        ConfigError: at the first call, if the network cannot be compiled here.
    """

    def __init__(self, network: nn.Module, settings: TrainingSettings) -> None:
        self.auxiliary = isinstance(network, HasAuxiliaryLoss)
        self.device = next((p.device.type for p in network.parameters()), "cpu")
        self.precision, self.compiled = settings.precision, settings.compile
        if self.precision == "bfloat16" and (warning := slow_bfloat16(self.device)):
            warnings.warn(warning, stacklevel=2)
        run: Callable[..., Any] = network.forward_with_auxiliary if isinstance(network, HasAuxiliaryLoss) else network
        self.run: Callable[..., Any] = torch.compile(run, options=COMPILING) if settings.compile else run

    def __call__(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """The scores and the auxiliary loss."""
        if self.compiled:
            for tensor in (*batch, y):  # one compilation for all batch sizes, including the last batch's
                if tensor.numel():
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        label = y if y.shape[1] > 1 else y[:, 0]  # a network of one label has no dimension of labels
        score: Tensor
        own: Tensor | None
        try:
            with in_precision(self.precision, self.device):
                score, own = self.run(batch, label) if self.auxiliary else (self.run(batch), None)
            if self.precision == "bfloat16":
                score, own = score.float(), None if own is None else own.float()
            return score, own
        except torch._dynamo.exc.TorchDynamoException as e:
            why = next((line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__)
            needs, remedy = ("Triton", "install it") if self.device == "cuda" else COMPILER
            raise ConfigError(
                f"training.compile = true needs {needs} and a network that torch.compile supports, but it failed with "
                f"{type(e).__name__} ({why}): {remedy}, or set compile = false"
            ) from e


Tensors = tuple[Tensor, ...] | list[Tensor]


def averaged(network: nn.Module, decay: float) -> AveragedModel:
    """A copy of the network with an exponential moving average of its weights, updated by `update_parameters`.

    After step t the mean is `d mean + (1 - d) weights` with `d = min(decay, (1 + t) / (10 + t))`: the small `d` of the
    first steps forgets the starting values. Buffers (BatchNorm's statistics) are averaged too, counters copied.
    Source: Polyak & Juditsky, 1992; the warm-up of `d` is that of TensorFlow's ExponentialMovingAverage.

    Args:
        network: the network to average; the copy shares no weights with it.
        decay: in (0, 1); the mean covers about the last 1 / (1 - decay) steps.

    >>> network = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(network.weight)
    >>> mean = averaged(network, 0.9)
    >>> _ = nn.init.ones_(network.weight)
    >>> mean.update_parameters(network)  # t = 1: d = 2 / 11
    >>> round(mean.module.weight.item() * 11)
    9
    """

    def step(means: Tensors, values: Tensors, _: Tensor | int) -> None:
        if not means[0].is_floating_point():
            torch._foreach_copy_(means, values)
            return
        t = float(found.n_averaged)  # on the CPU: the number given is a copy on the device, to be waited for
        torch._foreach_lerp_(means, values, 1.0 - min(decay, (1.0 + t) / (10.0 + t)))

    found = AveragedModel(network, multi_avg_fn=step, use_buffers=True)
    found.n_averaged.fill_(1)  # else the first update only copies, and the mean starts a step late
    return found


class Step:
    """The step of a run, with everything that it changes.

    Attributes:
        sync: with the other processes, if several share the batches.

    Shape:
        call: Batch of B rows, targets [B, T], row weights [B] or None -> a scalar.
    """

    def __init__(
        self, network: nn.Module, train: EncodedTable, settings: TrainingSettings, objective: Objective, seed: int
    ) -> None:
        self.network, self.objective, group = network, objective, current_group()
        if group is not None:
            broadcast_parameters(network, group, settings)
        share = settings.unknown_share
        self.oov_dropout = OutOfVocabularyDropout(train, share, seed) if share else None
        self.optimizer = run_optimizer(network, settings)  # first: it decides which tables apply their own L2
        self.sync = None if group is None else GradientSync(group, self.optimizer, seed)
        self.penalty = L2Penalty(network, settings.l2, settings.l2_rows)
        self.forward = Forward(network, settings)
        self.parameters = list(network.parameters())
        self.mean = averaged(network, settings.average) if settings.average else None

    @property
    def evaluated(self) -> nn.Module:
        """The network that is evaluated and kept: with averaged weights, if there are."""
        return self.network if self.mean is None else self.mean.module

    def __call__(self, batch: Batch, y: Tensor, weight: Tensor | None) -> Tensor:
        """The loss of a batch before the step."""
        for parameter in self.parameters:
            parameter.grad = None
        if self.oov_dropout is not None:
            batch = self.oov_dropout(batch)
        logit, auxiliary = self.forward(batch, y)
        wanted = list(y.shape if self.objective.more else y.shape[:1])
        found = list(logit.shape) if isinstance(logit, Tensor) else type(logit).__name__
        if found != wanted:  # broadcasting would hide it
            network = type(self.network).__name__
            raise ConfigError(f"{network}.forward(batch) must return one logit per row, shape {wanted}, found {found}")
        data_loss = self.objective.loss(logit, y, weight)
        total = data_loss if auxiliary is None else data_loss + self.objective.weighted(auxiliary)
        if self.sync is not None:
            data_loss, total = data_loss * self.sync.share, total * self.sync.share
        total.backward()  # type: ignore[no-untyped-call]
        if self.sync is not None:
            data_loss = self.sync(data_loss)
        if self.penalty:
            self.penalty.add_gradients(batch)
        self.optimizer.step()
        if self.mean is not None:
            self.mean.update_parameters(self.network)
        return data_loss.detach()

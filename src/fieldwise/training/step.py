"""One step of training: forward pass in the chosen precision, gradients, the update of all weights and of their mean.

Letters: B batch, R rows of the shared embedding table, T labels.
"""

import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError
from fieldwise.layout import Batch
from fieldwise.ops.devices import device_of, in_precision, slow_bfloat16
from fieldwise.training.gradient_sync import GradientSync, broadcast_parameters
from fieldwise.training.in_batch_softmax import in_batch_softmax
from fieldwise.training.objective import Objective
from fieldwise.training.oov_dropout import OutOfVocabularyDropout, value_counts
from fieldwise.training.optimizers import RunOptimizer, has_spread_l2
from fieldwise.training.ranking_losses import RANKING_LOSSES
from fieldwise.training.settings import TrainingSettings

COMPILE_OPTIONS: dict[str, bool | int | str | Callable[..., Any]] = {"fallback_random": True}
"""PyTorch's own generator also in compiled code, so that dropout masks equal those of eager mode."""


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """Interface of networks with an auxiliary loss, such as IntTower's contrastive regularization."""

    def forward_with_auxiliary(self, batch: Batch, label: Tensor) -> tuple[Tensor, Tensor]:
        """The logit [B] and a scalar to add to the mean loss; for T labels [B, T] and one number per label [T]."""
        ...


class Step:
    """The step of a run, with everything that it changes.

    Compilation does not change the network: a separate function is compiled, so that the weights
    keep their names.

    Attributes:
        sync: with the other processes, if several share the batches.
        evaluated: the network that is evaluated and kept: with averaged weights, if there are.

    Shape:
        call: Batch of B rows, targets [B], or [B, T] of several labels, row weights [B] or None,
            groups [B] or None -> a scalar.

    Errors:
        ConfigError: at the first call, if the network cannot be compiled here.
    """

    def __init__(
        self,
        network: nn.Module,
        train: EncodedTable,
        settings: TrainingSettings,
        objective: Objective,
        seed: int,
    ) -> None:
        _check_batch_norm(network, len(train), settings.batch_size)
        _check_auxiliary_loss(network, objective)
        self.network = network
        self.objective = objective
        self.loss = settings.loss
        self.parameters = list(network.parameters())
        group = current_group()
        if group is not None:
            broadcast_parameters(network, group, settings)

        self.in_batch_softmax = in_batch_softmax(network, train, settings, objective, group)

        counts = None
        if settings.unknown_share or has_spread_l2(settings):
            counts = value_counts(train)
        self.oov_dropout = None
        if counts is not None and settings.unknown_share:
            self.oov_dropout = OutOfVocabularyDropout(
                train.layout, counts, settings.unknown_share, seed
            )
            counts = self.oov_dropout.expected(counts)

        occurrences = None
        if counts is not None and has_spread_l2(settings):
            in_a_batch = _occurrences(train, counts, settings.batch_size)
            occurrences = torch.from_numpy(in_a_batch).to(device_of(network))
        self.optimizer = RunOptimizer(network, settings, occurrences)
        self.sync = None if group is None else GradientSync(group, self.optimizer, seed)

        self.device = device_of(network).type
        self.precision = settings.precision
        if self.precision == "bfloat16":
            warning = slow_bfloat16(self.device)
            if warning:
                warnings.warn(warning, stacklevel=2)

        self.auxiliary = isinstance(network, HasAuxiliaryLoss)
        self.run: Callable[..., Any] = network
        if isinstance(network, HasAuxiliaryLoss):
            self.run = network.forward_with_auxiliary
        self.compiled = settings.compile
        if self.compiled:
            self.run = torch.compile(self.run, options=COMPILE_OPTIONS)

        self.averaged = None
        self.evaluated: nn.Module = network
        if settings.average:
            self.averaged = _moving_average(network, settings.average)
            self.evaluated = self.averaged.module

    def __call__(
        self, batch: Batch, y: Tensor, weight: Tensor | None, group: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch before the step; with the rows' groups the run's loss that ranks."""
        for parameter in self.parameters:
            parameter.grad = None
        read = batch
        if self.oov_dropout is not None:
            batch = self.oov_dropout(batch)
        data_loss, total = self._losses(read, batch, y, weight, group)

        if self.sync is not None:
            data_loss = data_loss * self.sync.share
            total = total * self.sync.share
        total.backward()  # type: ignore[no-untyped-call]
        if self.sync is not None:
            data_loss = self.sync(data_loss)

        self.optimizer.add_l2(batch)
        self.optimizer.step()
        if self.averaged is not None:
            self.averaged.update_parameters(self.network)
        return data_loss.detach()

    def _losses(
        self, read: Batch, batch: Batch, y: Tensor, weight: Tensor | None, group: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """A batch's loss, without and with the network's auxiliary loss; `read`: the rows before dropout of values."""
        if self.in_batch_softmax is not None:
            loss = self.objective.weighted(self.in_batch_softmax(read, batch, y, weight))
            return loss, loss
        logit, auxiliary = self.forward(batch, y)
        self._check_shape(logit, y)
        if group is None:
            loss = self.objective.loss(logit, y, weight)
        else:
            relevance = self.objective.relevance(y)
            log_odds = self.objective.in_sample(logit)
            ranking_loss = RANKING_LOSSES[self.loss](log_odds, relevance, group, weight)
            loss = self.objective.weighted(ranking_loss)
        if auxiliary is None:
            return loss, loss
        return loss, loss + self.objective.weighted(auxiliary)

    def forward(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """A batch's scores [B, T], or [B] of one label, and the network's auxiliary loss, if it has one: float32."""
        if self.compiled:
            # one compilation for all batch sizes, including the last batch's
            for tensor in (*batch, y):
                if tensor.numel():
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        score: Tensor
        auxiliary: Tensor | None = None
        try:
            with in_precision(self.precision, self.device):
                if self.auxiliary:
                    score, auxiliary = self.run(batch, y)
                else:
                    score = self.run(batch)
            if self.precision == "bfloat16":
                score = score.float()
                auxiliary = None if auxiliary is None else auxiliary.float()
            return score, auxiliary
        except torch._dynamo.exc.TorchDynamoException as e:
            raise self._cannot_compile(e) from e

    def _check_shape(self, logit: Any, y: Tensor) -> None:
        """Check that there is one logit for each target: broadcasting would hide others."""
        expected = list(y.shape if self.objective.more else y.shape[:1])
        shape = list(logit.shape) if isinstance(logit, Tensor) else type(logit).__name__
        if shape != expected:
            network = type(self.network).__name__
            raise ConfigError(
                f"{network}.forward(batch) must return one logit per row, shape {expected}, found {shape}"
            )

    def _cannot_compile(self, error: Exception) -> ConfigError:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[0] if lines else type(error).__name__
        if self.device == "cuda":
            compiler = "Triton"
            remedy = "install it"
        else:
            compiler = "a working C++ compiler"
            remedy = "install g++ or clang++"
        return ConfigError(
            f"training.compile = true needs {compiler} and a network that torch.compile supports, but it failed with "
            f"{type(error).__name__} ({reason}): {remedy}, or set compile = false"
        )


def _occurrences(train: EncodedTable, counts: np.ndarray, batch_size: int) -> np.ndarray:
    """The expected number of each row of the embedding table in a batch [R], from that in the training rows."""
    occurrences: np.ndarray = (counts * (min(batch_size, len(train)) / len(train))).astype(
        np.float32
    )
    for field in train.layout.fields:
        occurrences[field.piece_rows()] = 1.0  # every batch reads them once
    return occurrences


def _check_batch_norm(network: nn.Module, rows: int, batch_size: int) -> None:
    """Check that batch normalization gets more than one row at once; else a ConfigError."""
    if min(rows, batch_size) > 1:
        return
    if any(isinstance(module, nn.BatchNorm1d) for module in network.modules()):
        raise ConfigError(
            f"batch normalization needs batches of at least 2 rows, found batch_size {batch_size} for {rows} training "
            "rows: raise batch_size, or set the model's batch_norm = false"
        )


def _check_auxiliary_loss(network: nn.Module, objective: Objective) -> None:
    """Check that an auxiliary loss for binary labels meets no other label; else a ConfigError."""
    settings: tuple[str, ...] = ()  # those that switch it on, by the class of its part
    for module in network.modules():
        settings = settings or getattr(module, "binary_settings", ())
    tasks = [label.task for label in objective.labels]
    if settings and "regression" in tasks:
        remedy = " and ".join(f"model.{name} = 0" for name in settings)
        raise ConfigError(
            f"the model has an auxiliary loss for binary labels, but a label is a regression: set {remedy}"
        )


def _moving_average(network: nn.Module, decay: float) -> AveragedModel:
    """An exponential moving average of a network's weights, updated after each step.

    After step t it is `d mean + (1 - d) weights` with `d = min(decay, (1 + t) / (10 + t))`: the
    small `d` of the first steps forgets the starting values. Buffers (BatchNorm's statistics) are
    averaged too, counters copied.

    Source: Polyak & Juditsky, 1992; the warm-up is that of TensorFlow's ExponentialMovingAverage.
    """
    mean = AveragedModel(network, use_buffers=True)

    def move_mean(means: Any, values: Any, _: Tensor | int) -> None:
        if not means[0].is_floating_point():
            torch._foreach_copy_(means, values)
            return
        # on the CPU: the number given is a copy on the device, to be waited for
        t = float(mean.n_averaged)
        torch._foreach_lerp_(means, values, 1.0 - min(decay, (1.0 + t) / (10.0 + t)))

    mean.multi_avg_fn = move_mean
    # else the first update only copies, and the mean starts a step late
    mean.n_averaged.fill_(1)
    return mean

"""One step of training: the loss of a batch, its gradients, and the update of all weights."""

from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError
from fieldwise.layout import Batch
from fieldwise.training.averaging import averaged
from fieldwise.training.forward import Forward
from fieldwise.training.gradient_sync import GradientSync
from fieldwise.training.interrupts import Signals
from fieldwise.training.objective import Objective
from fieldwise.training.optimizers import run_optimizer
from fieldwise.training.penalty import L2Penalty
from fieldwise.training.reached import Parts, Reached
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.sync import broadcast_parameters
from fieldwise.training.unknown import ShowUnknown

__all__ = ["Step"]


class Step:
    """The step of a run, with everything that it changes.

    Args:
        network: updated in place.
        train: the training rows, for `unknown_share`.
        settings: optimizer, penalty, precision and so on.
        objective: the loss.
        seed: of what `unknown_share` hides.

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
        self.show_unknown = ShowUnknown(train, share, seed) if share else None
        self.optimizer = run_optimizer(network, settings)  # first: it decides which tables apply their own L2
        self.sync = None if group is None else GradientSync(group, self.optimizer, seed)
        self.penalty = L2Penalty(network, settings.l2, settings.l2_rows)
        self.forward = Forward(network, settings)
        self.parameters = list(network.parameters())
        self.mean = averaged(network, settings.average) if settings.average else None
        draws = None if self.show_unknown is None else self.show_unknown.draws
        self.parts = Parts(network=network, optimizer=self.optimizer, mean=self.mean, draws=draws)

    @property
    def evaluated(self) -> nn.Module:
        """The network that is evaluated and kept: with averaged weights, if there are."""
        return self.network if self.mean is None else self.mean.module

    @property
    def signals(self) -> Signals | None:
        """What processes that share the batches heed together; None for a process alone."""
        return None if self.sync is None else self.sync.signals

    def begin(self, at: Reached, own: int, rows: int) -> None:
        """The next step begins, of whose `rows` this process has `own`."""
        if self.sync is not None:
            self.sync.begin(at.epoch, at.step, own, rows)

    def __call__(self, batch: Batch, y: Tensor, weight: Tensor | None) -> Tensor:
        """The loss of a batch before the step."""
        for parameter in self.parameters:
            parameter.grad = None
        if self.show_unknown is not None:
            batch = self.show_unknown(batch)
        logit, auxiliary = self.forward(batch, y)
        wanted = list(y.shape if self.objective.more else y.shape[:1])
        found = list(logit.shape) if isinstance(logit, Tensor) else type(logit).__name__
        if found != wanted:  # broadcasting would hide it
            network = type(self.network).__name__
            raise ConfigError(f"{network}.forward(batch) must return one logit per row, shape {wanted}, found {found}")
        data_loss = self.objective.loss(logit, y, weight)
        total = data_loss if auxiliary is None else data_loss + self.objective.weighted(auxiliary)
        if self.sync is not None:
            data_loss, total = self.sync.shared(data_loss), self.sync.shared(total)
        total.backward()  # type: ignore[no-untyped-call]
        if self.sync is not None:
            data_loss = self.sync(data_loss)
        if self.penalty:
            self.penalty.add_gradients(batch)
        self.optimizer.step()
        if self.mean is not None:
            self.mean.update_parameters(self.network)
        return data_loss.detach()

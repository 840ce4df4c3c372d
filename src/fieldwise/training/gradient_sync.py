"""The gradients of a batch whose rows several processes share: summed, and equal to the bit in all of them.

Parameters that move as a whole travel as one buffer; of embedding tables that move by rows, ids and rows travel.

Letters: N ids of this process, A ids of all, D width of a table.
"""

import hashlib

import torch
from torch import Tensor, nn

from fieldwise.distributed.process_group import ProcessGroup
from fieldwise.training.interrupts import Signals
from fieldwise.training.optimizers import RunOptimizer

__all__ = ["GradientSync"]


class GradientSync:
    """Sums losses and gradients over the processes of a training in each step.

    Args:
        group: the processes.
        optimizer: it moves parameters as a whole, and tables with sparse gradients, one entry per id that was read.
        seed: the run's seed.

    Attributes:
        signals: received signals, on which all processes act at the same step.
    """

    def __init__(self, group: ProcessGroup, optimizer: RunOptimizer, seed: int) -> None:
        self.group, self.seed, self.share = group, seed, 0.0
        self.signals = Signals(noted=group.pending_signals)  # also of the training before
        lazy = [] if optimizer.lazy is None else optimizer.lazy.param_groups
        self.tables: list[nn.Parameter] = [group["params"][0] for group in lazy]
        dense = [p for p in optimizer.parameters if p.requires_grad]
        self._kinds = {p.dtype: [q for q in dense if q.dtype == p.dtype] for p in dense}
        self._flat = {
            dtype: torch.empty(sum(p.numel() + 1 for p in group), dtype=dtype, device=group[0].device)
            for dtype, group in self._kinds.items()
        }

    def begin(self, epoch: int, step: int, own: int, rows: int) -> None:
        """A step begins: this process has `own` of the batch's rows. Dropout's draws depend on step and process."""
        self.share = own / rows
        key = hashlib.sha256(f"step {self.seed} {epoch} {step} {self.group.rank}".encode()).digest()
        _seed(int.from_bytes(key[:4], "little"))

    def shared(self, loss: Tensor) -> Tensor:
        """This process's part of a mean over the batch's rows."""
        return loss * self.share

    @torch.no_grad()
    def __call__(self, loss: Tensor) -> Tensor:
        """Make gradients those of the whole batch; returns its loss, of which `loss` is this process's part."""
        for dtype, group in self._kinds.items():
            self._sum(group, self._flat[dtype])
        self._join()
        own = loss.detach() if self.share else torch.zeros_like(loss)  # the mean over no rows is not a number
        told = self.group.all_reduce(torch.stack([own.double(), own.new_tensor(len(self.signals.noted)).double()]))
        self.signals.agreed = bool(told[1] > 0)
        return told[0].to(loss.dtype)

    def _sum(self, parameters: list[nn.Parameter], flat: Tensor) -> None:
        """Sum gradients that are whole; one that no process has stays None."""
        count, sizes = len(parameters), [p.numel() for p in parameters]
        views = [view.view_as(p) for view, p in zip(torch.split(flat[count:], sizes), parameters, strict=True)]
        flat[:count] = flat.new_tensor([p.grad is not None for p in parameters])
        for view, p in zip(views, parameters, strict=True):
            if p.grad is None:
                view.zero_()
            else:
                view.copy_(p.grad)
        self.group.all_reduce(flat)
        for view, p, having in zip(views, parameters, flat[:count].tolist(), strict=True):
            p.grad = view if having else None

    def _join(self) -> None:
        """Join the ids and rows of tables; those read by the same ids travel together."""
        if not self.tables:
            return
        none = torch.empty(0, dtype=torch.int64, device=self.tables[0].device)
        found = [
            (none, t.new_empty(0, t.shape[1])) if t.grad is None else (t.grad._indices()[0], t.grad._values())
            for t in self.tables
        ]
        alike = [k > 0 and torch.equal(ids, found[k - 1][0]) for k, (ids, _) in enumerate(found)]
        told = self.group.all_gather(torch.tensor([[len(ids) for ids, _ in found], alike]))
        lengths, together = told[:, 0].t().tolist(), told[:, 1].all(0).tolist()
        at = 0
        while at < len(found):
            end = at + 1
            while end < len(found) and together[end]:
                end += 1
            self._join_alike(self.tables[at:end], found[at:end], lengths[at])
            at = end

    def _join_alike(self, tables: list[nn.Parameter], found: list[tuple[Tensor, Tensor]], lengths: list[int]) -> None:
        """Join the rows of tables that were read by the same ids."""
        ids = self.group.all_gather_v(found[0][0], lengths).view(1, -1)
        rows = self.group.all_gather_v(torch.cat([rows for _, rows in found], 1), lengths)
        for table, own in zip(tables, torch.split(rows, [t.shape[1] for t in tables], 1), strict=True):
            table.grad = torch.sparse_coo_tensor(ids, own, table.shape, check_invariants=False)


def _seed(seed: int) -> None:
    """Seed the generators that are in use.

    `torch.manual_seed` also notes a call stack for each kind of device that is not, which takes 2 ms in every step.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)

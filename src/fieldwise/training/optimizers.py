"""The optimizer of a run: PyTorch's for most parameters, lazy updates of only a batch's rows for large tables; L2.

Letters: R rows of a table, D its width, N ids of a batch.
"""

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn

from fieldwise.config import nearest
from fieldwise.distributed.process_group import all_gather_rows
from fieldwise.errors import ConfigError
from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Batch
from fieldwise.models.mean_with_lr import NETWORK, part_of_mean
from fieldwise.ops.rows import (
    RowGroups,
    RowRule,
    RuleName,
    group_rows,
    squares_of_rows,
    update_rows_,
)
from fieldwise.training.settings import OPTIMIZERS, TrainingSettings

LARGE_TABLE = 2**17
"""Rows from which on `auto` updates tables by rows; smaller ones are as fast as a whole."""


class LazyTables(torch.optim.Optimizer):
    """An optimizer that updates only rows with a gradient; other rows and their states do not change.

    Each table comes with the strength of squared L2 on its touched rows, and with each row's share
    of it at an occurrence if it is to be spread over those (`RowRule.shares`). Occurrences are
    those in `batch_ids`, the ids of the step's batch, where they are set: a network may read an id
    several times, and PyTorch merges some equal ids when it adds the gradients of several lookups.
    A gradient is a sparse COO tensor [R, D] from `fieldwise.ops.gather_rows`. The rules are those
    of `fieldwise.ops.rows.RowRule`; states have the table's shape, except for `rowwise_adagrad`,
    which has one number per row; `accumulator` is the start of Adagrad's sums.
    """

    def __init__(
        self,
        tables: Iterable[tuple[nn.Parameter, float, Tensor | None]],
        name: str,
        *,
        lr: float,
        accumulator: float = 0.0,
    ) -> None:
        self.name = cast(RuleName, name)
        self.batch_ids: Tensor | None = None
        self._shares = dict[nn.Parameter, Tensor | None]()
        self._shares_of_reads = dict[nn.Parameter, Tensor]()
        groups = list[dict[str, Any]]()
        for table, l2, shares in tables:
            self._shares[table] = shares
            groups.append({"params": [table], "l2": l2})
        super().__init__(groups, {"lr": lr, "accumulator": accumulator})

    @torch.no_grad()
    def step(self, closure: None = None, *, scale: float = 1.0) -> None:  # type: ignore[override]
        """Update the touched rows; `scale` is a factor for the gradients, including L2's."""
        for group, table, rows, grads_ND in self._gradients():
            state = self.state[table]
            if not state:
                state["step"] = torch.zeros(())
                state.update(row_states(self.name, table, group["accumulator"]))
            state["step"] += 1
            rule = RowRule(
                name=self.name,
                rate=group["lr"],
                l2=group["l2"],
                scale=scale,
                eps=OPTIMIZERS[self.name].eps,
                step=int(state["step"]),
                shares=self.shares_of(table, rows),
            )
            states = [value for name, value in state.items() if name != "step"]
            update_rows_(table, states, rows, grads_ND, rule)

    @torch.no_grad()
    def squares_of_gradients(self) -> list[float]:
        """The sum of squares of each table's gradient, summed by row, including L2's."""
        return [
            squares_of_rows(table, rows, grads_ND, group["l2"], self.shares_of(table, rows))
            for group, table, rows, grads_ND in self._gradients()
        ]

    @property
    def spreads_l2(self) -> bool:
        """Whether L2 of some table is spread over the occurrences of its rows."""
        return any(shares is not None for shares in self._shares.values())

    def shares_of(self, table: nn.Parameter, reads: RowGroups) -> Tensor | None:
        """The share of L2 at each gradient of a row [R], right for the rows that were read; None if it is not spread.

        A row with two gradients for each of its occurrences has half of an occurrence's share at
        each.
        """
        shares = self._shares[table]
        if shares is None or self.batch_ids is None or len(self.batch_ids) == len(reads.order):
            return shares
        reads_U = reads.starts.diff()
        is_read_U = reads_U > 0
        rows = reads.distinct[is_read_U]
        reads_of_row = reads_U[is_read_U]

        occurring = group_rows(self.batch_ids, len(table))
        last = len(occurring.distinct) - 1
        positions = torch.searchsorted(occurring.distinct, rows).clamp(max=last)
        in_batch = occurring.distinct[positions] == rows
        # rows that are not in the batch are read by the network itself, whatever the batch
        occurrences = torch.where(in_batch, occurring.starts.diff()[positions], reads_of_row)

        if table not in self._shares_of_reads:
            self._shares_of_reads[table] = torch.zeros_like(shares)
        shares_of_reads = self._shares_of_reads[table]
        shares_of_reads[rows.long()] = shares[rows.long()] * occurrences / reads_of_row
        return shares_of_reads

    def _gradients(self) -> Iterable[tuple[dict[str, Any], nn.Parameter, RowGroups, Tensor]]:
        """For each table its options, the table, its groups of ids and a gradient per id; ids are sorted only once."""
        grouped = list[tuple[Tensor, int, RowGroups]]()
        for group in self.param_groups:
            table = group["params"][0]
            if table.grad is None:
                continue
            if not table.grad.is_sparse:
                raise ConfigError(
                    "an embedding table with lazy updates must only be read by rows, found one that the "
                    "network uses as a whole: set embedding_update = 'dense'"
                )
            ids_N = table.grad._indices()[0]
            rows = _groups_of_equal_ids(grouped, ids_N, len(table))
            if rows is None:
                rows = group_rows(ids_N, len(table))
                grouped.append((ids_N, len(table), rows))
            yield group, table, rows, table.grad._values()


def _groups_of_equal_ids(
    grouped: Iterable[tuple[Tensor, int, RowGroups]], ids_N: Tensor, table_rows: int
) -> RowGroups | None:
    """The groups of equal ids of an equally large table, if there are any among those grouped before."""
    if ids_N.device.type != "cpu":  # comparing ids on a device would wait for it
        return None
    for other_ids, other_table_rows, groups in grouped:
        if other_table_rows == table_rows and torch.equal(other_ids, ids_N):
            return groups
    return None


def row_states(name: str, table: Tensor, start: float) -> dict[str, Tensor]:
    """What a lazy optimizer keeps for a table [R, D] before its first step, in the order of `RowRule`'s states.

    Names are PyTorch's; `start` is the initial value of Adagrad's sums.
    """
    if name == "adam":
        return {"exp_avg": table.new_zeros(table.shape), "exp_avg_sq": table.new_zeros(table.shape)}
    if name == "adagrad":
        return {"sum": table.new_full(table.shape, start)}
    if name == "rowwise_adagrad":
        return {"row_sum": table.new_full((len(table),), start)}
    return {}


class RunOptimizer:
    """The optimizer of all parameters in one run, with their L2; sets every embedding to dense or sparse gradients.

    L2 is `sum over named parameters of strength / 2 * sum of squares`, of embedding tables over all
    rows, or over the distinct ones that a batch touches (`l2_rows`); a lazy table's optimizer
    applies it to the rows that it updates.

    L2 over all rows of a lazily updated table is spread over the occurrences of each row: one that
    is expected n times in a batch gets `strength / n * row` at each occurrence, so that a step's L2
    is that of all rows in expectation.

    Args:
        network: the network.
        settings: those of the run.
        occurrences: the expected number of each row of the embedding tables in a batch [R], above 0
            for the rows that batches have; needed for L2 over all rows of lazily updated tables.

    Attributes:
        parameters: parameters updated by PyTorch's optimizer.
        dense: PyTorch's optimizer; None if there is no such parameter.
        lazy: the optimizer of large tables; None if there are none.

    Errors:
        ConfigError: lazy updates with L2 over all rows of a table without `occurrences`; L2 of a
            parameter that there is not.
    """

    def __init__(
        self, network: nn.Module, settings: TrainingSettings, occurrences: Tensor | None = None
    ) -> None:
        self.clip_norm = settings.clip_norm
        strengths = l2_strengths(network, settings.l2)
        l2 = {p: strengths[name] for name, p in network.named_parameters()}
        lazy_tables = _choose_lazy_tables(network, settings, l2)
        if any(lazy_tables.values()) and occurrences is None:
            setting = f"optimizer = {settings.optimizer!r}"
            if settings.embedding_update == "lazy":
                setting = "embedding_update = 'lazy'"
            raise ConfigError(
                f"{setting} updates only the rows of a batch, but l2 applies to all rows of an embedding table: give "
                "RunOptimizer the `occurrences` of the rows, set l2_rows = 'touched', or remove the table from l2"
            )

        # L2 of the parameters that are not lazy tables
        touched_tables = set[nn.Parameter]()
        if settings.l2_rows == "touched":
            touched_tables = {embedding.weight for embedding in field_embeddings(network)}
        strengths_of_dense = [
            (p, strength) for p, strength in l2.items() if strength != 0.0 and p not in lazy_tables
        ]
        self._l2_of_all = [item for item in strengths_of_dense if item[0] not in touched_tables]
        self._l2_of_touched = [item for item in strengths_of_dense if item[0] in touched_tables]

        curves = [embedding.curves for embedding in field_embeddings(network) if embedding.curves]
        self._curves = curves[:1]  # of all tables
        self.parameters = [p for p in network.parameters() if p not in lazy_tables]
        self.parts = dict[str, torch.optim.Optimizer]()
        self.dense: torch.optim.Optimizer | None = None
        self.lazy: LazyTables | None = None
        if self.parameters:
            self.dense = _dense_optimizer(self.parameters, settings)
            self.parts["dense"] = self.dense
        if lazy_tables:
            self.lazy = _lazy_optimizer(lazy_tables, l2, occurrences, settings)
            self.parts["lazy"] = self.lazy

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Options of all parameters, including `lr`; changes take effect in the next step."""
        return [group for part in self.parts.values() for group in part.param_groups]

    @torch.no_grad()
    def add_l2(self, batch: Batch) -> None:
        """Add L2's gradient to the parameters' gradients, in place, as autograd would; lazy tables do so in `step`."""
        if self.lazy is not None and self.lazy.spreads_l2:
            self.lazy.batch_ids = self._rows_read(batch)
        for p, strength in self._l2_of_all:
            if p.grad is None:
                p.grad = strength * p
            else:
                p.grad.add_(p, alpha=strength)
        # the distinct rows that a batch reads, of which other processes may have a part
        if self._l2_of_touched:
            rows = torch.unique(self._rows_read(batch)).long()
            for p, strength in self._l2_of_touched:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.index_add_(0, rows, p[rows], alpha=strength)

    def _rows_read(self, batch: Batch) -> Tensor:
        """The rows of the embedding tables that the whole batch reads: its ids, and once those of pieces."""
        ids = _ids_of_all_processes(batch)
        return torch.cat([ids, *(curves.rows.to(ids.dtype) for curves in self._curves)])

    def step(self) -> None:
        """Clip the gradients, if `clip_norm` is set, and update all parameters."""
        scale = 1.0  # of the lazy gradients; the dense ones are scaled before
        if self.clip_norm is not None and self.lazy is None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        elif self.clip_norm is not None and self.lazy is not None:
            gradients = [p.grad for p in self.parameters if p.grad is not None]
            norm_of_dense = float(nn.utils.get_total_norm(gradients))
            squares_of_lazy = math.fsum(self.lazy.squares_of_gradients())
            norm = math.sqrt(norm_of_dense**2 + squares_of_lazy)
            scale = min(self.clip_norm / (norm + 1e-6), 1.0)  # as in PyTorch's clip_grad_norm_
            if scale != 1.0:
                for gradient in gradients:
                    gradient.mul_(scale)
        if self.dense is not None:
            self.dense.step()
        if self.lazy is not None:
            self.lazy.step(scale=scale)

    def state_dict(self) -> dict[str, Any]:
        """The states of both parts."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def field_embeddings(network: nn.Module) -> list[FieldEmbedding]:
    """The embedding tables of a network."""
    return [module for module in network.modules() if isinstance(module, FieldEmbedding)]


def _choose_lazy_tables(
    network: nn.Module, settings: TrainingSettings, l2: Mapping[nn.Parameter, float]
) -> dict[nn.Parameter, bool]:
    """Set every embedding to dense or sparse gradients; returns the sparse ones, with whether L2 counts all rows."""
    optimizer = OPTIMIZERS[settings.optimizer]
    always = optimizer.rows_only or settings.embedding_update == "lazy"
    lazy_tables = dict[nn.Parameter, bool]()
    for embedding in field_embeddings(network):
        table = embedding.weight
        l2_of_all = settings.l2_rows == "all" and l2[table] > 0
        has_same_result = optimizer.same and not l2_of_all
        may_choose = settings.embedding_update == "auto" and has_same_result
        embedding.sparse = always or (may_choose and len(table) >= LARGE_TABLE)
        if embedding.sparse:
            lazy_tables[table] = l2_of_all
    return lazy_tables


def _lazy_optimizer(
    lazy_tables: Mapping[nn.Parameter, bool],
    l2: Mapping[nn.Parameter, float],
    occurrences: Tensor | None,
    settings: TrainingSettings,
) -> LazyTables:
    """The optimizer of large tables, of which `_choose_lazy_tables` says whether L2 counts all rows."""
    tables = list[tuple[nn.Parameter, float, Tensor | None]]()
    for table, l2_of_all in lazy_tables.items():
        shares = None
        if l2_of_all and occurrences is not None:
            shares = occurrences.reciprocal().to(table.dtype)
        tables.append((table, l2[table], shares))
    return LazyTables(
        tables,
        settings.optimizer,
        lr=settings.learning_rate,
        accumulator=settings.adagrad_accumulator,
    )


def _dense_optimizer(
    parameters: list[nn.Parameter], settings: TrainingSettings
) -> torch.optim.Optimizer:
    """PyTorch's optimizer; fused where it can be."""
    rate = settings.learning_rate
    is_fusible = all(p.device.type in ("cpu", "cuda") for p in parameters)
    fused = True if is_fusible else None
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, fused=fused)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=rate, fused=fused)
    return torch.optim.Adagrad(
        parameters,
        lr=rate,
        fused=fused,
        initial_accumulator_value=settings.adagrad_accumulator,
    )


def _ids_of_all_processes(batch: Batch) -> Tensor:
    """The ids of the whole batch, of which other processes may have a part."""
    return all_gather_rows(torch.cat([batch.ids.reshape(-1), batch.bag_ids]))


def has_spread_l2(settings: TrainingSettings) -> bool:
    """Whether L2 over all rows may have to be spread over the occurrences of rows in lazily updated tables."""
    rows_only = OPTIMIZERS[settings.optimizer].rows_only
    lazy = rows_only or settings.embedding_update == "lazy"
    return lazy and settings.l2_rows == "all" and any(settings.l2.values())


def l2_strengths(network: nn.Module, strengths: Mapping[str, float]) -> dict[str, float]:
    """The strength of every parameter by name, 0 if no pattern matches; the first match applies.

    In a mean with LR, as a warm start from one has it, the network's parameters also go by their
    names outside of it: `embedding.weight` is `network.embedding.weight` there.

    Errors:
        ConfigError: a pattern that matches no parameter.

    >>> l2_strengths(nn.Linear(1, 1), {"w*": 0.5})
    {'weight': 0.5, 'bias': 0.0}
    """
    in_mean = part_of_mean(network) is not network
    outside_mean = {name: name for name, _ in network.named_parameters()}
    if in_mean:
        outside_mean = {name: name.removeprefix(NETWORK) for name in outside_mean}
    for pattern in strengths:
        names = (*outside_mean, *outside_mean.values())
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = nearest(pattern, list(outside_mean.values()))
            raise ConfigError(
                f"l2 names parameter {pattern!r}, which the model does not have: {hint}"
            )

    strength_by_name = dict.fromkeys(outside_mean, 0.0)
    for name, outside in outside_mean.items():
        for pattern, strength in strengths.items():
            if fnmatchcase(name, pattern) or fnmatchcase(outside, pattern):
                strength_by_name[name] = strength
                break
    return strength_by_name

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
from fieldwise.layers import FieldEmbedding, kept_rows
from fieldwise.layout import Batch
from fieldwise.models.build import NETWORK, part_of_mean
from fieldwise.ops.rows import (
    RowGroups,
    RowRule,
    RuleName,
    group_rows,
    squares_of_rows,
    update_rows_,
)
from fieldwise.training.settings import OPTIMIZERS, TrainingSettings

LARGE_TABLE = 2**17  # rows: `auto` updates smaller tables as a whole, which is as fast


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
        tables = list(tables)
        self.batch_ids: Tensor | None = None
        self._shares = {table: shares for table, _, shares in tables}
        self._shares_of_reads: dict[nn.Parameter, Tensor] = {}
        groups = [{"params": [table], "l2": l2} for table, l2, _ in tables]
        super().__init__(groups, {"lr": lr, "accumulator": accumulator})

    @torch.no_grad()
    def step(self, closure: None = None, *, scale: float = 1.0) -> None:  # type: ignore[override]
        """Update the touched rows; `scale` is a factor for the gradients, including L2's."""
        for group, table, rows, grads_ND in self._gradients():
            state = self.state[table]
            if not state:
                state.update(
                    {"step": torch.zeros(()), **row_states(self.name, table, group["accumulator"])}
                )
            state["step"] += 1
            names = [name for name in state if name != "step"]
            rule = RowRule(
                name=self.name,
                rate=group["lr"],
                l2=group["l2"],
                scale=scale,
                eps=OPTIMIZERS[self.name].eps,
                step=int(state["step"]),
                shares=self.shares_of(table, rows),
            )
            update_rows_(table, [state[name] for name in names], rows, grads_ND, rule)

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
        occurring = group_rows(self.batch_ids, len(table))
        reads_U = reads.starts.diff()
        is_read_U = reads_U > 0
        rows = reads.distinct[is_read_U]
        places = torch.searchsorted(occurring.distinct, rows).clamp(max=len(occurring.distinct) - 1)
        # others are read by the network itself, whatever the batch
        in_batch = occurring.distinct[places] == rows
        occurrences = torch.where(in_batch, occurring.starts.diff()[places], reads_U[is_read_U])
        if table not in self._shares_of_reads:
            self._shares_of_reads[table] = torch.zeros_like(shares)
        result = self._shares_of_reads[table]
        result[rows.long()] = shares[rows.long()] * occurrences / reads_U[is_read_U]
        return result

    def _gradients(self) -> Iterable[tuple[dict[str, Any], nn.Parameter, RowGroups, Tensor]]:
        """For each table its options, the table, its groups of ids and a gradient per id; ids are sorted only once."""
        known: list[tuple[Tensor, int, RowGroups]] = []
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
            size = len(table)
            alike = (
                g
                for ids, of, g in known
                if of == size and ids_N.device.type == "cpu" and torch.equal(ids, ids_N)
            )
            rows = next(alike, None)  # comparing ids on a device would wait for it
            if rows is None:
                rows = group_rows(ids_N, size)
                known.append((ids_N, size, rows))
            yield group, table, rows, table.grad._values()


def row_states(name: str, table: Tensor, start: float) -> dict[str, Tensor]:
    """What a lazy optimizer keeps for a table [R, D] before its first step, in the order of `RowRule`'s states.

    Names are PyTorch's; `start` is the initial value of Adagrad's sums.
    """
    if name == "adam":
        return {"exp_avg": table.new_zeros(table.shape), "exp_avg_sq": table.new_zeros(table.shape)}
    if name == "adagrad":
        return {"sum": table.new_full(table.shape, start)}
    return {"row_sum": table.new_full((len(table),), start)} if name == "rowwise_adagrad" else {}


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
        strengths = l2_strengths(network, settings.l2)
        tables = dict[int, tuple[nn.Parameter, float]]()
        l2 = {id(p): (p, strengths[name]) for name, p in network.named_parameters()}
        touched = set()  # of which L2 counts the rows of a batch
        spread = set()  # of which L2 counts all rows
        rule = OPTIMIZERS[settings.optimizer]
        update = settings.embedding_update
        for module in network.modules():
            if not isinstance(module, FieldEmbedding):
                continue
            key = id(module.weight)
            l2_of_all = settings.l2_rows == "all" and l2[key][1] > 0
            module.sparse = rule.rows_only or update == "lazy"
            if update == "auto" and not rule.rows_only:  # if the result is the same
                module.sparse = rule.same and not l2_of_all and len(module.weight) >= LARGE_TABLE
            if not module.sparse:
                if settings.l2_rows == "touched":
                    touched.add(key)
                continue
            tables[key] = l2[key]
            if l2_of_all:
                spread.add(key)
        if spread and occurrences is None:
            how = (
                "embedding_update = 'lazy'"
                if update == "lazy"
                else f"optimizer = {settings.optimizer!r}"
            )
            raise ConfigError(
                f"{how} updates only the rows of a batch, but l2 applies to all rows of an embedding table: give "
                "RunOptimizer the `occurrences` of the rows, set l2_rows = 'touched', or remove the table from l2"
            )
        punished = {key: of for key, of in l2.items() if of[1] != 0.0 and key not in tables}
        self._l2 = [of for key, of in punished.items() if key not in touched]
        self._l2_touched = [of for key, of in punished.items() if key in touched]
        name = settings.optimizer
        rate = settings.learning_rate
        start = settings.adagrad_accumulator
        self.parameters = [p for p in network.parameters() if id(p) not in tables]
        self.clip_norm = settings.clip_norm
        self.parts = dict[str, torch.optim.Optimizer]()
        self.dense: torch.optim.Optimizer | None = None
        self.lazy: LazyTables | None = None
        if self.parameters:
            fused = True if all(p.device.type in ("cpu", "cuda") for p in self.parameters) else None
            options: dict[str, Any] = (
                {} if name in ("adam", "sgd") else {"initial_accumulator_value": start}
            )
            kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}.get(name, torch.optim.Adagrad)
            self.parts["dense"] = self.dense = kind(
                self.parameters, lr=rate, fused=fused, **options
            )
        if tables:
            shares = None if occurrences is None else occurrences.reciprocal()
            spread_tables = [
                (
                    table,
                    strength,
                    shares.to(table.dtype) if shares is not None and key in spread else None,
                )
                for key, (table, strength) in tables.items()
            ]
            self.parts["lazy"] = self.lazy = LazyTables(
                spread_tables, name, lr=rate, accumulator=start
            )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Options of all parameters, including `lr`; changes take effect in the next step."""
        return [group for part in self.parts.values() for group in part.param_groups]

    @torch.no_grad()
    def add_l2(self, batch: Batch) -> None:
        """Add L2's gradient to the parameters' gradients, in place, as autograd would; lazy tables do so in `step`."""
        if self.lazy is not None and self.lazy.spreads_l2:
            self.lazy.batch_ids = all_gather_rows(torch.cat([batch.ids.reshape(-1), batch.bag_ids]))
        for p, strength in self._l2:
            if p.grad is None:
                p.grad = strength * p
            else:
                p.grad.add_(p, alpha=strength)
        # the distinct rows that a batch reads, of which other processes may have a part
        if self._l2_touched:
            rows = torch.unique(
                all_gather_rows(torch.cat([batch.ids.reshape(-1), batch.bag_ids]))
            ).long()
            for p, strength in self._l2_touched:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
                p.grad.index_add_(0, rows, p[rows], alpha=strength)

    def step(self) -> None:
        """Clip the gradients, if `clip_norm` is set, and update all parameters."""
        scale = 1.0  # of the lazy gradients; the dense ones are scaled here
        if self.clip_norm is not None and self.lazy is None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        elif self.clip_norm is not None and self.lazy is not None:
            norm = float(
                nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
            )
            with torch.no_grad():  # summed by row, including L2's
                squares = [
                    squares_of_rows(
                        table, groups, grads, of["l2"], self.lazy.shares_of(table, groups)
                    )
                    for of, table, groups, grads in self.lazy._gradients()
                ]
                norm = math.sqrt(norm**2 + math.fsum(squares))
            scale = min(self.clip_norm / (norm + 1e-6), 1.0)  # as in PyTorch's clip_grad_norm_
            for p in self.parameters if scale != 1.0 else ():
                if p.grad is not None:
                    p.grad.mul_(scale)
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

    def take_states(self, former: "RunOptimizer", before: nn.Module, network: nn.Module) -> None:
        """Take what another optimizer keeps of `before`, of which `network` has grown: the start of continued training.

        Rows of new values start as at a first step: moments from zero, Adagrad's sums from its
        accumulator. Counts of steps go on. `Training` does not call it, since each of its runs
        begins with a new optimizer: it is for a loop of your own, which trains a bundle on,
        `Bundle.grow` after `Bundle.grow`.

        Args:
            former: the optimizer of `before`, with the same settings.
            before: the network before its growth.
            network: the grown network, whose optimizer this is.

        Errors:
            ConfigError: a network that did not grow from `before` (`fieldwise.layers.kept_rows`).

        >>> from fieldwise.layout import Layout
        >>> before, network = (FieldEmbedding(Layout.of_sizes([n]), 2) for n in (2, 3))
        >>> first, second = (RunOptimizer(one, TrainingSettings(l2={})) for one in (before, network))
        >>> before.weight.grad = torch.ones(2, 2)
        >>> first.step()
        >>> second.take_states(first, before, network)
        >>> second.dense.state[network.weight]["exp_avg"]
        tensor([[0.1000, 0.1000],
                [0.1000, 0.1000],
                [0.0000, 0.0000]])
        """
        kept = kept_rows(before, network)
        states = {p: state for part in former.parts.values() for p, state in part.state.items()}
        now = {
            p: (part, g)
            for part in self.parts.values()
            for g in part.param_groups
            for p in g["params"]
        }
        for (name, old), new in zip(before.named_parameters(), network.parameters(), strict=True):
            part, group = now[new]
            sums = group.get("accumulator", group.get("initial_accumulator_value", 0.0))
            for key, value in states.get(old, {}).items():
                held = value.clone()
                if name in kept and key != "step":
                    held = value.new_full(
                        (len(new), *value.shape[1:]), sums if key.endswith("sum") else 0.0
                    )
                    held[kept[name]] = value
                part.state[new][key] = held


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
    names = {
        name: _names_in_settings(name, in_mean=in_mean) for name, _ in network.named_parameters()
    }
    for pattern in strengths:
        if not any(_matches(known, pattern) for known in names.values()):
            hint = nearest(pattern, [known[-1] for known in names.values()])
            raise ConfigError(
                f"l2 names parameter {pattern!r}, which the model does not have: {hint}"
            )
    return {
        name: next(
            (strength for pattern, strength in strengths.items() if _matches(known, pattern)), 0.0
        )
        for name, known in names.items()
    }


def _names_in_settings(name: str, *, in_mean: bool) -> list[str]:
    """The names by which settings may call a parameter: its own; in a mean with LR also that within the network."""
    if in_mean and name.startswith(NETWORK):
        return [name, name.removeprefix(NETWORK)]
    return [name]


def _matches(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)

"""The in-batch softmax of two towers: each positive beside the other positives' items and uniformly drawn ones.

Letters: B rows of a batch, P positive rows of it, C distinct items among the candidates, I items.
"""

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.distributed.process_group import ProcessGroup
from fieldwise.errors import ConfigError
from fieldwise.layout import Batch, Layout
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings


@runtime_checkable
class ScoresAllItems(Protocol):
    """Interface of two-tower networks that score every user with every item of a batch."""

    def user(self, batch: Batch, /) -> Tensor:
        """Representations of the rows' users in their contexts [B, ...]."""
        ...

    def item(self, batch: Batch, /) -> Tensor:
        """Representations of the rows' items [C, ...]."""
        ...

    def score_all(self, user: Tensor, item: Tensor, /) -> Tensor:
        """The logits [B, C] of every user with every item."""
        ...


class InBatchSoftmax:
    """The sum over positive rows of `-log softmax` of their item among the candidates, over B.

    Candidates are the items of the batch's positive rows, and as many items of the training rows as
    the batch has rows, drawn uniformly (mixed negative sampling, Yang et al., WWW 2020). From each
    logit the log of how often its item is expected among the candidates is taken, `log(P p_j + B /
    I)` with the item's share p_j of positive rows (the log-Q correction of Yi et al., RecSys 2019),
    so that popular items are not pushed down for being drawn often. An item that the row's user has
    in another positive training row is no candidate.

    An item is a value of the item field with the most values, a user one of such a user field; an
    item's other fields are those of its last training row.

    Errors:
        ConfigError: a network without `score_all`, or no such field.
    """

    def __init__(self, network: nn.Module, train: EncodedTable) -> None:
        if not isinstance(network, ScoresAllItems):
            raise ConfigError(
                "training.loss = 'in_batch_softmax' needs a two-tower model (dssm, dat, inttower), found "
                f"{type(network).__name__}: choose one, or another loss"
            )
        self.network = network
        self.train = train
        self.user_column = _id_column(train.layout, "user")
        self.item_column = _id_column(train.layout, "item")
        users = train.ids[:, self.user_column].astype(np.int64)
        items = train.ids[:, self.item_column].astype(np.int64)
        is_positive = train.targets[:, 0] > 0
        size = train.layout.num_rows
        self.last_row = np.full(size, -1)
        self.last_row[items] = np.arange(len(items))
        self.known_items = torch.from_numpy(np.flatnonzero(self.last_row >= 0))
        rows_of_item = np.bincount(items[is_positive], minlength=size)
        self.share = torch.from_numpy(rows_of_item / max(1, is_positive.sum()))
        pairs = np.unique(users[is_positive] * size + items[is_positive])
        self.items_of_users = torch.from_numpy(pairs % size)
        self.first_of_user = torch.from_numpy(np.searchsorted(pairs // size, np.arange(size + 1)))

    def __call__(self, read: Batch, batch: Batch, y: Tensor, weight: Tensor | None) -> Tensor:
        """The loss of a batch; `read` are its rows before values are replaced by unknown ones."""
        positive = torch.nonzero(y > 0)[:, 0]
        users = read.ids[positive, self.user_column].cpu().long()
        items = read.ids[positive, self.item_column].cpu().long()
        drawn = self.known_items[torch.randint(len(self.known_items), (batch.size,))]
        candidates, copies = torch.unique(torch.cat([items, drawn]), return_counts=True)
        column = torch.searchsorted(candidates, items)

        expected = len(items) * self.share[candidates] + batch.size / len(self.known_items)
        offset_PC = (copies.log() - expected.log()).repeat(len(items), 1)
        offset_PC[self._also_positive(users, candidates)] = -torch.inf
        rows = torch.arange(len(items))
        offset_PC[rows, column] = -expected.log()[
            column
        ]  # one copy: the others are of the same item

        last_rows = torch.from_numpy(self.last_row[candidates.numpy()])
        item_batch = self.train.batch(last_rows)[0].to(y.device)
        user = self.network.user(batch)[positive]
        score_PC = self.network.score_all(user, self.network.item(item_batch))
        logit_PC = score_PC + offset_PC.to(score_PC)
        column = column.to(y.device)
        loss: Tensor = logit_PC.logsumexp(1) - logit_PC[rows.to(y.device), column]
        if weight is not None:
            loss = loss * weight[positive]
        return loss.sum() / batch.size

    def _also_positive(self, users: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """The places [P, C] of items that a row's user has in some positive training row."""
        first = self.first_of_user[users]
        lengths = self.first_of_user[users + 1] - first
        row = torch.arange(len(users)).repeat_interleave(lengths)
        number = torch.arange(len(row)) - (lengths.cumsum(0) - lengths)[row]
        items = self.items_of_users[first[row] + number]
        position = torch.searchsorted(candidates, items).clamp(max=len(candidates) - 1)
        is_candidate = candidates[position] == items
        return row[is_candidate], position[is_candidate]


def in_batch_softmax(
    network: nn.Module,
    train: EncodedTable,
    settings: TrainingSettings,
    objective: Objective,
    group: ProcessGroup | None,
) -> InBatchSoftmax | None:
    """The loss, if the settings name it; a ConfigError for several labels, a regression, or several processes."""
    if settings.loss != "in_batch_softmax":
        return None
    if objective.more or objective.task != "binary":
        raise ConfigError(
            "training.loss = 'in_batch_softmax' needs one binary label, found several or a regression: set 'logloss'"
        )
    if group is not None:
        raise ConfigError(
            f"training.loss = 'in_batch_softmax' compares all rows of a batch, which {group.size} processes share: "
            "train in one process, or set 'logloss'"
        )
    return InBatchSoftmax(network, train)


def _id_column(layout: Layout, role: str) -> int:
    """The column of a table's `ids` with the categorical field of a role that has the most values."""
    single_valued = layout.single_fields
    columns = [k for k, f in enumerate(single_valued) if f.kind == "id" and f.role == role]
    if not columns:
        raise ConfigError(
            f"training.loss = 'in_batch_softmax' needs a categorical field with role = {role!r}, found none: give the "
            f"id of the {role} as a field"
        )
    return max(columns, key=lambda k: single_valued[k].rows)

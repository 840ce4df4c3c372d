"""Embeddings: from a batch's ids, values and bags to one vector per field.

Letters: B batch, F fields, S fields of kind `id` or `value`, V of kind `value`, G bags, N bag values, D embedding size,
R rows of the shared table.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from fieldwise.layers.pooling import BagPooling
from fieldwise.layout import Batch, Layout
from fieldwise.ops.rows import gather_rows

__all__ = ["Assembled", "FieldEmbedding", "FirstOrder"]


class Assembled(ABC):
    """Interface of batches whose rows share fields, which compute their vectors without a lookup per row."""

    @abstractmethod
    def vectors(self, embedding: "FieldEmbedding") -> Tensor:
        """The output of `embedding` for the rows [B, F, D]."""


class FieldEmbedding(nn.Module):
    """One table for all fields; every field of a row becomes one vector, in the layout's order.

    A category is a row of the table, a number its field's row times the number, a bag its values' rows pooled by
    mean, sum or max (zeros for an empty bag). With categorical fields only, this is one lookup.

    Args:
        layout: the encoded fields.
        dim: D.
        std: the table is initialised from N(0, std^2); with zeros if 0.
        by_field: a row's entries belong to the other fields one after another (FFM), so that a row is valid only with
            the same other fields; read by warm starts.

    Shape:
        forward: Batch of B rows -> [B, F, D]. `weight`: [R, D].

    `sparse` is the form of the table's gradient: a tensor [R, D] if False, a sparse tensor of the rows that were read
    if True, for `fieldwise.training.optimizers.LazyTables`. Training sets it.

    >>> embedding = FieldEmbedding(Layout.of_sizes([3, 4]), 8)
    >>> embedding(Batch.of_ids(torch.tensor([[0, 3], [2, 6]]))).shape
    torch.Size([2, 2, 8])
    """

    value_positions: Tensor
    order: Tensor

    def __init__(self, layout: Layout, dim: int, *, std: float = 0.01, by_field: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layout.num_rows, dim))
        nn.init.normal_(self.weight, std=std)
        self.by_field = by_field
        self.sparse = False
        bags = layout.positions(kind="bag")
        singles = [i for i, f in enumerate(layout.fields) if f.kind != "bag"]
        value_positions = [s for s, i in enumerate(singles) if layout.fields[i].kind == "value"]
        self.num_bags = len(bags)
        self.has_values = bool(value_positions)
        self.pooling = BagPooling([layout.fields[i].pooling == "max" for i in bags])
        order = sorted(range(len(singles) + len(bags)), key=(singles + bags).__getitem__)
        self.reorders = order != sorted(order)
        self.register_buffer("value_positions", torch.tensor(value_positions, dtype=torch.int64), persistent=False)
        self.register_buffer("order", torch.tensor(order, dtype=torch.int64), persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """The vectors of the fields [B, F, D]."""
        if isinstance(batch, Assembled):
            return batch.vectors(self)
        x_BSD = self.rows(batch.ids)
        if self.has_values:
            factors_BS = x_BSD.new_ones(batch.ids.shape)
            factors_BS = factors_BS.index_copy(1, self.value_positions, batch.values.to(x_BSD.dtype))
            x_BSD = x_BSD * factors_BS.unsqueeze(2)
        if self.num_bags == 0:
            return x_BSD
        x_BFD = torch.cat([x_BSD, self.pooling(self.rows(batch.bag_ids), batch)], 1)
        return x_BFD.index_select(1, self.order) if self.reorders else x_BFD

    def rows(self, ids: Tensor) -> Tensor:
        """The table's rows by id: [*] -> [*, D]."""
        return gather_rows(self.weight, ids, sparse=self.sparse)


class FirstOrder(nn.Module):
    """`w0 + sum_f w_f(x)`: one weight per row of the table, times the value of a numeric field, pooled over a bag.

    Args:
        layout: the encoded fields.
        bias: whether there is a w0.

    Shape:
        forward: Batch of B rows -> [B].

    >>> sum(p.numel() for p in FirstOrder(Layout.of_sizes([3, 4])).parameters())
    8
    """

    def __init__(self, layout: Layout, *, bias: bool = True) -> None:
        super().__init__()
        self.embedding = FieldEmbedding(layout, 1, std=0.0)
        self.bias = nn.Parameter(torch.zeros(())) if bias else None

    def forward(self, batch: Batch) -> Tensor:
        """The first-order term [B]."""
        sum_B: Tensor = self.embedding(batch).sum((1, 2))
        return sum_B if self.bias is None else sum_B + self.bias

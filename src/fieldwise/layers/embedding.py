"""Embeddings: from a batch's ids, values and bags to one vector per field.

Letters: B batch, F fields, S fields of kind `id` or `value`, V of kind `value`, G bags, N bag values, M = B times G,
C chosen fields, D embedding size, R rows of the shared table.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.layout import Batch, Layout
from fieldwise.ops.rows import gather_rows

__all__ = ["Assembled", "BagPooling", "FieldEmbedding", "FirstOrder", "SubsetEmbedding"]


class BagPooling(nn.Module):
    """One vector per bag: the maximum of its values' vectors, or their sum with the batch's weights (mean, sum).

    Args:
        by_max: for every bag of a row whether it is pooled by maximum.

    Shape:
        forward: the values' vectors [N, D] and their batch -> [B, G, D]; zeros for an empty bag.

    >>> batch = Batch.of_ids(torch.zeros(1, 0, dtype=torch.int64))
    >>> BagPooling([True, False])(torch.ones(0, 3), batch)
    tensor([[[0., 0., 0.],
             [0., 0., 0.]]])
    """

    def __init__(self, by_max: Sequence[bool]) -> None:
        super().__init__()
        self.bags, self.has_max, self.has_sum = len(by_max), any(by_max), not all(by_max)
        self.by_max = nn.Buffer(torch.tensor(by_max, dtype=torch.bool), persistent=False)

    def forward(self, v_ND: Tensor, batch: Batch) -> Tensor:
        """The bags' vectors [B, G, D]."""
        rows, dim = batch.ids.shape[0], v_ND.shape[1]
        zeros_MD = v_ND.new_zeros(rows * self.bags, dim)
        summed_MD = greatest_MD = zeros_MD
        if self.has_sum:
            weighted_ND = v_ND * batch.bag_weights.to(v_ND.dtype).unsqueeze(1)
            summed_MD = zeros_MD.index_add(0, batch.bag_segments, weighted_ND)
        if self.has_max:
            index_ND = batch.bag_segments.unsqueeze(1).expand(-1, dim)
            greatest_MD = zeros_MD.scatter_reduce(0, index_ND, v_ND, "amax", include_self=False)
        if not self.has_max:
            return summed_MD.view(rows, self.bags, dim)
        greatest_BGD = greatest_MD.view(rows, self.bags, dim)
        if not self.has_sum:
            return greatest_BGD
        return torch.where(self.by_max.view(1, -1, 1), greatest_BGD, summed_MD.view(rows, self.bags, dim))


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

    def __init__(self, layout: Layout, dim: int, *, std: float = 0.01, by_field: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layout.num_rows, dim))
        if not self.weight.is_meta:  # there it would load PyTorch's compiler, which takes seconds
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
        self.value_positions = nn.Buffer(torch.tensor(value_positions, dtype=torch.int64), persistent=False)
        self.order = nn.Buffer(torch.tensor(order, dtype=torch.int64), persistent=False)

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

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """The `first_order` terms [B, F], and the `bias` [B] if there is one."""
        terms = {"first_order": self.embedding(batch).squeeze(2)}
        return terms if self.bias is None else {"bias": self.bias.expand(batch.size), **terms}


class SubsetEmbedding(nn.Module):
    """One vector for each chosen field, as `FieldEmbedding`'s, but from a table of these fields' rows alone.

    The table holds the fields' rows in the order in which they are chosen; chosen fields that share rows share them
    here too. It is not a `FieldEmbedding`, since a row id of the shared table is not a row of this one.

    Args:
        layout: the encoded fields.
        names: the chosen fields, at least one, each once.
        dim: D.
        std: the table starts from N(0, std^2).

    Shape:
        forward: Batch of B rows -> [B, C, D], in the order of `names`.

    >>> SubsetEmbedding(Layout.of_sizes([3, 4]), ("field_1",), 8).weight.shape
    torch.Size([4, 8])
    """

    columns: Tensor
    shifts: Tensor
    value_positions: Tensor
    bag_shifts: Tensor
    order: Tensor

    by_value = True  # a row of `weight` belongs to a value of the vocabulary: warm starts ask
    reads_rows = True  # a table beside `FieldEmbedding`: integrated gradients ask

    def __init__(self, layout: Layout, names: Sequence[str], dim: int, *, std: float = 0.01) -> None:
        super().__init__()
        fields = layout.fields
        place = {f.name: i for i, f in enumerate(fields)}
        chosen = [place[name] for name in names]
        starts: dict[tuple[int, int], int] = {}
        rows = 0
        for f in (fields[i] for i in chosen):
            if (f.offset, f.rows) not in starts:
                starts[f.offset, f.rows] = rows
                rows += f.rows
        shift = {i: fields[i].offset - starts[fields[i].offset, fields[i].rows] for i in chosen}
        bags = layout.positions(kind="bag")
        singles = [i for i in range(len(fields)) if i not in bags]
        own_singles = [i for i in chosen if i in singles]
        self.has_singles, self.num_bags = bool(own_singles), len(bags) if set(bags) & set(chosen) else 0
        self.weight = nn.Parameter(torch.empty(rows, dim))
        nn.init.normal_(self.weight, std=std)
        self.pooling = BagPooling([fields[i].pooling == "max" for i in bags])
        indices = {
            "columns": [singles.index(i) for i in own_singles],
            "shifts": [shift[i] for i in own_singles],
            "value_positions": [s for s, i in enumerate(singles) if fields[i].kind == "value"],
            "bag_shifts": [shift.get(i, 0) for i in bags],
            "order": [(own_singles + bags).index(i) for i in chosen],
        }
        for name, index in indices.items():
            self.register_buffer(name, torch.tensor(index, dtype=torch.int64), persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        """The chosen fields' vectors [B, C, D]."""
        parts = []
        if self.has_singles:
            x_BSD = gather_rows(self.weight, batch.ids.index_select(1, self.columns) - self.shifts)
            ones = x_BSD.new_ones(batch.ids.shape)
            factors = ones.index_copy(1, self.value_positions, batch.values.to(x_BSD.dtype))
            parts.append(x_BSD * factors.index_select(1, self.columns).unsqueeze(2))
        if self.num_bags:
            parts.append(self._pool(batch))
        return torch.cat(parts, 1).index_select(1, self.order)

    def _pool(self, batch: Batch) -> Tensor:
        """All bags [B, G, D]; the vectors of those that are not chosen are not used."""
        shift_N = self.bag_shifts.index_select(0, batch.bag_segments % self.num_bags)
        v_ND = gather_rows(self.weight, (batch.bag_ids - shift_N).clamp(0, self.weight.shape[0] - 1))
        pooled_BGD: Tensor = self.pooling(v_ND, batch)
        return pooled_BGD

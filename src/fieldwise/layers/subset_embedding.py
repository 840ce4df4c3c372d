"""An own table for some of the fields, beside the shared one.

Letters: B batch, C chosen fields, S of them single-valued, G bags of the layout, N values of bags,
D embedding size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.layers.pooling import BagPooling
from fieldwise.layout import Batch, Layout
from fieldwise.ops.rows import gather_rows

__all__ = ["SubsetEmbedding"]


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

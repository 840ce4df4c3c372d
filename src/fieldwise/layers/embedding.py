"""Embeddings: from a batch's ids, values, vectors and bags to one vector per field.

Letters: B batch, F fields, S fields of kind `id`, `value` or `vector`, V of kind `value`, G bags, N
bag values, M = B times G, C chosen fields, D embedding size, R rows of the shared table, P vector
fields, K numbers of a vector.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.layout import Batch, FieldLayout, Layout, check_batch
from fieldwise.ops.rows import gather_rows

HIDDEN_PER_DIM = 4
"""Hidden units of a vector's MLP for each number of its embedding."""


LEAST_LENGTH = 1e-12
"""By which a vector of zeros is divided."""


def index_buffer(numbers: Sequence[int] | np.ndarray) -> nn.Buffer:
    """Positions or rows as a buffer, int64, that a state does not hold."""
    return nn.Buffer(torch.as_tensor(numbers, dtype=torch.int64), persistent=False)


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
        self.bags = len(by_max)
        self.has_max = any(by_max)
        self.has_sum = not all(by_max)
        self.by_max = nn.Buffer(torch.tensor(by_max, dtype=torch.bool), persistent=False)

    def forward(self, v_ND: Tensor, batch: Batch) -> Tensor:
        rows = batch.ids.shape[0]
        dim = v_ND.shape[1]
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
        return torch.where(
            self.by_max.view(1, -1, 1), greatest_BGD, summed_MD.view(rows, self.bags, dim)
        )


class VectorProjection(nn.Module):
    """`W s v` of a field's vector v, or `W2 relu(W1 s v + b)` for `mlp`; s is the field's scale, or 1 / |v|.

    The field's row of the shared table is added to it, as its bias.

    Args:
        field: a field of kind `vector`.
        dim: D.
        std: a projected vector starts with about this standard deviation; 0: it is linear, and W
            starts at 0.

    Shape:
        forward: [B, K] -> [B, D]. `weight`: [D, K], or [D, 4 D] with `hidden`: [4 D, K].

    >>> field = FieldLayout(name="text", kind="vector", role="item", offset=0, rows=2, width=8, projection="mlp")
    >>> VectorProjection(field, 4, std=0.01)(torch.ones(3, 8)).shape
    torch.Size([3, 4])
    """

    def __init__(self, field: FieldLayout, dim: int, *, std: float) -> None:
        super().__init__()
        self.scale = None if field.normalise else field.scale
        inputs = field.width
        self.hidden = None
        if field.projection == "mlp" and std:
            inputs = HIDDEN_PER_DIM * dim
            self.hidden = nn.Linear(field.width, inputs)
            std *= math.sqrt(2 / max(inputs, 1))
            if not self.hidden.weight.is_meta:
                nn.init.normal_(self.hidden.weight)
                nn.init.zeros_(self.hidden.bias)
        self.weight = nn.Parameter(torch.empty(dim, inputs))
        if not self.weight.is_meta:
            nn.init.normal_(self.weight, std=std)

    def forward(self, v_BK: Tensor) -> Tensor:
        v_BK = v_BK.to(self.weight.dtype)
        if self.hidden is None:
            return self._scaled_product(v_BK, self.weight)
        hidden_BH = self._scaled_product(v_BK, self.hidden.weight) + self.hidden.bias
        return F.linear(hidden_BH.relu(), self.weight)

    def _scaled_product(self, v_BK: Tensor, weight: Tensor) -> Tensor:
        """`W s v`; the product is scaled, since the vectors are much longer."""
        product = F.linear(v_BK, weight)
        if self.scale is not None:
            return product * self.scale
        return product / v_BK.norm(dim=1, keepdim=True).clamp(min=LEAST_LENGTH)


class VectorProjections(nn.Module):
    """The projections of vector fields.

    Args:
        layout: the encoded fields.
        singles: positions in the layout of the fields with one id that are read; the vector fields
            among them are projected.
        projection: makes or finds the projection of a field.

    `positions` has the places of the vector fields among `singles`.

    Shape:
        forward: Batch of B rows -> [B, P, D].
    """

    def __init__(
        self,
        layout: Layout,
        singles: Sequence[int],
        projection: Callable[[FieldLayout], nn.Module],
    ) -> None:
        super().__init__()
        places = [k for k, i in enumerate(singles) if layout.fields[i].kind == "vector"]
        fields = [layout.fields[singles[k]] for k in places]
        self.names = [f.name for f in fields]
        self.columns = [layout.number_columns[singles[k]] for k in places]
        self.projections = nn.ModuleList(projection(f) for f in fields)
        self.positions = index_buffer(places)

    def forward(self, batch: Batch) -> Tensor:
        projected = [
            projection(batch.values[:, columns])
            for projection, columns in zip(self.projections, self.columns, strict=True)
        ]
        return torch.stack(projected, dim=1)


class PiecewiseLinear(nn.Module):
    """`sum_k clip(t - k, 0, 1) v_k` of the position t of each piecewise linear number, v_k the vector of piece k.

    It is the product of a matrix with the piecewise linear encoding of Gorishniy et al. (2022,
    Equation 1). The row of a field's start is added to it, as its bias.

    Args:
        layout: the encoded fields.
        singles: positions in the layout of the fields with one id that are read.

    `positions` has the places of the piecewise linear fields among `singles`; `rows` the rows of
    the table [Q] that their pieces have, one field after another.

    Shape:
        forward: the vectors of these rows [Q, D], and Batch of B rows -> [B, C, D].
    """

    def __init__(self, layout: Layout, singles: Sequence[int]) -> None:
        super().__init__()
        places = [k for k, i in enumerate(singles) if layout.fields[i].piecewise]
        rows = [layout.fields[singles[k]].piece_rows() for k in places]
        first_pieces = np.cumsum([0, *map(len, rows)])
        numbers = np.arange(max(map(len, rows)))
        pieces = [
            # A field with fewer pieces repeats its last one, which no position reaches again.
            first + numbers.clip(max=len(piece_rows) - 1)
            for first, piece_rows in zip(first_pieces, rows, strict=False)
        ]
        self.positions = index_buffer(places)
        self.columns = index_buffer([layout.number_columns[singles[k]].start for k in places])
        self.rows = index_buffer(np.concatenate(rows))
        self.pieces = index_buffer(np.stack(pieces))
        self.numbers = index_buffer(numbers)

    def forward(self, v_QD: Tensor, batch: Batch) -> Tensor:
        t_BC = batch.values.index_select(1, self.columns)
        shares_BCK = (t_BC.unsqueeze(2) - self.numbers).clamp(0.0, 1.0)
        return torch.einsum("bck,ckd->bcd", shares_BCK.to(v_QD.dtype), v_QD[self.pieces])


def _add_at(x_BSD: Tensor, positions: Tensor, terms_BCD: Tensor) -> Tensor:
    """The vectors with terms added to those at some positions.

    `index_add` at all positions would lose the vectors in an ONNX export, whose optimizer takes it
    for a copy.
    """
    return x_BSD + torch.zeros_like(x_BSD).index_copy(1, positions, terms_BCD.to(x_BSD.dtype))


class Assembled(ABC):
    """Interface of batches whose rows share fields, which compute their vectors without a lookup per row."""

    @abstractmethod
    def vectors(self, embedding: "FieldEmbedding") -> Tensor:
        """The output of `embedding` for the rows [B, F, D]."""


class FieldEmbedding(nn.Module):
    """One table for all fields; every field of a row becomes one vector, in the layout's order.

    A category is a row of the table, a number its field's row times the number, a piecewise linear
    one the row of its start plus the sum over its pieces (`PiecewiseLinear`), a bag its values'
    rows pooled by mean, sum or max (zeros for an empty bag), a vector its field's row plus the
    vector's projection (`VectorProjection`). With categorical fields only, this is one lookup.

    Args:
        layout: the encoded fields.
        dim: D.
        std: the table is initialised from N(0, std^2); with zeros if 0.
        by_field: each row consists of one block per other field (FFM), so that it is valid only
            with the same other fields; read by warm starts.
        projection: finds the projection of a vector field; each gets a new one if omitted.

    Shape:
        forward: Batch of B rows -> [B, F, D]. `weight`: [R, D].

    `sparse` is the form of the table's gradient: a tensor [R, D] if False, a sparse tensor of the
    rows that were read if True, for `fieldwise.training.optimizers.LazyTables`. Training sets it.
    `row_blocks` is as for the function `row_blocks`.

    >>> embedding = FieldEmbedding(Layout.of_sizes([3, 4]), 8)
    >>> embedding(Batch.of_ids(torch.tensor([[0, 3], [2, 6]]))).shape
    torch.Size([2, 2, 8])
    """

    def __init__(
        self,
        layout: Layout,
        dim: int,
        *,
        std: float = 0.01,
        by_field: bool = False,
        projection: Callable[[FieldLayout], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(layout.num_rows, dim))
        if not self.weight.is_meta:  # there it would load PyTorch's compiler, which takes seconds
            nn.init.normal_(self.weight, std=std)
        self.layout = layout
        self.row_blocks = [(layout.num_rows,)]
        self.by_field = by_field
        self.sparse = False
        bags = layout.positions(kind="bag")
        singles = layout.single_positions
        factors = layout.factors
        value_positions = [s for s, i in enumerate(singles) if i in factors]
        self.num_bags = len(bags)
        self.has_values = bool(value_positions)
        self.pooling = BagPooling([layout.fields[i].pooling == "max" for i in bags])
        order = sorted(range(len(singles) + len(bags)), key=(singles + bags).__getitem__)
        self.reorders = order != sorted(order)
        self.value_positions = index_buffer(value_positions)
        self.order = index_buffer(order)
        self.vectors: VectorProjections | None = None
        if layout.positions(kind="vector"):
            make = projection or partial(VectorProjection, dim=dim, std=std)
            self.vectors = VectorProjections(layout, singles, make)
        self.curves: PiecewiseLinear | None = None
        if any(f.piecewise for f in layout.fields):
            self.curves = PiecewiseLinear(layout, singles)
        value_columns = [layout.number_columns[i].start for i in factors]
        self.value_columns = index_buffer(value_columns)

    def of_fields(self, layout: Layout) -> "FieldEmbedding":
        """An embedding of some of the fields, with the same table and projections."""
        of_name: dict[str, nn.Module] = {}
        if self.vectors is not None:
            of_name = dict(zip(self.vectors.names, self.vectors.projections, strict=True))
        # a table without columns costs nothing; the real one replaces it
        reader = FieldEmbedding(layout, 0, projection=lambda f: of_name[f.name])
        reader.weight = self.weight
        return reader.to(self.weight.device)

    def forward(self, batch: Batch) -> Tensor:
        if isinstance(batch, Assembled):
            return batch.vectors(self)
        check_batch(batch, self.layout)
        x_BSD = self.rows(batch.ids)
        if self.has_values:
            values_BV = batch.values
            if self.vectors is not None or self.curves is not None:
                values_BV = values_BV.index_select(1, self.value_columns)
            factors_BS = x_BSD.new_ones(batch.ids.shape)
            factors_BS = factors_BS.index_copy(1, self.value_positions, values_BV.to(x_BSD.dtype))
            x_BSD = x_BSD * factors_BS.unsqueeze(2)
        if self.curves is not None:
            sums_BCD = self.curves(self.rows(self.curves.rows), batch)
            x_BSD = _add_at(x_BSD, self.curves.positions, sums_BCD)
        if self.vectors is not None:
            x_BSD = _add_at(x_BSD, self.vectors.positions, self.vectors(batch))
        if self.num_bags == 0:
            return x_BSD
        x_BFD = torch.cat([x_BSD, self.pooling(self.rows(batch.bag_ids), batch)], 1)
        return x_BFD.index_select(1, self.order) if self.reorders else x_BFD

    def rows(self, ids: Tensor) -> Tensor:
        """The table's rows by id: [*] -> [*, D]."""
        return gather_rows(self.weight, ids, sparse=self.sparse)


class FirstOrder(nn.Module):
    """`w0 + sum_f w_f(x)`: one weight per row of the table, times the value of a numeric field, pooled over a bag.

    That of a vector v is linear in it, `w_f + <u_f, v>` (`VectorProjection` to one number).

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
        sum_B: Tensor = self.embedding(batch).sum((1, 2))
        return sum_B if self.bias is None else sum_B + self.bias

    def terms(self, batch: Batch) -> dict[str, Tensor]:
        """The `first_order` terms [B, F], and the `bias` [B] if there is one."""
        terms = {"first_order": self.embedding(batch).squeeze(2)}
        return terms if self.bias is None else {"bias": self.bias.expand(batch.size), **terms}


class SubsetEmbedding(nn.Module):
    """One vector for each chosen field, as `FieldEmbedding`'s, but from a table of these fields' rows alone.

    The table holds the fields' rows in the order in which they are chosen; chosen fields that share
    rows share them here too. It is not a `FieldEmbedding`, since a row id of the shared table is
    not a row of this one.

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

    reads_rows = True  # a table beside `FieldEmbedding`: integrated gradients ask

    def __init__(
        self, layout: Layout, names: Sequence[str], dim: int, *, std: float = 0.01
    ) -> None:
        super().__init__()
        fields = layout.fields
        position_of = {f.name: i for i, f in enumerate(fields)}
        chosen = [position_of[name] for name in names]
        blocks = {f.shares or f.name: f for f in (fields[i] for i in chosen)}
        self.row_blocks = [(f.rows,) for f in blocks.values()]
        own_rows = torch.zeros(layout.num_rows, dtype=torch.int32)
        end = 0
        for f in blocks.values():
            own_rows[f.all_rows()] = torch.arange(end, end + f.rows, dtype=torch.int32)
            end += f.rows
        bags = layout.positions(kind="bag")
        singles = layout.single_positions
        own_singles = [i for i in chosen if i in singles]
        self.has_singles = bool(own_singles)
        self.num_bags = len(bags) if set(bags) & set(chosen) else 0
        self.weight = nn.Parameter(torch.empty(end, dim))
        nn.init.normal_(self.weight, std=std)
        self.pooling = BagPooling([fields[i].pooling == "max" for i in bags])
        self.vectors: VectorProjections | None = None
        if set(layout.positions(kind="vector")) & set(chosen):
            make = partial(VectorProjection, dim=dim, std=std)
            self.vectors = VectorProjections(layout, own_singles, make)
        columns = [singles.index(i) for i in own_singles]
        self.curves: PiecewiseLinear | None = None
        if any(fields[i].piecewise for i in own_singles):
            self.curves = PiecewiseLinear(layout, own_singles)
        value_columns = [layout.number_columns[i].start for i in layout.factors]
        self.value_columns = index_buffer(value_columns)
        values = [s for s, i in enumerate(singles) if i in layout.factors]
        order = [(own_singles + bags).index(i) for i in chosen]
        self.own_rows = nn.Buffer(own_rows, persistent=False)
        self.columns = index_buffer(columns)
        self.value_positions = index_buffer(values)
        self.order = index_buffer(order)

    def forward(self, batch: Batch) -> Tensor:
        parts = []
        if self.has_singles:
            x_BSD = gather_rows(
                self.weight, self.own_rows[batch.ids.index_select(1, self.columns).long()]
            )
            ones = x_BSD.new_ones(batch.ids.shape)
            values_BV = batch.values.index_select(1, self.value_columns)
            factors = ones.index_copy(1, self.value_positions, values_BV.to(x_BSD.dtype))
            x_BSD = x_BSD * factors.index_select(1, self.columns).unsqueeze(2)
            if self.curves is not None:
                v_QD = gather_rows(self.weight, self.own_rows[self.curves.rows])
                sums_BCD = self.curves(v_QD, batch)
                x_BSD = _add_at(x_BSD, self.curves.positions, sums_BCD)
            if self.vectors is not None:
                x_BSD = _add_at(x_BSD, self.vectors.positions, self.vectors(batch))
            parts.append(x_BSD)
        if self.num_bags:
            # All bags; the vectors of those that are not chosen are not used.
            parts.append(
                self.pooling(gather_rows(self.weight, self.own_rows[batch.bag_ids.long()]), batch)
            )
        return torch.cat(parts, 1).index_select(1, self.order)


def row_blocks(network: nn.Module) -> dict[str, Sequence[tuple[int, ...]]]:
    """The blocks of rows of each table whose rows belong to values, by parameter name.

    A module with such a table as its `weight` has `row_blocks`: the sizes of the blocks, one after
    another, that its rows are in. A block of sizes (m, n) has a row for every pair of m and n local
    rows. Growth appends local rows.

    >>> row_blocks(nn.ModuleDict({"e": FieldEmbedding(Layout.of_sizes([2, 3]), 2)}))
    {'e.weight': [(5,)]}
    """
    results = {}
    for name, module in network.named_modules():
        if blocks := getattr(module, "row_blocks", None):
            results[f"{name}.weight".lstrip(".")] = blocks
    return results


def kept_rows(former: nn.Module, network: nn.Module) -> dict[str, Tensor]:
    """For each parameter with rows by value, the rows of a grown network that belong to its former rows, int64.

    Errors:
        ConfigError: a table has more or fewer blocks than before, or another tensor another shape.

    >>> former, network = (nn.ModuleDict({"e": FieldEmbedding(Layout.of_sizes([n]), 2)}) for n in (2, 3))
    >>> kept_rows(former, network)
    {'e.weight': tensor([0, 1])}
    """
    result = {}
    former_blocks = row_blocks(former)
    for name, blocks in row_blocks(network).items():
        rows = []
        end = 0
        before = former_blocks.get(name, ())
        if len(before) != len(blocks):
            raise ConfigError(
                f"a table grows within its blocks of rows, found {len(before)} row_blocks of {name} before and "
                f"{len(blocks)} after: a layout with more rows must not change their number"
            )
        for old, new in zip(before, blocks, strict=True):
            numbers = torch.arange(math.prod(new)).view(new) + end
            rows.append(numbers[tuple(map(slice, old))].flatten())
            end += math.prod(new)
        result[name] = torch.cat(rows)
    state = former.state_dict()
    for name, tensor in network.state_dict().items():
        if name not in result and (name not in state or state[name].shape != tensor.shape):
            raise ConfigError(
                f"a network grows by the tables of fieldwise.layers and of its models, found {name} of "
                f"{list(state[name].shape) if name in state else 'no shape'} before and {list(tensor.shape)} after: "
                "use FieldEmbedding, or give its module row_blocks (fieldwise.layers.row_blocks)"
            )
    return result

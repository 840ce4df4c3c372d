"""The interface between data and models: the layout of the encoded fields, bags of ids, and a batch of encoded rows.

Letters: B batch, F fields, S single-valued fields, V numbers of numeric and vector fields, G bag
fields, N values of all bags in a batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.errors import DataError
from fieldwise.schema import Pooling, Projection, Role


@dataclass(frozen=True, kw_only=True)
class FieldLayout:
    """The position of one field in the shared embedding table.

    Args:
        kind: `id` (a category or a bin), `value` (a number times a vector), `bag` (several ids,
            pooled), `vector` (a vector of numbers, projected).
        offset: the first row of the field in the shared table: that of missing values; that of
            unknown ones follows.
        rows: how many rows it has, missing and unknown included.
        ordered: whether an order has a meaning: that of the ids of a bag (a history), or of rows (bins).
        shares: the field whose rows this one uses (offset and rows are then that field's).
        unknown: whether its second row is for values not seen in training (fields with a
            vocabulary).
        piecewise: whether a value is a position on a piecewise linear curve: k + r on piece k, a
            share r of which is behind it. The field's rows are those of a missing number, of the
            curve's start, and of its pieces.
        width: how many numbers a vector has.
        scale: what a vector is multiplied by, if it is not normalised.
        projection: how a vector is projected.
        normalise: whether a vector is divided by its length.
        by_id: whether a vector is found by its id, in a table of the encoder's.
        extents: where its rows go on elsewhere, once per growth: a row within the field, and that
            row in the shared table. Rows up to the first of them follow `offset`.

    >>> field = FieldLayout(name="app", kind="id", role="item", offset=4, rows=6, extents=((3, 20), (5, 30)))
    >>> field.all_rows().tolist(), field.row(4), field.to_table(np.array([5, 0])).tolist()
    ([4, 5, 6, 20, 21, 30], 21, [30, 4])
    """

    name: str
    kind: Literal["id", "value", "bag", "vector"]
    role: Role
    offset: int
    rows: int
    pooling: Pooling = "mean"
    ordered: bool = False
    shares: str | None = None
    unknown: bool = False
    piecewise: bool = False
    width: int = 0
    scale: float = 1.0
    projection: Projection = "linear"
    normalise: bool = False
    by_id: bool = False
    extents: tuple[tuple[int, int], ...] = ()

    @property
    def numbers(self) -> int:
        """How many numbers of a row of a batch are the field's."""
        return 1 if self.kind == "value" else self.width

    def all_rows(self) -> np.ndarray:
        """The field's rows in the shared table, in the field's order [rows], int32."""
        return (
            self._grown
            if self.extents
            else np.arange(self.offset, self.offset + self.rows, dtype=np.int32)
        )

    def piece_rows(self) -> np.ndarray:
        """The rows in the shared table of a piecewise linear number's pieces, int32; none for another field."""
        return self.all_rows()[2:] if self.piecewise else np.empty(0, np.int32)

    def knot_entries(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The knots beside positions [N], with their shares: the number of the position, the row, the share.

        A knot is the end of a piece, whose row it has. The curve's start, which has none, is left out.

        >>> field = FieldLayout(name="age", kind="value", role="user", offset=4, rows=5, piecewise=True)
        >>> [part.tolist() for part in field.knot_entries(np.array([0.0, 1.25]))]
        [[1, 1], [6, 7], [0.75, 0.25]]
        """
        knots = np.floor(positions).astype(np.int64)
        shares = positions - knots
        after_start = np.flatnonzero(knots > 0)
        between_knots = np.flatnonzero(shares > 0)
        numbers = np.concatenate([after_start, between_knots])
        pieces = np.concatenate([knots[after_start] - 1, knots[between_knots]])
        both_shares = np.concatenate([1.0 - shares[after_start], shares[between_knots]])
        return numbers, self.piece_rows()[pieces], both_shares

    def row(self, local: int) -> int:
        """The row in the shared table of a row within the field."""
        return int(self._grown[local]) if self.extents else self.offset + local

    def to_table(self, local: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """`row` of many, int32; written to `out` if given."""
        if self.extents:
            # other modes copy `out`
            return np.asarray(np.take(self._grown, local, out=out, mode="clip"))
        return np.asarray(np.add(local, np.int32(self.offset), out=out))

    @cached_property
    def _grown(self) -> np.ndarray:
        starts = [(0, self.offset), *self.extents]
        ends = [*(local for local, _ in self.extents), self.rows]
        runs = zip(starts, ends, strict=True)
        return np.concatenate(
            [np.arange(row, row + end - local, dtype=np.int32) for (local, row), end in runs]
        )


@dataclass(frozen=True)
class Layout:
    """The encoded fields, in the schema's order.

    >>> layout = Layout.of_sizes([3, 4])
    >>> layout.num_fields, layout.num_rows, layout.fields[1].offset
    (2, 7, 3)
    """

    fields: tuple[FieldLayout, ...]

    @classmethod
    def of_sizes(cls, sizes: list[int], roles: list[Role] | None = None) -> "Layout":
        """A layout of categorical fields only: field f has `sizes[f]` rows. For models used without an encoder."""
        fields = []
        offset = 0
        for f, rows in enumerate(sizes):
            role: Role = roles[f] if roles else "context"
            fields.append(
                FieldLayout(name=f"field_{f}", kind="id", role=role, offset=offset, rows=rows)
            )
            offset += rows
        return cls(tuple(fields))

    @property
    def num_fields(self) -> int:
        """F."""
        return len(self.fields)

    @property
    def num_rows(self) -> int:
        """Number of rows of the shared table."""
        last = ((f.rows, *[(0, f.offset), *f.extents][-1]) for f in self.fields)
        return max((row + rows - local for rows, local, row in last), default=0)

    @cached_property
    def block_of_row(self) -> Tensor:
        """For each row of the shared table the offset of the fields that read it, which tells them [num_rows] int64."""
        result = np.full(self.num_rows, -1)
        for f in self.fields:
            result[f.all_rows()] = f.offset
        return torch.from_numpy(result)

    def local_rows(self) -> np.ndarray:
        """The row within its field of each row of the shared table [num_rows], int32."""
        result = np.zeros(self.num_rows, np.int32)
        for f in self.fields:
            result[f.all_rows()] = np.arange(f.rows, dtype=np.int32)
        return result

    @cached_property
    def number_columns(self) -> tuple[slice, ...]:
        """The columns of a batch's `values` that are each field's [F]."""
        ends = list(accumulate(f.numbers for f in self.fields))
        return tuple(slice(end - f.numbers, end) for f, end in zip(self.fields, ends, strict=True))

    @property
    def factors(self) -> list[int]:
        """Positions of the fields whose number multiplies their row: not those of pieces."""
        return [i for i in self.positions(kind="value") if not self.fields[i].piecewise]

    @cached_property
    def _curves(self) -> list[FieldLayout]:
        return [f for f in self.fields if f.piecewise]

    def at_knots(self, weights: np.ndarray) -> np.ndarray:
        """First-order weights [R], those of pieces summed up to each knot: between knots a curve is linear."""
        summed = weights.copy()
        for f in self._curves:
            rows = f.piece_rows()
            summed[rows] = np.cumsum(weights[rows])
        return summed

    def from_knots(self, sums: np.ndarray) -> np.ndarray:
        """The transpose of `at_knots`: from sums over the rows at each knot [R], the sums for each weight."""
        summed = sums.copy()
        for f in self._curves:
            rows = f.piece_rows()[::-1]
            summed[rows] = np.cumsum(sums[rows])
        return summed

    @property
    def is_linear_in_rows(self) -> bool:
        """Whether first-order terms are sums of rows of a table: no vector, no bag pooled by maximum."""
        return not any(
            f.kind == "vector" or (f.kind == "bag" and f.pooling == "max") for f in self.fields
        )

    @property
    def single_positions(self) -> list[int]:
        """Positions of the fields with one id, number or vector: all but the bags."""
        return [i for i, f in enumerate(self.fields) if f.kind != "bag"]

    @property
    def single_fields(self) -> list[FieldLayout]:
        """Those fields, in the order of a batch's `ids`."""
        return [self.fields[i] for i in self.single_positions]

    @property
    def num_bags(self) -> int:
        """G."""
        return len(self.bag_fields)

    @property
    def bag_fields(self) -> list[FieldLayout]:
        """The fields with several ids."""
        return [f for f in self.fields if f.kind == "bag"]

    def positions(self, *, kind: str | None = None, role: str | None = None) -> list[int]:
        """Positions of the fields of a kind and of a role (of all kinds, all roles, if omitted)."""
        wanted = enumerate(self.fields)
        return [i for i, f in wanted if kind in (None, f.kind) and role in (None, f.role)]


def check_batch(batch: object, layout: Layout) -> None:
    """Check that a batch is one, and that the ids of one that was made by hand are of their fields.

    Ids of an encoded table are int32, and were checked when it was made; they are not looked at.

    Errors:
        DataError: no `Batch`, another number of fields, or an id that is no row of its field.

    >>> check_batch(Batch.of_ids(torch.tensor([[0, 3], [2, 6]])), Layout.of_sizes([3, 4]))
    """
    if not isinstance(batch, Batch):
        shape = f" of shape {list(batch.shape)}" if isinstance(batch, Tensor) else ""
        raise DataError(
            f"a network reads a Batch, found a {type(batch).__name__}{shape}: make one with Batch.of_ids(ids), or take "
            "those of an encoded table"
        )
    if batch.ids.dtype == torch.int32 or torch.compiler.is_compiling() or batch.ids.is_meta:
        return
    singles = layout.single_fields
    if batch.ids.ndim != 2 or batch.ids.shape[1] != len(singles):
        raise DataError(
            f"a batch's ids must be [rows, {len(singles)}], a column for each of {', '.join(f.name for f in singles)}, "
            f"found {list(batch.ids.shape)}"
        )
    ids = batch.ids.long().cpu()
    is_row = (ids >= 0) & (ids < layout.num_rows)
    block = (
        layout.block_of_row[ids.clamp(0, max(layout.num_rows - 1, 0))] if layout.num_rows else ids
    )
    is_wrong = ~is_row | (block != torch.tensor([f.offset for f in singles]))
    if is_wrong.any():
        row, column = is_wrong.nonzero()[0].tolist()
        f = singles[column]
        raise DataError(
            f"an id of field {f.name!r} must be one of its rows of the shared table, which begin at {f.offset}, found "
            f"{int(ids[row, column])} in row {row} of the batch: add the field's offset to its own numbers"
        )


@dataclass(frozen=True, eq=False)
class Bags:
    """Bags of ids, one after another: in a table with G bags per row, bag g of row n has the number n * G + g.

    Shape:
        ids: [N], the ids of all bags.
        offsets: [bags + 1] int64; bag b holds `ids[offsets[b] : offsets[b + 1]]`.
        weights: [N] float weights of the ids, or None.

    >>> bags = Bags.of(torch.tensor([7, 8, 9]), torch.tensor([2, 0, 1]))
    >>> chosen = bags.take(torch.tensor([2, 1, 0]))
    >>> chosen.ids.tolist(), chosen.segments.tolist()
    ([9, 7, 8], [0, 2, 2])
    """

    ids: Tensor
    offsets: Tensor
    weights: Tensor | None = None

    @classmethod
    def of(cls, ids: Tensor, lengths: Tensor, weights: Tensor | None = None) -> "Bags":
        """Bags of these lengths (int64)."""
        return cls(ids, nn.functional.pad(lengths.cumsum(0), (1, 0)), weights)

    @classmethod
    def joined(cls, parts: Iterable["Bags"]) -> "Bags":
        """The bags of several, one after another; all or none are weighted."""
        every = list(parts)
        if len(every) == 1:
            return every[0]
        weights = [bags.weights for bags in every if bags.weights is not None]
        lengths = torch.cat([bags.lengths for bags in every])
        return cls.of(
            torch.cat([bags.ids for bags in every]),
            lengths,
            torch.cat(weights) if weights else None,
        )

    @cached_property
    def lengths(self) -> Tensor:
        """How many ids each bag holds [bags]."""
        return self.offsets.diff()

    @cached_property
    def segments(self) -> Tensor:
        """The bag of each id [N]."""
        return torch.repeat_interleave(self.lengths)

    def take(self, numbers: Tensor) -> "Bags":
        """The bags of these numbers (int64, of any shape), in this order."""
        numbers = numbers.flatten()
        first = self.offsets.index_select(0, numbers)
        lengths = self.offsets.index_select(0, numbers + 1) - first
        segments = torch.repeat_interleave(lengths)
        shift = first - lengths.cumsum(0) + lengths
        sources = torch.arange(len(segments), device=shift.device).add_(
            shift.index_select(0, segments)
        )
        weights = None if self.weights is None else self.weights.index_select(0, sources)
        result = Bags.of(self.ids.index_select(0, sources), lengths, weights)
        vars(result)["segments"] = segments  # known already
        return result

    def rows(self, rows: slice | Tensor, groups: int) -> "Bags":
        """The bags of some rows, of `groups` bags each: by row numbers, or by a slice, whose ids are a view."""
        if not isinstance(rows, slice):
            return self.take(rows[:, None] * groups + torch.arange(groups, device=rows.device))
        first, last, _ = rows.indices((len(self.offsets) - 1) // groups)
        offsets = self.offsets[first * groups : max(first, last) * groups + 1]
        ids = slice(int(offsets[0]), int(offsets[-1]))
        return Bags(
            self.ids[ids], offsets - offsets[0], None if self.weights is None else self.weights[ids]
        )

    def shares(self, means_G: Tensor) -> Tensor:
        """Weights for the ids of whole rows [N], float32: 1 / n in a bag of n whose pooling is `mean`, else 1."""
        means = means_G.repeat(len(self.lengths) // max(len(means_G), 1))
        return torch.where(means, self.lengths.reciprocal(), 1.0).index_select(0, self.segments)


class Batch(NamedTuple):
    """A batch of B encoded rows. Row ids include their field's offset, so they index the shared table.

    A layout without bags does not need the last three tensors; for categorical fields only, use
    `Batch.of_ids`.

    Shape:
        ids: [B, S] integer, row ids of the fields of kind `id` and `value`, in layout order.
            Networks check that those of int64, as are made by hand, are rows of their fields;
            encoded tables have int32.
        values: [B, V] float, the numbers of the fields of kind `value` (0 if missing).
        bag_ids: [N] integer, row ids of all bags, row by row and within a row in layout order.
        bag_segments: [N] int64, b * G + g of each value, not decreasing.
        bag_weights: [N] float, 1 / n for `mean` over n values, else 1.

    >>> Batch(torch.tensor([[0, 3], [2, 6]]), torch.tensor([[0.5], [-1.0]]))
    Batch(rows=2, ids=[2, 2] int64, values=[2, 1] float32, bag values=0, device=cpu)
    """

    ids: Tensor
    values: Tensor
    bag_ids: Tensor = torch.empty(0, dtype=torch.int64)
    bag_segments: Tensor = torch.empty(0, dtype=torch.int64)
    bag_weights: Tensor = torch.empty(0)

    @classmethod
    def of_ids(cls, ids: Tensor) -> "Batch":
        """A batch for a layout of categorical fields only, on the device of `ids` [B, S].

        Errors:
            DataError: no tensor of whole numbers.

        >>> from fieldwise.models import FM
        >>> network = FM(embedding_dim=4).build(Layout.of_sizes([3, 4]))
        >>> network(Batch.of_ids(torch.tensor([[0, 3], [2, 6]]))).shape
        torch.Size([2])
        """
        if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
            found = (
                f"a tensor of type {ids.dtype}"
                if isinstance(ids, Tensor)
                else f"a {type(ids).__name__}"
            )
            raise DataError(
                f"ids must be a tensor of whole numbers [rows, fields], found {found}: convert it"
            )
        empty = torch.empty(0, device=ids.device)
        return cls(ids, empty.new_empty(ids.shape[0], 0), empty.long(), empty.long(), empty)

    @classmethod
    def of_bags(cls, ids: Tensor, values: Tensor, bags: Bags) -> "Batch":
        """Rows and their weighted bags."""
        assert bags.weights is not None, "the ids of a batch's bags are weighted"
        return cls(ids, values, bags.ids, bags.segments, bags.weights)

    @classmethod
    def joined(cls, batches: Sequence["Batch"], groups: int) -> "Batch":
        """The rows of batches of one layout, one batch after another, of `groups` bags each."""
        if len(batches) == 1:
            return batches[0]
        ids, values = (torch.cat([batch[k] for batch in batches]) for k in (0, 1))
        return cls.of_bags(ids, values, Bags.joined(batch.bags(groups) for batch in batches))

    def bags(self, groups: int) -> Bags:
        """The bags of all rows, `groups` a row (G of the layout)."""
        lengths = torch.bincount(self.bag_segments, minlength=self.size * groups)
        return Bags.of(self.bag_ids, lengths, self.bag_weights)

    @property
    def size(self) -> int:
        """B."""
        return int(self.ids.shape[0])

    def rows(self, rows: slice | Tensor, groups: int) -> "Batch":
        """Some rows, of `groups` bags each: by row numbers, or by a slice, whose ids and values are views."""
        ids, values = (
            x[rows] if isinstance(rows, slice) else x.index_select(0, rows) for x in self[:2]
        )
        if not groups:
            return self._replace(ids=ids, values=values)
        return Batch.of_bags(ids, values, self.bags(groups).rows(rows, groups))

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device; tensors already there are not copied.

        >>> Batch.of_ids(torch.tensor([[0, 3]])).to("meta")
        Batch(rows=1, ids=[1, 2] int64, values=[1, 0] float32, bag values=0, device=meta)
        """
        return Batch._make(tensor.to(device) for tensor in self)

    def __repr__(self) -> str:
        # `torch.export` puts shapes here
        if not all(isinstance(tensor, Tensor) for tensor in self):
            return f"Batch{tuple(self)!r}"
        kind = {
            name: f"{list(t.shape)} {t.dtype}".replace("torch.", "")
            for name, t in self._asdict().items()
        }
        bags = f"bag values={len(self.bag_ids)}"
        return f"Batch(rows={self.size}, ids={kind['ids']}, values={kind['values']}, {bags}, device={self.ids.device})"

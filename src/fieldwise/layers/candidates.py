"""Sharing the context's computation between candidates: splitting fields and layers into both parts.

Letters: N candidates, F fields, C of them the context's, I the candidates', D embedding size.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers.embedding import FieldEmbedding, FirstOrder
from fieldwise.layers.mlp import MLP
from fieldwise.layout import Batch, Layout


@dataclass(frozen=True, eq=False)
class Side:
    """The fields of one side: the context or the candidates.

    Args:
        positions: their positions in the whole layout, increasing.
        layout: a layout of only these fields, with the rows of the whole layout's shared table; a
            `Batch` of this layout holds their ids, values and bags.
    """

    positions: tuple[int, ...]
    layout: Layout
    _readers: "WeakKeyDictionary[FieldEmbedding, FieldEmbedding]" = field(
        default_factory=WeakKeyDictionary, repr=False
    )

    def __reduce__(self) -> tuple[type["Side"], tuple[object, ...]]:
        return Side, (self.positions, self.layout)  # copies and pickles read again

    @cached_property
    def num_bags(self) -> int:
        """G of this side."""
        return self.layout.num_bags

    def reader(self, embedding: FieldEmbedding) -> FieldEmbedding:
        """An embedding of only these fields, from the table of `embedding`."""
        reader = self._readers.get(embedding)
        weight = embedding.weight
        if reader is None or reader.weight is not weight or reader.order.device != weight.device:
            reader = embedding.of_fields(self.layout)
            self._readers[embedding] = reader
        return reader


@dataclass(frozen=True, eq=False)
class Split:
    """A split of the layout's fields into those of the context and those of the candidates.

    Errors:
        ConfigError: a side without any field, or a position that the layout does not have.

    >>> split = Split.by_role(Layout.of_sizes([3, 4, 2], ["context", "item", "user"]))
    >>> split.context.positions, split.candidates.positions
    ((0, 2), (1,))
    """

    layout: Layout
    context: Side
    candidates: Side

    @cached_property
    def order(self) -> Tensor:
        """Each field's position when the candidates' fields follow the context's, int64 [F]."""
        return torch.tensor([*self.context.positions, *self.candidates.positions]).argsort()

    @cached_property
    def bags(self) -> tuple[Tensor, Tensor]:
        """For each bag of the layout its side (0 the context, 1 the candidates) and its place among that side's [G]."""
        bags = []
        for number, side in enumerate((self.context, self.candidates)):
            for position_in_side, i in enumerate(side.layout.positions(kind="bag")):
                bags.append((side.positions[i], number, position_in_side))
        table = torch.tensor(sorted(bags), dtype=torch.int64).reshape(-1, 3)
        return table[:, 1], table[:, 2]

    @classmethod
    def at(cls, layout: Layout, context: Iterable[int]) -> "Split":
        """A split with the fields at these positions in the context, and the others in the candidates."""
        positions = sorted(set(context))
        if (
            not positions
            or len(positions) >= layout.num_fields
            or positions[0] < 0
            or positions[-1] >= layout.num_fields
        ):
            raise ConfigError(
                "context and candidates must each have at least one of the layout's fields, found positions "
                f"{positions} of {layout.num_fields} for the context: assign fields to both sides"
            )
        return cls.of(layout, positions)

    @classmethod
    def of(cls, layout: Layout, context: Iterable[int]) -> "Split":
        """`at` for valid positions; a side may have no field."""
        chosen = set(context)
        others = set(range(layout.num_fields)) - chosen
        return cls(layout, _side(layout, chosen), _side(layout, others))

    @classmethod
    def by_role(cls, layout: Layout) -> "Split":
        """A split with fields of role item in the candidates, and those of roles user and context in the context."""
        return cls.at(layout, (i for i, f in enumerate(layout.fields) if f.role != "item"))


def _side(layout: Layout, positions: Iterable[int]) -> Side:
    """The fields of a layout at some positions, in its order."""
    in_order = tuple(sorted(positions))
    return Side(in_order, Layout(tuple(layout.fields[i] for i in in_order)))


class Part:
    """Rows of one side: one row for the context, or N for the candidates.

    Args:
        side: the side.
        batch: rows of the side's layout.
    """

    def __init__(self, side: Side, batch: Batch) -> None:
        self.side = side
        self.batch = batch

    @property
    def size(self) -> int:
        return self.batch.size

    def vectors(self, embedding: FieldEmbedding) -> Tensor:
        """The fields' vectors [rows, fields of this side, D] from an embedding of the whole layout."""
        return self.side.reader(embedding)(self.batch)

    def rows(self, rows: slice) -> "Part":
        """Some of the rows."""
        return Part(self.side, self.batch.rows(rows, self.side.num_bags))


@runtime_checkable
class SharesContext(Protocol):
    """Interface of networks that compute the context's part only once for all candidates."""

    def score_candidates(self, context: Part, candidates: Part, /) -> Tensor:
        """Logits [N] of the context's row combined with each candidate."""
        ...


def first_order_candidates(first_order: FirstOrder, context: Part, candidates: Part) -> Tensor:
    """The first-order term [N]; the context's sum is computed once."""
    sum_N = (
        candidates.vectors(first_order.embedding).sum((1, 2))
        + context.vectors(first_order.embedding).sum()
    )
    return sum_N if first_order.bias is None else sum_N + first_order.bias


def mlp_candidates(
    mlp: MLP, x_context_CD: Tensor, x_candidates_NID: Tensor, context: Part, candidates: Part
) -> Tensor:
    """The output of an MLP on all fields' flattened vectors; the context's part of its first layer is computed once.

    Shape:
        x_context_CD: [C, D]; x_candidates_NID: [N, I, D]; returns the same shape as the MLP's
            forward.
    """
    first, *rest = mlp.layers
    assert isinstance(first, nn.Sequential)
    product, *after = first
    assert isinstance(product, nn.Linear)
    weight_HFD = product.weight.view(product.out_features, -1, x_context_CD.shape[1])
    positions = (
        torch.tensor(part.side.positions, device=weight_HFD.device)
        for part in (context, candidates)
    )
    of_context, of_candidates = (
        weight_HFD.index_select(1, places).flatten(1) for places in positions
    )
    x = torch.addmm(
        torch.addmv(product.bias, of_context, x_context_CD.flatten()),
        x_candidates_NID.flatten(1),
        of_candidates.t(),
    )
    for module in (*after, *rest):
        x = module(x)
    return x if mlp.output is None else mlp.output(x)

"""What crosses from data to models: the layout of the encoded fields, and one batch of encoded rows.

Letters: B batch, F fields, S single-valued fields, V numeric fields, G bag fields, N values of all bags in a batch.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from fieldwise.schema import Pooling, Role

__all__ = ["Batch", "FieldLayout", "Layout"]


@dataclass(frozen=True, kw_only=True)
class FieldLayout:
    """Where one field stands in the shared embedding table.

    Args:
        kind: `id` (a category or a bin), `value` (a number times a vector), `bag` (several ids, pooled).
        offset: the first row of the field in the shared table.
        rows: how many rows it has, missing and unknown included.
        ordered: whether a bag's ids stand in order (a history).
        shares: the field whose rows this one uses (offset and rows are then that field's).
        unknown: whether the second of its rows is for values that training never saw (fields with a vocabulary).
    """

    name: str
    kind: Literal["id", "value", "bag"]
    role: Role
    offset: int
    rows: int
    pooling: Pooling = "mean"
    ordered: bool = False
    shares: str | None = None
    unknown: bool = False


@dataclass(frozen=True)
class Layout:
    """The encoded fields in the schema's order.

    >>> layout = Layout.of_sizes([3, 4])
    >>> layout.num_fields, layout.num_rows, layout.fields[1].offset
    (2, 7, 3)
    """

    fields: tuple[FieldLayout, ...]

    @classmethod
    def of_sizes(cls, sizes: list[int], roles: list[Role] | None = None) -> "Layout":
        """A layout of categories alone: field f has `sizes[f]` rows. For models used without an encoder."""
        fields, offset = [], 0
        for f, rows in enumerate(sizes):
            role: Role = roles[f] if roles else "context"
            fields.append(FieldLayout(name=f"field_{f}", kind="id", role=role, offset=offset, rows=rows))
            offset += rows
        return cls(tuple(fields))

    @property
    def num_fields(self) -> int:
        """F."""
        return len(self.fields)

    @property
    def num_rows(self) -> int:
        """Rows of the shared table."""
        return max((f.offset + f.rows for f in self.fields), default=0)

    def positions(self, *, kind: str | None = None, role: str | None = None) -> list[int]:
        """Positions of the fields of a kind and of a role (of all kinds, all roles, where left out)."""
        wanted = enumerate(self.fields)
        return [i for i, f in wanted if kind in (None, f.kind) and role in (None, f.role)]


class Batch(NamedTuple):
    """B encoded rows. Row ids already hold their field's offset, so they index the shared table.

    Shape:
        ids: [B, S] integer, row ids of the fields of kind `id` and `value`, in layout order.
        values: [B, V] float, the numbers of the fields of kind `value` (0 where missing).
        bag_ids: [N] integer, row ids of all bags, row by row and within a row in layout order.
        bag_segments: [N] int64, b * G + g of each value, not decreasing.
        bag_weights: [N] float, 1 / n for `mean` over n values, else 1.
    """

    ids: Tensor
    values: Tensor
    bag_ids: Tensor
    bag_segments: Tensor
    bag_weights: Tensor

    @property
    def size(self) -> int:
        """B."""
        return int(self.ids.shape[0])

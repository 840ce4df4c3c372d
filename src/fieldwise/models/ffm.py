"""Field-aware Factorization Machine (Juan et al., RecSys 2016).

Letters: B batch, F fields, P = F(F-1)/2 pairs, D embedding size, R rows of the shared table.
"""

import itertools
from dataclasses import dataclass

from torch import Tensor, nn

from fieldwise.layers import FieldEmbedding, FirstOrder, index_buffer
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, EmbeddingSettings, Positive, Size


@register_model("ffm")
@dataclass(frozen=True, kw_only=True)
class FFM(EmbeddingSettings):
    """Settings of FFM; the defaults follow LIBFFM, the authors' code.

    Args:
        embedding_dim: D of one vector; a row of the table holds F - 1 of them.
        first_order: the first-order term and a bias are added (BARS); the paper and LIBFFM have
            neither.

    >>> FFM(embedding_dim=2).build(Layout.of_sizes([3, 4, 5])).embedding.weight.shape
    torch.Size([12, 4])
    """

    data_defaults = DataDefaults(
        std=0.05, prior=30.0, small_table_rows=0, settings={"first_order": True}
    )

    embedding_dim: Size = 4
    first_order: bool = False
    embedding_std: Positive = 0.1

    def build(self, layout: Layout) -> "FFMNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 2, "multiplies pairs of fields")
        return FFMNetwork(self, layout)


class FFMNetwork(nn.Module):
    """`logit = sum_{i<j} <x_i toward j, x_j toward i>`, plus the first-order term if `first_order`.

    `x_i toward j` is field i's vector for its products with field j. A row of the table holds the
    vectors toward all other fields, in order: `weight[r].view(F - 1, D)`.

    NOTE[DIFF]: LIBFFM keeps F vectors per row. The one toward the row's own field is never read if
    every field has one value, and is omitted here, so a row has (F - 1) * D numbers.
    NOTE[DIFF]: LIBFFM also multiplies the values of one field with each other. A bag is pooled to
    one vector here, as every model has it, so that its values do not interact.
    NOTE[DIFF]: a field that shares another's rows (a history of items) shares the vectors toward
    third fields; between the two of them, both sides take the vector toward the field that shares.
    NOTE[DIFF]: LIBFFM scales every instance to length 1, which for categorical fields only divides
    the logit by F, and starts from uniform numbers in [0, D^-0.5]. Here nothing is scaled, and
    vectors start from a normal distribution.

    Parameters: `embedding.weight` [R, (F - 1) D], `first_order.embedding.weight` [R, 1],
    `first_order.bias`.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: FFM, layout: Layout) -> None:
        super().__init__()
        self.num_fields = layout.num_fields
        width = (self.num_fields - 1) * settings.embedding_dim
        self.embedding = FieldEmbedding(layout, width, std=settings.embedding_std, by_field=True)
        self.first_order = FirstOrder(layout) if settings.first_order else None
        position_of = {f.name: i for i, f in enumerate(layout.fields)}
        owners = [
            position_of[f.shares or f.name] for f in layout.fields
        ]  # the field whose rows it uses
        pairs = list(itertools.combinations(range(layout.num_fields), 2))
        left = [_place(owners, i, j) for i, j in pairs]
        right = [_place(owners, j, i) for i, j in pairs]
        self.left = index_buffer(left)
        self.right = index_buffer(right)

    def forward(self, batch: Batch) -> Tensor:
        # All F * (F - 1) vectors of a row are on one axis, of which each pair takes two.
        x_BVD = self.embedding(batch).unflatten(2, (self.num_fields - 1, -1)).flatten(1, 2)
        logit_B: Tensor = (
            x_BVD.index_select(1, self.left) * x_BVD.index_select(1, self.right)
        ).sum((1, 2))
        return logit_B if self.first_order is None else logit_B + self.first_order(batch)


def _place(owners: list[int], i: int, j: int) -> int:
    """The position of field i's vector toward field j among the F * (F - 1) vectors of a row."""
    owner = owners[i]
    toward = i if j == owner else j  # i shares j's rows, which hold no vector toward j itself
    return i * (len(owners) - 1) + toward - (toward > owner)

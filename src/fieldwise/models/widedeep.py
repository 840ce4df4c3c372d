"""Wide & Deep (Cheng et al., DLRS 2016, arXiv 1606.07792): a linear model and an MLP, trained together.

Letters: B batch, F fields, D embedding size, C crosses, N weights of all crosses.
"""

import itertools
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.config import nearest
from fieldwise.errors import ConfigError
from fieldwise.layers import FirstOrder, index_buffer
from fieldwise.layers.activations import Activation
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import SMALL_MLP, DataDefaults, EmbeddingSettings, Rate, Size, Sizes


def _check_crosses(_: str, crosses: tuple[tuple[str, str], ...]) -> None:
    rule = 'crosses must be pairs of names of two fields, as in (("user", "item"),)'
    if not isinstance(crosses, tuple):
        raise ConfigError(f"{rule}, found {crosses!r}")
    seen: set[frozenset[str]] = set()
    for pair in crosses:
        strings = isinstance(pair, tuple) and all(isinstance(name, str) for name in pair)
        if not strings or len(pair) != 2 or pair[0] == pair[1]:
            raise ConfigError(f"{rule}, found {pair!r}")
        if frozenset(pair) in seen:
            raise ConfigError(
                f"crosses must name a pair of fields only once, found {pair!r} again: remove one"
            )
        seen.add(frozenset(pair))


@register_model("widedeep")
@dataclass(frozen=True, kw_only=True)
class WideDeep(EmbeddingSettings):
    """Settings of Wide & Deep; the defaults are the paper's, except for the crosses, which must be chosen manually.

    Args:
        hidden: sizes of the MLP's layers.
        crosses: pairs of names of single-valued categorical fields; the wide part has one weight
            for every combination of the categories of such a pair, so keep the product of their
            sizes small.
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).

    Errors:
        ConfigError: a setting out of range; `build`: no field, or a cross of a field that is not a
            single-valued category.

    >>> layout = Layout.of_sizes([3, 4])
    >>> sum(p.numel() for p in WideDeep(embedding_dim=10, hidden=(8,)).build(layout).parameters())
    254
    >>> WideDeep(crosses=(("field_0", "field_1"),)).build(layout).crosses.weight.shape
    torch.Size([12, 1])
    """

    data_defaults = DataDefaults(settings=SMALL_MLP)

    embedding_dim: Size = 32
    hidden: Sizes = (1024, 512, 256)
    crosses: Annotated[tuple[tuple[str, str], ...], _check_crosses] = ()
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.0
    batch_norm: bool = False

    def build(self, layout: Layout) -> "WideDeepNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "reads fields")
        return WideDeepNetwork(self, layout)


class WideDeepNetwork(nn.Module):
    """`logit = w . [x, phi(x)] + MLP(flatten(x))`: Equation 3 of the paper, whose b is the bias of the MLP's last unit.

    NOTE[DIFF]: numeric features enter the paper's MLP directly; here a numeric field is a field
    like any other, its value times a learned vector of size D.

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, settings: WideDeep, layout: Layout) -> None:
        super().__init__()
        self.embedding = settings.make_embedding(layout)
        self.first_order = FirstOrder(layout, bias=False)
        self.mlp = settings.make_mlp(layout.num_fields * settings.embedding_dim)
        self.crosses = CrossProducts(layout, settings.crosses) if settings.crosses else None

    def forward(self, batch: Batch) -> Tensor:
        logit_B: Tensor = self.first_order(batch) + self.mlp(
            self.embedding(batch).flatten(1)
        ).squeeze(1)
        return logit_B if self.crosses is None else logit_B + self.crosses(batch)


class CrossProducts(nn.Module):
    """`w . phi(x)`: one weight for each AND of two fields' categories (Equation 1 of the paper). All start at zero.

    NOTE[DIFF]: the paper's transformations may combine any number of features, and multi-valued
    ones (its example is of the apps that a user has with the app shown); here they are of two
    single-valued categorical fields.

    Args:
        layout: the encoded fields.
        crosses: pairs of fields' names.

    Shape:
        forward: Batch of B rows -> [B]. `weight`: [N, 1], N the sum over crosses of the products of
            both sizes.
    """

    def __init__(self, layout: Layout, crosses: tuple[tuple[str, str], ...]) -> None:
        super().__init__()
        fields = {f.name: f for f in layout.fields}
        for name in itertools.chain(*crosses):
            if name not in fields:
                raise ConfigError(
                    f"crosses must name fields of the schema, found {name!r}: {nearest(name, fields)}"
                )
            if fields[name].kind != "id":
                kind = {"value": "a number", "bag": "a bag", "vector": "a vector"}[
                    fields[name].kind
                ]
                raise ConfigError(
                    f"crosses must name single-valued categorical fields, found {name!r}, {kind}: remove it"
                )
        columns = [f.name for f in layout.single_fields]
        left = []
        right = []
        stride = []
        start = []
        total = 0
        self.row_blocks: list[tuple[int, int]] = []
        for pair in crosses:
            a, b = (fields[name] for name in pair)
            left.append(columns.index(a.name))
            right.append(columns.index(b.name))
            # Categories (i, j) of a pair have weight total + i * b.rows + j.
            stride.append(b.rows)
            start.append(total)
            self.row_blocks.append((a.rows, b.rows))
            total += a.rows * b.rows
        self.weight = nn.Parameter(torch.zeros(total, 1))
        self.left = index_buffer(left)
        self.right = index_buffer(right)
        self.stride = index_buffer(stride)
        self.start = index_buffer(start)
        self.local_rows = nn.Buffer(torch.from_numpy(layout.local_rows()), persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        ids_BS = batch.ids.long()
        left_BC, right_BC = (
            self.local_rows[ids_BS.index_select(1, side)] for side in (self.left, self.right)
        )
        return F.embedding(left_BC * self.stride + right_BC + self.start, self.weight).sum((1, 2))

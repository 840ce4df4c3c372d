"""COLD, a pre-ranking network with feature selection (Wang et al., DLP-KDD 2020, arXiv 2007.16122).

Letters: B batch, A all fields of a layout, F fields kept, D embedding size.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import index_buffer, linear
from fieldwise.layers.activations import Activation
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import (
    DataDefaults,
    EmbeddingSettings,
    Rate,
    Sizes,
    check_field_names,
)

SEBlock = Literal["joint", "own", "none"]


@register_model("cold")
@dataclass(frozen=True, kw_only=True)
class COLD(EmbeddingSettings):
    """Settings of COLD: one network over all fields, so it is not a `TwoTower` and has no representations to store.

    Selecting fields takes two runs: one with the SE block, then one without it, with the first
    run's `top_fields` as `fields_kept`.

    Args:
        hidden: sizes of the MLP's layers.
        se_block: the input of a field's importance: `joint`, all fields' vectors; `own`, the
            field's own vector; `none` omits the block and weights no field, as the paper does in
            serving.
        fields_kept: names of the fields that the network reads; all if omitted.
        mlp_activation: activation of the MLP's hidden units (`fieldwise.layers.activations`).
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's hidden linear layers.

    Errors:
        ConfigError: a setting out of range; `build`: no field, or a name in `fields_kept` that is
            not in the layout.

    >>> COLD(embedding_dim=4, hidden=(8,)).build(Layout.of_sizes([3, 4])).se_block
    Linear(in_features=8, out_features=2, bias=True)
    """

    data_defaults = DataDefaults(settings={"hidden": (128,), "mlp_dropout": 0.2})

    hidden: Sizes = (300, 300, 128)
    se_block: SEBlock = "joint"
    fields_kept: tuple[str, ...] | None = None
    mlp_activation: Activation = "relu"
    mlp_dropout: Rate = 0.0
    batch_norm: bool = False

    def check(self) -> None:
        super().check()
        names = self.fields_kept
        if names is not None and (not names or len(set(names)) < len(names)):
            raise ConfigError(
                f"fields_kept must name at least one field and none twice, found {names!r}"
            )

    def build(self, layout: Layout) -> "COLDNetwork":
        """A network with fresh weights."""
        self.check_fields(layout, 1, "weighs fields")
        check_field_names(layout, "fields_kept", self.fields_kept or ())
        return COLDNetwork(self, layout)


class OwnImportance(nn.Module):
    """`w_i . e_i + b_i` for every field, from its own vector only.

    Shape:
        forward: flattened vectors [B, F * D] -> [B, F].
    """

    def __init__(self, fields: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(fields, dim))
        self.bias = nn.Parameter(torch.zeros(fields))
        nn.init.normal_(self.weight, std=(2.0 / (dim + 1)) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (x.view(-1, *self.weight.shape) * self.weight).sum(2) + self.bias


class COLDNetwork(nn.Module):
    """`s = sigmoid(W [e_1, ..., e_F] + b)`, `v_i = s_i e_i`, `logit = MLP([v_1, ..., v_F])`.

    NOTE[DIFF]: the paper's cross features of user and advertisement are handcrafted; here they are
    fields of the schema like any other, for the first layer and the selection.

    Shape:
        forward: Batch of B rows -> [B]. `importance` -> [B, F].
    """

    def __init__(self, settings: COLD, layout: Layout) -> None:
        super().__init__()
        names = settings.fields_kept
        dim = settings.embedding_dim
        positions = [i for i, f in enumerate(layout.fields) if names is None or f.name in names]
        fields = len(positions)
        size = len(positions) * dim
        se_block: nn.Module | None = None
        if settings.se_block != "none":
            se_block = (
                linear(size, fields) if settings.se_block == "joint" else OwnImportance(fields, dim)
            )
        self.embedding = settings.make_embedding(layout)
        self.names = [layout.fields[i].name for i in positions]
        self.se_block = se_block
        self.mlp = settings.make_mlp(size)
        self.positions = index_buffer(positions)

    def forward(self, batch: Batch) -> Tensor:
        x_BFD = self._kept(batch)
        if self.se_block is not None:
            x_BFD = x_BFD * self._weigh(x_BFD).unsqueeze(2)
        return self.mlp(x_BFD.flatten(1)).squeeze(1)

    def importance(self, batch: Batch) -> Tensor:
        """s, the importance between 0 and 1 of every field kept [B, F]; all 1 without an SE block."""
        x_BFD = self._kept(batch)
        return x_BFD.new_ones(x_BFD.shape[:2]) if self.se_block is None else self._weigh(x_BFD)

    def top_fields(self, batch: Batch, k: int) -> tuple[str, ...]:
        """The names of the k fields with the greatest importance on average over the batch, in the layout's order.

        NOTE[DIFF]: the paper ranks fields by s, which differs from row to row, without saying how;
        this is its mean.

        Errors:
            ConfigError: k is less than 1 or more than the number of fields, or there is no SE
                block.
        """
        if self.se_block is None:
            raise ConfigError(
                "top_fields ranks fields by the SE block, found se_block 'none': train with 'joint' or 'own'"
            )
        if not 1 <= k <= len(self.names):
            raise ConfigError(f"k must be between 1 and the {len(self.names)} fields, found {k}")
        with torch.no_grad():
            best = self.importance(batch).mean(0).topk(k).indices.tolist()
        return tuple(self.names[i] for i in sorted(best))

    def _kept(self, batch: Batch) -> Tensor:
        x_BAD: Tensor = self.embedding(batch)
        return x_BAD.index_select(1, self.positions)

    def _weigh(self, x_BFD: Tensor) -> Tensor:
        assert self.se_block is not None
        return torch.sigmoid(self.se_block(x_BFD.flatten(1)))

"""DAT, the Dual Augmented Two-tower model (Yu et al., DLP-KDD 2021).

Letters: B batch, A all fields of a layout, D embedding size, E size of a representation, C
categories.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.config import changed, nearest
from fieldwise.errors import ConfigError
from fieldwise.layers.activations import Activation
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import SMALL_MLP, DataDefaults, NonNegative, Size, Sizes, sides
from fieldwise.models.twotower import (
    Similarity,
    Tower,
    TowerSettings,
    category_alignment_loss,
    mimic_loss,
)
from fieldwise.schema import Schema
from fieldwise.schema.ids import Who, id_field


@register_model("dat")
@dataclass(frozen=True, kw_only=True)
class DAT(TowerSettings):
    """Settings of DAT: DSSM's towers, each with a learned vector of the row's user or item appended to its input.

    NOTE[DIFF]: without a `category` there is no category alignment loss.
    NOTE[DIFF]: the paper has a ReLU on the representation too (`output_activation = True`). With
    Adam most of these units die within a few hundred steps, so the default is none.

    Args:
        hidden: sizes of both towers' hidden layers.
        output_dim: E, of representations and augmented vectors.
        activation: of the hidden units; `relu` (paper) or `tanh`.
        output_activation: whether the representation's units have it too (paper: yes).
        similarity: `cosine` (paper), divided by a learned temperature, or `dot`.
        temperature: initial value of the learned temperature; ignored for `dot`.
        mlp_dropout: dropout rate of the towers' hidden units.
        batch_norm: BatchNorm after each of the towers' hidden linear layers.
        user_id: name of the field of user ids; if omitted the one that reads the schema's `user`.
        item_id: name of the field of item ids; if omitted the one that reads the schema's `item`.
        mimic_user_weight: lambda_1, of the users' mimic loss.
        mimic_item_weight: lambda_2, of the items' mimic loss.
        category: name of a categorical item field whose categories are aligned; none if omitted.
        category_weight: lambda_3, of the category alignment loss.
        embedding_std: standard deviation of the initial values of embeddings and augmented vectors.

    Errors:
        ConfigError: a setting out of range; `build`: an empty tower, or a field that is missing or
            not categorical.

    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> DAT(embedding_dim=4, hidden=(8,), output_dim=5).build(layout).item_augmented.weight.shape
    torch.Size([4, 5])
    """

    data_defaults = DataDefaults(settings=SMALL_MLP)

    embedding_dim: Size = 32
    hidden: Sizes = (256, 128)
    output_dim: Size = 32
    activation: Activation = "relu"
    output_activation: bool = False
    user_id: str | None = None
    item_id: str | None = None
    mimic_user_weight: NonNegative = 0.5
    mimic_item_weight: NonNegative = 0.5
    category: str | None = None
    category_weight: NonNegative = 1.0

    def of_schema(self, schema: Schema) -> "DAT":
        """The settings with `user_id` and `item_id` from the schema, if they were omitted.

        Errors:
            ConfigError: no categorical field reads the schema's column of user or item ids.
        """
        roles: dict[str, Who] = {"user_id": "user", "item_id": "item"}
        results = {
            name: id_field(role, schema)
            for name, role in roles.items()
            if getattr(self, name) is None
        }
        for name, field in results.items():
            column = getattr(schema, roles[name])
            if field is None and column is not None:
                raise ConfigError(
                    f"DAT has a vector for each {roles[name]}, but no categorical field reads {column!r}, the "
                    f"schema's {roles[name]} column: add the field, set model.{name}, or use DSSM"
                )
        named = {name: field for name, field in results.items() if field is not None}
        return changed(self, named, "model") if named else self

    def build(self, layout: Layout) -> "DATNetwork":
        """A network with fresh weights."""
        return DATNetwork(self, layout)


def _id_field(layout: Layout, setting: str, name: str | None) -> "IdField":
    """The named field, or without a schema (`DAT.of_schema`) the first categorical one of the role."""
    role = "user" if setting == "user_id" else "item"
    results = {layout.fields[i].name: i for i in layout.positions(kind="id", role=role)}
    if name is None and results:
        return IdField(layout, next(iter(results.values())))
    if name in results:
        return IdField(layout, results[name])
    rule = f"DAT's {setting} must be a categorical field of role {role}"
    if name is None:
        raise ConfigError(
            f"{rule}, but the layout has none: add such a field to the schema, or use DSSM"
        )
    raise ConfigError(f"{rule}, found {name!r}: {nearest(name, results)}")


class IdField(nn.Module):
    """The ids of one categorical field, counted from 0."""

    def __init__(self, layout: Layout, position: int) -> None:
        super().__init__()
        field = layout.fields[position]
        self.offset = field.offset
        self.rows = field.rows
        self.column = layout.single_positions.index(position)
        local = torch.from_numpy(layout.local_rows()) if field.extents else None
        self.local_rows = None if local is None else nn.Buffer(local, persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        ids_B = batch.ids[:, self.column]
        return ids_B - self.offset if self.local_rows is None else self.local_rows[ids_B.long()]


class Augmented(nn.Module):
    """One learned vector per id, trained to match the other tower's output on the id's positive rows.

    Shape:
        forward: Batch of B rows -> [B, E]. `weight`: one row per id of the field.
    """

    reads_rows = True  # a table beside `FieldEmbedding`: integrated gradients ask

    def __init__(self, field: IdField, dim: int, *, std: float) -> None:
        super().__init__()
        self.field = field
        self.weight = nn.Parameter(torch.empty(field.rows, dim))
        self.row_blocks = [(field.rows,)]
        nn.init.normal_(self.weight, std=std)

    def forward(self, batch: Batch) -> Tensor:
        return F.embedding(self.field(batch), self.weight)


class DATNetwork(nn.Module):
    """`p = L2Norm(MLP([e_1, ..., e_n, a]))` of each side (Eq. 1), `logit = <p_u, p_v> / temperature + b`.

    Training adds `lambda_1 loss_u + lambda_2 loss_v + lambda_3 loss_CA` (Eq. 5), see `mimic_loss`
    and `category_alignment_loss`.

    NOTE[DIFF]: the paper's logit is the inner product alone, which for unit vectors after a ReLU
    lies in [0, 1], and its probability in [.5, .73]; here a temperature and b are learned.

    Shape:
        forward: Batch of B rows -> [B]. `user`, `item` -> [B, E], unit vectors for `cosine`;
            `score`: both -> [B].
    """

    def __init__(self, settings: DAT, layout: Layout) -> None:
        super().__init__()
        dim = settings.output_dim
        std = settings.embedding_std
        category = settings.category
        user_tower, item_tower = (
            Tower(positions, settings, joined=dim) for positions in sides(layout, "DAT")
        )
        user_id, item_id = (
            _id_field(layout, name, getattr(settings, name)) for name in ("user_id", "item_id")
        )
        self.embedding = settings.make_embedding(layout)
        self.user_tower = user_tower
        self.item_tower = item_tower
        self.user_augmented = Augmented(user_id, dim, std=std)
        self.item_augmented = Augmented(item_id, dim, std=std)
        self.similarity = Similarity(settings.similarity, temperature=settings.temperature)
        self.mimic_weights = settings.mimic_user_weight, settings.mimic_item_weight
        self.category = None if category is None else _id_field(layout, "category", category)
        self.category_weight = settings.category_weight
        # Read by the training loop: the mimic losses need positives.
        self.binary_settings = (
            ("mimic_user_weight", "mimic_item_weight") if any(self.mimic_weights) else ()
        )

    def forward(self, batch: Batch) -> Tensor:
        x_BAD = self.embedding(batch)
        represent = self.similarity.represent
        user_BE = represent(self.user_tower(x_BAD, self.user_augmented(batch)))
        return self.score(user_BE, represent(self.item_tower(x_BAD, self.item_augmented(batch))))

    def forward_with_auxiliary(self, batch: Batch, label_B: Tensor) -> tuple[Tensor, Tensor]:
        """The logit [B], and the weighted mimic and category losses (a scalar) to add to the mean training loss."""
        x_BAD = self.embedding(batch)
        represent = self.similarity.represent
        a_user_BE = self.user_augmented(batch)
        a_item_BE = self.item_augmented(batch)
        user_BE = represent(self.user_tower(x_BAD, a_user_BE))
        item_BE = represent(self.item_tower(x_BAD, a_item_BE))
        user_weight, item_weight = self.mimic_weights
        loss = user_weight * mimic_loss(a_user_BE, item_BE, label_B)
        loss = loss + item_weight * mimic_loss(a_item_BE, user_BE, label_B)
        if self.category is not None:
            categories_B = self.category(batch)
            number = self.category.rows
            loss = loss + self.category_weight * category_alignment_loss(
                item_BE, categories_B, number
            )
        return self.score(user_BE, item_BE), loss

    def user(self, batch: Batch) -> Tensor:
        return self.similarity.represent(
            self.user_tower(self.embedding(batch), self.user_augmented(batch))
        )

    def item(self, batch: Batch) -> Tensor:
        return self.similarity.represent(
            self.item_tower(self.embedding(batch), self.item_augmented(batch))
        )

    def score(self, user_BE: Tensor, item_BE: Tensor) -> Tensor:
        return self.similarity(user_BE, item_BE)

    def score_all(self, user_BE: Tensor, item_CE: Tensor) -> Tensor:
        return self.similarity.all(user_BE, item_CE)

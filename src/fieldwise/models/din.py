"""Deep Interest Network (Zhou et al., KDD 2018, arXiv 1706.06978), with the differences between its sources.

Letters: B batch, F fields, G bag fields, N values of all bags in a batch, D embedding size, R rows
of the shared table.
"""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import FieldEmbedding, hidden_layers, linear
from fieldwise.layers.activations import Activation, make_activation
from fieldwise.layers.attention import ActivationUnit, Inputs
from fieldwise.layout import Batch, FieldLayout, Layout
from fieldwise.models.registry import register_model
from fieldwise.models.settings import DataDefaults, EmbeddingSettings, Rate, Sizes, choices

Variant = Literal["paper", "authors", "authors_2020", "fuxictr"]


@dataclass(frozen=True, kw_only=True)
class _Choices:
    """The differences between the sources; the defaults are the paper's.

    `scale`: the unit's output is divided by sqrt(D). `interest_product`: see `DINNetwork`.
    """

    attention_inputs: Inputs = "outer"
    attention_hidden: tuple[int, ...] = (36,)
    attention_activation: Activation = "prelu"
    softmax: bool = False
    scale: bool = False
    interest_product: bool = False
    hidden: tuple[int, ...] = (200, 80)
    activation: Activation = "prelu"


# NOTE[DIFF]: the authors' experiment code also has a linear map of the interest (one more before
# the MLP's first), an item bias besides the MLP, and batch normalization that is never in training
# mode; omitted here.
_AUTHORS = _Choices(
    attention_inputs="difference_product",
    attention_hidden=(80, 40),
    attention_activation="sigmoid",
    softmax=True,
    scale=True,
    hidden=(80, 40),
    activation="sigmoid",
)
VARIANTS: dict[Variant, _Choices] = {
    "paper": _Choices(),
    "authors": _AUTHORS,
    "authors_2020": dataclasses.replace(_AUTHORS, interest_product=True),
    "fuxictr": _Choices(
        attention_inputs="difference_product",
        attention_hidden=(64,),
        attention_activation="dice",
        hidden=(512, 128, 64),
        activation="relu",
    ),
}


@register_model("din")
@dataclass(frozen=True, kw_only=True)
class DIN(EmbeddingSettings):
    """Settings of DIN. A setting whose default is None takes the variant's value.

    The schema needs a history that shares the rows of its items' field, as in
    `Sequence("history", shares="item_id")`; there may be several.

    Args:
        variant: `paper`, `authors` (their experiment code as first published), `authors_2020` (the
            same code since June 2020, whose MLP also reads every interest times its candidate,
            element-wise) or `fuxictr` (the code of the BARS runs).
        attention_inputs: the activation unit's inputs besides h and c: their flattened `outer`
            product (`paper`), their element-wise `product`, their `difference`, or both of the
            latter, `difference_product` (all others).
        attention_hidden: sizes of the unit's hidden layers.
        attention_activation: of these layers: `prelu` (`paper`), `dice` (`fuxictr`), `sigmoid`
            (both authors' codes), `relu` or another of `fieldwise.layers.activations`.
        softmax: the weights of a history sum to 1 (both authors' codes); the paper omits it, to
            keep the strength of an interest.
        attention_dropout: dropout rate of the unit's hidden units.
        hidden: sizes of the MLP's layers.
        activation: of these layers: `prelu` (`paper`), `dice` (the paper's better one), `relu`,
            `sigmoid` or another of `fieldwise.layers.activations`.
        mlp_dropout: dropout rate of the MLP's hidden units.
        batch_norm: BatchNorm after each of the MLP's linear layers (BARS).

    Errors:
        ConfigError: a setting out of range; `build`: no history that shares another field's rows.

    >>> DIN().build(Layout.of_sizes([3, 4]))
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: DIN attends to a history of items and needs a sequence that shares the rows of the \
items' field, found none: give the schema one, as in { kind = "sequence", name = "history", shares = "item_id" }
    """

    data_defaults = DataDefaults(settings={"mlp_dropout": 0.2})

    variant: Variant = "paper"
    attention_inputs: Inputs | None = None
    attention_hidden: Sizes | None = None
    attention_activation: Activation | None = None
    softmax: bool | None = None
    attention_dropout: Rate = 0.0
    hidden: Sizes | None = None
    activation: Activation | None = None
    mlp_dropout: Rate = 0.0
    batch_norm: bool = False

    def build(self, layout: Layout) -> "DINNetwork":
        """A network with fresh weights."""
        if not any(map(_is_history, layout.fields)):
            raise ConfigError(
                "DIN attends to a history of items and needs a sequence that shares the rows of the items' field, "
                'found none: give the schema one, as in { kind = "sequence", name = "history", shares = "item_id" }'
            )
        return DINNetwork(self, layout)


class DINNetwork(nn.Module):
    """`logit = MLP([x_1, ..., x_F])`, where the vector of a history is `sum_j a(h_j, c) h_j` (Equation 3).

    h_j is the embedding of the history's j-th value, c that of the row's own value of the field
    whose rows the history shares (the candidate), a the history's activation unit. All other fields
    have their own vectors.

    In `authors_2020` the MLP also reads `x_history * c` of every history, after the fields'
    vectors.

    A history without any value has the zero vector. The encoder encodes an empty cell as the single
    id "missing", so h is then that row's learned vector, and a its weight.

    NOTE[DIFF]: the paper concatenates the embeddings of one event (item, shop, category) and has
    one unit for them; here every history has its own unit and its own candidate. NOTE[DIFF]: the
    paper's last layer has two units and a softmax; here one unit gives the logit, the same model.
    NOTE[DIFF]: mini-batch aware regularization (Equation 6) is the trainer's `l2_rows = "touched"`:
    it counts the rows that a batch touches, but does not divide by how often they occur in the
    training rows.

    Parameters, by which L2 and warm starts name them: `embedding.weight` [R, D], `units.K.*` of the
    K-th history, `mlp.*`.

    Shape:
        forward: Batch of B rows -> [B]. `attention_weights` -> [N].
    """

    reads_rows = True  # of histories, value by value: integrated gradients ask

    def __init__(self, settings: DIN, layout: Layout) -> None:
        super().__init__()
        chosen = choices(settings, VARIANTS[settings.variant])
        dim = settings.embedding_dim
        histories = [i for i, f in enumerate(layout.fields) if _is_history(f)]
        # Fields whose vectors are multiplied: histories, and the candidate of each.
        self.interests = histories if chosen.interest_product else []
        inputs = (layout.num_fields + len(self.interests)) * dim
        make = functools.partial(make_activation, chosen.activation)
        dropout = settings.mlp_dropout
        layers = hidden_layers(
            inputs, chosen.hidden, make, dropout=dropout, batch_norm=settings.batch_norm
        )
        # A history is weighted by its activation unit, whatever pooling the schema gives for other
        # models.
        fields = [
            dataclasses.replace(f, pooling="sum") if _is_history(f) else f for f in layout.fields
        ]
        self.embedding = FieldEmbedding(Layout(tuple(fields)), dim, std=settings.embedding_std)
        self.units = nn.ModuleList(
            ActivationUnit(
                dim,
                chosen.attention_hidden,
                inputs=chosen.attention_inputs,
                activation=chosen.attention_activation,
                softmax=chosen.softmax,
                scale=chosen.scale,
                dropout=settings.attention_dropout,
            )
            for _ in histories
        )
        self.mlp = nn.Sequential(*layers, linear(chosen.hidden[-1], 1))
        bags = layout.positions(kind="bag")
        singles = [f.name for f in layout.single_fields]
        self.num_bags = len(bags)
        names = [f.name for f in layout.fields]
        self.candidates = [names.index(str(layout.fields[i].shares)) for i in self.interests]
        # For each history its position among the bags, and its candidate's among the single-valued
        # fields.
        self.places = [
            (bags.index(i), singles.index(str(layout.fields[i].shares))) for i in histories
        ]

    def forward(self, batch: Batch) -> Tensor:
        weighted = batch._replace(bag_weights=self.attention_weights(batch))
        x_BFD = self.embedding(weighted)
        if self.interests:
            x_BFD = torch.cat([x_BFD, x_BFD[:, self.interests] * x_BFD[:, self.candidates]], 1)
        return self.mlp(x_BFD.flatten(1)).squeeze(1)

    def attention_weights(self, batch: Batch) -> Tensor:
        """The weight of every value of every bag [N]: in a history a(h_j, c), in other bags the pooling's."""
        row_N = batch.bag_segments // self.num_bags
        bag_N = batch.bag_segments % self.num_bags
        h_ND = self.embedding.rows(batch.bag_ids)
        weights_N = batch.bag_weights.to(h_ND.dtype)
        # Every unit computes the values of all bags: selecting its own would make shapes depend on
        # the data.
        for unit, (bag, candidate) in zip(self.units, self.places, strict=True):
            own_N = bag_N == bag
            c_BD = self.embedding.rows(batch.ids[:, candidate])
            a_N = unit(
                h_ND,
                c_BD.index_select(0, row_N),
                own_N,
                batch.bag_segments,
                batch.ids.shape[0] * self.num_bags,
            )
            weights_N = torch.where(own_N, a_N, weights_N)
        return weights_N


def _is_history(f: FieldLayout) -> bool:
    return f.kind == "bag" and f.ordered and f.shares is not None

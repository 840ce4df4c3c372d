"""Shared parts of two-tower models: the interface, a tower, the similarity of representations, and auxiliary losses.

A loss whose rows depend on each other takes in the rows of all processes that share a batch, and is
in each of them the loss of the whole batch.

Letters: B batch, A all fields of a layout (of a loss: rows of all processes), F fields of a tower,
D embedding size, E size of a representation, P positive rows of B, C categories, V = E * E.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.distributed.process_group import all_gather_rows, all_reduce, span_of_rows
from fieldwise.errors import ConfigError
from fieldwise.layers import hidden_layers, index_buffer, linear
from fieldwise.layers.activations import Activation, make_activation
from fieldwise.layout import Batch
from fieldwise.models.settings import EmbeddingSettings, Positive, Rate, Size, Sizes
from fieldwise.ops.stored_items import StoredItems

SimilarityKind = Literal["dot", "cosine"]


@runtime_checkable
class TwoTower(Protocol):
    """Interface of networks that score a user and an item from one representation of each.

    An item's representation does not depend on the row's user and context fields, nor a user's on
    the item fields, so those of a catalogue can be computed once and stored:
    `score(user(batch), item(batch))` equals `forward(batch)`.
    """

    def user(self, batch: Batch, /) -> Tensor:
        """Representations of the rows' users in their contexts [B, ...]."""
        ...

    def item(self, batch: Batch, /) -> Tensor:
        """Representations of the rows' items [B, ...]."""
        ...

    def score(self, user: Tensor, item: Tensor, /) -> Tensor:
        """The logit [B] of representations, row by row."""
        ...


class HeadsNetwork(nn.Module, ABC):
    """Interface of two-tower networks whose items can be stored as heads, for an index and pre-ranking."""

    @abstractmethod
    def user(self, batch: Batch, /) -> Tensor: ...

    @abstractmethod
    def item(self, batch: Batch, /) -> Tensor: ...

    @abstractmethod
    def score_stored(
        self, user_BLHP: Tensor, items: StoredItems, rows: Tensor | None = None
    ) -> Tensor:
        """The logits [B, N] of every user with every stored item, or with those of `rows` [R] -> [B, R]."""


@dataclass(frozen=True, kw_only=True)
class TowerSettings(EmbeddingSettings):
    """Base class of DSSM's and DAT's settings (abstract); the defaults are DSSM's."""

    hidden: Sizes = (300, 300)
    output_dim: Size = 128
    activation: Activation = "tanh"
    output_activation: bool = True
    similarity: SimilarityKind = "cosine"
    temperature: Positive = 0.2
    mlp_dropout: Rate = 0.0
    batch_norm: bool = False

    def check(self) -> None:
        super().check()
        if self.similarity == "cosine" and self.output_dim == 1:
            raise ConfigError(
                "output_dim must be at least 2 for similarity 'cosine', found 1: use 'dot' or a larger output_dim"
            )


class Tower(nn.Module):
    """One tower: its fields' flattened vectors, hidden layers, and a layer for the representation.

    Args:
        positions: positions of the tower's fields in the layout.
        settings: the model's.
        joined: size of a vector appended to the flattened fields; 0 for none.

    Shape:
        forward: all fields' vectors [B, A, D], the appended vector [B, joined] -> [B, E].

    >>> Tower([0, 2], TowerSettings(embedding_dim=4, output_dim=5))(torch.zeros(3, 6, 4)).shape
    torch.Size([3, 5])
    """

    def __init__(self, positions: list[int], settings: TowerSettings, *, joined: int = 0) -> None:
        super().__init__()
        make = partial(make_activation, settings.activation)
        hidden = settings.hidden
        inputs = len(positions) * settings.embedding_dim + joined
        dropout = settings.mlp_dropout
        self.layers = nn.ModuleList(
            hidden_layers(inputs, hidden, make, dropout=dropout, batch_norm=settings.batch_norm)
        )
        self.output = linear(hidden[-1], settings.output_dim)
        self.activation = make(settings.output_dim) if settings.output_activation else None
        self.positions = index_buffer(positions)

    def forward(self, x_BAD: Tensor, joined: Tensor | None = None) -> Tensor:
        x = x_BAD.index_select(1, self.positions).flatten(1)
        if joined is not None:
            x = torch.cat([x, joined], 1)
        for layer in self.layers:
            x = layer(x)
        x_BE: Tensor = self.output(x)
        return x_BE if self.activation is None else self.activation(x_BE)


class Similarity(nn.Module):
    """`logit = u . v + b`, or `logit = cos(u, v) / temperature + b` with a learned temperature.

    The cosine alone lies in [-1, 1], and its sigmoid in [.27, .73]; so the temperature is learned,
    and so is b, the logit of two orthogonal vectors. For the cosine, representations are unit
    vectors, so that items can be searched by inner product in both cases.

    Args:
        kind: `dot` or `cosine`.
        temperature: initial value of the learned temperature; only for `cosine`.

    Shape:
        represent: [B, E] -> [B, E]; forward: two of these -> [B].

    >>> similarity = Similarity("cosine", temperature=0.25)
    >>> user, item = similarity.represent(torch.tensor([[3.0, 4.0]])), similarity.represent(torch.tensor([[6.0, 8.0]]))
    >>> round(float(similarity(user, item).detach()), 4)
    4.0
    """

    def __init__(self, kind: SimilarityKind, *, temperature: float) -> None:
        super().__init__()
        # The logarithm keeps the temperature positive, and a step of the same size changes it by
        # the same share.
        start = torch.tensor(-math.log(temperature))
        self.log_scale = nn.Parameter(start) if kind == "cosine" else None
        self.bias = nn.Parameter(torch.zeros(()))

    def represent(self, x_BE: Tensor) -> Tensor:
        """The representation to store: unit vectors for the cosine, the tower's output itself for the inner product."""
        return x_BE if self.log_scale is None else unit_vectors(x_BE)

    def forward(self, user_BE: Tensor, item_BE: Tensor) -> Tensor:
        return self._logit((user_BE * item_BE).sum(1))

    def all(self, user_BE: Tensor, item_CE: Tensor) -> Tensor:
        """The logits [B, C] of every user with every item."""
        return self._logit(user_BE @ item_CE.T)

    def _logit(self, product: Tensor) -> Tensor:
        if self.log_scale is not None:
            product = product * self.log_scale.exp()
        return product + self.bias


def unit_vectors(x_BE: Tensor) -> Tensor:
    """`x / |x|` for every row; a row of zeros is unchanged, with a finite gradient.

    A tower outputs zeros if all its fields are empty bags or missing numbers and its biases are
    still 0; dividing by a tiny number instead would produce a huge gradient.

    >>> unit_vectors(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    norm_B1: Tensor = torch.linalg.vector_norm(x_BE, dim=1, keepdim=True)
    return x_BE / norm_B1.masked_fill(norm_B1 == 0, 1.0)


def contrastive_loss(
    user_BE: Tensor, item_BE: Tensor, label_B: Tensor, *, temperature: float
) -> Tensor:
    """CIR: InfoNCE over a batch's positive rows, with cosine similarity (Li et al., CIKM 2022).

    For a positive row r: `-log(exp(c_rr) / sum over all rows s of the batch of exp(c_rs))`, c_rs =
    cos(u_r, v_s) / tau. The numerator is the row's own pair; the denominator pairs its user with
    the item of every row, positive or not, its own included. Returns the mean over positive rows, 0
    if there are none.

    Args:
        user_BE: the user side's vectors, such as the tower's last level.
        item_BE: the item side's.
        label_B: positive rows are those above 0.
        temperature: tau.

    Shape:
        user_BE, item_BE: [B, E]; label_B: [B]; returns a scalar.

    >>> same = torch.eye(2)
    >>> round(float(contrastive_loss(same, same, torch.tensor([1.0, 0.0]), temperature=1.0)), 4)
    0.3133
    """
    # Scores of positive rows only, P * A entries: rows without a loss cost nothing.
    positive_P = (label_B > 0).nonzero().squeeze(1)
    user_PE = unit_vectors(user_BE.index_select(0, positive_P)) / temperature
    scores_PA = user_PE @ all_gather_rows(unit_vectors(item_BE)).t()
    own_P = positive_P + span_of_rows(label_B.shape[0])[0]
    return all_reduce(F.cross_entropy(scores_PA, own_P, reduction="sum")) / max(
        span_of_rows(positive_P.shape[0])[1], 1
    )


def mimic_loss(augmented_BE: Tensor, other_BE: Tensor, label_B: Tensor) -> Tensor:
    """The mean over all rows of `|y a + (1 - y) p - p|^2`, p held fixed: only positive rows change a (Eq. 2).

    Args:
        augmented_BE: a, of one side's ids.
        other_BE: p, the other side's representations; no gradient flows into them.
        label_B: positive rows are those above 0.

    Shape:
        augmented_BE, other_BE: [B, E]; label_B: [B]; returns a scalar.

    >>> p = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> mimic_loss(torch.zeros(2, 2), p, torch.tensor([1.0, 0.0]))
    tensor(0.5000)
    """
    positive_B = (label_B > 0).to(augmented_BE.dtype)
    distance_B = (augmented_BE - other_BE.detach()).square().sum(1)
    return (positive_B * distance_B).sum() / max(distance_B.shape[0], 1)


def category_alignment_loss(item_BE: Tensor, category_B: Tensor, categories: int) -> Tensor:
    """`sum over the other categories of |C(major) - C(other)|_F^2`, C the covariance of a category's items (Eq. 3).

    The major category has the most rows in the batch. NOTE[DIFF]: the paper does not define the
    covariance estimate; here it divides by n - 1, and a category with fewer than two rows is
    skipped.

    Args:
        item_BE: the items' representations.
        category_B: their categories, integers below `categories`.
        categories: number of categories.

    Shape:
        item_BE: [B, E]; category_B: [B]; returns a scalar.

    >>> items = torch.tensor([[0.0], [2.0], [4.0], [5.0], [5.0]])
    >>> category_alignment_loss(items, torch.tensor([0, 0, 0, 1, 1]), 2)
    tensor(16.)
    """

    def per_category(values: Tensor) -> Tensor:
        return all_reduce(
            values.new_zeros(categories, values.shape[1]).index_add(0, category_B, values)
        )

    n_C1 = per_category(item_BE.new_ones(item_BE.shape[0], 1))
    mean_CE = per_category(item_BE) / n_C1.clamp(min=1)
    x_BE = item_BE - mean_CE[category_B]
    products_BV = torch.einsum("be,bf->bef", x_BE, x_BE).flatten(1)
    covariance_CV = per_category(products_BV) / (n_C1 - 1).clamp(min=1)
    distance_C1 = (covariance_CV - covariance_CV[n_C1.argmax()]).square().sum(1, keepdim=True)
    return (distance_C1 * (n_C1 > 1)).sum()

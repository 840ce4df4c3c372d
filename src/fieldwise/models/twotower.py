"""Shared parts of two-tower models: the interface, a tower, and the similarity of two representations.

Letters: B batch, A all fields of a layout, F fields of a tower, D embedding size, E size of a representation.
"""

import math
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import hidden_layers, linear
from fieldwise.layout import Batch, Layout
from fieldwise.models.checks import (
    check_at_least,
    check_choice,
    check_positive,
    check_shares,
    check_sizes,
    sides,
)
from fieldwise.models.settings import EmbeddingSettings

__all__ = ["Activation", "Similarity", "SimilarityKind", "Tower", "TowerSettings", "TwoTower", "unit_vectors"]

Activation = Literal["tanh", "relu"]
SimilarityKind = Literal["dot", "cosine"]


@runtime_checkable
class TwoTower(Protocol):
    """Interface of networks that score a user and an item from one representation of each.

    An item's representation does not depend on the row's user and context fields, nor a user's on the item fields, so
    those of a catalogue can be computed once and stored: `score(user(batch), item(batch))` equals `forward(batch)`.
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


@dataclass(frozen=True, kw_only=True)
class TowerSettings(EmbeddingSettings):
    """Base class of DSSM's and DAT's settings (abstract); the defaults are DSSM's."""

    hidden: tuple[int, ...] = (300, 300)
    output_dim: int = 128
    activation: Activation = "tanh"
    output_activation: bool = True
    similarity: SimilarityKind = "cosine"
    temperature: float = 0.2
    mlp_dropout: float = 0.0
    batch_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, output_dim=self.output_dim)
        check_sizes("hidden", self.hidden)
        check_choice("activation", self.activation, Activation)
        check_choice("similarity", self.similarity, SimilarityKind)
        if self.similarity == "cosine" and self.output_dim == 1:
            raise ConfigError(
                "output_dim must be at least 2 for similarity 'cosine', found 1: use 'dot' or a larger output_dim"
            )
        check_shares(mlp_dropout=self.mlp_dropout)
        check_positive(temperature=self.temperature)

    def towers(self, layout: Layout, model: str, *, joined: int = 0) -> tuple["Tower", "Tower"]:
        """The user tower and the item tower, with fresh weights."""
        user, item = (
            Tower(
                positions,
                self.embedding_dim,
                self.hidden,
                self.output_dim,
                activation=self.activation,
                output_activation=self.output_activation,
                dropout=self.mlp_dropout,
                batch_norm=self.batch_norm,
                joined=joined,
            )
            for positions in sides(layout, model)
        )
        return user, item


class Tower(nn.Module):
    """One tower: its fields' flattened vectors, hidden layers, and a layer for the representation.

    Args:
        positions: positions of the tower's fields in the layout.
        embedding_dim: D.
        hidden: sizes of the hidden layers (Linear, optional BatchNorm, activation, Dropout).
        output_dim: E.
        activation: of the hidden units.
        output_activation: whether the representation's units have it too.
        dropout: dropout rate of the hidden units.
        batch_norm: BatchNorm after each hidden linear layer.
        joined: size of a vector appended to the flattened fields; 0 for none.

    Shape:
        forward: all fields' vectors [B, A, D], the appended vector [B, joined] -> [B, E].

    >>> Tower([0, 2], 4, (8,), 5)(torch.zeros(3, 6, 4)).shape
    torch.Size([3, 5])
    """

    positions: Tensor

    def __init__(
        self,
        positions: list[int],
        embedding_dim: int,
        hidden: tuple[int, ...],
        output_dim: int,
        *,
        activation: Activation = "relu",
        output_activation: bool = False,
        dropout: float = 0.0,
        batch_norm: bool = False,
        joined: int = 0,
    ) -> None:
        super().__init__()
        unit = nn.Tanh if activation == "tanh" else nn.ReLU
        inputs = len(positions) * embedding_dim + joined
        self.layers = nn.ModuleList(
            hidden_layers(inputs, hidden, lambda _: unit(), dropout=dropout, batch_norm=batch_norm)
        )
        self.output = linear(hidden[-1], output_dim)
        self.activation = unit() if output_activation else None
        self.register_buffer("positions", torch.tensor(positions, dtype=torch.int64), persistent=False)

    def forward(self, x_BAD: Tensor, joined: Tensor | None = None) -> Tensor:
        """The representation [B, E]."""
        x = x_BAD.index_select(1, self.positions).flatten(1)
        if joined is not None:
            x = torch.cat([x, joined], 1)
        for layer in self.layers:
            x = layer(x)
        x_BE: Tensor = self.output(x)
        return x_BE if self.activation is None else self.activation(x_BE)


class Similarity(nn.Module):
    """`logit = u . v + b`, or `logit = cos(u, v) / temperature + b` with a learned temperature.

    The cosine alone lies in [-1, 1], and its sigmoid in [.27, .73]; so the temperature is learned, and so is b, the
    logit of two orthogonal vectors. For the cosine, representations are unit vectors, so that items can be searched by
    inner product in both cases.

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
        # The logarithm keeps the temperature positive, and a step of the same size changes it by the same share.
        start = torch.tensor(-math.log(temperature))
        self.log_scale = nn.Parameter(start) if kind == "cosine" else None
        self.bias = nn.Parameter(torch.zeros(()))

    def represent(self, x_BE: Tensor) -> Tensor:
        """The representation to store: unit vectors for the cosine, the tower's output itself for the inner product."""
        return x_BE if self.log_scale is None else unit_vectors(x_BE)

    def forward(self, user_BE: Tensor, item_BE: Tensor) -> Tensor:
        """The logit [B] of representations, row by row."""
        logit_B: Tensor = (user_BE * item_BE).sum(1)
        if self.log_scale is not None:
            logit_B = logit_B * self.log_scale.exp()
        return logit_B + self.bias


def unit_vectors(x_BE: Tensor) -> Tensor:
    """`x / |x|` for every row; a row of zeros is unchanged, with a finite gradient.

    A tower outputs zeros if all its fields are empty bags or missing numbers and its biases are still 0; dividing by a
    tiny number instead would produce a huge gradient.

    >>> unit_vectors(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    norm_B1: Tensor = torch.linalg.vector_norm(x_BE, dim=1, keepdim=True)
    return x_BE / norm_B1.masked_fill(norm_B1 == 0, 1.0)

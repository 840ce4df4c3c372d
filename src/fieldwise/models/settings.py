"""Base classes of model settings."""

from dataclasses import dataclass
from typing import Protocol

from torch import nn

from fieldwise.config import Settings
from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Layout
from fieldwise.models.checks import check_at_least, check_flags, check_positive

__all__ = ["EmbeddingSettings", "ModelSettings"]


class ModelSettings(Protocol):
    """The interface of every model's settings."""

    def build(self, layout: Layout) -> nn.Module:
        """A network with new weights, initialized with torch's global random generator."""
        ...


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(Settings):
    """Base class for settings of models with one embedding table (abstract).

    A model declares its own settings and overrides defaults where they differ; its `__post_init__`, if any, calls this
    one first.

    Args:
        embedding_dim: D.
        embedding_std: standard deviation of the embeddings' initial values.

    Errors:
        ConfigError: a setting out of range, or a setting declared as bool that is not a bool.
    """

    embedding_dim: int = 16
    embedding_std: float = 0.01

    def __post_init__(self) -> None:
        check_flags(self)
        check_at_least(1, embedding_dim=self.embedding_dim)
        check_positive(embedding_std=self.embedding_std)

    def make_embedding(self, layout: Layout) -> FieldEmbedding:
        """The embedding table of the layout's fields, with fresh weights."""
        return FieldEmbedding(layout, self.embedding_dim, std=self.embedding_std)

"""DeepCrossing (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["DeepCrossing", "DeepCrossingNetwork"]


@dataclass(frozen=True, kw_only=True)
class DeepCrossing:
    """Settings of DeepCrossing."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "DeepCrossingNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class DeepCrossingNetwork(nn.Module):
    """Stub."""

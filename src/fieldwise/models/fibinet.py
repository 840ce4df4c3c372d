"""FiBiNET (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["FiBiNET", "FiBiNETNetwork"]


@dataclass(frozen=True, kw_only=True)
class FiBiNET:
    """Settings of FiBiNET."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "FiBiNETNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class FiBiNETNetwork(nn.Module):
    """Stub."""

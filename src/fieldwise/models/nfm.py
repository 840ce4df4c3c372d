"""NFM (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["NFM", "NFMNetwork"]


@dataclass(frozen=True, kw_only=True)
class NFM:
    """Settings of NFM."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "NFMNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class NFMNetwork(nn.Module):
    """Stub."""

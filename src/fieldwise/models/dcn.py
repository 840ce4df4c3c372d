"""DCN (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["DCN", "DCNNetwork"]


@dataclass(frozen=True, kw_only=True)
class DCN:
    """Settings of DCN."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "DCNNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class DCNNetwork(nn.Module):
    """Stub."""

"""DIN (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["DIN", "DINNetwork"]


@dataclass(frozen=True, kw_only=True)
class DIN:
    """Settings of DIN."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "DINNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class DINNetwork(nn.Module):
    """Stub."""

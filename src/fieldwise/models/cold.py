"""COLD (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["COLD", "COLDNetwork"]


@dataclass(frozen=True, kw_only=True)
class COLD:
    """Settings of COLD."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "COLDNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class COLDNetwork(nn.Module):
    """Stub."""

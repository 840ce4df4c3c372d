"""DCNv2 (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["DCNv2", "DCNv2Network"]


@dataclass(frozen=True, kw_only=True)
class DCNv2:
    """Settings of DCNv2."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "DCNv2Network":
        """A network with fresh weights."""
        raise NotImplementedError


class DCNv2Network(nn.Module):
    """Stub."""

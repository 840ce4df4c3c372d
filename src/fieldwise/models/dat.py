"""DAT (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["DAT", "DATNetwork"]


@dataclass(frozen=True, kw_only=True)
class DAT:
    """Settings of DAT."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "DATNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class DATNetwork(nn.Module):
    """Stub."""

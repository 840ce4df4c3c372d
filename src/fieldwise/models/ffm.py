"""FFM (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["FFM", "FFMNetwork"]


@dataclass(frozen=True, kw_only=True)
class FFM:
    """Settings of FFM."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "FFMNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class FFMNetwork(nn.Module):
    """Stub."""

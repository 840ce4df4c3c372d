"""HOFM (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["HOFM", "HOFMNetwork"]


@dataclass(frozen=True, kw_only=True)
class HOFM:
    """Settings of HOFM."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "HOFMNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class HOFMNetwork(nn.Module):
    """Stub."""

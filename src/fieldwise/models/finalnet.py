"""FinalNet (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["FinalNet", "FinalNetNetwork"]


@dataclass(frozen=True, kw_only=True)
class FinalNet:
    """Settings of FinalNet."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "FinalNetNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class FinalNetNetwork(nn.Module):
    """Stub."""

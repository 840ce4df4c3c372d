"""FinalMLP (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["FinalMLP", "FinalMLPNetwork"]


@dataclass(frozen=True, kw_only=True)
class FinalMLP:
    """Settings of FinalMLP."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "FinalMLPNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class FinalMLPNetwork(nn.Module):
    """Stub."""

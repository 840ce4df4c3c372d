"""FwFM (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["FwFM", "FwFMNetwork"]


@dataclass(frozen=True, kw_only=True)
class FwFM:
    """Settings of FwFM."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "FwFMNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class FwFMNetwork(nn.Module):
    """Stub."""

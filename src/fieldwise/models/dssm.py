"""DSSM (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["DSSM", "DSSMNetwork"]


@dataclass(frozen=True, kw_only=True)
class DSSM:
    """Settings of DSSM."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "DSSMNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class DSSMNetwork(nn.Module):
    """Stub."""

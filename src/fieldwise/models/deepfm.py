"""DeepFM (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["DeepFM", "DeepFMNetwork"]


@dataclass(frozen=True, kw_only=True)
class DeepFM:
    """Settings of DeepFM."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "DeepFMNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class DeepFMNetwork(nn.Module):
    """Stub."""

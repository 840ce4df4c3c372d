"""XDeepFM (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["XDeepFM", "XDeepFMNetwork"]


@dataclass(frozen=True, kw_only=True)
class XDeepFM:
    """Settings of XDeepFM."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "XDeepFMNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class XDeepFMNetwork(nn.Module):
    """Stub."""

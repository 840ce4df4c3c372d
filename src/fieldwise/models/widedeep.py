"""WideDeep (stub)."""

from dataclasses import dataclass

from torch import nn

from fieldwise.layout import Layout

__all__ = ["WideDeep", "WideDeepNetwork"]


@dataclass(frozen=True, kw_only=True)
class WideDeep:
    """Settings of WideDeep."""

    embedding_dim: int = 16

    def build(self, layout: Layout) -> "WideDeepNetwork":
        """A network with fresh weights."""
        raise NotImplementedError


class WideDeepNetwork(nn.Module):
    """Stub."""

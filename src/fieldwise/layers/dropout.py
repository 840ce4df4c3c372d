"""Dropout as a layer."""

from torch import Tensor, nn

from fieldwise.ops.dropout import dropout

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """Dropout (`fieldwise.ops.dropout`) in training mode, the identity otherwise.

    Args:
        p: dropout rate of the elements.

    Shape:
        forward: [B, ...] -> the same.

    >>> Dropout(0.5)
    Dropout(p=0.5)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """The input with elements dropped and the others scaled."""
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """The dropout rate."""
        return f"p={self.p}"

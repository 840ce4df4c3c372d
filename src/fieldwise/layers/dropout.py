"""Dropout as a layer."""

from torch import Tensor, nn

from fieldwise.ops.dropout import dropout

__all__ = ["Dropout"]


class Dropout(nn.Module):
    """`fieldwise.ops.dropout` in training, nothing otherwise.

    Args:
        p: share of the elements dropped.

    Shape:
        forward: [B, ...] -> the same.

    >>> Dropout(0.5)
    Dropout(p=0.5)
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """The elements that stay, scaled."""
        return dropout(x, self.p, self.training)

    def extra_repr(self) -> str:
        """The share."""
        return f"p={self.p}"

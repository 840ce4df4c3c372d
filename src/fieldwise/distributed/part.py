"""The rows of a batch that one of several processes takes."""

from dataclasses import dataclass

__all__ = ["ALL", "Part"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The consecutive rows of every batch that process `rank` of `size` takes; parts differ by one row at most.

    >>> [Part(rank=rank, size=3).of(7) for rank in range(3)]
    [(0, 2), (2, 4), (4, 7)]
    """

    rank: int = 0
    size: int = 1

    def of(self, rows: int) -> tuple[int, int]:
        """The first of its rows in a batch of `rows`, and one more than the last."""
        return rows * self.rank // self.size, rows * (self.rank + 1) // self.size

    def within(self, rows: int, first: int) -> slice:
        """Its rows in a piece of a batch of `rows` that begins at the batch's row `first`, as places in the piece.

        >>> part = Part(rank=1, size=2)
        >>> [list(range(10, 14))[part.within(6, 0)], list(range(14, 16))[part.within(6, 4)]]
        [[13], [14, 15]]
        """
        low, high = self.of(rows)
        return slice(max(0, low - first), max(0, high - first))


ALL = Part()
"""All rows: there is one process."""

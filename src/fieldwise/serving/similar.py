"""Similar items: the items with the nearest heads."""

import numpy as np
import torch

from fieldwise.ops.stored_items import StoredItems
from fieldwise.scoring.ranking import best_places
from fieldwise.serving.index import ItemIndex

__all__ = ["SimilarItems"]


class SimilarItems:
    """Finds the items nearest to an item of an index.

    Args:
        index: heads of the catalogue; they are kept a second time, with length 1.
    """

    def __init__(self, index: ItemIndex) -> None:
        self._size = len(index)
        self._directions = _directions(index)

    def nearest(self, place: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest items to the item at a position, without the item itself.

        Returns:
            Their positions, the nearest first, and the mean over the item's heads of the best cosine.
        """
        heads = _floats(self._directions[place : place + 1])[0]
        scores = self._directions.scores(heads).numpy() / len(heads)
        scores[place] = -np.inf
        best = best_places(scores, min(k, self._size - 1))
        return best, scores[best].astype(np.float64)


def _directions(index: ItemIndex) -> StoredItems:
    """The heads with length 1, stored like those of the index."""
    stored, bits = index.stored, index.stored.storage == "bfloat16"

    def make() -> dict[str, np.ndarray]:
        unit = StoredItems.of(torch.nn.functional.normalize(_floats(stored), dim=2), stored.storage)
        return {name: (one.view(torch.int16) if bits else one).numpy() for name, one in unit.tensors().items()}

    arrays = index.arrays("directions", stored.tensors(), make)
    found = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return StoredItems.from_tensors({name: one.view(torch.bfloat16) if bits else one for name, one in found.items()})


def _floats(stored: StoredItems) -> torch.Tensor:
    heads = stored.heads.to(torch.float32)
    return heads if stored.scale is None else heads * stored.scale.unsqueeze(2)

"""Full rows of a few contexts and many candidates as embedding vectors, with a cache for a catalogue's vectors.

Letters: C contexts, N items of a catalogue, R rows, F fields, I of them the candidates', D embedding size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from fieldwise.layers import FieldEmbedding
from fieldwise.layers.candidates import Split
from fieldwise.layers.embedding import Assembled
from fieldwise.layout import Batch
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.scoring.batches import SCORING_BATCH
from fieldwise.scoring.candidates import joined

__all__ = ["Catalogue", "SharedRows", "score_pairs"]

Keep = Callable[[FieldEmbedding, Callable[[], Tensor]], Tensor]
KEPT_BYTES = 1 << 28  # maximum size of the cached vectors of a catalogue, per embedding


class Catalogue:
    """A catalogue of candidates, with their cached vectors from the embeddings of fixed networks.

    Args:
        split: the split of fields.
        size: N.
        batch: returns encoded rows [R] by number (a slice, or int64), as a batch of `split.candidates.layout`.
        keep: returns the vectors of an embedding to be cached, which a function makes: the result of that function, or
            vectors that are equal to it.
    """

    def __init__(
        self, split: Split, size: int, batch: Callable[[slice | Tensor], Batch], keep: Keep = lambda _, make: make()
    ) -> None:
        self.split, self.size, self.batch, self.keep = split, size, batch, keep
        self._kept: WeakKeyDictionary[FieldEmbedding, tuple[Tensor, int, Tensor]] = WeakKeyDictionary()

    def vectors(self, embedding: FieldEmbedding, rows: Tensor) -> Tensor:
        """The fields' vectors of some items [R, I, D]; those of all items are cached, up to 256 MiB per embedding."""
        side, weight = self.split.candidates, embedding.weight
        if self.size * len(side.positions) * weight.shape[1] * weight.element_size() > KEPT_BYTES:
            found: Tensor = side.reader(embedding)(self.batch(rows))
            return found
        kept = self._kept.get(embedding)
        if kept is None or kept[0] is not weight or kept[1] != weight._version:
            vectors = self._every(embedding) if kept else self.keep(embedding, partial(self._every, embedding))
            kept = self._kept[embedding] = (weight, weight._version, vectors)
        return kept[2].index_select(0, rows)

    def _every(self, embedding: FieldEmbedding) -> Tensor:
        """The vectors of all items."""
        reader = self.split.candidates.reader(embedding)
        starts = range(0, self.size, SCORING_BATCH)
        return torch.cat([reader(self.batch(slice(start, min(start + SCORING_BATCH, self.size)))) for start in starts])


class SharedRows(Assembled):
    """A batch of R rows, each one of C contexts with an item of a catalogue.

    Embeddings read the vectors; anything else is read from the joined batch, which is made when needed.

    Args:
        catalogue: the items.
        contexts: C rows of the split's context.
        rows: int64 [R], item numbers.
        owner: int64 [R], the context of each row.
    """

    def __init__(self, catalogue: Catalogue, contexts: Batch, rows: Tensor, owner: Tensor) -> None:
        self.catalogue, self.contexts, self.rows, self.owner = catalogue, contexts, rows, owner
        self._joined: Batch | None = None

    @property
    def size(self) -> int:
        """R."""
        return len(self.rows)

    def vectors(self, embedding: FieldEmbedding) -> Tensor:
        """The vectors of all fields [R, F, D]."""
        split = self.catalogue.split
        own_RCD = split.context.reader(embedding)(self.contexts).index_select(0, self.owner)
        x_RFD = torch.cat([own_RCD, self.catalogue.vectors(embedding, self.rows)], 1)
        return x_RFD.index_select(1, split.order.to(x_RFD.device))

    def __getattr__(self, name: str) -> Any:
        if self._joined is None:
            candidates = self.catalogue.batch(self.rows)
            self._joined = joined(self.catalogue.split, self.contexts, candidates, self.owner)
        return getattr(self._joined, name)


def score_pairs(network: nn.Module, catalogue: Catalogue, contexts: Batch, rows: Tensor, owner: Tensor) -> Tensor:
    """Scores [R] (or [R, T] with several labels) of items, each in its own context, some pairs at a time.

    Args:
        network: in evaluation mode.
        catalogue: the items.
        contexts: C rows of the split's context.
        rows: int64 [R], item numbers, at least one.
        owner: int64 [R], the context of each row.
    """
    parts = zip(torch.split(rows, SCORING_BATCH), torch.split(owner, SCORING_BATCH), strict=True)
    with torch.no_grad(), flushed_denormals():
        return torch.cat([network(SharedRows(catalogue, contexts, *part)) for part in parts])

"""A bundle's view of requests: its item and context columns, and the catalogue, encoded once."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.row import encode_row
from fieldwise.data.table import ARRAYS, EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.layers import FieldEmbedding
from fieldwise.layers.candidates import Split
from fieldwise.layout import Batch
from fieldwise.ops.devices import device_of
from fieldwise.scoring.batches import in_numpy
from fieldwise.scoring.candidates import score_candidates, stacked
from fieldwise.scoring.request import context_row, split_columns
from fieldwise.scoring.shared_rows import Catalogue, SharedRows, score_pairs
from fieldwise.serving.index_heads import check_columns_apart
from fieldwise.serving.items import ItemTable

__all__ = ["RequestSide"]


@dataclass(frozen=True, eq=False)
class RequestSide:
    """A bundle's view of requests: its item and context columns, and the catalogue's encoded item fields.

    Args:
        index: the catalogue; None if `items` are other rows.
    """

    bundle: Bundle
    split: Split
    items: EncodedTable
    columns: tuple[str, ...]
    index: ItemTable | None

    @classmethod
    def of(cls, bundle: Bundle, index: ItemTable, items: pl.DataFrame | None = None) -> "RequestSide":
        """Create a bundle's view for a catalogue.

        Args:
            bundle: the scoring bundle.
            index: the catalogue.
            items: rows to encode; the whole catalogue if omitted.

        Errors:
            ConfigError: a schema without item fields or context fields, or a column that both sides read.
            DataError: the items lack a column.
        """
        schema = bundle.schema
        check_columns_apart(schema)
        own = {f.column for f in schema.with_role("item")}
        if not own or len(own) == len(schema.columns):
            side = "user or context" if own else "item"
            raise ConfigError(
                f"a bundle that recommends reads items and contexts, found a schema without fields of role {side}: "
                "set the roles of its fields"
            )
        missing = [column for column in sorted(own) if column not in index.items.columns]
        if missing:
            raise DataError(
                f"the {index.what}'s items must hold every column of the ranking bundle's item fields: {missing[0]!r} "
                f"is missing among {', '.join(index.items.columns)}; take them from a table that has it"
            )
        columns = tuple(column for column in schema.columns if column not in own)
        split = split_columns(bundle.encoder, bundle.encoder.layout, columns, own)
        part = split.candidates.layout
        if items is not None:
            return cls(bundle, split, bundle.encoder.transform_part(items, part), columns, None)

        def encoded() -> dict[str, np.ndarray]:
            table = bundle.encoder.transform_part(index.items, part)
            return {name: getattr(table, name) for name in ARRAYS}

        arrays = index.arrays("encoded", ARRAYS, encoded, of=bundle.digest)
        return cls(bundle, split, EncodedTable(part, **arrays), columns, index)

    def context(self, values: Mapping[str, Any]) -> Batch:
        """The single row of the context, encoded."""
        missing = [column for column in self.columns if column not in values]
        if missing:
            raise DataError(
                f"a context must hold every user and context column of the model, found no {missing[0]!r}: give it, or "
                "null if it is unknown"
            )
        encoder, part = self.bundle.encoder, self.split.context.layout
        found = encode_row(encoder, part, values)
        if found is None:
            return encoder.transform_part(context_row(values, self.columns), part).batch(slice(0, 1))[0]
        return found

    def score(self, context: Batch, rows: Tensor) -> np.ndarray:
        """Scores of items [R] in one context for the main label, float64."""
        return _main(score_candidates(self.bundle.network, self.split, context, self.items.batch(rows)[0]))

    def rows(self, contexts: SequenceOf[Batch], rows: Tensor, owner: Tensor) -> Any:
        """A batch of items [R], each with its context."""
        whole = stacked(contexts, self.split.context.num_bags).to(self.device)
        return SharedRows(self.catalogue, whole, rows.to(self.device), owner.to(self.device))

    def score_rows(self, contexts: SequenceOf[Batch], rows: Tensor, owner: Tensor) -> np.ndarray:
        """Scores of items [R], each in its own context, for the main label, float64."""
        whole = stacked(contexts, self.split.context.num_bags).to(self.device)
        pairs = rows.to(self.device), owner.to(self.device)
        return _main(score_pairs(self.bundle.network, self.catalogue, whole, *pairs))

    @cached_property
    def catalogue(self) -> Catalogue:
        """The encoded item fields for the network."""
        # not self, a reference cycle: memory is freed at once on replacement
        items, device, index, bundle = self.items, self.device, self.index, self.bundle

        def batch(rows: slice | Tensor) -> Batch:
            return items.batch(rows if isinstance(rows, slice) else rows.cpu())[0].to(device)

        def keep(embedding: FieldEmbedding, make: Callable[[], Tensor]) -> Tensor:
            if index is None or device.type != "cpu" or embedding.weight.dtype != torch.float32:
                return make()
            number = next(n for n, module in enumerate(bundle.network.modules()) if module is embedding)
            names = (f"{number}",)
            arrays = index.arrays("vectors", names, lambda: {names[0]: make().numpy()}, of=bundle.digest)
            return torch.from_numpy(arrays[names[0]])

        return Catalogue(self.split, len(items), batch, keep)

    @cached_property
    def device(self) -> torch.device:
        """The device of the bundle's network."""
        return device_of(self.bundle.network)

    def prediction(self, score: np.ndarray) -> np.ndarray:
        """Probabilities, or numbers within the label's range."""
        return self.bundle.main_prediction(score)


def _main(score: Tensor) -> np.ndarray:
    return in_numpy(score if score.dim() == 1 else score[:, 0])

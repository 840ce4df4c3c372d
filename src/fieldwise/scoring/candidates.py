"""Scores of candidates in contexts: of one request, whose context's part is computed once, and of a catalogue's items.

A catalogue's fields are encoded once, and their vectors are kept.

Letters: C contexts, N candidates, R rows of a catalogue, F fields, I of them the candidates', D
embedding size, G bags, M values of bags, T labels.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, cast
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
import torch
from polars.exceptions import PolarsError
from torch import Tensor, nn

from fieldwise.data.encode.encoder import Encoder, encode_row
from fieldwise.data.table import EncodedTable, array_names
from fieldwise.errors import ConfigError, DataError
from fieldwise.layers import FieldEmbedding, FirstOrder
from fieldwise.layers.candidates import Part, SharesContext, Split, first_order_candidates
from fieldwise.layers.embedding import Assembled
from fieldwise.layout import Bags, Batch
from fieldwise.models.mean_with_lr import MeanWithLR
from fieldwise.models.multitask import MultiTask
from fieldwise.models.twotower import TwoTower
from fieldwise.ops.devices import device_of
from fieldwise.schema import Schema
from fieldwise.scoring.batches import SCORING_BATCH, finite, scoring_mode
from fieldwise.scoring.items import ItemTable

__all__ = ["CatalogueScorer", "Model", "score_candidates", "shares_context"]

MAX_CACHED_BYTES = 1 << 28
"""Of the vectors of a catalogue, per embedding."""


class Model(Protocol):
    """What ranking needs of a bundle."""

    @property
    def schema(self) -> Schema:
        """The meaning of the columns."""

    @property
    def encoder(self) -> Encoder:
        """Encodes rows."""

    @property
    def network(self) -> nn.Module:
        """Scores encoded rows."""

    @property
    def digest(self) -> str:
        """Determines the scores."""

    def main_prediction(self, score: np.ndarray) -> np.ndarray:
        """Predictions from the main label's scores [N]."""


class CatalogueScorer:
    """A model's scores of a catalogue's items.

    Args:
        model: the bundle that scores.
        items: the catalogue.
        own: columns that are read from the items, not from contexts; those of the item fields if
            omitted.

    Errors:
        ConfigError: without `own`, a schema without item fields or context fields, or a column that
            both sides read.
        DataError: the items lack a column.
    """

    def __init__(self, model: Model, items: ItemTable, own: Collection[str] | None = None) -> None:
        columns = model.schema.columns
        if own is None:
            check_columns_apart(model.schema)
            own = {field.column for field in model.schema.with_role("item")}
            if not own or len(own) == len(columns):
                missing_role = "user or context" if own else "item"
                raise ConfigError(
                    "a bundle that recommends reads items and contexts, found a schema without fields of role "
                    f"{missing_role}: set the roles of its fields"
                )
        missing = sorted(set(own).intersection(columns).difference(items.items.columns))
        if missing:
            raise DataError(
                f"the {items.what}'s items must hold every column of the ranking bundle's item fields: {missing[0]!r} "
                f"is missing among {', '.join(items.items.columns)}; take them from a table that has it"
            )
        self.model = model
        self.items = items
        self.device = device_of(model.network)
        self.columns = tuple(column for column in columns if column not in own)
        encoder = model.encoder
        context_fields = [k for k, field in enumerate(encoder.fields) if field.column not in own]
        self.split = Split.of(encoder.layout, context_fields)
        part = self.split.candidates.layout

        def encoded() -> dict[str, np.ndarray]:
            return encoder.transform(items.items, part=part).arrays()

        arrays = items.arrays("encoded", array_names(part), encoded, lambda: model.digest)
        self.table = EncodedTable.of_arrays(part, arrays).with_matrices(encoder.matrices)
        # by embedding: its weights and their version, and the vectors made of them
        self._vectors: WeakKeyDictionary[FieldEmbedding, tuple[Tensor, int, Tensor]] = (
            WeakKeyDictionary()
        )

    def context(self, values: Mapping[str, Any]) -> Batch:
        """The single row of a context, encoded.

        Errors:
            DataError: the context lacks a column or has an invalid value.
        """
        missing = [column for column in self.columns if column not in values]
        if missing:
            raise DataError(
                f"a context must hold every user and context column of the model, found no {missing[0]!r}: give it, or "
                "null if it is unknown"
            )
        encoder = self.model.encoder
        part = self.split.context.layout
        encoded = encode_row(encoder, part, values)
        if encoded is None:
            table = encoder.transform(context_row(values, self.columns), part=part)
            encoded, _ = table.batch(slice(0, 1))
        return encoded

    def score(self, contexts: Batch, rows: Tensor, owner: Tensor | None = None) -> np.ndarray:
        """Scores of items [R, T], float64.

        Args:
            contexts: C encoded rows.
            rows: item numbers, int64 [R].
            owner: the context of each row, int64 [R]; None if there is one context, as in
                `score_candidates`.
        """
        if not len(rows):
            return np.zeros((0, len(self.model.schema.labels)))
        if self.device.type != "cpu":
            contexts = contexts.to(self.device)
            rows = rows.to(self.device)
            owner = None if owner is None else owner.to(self.device)
        context_part = Part(self.split.context, contexts)
        item_part = CatalogueRows(self, rows)
        scores = score_candidates(self.model.network, self.split, context_part, item_part, owner)
        return finite(scores.cpu().double().numpy().reshape(len(rows), -1))

    def batch(self, rows: slice | Tensor) -> Batch:
        """The encoded fields of items by number."""
        return self.table.batch(rows if isinstance(rows, slice) else rows.cpu())[0].to(self.device)

    def vectors(self, embedding: FieldEmbedding, rows: Tensor) -> Tensor:
        """The vectors of items' fields [R, I, D]; those of all items are cached, up to 256 MiB per embedding."""
        side = self.split.candidates
        weight = embedding.weight
        row_bytes = len(side.positions) * weight.shape[1] * weight.element_size()
        if len(self.items) * row_bytes > MAX_CACHED_BYTES:
            vectors: Tensor = side.reader(embedding)(self.batch(rows))
            return vectors
        cached = self._vectors.get(embedding)
        if cached is None or cached[0] is not weight or cached[1] != weight._version:
            is_numpy_memory = self.device.type == "cpu" and weight.dtype == torch.float32
            # the processes of a server share the vectors of weights that have never changed
            if cached is None and self.items.shared is not None and is_numpy_memory:
                all_vectors = self._shared_vectors(embedding)
            else:
                all_vectors = self._vectors_of_all(embedding)
            cached = self._vectors[embedding] = weight, weight._version, all_vectors
        return cached[2].index_select(0, rows)

    def _vectors_of_all(self, embedding: FieldEmbedding) -> Tensor:
        reader = self.split.candidates.reader(embedding)
        size = len(self.table)
        starts = range(0, size, SCORING_BATCH)
        return torch.cat(
            [reader(self.batch(slice(k, min(k + SCORING_BATCH, size)))) for k in starts]
        )

    def _shared_vectors(self, embedding: FieldEmbedding) -> Tensor:
        """The vectors of all items in a file of the server's processes, named by the embedding's number."""
        modules = list(self.model.network.modules())
        name = str(next(k for k, module in enumerate(modules) if module is embedding))
        arrays = self.items.arrays(
            "vectors",
            (name,),
            lambda: {name: self._vectors_of_all(embedding).numpy()},
            lambda: self.model.digest,
        )
        return torch.from_numpy(arrays[name])


class CatalogueRows(Part):
    """Items by number, int64 [R] on the network's device, whose vectors are the scorer's."""

    def __init__(self, scorer: CatalogueScorer, numbers: Tensor) -> None:
        self.side = scorer.split.candidates
        self.scorer = scorer
        self.numbers = numbers

    @property
    def size(self) -> int:
        """R."""
        return len(self.numbers)

    @cached_property
    def batch(self) -> Batch:  # type: ignore[override]  # made when it is read
        """Their encoded fields."""
        return self.scorer.batch(self.numbers)

    def vectors(self, embedding: FieldEmbedding) -> Tensor:
        """The fields' vectors [R, I, D]."""
        return self.scorer.vectors(embedding, self.numbers)

    def rows(self, rows: slice) -> "CatalogueRows":
        """Some of them."""
        return CatalogueRows(self.scorer, self.numbers[rows])


def check_columns_apart(schema: Schema) -> None:
    """Refuse a column that both an item field and another field read: a request gives it for one side only."""
    items = {f.column: f.name for f in schema.with_role("item")}
    for field in schema.fields:
        if field.role != "item" and field.column in items:
            raise ConfigError(
                f"a column belongs either to the items or to the context, found {field.column!r} read by "
                f"{items[field.column]!r} (role item) and {field.name!r} (role {field.role}): give one of them its own "
                "column"
            )


def context_row(context: Mapping[str, Any], columns: Iterable[str]) -> pl.DataFrame:
    """A context's values of these columns as a table of one row.

    >>> context_row({"user": "u1", "tags": ["a", "b"], "note": 1}, ["user", "tags"]).row(0)
    ('u1', ['a', 'b'])
    """
    try:
        return pl.DataFrame({column: [context[column]] for column in columns})
    except (PolarsError, TypeError, ValueError, OverflowError) as e:
        reason = str(e).splitlines()[0]
        raise DataError(
            f"a context's values must be plain: text, numbers, lists of one type; {reason}"
        ) from None


def only_row(contexts: pl.DataFrame) -> dict[str, Any]:
    """The one row of a table of contexts."""
    if contexts.height != 1:
        raise DataError(
            f"candidates are scored in one context, found {contexts.height} context rows: give one row"
        )
    return contexts.row(0, named=True)


def candidate_columns(
    schema: Schema, context: Collection[str], candidates: Collection[str]
) -> list[str]:
    """The columns of the schema's fields that candidates have: a field belongs to the side that has its column.

    Errors:
        DataError: a column of the schema is on both sides or on neither, or all are on one.
    """
    for f in schema.fields:
        if f.column in context and f.column in candidates:
            raise DataError(
                f"a column must be the context's or the candidates', found {f.column!r} (field {f.name!r}) in both: "
                "remove it from one"
            )
        if f.column not in context and f.column not in candidates:
            side = "candidates" if f.role == "item" else "context"
            raise DataError(
                "context and candidates together must hold every column of the schema's fields, found "
                f"{f.column!r} (field {f.name!r}, role {f.role}) in neither: give it to the {side}"
            )
    columns = [column for column in schema.columns if column in candidates]
    if not columns or len(columns) == len(schema.columns):
        side = "context" if columns else "candidates"
        raise DataError(
            f"context and candidates must each hold columns of the schema's fields, found none in the {side}: to score "
            "whole rows, use score"
        )
    return columns


def score_candidates(
    network: nn.Module, split: Split, contexts: Part, candidates: Part, owner: Tensor | None = None
) -> Tensor:
    """The scores of N candidates, each in its context, equal to the network's scores of the full rows.

    The part of a single context is computed once per 2,048 candidates if `shares_context`: for LR,
    FM, AFM and DeepFM with any split, for two-tower models if the context has all user and context
    fields. Otherwise full rows are scored, and only the encoding of the context is shared.

    Sums are in another order than for full rows, so scores differ by rounding. The network is set
    to evaluation mode and reset to its former mode, as in `score_batches`; there is no gradient.

    Args:
        network: any network of `fieldwise.models`, of one or several labels.
        split: the split of fields.
        contexts: C rows on the network's device.
        candidates: N rows there; N may be 0.
        owner: the context of each candidate, int64 [N]; None if there is one context.

    Shape:
        returns [N], or [N, T] for several labels, on the network's device.

    Errors:
        DataError: several contexts without `owner`.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import FM
    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> split = Split.by_role(layout)
    >>> user = Part(split.context, Batch.of_ids(torch.tensor([[2]])))
    >>> items = Part(split.candidates, Batch.of_ids(torch.tensor([[3], [4], [5]])))
    >>> score_candidates(FM().build(layout), split, user, items).shape
    torch.Size([3])
    """
    if owner is None and contexts.size != 1:
        raise DataError(
            f"candidates are scored in one context, found {contexts.size} context rows: give one row"
        )
    parts = []
    with scoring_mode(network):
        for start in range(0, max(candidates.size, 1), SCORING_BATCH):
            rows = slice(start, start + SCORING_BATCH)
            block = candidates if candidates.size <= SCORING_BATCH else candidates.rows(rows)
            block_owner = None if owner is None else owner[rows]
            parts.append(_score(network, Pairs(split, contexts, block, block_owner)))
        return torch.cat(parts)


def shares_context(network: nn.Module, split: Split) -> bool:
    """Whether `score_candidates` computes some of the context's part once for this network, or scores full rows.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import FFM, FM
    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> [shares_context(model.build(layout), Split.by_role(layout)) for model in (FM(), FFM())]
    [True, False]
    """
    if isinstance(network, MultiTask):
        return all(shares_context(head, split) for head in network.heads)
    if isinstance(network, MeanWithLR):
        return shares_context(network.network, split)
    return isinstance(network, SharesContext) or (
        isinstance(network, TwoTower) and _holds_user(split)
    )


def joined(split: Split, context: Batch, candidates: Batch, owner_N: Tensor | None = None) -> Batch:
    """The N full rows of candidates, in one context or each in that of `owner_N`, as a batch of the layout."""
    rows = candidates.size
    if owner_N is None:
        context_ids = context.ids.expand(rows, -1)
        context_values = context.values.expand(rows, -1)
    else:
        context_ids = context.ids.index_select(0, owner_N)
        context_values = context.values.index_select(0, owner_N)
    ids_of_field = [int(f.kind != "bag") for f in split.layout.fields]
    numbers_of_field = [f.numbers for f in split.layout.fields]
    ids = _merged(split, ids_of_field, context_ids, candidates.ids)
    values = _merged(split, numbers_of_field, context_values, candidates.values)
    context_bags = split.context.num_bags
    candidate_bags = split.candidates.num_bags
    if not context_bags + candidate_bags:
        return Batch(
            ids, values, candidates.bag_ids, candidates.bag_segments, candidates.bag_weights
        )
    side_G, position_G = (indices.to(ids.device) for indices in split.bags)
    row_N = torch.arange(rows, device=ids.device)
    owner_N = torch.zeros_like(row_N) if owner_N is None else owner_N
    # All bags of the contexts come first, then the candidates'.
    first_of_context_N = owner_N * context_bags
    first_of_candidate_N = context.size * context_bags + row_N * candidate_bags
    first_N2 = torch.stack([first_of_context_N, first_of_candidate_N], 1)
    bags = Bags.joined([context.bags(context_bags), candidates.bags(candidate_bags)])
    return Batch.of_bags(ids, values, bags.take(first_N2[:, side_G] + position_G))


class Pairs(Assembled):
    """A batch of N full rows, each a candidate in a context.

    Embeddings read the two sides' vectors; anything else is read from the joined batch, which is
    made when needed.
    """

    def __init__(
        self, split: Split, contexts: Part, candidates: Part, owner: Tensor | None
    ) -> None:
        self.split = split
        self.contexts = contexts
        self.candidates = candidates
        self.owner = owner

    @property
    def size(self) -> int:
        """N."""
        return self.candidates.size

    def vectors(self, embedding: FieldEmbedding) -> Tensor:
        """The vectors of all fields [N, F, D]."""
        context_CD = self.contexts.vectors(embedding)
        if self.owner is None:
            context_NCD = context_CD.expand(self.size, -1, -1)
        else:
            context_NCD = context_CD.index_select(0, self.owner)
        x_NFD = torch.cat([context_NCD, self.candidates.vectors(embedding)], 1)
        return x_NFD.index_select(1, self.split.order.to(x_NFD.device))

    @cached_property
    def joined(self) -> Batch:
        """The rows as a batch of the whole layout."""
        return joined(self.split, self.contexts.batch, self.candidates.batch, self.owner)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.joined)

    def __getattr__(self, name: str) -> Any:
        if name == "joined":  # it failed
            raise AttributeError(name)
        return getattr(self.joined, name)


def _score(network: nn.Module, pairs: Pairs) -> Tensor:
    if isinstance(network, MultiTask):
        return torch.stack([_score(head, pairs) for head in network.heads], dim=1)
    if isinstance(network, MeanWithLR):
        return network.mean(_score(network.network, pairs), _score_lr(network.lr, pairs))
    split = pairs.split
    contexts = pairs.contexts
    candidates = pairs.candidates
    if pairs.owner is None and isinstance(network, SharesContext):
        return network.score_candidates(contexts, candidates)
    if pairs.owner is None and isinstance(network, TwoTower) and _holds_user(split) and pairs.size:
        user = network.user(cast(Batch, Pairs(split, contexts, candidates.rows(slice(0, 1)), None)))
        # without bags of user and context: a long history is not repeated for each candidate
        context = contexts.batch
        of_items = [f.role == "item" for f in split.context.layout.bag_fields]
        read = torch.tensor(of_items, dtype=torch.bool, device=context.bag_segments.device)[
            context.bag_segments
        ]
        ids = context.bag_ids[read]
        segments = context.bag_segments[read]
        weights = context.bag_weights[read]
        item_context = context._replace(bag_ids=ids, bag_segments=segments, bag_weights=weights)
        item_part = Part(split.context, item_context)
        items = network.item(cast(Batch, Pairs(split, item_part, candidates, None)))
        return network.score(user.expand(pairs.size, *user.shape[1:]), items)
    scores: Tensor = network(pairs)
    return scores


def _score_lr(lr: FirstOrder, pairs: Pairs) -> Tensor:
    if pairs.owner is None:
        return first_order_candidates(lr, pairs.contexts, pairs.candidates)
    scores: Tensor = lr(cast(Batch, pairs))
    return scores


def _holds_user(split: Split) -> bool:
    """Whether the context has all fields of a user tower."""
    return all(f.role == "item" for f in split.candidates.layout.fields)


def _merged(split: Split, columns: Sequence[int], context: Tensor, candidates: Tensor) -> Tensor:
    """Columns of both sides in the whole layout's order; `columns` says how many each field has."""
    fields = [*split.context.positions, *split.candidates.positions]
    positions = [k for k in fields for _ in range(columns[k])]
    columns_in_order = sorted(range(len(positions)), key=positions.__getitem__)
    order = torch.tensor(columns_in_order, dtype=torch.int64, device=context.device)
    return torch.cat([context, candidates], 1).index_select(1, order)

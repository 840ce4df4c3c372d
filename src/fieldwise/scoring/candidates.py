"""Scoring a request: one context with many candidates, with the context's part computed once.

Letters: N candidates, F fields, C of them the context's, I the candidates', D embedding size, G bags, M values of bags.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fieldwise.errors import DataError
from fieldwise.layers.candidates import Part, SharesContext, Split
from fieldwise.layout import Bags, Batch
from fieldwise.models.multi_task import MultiTask
from fieldwise.models.twotower import TwoTower
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.devices import device_of
from fieldwise.scoring.batches import SCORING_BATCH

__all__ = ["joined", "score_candidates", "shares_context", "stacked"]


def score_candidates(network: nn.Module, split: Split, context: Batch, candidates: Batch) -> Tensor:
    """The scores of a context with each of N candidates, equal to the network's scores of the full rows.

    The context's part is computed once per 2,048 candidates if `shares_context`: for LR, FM, AFM and DeepFM with any
    split, for two-tower models if the context has all user and context fields. Other networks score the full rows;
    then only the encoding of the context is shared.

    Sums are in another order than for full rows, so scores differ by rounding. The network is set to evaluation mode
    and reset to its former mode, as in `score_batches`; there is no gradient.

    Args:
        network: any network of `fieldwise.models`, of one or several labels.
        split: the split of fields.
        context: one row of `split.context.layout`.
        candidates: N rows of `split.candidates.layout`; N may be 0.

    Shape:
        returns [N], or [N, T] for several labels, on the network's device.

    Errors:
        DataError: the context does not have exactly one row.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import FM
    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> user = Batch.of_ids(torch.tensor([[2]]))
    >>> items = Batch.of_ids(torch.tensor([[3], [4], [5]]))
    >>> score_candidates(FM().build(layout), Split.by_role(layout), user, items).shape
    torch.Size([3])
    """
    if context.size != 1:
        raise DataError(f"candidates are scored in one context, found {context.size} context rows: give one row")
    device, was_training = device_of(network), network.training
    context, candidates = context.to(device), candidates.to(device)
    if was_training:
        network.eval()
    try:
        with torch.no_grad(), flushed_denormals():
            one = Part(split.context, context)
            blocks = _blocks(candidates, split.candidates.num_bags)
            return torch.cat([_score(network, split, one, Part(split.candidates, block)) for block in blocks])
    finally:
        if was_training:
            network.train()


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
    return isinstance(network, SharesContext) or (isinstance(network, TwoTower) and _holds_user(split))


def stacked(batches: Sequence[Batch], bags: int) -> Batch:
    """The rows of several batches of one layout, one batch after the other.

    Args:
        batches: at least one.
        bags: G, number of bag fields of the layout.
    """
    if len(batches) == 1:
        return batches[0]
    ids, values = (torch.cat([batch[k] for batch in batches]) for k in (0, 1))
    return Batch.of_bags(ids, values, Bags.joined(batch.bags(bags) for batch in batches))


def joined(split: Split, context: Batch, candidates: Batch, owner_N: Tensor | None = None) -> Batch:
    """The N full rows of a context and its candidates, as a batch of the whole layout.

    Args:
        split: the split of fields.
        context: one row, or C rows with `owner_N`.
        candidates: N rows.
        owner_N: the context row of each candidate, int64.
    """
    rows = candidates.size
    if owner_N is None:
        own = context.ids.expand(rows, -1), context.values.expand(rows, -1)
    else:
        own = context.ids.index_select(0, owner_N), context.values.index_select(0, owner_N)
    ids = _merged(split, ("id", "value"), own[0], candidates.ids)
    values = _merged(split, ("value",), own[1], candidates.values)
    sides = [(context, split.context.num_bags), (candidates, split.candidates.num_bags)]
    if not any(bags for _, bags in sides):
        return Batch(ids, values, candidates.bag_ids, candidates.bag_segments, candidates.bag_weights)
    side_G, place_G = (x.to(ids.device) for x in split.bags)
    row_N = torch.arange(rows, device=ids.device)
    owner_N = torch.zeros_like(row_N) if owner_N is None else owner_N
    # All bags of the contexts come first, then the candidates'.
    first_N2 = torch.stack([owner_N * sides[0][1], context.size * sides[0][1] + row_N * sides[1][1]], 1)
    bags = Bags.joined(batch.bags(bags) for batch, bags in sides)
    return Batch.of_bags(ids, values, bags.take(first_N2[:, side_G] + place_G))


def _score(network: nn.Module, split: Split, context: Part, candidates: Part) -> Tensor:
    if isinstance(network, MultiTask):
        return torch.stack([_score(head, split, context, candidates) for head in network.heads], dim=1)
    if isinstance(network, SharesContext):
        return network.score_candidates(context, candidates)
    if isinstance(network, TwoTower) and _holds_user(split) and candidates.batch.size:
        return _score_towers(network, split, context.batch, candidates.batch)
    scores: Tensor = network(joined(split, context.batch, candidates.batch))
    return scores


def _holds_user(split: Split) -> bool:
    """Whether the context has all fields of a user tower."""
    return all(f.role == "item" for f in split.candidates.layout.fields)


def _score_towers(network: TwoTower, split: Split, context: Batch, candidates: Batch) -> Tensor:
    user = network.user(joined(split, context, candidates.rows(slice(0, 1), split.candidates.num_bags)))
    # The item tower does not read bags of user or context, so a long history is not repeated per candidate.
    of_items = [f.role == "item" for f in split.context.layout.fields if f.kind == "bag"]
    read = torch.tensor(of_items, dtype=torch.bool, device=context.bag_segments.device)[context.bag_segments]
    without = context._replace(
        bag_ids=context.bag_ids[read], bag_segments=context.bag_segments[read], bag_weights=context.bag_weights[read]
    )
    item = network.item(joined(split, without, candidates))
    return network.score(user.expand(candidates.size, *user.shape[1:]), item)


def _merged(split: Split, kinds: tuple[str, ...], context: Tensor, candidates: Tensor) -> Tensor:
    """Columns of both sides in the whole layout's order."""
    places = [
        i for side in (split.context, split.candidates) for i in side.positions if split.layout.fields[i].kind in kinds
    ]
    order = torch.tensor(sorted(range(len(places)), key=places.__getitem__), dtype=torch.int64, device=context.device)
    return torch.cat([context, candidates], 1).index_select(1, order)


def _blocks(batch: Batch, bags: int) -> Iterator[Batch]:
    """The batch in blocks of rows; one block if there is no row."""
    if batch.size <= SCORING_BATCH:
        yield batch
        return
    for start in range(0, batch.size, SCORING_BATCH):
        yield batch.rows(slice(start, start + SCORING_BATCH), bags)

"""Scoring shaped like a request: one context against many candidates, the context's share of the work done once.

Letters: N candidates, F fields, C of them the context's, I the candidates', D embedding size, G bags, M values of bags.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from fieldwise.errors import DataError
from fieldwise.layers.candidates import Part, SharesContext, Split
from fieldwise.layout import Batch
from fieldwise.models.several import SeveralLabels
from fieldwise.models.twotower import TwoTower
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.scoring.batches import SCORING_BATCH

__all__ = ["joined", "score_candidates", "shares_context", "stacked"]


def score_candidates(network: nn.Module, split: Split, context: Batch, candidates: Batch) -> Tensor:
    """The scores of the N rows that a context makes with each candidate, as `network` gives them of the full rows.

    The context's share of the work is done once for every 2,048 candidates where `shares_context` says so: by LR, FM,
    AFM, DeepFM, AutoInt and AutoInt+ whatever the split, by the two-tower models where the context gives all user and
    context fields. Other networks score the full rows; then only encoding the context once is gained. So do the
    attention layers of AutoInt and AutoInt+ where their native op is at hand, which is faster than sharing them.

    Sums are added in another order than in full rows, so that scores differ by rounding. The network is in evaluation
    mode meanwhile and left in its former mode, as in `score_batches`; there is no gradient.

    Args:
        network: any network of `fieldwise.models`, of one or several labels.
        split: which fields are whose.
        context: one row of `split.context.layout`.
        candidates: N rows of `split.candidates.layout`; N may be 0.

    Shape:
        returns [N], or [N, T] of several labels.

    Errors:
        DataError: the context has not one row.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import FM
    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> user = Batch.of_ids(torch.tensor([[2]]))
    >>> items = Batch.of_ids(torch.tensor([[3], [4], [5]]))
    >>> score_candidates(FM().build(layout), Split.by_role(layout), user, items).shape
    torch.Size([3])
    """
    if context.size != 1:
        raise DataError(f"candidates are scored in one context, found {context.size} rows of it: give one row")
    was_training = network.training
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
    """Whether `score_candidates` does some of the context's share of this network's work once, or scores full rows.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import FFM, FM
    >>> layout = Layout.of_sizes([3, 4], ["user", "item"])
    >>> [shares_context(model.build(layout), Split.by_role(layout)) for model in (FM(), FFM())]
    [True, False]
    """
    if isinstance(network, SeveralLabels):
        return all(shares_context(head, split) for head in network.heads)
    return isinstance(network, SharesContext) or (isinstance(network, TwoTower) and _holds_user(split))


def stacked(batches: Sequence[Batch], bags: int) -> Batch:
    """The rows of several batches of one layout, one batch after the other.

    Args:
        batches: at least one.
        bags: G of their layout.
    """
    if len(batches) == 1:
        return batches[0]
    first, segments = 0, []
    for batch in batches:
        segments.append(batch.bag_segments + first * bags)
        first += batch.size
    ids, values, bag_ids, _, weights = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return Batch(ids, values, bag_ids, torch.cat(segments), weights)


def joined(split: Split, context: Batch, candidates: Batch, owner_N: Tensor | None = None) -> Batch:
    """The N full rows of a context and its candidates, as a batch of the whole layout.

    Args:
        split: which fields are whose.
        context: one row, or C of them where `owner_N` (int64) says which one each candidate belongs to.
        candidates: N rows.
        owner_N: as above.
    """
    rows, sides = candidates.size, (split.context, split.candidates)
    if owner_N is None:
        own = context.ids.expand(rows, -1), context.values.expand(rows, -1)
    else:
        own = context.ids.index_select(0, owner_N), context.values.index_select(0, owner_N)
    ids = _merged(split, ("id", "value"), own[0], candidates.ids)
    values = _merged(split, ("value",), own[1], candidates.values)
    bags = split.layout.positions(kind="bag")
    if not bags:
        return Batch(ids, values, candidates.bag_ids, candidates.bag_segments, candidates.bag_weights)
    places = [[bags.index(i) for i in side.positions if i in bags] for side in sides]
    context_place, place = (torch.tensor(p, dtype=torch.int64, device=ids.device) for p in places)
    if owner_N is None:
        row_N1 = torch.arange(rows, device=ids.device).unsqueeze(1) * len(bags)
        repeated = (row_N1 + context_place[context.bag_segments]).flatten()
        own_ids, own_weights = context.bag_ids.repeat(rows), context.bag_weights.repeat(rows)
    else:
        chosen, row = _bags_of(context, max(split.context.num_bags, 1), owner_N)
        repeated = row * len(bags) + context_place[context.bag_segments[chosen] % max(split.context.num_bags, 1)]
        own_ids, own_weights = context.bag_ids[chosen], context.bag_weights[chosen]
    count = max(split.candidates.num_bags, 1)
    segments = candidates.bag_segments // count * len(bags) + place[candidates.bag_segments % count]
    segments, order = torch.sort(torch.cat([repeated, segments]), stable=True)
    bag_ids = torch.cat([own_ids, candidates.bag_ids])[order]
    weights = torch.cat([own_weights, candidates.bag_weights])[order]
    return Batch(ids, values, bag_ids, segments, weights)


def _bags_of(context: Batch, bags: int, owner_N: Tensor) -> tuple[Tensor, Tensor]:
    """For N rows the bag values of each one's context [M], row by row, and which of the N rows each stands in [M]."""
    lengths_C = torch.bincount(context.bag_segments // bags, minlength=context.size)
    lengths_N, start_N = lengths_C[owner_N], (lengths_C.cumsum(0) - lengths_C)[owner_N]
    row_M = torch.repeat_interleave(lengths_N)
    before_N = lengths_N.cumsum(0) - lengths_N
    return torch.arange(len(row_M), device=row_M.device) + (start_N - before_N)[row_M], row_M


def _score(network: nn.Module, split: Split, context: Part, candidates: Part) -> Tensor:
    if isinstance(network, SeveralLabels):
        return torch.stack([_score(head, split, context, candidates) for head in network.heads], dim=1)
    if isinstance(network, SharesContext):
        return network.score_candidates(context, candidates)
    if isinstance(network, TwoTower) and _holds_user(split) and candidates.batch.size:
        return _score_towers(network, split, context.batch, candidates.batch)
    scores: Tensor = network(joined(split, context.batch, candidates.batch))
    return scores


def _holds_user(split: Split) -> bool:
    """Whether the context gives all that a user tower reads."""
    return all(f.role == "item" for f in split.candidates.layout.fields)


def _score_towers(network: TwoTower, split: Split, context: Batch, candidates: Batch) -> Tensor:
    user = network.user(joined(split, context, _rows(candidates, split.candidates.num_bags, 0, 1)))
    # The item tower reads no bag of user or context: a long history is not repeated for every candidate.
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
    order = sorted(range(len(places)), key=places.__getitem__)
    return torch.cat([context, candidates], 1)[:, order]


def _blocks(batch: Batch, bags: int) -> Iterator[Batch]:
    """The batch in blocks of rows; one empty block where there is no row."""
    for start in range(0, max(batch.size, 1), SCORING_BATCH):
        yield _rows(batch, bags, start, min(start + SCORING_BATCH, batch.size))


def _rows(batch: Batch, bags: int, start: int, end: int) -> Batch:
    if not bags or (start == 0 and end == batch.size):
        return batch._replace(ids=batch.ids[start:end], values=batch.values[start:end])
    bounds = torch.tensor([start * bags, end * bags], device=batch.bag_segments.device)
    first, last = torch.searchsorted(batch.bag_segments, bounds).tolist()
    return Batch(
        batch.ids[start:end],
        batch.values[start:end],
        batch.bag_ids[first:last],
        batch.bag_segments[first:last] - start * bags,
        batch.bag_weights[first:last],
    )

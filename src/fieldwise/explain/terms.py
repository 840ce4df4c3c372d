"""Decomposition of logits into terms that add up to them, and the parts of these terms, by model.

Letters: N rows, F fields, P = F(F-1)/2 pairs, L levels or layers, H heads, K item heads, U and V fields of a tower.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.layers import FirstOrder
from fieldwise.layout import Batch
from fieldwise.models.afm import AFMNetwork
from fieldwise.models.autoint import AutoIntNetwork
from fieldwise.models.fm import FMNetwork
from fieldwise.models.inttower import IntTowerNetwork, LevelTower
from fieldwise.models.lr import LRNetwork
from fieldwise.ops.denormals import flushed_denormals
from fieldwise.ops.devices import device_of

__all__ = ["PAIRWISE", "Terms", "terms_of"]

ROWS = 256  # rows per batch: AFM's products of 39 fields with vectors of 64 take 50 MB

PAIRWISE = (LRNetwork, FMNetwork, AFMNetwork)
"""Networks all of whose terms belong to fields and pairs of fields."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """The terms of a network's logits; both parts are empty for networks without a decomposition.

    Args:
        added: terms by name, float64; their sum over all names and all axes but the first is the logit:
            `bias` [N]; `first_order` [N, F]; `pairs` [N, P] (FM, AFM), in the order of
            `fieldwise.ops.pair_indices`; `attended` [N, F], the last unit's part for each field after AutoInt's layers,
            and `mlp` [N] (AutoInt+); `matches` [N, L, H], each user head's inner product with the item head that it
            matches best (IntTower, level by level).
        shown: parts of the terms: AFM's `attention` [N, P] and `interactions` [N, P], whose product is `pairs`;
            AutoInt's `attention` [N, L, H, F, F], from query field (second last axis) to key field (last);
            IntTower's `matched_head` [N, L, H], and for either side's fields `user_gates` [N, U], `item_gates` [N, V]
            (Light-SE's weights, which sum to 1) with `user_gate_effects` and `item_gate_effects`, the
            logit minus that with this gate at zero.
    """

    added: Mapping[str, np.ndarray]
    shown: Mapping[str, np.ndarray]

    @property
    def logit(self) -> np.ndarray:
        """The sum of all terms [N]."""
        total: np.ndarray = sum(term.sum(tuple(range(1, term.ndim))) for term in self.added.values())
        return total


def terms_of(network: nn.Module, table: EncodedTable) -> Terms:
    """The terms of every row for a network of one label, computed in evaluation mode and in batches."""
    take_apart = _TERMS.get(type(network))
    if take_apart is None:
        return Terms(added={}, shown={})
    was_training = network.training
    if was_training:
        network.eval()
    try:
        with torch.no_grad(), flushed_denormals():
            starts, device = range(0, max(1, len(table)), ROWS), device_of(network)
            batches = (table.batch(slice(b, min(b + ROWS, len(table))))[0].to(device) for b in starts)
            found = [take_apart(network, batch) for batch in batches]
    finally:
        if was_training:
            network.train()
    added, shown = ({name: _joined([part[i][name] for part in found]) for name in found[0][i]} for i in (0, 1))
    return Terms(added={name: term.astype(np.float64) for name, term in added.items()}, shown=shown)


def _joined(parts: list[Tensor]) -> np.ndarray:
    joined: np.ndarray = torch.cat(parts).detach().cpu().numpy()
    return joined


_Parts = tuple[dict[str, Tensor], dict[str, Tensor]]


def _first_order(first: FirstOrder | None, batch: Batch) -> dict[str, Tensor]:
    if first is None:
        return {}
    terms = {"first_order": first.embedding(batch).squeeze(2)}
    return terms if first.bias is None else {"bias": first.bias.expand(batch.size), **terms}


def _lr(network: LRNetwork, batch: Batch) -> _Parts:
    return _first_order(network.first_order, batch), {}


def _fm(network: FMNetwork, batch: Batch) -> _Parts:
    x_NFD = network.embedding(batch)
    left, right = torch.triu_indices(x_NFD.shape[1], x_NFD.shape[1], 1, device=x_NFD.device)
    pairs = (x_NFD[:, left] * x_NFD[:, right]).sum(2)
    return {**_first_order(network.first_order, batch), "pairs": pairs}, {}


def _afm(network: AFMNetwork, batch: Batch) -> _Parts:
    x_NFD = network.embedding(batch)
    interactions = (x_NFD[:, network.attention.left] * x_NFD[:, network.attention.right]) @ network.p
    attention = network.attention.weights(x_NFD)
    added = {**_first_order(network.first_order, batch), "pairs": attention * interactions}
    return added, {"attention": attention, "interactions": interactions}


def _autoint(network: AutoIntNetwork, batch: Batch) -> _Parts:
    x_NFD = network.embedding(batch)
    y_NFA, attention = network.attend(x_NFD)
    weight_FA = network.head.weight.view(y_NFA.shape[1:])
    added = {"bias": network.head.bias.expand(batch.size), "attended": (y_NFA * weight_FA).sum(2)}
    added |= _first_order(network.first_order, batch)
    if network.mlp is not None:
        added["mlp"] = network.mlp(x_NFD.flatten(1)).squeeze(1)
    return added, {"attention": torch.stack(attention, 1)}


def _inttower(network: IntTowerNetwork, batch: Batch) -> _Parts:
    x_NAD = network.embedding(batch)
    user, item = network.user_tower, network.item_tower
    user_NLHP, user_gates = _gated(user, x_NAD, network.user_heads_of)
    item_NKP, item_gates = _gated(item, x_NAD, network.item_heads_of)
    matches_NLH, matched_NLH = torch.einsum("nlhp,nkp->nlhk", user_NLHP[0], item_NKP[0]).max(3)
    added = {"matches": matches_NLH}
    if network.bias is not None:
        added["bias"] = network.bias.expand(batch.size)
    logit_N = network.score(user_NLHP[0], item_NKP[0])
    return added, {
        "matched_head": matched_NLH,
        "user_gates": user_gates,
        "user_gate_effects": torch.stack([logit_N - network.score(closed, item_NKP[0]) for closed in user_NLHP[1:]], 1),
        "item_gates": item_gates,
        "item_gate_effects": torch.stack([logit_N - network.score(user_NLHP[0], closed) for closed in item_NKP[1:]], 1),
    }


def _gated(tower: LevelTower, x_NAD: Tensor, heads_of: Callable[[list[Tensor]], Tensor]) -> tuple[list[Tensor], Tensor]:
    """A side's heads, unchanged and then with each field's gate set to zero in turn, and the gates."""
    x_NFD = tower.fields(x_NAD)
    gates_NF = tower.light_se.weights(x_NFD)
    place_F = torch.arange(gates_NF.shape[1], device=gates_NF.device)
    closed = [gates_NF * (place_F != field) for field in range(gates_NF.shape[1])]
    return [heads_of(tower.levels(tower.light_se.weigh(x_NFD, gates))) for gates in (gates_NF, *closed)], gates_NF


_TERMS: dict[type[nn.Module], Callable[..., _Parts]] = {
    LRNetwork: _lr,
    FMNetwork: _fm,
    AFMNetwork: _afm,
    AutoIntNetwork: _autoint,
    IntTowerNetwork: _inttower,
}

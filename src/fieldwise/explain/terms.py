"""The terms that a network's logits are sums of, and the sorts of them: what each holds, says of a row, and on average.

A sort of a new model's terms is a class here, and a case of `groups_of`: explanations, summaries,
faithfulness and the command line take it from there.

Letters: N rows, F fields, P = F(F-1)/2 pairs, L levels or layers, H heads, K item heads, U and V
fields of a tower.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fieldwise.data.table import EncodedTable
from fieldwise.display import Table, number
from fieldwise.explain.attention import pair_square
from fieldwise.explain.attribution import device_batches
from fieldwise.scoring.batches import scoring_mode

TERMS_OF_ROWS = ("bias", "mlp")
"""[N] each."""
TERMS_OF_FIELDS = ("first_order", "attended")
"""[N, F] each."""
SIDES = ("user", "item")
"""Of an IntTower."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Terms:
    """The terms of a network's logits; both parts are empty for networks without a decomposition.

    Args:
        added: terms by name, float64; their sum over all names and all axes but the first is the
            logit: `bias` [N]; `first_order` [N, F]; `pairs` [N, P] (`PairTerms`); `attended`
            [N, F], the last unit's part for each field after AutoInt's layers, and `mlp` [N]
            (AutoInt+); `matches` [N, L, H] (`HeadMatches`).
        shown: parts of the terms: AFM's `attention` and `interactions` (`PairTerms`); AutoInt's
            `attention` (`FieldAttention`); IntTower's `matched_head` (`HeadMatches`), and its gates
            with their effects (`Gates`). In a mean with LR they are those of the network, before
            its share.
    """

    added: Mapping[str, np.ndarray]
    shown: Mapping[str, np.ndarray]

    @property
    def pairwise(self) -> bool:
        """Whether all terms belong to fields and pairs of fields, as those of LR, FM and AFM do."""
        return bool(self.added) and self.added.keys() <= {"bias", "first_order", "pairs"}

    @property
    def logit(self) -> np.ndarray:
        """The sum of all terms [N]."""
        total: np.ndarray = sum(
            term.sum(tuple(range(1, term.ndim))) for term in self.added.values()
        )
        return total


def terms_of(network: nn.Module, table: EncodedTable) -> Terms:
    """The terms of every row for a network of one label, computed in evaluation mode and in batches."""
    take_apart = vars(type(network)).get("logit_terms")  # its own: a subclass may add to the score
    if take_apart is None:
        return Terms(added={}, shown={})
    with scoring_mode(network):
        by_batch = [take_apart(network, batch) for batch in device_batches(network, table)]
    added = _joined([added_terms for added_terms, _ in by_batch])
    shown = _joined([shown_parts for _, shown_parts in by_batch])
    return Terms(added={name: term.astype(np.float64) for name, term in added.items()}, shown=shown)


def _joined(batches: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, np.ndarray]:
    """Tensors of all batches, by name, as one array each."""
    return {
        name: torch.cat([batch[name] for batch in batches]).detach().cpu().numpy()
        for name in batches[0]
    }


def field_pairs(fields: int) -> tuple[tuple[int, int], ...]:
    """Both fields of each pair, in the order of `fieldwise.ops.pair_indices`."""
    left, right = np.triu_indices(fields, 1)
    return tuple(zip(left.tolist(), right.tolist(), strict=True))


def by_field(pairs_NP: np.ndarray, fields: int) -> np.ndarray:
    """The sum over the pairs of each field [N, F]."""
    pairs = field_pairs(fields)
    member = np.zeros((len(pairs), fields))
    for p, pair in enumerate(pairs):
        member[p, pair] = 1.0
    return pairs_NP @ member


class TermGroup(ABC):
    """Terms of N rows that belong together, with the parts of them that are shown."""

    @abstractmethod
    def row(self, row: int, values: Sequence[str]) -> dict[str, Any]:
        """What the explanation of a row says, as plain values; `values` are the fields' as text."""

    def summary(self) -> dict[str, Any]:
        """What the summary of all rows says, as plain values."""
        return {}

    def importances(self) -> dict[str, np.ndarray]:
        """The importance [N, F] of each field, by its name as an order of fields; higher comes first."""
        return {}

    def attention_map(self, row: int | None) -> tuple[np.ndarray, float] | None:
        """The attention between fields of a row, or its mean over rows [F, F], and the equal weight; None without it.

        A pair of fields without a weight has NaN.
        """
        del row
        return None

    def row_tables(self, plain: Mapping[str, Any], most: int) -> list[Table]:
        """Tables of what `row` said, with `most` pairs or heads at most."""
        del plain, most
        return []

    def summary_tables(self, summary: Mapping[str, Any]) -> dict[str, Table]:
        """Tables of what `summary` said, by name."""
        del summary
        return {}


@dataclass(frozen=True, kw_only=True, eq=False)
class PairTerms(TermGroup):
    """A term of each pair of fields, in the order of `field_pairs` (FM, AFM).

    Args:
        fields: the fields' names.
        terms: [N, P].
        attention: AFM's weights [N, P], which sum to 1; None for FM.
        interactions: [N, P]; AFM's terms are the products of the two. None for FM.
    """

    fields: tuple[str, ...]
    terms: np.ndarray
    attention: np.ndarray | None
    interactions: np.ndarray | None

    def row(self, row: int, values: Sequence[str]) -> dict[str, Any]:
        """Each pair's values, term, attention and interaction, the largest term first."""
        terms = self.terms[row]
        all_pairs = field_pairs(len(self.fields))
        pairs = []
        for p in np.argsort(-np.abs(terms), kind="stable"):
            fields = all_pairs[p]
            pair: dict[str, Any] = {
                "fields": [self.fields[f] for f in fields],
                "values": [values[f] for f in fields],
                "contribution": float(terms[p]),
            }
            if self.attention is not None:
                pair["attention"] = float(self.attention[row, p])
            if self.interactions is not None:
                pair["interaction"] = float(self.interactions[row, p])
            pairs.append(pair)
        return {"pairs": pairs}

    def of_pair(self, p: int) -> dict[str, float]:
        """The mean and standard deviation over rows of a pair's term and attention, for a table of all pairs."""
        measures = {"term": self.terms}
        if self.attention is not None:
            measures["attention"] = self.attention
        figures = {}
        for name, values_NP in measures.items():
            figures[f"mean_{name}"] = float(values_NP[:, p].mean())
            figures[f"{name}_deviation"] = float(values_NP[:, p].std())
        return figures

    def importances(self) -> dict[str, np.ndarray]:
        """The sum of the attention over a field's pairs."""
        if self.attention is None:
            return {}
        return {"attention": by_field(self.attention, len(self.fields))}

    def attention_map(self, row: int | None) -> tuple[np.ndarray, float] | None:
        """The weights of pairs as a symmetric map."""
        if self.attention is None:
            return None
        weights = self.attention.mean(0) if row is None else self.attention[row]
        pairs = field_pairs(len(self.fields))
        return pair_square(pairs, weights, len(self.fields)), 1 / len(pairs)

    def row_tables(self, plain: Mapping[str, Any], most: int) -> list[Table]:
        """The first pairs with their values."""
        pairs = plain.get("pairs")
        if not pairs:
            return []
        parts = [part for part in ("attention", "interaction") if part in pairs[0]]
        rows = []
        for pair in pairs[:most]:
            row = [" × ".join(pair["fields"]), " × ".join(pair["values"])]
            row.append(f"{pair['contribution']:+.4f}")
            row += [f"{pair[part]:.4f}" for part in parts]
            rows.append(row)
        title = f"Pairs, the first {len(rows)} of {len(pairs)}"
        return [Table(["pair", "values", "contribution", *parts], rows, title)]


@dataclass(frozen=True, kw_only=True, eq=False)
class FieldAttention(TermGroup):
    """What each field's layers read of every field (AutoInt).

    Args:
        fields: the fields' names.
        attention: [N, L, H, F, F], from query field (second last axis) to key field (last), along
            which they sum to 1.
    """

    fields: tuple[str, ...]
    attention: np.ndarray

    def row(self, row: int, values: Sequence[str]) -> dict[str, Any]:
        """All weights [L, H, F, F]."""
        del values
        return {"attention": self.attention[row].tolist()}

    def summary(self) -> dict[str, Any]:
        """The mean and standard deviation of each weight."""
        mean = self.attention.mean(0).tolist()
        deviation = self.attention.std(0).tolist()
        return {"attention": {"fields": list(self.fields), "mean": mean, "deviation": deviation}}

    def importances(self) -> dict[str, np.ndarray]:
        """The mean weight that all fields give a field, over layers and heads."""
        return {"attention": self.attention.mean((1, 2, 3)).astype(np.float64)}

    def attention_map(self, row: int | None) -> tuple[np.ndarray, float]:
        """The mean of the weights over layers and heads."""
        weights = self.attention.mean(0) if row is None else self.attention[row]
        return weights.mean((0, 1)), 1 / len(self.fields)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadMatches(TermGroup):
    """The inner product of each user head with the item head that it matches best, level by level (IntTower).

    Args:
        products: [N, L, H].
        matched: the number of the item head, [N, L, H].
    """

    products: np.ndarray
    matched: np.ndarray

    def row(self, row: int, values: Sequence[str]) -> dict[str, Any]:
        """The levels, each with its user heads, the item heads that they match, and their products."""
        del values
        levels = []
        by_level = zip(self.matched[row], self.products[row], strict=True)
        for level, (matched_H, products_H) in enumerate(by_level):
            heads = []
            matches = zip(matched_H.tolist(), products_H.tolist(), strict=True)
            for user_head, (item_head, product) in enumerate(matches):
                heads.append({"user_head": user_head, "item_head": item_head, "product": product})
            contribution = float(products_H.sum())
            levels.append({"level": level + 1, "contribution": contribution, "heads": heads})
        return {"levels": levels}

    def summary(self) -> dict[str, Any]:
        """The mean score of each level, and how often each item head is the matched one."""
        item_heads = range(int(self.matched.max()) + 1)
        scores_LN = self.products.sum(2).T
        levels = []
        for level, scores_N in enumerate(scores_LN):
            matched_NH = self.matched[:, level]
            shares = [float((matched_NH == head).mean()) for head in item_heads]
            levels.append({"level": level + 1, **moments(scores_N), "matched_share": shares})
        return {"levels": levels}

    def row_tables(self, plain: Mapping[str, Any], most: int) -> list[Table]:
        """The score of each level, with the heads that match best."""
        rows = []
        for level in plain["levels"]:
            heads = sorted(level["heads"], key=lambda head: -abs(head["product"]))
            matches = [
                f"{head['user_head']}-{head['item_head']} {head['product']:+.4f}"
                for head in heads[:most]
            ]
            rows.append([str(level["level"]), f"{level['contribution']:+.4f}", ", ".join(matches)])
        title = "Levels: each user head with the item head that it matches best"
        return [Table(["level", "score", "matches"], rows, title)]

    def summary_tables(self, summary: Mapping[str, Any]) -> dict[str, Table]:
        """The mean score of each level, with the item heads' shares."""
        levels = summary["levels"]
        heads = [f"item head {k + 1}" for k in range(len(levels[0]["matched_share"]))]
        rows = []
        for level in levels:
            row = [str(level["level"]), number(level["mean"], "+"), number(level["deviation"])]
            row += [number(share) for share in level["matched_share"]]
            rows.append(row)
        columns = ["level", "mean score", "standard deviation", *heads]
        title = "Levels: scores, and the share of user heads that match each item head best"
        return {"levels": Table(columns, rows, title)}


@dataclass(frozen=True, kw_only=True, eq=False)
class Gates(TermGroup):
    """Light-SE's weights of the fields of each tower, which sum to 1 (IntTower), by side.

    Args:
        fields: the fields' names.
        positions: the numbers of a tower's fields, U or V of them.
        weights: [N, U] and [N, V].
        effects: likewise, the logit minus that with this gate at zero.
    """

    fields: tuple[str, ...]
    positions: Mapping[str, Sequence[int]]
    weights: Mapping[str, np.ndarray]
    effects: Mapping[str, np.ndarray]

    def row(self, row: int, values: Sequence[str]) -> dict[str, Any]:
        """The gate of each field of either side, and its effect on the score."""
        plain = {}
        for side in SIDES:
            gates = []
            weights = self.weights[side][row]
            effects = self.effects[side][row]
            for f, gate, effect in zip(self.positions[side], weights, effects, strict=True):
                named = {"field": self.fields[f], "value": values[f]}
                gates.append({**named, "gate": float(gate), "effect": float(effect)})
            plain[f"{side}_gates"] = gates
        return plain

    def summary(self) -> dict[str, Any]:
        """The mean gate of each field of either side, and its mean effect on the score."""
        plain = {}
        for side in SIDES:
            gates = []
            for k, field in enumerate(self.positions[side]):
                mean_effect = float(self.effects[side][:, k].mean())
                of_gate = moments(self.weights[side][:, k])
                gates.append({"field": self.fields[field], **of_gate, "mean_effect": mean_effect})
            plain[f"{side}_gates"] = gates
        return plain

    def importances(self) -> dict[str, np.ndarray]:
        """Each field's gate."""
        gates_NF = np.zeros((len(self.weights["user"]), len(self.fields)))
        for side in SIDES:
            gates_NF[:, self.positions[side]] = self.weights[side]
        return {"gates": gates_NF}

    def row_tables(self, plain: Mapping[str, Any], most: int) -> list[Table]:
        """The gates, widest open first on each side."""
        del most
        rows = []
        for side in SIDES:
            for gate in sorted(plain[f"{side}_gates"], key=lambda gate: -gate["gate"]):
                numbers = [f"{gate['gate']:.4f}", f"{gate['effect']:+.4f}"]
                rows.append([side, gate["field"], gate["value"], *numbers])
        return [Table(["side", "field", "value", "gate", "effect"], rows, GATES_TITLE)]

    def summary_tables(self, summary: Mapping[str, Any]) -> dict[str, Table]:
        """The mean gates, widest open first on each side."""
        rows = []
        for side in SIDES:
            for gate in sorted(summary[f"{side}_gates"], key=lambda gate: -gate["mean"]):
                effect = number(gate["mean_effect"], "+")
                means = [number(gate["mean"]), number(gate["deviation"])]
                rows.append([gate["field"], side, *means, effect])
        columns = ["field", "tower", "mean", "standard deviation", "mean effect"]
        return {"gates": Table(columns, rows, GATES_TITLE)}


GATES_TITLE = "Gates: each field's weight in its tower, and its effect on the score"


def groups_of(terms: Terms, fields: tuple[str, ...], network: nn.Module) -> tuple[TermGroup, ...]:
    """The groups of a network's terms, in the order in which explanations say them."""
    added = terms.added
    shown = terms.shown
    groups: list[TermGroup] = []
    attention = shown.get("attention")
    if "pairs" in added:
        interactions = shown.get("interactions")
        pairs = PairTerms(
            fields=fields, terms=added["pairs"], attention=attention, interactions=interactions
        )
        groups.append(pairs)
    elif attention is not None:
        groups.append(FieldAttention(fields=fields, attention=attention))
    if "matches" in added:
        groups.append(HeadMatches(products=added["matches"], matched=shown["matched_head"]))
    if "user_gates" in shown:
        positions = {}
        for side in SIDES:
            tower = network.get_submodule(f"{side}_tower")
            positions[side] = tower.get_buffer("positions").tolist()
        weights = {side: shown[f"{side}_gates"] for side in SIDES}
        effects = {side: shown[f"{side}_gate_effects"] for side in SIDES}
        groups.append(Gates(fields=fields, positions=positions, weights=weights, effects=effects))
    return tuple(groups)


def moments(values: np.ndarray) -> dict[str, float]:
    """The mean and the standard deviation of rows' values."""
    return {"mean": float(values.mean()), "deviation": float(values.std())}

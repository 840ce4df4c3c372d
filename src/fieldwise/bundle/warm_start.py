"""Warm starts: a fresh network takes the matching weights of a bundle's."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.vector_table import VectorTable
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.errors import ConfigError
from fieldwise.layers import FieldEmbedding, row_blocks
from fieldwise.models.mean_with_lr import MeanWithLR, part_of_mean
from fieldwise.models.serialise import model_name
from fieldwise.schema import Label

SHARED = "embedding.weight"  # the table that multi-task networks share


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """The report of a warm start; from FM into AFM it is the AFM paper's pre-training (Xiao et al., 2017)."""

    source: str  # the name of the bundle's model
    # by parameter, what was copied: `all`, or `n of m rows` of an embedding table
    taken: dict[str, str]
    fresh: dict[str, str]  # by parameter, the reason why it was not copied
    # Whether the bundle's run, and the runs that it started from, had the same rows (known only for
    # recipes); otherwise it may have been trained on those of this run.
    same_test_rows: bool | None = None
    same_valid_rows: bool | None = None

    def sentence(self) -> str:
        """The report as a sentence."""
        taken = ", ".join(
            name if what == "all" else f"{name} ({what})" for name, what in self.taken.items()
        )
        fresh = _by_reason(self.fresh) or "nothing"
        return f"warm start from {self.source}: copied {taken}; not copied: {fresh}"

    def caution(self) -> str | None:
        """A warning about rows that the bundle may have been trained on; None if it held them out."""
        same_rows = {"test": self.same_test_rows, "validation": self.same_valid_rows}
        unkept = " and ".join(name for name, same in same_rows.items() if not same)
        if not unkept:
            return None
        stopping = "" if self.same_valid_rows else ", and early stopping unreliable"
        return (
            f"warning: the bundle of the warm start did not hold out this run's {unkept} rows: it may have been "
            f"trained on them, and {unkept} metrics may be too good{stopping}"
        )


def warm_start(
    network: nn.Module, encoder: Encoder, bundle: Bundle, *, labels: Sequence[Label]
) -> WarmStart:
    """Copy matching weights from a bundle's network into a network, in place.

    Embedding tables of the same width are matched row by row: for a field of the same name, the
    rows of values in both vocabularies, and its missing and unknown rows; bins by rank; a number's
    vector; all rows of hashed fields with the same number of buckets. Other rows stay fresh. Any
    other tensor is copied if name, shape, and the fields' names, roles and order match, since
    otherwise a weight would belong to another field. Other weights by value (crosses of categories,
    DAT's augmented vectors, your own tables with `row_blocks`) need equal vocabularies in equal
    rows. If either network has several labels, heads are matched by label name.

    Args:
        network: a fresh network, built for `encoder.layout`.
        encoder: fitted on the rows for training the network.
        bundle: a trained network with its own encoder.
        labels: the network's labels, the main one first.

    Errors:
        ConfigError: nothing matches.
    """
    former_network = bundle.network
    if not isinstance(network, MeanWithLR):
        former_network = part_of_mean(former_network)
    former_state = former_network.state_dict()
    former_tables = _tables(former_network)
    new_names = _new_names(
        former_state,
        [label.name for label in bundle.schema.labels],
        [label.name for label in labels],
    )

    matching = _Matching(network, encoder, bundle.encoder)
    taken: dict[str, str] = {}
    fresh: dict[str, str] = {}
    former_names = {new: former for former, new in new_names.items()}
    for name, tensor in network.state_dict().items():
        former_name = former_names.get(name)
        if former_name is None:
            fresh[name] = "the bundle has none"
            continue
        former = former_state[former_name]
        obstacle = matching.obstacle(name, tensor, former, former_tables.get(former_name))
        if obstacle is not None:
            fresh[name] = obstacle
        elif name in matching.tables:
            tensor[matching.new_rows] = former[matching.former_rows]
            taken[name] = f"{len(matching.new_rows):,} of {len(tensor):,} rows"
        else:
            tensor.copy_(former)
            taken[name] = "all"

    report = WarmStart(source=model_name(bundle.settings), taken=taken, fresh=fresh)
    if not taken:
        raise ConfigError(
            f"a warm start needs matching parameters, but a bundle of {report.source} has none for this model: "
            f"{_by_reason(fresh)}; choose another bundle, or the same sizes"
        )
    return report


class _Matching:
    """What of a network has an equal meaning in a bundle's: rows of tables, fields, vocabularies."""

    def __init__(self, network: nn.Module, encoder: Encoder, former: Encoder) -> None:
        self.tables = _tables(network)
        self.new_rows, self.former_rows = _matching_rows(encoder, former)
        self._by_value = row_blocks(network)
        self._same_vocabularies = encoder.fitted == former.fitted
        self._same_fields = _names_and_roles(encoder) == _names_and_roles(former)

    def obstacle(
        self, name: str, tensor: Tensor, former: Tensor, former_by_field: bool | None
    ) -> str | None:
        """Why a parameter cannot be copied; None if it can.

        `former_by_field` says whether the bundle's parameter is a field-aware table, and is None
        if it is no table.
        """
        by_field = self.tables.get(name)
        obstacle = None
        if by_field is None:
            if former.shape != tensor.shape:
                obstacle = f"shape {_shape(former)} in the bundle, {_shape(tensor)} here"
            elif not self._same_fields:
                obstacle = "the fields differ"
            elif name in self._by_value and not self._same_vocabularies:
                obstacle = "the vocabularies differ"
            elif name in self._by_value and not torch.equal(self.new_rows, self.former_rows):
                obstacle = "the rows of equal vocabularies differ"  # of a bundle that has grown
        elif by_field != former_by_field:
            obstacle = "a field-aware table and a plain one"
        elif by_field and not self._same_fields:
            obstacle = "the fields differ"
        elif former.shape[1] != tensor.shape[1]:
            obstacle = f"width {former.shape[1]} in the bundle, {tensor.shape[1]} here"
        elif not len(self.new_rows):
            obstacle = "no field in common"
        return obstacle


def _names_and_roles(encoder: Encoder) -> list[tuple[str, str]]:
    return [(field.name, field.role) for field in encoder.fields]


def _new_names(names: Iterable[str], old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """The new names of a bundle's parameters in a network with other labels, without unmatched ones."""
    if len(old) == len(new) == 1:
        return {name: name for name in names}
    results = {}
    for name in names:
        head = ""
        label = old[0]
        if len(old) > 1 and name.startswith("heads."):
            number = name.split(".", 2)[1]
            head = f"heads.{number}."
            label = old[int(number)]
        name_below = name.removeprefix(head)
        if name_below == SHARED:
            results[name] = name_below
        elif label in new:
            results[name] = (
                name_below if len(new) == 1 else f"heads.{new.index(label)}.{name_below}"
            )
    return results


def _tables(network: nn.Module) -> dict[str, bool]:
    """The network's embedding tables by parameter name, and whether each is field-aware."""
    modules = network.named_modules()
    return {
        f"{name}.weight": module.by_field
        for name, module in modules
        if isinstance(module, FieldEmbedding)
    }


def _matching_rows(new: Encoder, former: Encoder) -> tuple[Tensor, Tensor]:
    """Matching rows of the new and the former shared table, as two int64 vectors; each new row once."""
    former_fields = {
        field.name: (table_field, fitted)
        for field, table_field, fitted in zip(
            former.fields, former.layout.fields, former.fitted, strict=True
        )
    }
    rows: list[tuple[int, int]] = []
    for field, table_field, fitted in zip(new.fields, new.layout.fields, new.fitted, strict=True):
        if field.name not in former_fields or table_field.shares is not None:
            continue  # a field that shares rows is matched through the other field
        former_table_field, former_fitted = former_fields[field.name]
        for row, former_row in _matching_rows_of_field(fitted, former_fitted):
            rows.append((table_field.row(row), former_table_field.row(former_row)))
    pairs = torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def _matching_rows_of_field(fitted: Any, former: Any) -> list[tuple[int, int]]:
    """Matching rows of a field's blocks, new and former; every encoding has the missing row first."""
    if isinstance(fitted, Vocabulary) and isinstance(former, Vocabulary):
        former_rows = {value: row for row, value in enumerate(former.values, start=2)}
        pairs = [(0, 0), (1, 1)]
        for row, value in enumerate(fitted.values, start=2):
            if value in former_rows:
                pairs.append((row, former_rows[value]))
        return pairs
    if isinstance(fitted, VectorTable) and isinstance(former, VectorTable):
        former_rows = {value: row for row, value in enumerate(former.learned, former.first_learned)}
        pairs = [(row, row) for row in range(fitted.first_learned)]
        for row, value in enumerate(fitted.learned, fitted.first_learned):
            if value in former_rows:
                pairs.append((row, former_rows[value]))
        return pairs
    if type(fitted) is type(former) and fitted.rows == former.rows:
        return [(row, row) for row in range(fitted.rows)]
    return [(0, 0)]


def _by_reason(fresh: dict[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, why in fresh.items():
        reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"

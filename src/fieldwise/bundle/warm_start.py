"""Warm start: copying weights by name from another bundle's network, with a report.

FM as the start of AFM is the AFM paper's pre-training (Xiao et al., IJCAI 2017, Section 4.1); any bundle can start any
model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.fitted_fields import Vocabulary
from fieldwise.errors import ConfigError
from fieldwise.layers import FieldEmbedding, row_blocks
from fieldwise.models.build import model_name
from fieldwise.schema.label import Label

SHARED = "embedding.weight"  # the table that multi-task networks share


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """The report of a warm start."""

    source: str  # the name of the bundle's model
    taken: dict[str, str]  # by parameter, what was copied: `all`, or `n of m rows` of an embedding table
    fresh: dict[str, str]  # by parameter, the reason why it was not copied
    # Whether the bundle's run, and the runs that it started from, had the same rows (known only for recipes); otherwise
    # it may have been trained on those of this run.
    same_test_rows: bool | None = None
    same_valid_rows: bool | None = None

    def sentence(self) -> str:
        """The report as a sentence."""
        taken = ", ".join(name if what == "all" else f"{name} ({what})" for name, what in self.taken.items())
        return f"warm start from {self.source}: copied {taken}; not copied: {_by_reason(self.fresh) or 'nothing'}"

    def caution(self) -> str | None:
        """A warning about rows that the bundle may have been trained on; None if it held them out."""
        kept = {"test": self.same_test_rows, "validation": self.same_valid_rows}
        unkept = " and ".join(name for name, same in kept.items() if not same)
        if not unkept:
            return None
        return (
            f"warning: the bundle of the warm start did not hold out this run's {unkept} rows: it may have been "
            f"trained on them, and {unkept} metrics may be too good"
            + ("" if self.same_valid_rows else ", and early stopping unreliable")
        )


def warm_start(network: nn.Module, encoder: Encoder, bundle: Bundle, *, labels: Sequence[Label]) -> WarmStart:
    """Copy matching weights from a bundle's network into a network, in place.

    Embedding tables of the same width are matched row by row: for a field of the same name, the rows of values in both
    vocabularies, and its missing and unknown rows; bins by rank; a number's vector; all rows of hashed fields with the
    same number of buckets. Rows without a match keep fresh weights. Any other tensor is copied if name and shape match,
    and the fields' names, roles and order too, since otherwise a weight would belong to another field. Other weights by
    value (crosses of categories, DAT's augmented vectors, your own tables with `row_blocks`) need equal vocabularies in
    equal rows. If either network has several labels, heads are matched by label name.

    Args:
        network: a fresh network, built for `encoder.layout`.
        encoder: fitted on the rows for training the network.
        bundle: a trained network with its own encoder.
        labels: the network's labels, the main one first.

    Errors:
        ConfigError: nothing matches; a model of your own with `by_value` (`fieldwise.layers.row_blocks`).
    """
    state, target = bundle.network.state_dict(), network.state_dict()
    names = _new_names(state, [label.name for label in bundle.schema.labels], [label.name for label in labels])
    source = {new: state[old] for old, new in names.items()}
    tables, former = _tables(network), _tables(bundle.network)
    former_tables = {new: former[old] for old, new in names.items() if old in former}
    by_value = row_blocks(network)
    same_fields = [(f.name, f.role) for f in encoder.fields] == [(f.name, f.role) for f in bundle.encoder.fields]
    new_rows, old_rows = _matching_rows(encoder, bundle.encoder)
    taken, fresh = dict[str, str](), dict[str, str]()
    for name, tensor in target.items():
        old = source.get(name)
        if old is None:
            fresh[name] = "the bundle has none"
        elif name in tables and tables[name] != former_tables.get(name):
            fresh[name] = "a field-aware table and a plain one"
        elif name in tables and tables[name] and not same_fields:
            fresh[name] = "the fields differ"
        elif name in tables and old.shape[1] == tensor.shape[1] and len(new_rows):
            tensor[new_rows] = old[old_rows]
            taken[name] = f"{len(new_rows):,} of {len(tensor):,} rows"
        elif name in tables:
            sizes = f"width {old.shape[1]} in the bundle, {tensor.shape[1]} here"
            fresh[name] = sizes if old.shape[1] != tensor.shape[1] else "no field in common"
        elif old.shape != tensor.shape:
            fresh[name] = f"shape {_shape(old)} in the bundle, {_shape(tensor)} here"
        elif not same_fields:
            fresh[name] = "the fields differ"
        elif name in by_value and encoder.fitted != bundle.encoder.fitted:
            fresh[name] = "the vocabularies differ"
        elif name in by_value and not torch.equal(new_rows, old_rows):  # of a bundle that has grown
            fresh[name] = "the rows of equal vocabularies differ"
        else:
            tensor.copy_(old)
            taken[name] = "all"
    report = WarmStart(source=model_name(bundle.settings), taken=taken, fresh=fresh)
    if not taken:
        raise ConfigError(
            f"a warm start needs matching parameters, but a bundle of {report.source} has none for this model: "
            f"{_by_reason(fresh)}; choose another bundle, or the same sizes"
        )
    return report


def _new_names(names: Iterable[str], old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """The new names of a bundle's parameters in a network with other labels, without unmatched ones."""
    if len(old) == len(new) == 1:
        return {name: name for name in names}
    results = {}
    for name in names:
        head, label = "", old[0]
        if len(old) > 1 and name.startswith("heads."):
            number = name.split(".", 2)[1]
            head, label = f"heads.{number}.", old[int(number)]
        own = name.removeprefix(head)
        if own == SHARED:
            results[name] = own
        elif label in new:
            results[name] = own if len(new) == 1 else f"heads.{new.index(label)}.{own}"
    return results


def _tables(network: nn.Module) -> dict[str, bool]:
    """The network's embedding tables by parameter name, and whether each is field-aware."""
    modules = network.named_modules()
    return {f"{name}.weight": module.by_field for name, module in modules if isinstance(module, FieldEmbedding)}


def _matching_rows(new: Encoder, old: Encoder) -> tuple[Tensor, Tensor]:
    """Matching rows of the new and the old shared table, as two int64 vectors; each new row once."""
    former = {f.name: (at, fitted) for f, at, fitted in zip(old.fields, old.layout.fields, old.fitted, strict=True)}
    rows: list[tuple[int, int]] = []
    for f, at, fitted in zip(new.fields, new.layout.fields, new.fitted, strict=True):
        if f.name not in former or at.shares is not None:
            continue  # a field that shares rows is matched through the other field
        old_at, other = former[f.name]
        pairs = [(0, 0)]  # of the field's own rows, new and old; every encoding has the missing row first
        if isinstance(fitted, Vocabulary) and isinstance(other, Vocabulary):
            places = {value: row for row, value in enumerate(other.values, start=2)}
            results = [(row, places[value]) for row, value in enumerate(fitted.values, start=2) if value in places]
            pairs += [(1, 1), *results]
        elif type(fitted) is type(other) and fitted.rows == other.rows:
            pairs = [(row, row) for row in range(fitted.rows)]
        rows += [(at.row(a), old_at.row(b)) for a, b in pairs]
    both = torch.tensor(rows, dtype=torch.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _by_reason(fresh: dict[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, why in fresh.items():
        reasons.setdefault(why, []).append(name)
    return "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"

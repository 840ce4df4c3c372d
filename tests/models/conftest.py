"""The laboratory of `parity.lab` and its hardest layout as fixtures."""

from types import SimpleNamespace

import pytest
import torch
from parity import lab as laboratory

from fieldwise import Batch
from fieldwise.testing import rows_of


def fields_of(layout, batch, positions):
    """The rows' cells of some fields, as a batch of the layout of these fields alone, in their order there."""
    singles, bags = (
        [i for i, f in enumerate(layout.fields) if (f.kind == "bag") == bag]
        for bag in (False, True)
    )
    values = [i for i in singles if layout.fields[i].kind == "value"]
    own = [
        [places.index(i) for i in sorted(positions) if i in places]
        for places in (singles, values, bags)
    ]
    row, bag = batch.bag_segments // max(1, len(bags)), batch.bag_segments % max(1, len(bags))
    kept, place = torch.isin(bag, torch.tensor(own[2])), torch.zeros(len(bags), dtype=torch.int64)
    place[own[2]] = torch.arange(len(own[2]))
    segments = (row * len(own[2]) + place[bag])[kept]
    return Batch(
        batch.ids[:, own[0]],
        batch.values[:, own[1]],
        batch.bag_ids[kept],
        segments,
        batch.bag_weights[kept],
    )


def with_fields_of(layout, batch, other, positions):
    """The batch's rows with the other batch's cells of some fields."""
    singles, bags = (
        [i for i, f in enumerate(layout.fields) if (f.kind == "bag") == bag]
        for bag in (False, True)
    )
    single, value, bag = (
        torch.tensor([i in positions for i in places], dtype=torch.bool)
        for places in (singles, [i for i in singles if layout.fields[i].kind == "value"], bags)
    )
    ids, values = (
        torch.where(single, other.ids, batch.ids),
        torch.where(value, other.values, batch.values),
    )
    if not bags:
        return batch._replace(ids=ids, values=values)
    own, theirs = ~bag[batch.bag_segments % len(bags)], bag[other.bag_segments % len(bags)]
    bag_ids, segments, weights = (
        torch.cat([a[own], b[theirs]]) for a, b in zip(batch[2:], other[2:], strict=True)
    )
    order = torch.argsort(segments, stable=True)
    return Batch(ids, values, bag_ids[order], segments[order], weights[order])


@pytest.fixture(scope="session")
def lab():
    """The helpers of `parity.lab`, under short names."""
    return SimpleNamespace(
        layouts=laboratory.LAYOUTS, batch=laboratory.random_batch, take=rows_of, reorder=laboratory.reorder,
        fields=laboratory.field_vectors, first_order=laboratory.first_order, randomized=laboratory.randomized,
        weights=laboratory.weights, fields_of=fields_of, with_fields_of=with_fields_of,
    )  # fmt: skip


@pytest.fixture
def layout():
    """The layout with most kinds of fields; `parity` has every model on every layout."""
    return laboratory.LAYOUTS["mixed"]

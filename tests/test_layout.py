"""Layouts and batches; bags of ids against lists of lists."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import Batch, DataError, Layout
from fieldwise.layout import Bags, FieldLayout, check_batch
from fieldwise.models import NETWORKS


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_sizes_fill_the_shared_table_without_gap_or_overlap(sizes):
    layout = Layout.of_sizes(sizes)
    rows = [row for f in layout.fields for row in range(f.offset, f.offset + f.rows)]
    assert rows == list(range(sum(sizes)))
    assert (layout.num_fields, layout.num_rows) == (len(sizes), sum(sizes))
    assert len({f.name for f in layout.fields}) == len(sizes)
    assert {(f.kind, f.role) for f in layout.fields} == {("id", "context")}


def test_positions_by_kind_and_role():
    assert Layout.of_sizes([2, 3, 4], ["user", "item", "user"]).positions(role="user") == [0, 2]
    described = [
        ("id", "user"),
        ("value", "user"),
        ("bag", "item"),
        ("id", "item"),
        ("value", "context"),
    ]
    fields = [
        FieldLayout(name=str(i), kind=k, role=r, offset=i, rows=1)
        for i, (k, r) in enumerate(described)
    ]
    layout = Layout(tuple(fields))
    assert layout.positions() == [0, 1, 2, 3, 4]
    assert layout.positions(kind="id") == [0, 3]
    assert layout.positions(role="user") == [0, 1]
    assert layout.positions(kind="value", role="user") == [1]
    assert layout.positions(kind="bag", role="context") == []


def test_a_batch_of_categories_alone_has_no_values_and_no_bags():
    ids = torch.tensor([[0, 3], [2, 6], [1, 4]])
    batch = Batch.of_ids(ids)
    assert batch.ids is ids
    assert [tuple(t.shape) for t in batch[1:]] == [(3, 0), (0,), (0,), (0,)]
    assert [t.dtype for t in batch[1:]] == [torch.float32, torch.int64, torch.int64, torch.float32]
    assert all(torch.equal(a, b) for a, b in zip(Batch(ids, torch.empty(3, 0)), batch, strict=True))
    for rows, single in ((0, 3), (7, 0)):  # also without single-valued fields
        assert (
            Batch(torch.zeros(rows, single, dtype=torch.int64), torch.zeros(rows, 0)).size == rows
        )


def test_a_batch_goes_to_a_device_whole():
    batch = Batch(
        torch.tensor([[0, 3]]),
        torch.ones(1, 2),
        torch.tensor([5]),
        torch.tensor([0]),
        torch.ones(1),
    )
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    assert [(t.device.type, t.shape, t.dtype) for t in moved] == [
        ("meta", t.shape, t.dtype) for t in batch
    ]
    assert all(a is b for a, b in zip(batch.to("cpu"), batch, strict=True))


def test_a_batch_shows_its_sizes_and_takes_no_bags_without_weights():
    with pytest.raises(AssertionError, match="weighted"):
        Batch.of_bags(torch.zeros(1, 1), torch.zeros(1, 0), bags_of([[1]]))
    ids, bag = torch.tensor([[0, 3], [2, 6]]), torch.tensor([7, 8, 9])
    batch = Batch(ids, torch.ones(2, 1), bag, torch.tensor([0, 0, 1]), torch.ones(3))
    assert (
        repr(batch)
        == "Batch(rows=2, ids=[2, 2] int64, values=[2, 1] float32, bag values=3, device=cpu)"
    )
    # torch.export holds specifications in one
    assert repr(Batch(*"abcde")) == "Batch('a', 'b', 'c', 'd', 'e')"


LISTS = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=8)
TABLES = st.integers(1, 3).flatmap(
    lambda groups: st.lists(
        st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=groups, max_size=groups),
        max_size=6,
    )
)


def bags_of(lists, *, weighted=False):
    ids = torch.tensor([i for one in lists for i in one], dtype=torch.int32)
    weights = torch.arange(len(ids)) / 8 if weighted else None
    return Bags.of(ids, torch.tensor([len(one) for one in lists], dtype=torch.int64), weights)


def lists_of(bags, values=None):
    results = [[] for _ in bags.lengths]
    for value, bag in zip(
        (bags.ids if values is None else values).tolist(), bags.segments.tolist(), strict=True
    ):
        results[bag].append(value)
    assert [len(one) for one in results] == bags.lengths.tolist()
    assert bags.offsets.tolist() == [sum(map(len, results[:k])) for k in range(len(results) + 1)]
    return results


@given(TABLES, st.lists(st.integers(0, 5), max_size=8), st.integers(-7, 7), st.integers(-7, 7))
def test_rows_by_number_and_by_slice(table, numbers, start, end):
    groups = len(table[0]) if table else 1
    bags = bags_of([one for row in table for one in row], weighted=True)
    numbers = [n for n in numbers if n < len(table)]
    for wanted, rows in (
        (torch.tensor(numbers, dtype=torch.int64), [table[n] for n in numbers]),
        (slice(start, end), table[start:end]),
    ):
        result = bags.rows(wanted, groups)
        assert lists_of(result) == [one for row in rows for one in row]
        weights = lists_of(bags, bags.weights)
        by_row = [weights[n * groups : (n + 1) * groups] for n in range(len(table))]
        chosen = (
            [by_row[n] for n in numbers] if isinstance(wanted, torch.Tensor) else by_row[start:end]
        )
        assert result.ids.dtype == torch.int32
        assert lists_of(result, result.weights) == [one for row in chosen for one in row]


@given(st.lists(LISTS, min_size=1, max_size=3), st.booleans())
def test_joined_bags_follow_one_another(parts, weighted):
    each = [bags_of(lists, weighted=weighted) for lists in parts]
    result = Bags.joined(each)
    assert lists_of(result) == [one for lists in parts for one in lists]
    if weighted:
        assert result.weights.tolist() == [w for one in each for w in one.weights.tolist()]


@given(TABLES, st.lists(st.booleans(), min_size=3, max_size=3))
def test_shares_are_those_of_a_mean_or_one(table, means):
    groups = len(table[0]) if table else 1
    lists = [one for row in table for one in row]
    result = bags_of(lists).shares(torch.tensor(means[:groups]))
    expected = [
        1 / len(one) if means[b % groups] else 1.0 for b, one in enumerate(lists) for _ in one
    ]
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, torch.tensor(expected))


@given(TABLES)
def test_a_batch_gives_back_its_bags_and_rows(table):
    groups = len(table[0]) if table else 1
    bags = bags_of([one for row in table for one in row], weighted=True)
    ids = torch.arange(len(table)).unsqueeze(1)
    batch = Batch.of_bags(ids, ids / 2, bags)
    assert lists_of(batch.bags(groups)) == lists_of(bags)
    odd = batch.rows(torch.arange(len(table))[1::2], groups)
    assert lists_of(odd.bags(groups)) == [one for row in table[1::2] for one in row]
    assert odd.ids.flatten().tolist() == list(range(1, len(table), 2))
    later = batch.rows(slice(1, None), groups)
    assert lists_of(later.bags(groups)) == [one for row in table[1:] for one in row]
    assert later.values.flatten().tolist() == [row / 2 for row in range(1, len(table))]


def test_bags_are_gathered_in_one_place():
    """Code that reads `bag_offsets` or `bag_segments` gathers bags a second time: `Bags` does that."""
    src = Path(__file__).parents[1] / "src" / "fieldwise"
    offsets, segments = (
        {path.relative_to(src).as_posix() for path in src.rglob("*.py") if name in path.read_text()}
        for name in ("bag_offsets", "bag_segments")
    )
    assert offsets == {"data/table.py"}, "an encoded table and a window of its rows hold them"
    exported = {"bundle/export.py", "data/encode/portable.py"}
    pooled = {"layers/embedding.py", "models/din.py", "models/trees.py"}
    assert segments == {"layout.py", "scoring/candidates.py", "testing.py"} | pooled | exported


def test_every_network_refuses_what_is_no_batch_of_its_layout(subtests):
    layout = Layout.of_sizes([3, 4, 5], ["user", "item", "context"])
    good = torch.tensor([[0, 3, 7], [2, 6, 11]])
    for name, settings in NETWORKS.items():
        if name == "din":  # needs a history
            continue
        network = settings().build(layout).eval()
        assert network(Batch.of_ids(good)).shape == network(Batch.of_ids(good.int())).shape == (2,)
        for batch, message in [
            (
                good,
                r"a network reads a Batch, found a Tensor of shape \[2, 3\]: make one with Batch.of_ids",
            ),
            (good.tolist(), "a network reads a Batch, found a list"),
            (
                Batch.of_ids(good[:, :2]),
                r"must be \[rows, 3\], a column for each of field_0, field_1, field_2, found \[2, 2\]",
            ),
            (
                Batch.of_ids(good - 1),
                "an id of field 'field_0' must be one of its rows .* begin at 0, found -1 in row 0",
            ),
            (
                Batch.of_ids(good + torch.tensor([0, 1, 0])),
                "field 'field_1' .* begin at 3, found 7 in row 1",
            ),
            (Batch.of_ids(good + 99), "found 99 in row 0 of the batch: add the field's offset"),
        ]:
            with subtests.test(name=name, message=message), pytest.raises(DataError, match=message):
                network(batch)


def test_fields_that_share_rows_or_have_grown_are_told_by_their_rows():
    shared = [
        FieldLayout(name="a", kind="id", role="user", offset=0, rows=4, extents=((3, 6),)),
        FieldLayout(name="b", kind="id", role="user", offset=3, rows=3),
        FieldLayout(
            name="c", kind="id", role="item", offset=0, rows=4, shares="a", extents=((3, 6),)
        ),
    ]
    layout = Layout(tuple(shared))
    check_batch(Batch.of_ids(torch.tensor([[6, 5, 2], [0, 3, 6]])), layout)
    with pytest.raises(DataError, match=r"an id of field 'b' .* found 6"):
        check_batch(Batch.of_ids(torch.tensor([[6, 6, 2]])), layout)


def test_ids_of_a_batch_are_a_tensor_of_whole_numbers(subtests):
    ids = [[0, 3], [2, 6]]
    for wrong, found in [
        (ids, "a list"),
        (np.array(ids), "a ndarray"),
        (torch.tensor(ids).float(), "a tensor of type torch.float32"),
        (torch.tensor(ids) > 2, "a tensor of type torch.bool"),
    ]:
        with (
            subtests.test(found=found),
            pytest.raises(DataError, match=f"whole numbers .*, found {found}: convert it"),
        ):
            Batch.of_ids(wrong)

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fieldwise.layout import Batch, FieldLayout, Layout


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_sizes_fill_the_shared_table_without_gap_or_overlap(sizes):
    layout = Layout.of_sizes(sizes)
    rows = [row for f in layout.fields for row in range(f.offset, f.offset + f.rows)]
    assert rows == list(range(sum(sizes)))
    assert (layout.num_fields, layout.num_rows) == (len(sizes), sum(sizes))
    assert len({f.name for f in layout.fields}) == len(sizes)
    assert {(f.kind, f.role) for f in layout.fields} == {("id", "context")}


def test_roles_are_given_in_order():
    layout = Layout.of_sizes([2, 3, 4], ["user", "item", "user"])
    assert [f.role for f in layout.fields] == ["user", "item", "user"]


def test_positions_by_kind_and_role():
    described = [("id", "user"), ("value", "user"), ("bag", "item"), ("id", "item"), ("value", "context")]
    layout = Layout(
        tuple(
            FieldLayout(name=f"f{i}", kind=kind, role=role, offset=i, rows=1)
            for i, (kind, role) in enumerate(described)
        )
    )
    assert layout.positions() == [0, 1, 2, 3, 4]
    assert layout.positions(kind="id") == [0, 3]
    assert layout.positions(role="user") == [0, 1]
    assert layout.positions(kind="value", role="user") == [1]
    assert layout.positions(kind="bag", role="context") == []


def test_layouts_are_values():
    assert Layout.of_sizes([2, 3]) == Layout.of_sizes([2, 3])
    assert hash(Layout.of_sizes([2, 3])) == hash(Layout.of_sizes([2, 3]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        Layout.of_sizes([2]).fields = ()
    with pytest.raises(dataclasses.FrozenInstanceError):
        Layout.of_sizes([2]).fields[0].offset = 3


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_batch_of_categories_alone_has_no_values_and_no_bags(dtype):
    ids = torch.tensor([[0, 3], [2, 6], [1, 4]], dtype=dtype)
    batch = Batch.of_ids(ids)
    assert batch.ids is ids
    assert [tuple(t.shape) for t in batch[1:]] == [(3, 0), (0,), (0,), (0,)]
    assert [t.dtype for t in batch[1:]] == [torch.float32, torch.int64, torch.int64, torch.float32]
    assert all(torch.equal(a, b) for a, b in zip(Batch(ids, torch.empty(3, 0)), batch, strict=True))


def test_a_batch_goes_to_a_device_whole():
    batch = Batch(torch.tensor([[0, 3]]), torch.ones(1, 2), torch.tensor([5]), torch.tensor([0]), torch.ones(1))
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    assert [(t.device.type, t.shape, t.dtype) for t in moved] == [("meta", t.shape, t.dtype) for t in batch]
    assert all(a is b for a, b in zip(batch.to("cpu"), batch, strict=True))


def test_a_batch_shows_its_sizes():
    ids, bag = torch.tensor([[0, 3], [2, 6]]), torch.tensor([7, 8, 9])
    batch = Batch(ids, torch.ones(2, 1), bag, torch.tensor([0, 0, 1]), torch.ones(3))
    assert repr(batch) == "Batch(rows=2, ids=[2, 2] int64, values=[2, 1] float32, bag values=3, device=cpu)"
    assert repr(Batch(*"abcde")) == "Batch('a', 'b', 'c', 'd', 'e')"  # torch.export holds specifications in one


def test_batch_size_is_its_rows_also_without_single_valued_fields(subtests):
    for rows in [0, 1, 7]:
        with subtests.test(rows=rows):
            none = torch.zeros(0, dtype=torch.int64)
            for single in (0, 3):
                ids, values = torch.zeros(rows, single, dtype=torch.int64), torch.zeros(rows, 0)
                assert Batch(ids, values, none, none, torch.zeros(0)).size == rows

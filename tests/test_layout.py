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


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_batch_size_is_its_rows_also_without_single_valued_fields(rows):
    none = torch.zeros(0, dtype=torch.int64)
    for single in (0, 3):
        ids, values = torch.zeros(rows, single, dtype=torch.int64), torch.zeros(rows, 0)
        assert Batch(ids, values, none, none, torch.zeros(0)).size == rows

"""Batches of whole groups: every row once, no group cut, by seed and epoch, from any step, over processes."""

from itertools import chain

import numpy as np
import pytest
from data.test_windows import table_of
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldwise.data.grouped_rows import GroupedRows
from fieldwise.data.shuffled_rows import BatchShard

ROWS = 200
TABLE = table_of(ROWS)


def grouped(lengths, size, *, shard=(0, 1), seed=5):
    """Groups of these lengths whose rows lie apart in the table."""
    group = np.repeat(np.arange(len(lengths)), lengths)
    group = group[np.random.default_rng(1).permutation(len(group))]
    table = TABLE.take(np.arange(len(group)))
    return GroupedRows(table=table, group=group, size=size, seed=seed, shard=BatchShard(*shard))


def numbers(batches):
    return [batch.batch.ids[:, 0].tolist() for batch in batches]


lengths_of_groups = st.lists(st.integers(1, 12), min_size=1, max_size=16)


@given(lengths_of_groups, st.integers(2, 40), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_every_batch_holds_whole_groups_and_an_epoch_every_row(lengths, size, epoch):
    rows = grouped(lengths, size)
    batches = list(rows.epoch(epoch, 0))
    assert len(batches) == rows.steps
    assert sorted(chain(*numbers(batches))) == list(range(len(rows.group)))
    for batch in batches:
        of_rows = rows.group[batch.batch.ids[:, 0].numpy()]
        local = batch.group.numpy()
        assert len(np.unique(of_rows)) == len(np.unique(local)) == local.max() + 1
        assert all(len(np.unique(of_rows[local == g])) == 1 for g in np.unique(local))
        for g in np.unique(of_rows):
            assert (of_rows == g).sum() == lengths[g], "a group is cut"
        in_table = batch.batch.ids[:, 0].numpy()
        np.testing.assert_array_equal(batch.y, rows.table.y[in_table])
        if rows.table.mean_weight is not None:  # of more than one row
            expected = rows.table.weight[in_table] / rows.table.mean_weight
            np.testing.assert_allclose(batch.weight, expected, rtol=1e-6)
    done = [rows.done(step, epoch) for step in range(rows.steps + 1)]
    assert done == np.append(0, np.cumsum([len(batch.y) for batch in batches])).tolist()


@given(st.lists(st.integers(1, 8), min_size=8, max_size=25), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_batches_have_about_the_size_that_is_wanted(lengths, epoch):
    """Of groups of at most half a batch."""
    sizes = [len(batch.y) for batch in grouped(lengths, 16).epoch(epoch, 0)]
    if len(sizes) > 1:
        assert min(sizes) >= 8
        assert max(sizes) <= 1.5 * 2 * 16


def test_the_order_is_by_seed_and_epoch_and_goes_on_at_any_step():
    lengths = [3, 1, 5, 2, 4, 4, 2, 6, 1, 3]
    rows = grouped(lengths, 8)
    first, second = numbers(rows.epoch(1, 0)), numbers(rows.epoch(2, 0))
    assert first != second
    assert numbers(grouped(lengths, 8, seed=6).epoch(1, 0)) != first
    again = grouped(lengths, 8)
    assert [numbers(again.epoch(2, step)) for step in range(rows.steps)] == [
        second[step:] for step in range(rows.steps)
    ]


@pytest.mark.parametrize("processes", [2, 3])
def test_processes_share_each_batch_by_whole_groups(processes):
    lengths = [3, 1, 5, 2, 4, 4, 2, 6, 1, 3, 12]
    alone = numbers(grouped(lengths, 10).epoch(1, 0))
    parts = [
        numbers(grouped(lengths, 10, shard=(rank, processes)).epoch(1, 0))
        for rank in range(processes)
    ]
    group = grouped(lengths, 10).group
    for whole, *shares in zip(alone, *parts, strict=True):
        assert list(chain(*shares)) == whole
        groups = [set(group[share]) for share in shares]
        assert sum(map(len, groups)) == len(set(group[whole])), "a group is cut"

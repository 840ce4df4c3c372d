"""Means, deviations and counts by slices against NumPy's over all rows."""

from typing import ClassVar

import numpy as np
import pytest

from fieldwise.data import targets
from fieldwise.data.table import EncodedTable
from fieldwise.data.targets import deviations, mean_target
from fieldwise.layout import Layout
from fieldwise.training import unknown
from fieldwise.training.unknown import row_counts


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 50])
def test_slices_give_what_all_rows_give(rows, monkeypatch):
    draws = np.random.default_rng(rows)
    y, weight = draws.normal(3.0, 2.0, (rows, 2)).astype(np.float32), draws.gamma(1.0, size=rows).astype(np.float32)
    ids = draws.integers(0, 9, (rows, 2)).astype(np.int32)
    table = EncodedTable(Layout.of_sizes([5, 4]), ids, y[:, :0], ids[:, 0], np.arange(rows + 1))
    expected = np.bincount(ids.ravel(), minlength=9) + np.bincount(ids[:, 0], minlength=9)
    for size in (7, 1000):
        monkeypatch.setattr(targets, "SLICE_ROWS", size)
        assert mean_target(y[:, 0], scale=2.0) == pytest.approx(y[:, 0].astype(float).mean() / 2, rel=1e-12)
        assert mean_target(y[:, 1], weight) == pytest.approx(
            np.average(y[:, 1].astype(float), weights=weight), rel=1e-6
        )
        assert deviations(y) == pytest.approx(y.astype(float).std(axis=0), rel=1e-12, abs=1e-12)
        assert row_counts(table).tolist() == expected.tolist()


class Recorded(np.ndarray):
    """An array that records the blocks read from it."""

    blocks: ClassVar[list[np.ndarray]] = []

    def __getitem__(self, key):
        found = super().__getitem__(key)
        self.blocks.append(np.asarray(found))
        return np.asarray(found)

    def __iter__(self):
        return (self[k] for k in range(len(self)))


@pytest.mark.parametrize("fields", [1, 41])
def test_rows_of_the_embedding_table_are_counted_in_one_pass(fields, monkeypatch):
    monkeypatch.setattr(unknown, "COUNTED_IDS", 300)
    monkeypatch.setattr(Recorded, "blocks", [])
    ids = np.random.default_rng(fields).integers(0, 3 * fields, (1000, fields)).astype(np.int32)
    table = EncodedTable(
        Layout.of_sizes([3] * fields),
        ids.view(Recorded),
        np.zeros((1000, 0), np.float32),
        np.zeros(0, np.int32),
        np.zeros(1, np.int64),
    )
    assert row_counts(table).tolist() == np.bincount(ids.ravel(), minlength=3 * fields).tolist()
    assert len(Recorded.blocks) > 1
    assert max(block.size for block in Recorded.blocks) <= 300
    starts = [block.__array_interface__["data"][0] for block in Recorded.blocks]
    ends = [start + block.nbytes for start, block in zip(starts, Recorded.blocks, strict=True)]
    assert starts == [ids.__array_interface__["data"][0], *ends[:-1]]

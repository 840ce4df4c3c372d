"""Means and deviations by slices against NumPy's over all rows."""

import numpy as np
import pytest

from fieldwise.data import targets
from fieldwise.data.table import EncodedTable
from fieldwise.data.targets import deviations, mean_target
from fieldwise.layout import Layout
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

"""The laboratory of `parity.lab` and its hardest layout as fixtures."""

from types import SimpleNamespace

import pytest
from parity import lab as laboratory

from fieldwise.testing import rows_of


@pytest.fixture(scope="session")
def lab():
    """The helpers of `parity.lab`, under short names."""
    return SimpleNamespace(
        layouts=laboratory.LAYOUTS, batch=laboratory.random_batch, take=rows_of, reorder=laboratory.reorder,
        fields=laboratory.field_vectors, first_order=laboratory.first_order, randomized=laboratory.randomized,
        weights=laboratory.weights,
    )  # fmt: skip


@pytest.fixture
def layout():
    """The layout with most kinds of fields; `parity` has every model on every layout."""
    return laboratory.LAYOUTS["mixed"]

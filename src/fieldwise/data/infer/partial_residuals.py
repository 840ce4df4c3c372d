"""What of the label the other columns leave to a column: partial residuals of an additive model."""

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from fieldwise.data.infer.agreements import ENOUGH
from fieldwise.data.infer.code_or_quantity import quantile_bins, shrunken_means
from fieldwise.data.infer.profile import ColumnProfile, is_scalar

_ROUNDS = 3
_MOST_CELLS = 1 << 24
_MOST_DIFFERENT = 0.9
"""The share of different cells from which a column has no groups of rows."""


class PartialResidual(NamedTuple):
    """What the other columns leave of the label, in a random sample of the rows.

    Args:
        rows: numbers of the rows, in random order.
        values: of each of them, the label less its mean and the effects of the other columns.
        fitted: how many of the rows, the first ones, these effects were fitted to.
    """

    rows: np.ndarray
    values: np.ndarray
    fitted: int


class PartialResiduals:
    """The partial residuals of a table's columns: the label less its mean and what all other columns tell of it.

    A value that recurs may predict the label only because rows that share it are alike in other
    columns, as those of a survey's weight are. So a column is judged by what it adds to the others.
    Their effects are those of an additive model: a shrunken mean of each category or quantile bin,
    fitted to half of a sample of the rows by backfitting (Buja, Hastie and Tibshirani, 1989).

    Nothing is computed before the residual of a column is asked for.

    Args:
        columns: those that may be fields.
        target: the label's target of each row [N], NaN where a row is dropped.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> rng = np.random.default_rng(0)
    >>> shop, hour = rng.integers(0, 20, 8000), rng.integers(0, 24, 8000)
    >>> columns = profile_columns(pl.DataFrame({"shop": shop, "city": shop // 5, "hour": hour}))
    >>> residuals = PartialResiduals(columns, shop + 0.1 * hour)
    >>> of_hour, of_city = residuals.of("hour"), residuals.of("city")
    >>> float(np.corrcoef(of_hour.values, hour[of_hour.rows])[0, 1]) > 0.99
    True
    >>> float(np.var(of_city.values)) < 0.1 * float(np.var(shop))
    True
    """

    def __init__(self, columns: Mapping[str, ColumnProfile], target: np.ndarray) -> None:
        self._columns = columns
        self._target = target

    def of(self, name: str) -> PartialResidual:
        """The partial residual of a column."""
        effects, residual = self._fit
        own = effects[name][self._groups[name]] if name in effects else 0.0
        return PartialResidual(self._rows, residual + own, self._fitted)

    @cached_property
    def _rows(self) -> np.ndarray:
        most = min(2 * ENOUGH, _MOST_CELLS // max(1, len(self._columns)))
        rows = np.flatnonzero(~np.isnan(self._target))
        return np.random.default_rng(0).permutation(rows)[:most]

    @property
    def _fitted(self) -> int:
        return len(self._rows) // 2

    @cached_property
    def _groups(self) -> dict[str, np.ndarray]:
        """By column, the group of each row of the sample; of those columns that group rows."""
        results = {}
        for name, column in self._columns.items():
            if not is_scalar(column.dtype):
                continue
            groups = _groups_of(column.cells.gather(self._rows))
            if groups.max() < _MOST_DIFFERENT * len(groups):
                results[name] = groups.astype(np.int32)
        return results

    @cached_property
    def _fit(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """By column the effect of each group, and what all of them leave of the label in each row."""
        fitted = self._fitted
        target = self._target[self._rows]
        residual = target - target[:fitted].mean()
        effects = {name: np.zeros(int(groups.max()) + 1) for name, groups in self._groups.items()}
        for _ in range(_ROUNDS):
            for name, groups in self._groups.items():
                partial = residual + effects[name][groups]
                effects[name] = shrunken_means(groups, partial, fitted)
                residual = partial - effects[name][groups]
        return effects, residual


def _groups_of(cells: pl.Series) -> np.ndarray:
    """The category or quantile bin of each cell, from 0; empty cells are one group."""
    if cells.dtype.is_numeric():
        numbers = cells.cast(pl.Float64).fill_null(np.nan).to_numpy()
        is_number = np.isfinite(numbers)
        groups = np.zeros(len(numbers), np.int64)
        if is_number.any():
            groups[is_number] = 1 + quantile_bins(numbers[is_number])
        return groups
    return np.unique(cells.hash().to_numpy(), return_inverse=True)[1]

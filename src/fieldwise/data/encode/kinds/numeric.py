"""Numbers: a cell is one number, which is scaled and multiplies a vector, or has a bin, or a position on a curve.

Local row ids of a field: bins 0 missing, 1.. the bins; a number times a vector 0 missing, 1 the
field's vector; a piecewise linear number 0 missing, 1 the start, 2.. the pieces.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import field_numbers
from fieldwise.data.encode.kinds.base import Cells, Counted, Kind, register
from fieldwise.data.encode.portable import (
    FLOAT32_MAX,
    MISSING,
    Cell,
    CellEncoder,
    bin_of,
    cell_number,
)
from fieldwise.layout import FieldLayout
from fieldwise.schema import Numeric
from fieldwise.storage.scratch import MemoryBudget

RANGES_BEYOND = 10
"""How many times its width a range of training rows is widened on each side, before numbers beyond it are clipped."""


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A scaler: (number - shift) / scale, after an optional logarithm, clipped to `clip`.

    `clip` is [0, 1] for `minmax`, none for a logarithm, which is at most 89, else the range of the
    training rows, widened on both sides by `RANGES_BEYOND` times its width.
    """

    logarithm: bool = False
    shift: float = 0.0
    scale: float = 1.0
    clip: tuple[float, float] | None = None
    kind: Literal["scaling"] = "scaling"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return 2

    def apply(self, numbers: np.ndarray) -> np.ndarray:
        """The scaled numbers [N], NaN where one is missing."""
        if self.logarithm:
            numbers = signed_log(numbers)
        lowest, highest = self.clip or (-FLOAT32_MAX, FLOAT32_MAX)
        with np.errstate(over="ignore"):  # overflows are clipped
            return np.clip((numbers - self.shift) / self.scale, lowest, highest)


@dataclass(frozen=True, kw_only=True)
class Bins:
    """Bins: bin k holds edges[k-1] <= number < edges[k]; the first and last include values beyond the training range.

    Args:
        edges: the inner edges, increasing, after an optional logarithm.
        closed: `right`: bin k holds edges[k-1] < number <= edges[k].
    """

    edges: tuple[float, ...]
    logarithm: bool = False
    closed: Literal["left", "right"] = "left"
    kind: Literal["bins"] = "bins"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return len(self.edges) + 2

    def ids(self, numbers: np.ndarray) -> np.ndarray:
        """Local row ids [N] of numbers; NaN is missing."""
        is_missing = np.isnan(numbers)
        if self.logarithm:
            numbers = signed_log(numbers)
        bin_at_edge: Literal["left", "right"] = "right" if self.closed == "left" else "left"
        bins = np.searchsorted(np.asarray(self.edges), numbers, side=bin_at_edge)
        return np.where(is_missing, MISSING, bins + 1).astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A piecewise linear curve (Gorishniy et al., NeurIPS 2022, Section 3.2): piece k from edges[k] to edges[k + 1].

    NOTE[DIFF]: beyond the training range the paper goes on along the first or the last piece; here
    a number there is at its end.

    Args:
        edges: at least two, increasing, after an optional logarithm; the first and the last are the
            range of the training rows.
    """

    edges: tuple[float, ...]
    logarithm: bool = False
    kind: Literal["pieces"] = "pieces"

    @property
    def rows(self) -> int:
        """Rows of the field in the shared table."""
        return len(self.edges) + 1

    def positions(self, numbers: np.ndarray) -> np.ndarray:
        """The positions [N] of numbers, k + r for one that has a share r of piece k behind it; NaN is missing."""
        if self.logarithm:
            numbers = signed_log(numbers)
        positions: np.ndarray = np.interp(numbers, self.edges, range(len(self.edges)))
        return positions


def number_cell(encoder: CellEncoder, value: Any) -> Cell:
    """The row of a number's bin; or the field's row and a number: the scaled one, or the position on a curve."""
    field = encoder.field
    fitted = encoder.fitted
    number = cell_number(value, field.number_format, encoder.marks)
    is_missing = math.isnan(number)
    if fitted.logarithm and not is_missing:
        number = math.copysign(float(np.log1p(abs(number))), number)
    if fitted.kind == "bins":
        return [MISSING if is_missing else 1 + bin_of(number, fitted.edges, fitted.closed)], []
    if fitted.kind == "pieces":
        if is_missing:
            return [MISSING], [0.0]
        return [1], [float(np.interp(number, fitted.edges, range(len(fitted.edges))))]
    if is_missing:
        return [MISSING], [1.0 if field.missing == "vector" else 0.0]
    low, high = fitted.clip or (-FLOAT32_MAX, FLOAT32_MAX)
    return [1], [min(max((number - fitted.shift) / fitted.scale, low), high)]


@register(Numeric)
class NumericKind(Kind[Numeric]):
    """One number per cell.

    The counted values are the numbers, in order, as `number`, or those of them that fitting needs.
    """

    forms = (Scaling, Bins, Pieces)
    plain_types = frozenset({type(None), int, float})
    cell = staticmethod(number_cell)

    def count(self, f: Numeric, cells: pl.Series, missing: Sequence[str]) -> Counted:
        """Read a chunk as numbers."""
        numbers = field_numbers(f, cells, missing).drop_nulls()
        needed = numbers
        if f.encoding == "value" and f.transform == "none":  # for which their range is enough
            ends = pl.Series([numbers.min(), numbers.max()], dtype=pl.Float64)
            needed = ends.drop_nulls()
        elif f.encoding == "value" and f.transform == "log":
            # The logarithm of a number depends on no other.
            needed = numbers.clear()
        return Counted(len(cells), len(numbers), pl.DataFrame({"number": needed}))

    def fit(
        self, f: Numeric, values: Iterator[pl.DataFrame], *, budget: MemoryBudget
    ) -> Scaling | Bins | Pieces:
        """Fit a scaler, bins or pieces.

        A logarithm alone needs no numbers; a field that is neither transformed nor binned only
        their least and greatest.
        """
        numbers = budget.concatenate(
            (chunk.get_column("number").to_numpy() for chunk in values), np.float64
        )
        if not len(numbers):
            return Scaling(logarithm=f.transform == "log")
        if f.transform == "log":
            for chunk in budget.chunk_slices(len(numbers)):
                numbers[chunk] = signed_log(numbers[chunk])

        low = float(numbers.min())
        high = float(numbers.max())
        if f.encoding == "value" and f.transform == "none":
            if _is_constant((low + high) / 2, (high - low) / 2, 2):
                high = low
            return Scaling(clip=_widened(low, high))

        mean = float(numbers.mean())
        if _is_constant(mean, (high - low) / 2, len(numbers)):
            numbers[:] = low
            high = low
            mean = low
        if f.encoding != "value":
            return _fit_bins(f, numbers, low, high, budget=budget)
        if f.transform == "minmax":
            return Scaling(shift=low, scale=high - low or 1.0, clip=(0.0, 1.0))
        return _fit_standard(numbers, mean, low, high)

    def column(
        self,
        f: Numeric,
        fitted: Scaling | Bins | Pieces,
        cells: pl.Series,
        missing: Sequence[str],
    ) -> Cells:
        """Scale the numbers, or find their bins or positions."""
        numbers = field_numbers(f, cells, missing).fill_null(float("nan")).to_numpy()
        if isinstance(fitted, Bins):
            return Cells(fitted.ids(numbers))
        is_missing = np.isnan(numbers)
        if isinstance(fitted, Pieces):
            number_if_missing = 0.0
            encoded = fitted.positions(numbers)
        else:
            number_if_missing = 1.0 if f.missing == "vector" else 0.0
            encoded = fitted.apply(numbers)
        encoded = np.where(is_missing, number_if_missing, encoded).astype(np.float32)
        ids = np.where(is_missing, np.int32(MISSING), np.int32(1))
        return Cells(ids, numbers=encoded[:, None])

    def layout(
        self, f: Numeric, fitted: Scaling | Bins | Pieces, layout: FieldLayout
    ) -> FieldLayout:
        """Scaled numbers are a number times a vector, positions sums over pieces, bins ids in their order."""
        if isinstance(fitted, Pieces):
            return replace(layout, kind="value", piecewise=True)
        if isinstance(fitted, Scaling):
            return replace(layout, kind="value")
        return replace(layout, ordered=True)


def signed_log(numbers: np.ndarray) -> np.ndarray:
    """The logarithm of 1 + |number| with the number's sign."""
    return np.asarray(np.sign(numbers) * np.log1p(np.abs(numbers)))


def _fit_bins(
    f: Numeric, numbers: np.ndarray, low: float, high: float, *, budget: MemoryBudget
) -> Bins | Pieces:
    if f.encoding == "uniform":
        edges = np.linspace(low, high, f.bins + 1)[1:-1]
    else:
        edges = quantile_edges(numbers, f.bins, f.point_masses, budget=budget)
    if f.encoding == "piecewise" and low < high:
        all_edges = np.unique([low, *edges, high])
        return Pieces(edges=tuple(all_edges.tolist()), logarithm=f.transform == "log")
    distinct_edges = tuple(np.unique(edges).tolist())
    return Bins(edges=distinct_edges, logarithm=f.transform == "log", closed=f.closed)


def _fit_standard(numbers: np.ndarray, mean: float, low: float, high: float) -> Scaling:
    """The scaler to mean 0 and standard deviation 1."""
    # `numbers.std()` in place
    numbers -= mean
    numbers *= numbers
    deviation = float(np.sqrt(numbers.sum() / len(numbers)))
    if _is_constant(mean, deviation, len(numbers)):
        return Scaling(shift=mean, clip=_widened(0.0, 0.0))
    clip = _widened((low - mean) / deviation, (high - mean) / deviation)
    return Scaling(shift=mean, scale=deviation, clip=clip)


def _widened(low: float, high: float) -> tuple[float, float]:
    """A range of training rows, widened on both sides by `RANGES_BEYOND` times its width, or times 1 if that is 0."""
    beyond = RANGES_BEYOND * ((high - low) or 1.0)
    return max(low - beyond, -FLOAT32_MAX), min(high + beyond, FLOAT32_MAX)


def _is_constant(mean: float, deviation: float, count: int) -> bool:
    """Whether numbers with this standard deviation differ by rounding alone, by the bound of scikit-learn's scaler."""
    variance = deviation**2
    epsilon = float(np.finfo(np.float64).eps)
    return variance <= count * epsilon * variance + (count * mean * epsilon) ** 2


def quantile_edges(
    numbers: np.ndarray, bins: int, point_masses: bool, *, budget: MemoryBudget
) -> np.ndarray:
    """Inner edges of bins of equal counts, unsorted and with repetitions; the numbers are overwritten.

    With `point_masses` a number in more than 1 / bins of the rows gets its own bin.
    """
    if not point_masses:
        return _equal_count_edges(numbers, bins)

    numbers.sort()
    # A run of more than N / bins equal numbers covers a multiple of N // bins.
    candidates = np.unique(numbers[:: max(1, len(numbers) // bins)])
    starts = np.searchsorted(numbers, candidates, side="left")
    ends = np.searchsorted(numbers, candidates, side="right")
    is_long = (ends - starts) * bins > len(numbers)
    starts = starts[is_long]
    ends = ends[is_long]
    run_numbers = numbers[starts]
    numbers_after_runs = numbers[ends[ends < len(numbers)]]

    length = 0  # of the numbers between the runs, which are moved together in place
    for start, end in zip([0, *ends], [*starts, len(numbers)], strict=True):
        for chunk in budget.chunk_slices(int(end - start)):
            moved = numbers[start + chunk.start : start + chunk.stop]
            numbers[length + chunk.start : length + chunk.stop] = moved
        length += int(end - start)
    others = numbers[:length]
    bins_of_others = max(2, bins - len(starts))
    edges_of_others = _equal_count_edges(others, bins_of_others) if length else others
    return np.concatenate([run_numbers, numbers_after_runs, edges_of_others])


def _equal_count_edges(numbers: np.ndarray, bins: int) -> np.ndarray:
    inner = np.linspace(0, 1, bins + 1)[1:-1]
    return np.asarray(np.quantile(numbers, inner, overwrite_input=True))

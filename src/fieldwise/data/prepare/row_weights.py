"""Weights of rows: a table's columns of them, and rows of several trials as weighted rows of both classes."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_number
from fieldwise.data.read.row_numbers import counting_from
from fieldwise.errors import DataError, Row
from fieldwise.storage.scratch import MemoryBudget

WEIGHT = "weight"
TRIALS = "number of trials"


def read_weights(
    frame: pl.DataFrame, column: str, what: str, missing: Sequence[str], *, budget: MemoryBudget
) -> np.ndarray:
    """The numbers of a column of weights or trials, [N] float64, each of which is above 0.

    Errors:
        DataError: the column is not in the table, or a cell is missing, no number or not above 0;
            the message calls it `what`.

    >>> from fieldwise.storage.scratch import NO_LIMIT
    >>> read_weights(pl.DataFrame({"w": [1.0, 2.5]}), "w", WEIGHT, (), budget=NO_LIMIT).tolist()
    [1.0, 2.5]
    """
    if column not in frame.columns:
        raise DataError(
            f"every row needs its {what}: the table has no column {column!r}, found only: "
            f"{', '.join(frame.columns)}"
        )

    def of_chunk(chunk: slice) -> np.ndarray:
        cells = frame.get_column(column)[chunk]
        with counting_from(chunk.start):
            numbers = as_number(cells, f"column {column!r}", missing=missing)
            is_wrong = (numbers <= 0).fill_null(True)
            if is_wrong.any():
                row = int(is_wrong.arg_max() or 0)
                found = "nothing" if numbers[row] is None else f"{cells[row]!r}"
                raise DataError(
                    f"a row's {what} must be a number above 0: column {column!r} holds {found} in ",
                    Row(row),
                    "; correct or remove such rows",
                )
        return numbers.to_numpy()

    return budget.fill(frame.height, np.float64, of_chunk)


def rows_of_both_classes(
    share: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows with a share [N] of positive trials as rows of one class each: their numbers, targets and weights, [M] each.

    A row of 1,000 trials of which 3 are positive is one positive row of weight 3, and next to it a
    negative one of weight 997.

    >>> numbers, y, weight = rows_of_both_classes(np.array([0.25, 0.0]), np.array([8.0, 5.0]))
    >>> numbers.tolist(), y.tolist(), weight.tolist()
    ([0, 0, 1], [1.0, 0.0, 0.0], [2.0, 6.0, 5.0])
    """
    by_class = np.stack([weight * share, weight * (1.0 - share)], axis=1)
    numbers, classes = np.nonzero(by_class > 0)
    targets = np.where(classes == 0, 1.0, 0.0).astype(np.float32)
    return numbers, targets, by_class[numbers, classes]

"""The columns that LightGBM gets in benchmarks: a recipe's fields, with numbers as they are, even if it bins them."""

from collections.abc import Iterator

import numpy as np
import torch

from fieldwise.data.encode.columns import field_numbers
from fieldwise.data.prepare.prepared import SplitPart
from fieldwise.layout import FieldLayout
from fieldwise.schema import Schema

MAX_BAG_VALUES = 256


def left_out(part: SplitPart) -> list[str]:
    """Names of the fields that `features` omits: sequences, and bags with more than `MAX_BAG_VALUES` values."""
    bags = [field for field in part.table.layout.fields if field.kind == "bag"]
    return [bag.name for bag in bags if bag.ordered or bag.rows > MAX_BAG_VALUES]


def features(part: SplitPart, schema: Schema) -> tuple[np.ndarray, list[int]]:
    """A feature matrix [N, columns] and the indices of its categorical columns.

    Numbers are unchanged, with NaN for missing cells. A category is its code in the training
    vocabulary, with NaN for missing and unknown values. A bag has one column per value of its
    vocabulary.
    """
    table = part.table
    omitted = set(left_out(part))
    local_rows = table.layout.local_rows()
    columns: list[np.ndarray] = []
    categories: list[int] = []
    vectors = iter(table.vectors)
    next_single = 0
    next_bag = 0
    for field_layout, field in zip(table.layout.fields, schema.fields, strict=True):
        if field_layout.kind == "bag":
            bag = next_bag
            next_bag += 1
            if field_layout.name not in omitted:
                columns += _bag_columns(part, field_layout, bag, local_rows)
            continue

        ids = table.ids[:, next_single]
        next_single += 1
        if field_layout.kind == "vector":
            columns += next(vectors).numbers(slice(None)).numpy().T
            continue
        if field.cell == "number":
            cells = part.frame.get_column(field.column)
            number = field_numbers(field, cells, schema.missing)
            columns.append(number.fill_null(float("nan")).to_numpy())
        else:
            categories.append(len(columns))
            codes = local_rows[ids]
            column = codes.astype(np.float64)
            if (
                field_layout.unknown
            ):  # missing and unknown values: no training row has an unknown one
                column[codes < 2] = np.nan
            columns.append(column)
    matrix = np.column_stack(columns) if columns else np.zeros((len(table), 1))
    return matrix, categories


def _bag_columns(
    part: SplitPart, field: FieldLayout, number_of_bag: int, local_rows: np.ndarray
) -> Iterator[np.ndarray]:
    """How often each value of the vocabulary is in the bag of each row, a column [N] per value."""
    table = part.table
    bag = table.bag(number_of_bag)
    cells = bag.segments * field.rows + torch.from_numpy(local_rows)[bag.ids]
    counts = torch.bincount(cells, minlength=len(table) * field.rows)
    yield from counts.view(len(table), field.rows).double().numpy().T

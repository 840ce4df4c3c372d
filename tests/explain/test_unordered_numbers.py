"""A kind of numbers that have no order, such as an hour of the day, is shown by its most frequent values."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import pytest
from random_bundle import random_bundle

from fieldwise import LR, Categorical, Label, Numeric, Schema
from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.kinds import KINDS, Cells, Counted, Kind, register
from fieldwise.explain.effects import effect
from fieldwise.explain.subject import number_levels
from fieldwise.report.slice_sections import slices_of
from fieldwise.schema.fields import Column
from fieldwise.serving.browser import Browser


@dataclass(frozen=True, kw_only=True)
class Hour(Column):
    """A number of hours, of which 1 and 25 are the same."""

    kind: Literal["hour"] = "hour"
    cell: ClassVar[Literal["number"]] = "number"
    number_format: ClassVar[None] = None
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None


@dataclass(frozen=True, kw_only=True)
class Hours:
    """Missing, and 24 hours."""

    seen: int
    kind: Literal["hours"] = "hours"
    rows: ClassVar[int] = 25


def hour_cell(encoder, value):
    """The row of an hour."""
    return [0 if value is None else 1 + int(value) % 24], []


class HourKind(Kind):
    forms = (Hours,)
    plain_types = frozenset({type(None), int, float})
    cell = staticmethod(hour_cell)

    def count(self, f, cells, missing):
        present = len(cells.drop_nulls())
        return Counted(len(cells), present, pl.DataFrame({"n": [present]}))

    def fit(self, f, values, *, budget):
        return Hours(seen=sum(chunk["n"].sum() for chunk in values))

    def column(self, f, fitted, cells, missing):
        rows = (1 + cells.cast(pl.Int32) % 24).fill_null(0)
        return Cells(rows.to_numpy().astype(np.int32))


@pytest.fixture(autouse=True)
def _registered():
    kinds = dict(KINDS)
    register(Hour)(HourKind)
    yield
    KINDS.clear()
    KINDS.update(kinds)


@pytest.fixture
def rows() -> pl.DataFrame:
    """Hours 0 to 47, the 13th of the second day three times; a price and an item for each row."""
    hours = [*range(48), 37, 37]
    return pl.DataFrame(
        {
            "hour": pl.Series(hours, dtype=pl.Float64),
            "price": [float(hour * hour) for hour in hours],
            "item_id": [f"i{hour % 3}" for hour in hours],
            "y": [hour % 2 for hour in hours],
        }
    )


@pytest.fixture
def bundle(rows: pl.DataFrame) -> Bundle:
    schema = Schema(
        fields=(Hour("hour"), Numeric("price"), Categorical("item_id", role="item")),
        label=Label("y"),
    )
    return random_bundle(LR(), schema, rows)


def test_its_effect_is_of_its_most_frequent_values(bundle, rows):
    """37 is the most frequent; the others, equally frequent, are the first in their order."""
    hour, price, _ = bundle.schema.fields
    found = effect(bundle, hour)
    expected = [*range(9), 37]
    assert found["values"] == [str(value) for value in expected]
    assert "numbers" not in found, "a line through them would say that they have an order"
    means = [
        np.mean(bundle.predict(rows.with_columns(hour=pl.lit(float(value))))) for value in expected
    ]
    np.testing.assert_allclose(found["predictions"], means, rtol=1e-6)
    assert effect(bundle, price)["numbers"] == sorted(effect(bundle, price)["numbers"])


def test_it_is_neither_low_nor_high(bundle, rows):
    levels = number_levels(bundle.encoder, rows.head(1), rows)
    assert levels == {"price": ["low"]}


def test_it_is_sliced_by_value(bundle, rows):
    slices, note = slices_of("hour", rows, bundle.schema)
    assert note == ""
    most_frequent = slices[0]
    assert most_frequent.name == "37"
    assert most_frequent.rows.tolist() == [37, 48, 49]
    assert slices[1].name == "0"
    assert len(slices_of("price", rows, bundle.schema)[0]) < 12


def test_its_usual_value_is_the_most_frequent_one(bundle, rows):
    page = Browser(bundle, None)
    usual = {field["column"]: field["usual"] for field in page.about["fields"]}
    assert usual["hour"] == 37.0
    assert usual["price"] == pytest.approx(np.median(rows["price"]), rel=1e-5)

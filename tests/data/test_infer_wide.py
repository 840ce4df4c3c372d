"""The work of inference by the number of columns, counted and not timed."""

import numpy as np
import polars as pl
import pytest

from fieldwise import infer_schema


@pytest.fixture
def count_names(monkeypatch):
    """A function that infers a table's schema and says how many names of columns were listed meanwhile."""

    def count(frame):
        listed = []
        for name in ("columns", "schema"):
            plain = getattr(pl.DataFrame, name).fget

            def counted(self, plain=plain):
                listed.append(self.width)
                return plain(self)

            monkeypatch.setattr(pl.DataFrame, name, property(counted))
        infer_schema(frame, label="label")
        monkeypatch.undo()
        return sum(listed)

    return count


def wide_table(columns, cells):
    rng = np.random.default_rng(0)
    table = pl.DataFrame({f"c{k}": cells(rng) for k in range(columns)})
    return table.with_columns(label=pl.Series(rng.integers(0, 2, table.height)))


def test_names_of_columns_are_listed_a_fixed_number_of_times(count_names):
    def cells(rng):
        return rng.integers(0, 9, 50)

    narrow, wide = wide_table(40, cells), wide_table(160, cells)
    assert count_names(wide) < 5 * count_names(narrow)


def test_many_categories_are_compared_without_a_query_for_each_pair(monkeypatch):
    def cells(rng):
        return pl.Series([f"word {k % 60}" for k in rng.permutation(300)])

    table = wide_table(40, cells)
    table = table.with_columns(copy=pl.lit("the ") + pl.col("c7"))
    compared = []
    plain = pl.DataFrame.n_unique
    monkeypatch.setattr(pl.DataFrame, "n_unique", lambda self, *a: compared.append(self.columns) or plain(self, *a))
    guess = infer_schema(table, label="label")
    assert len(compared) < 40
    assert guess.notes["copy"] == "omitted: it is one to one with 'c7'"
    assert len(guess.schema.fields) == 40

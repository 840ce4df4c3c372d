"""The work of inference by the number of columns, counted and not timed."""

import numpy as np
import polars as pl
import pytest

from fieldwise import SchemaError, infer_schema
from fieldwise.data.infer import label_choice as label_module
from fieldwise.data.infer.agreements import agreements
from fieldwise.data.infer.profile import profile_columns


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
    monkeypatch.setattr(
        pl.DataFrame, "n_unique", lambda self, *a: compared.append(self.columns) or plain(self, *a)
    )
    guess = infer_schema(table, label="label")
    assert len(compared) < 40
    assert guess.notes["copy"] == "omitted: it is one to one with 'c7'"
    assert len(guess.schema.fields) == 40


@pytest.fixture
def count_queries(monkeypatch):
    """A function that infers a table's schema and says how many queries of Polars ran meanwhile."""

    def count(frame, **options):
        queries = []
        plain = pl.LazyFrame.collect
        monkeypatch.setattr(
            pl.LazyFrame, "collect", lambda self, *a, **k: queries.append(1) or plain(self, *a, **k)
        )
        infer_schema(frame, **options)
        monkeypatch.undo()
        return len(queries)

    return count


@pytest.mark.parametrize(
    ("cells", "queries_a_column"),
    [
        pytest.param(lambda rng: rng.integers(0, 9, 50), 1, id="few whole numbers"),
        pytest.param(lambda rng: rng.integers(0, 2, 50), 1, id="flags"),
        pytest.param(lambda rng: rng.normal(size=50), 1, id="fractions"),
        pytest.param(
            lambda rng: pl.Series([f"word {k % 20}" for k in rng.permutation(50)]), 8, id="text"
        ),
    ],
)
def test_columns_need_few_queries(count_queries, cells, queries_a_column):
    more = count_queries(wide_table(160, cells)) - count_queries(wide_table(40, cells))
    assert more <= 120 * queries_a_column


def test_agreements_are_those_of_each_pair_of_neighbours():
    rng = np.random.default_rng(0)
    table = pl.DataFrame(
        {
            "key": rng.integers(0, 40, 1000),
            "gaps": pl.Series(rng.integers(0, 5, 1000)).set(
                pl.Series(rng.random(1000) < 0.3), None
            ),
            "tags": [[f"t{k}"] for k in rng.integers(0, 4, 1000)],
            "amount": rng.normal(size=1000).round(1),
        }
    ).with_columns(shade=pl.format("shade {}", pl.col("key") % 7))
    within = agreements(profile_columns(table), ["key"])["key"]
    assert list(within) == table.columns
    assert [name for name, agreement in within.items() if agreement.determined] == ["key", "shade"]
    order = np.argsort(table.get_column("key").hash(seed=0).to_numpy(), kind="stable")
    for name, agreement in within.items():
        cells = [table.get_column(name).to_list()[row] for row in order]
        keys = table.get_column("key").to_numpy()[order]
        pairs = [
            (first, second)
            for first, second, is_pair in zip(cells, cells[1:], keys[1:] == keys[:-1], strict=False)
            if is_pair and first is not None and second is not None
        ]
        shares = [
            cells.count(cell) / sum(c is not None for c in cells)
            for cell in cells
            if cell is not None
        ]
        assert agreement.same == pytest.approx(
            np.mean([first == second for first, second in pairs])
        )
        assert agreement.chance == pytest.approx(np.mean(shares))


def test_gaps_that_follow_a_column_make_it_the_label_in_blocks_of_any_size(monkeypatch):
    rng = np.random.default_rng(0)
    outcome, other = rng.integers(0, 2, (2, 400))
    gaps = {
        f"x{k}": pl.Series(rng.random(400)).set(pl.Series(rng.random(400) < 0.1), None)
        for k in range(5)
    }
    table = pl.DataFrame({"start": rng.random(400), "other": other, "outcome_": outcome, **gaps})
    table = table.with_columns(
        after=pl.when(pl.col("outcome_") == 1).then(rng.random(400)), end=rng.random(400)
    )
    for cells in (1, 1 << 24):
        monkeypatch.setattr(label_module, "_GAP_CELLS", cells)
        assert [candidate.label.column for candidate in infer_schema(table).labels] == [
            "outcome_",
            "other",
        ]


def test_a_number_that_is_not_finite_makes_no_label_of_two_values():
    rows = pl.DataFrame(
        {"x": [1.0, 2.0, 3.0] * 10, "odd": [1.0, float("nan"), 1.0] * 10, "click": [0, 1, 1] * 10}
    )
    assert infer_schema(rows).schema.label.column == "click"
    with pytest.raises(
        SchemaError, match="label's numbers must be finite: column 'odd' holds 1 and nan"
    ):
        infer_schema(rows, label="odd")

"""How the planted corpus of `benchmarks.inference` is read, with its headers and without."""

import polars as pl
import pytest
from benchmarks.inference.judge import judged, summary
from benchmarks.inference.public import PUBLIC
from benchmarks.inference.tables import planted
from polars.testing import assert_series_equal

# The shares that must be reached, with the headers and without.
LEAST = {
    False: {"read without options": 0.9, "columns right": 0.95, "ids found": 0.9},
    True: {"read without options": 0.9, "columns right": 0.95, "ids found": 0.8},
}


@pytest.mark.parametrize("anonymous", [False, True])
def test_the_corpus_is_read_as_it_is_meant(tmp_path, anonymous):
    figures = summary(judged(table) for table in planted(tmp_path, anonymous=anonymous))
    shares = {name: right / count for name, (right, count) in figures.items() if count}
    assert {name: shares[name] for name, least in LEAST[anonymous].items() if shares[name] < least} == {}


def test_public_sets_are_read_without_options(tmp_path):
    assert [judged(table).unread for table in PUBLIC["scikit-learn"](tmp_path)] == ["", "", "", ""]


def test_a_table_has_the_cells_that_its_answers_describe(tmp_path):
    (table,) = planted(tmp_path, only="games_log")
    frame = pl.read_csv(table.path)
    assert frame.columns == list(table.columns)
    assert (table.ids("user"), table.ids("item"), table.named("label")) == (["uid"], ["appid"], ["recommended"])
    assert_series_equal(frame["uid"], table.columns["uid"].cells, check_names=False)
    genres = frame.group_by("appid").agg(pl.col("genre").n_unique())
    assert genres["genre"].to_list() == [1] * frame["appid"].n_unique()
    assert frame["recommended"].mean() == pytest.approx(0.28, abs=0.001)
    (again,) = planted(tmp_path, only="games_log", anonymous=True)
    assert pl.read_csv(again.path).columns == [f"c{k}" for k in range(1, 10)]

"""The variance of first-order weights: found again where it was planted, equal to the formula in loops, bounded."""

import numpy as np
import polars as pl
import pytest
from scipy.stats import norm

from fieldwise import Bag, Categorical, Encoder, Label, Numeric, Schema
from fieldwise.data.table import EncodedTable
from fieldwise.runs.training_facts import LEAST_VARIANCE, MOST_VARIANCE, effect_variance


def encoded(frame: pl.DataFrame, fields: list) -> EncodedTable:
    return Encoder.fit(frame, Schema(fields=fields, label=Label("y"))).transform(frame)


def test_the_variance_of_planted_weights_is_found_and_of_large_ones_less(subtests):
    for planted, most in [(0.15, 0.15), (0.5, 0.5), (2.0, 1.3)]:
        with subtests.test(planted=planted, most=most):
            rng = np.random.default_rng(3)
            value = rng.integers(400, size=60_000)
            logit = rng.normal(0, planted**0.5, 400)[value]
            y = rng.random(len(value)) < 1 / (1 + np.exp(-logit))
            frame = pl.DataFrame({"a": value.astype(str), "y": y.astype(int)})
            result = effect_variance(encoded(frame, [Categorical("a")]), y)
            # a Newton step falls short of large weights
            assert result == pytest.approx(most, rel=0.25)


def test_labels_that_nothing_moves_give_the_smallest_and_one_label_gives_1():
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"a": rng.integers(50, size=5_000).astype(str), "y": rng.integers(2, size=5_000)}
    )
    table = encoded(frame, [Categorical("a")])
    assert effect_variance(table, frame["y"].to_numpy()) == pytest.approx(LEAST_VARIANCE)
    assert effect_variance(table, np.ones(5_000)) == 1.0


def test_small_effects_of_many_values_are_found(monkeypatch):
    """The variance of a table of many values may be below 0.1; that of others is at least 0.1."""
    rng = np.random.default_rng(3)
    value = rng.integers(400, size=60_000)
    y = rng.random(len(value)) < 1 / (1 + np.exp(-rng.normal(0, 0.02**0.5, 400)[value]))
    rows = encoded(pl.DataFrame({"a": value.astype(str), "y": y.astype(int)}), [Categorical("a")])
    assert effect_variance(rows, y) == pytest.approx(0.1)
    monkeypatch.setattr("fieldwise.runs.training_facts.LARGE_VOCABULARY", rows.layout.num_rows)
    assert effect_variance(rows, y) == pytest.approx(0.02, rel=0.4)


def test_numbers_bags_and_weights_count_as_the_formula_has_them():
    rng = np.random.default_rng(1)
    tags = [["x", "y"], ["x"], [], ["z", "z", "y"]]
    rows = 400
    frame = pl.DataFrame(
        {
            "a": rng.integers(5, size=rows).astype(str),
            "n": rng.normal(size=rows),
            "t": [tags[i % 4] for i in range(rows)],
            "w": rng.uniform(0.2, 3.0, rows),
        }
    ).with_columns(y=(pl.col("a").cast(int) + pl.Series(rng.integers(9, size=rows)) > 6).cast(int))
    fields = [Categorical("a"), Numeric("n"), Bag("t")]
    table = encoded(frame, fields)
    y, w = frame["y"].to_numpy(), frame["w"].to_numpy().astype(np.float32)
    table = EncodedTable(
        table.layout,
        table.ids,
        table.values,
        table.bag_ids,
        table.bag_offsets,
        y=y.astype(np.float32),
        weight=w,
    )
    design = np.zeros((rows, table.layout.num_rows))
    for i in range(rows):
        design[i, table.ids[i, 0]] = 1
        design[i, table.ids[i, 1]] = table.values[i, 0]
        bag = table.bag_ids[table.bag_offsets[i] : table.bag_offsets[i + 1]]
        for one in bag:
            design[i, one] += 1 / len(bag)
    w = w / w.mean()
    p = np.average(y, weights=w)
    candidates = np.geomspace(LEAST_VARIANCE, MOST_VARIANCE, 31)
    shares = {}
    # occurrences of one value in a bag count apart, as the ids stand
    for j in range(design.shape[1]):
        for i in np.flatnonzero(design[:, j]):
            bag = table.bag_ids[table.bag_offsets[i] : table.bag_offsets[i + 1]]
            times = max(1, int((bag == j).sum()))
            g, h = shares.get(j, (0.0, 0.0))
            x = design[i, j] / times
            shares[j] = (g + times * x * w[i] * (y[i] - p), h + times * x * x * w[i] * p * (1 - p))
    g, h = np.array(list(shares.values())).T
    likelihood = [norm.logpdf(g, scale=np.sqrt(h + h * h * t)).sum() for t in candidates]
    assert LEAST_VARIANCE < candidates[np.argmax(likelihood)] < MOST_VARIANCE
    assert effect_variance(table, y) == pytest.approx(candidates[np.argmax(likelihood)])


def test_a_large_table_is_read_at_even_places(monkeypatch):
    monkeypatch.setattr("fieldwise.runs.training_facts.EFFECT_ROWS", 1_000)
    rng = np.random.default_rng(5)
    value = rng.integers(20, size=3_000)
    y = rng.random(3_000) < (value % 5 + 1) / 7
    frame = pl.DataFrame({"a": value.astype(str), "y": y.astype(int)})
    third = frame[::3]
    whole = encoded(frame, [Categorical("a")])
    assert effect_variance(whole, y) == effect_variance(encoded(third, [Categorical("a")]), y[::3])

"""Measures of users' lists, against loops over users, items and pairs."""

import itertools

import numpy as np
import polars as pl
import pytest
from serving.conftest import log, make

from fieldwise import AFM, DataError, IdColumns
from fieldwise.evaluation.lists import (
    LIST_MEASURES,
    Exposure,
    exposure_of,
    list_measures,
    same_list_sentence,
)


def exposure_of_lists(lists, popularity):
    exposure = Exposure(popularity)
    for part in (lists[:3], lists[3:]):  # in blocks, as `recommend` adds them
        exposure.add(np.concatenate([*part, []]), [len(one) for one in part])
    return exposure


def by_hand(lists, popularity):
    """The measures by their words."""
    shown = list(itertools.chain(*lists))
    counts = sorted((shown.count(item) for item in range(len(popularity))), reverse=True)
    tenth = -(-len(popularity) // 10)
    some = [set(one) for one in lists if len(one)]
    pairs = [len(a & b) / np.sqrt(len(a) * len(b)) for a, b in itertools.combinations(some, 2)]
    total = sum(popularity) + len(popularity)
    bits = [-np.log2((popularity[item] + 1) / total) for item in shown]
    return {
        "coverage": len(set(shown)) / len(popularity),
        "top_tenth": sum(counts[:tenth]) / len(shown),
        "overlap": np.mean(pairs),
        "novelty": np.mean(bits),
    }


def test_every_measure_is_that_of_its_words(subtests):
    for seed in range(6):
        rng = np.random.default_rng(seed)
        popularity = rng.integers(0, 9, 23)
        lengths = rng.integers(0, 8, 12) if seed % 2 else np.full(12, 5)
        lists = [rng.choice(23, length, replace=False) for length in lengths]
        expected = by_hand(lists, popularity)
        exposure = exposure_of_lists(lists, popularity)
        assert set(expected) == set(LIST_MEASURES)
        for name, measure in LIST_MEASURES.items():
            with subtests.test(seed=seed, name=name):
                assert measure.of(exposure) == pytest.approx(expected[name], rel=1e-12)


def test_lists_of_equal_length_share_the_share_in_common():
    exposure = exposure_of_lists([[0, 1, 2, 3], [2, 3, 4, 5], [2, 6, 7, 8]], np.zeros(10))
    assert LIST_MEASURES["overlap"].of(exposure) == pytest.approx((2 / 4 + 1 / 4 + 1 / 4) / 3)
    assert exposure.chance == pytest.approx(4 / 10)


def test_random_lists_overlap_by_chance():
    rng = np.random.default_rng(0)
    lists = [rng.permutation(40)[:10] for _ in range(2000)]
    exposure = exposure_of_lists(lists, np.zeros(40))
    assert LIST_MEASURES["overlap"].of(exposure) == pytest.approx(exposure.chance, abs=0.002)


def test_what_is_undefined():
    assert list_measures([exposure_of_lists([[0, 1]], [1, 1, 1])])["overlap"] is None
    nobody = list_measures([exposure_of_lists([], [1, 1])])
    assert nobody == {"coverage": 0.0, "top_tenth": 0.0, "overlap": None, "novelty": None}
    assert same_list_sentence([exposure_of_lists([[0, 1]], [1, 1, 1])]) is None


def test_most_users_with_the_same_list(subtests):
    """Of 100 items, 10 a list; of 12 items any two lists of 10 share most."""
    rng = np.random.default_rng(1)
    same = [np.r_[np.arange(8), 8 + rng.permutation(92)[:2]] for _ in range(50)]
    differ = [rng.permutation(100)[:10] for _ in range(50)]
    few = [rng.permutation(12)[:10] for _ in range(50)]
    for lists, items, is_told in [(same, 100, True), (differ, 100, False), (few, 12, False)]:
        with subtests.test(items=items, is_told=is_told):
            sentence = same_list_sentence([exposure_of_lists(lists, np.zeros(items))])
            assert (sentence is not None) is is_told
            if sentence:
                assert "share 80 % of its items, where random lists would share 10 %" in sentence


def test_lists_of_recommend_are_measured_as_by_their_words(subtests):
    bundle = make(AFM(embedding_dim=4, attention_dim=3), seed=5)
    columns = IdColumns(user="user", item="item")
    rows = log().with_columns(click=pl.int_range(pl.len()) % 3 % 2)
    top = bundle.recommend(rows, columns, n=3)
    exposure = exposure_of(bundle, top, rows, columns)
    items = rows["item"].unique().sort()
    number = {item: place for place, item in enumerate(items)}
    counts = dict(rows.filter(pl.col("click") == 1)["item"].value_counts().iter_rows())
    lists = [
        [number[item] for item in own["item"]]
        for own in top.partition_by("user", maintain_order=True)
    ]
    expected = by_hand(lists, [counts.get(item, 0) for item in items])
    assert list_measures([exposure]) == pytest.approx(expected)
    shuffled = exposure_of(bundle, top.sample(fraction=1, shuffle=True, seed=1), rows, columns)
    assert list_measures([shuffled]) == pytest.approx(expected)
    for wrong, sentence in [
        (top.drop("user"), "lists must have the columns 'user' and 'item', found item, rank"),
        (top.with_columns(item=pl.lit("x")), "listed items must be in the log, found 'x'"),
    ]:
        with subtests.test(sentence=sentence), pytest.raises(DataError, match=sentence):
            exposure_of(bundle, wrong, rows, columns)

"""Curves of models that add up, where every point can be computed by hand; orders that must win and lose."""

import numpy as np
import polars as pl
import pytest
import torch

from fieldwise import AFM, DIN, FM, LR, AutoInt, DataError, IntTower
from fieldwise.explain import Subject, faithfulness
from fieldwise.explain.faithfulness import RANDOM, orders_of


@pytest.fixture
def linear(make, rows):
    """A linear model with one background row, and what each field of each row has beyond that row's."""
    bundle = make(LR())
    one = bundle.samples.head(1)
    subject = Subject.of(bundle, rows, background=one)
    with torch.no_grad():
        own, usual = (
            bundle.network.first_order.embedding(table.batch(slice(None))[0])[:, :, 0]
            .double()
            .numpy()
            for table in (subject.table, subject.background)
        )
    return subject, own - usual


def test_curves_are_what_is_left_of_a_sum(linear):
    subject, given = linear
    importance = np.random.default_rng(1).random(given.shape)
    result, random = faithfulness(subject, {"mine": importance}, draws=2)
    order = np.argsort(-importance, axis=1)
    sorted_given = np.take_along_axis(given, order, 1)
    deleted = np.abs(np.cumsum(sorted_given, 1))
    inserted = np.abs(given.sum(1, keepdims=True) - np.cumsum(sorted_given, 1))
    np.testing.assert_allclose(result.deletion, [0, *deleted.mean(0)], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        result.insertion, [deleted[:, -1].mean(), *inserted.mean(0)], rtol=1e-4, atol=1e-5
    )
    assert result.deletion_area == pytest.approx(
        deleted[:, :-1].mean() / deleted[:, -1].mean(), rel=1e-4
    )
    assert result.insertion_area == pytest.approx(
        1 - inserted[:, :-1].mean() / deleted[:, -1].mean(), rel=1e-4
    )
    assert (result.order, random.order) == ("mine", RANDOM)
    assert random.deletion_gain == random.insertion_gain == (0, 0, 0)
    assert result.deletion_gain[0] == pytest.approx(result.deletion_area - random.deletion_area)
    low, high = result.deletion_interval
    assert low < result.deletion_area < high


def test_the_true_order_wins_and_the_reverse_loses(make, rows):
    bundle = make(LR())
    # All weights of one sign, larger by field: fields that stay the same on both sides move
    # nothing.
    with torch.no_grad():
        weight = bundle.network.first_order.embedding.weight
        for size, f in zip((32, 16, 8, 4, 2, 1), bundle.encoder.layout.fields, strict=True):
            weight[f.offset : f.offset + f.rows] = torch.linspace(0, size, f.rows)[:, None]
    subject = Subject.of(bundle, rows)
    size = np.abs(orders_of(subject)["terms"])
    best, worst, random = faithfulness(subject, {"best": size, "worst": -size})
    assert best.deletion_area > random.deletion_area > worst.deletion_area
    assert best.insertion_area > random.insertion_area > worst.insertion_area
    assert best.deletion_gain[1] > 0 > worst.deletion_gain[2]


def test_every_way_that_a_model_has_is_judged(subtests, make, rows):
    for settings, names in [
        (FM(embedding_dim=3), ["terms", "occlusion"]),
        (
            AFM(embedding_dim=3, attention_dim=3),
            ["terms", "integrated_gradients", "occlusion", "attention"],
        ),
        (
            AutoInt(embedding_dim=4, layers=2, attention_dim=4),
            ["integrated_gradients", "occlusion", "attention"],
        ),
        (
            IntTower(
                embedding_dim=4, hidden=(4,), user_heads=2, item_heads=2, head_dim=3, cir_weight=0
            ),
            None,
        ),
        (DIN(embedding_dim=4, hidden=(4,)), ["occlusion"]),
    ]:
        with subtests.test(settings=settings, names=names):
            subject = Subject.of(make(settings), rows)
            orders = orders_of(subject)
            assert list(orders) == (names or ["integrated_gradients", "occlusion", "gates"])
            assert all(order.shape == (12, 6) and (order >= 0).all() for order in orders.values())
            if "attention" in orders:
                # Two fields of every pair, or what every field takes: it is shared out.
                np.testing.assert_allclose(
                    orders["attention"].sum(1), 2 if isinstance(settings, AFM) else 1, rtol=1e-5
                )
            # what a field is given, by all fields, heads and layers
            if isinstance(settings, AutoInt):
                layers = subject.network.attention_weights(subject.table.batch(slice(0, 12))[0])
                given = np.mean([a_BHFF.detach().numpy().mean((1, 2)) for a_BHFF in layers], axis=0)
                np.testing.assert_allclose(orders["attention"], given, rtol=1e-5)
                assert np.ptp(given) > 1e-4, "it differs between fields"
            if "gates" in orders:
                np.testing.assert_allclose(orders["gates"].sum(1), 2, rtol=1e-5)  # 1 a tower


def test_rows_that_nothing_moves_leave_an_interval(make, rows):
    bundle = make(LR())
    same = pl.concat([bundle.samples.head(1).select(rows.columns)] * 6)
    mixed = pl.concat([same, rows.head(1)], how="vertical_relaxed")
    for result in faithfulness(Subject.of(bundle, mixed, background=bundle.samples.head(1))):
        assert np.isfinite([*result.deletion_interval, *result.insertion_gain]).all()


def test_too_little_to_judge(make, rows):
    with pytest.raises(DataError, match="at least 2 each: found 1 and 6"):
        faithfulness(Subject.of(make(LR()), rows.head(1)))
    with pytest.raises(DataError, match="no field changes the score"):
        faithfulness(Subject.of(make(LR(), std=0.0), rows))

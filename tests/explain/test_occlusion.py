"""Mixed rows against tables mixed cell by cell; occlusion against what it must be for models that add up."""

import numpy as np
import polars as pl
import pytest
import torch

from fieldwise.explain.mixing import Mixer
from fieldwise.explain.occlusion import occlusion, pair_interactions
from fieldwise.models import FM, LR, AutoIntPlus


def mixed_by_hand(rows, background, number, other, taken):
    """A table of one row: each cell from the one or the other."""
    one, two = rows.row(number, named=True), background.row(other, named=True)
    cells = {name: (two if t else one)[name] for name, t in zip(rows.columns, taken, strict=True)}
    return pl.DataFrame({name: [value] for name, value in cells.items()}, schema=rows.schema)


@pytest.mark.parametrize("block", [1000, 5])
def test_mixed_rows_score_as_rows_mixed_by_hand(make, rows, monkeypatch, block):
    monkeypatch.setattr("fieldwise.explain.mixing.BLOCK", block)
    bundle = make(AutoIntPlus(embedding_dim=4, layers=1, attention_dim=4, hidden=(5,)))
    rows = rows.select(f.column for f in bundle.schema.fields)
    mixer = Mixer(bundle.network, bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples))
    rng = np.random.default_rng(0)
    number, other = rng.integers(0, len(rows), 60), rng.integers(0, bundle.samples.height, 60)
    taken = rng.random((60, 6)) < 0.5
    by_hand = [mixed_by_hand(rows, bundle.samples, *which) for which in zip(number, other, taken, strict=True)]
    np.testing.assert_allclose(
        mixer.score(number, other, taken), bundle.score(pl.concat(by_hand)), rtol=1e-5, atol=1e-5
    )


def test_tables_with_some_kinds_of_fields_alone(subtests, make, rows):
    for kept in [["item", "user"], ["genres", "price"], ["history", "item"], ["price", "hour"]]:
        with subtests.test(kept=kept):
            import dataclasses

            from explain.conftest import SCHEMA

            schema = dataclasses.replace(SCHEMA, fields=tuple(f for f in SCHEMA.fields if f.name in kept))
            bundle = make(LR(), schema=schema)
            mixer = Mixer(bundle.network, bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples))
            every, first = np.arange(len(rows)), np.zeros(len(rows), int)
            none, both = np.zeros((len(rows), 2), bool), np.ones((len(rows), 2), bool)
            np.testing.assert_allclose(mixer.score(every, first, none), bundle.score(rows), rtol=1e-6)
            np.testing.assert_allclose(mixer.score(every, first, both), bundle.score(bundle.samples)[first], rtol=1e-6)


def vectors(bundle, frame, embedding):
    with torch.no_grad():
        return embedding(bundle.encoder.transform(frame).batch(slice(None))[0]).double().numpy()


def test_a_linear_model_loses_a_fields_own_weight_less_the_others(make, rows):
    bundle = make(LR())
    mixer = Mixer(bundle.network, bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples))
    others = np.random.default_rng(0).integers(0, bundle.samples.height, (len(rows), 3))
    own, theirs = (
        vectors(bundle, frame, bundle.network.first_order.embedding)[:, :, 0] for frame in (rows, bundle.samples)
    )
    found = occlusion(mixer, bundle.score(rows), others)
    np.testing.assert_allclose(found, own - theirs[others].mean(1), rtol=1e-4, atol=1e-5)
    none = pair_interactions(mixer, bundle.score(rows), others, np.arange(len(rows)))
    np.testing.assert_allclose(none, 0, atol=1e-5)


def test_fms_pairs_give_together_the_product_of_their_distances(make, rows):
    bundle = make(FM(embedding_dim=3))
    mixer = Mixer(bundle.network, bundle.encoder.transform(rows), bundle.encoder.transform(bundle.samples))
    some = np.array([1, 4, 5])
    others = np.random.default_rng(0).integers(0, bundle.samples.height, (len(some), 4))
    own, theirs = (vectors(bundle, frame, bundle.network.embedding) for frame in (rows, bundle.samples))
    found = pair_interactions(mixer, bundle.score(rows), others, some)
    distance = own[some][:, None] - theirs[others]  # [3, 4, F, D]
    pairs = [(i, j) for i in range(6) for j in range(i + 1, 6)]
    expected = np.stack([(distance[:, :, i] * distance[:, :, j]).sum(2) for i, j in pairs], 2)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)

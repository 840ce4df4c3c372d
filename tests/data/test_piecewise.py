"""Piecewise linear numbers (Gorishniy et al., NeurIPS 2022): positions, vectors, LR, and a curve with a kink."""

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from parity.lab import randomized

from fieldwise import (
    FM,
    LR,
    Categorical,
    Encoder,
    Label,
    Numeric,
    Recommender,
    Schema,
    SchemaError,
    TrainingSettings,
)
from fieldwise.data.encode.kinds.numeric import Bins, Pieces
from fieldwise.layers import FieldEmbedding, FirstOrder
from fieldwise.layers.embedding import SubsetEmbedding
from fieldwise.models.build import build_network
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.regression import design_matrix

LABEL = Label("y")


def fitted(numbers, **settings):
    """The encoder of a field of these numbers, and its fitted part."""
    field = Numeric("x", encoding="piecewise", **{"transform": "none"} | settings)
    encoder = Encoder.fit(pl.DataFrame({"x": numbers}), Schema(fields=(field,), label=LABEL))
    return encoder, encoder.fitted[0]


def encoding(x, edges):
    """Equation 1 of the paper, without what goes on beyond the first and the last bin."""
    shares = []
    for low, high in pairwise(edges):
        if x < low:
            shares.append(0.0)
        elif x >= high:
            shares.append(1.0)
        else:
            shares.append((x - low) / (high - low))
    return shares


def test_edges_and_positions_by_hand():
    encoder, part = fitted([0.0, 1.0, 2.0, 4.0, 8.0], bins=2)
    assert part == Pieces(edges=(0.0, 2.0, 8.0))
    table = encoder.transform(pl.DataFrame({"x": [0.0, 1.0, 2.0, 3.5, 8.0, 99.0, -7.0, None]}))
    assert table.values[:, 0].tolist() == [0.0, 0.5, 1.0, 1.25, 2.0, 2.0, 0.0, 0.0]
    assert table.ids[:, 0].tolist() == [1] * 7 + [0]
    (field,) = table.layout.fields
    assert (field.kind, field.piecewise, field.rows) == ("value", True, 4)


def test_a_number_in_many_rows_has_a_step_of_its_own():
    numbers = [0.0] * 6 + [10.0, 20.0, 30.0]
    assert fitted(numbers, bins=3)[1].edges == pytest.approx((0.0, 10 / 3, 30.0))
    _, part = fitted(numbers, bins=3, point_masses=True)
    assert part.edges == (0.0, 10.0, 20.0, 30.0)


def test_a_constant_is_in_bins_and_a_logarithm_comes_first():
    assert fitted([3.0, 3.0, None])[1] == Bins(edges=(3.0,))
    _, part = fitted([0.0, np.e - 1], bins=2, transform="log")
    np.testing.assert_allclose(part.edges, [0.0, 0.5, 1.0])


@pytest.mark.parametrize("point_masses", [False, True])
def test_a_vector_is_the_start_and_the_encoding_times_a_matrix(point_masses):
    rng = np.random.default_rng(0)
    numbers = np.where(rng.random(300) < 0.4, 0.0, rng.normal(size=300)).tolist()
    fields = (
        Categorical("c"),
        Numeric("x", encoding="piecewise", bins=6, point_masses=point_masses),
        Numeric("z"),
    )
    frame = pl.DataFrame({"x": [*numbers[:-1], None], "c": ["a", "b"] * 150, "z": numbers})
    encoder = Encoder.fit(frame, Schema(fields=fields, label=LABEL))
    table = encoder.transform(frame)
    batch, _ = table.batch(slice(None))
    start = table.layout.fields[1].offset
    edges = encoder.fitted[1].edges

    shares = np.array([encoding(x, edges) for x in numbers])
    matrix = np.column_stack([np.ones(300), shares])
    for embedding in (
        FieldEmbedding(table.layout, 3, std=1.0),
        SubsetEmbedding(table.layout, ("z", "x"), 3, std=1.0),
    ):
        weight = embedding.weight.detach().numpy()
        vectors = embedding(batch)[:, 1].detach().numpy()
        first = start
        if isinstance(embedding, SubsetEmbedding):
            first = int(embedding.own_rows[start])
        rows = weight[first + 1 : first + 1 + matrix.shape[1]]
        np.testing.assert_allclose(vectors[:-1], (matrix @ rows)[:-1], atol=1e-5)
        np.testing.assert_array_equal(vectors[-1], weight[first])

    first_order = FirstOrder(table.layout, bias=False)
    torch.nn.init.normal_(first_order.embedding.weight)
    w = first_order.embedding.weight.detach().numpy()[:, 0]
    scores = design_matrix(table) @ table.layout.at_knots(w)
    np.testing.assert_allclose(scores, first_order(batch).detach(), atol=1e-5)
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, len(w)))
    assert table.layout.at_knots(a) @ b == pytest.approx(a @ table.layout.from_knots(b))


@pytest.mark.parametrize("l2_rows", ["all", "touched"])
def test_lazy_updates_and_l2_are_those_of_the_whole_table(l2_rows):
    frame = pl.DataFrame({"x": np.linspace(0, 1, 64), "c": ["a", "b"] * 32})
    fields = (Numeric("x", encoding="piecewise", bins=4), Categorical("c"))
    table = Encoder.fit(frame, Schema(fields=fields, label=LABEL)).transform(frame)
    batch, _ = table.batch(slice(None))
    read = torch.unique(batch.ids).long()
    pieces = torch.from_numpy(table.layout.fields[0].piece_rows()).long()
    counts = torch.zeros(table.layout.num_rows)
    counts[: len(counts)] = torch.bincount(batch.ids.reshape(-1).long(), minlength=len(counts))
    counts[pieces] = 1.0
    results = []
    for update in ("dense", "lazy"):
        network = randomized(build_network(FM(embedding_dim=3), table.layout, 0))
        settings = TrainingSettings(
            optimizer="sgd",
            learning_rate=0.1,
            embedding_update=update,
            l2={"embedding.weight": 0.5},
            l2_rows=l2_rows,
        )
        optimizer = RunOptimizer(network, settings, counts)
        network(batch).sum().backward()
        optimizer.add_l2(batch)
        optimizer.step()
        results.append(network.embedding.weight.detach()[torch.cat([read, pieces])])
    torch.testing.assert_close(results[1], results[0])


def test_lr_draws_a_curve_that_bins_cannot():
    """The log odds are 3 |x| - 4, where quantile bins have steps."""
    rng = np.random.default_rng(1)
    x = rng.uniform(-3, 3, 6000)
    odds = 3 * np.abs(x) - 4
    y = rng.random(6000) < 1 / (1 + np.exp(-odds))
    frame = pl.DataFrame({"x": x, "y": y.astype(int)})
    distances = {}
    for kind in ("piecewise", "quantile"):
        schema = Schema(fields=(Numeric("x", encoding=kind, bins=8),), label=LABEL)
        model = Recommender(schema, LR()).fit(frame[:4000])
        probability = model.predict_proba(frame[4000:])[:, 1]
        logit = np.log(probability / (1 - probability))
        distances[kind] = np.abs(logit - odds[4000:]).mean()
    assert distances["piecewise"] < 0.3 < 0.7 * distances["quantile"]


def test_settings_of_edges_are_refused():
    with pytest.raises(SchemaError, match=r"closed = 'right' belongs to .* found encoding 'piece"):
        Numeric("x", encoding="piecewise", closed="right")
    with pytest.raises(
        SchemaError, match="belongs to encoding 'quantile' or 'piecewise', found 'u"
    ):
        Numeric("x", encoding="uniform", point_masses=True)


def test_a_vector_under_autocast_has_the_type_of_others():
    encoder, _ = fitted([0.0, 1.0, 2.0, 4.0, 8.0], bins=2)
    batch, _ = encoder.transform(pl.DataFrame({"x": [3.0, None]})).batch(slice(None))
    embedding = FieldEmbedding(encoder.layout, 3, std=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        vectors = embedding(batch)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, embedding(batch), atol=0.03, rtol=0.03)

"""Vector fields in every model: a one-hot vector is a category whose rows are the projection's columns."""

import dataclasses

import numpy as np
import pytest
import torch
from parity.reference import FIRST

from fieldwise.layers import FieldEmbedding
from fieldwise.layers.candidates import Part, Split
from fieldwise.layers.embedding import SubsetEmbedding, VectorProjection
from fieldwise.layout import FieldLayout, Layout
from fieldwise.models import DAT, FinalMLP
from fieldwise.scoring.candidates import score_candidates
from fieldwise.testing import check_model, random_batch, small_layout

WIDTH = 4
ROWS = 12
QUICK = ("afm", "autoint+", "inttower")


def layout_of(kind):
    """A user, an item's vector or category of as many values, and a price."""
    fields = [
        ("user", "id", "user", 5),
        ("text", kind, "item", 2 if kind == "vector" else WIDTH),
        ("price", "value", "item", 2),
        ("item", "id", "item", 6),
    ]
    built = []
    offset = 0
    for name, of_kind, role, rows in fields:
        width = WIDTH if of_kind == "vector" else 0
        built.append(
            FieldLayout(name=name, kind=of_kind, role=role, offset=offset, rows=rows, width=width)
        )
        offset += rows
    return Layout(tuple(built))


def settings_of(name):
    settings = FIRST[name]
    if isinstance(settings, FinalMLP):
        settings = dataclasses.replace(
            settings, stream1_gate_fields=("text", "user"), stream2_gate_fields=("item",)
        )
    if isinstance(settings, DAT):
        settings = dataclasses.replace(settings, user_id="user", item_id="item")
    names = {f.name for f in dataclasses.fields(settings)}
    if "crosses" in names:
        settings = dataclasses.replace(settings, crosses=(("user", "item"),))
    return settings


def randomized(network):
    torch.manual_seed(1)
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
    return network.double().eval()


def as_categories(vectors, categories):
    """Copy a network's weights into that of the layout in which the vector is a category."""
    modules = dict(vectors.named_modules())
    state = vectors.state_dict()
    for name, module in categories.named_modules():
        if not isinstance(module, (FieldEmbedding, SubsetEmbedding)):
            continue
        other = modules[name]
        fields = layout_of("vector").fields
        if isinstance(module, SubsetEmbedding):
            chosen = ["text", "user"] if other.vectors is not None else ["item"]
            fields = [next(f for f in fields if f.name == field) for field in chosen]
        rows = []
        end = 0
        for f in fields:
            own = other.weight[end : end + f.rows]
            end += f.rows
            if f.kind == "vector":
                (projection,) = other.vectors.projections
                own = own[1] + projection.weight.t()
            rows.append(own)
        state[f"{name}.weight"] = torch.cat(rows)
    categories.load_state_dict({key: state[key] for key in categories.state_dict()})
    return categories


@pytest.mark.parametrize("name", FIRST)
def test_a_one_hot_vector_is_a_category_of_the_projections_columns(name):
    if name == "din":
        pytest.skip("its history needs a sequence")
    vectors = randomized(settings_of(name).build(layout_of("vector")))
    categories = as_categories(vectors, settings_of(name).build(layout_of("id")).double().eval())
    batch = random_batch(layout_of("id"), ROWS, ids=torch.int32, numbers=torch.float64)
    category = batch.ids[:, 1] - 5
    ids = batch.ids.clone()
    ids[:, 1] = 5 + 1
    ids[:, 2:] -= WIDTH - 2
    one_hot = torch.nn.functional.one_hot(category.long(), WIDTH).double()
    values = torch.cat([one_hot, batch.values], 1)
    with torch.no_grad():
        result = vectors(batch._replace(ids=ids, values=values))
        np.testing.assert_allclose(result, categories(batch), atol=1e-9)
    split = Split.by_role(layout_of("vector"))
    user = Part(split.context, batch._replace(ids=ids[:1, :1], values=values[:1, :0]))
    items = Part(split.candidates, batch._replace(ids=ids[:, 1:], values=values))
    same_user = batch._replace(
        ids=torch.cat([ids[:1, :1].expand(ROWS, 1), ids[:, 1:]], 1), values=values
    )
    with torch.no_grad():
        expected = vectors(same_user)
    np.testing.assert_allclose(score_candidates(vectors, split, user, items), expected, atol=1e-9)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in FIRST]
)
def test_the_contract_of_models_with_vectors(name):
    if name == "din":
        pytest.skip("its history needs a sequence")
    settings = FIRST[name]
    if isinstance(settings, DAT):
        settings = dataclasses.replace(settings, user_id="f0", item_id="f5")
    check_model(settings, small_layout("vectors"))


def projected(field, v, weights):
    """The formula in NumPy."""
    v = v / np.linalg.norm(v, axis=1, keepdims=True) if field.normalise else v * field.scale
    if "hidden.weight" in weights:
        v = np.maximum(v @ weights["hidden.weight"].T + weights["hidden.bias"], 0)
    return v @ weights["weight"].T


@pytest.mark.parametrize("projection", ["linear", "mlp"])
@pytest.mark.parametrize("normalise", [False, True])
def test_projections_by_formula(projection, normalise):
    field = FieldLayout(
        name="v", kind="vector", role="item", offset=0, rows=2, width=5, scale=0.3,
        projection=projection, normalise=normalise,
    )  # fmt: skip
    network = randomized(VectorProjection(field, 3, std=0.1))
    v = np.random.default_rng(0).normal(size=(7, 5))
    weights = {name: p.detach().numpy() for name, p in network.named_parameters()}
    np.testing.assert_allclose(
        network(torch.from_numpy(v)).detach(), projected(field, v, weights), atol=1e-12
    )


def test_a_projected_vector_starts_as_wide_as_an_embedding():
    torch.manual_seed(0)
    for projection in ("linear", "mlp"):
        field = FieldLayout(
            name="v", kind="vector", role="item", offset=0, rows=2, width=64, scale=1 / 8,
            projection=projection,
        )  # fmt: skip
        network = VectorProjection(field, 16, std=0.05)
        spread = float(network(torch.randn(400, 64)).detach().std())
        assert spread == pytest.approx(0.05, rel=0.35), projection

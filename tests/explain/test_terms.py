"""Terms add up to the logit, and each is what the paper's equation says, computed here in NumPy."""

import numpy as np
import pytest
import torch

from fieldwise import AFM, FM, LR, AutoInt, AutoIntPlus, DeepFM, IntTower
from fieldwise.explain import terms_of
from fieldwise.models.fm import FMNetwork

MODELS = {
    "lr": LR(),
    "fm": FM(embedding_dim=3),
    "afm": AFM(embedding_dim=3, attention_dim=4),
    "autoint": AutoInt(embedding_dim=4, layers=2, attention_dim=6),
    "autoint authors": AutoInt(
        variant="authors", embedding_dim=4, layers=2, attention_dim=6, wide=True
    ),
    "autoint tutorial": AutoInt(
        variant="transformer",
        embedding_dim=6,
        attention_dim=6,
        bias=True,
        residual="none",
        position_std=1.0,
    ),
    "autoint transformer": AutoInt(
        variant="transformer", embedding_dim=6, layers=2, attention_dim=6
    ),
    "autoint+": AutoIntPlus(
        embedding_dim=4, layers=1, attention_dim=4, hidden=(5,), batch_norm=True
    ),
    "inttower": IntTower(
        embedding_dim=3, hidden=(5, 4), user_heads=3, item_heads=2, head_dim=4, cir_weight=0
    ),
    "inttower authors": IntTower(
        variant="authors", embedding_dim=3, hidden=(5, 4), user_heads=2, item_heads=2, head_dim=4
    ),
    "inttower raw": IntTower(
        dense_inputs="raw",
        embedding_dim=3,
        hidden=(5, 4),
        user_heads=3,
        item_heads=2,
        head_dim=4,
        cir_weight=0,
    ),
}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_terms_add_up_to_the_score(subtests, make, rows):
    for name in MODELS:
        with subtests.test(name=name):
            bundle = make(MODELS[name])
            terms = terms_of(bundle.network, bundle.encoder.transform(rows))
            np.testing.assert_allclose(terms.logit, bundle.score(rows), rtol=1e-5, atol=1e-5)
            assert all(
                len(term) == len(rows) for term in (*terms.added.values(), *terms.shown.values())
            )
            assert all(term.dtype == np.float64 for term in terms.added.values())


def test_a_network_that_adds_to_another_ones_score_has_no_terms_of_it(make, rows):
    class More(FMNetwork):
        def forward(self, batch):
            return super().forward(batch) + 1

    bundle = make(FM(embedding_dim=3))
    network = More(FM(embedding_dim=3), bundle.encoder.layout)
    assert not terms_of(network, bundle.encoder.transform(rows)).added


def test_many_rows_are_those_of_few(make, rows, monkeypatch):
    bundle = make(MODELS["inttower"])
    table = bundle.encoder.transform(rows)
    whole = terms_of(bundle.network, table)
    monkeypatch.setattr("fieldwise.explain.attribution.ROWS_PER_BATCH", 5)
    parts = terms_of(bundle.network, table)
    for name, term in whole.added.items():
        np.testing.assert_allclose(parts.added[name], term, rtol=1e-5, atol=1e-6)


def test_other_models_are_not_taken_apart(make, rows):
    bundle = make(DeepFM(embedding_dim=3, hidden=(4,)))
    terms = terms_of(bundle.network, bundle.encoder.transform(rows))
    assert terms.added == terms.shown == {}


def vectors(bundle, rows):
    batch = bundle.encoder.transform(rows).batch(slice(None))[0]
    with torch.no_grad():
        return bundle.network.embedding(batch).double().numpy(), batch


def weights(bundle):
    return {name: value.double().numpy() for name, value in bundle.network.state_dict().items()}


def test_afm_pairs_are_equations_2_to_6(make, rows):
    bundle = make(MODELS["afm"])
    x, _ = vectors(bundle, rows)
    w = weights(bundle)
    terms = terms_of(bundle.network, bundle.encoder.transform(rows))
    for row in range(len(rows)):
        products = np.array([x[row, i] * x[row, j] for i in range(6) for j in range(i + 1, 6)])
        hidden = np.maximum(products @ w["attention.W"].T + w["attention.b"], 0)
        attention = softmax(hidden @ w["attention.h"])
        np.testing.assert_allclose(terms.shown["attention"][row], attention, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(
            terms.shown["interactions"][row], products @ w["p"], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            terms.added["pairs"][row], attention * (products @ w["p"]), rtol=1e-4, atol=1e-5
        )


def test_fm_pairs_are_inner_products_and_fields_their_own_weights(make, rows):
    bundle = make(MODELS["fm"])
    x, batch = vectors(bundle, rows)
    terms = terms_of(bundle.network, bundle.encoder.transform(rows))
    expected = np.stack([(x[:, i] * x[:, j]).sum(1) for i in range(6) for j in range(i + 1, 6)], 1)
    np.testing.assert_allclose(terms.added["pairs"], expected, rtol=1e-4, atol=1e-6)
    w = weights(bundle)["first_order.embedding.weight"][:, 0]
    np.testing.assert_allclose(
        terms.added["first_order"][:, 0], w[batch.ids[:, 0].numpy()], rtol=1e-6
    )


@pytest.mark.parametrize("heads", [1, 2])
def test_autoint_attention_is_a_softmax_of_scaled_products(make, rows, heads):
    settings = AutoInt(
        embedding_dim=4, layers=1, heads=heads, attention_dim=4, scale=True, norm="none"
    )
    bundle = make(settings)
    x, _ = vectors(bundle, rows)
    query, key, value, residual = np.split(weights(bundle)["layers.0.projection.weight"], 4)
    terms = terms_of(bundle.network, bundle.encoder.transform(rows))
    head = weights(bundle)["head.weight"].reshape(6, 4)
    size = 4 // heads
    for row in range(len(rows)):
        joined = []
        for h in range(heads):
            part = slice(h * size, (h + 1) * size)
            scores = (x[row] @ query[part].T) @ (x[row] @ key[part].T).T / np.sqrt(size)
            attention = softmax(scores)
            np.testing.assert_allclose(
                terms.shown["attention"][row, 0, h], attention, rtol=1e-4, atol=1e-5
            )
            joined.append(attention @ (x[row] @ value[part].T))
        y = np.maximum(np.concatenate(joined, 1) + x[row] @ residual.T, 0)
        np.testing.assert_allclose(
            terms.added["attended"][row], (y * head).sum(1), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", ["inttower", "inttower authors", "inttower raw"])
def test_inttower_matches_are_the_best_inner_products(make, rows, name):
    bundle = make(MODELS[name])
    batch = bundle.encoder.transform(rows).batch(slice(None))[0]
    with torch.no_grad():
        user, item = (
            side(batch).double().numpy() for side in (bundle.network.user, bundle.network.item)
        )
    terms = terms_of(bundle.network, bundle.encoder.transform(rows))
    _, levels, heads, _ = user.shape
    for row in range(len(rows)):
        for level in range(levels):
            for head in range(heads):
                products = [user[row, level, head] @ other for other in item[row]]
                assert terms.shown["matched_head"][row, level, head] == int(np.argmax(products))
                assert terms.added["matches"][row, level, head] == pytest.approx(
                    max(products), rel=1e-4, abs=1e-5
                )


# Raw numbers, here the item's price, have no gate.
@pytest.mark.parametrize(("name", "item_gates"), [("inttower", 3), ("inttower raw", 2)])
def test_inttower_gates_sum_to_one_and_their_effect_is_what_closing_one_takes(
    make, rows, monkeypatch, name, item_gates
):
    bundle = make(MODELS[name])
    table = bundle.encoder.transform(rows)
    terms = terms_of(bundle.network, table)
    score = bundle.score(rows)
    for side, size in (("user", 3), ("item", item_gates)):
        gates = terms.shown[f"{side}_gates"]
        assert gates.shape == (len(rows), size)
        np.testing.assert_allclose(gates.sum(1), 1, rtol=1e-6)
        assert gates.std() > 0.01
        light_se = bundle.network.get_submodule(f"{side}_tower.light_se")
        for field in range(size):

            def closed(x, field=field, light_se=light_se):
                k = torch.softmax(light_se.excite(x.mean(2)), 1).clone()
                k[:, field] = 0
                return x * (1 + k[:, :, None])

            with monkeypatch.context() as patch:
                patch.setattr(light_se, "forward", closed)
                without = bundle.score(rows)
            effect = terms.shown[f"{side}_gate_effects"][:, field]
            np.testing.assert_allclose(effect, score - without, rtol=1e-3, atol=1e-4)
            assert np.abs(effect).max() > 1e-3

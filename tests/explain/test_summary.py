"""Sets of rows: means and spreads, and pairs that were planted."""

import json

import numpy as np
import polars as pl
import pytest

from fieldwise import (
    AFM,
    FM,
    LR,
    AutoInt,
    Bundle,
    Categorical,
    Encoder,
    IntTower,
    Label,
    Schema,
    load_recipe,
    prepare_recipe,
    simulate,
    train_recipe,
)
from fieldwise.explain import Subject, explain, planted_pairs_found, strongest_pairs, summary
from fieldwise.models.build import build_network


def test_fields_have_means_and_spreads_over_the_rows(make, rows):
    result = explain(make(LR()), rows)
    plain = json.loads(json.dumps(summary(result), allow_nan=False))
    assert plain["rows"] == 12
    by_name = {f["field"]: f for f in plain["fields"]}
    for f, name in enumerate(result.subject.fields):
        own = result.contributions[:, f]
        expected = np.abs(own).mean(), own.mean(), own.std()
        assert tuple(by_name[name][k] for k in ("mean_size", "mean", "deviation")) == pytest.approx(
            expected
        )
    sizes = [f["mean_size"] for f in plain["fields"]]
    assert sizes == sorted(sizes, reverse=True)
    assert max(pair["strength"] for pair in plain["pairs"]) < 1e-5  # a linear model has no pairs


def test_afm_has_its_pairs_means_and_spreads(make, rows):
    result = explain(make(AFM(embedding_dim=3, attention_dim=3)), rows)
    pairs = {tuple(p["fields"]): p for p in summary(result)["pairs"]}
    term, attention = result.subject.terms.added["pairs"], result.subject.terms.shown["attention"]
    for p, (i, j) in enumerate(result.subject.pairs):
        pair = pairs[result.subject.fields[i], result.subject.fields[j]]
        expected = (
            term[:, p].mean(),
            term[:, p].std(),
            attention[:, p].mean(),
            attention[:, p].std(),
        )
        names = "mean_term", "term_deviation", "mean_attention", "attention_deviation"
        assert tuple(pair[name] for name in names) == pytest.approx(expected, rel=1e-5)


def test_autoints_attention_is_averaged(make, rows):
    plain = summary(explain(make(AutoInt(embedding_dim=4, layers=2, attention_dim=4)), rows))
    mean, deviation = (np.array(plain["attention"][part]) for part in ("mean", "deviation"))
    assert mean.shape == deviation.shape == (2, 2, 6, 6)
    np.testing.assert_allclose(mean.sum(-1), 1, rtol=1e-5)
    assert plain["attention"]["fields"] == ["user", "history", "item", "genres", "price", "hour"]


def test_inttowers_levels_and_gates_are_averaged(make, rows):
    settings = IntTower(
        embedding_dim=4, hidden=(5, 4), user_heads=2, item_heads=2, head_dim=3, cir_weight=0
    )
    bundle = make(settings)
    plain = summary(explain(bundle, rows))
    assert sum(level["mean"] for level in plain["levels"]) == pytest.approx(
        bundle.score(rows).mean(), rel=1e-4
    )
    assert all(sum(level["matched_share"]) == pytest.approx(1) for level in plain["levels"])
    assert sum(gate["mean"] for gate in plain["item_gates"]) == pytest.approx(1, abs=1e-5)


def test_the_one_pair_that_matters_is_first():
    """An exclusive or of a and b, as an FM whose other vectors are zero has it exactly."""
    schema = Schema(fields=tuple(Categorical(name) for name in "abc"), label=Label("y"))
    frame = pl.DataFrame(
        {name: [str((k >> bit) & 1) for k in range(8)] for bit, name in enumerate("abc")}
    )
    encoder = Encoder.fit(frame, schema)
    network = build_network(FM(embedding_dim=1), encoder.layout, 0)
    for p in network.parameters():
        p.data.zero_()
    for f in encoder.layout.fields[:2]:
        network.embedding.weight.data[f.offset + 2 : f.offset + 4, 0] = (
            network.embedding.weight.new_tensor([-1.0, 1.0])
        )
    bundle = Bundle(schema, encoder, FM(embedding_dim=1), network.eval(), frame)
    pairs = strongest_pairs(Subject.of(bundle, frame), draws=8)
    assert pairs[0]["fields"] == ["a", "b"]
    # (a - a')(b - b') over all eight background rows: 4 or -4 for the quarter that differ in both,
    # else 0.
    assert pairs[0]["strength"] == pytest.approx(2, abs=1e-6)
    assert [pair["strength"] for pair in pairs[1:]] == pytest.approx([0, 0], abs=1e-6)


def test_some_rows_stand_for_all(make, rows):
    subject = Subject.of(make(FM(embedding_dim=3)), rows)
    some = {tuple(p["fields"]): p["strength"] for p in strongest_pairs(subject, rows=3)}
    whole = {tuple(p["fields"]): p["strength"] for p in strongest_pairs(subject)}
    assert some.keys() == whole.keys()
    assert some != whole


def test_how_many_planted_pairs_are_found():
    planted = [
        ("genres", "gender"),
        ("device", "hour"),
        ("length", "device"),
        ("age_group", "genres"),
    ]
    assert planted_pairs_found([*planted, ("city", "release_decade")]) == (5, 5)
    assert planted_pairs_found([("user_id", "item_id"), *planted, ("city", "release_decade")]) == (
        4,
        5,
    )
    assert planted_pairs_found([]) == (0, 5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["fm", "afm", "autoint", "autoint-plus", "inttower"])
def test_trained_models_show_the_planted_pairs(tmp_path, model):
    recipe = load_recipe(f"simulated/{model}")
    bundle = train_recipe(recipe, prepare_recipe(recipe, tmp_path)).bundle
    pairs = strongest_pairs(Subject.of(bundle, simulate(500, seed=0)))
    assert planted_pairs_found([pair["fields"] for pair in pairs]) == (5, 5)

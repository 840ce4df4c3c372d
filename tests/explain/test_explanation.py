"""Explanations of rows: that they add up, name values and not ids, and refuse what cannot be."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest
from explain.conftest import SCHEMA, log

from fieldwise import AFM, DIN, FM, LR, AutoIntPlus, ConfigError, DataError, IntTower, Label
from fieldwise.evaluation import sigmoid
from fieldwise.explain import Subject, explain
from fieldwise.explain.subject import field_values

USUAL = {
    "lr": (LR(), "terms"),
    "fm": (FM(embedding_dim=3), "terms"),
    "afm": (AFM(embedding_dim=3, attention_dim=3), "terms"),
    "autoint+": (
        AutoIntPlus(embedding_dim=4, layers=2, attention_dim=4, hidden=(5,)),
        "integrated_gradients",
    ),
    "inttower": (
        IntTower(
            embedding_dim=4, hidden=(5, 4), user_heads=2, item_heads=3, head_dim=3, cir_weight=0
        ),
        "integrated_gradients",
    ),
    "din": (DIN(embedding_dim=4, hidden=(4,)), "occlusion"),
}


def test_a_row_adds_up_and_is_plain(subtests, make, rows):
    for name in USUAL:
        with subtests.test(name=name):
            settings, method = USUAL[name]
            bundle = make(settings)
            result = explain(bundle, rows)
            assert result.method == method
            for number, score in enumerate(bundle.score(rows)):
                row = json.loads(json.dumps(result.row(number), allow_nan=False))
                assert row["score"] == pytest.approx(score, rel=1e-6)
                assert row["prediction"] == pytest.approx(sigmoid(score), rel=1e-6)
                assert row["base"] + sum(f["contribution"] for f in row["fields"]) + row[
                    "gap"
                ] == pytest.approx(score, abs=1e-6)
                sizes = [abs(f["contribution"]) for f in row["fields"]]
                assert sizes == sorted(sizes, reverse=True)
                assert {f["field"] for f in row["fields"]} == {
                    "user",
                    "history",
                    "item",
                    "genres",
                    "price",
                    "hour",
                }
                if method == "terms":
                    assert abs(row["gap"]) < 1e-5


def test_a_pair_is_divided_between_its_fields(make, rows):
    row = explain(make(FM(embedding_dim=3)), rows).row(2)
    for field in row["fields"]:
        pairs = sum(p["contribution"] for p in row["pairs"] if field["field"] in p["fields"])
        assert field["contribution"] == pytest.approx(field["first_order"] + pairs / 2, abs=1e-6)
    assert row["base"] == row["bias"]


def test_afm_pairs_are_attention_times_interaction_by_name_and_value(make, rows):
    row = explain(make(AFM(embedding_dim=3, attention_dim=3)), rows).row(0)
    assert len(row["pairs"]) == 15
    assert sum(p["attention"] for p in row["pairs"]) == pytest.approx(1, abs=1e-5)
    values = {f["field"]: f["value"] for f in row["fields"]}
    assert values["user"] == "new (not in the vocabulary)"
    for pair in row["pairs"]:
        assert pair["contribution"] == pytest.approx(
            pair["attention"] * pair["interaction"], rel=1e-4, abs=1e-6
        )
        assert pair["values"] == [values[name] for name in pair["fields"]]
    first_order = sum(f["first_order"] for f in row["fields"])
    total = row["bias"] + first_order + sum(p["contribution"] for p in row["pairs"])
    assert total == pytest.approx(row["score"], abs=1e-5)


def test_autoint_shows_attention_and_the_last_unit(make, rows):
    row = explain(make(USUAL["autoint+"][0]), rows).row(1)
    attention = np.array(row["attention"])
    assert attention.shape == (2, 2, 6, 6)
    np.testing.assert_allclose(attention.sum(-1), 1, rtol=1e-5)
    assert row["bias"] + row["mlp"] + sum(f["attended"] for f in row["fields"]) == pytest.approx(
        row["score"], abs=1e-5
    )


def test_inttower_shows_levels_heads_and_gates(make, rows):
    row = explain(make(USUAL["inttower"][0]), rows).row(1)
    assert [level["level"] for level in row["levels"]] == [1, 2]
    for level in row["levels"]:
        assert sum(head["product"] for head in level["heads"]) == pytest.approx(
            level["contribution"], abs=1e-5
        )
        assert {head["item_head"] for head in level["heads"]} <= {0, 1, 2}
    assert sum(level["contribution"] for level in row["levels"]) == pytest.approx(
        row["score"], abs=1e-4
    )
    # A context field belongs to the user's tower.
    assert [gate["field"] for gate in row["user_gates"]] == ["user", "history", "hour"]
    assert [gate["field"] for gate in row["item_gates"]] == ["item", "genres", "price"]
    assert sum(gate["gate"] for gate in row["user_gates"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("method", ["terms", "integrated_gradients", "occlusion"])
def test_every_method_adds_up(make, rows, method):
    bundle = make(AFM(embedding_dim=3, attention_dim=3))
    result = explain(bundle, rows, method=method)
    total = result.base + result.contributions.sum(1) + result.gap
    np.testing.assert_allclose(total, bundle.score(rows), rtol=1e-5, atol=1e-5)
    if method == "occlusion":
        np.testing.assert_allclose(result.base, bundle.score(bundle.samples).mean(), rtol=1e-5)


def test_another_background_moves_the_base(make, rows):
    bundle = make(USUAL["autoint+"][0])
    one, two = explain(bundle, rows), explain(bundle, rows, background=rows.tail(4))
    assert one.base[0] != two.base[0]
    np.testing.assert_array_equal(one.subject.logit, two.subject.logit)


def test_a_label_of_several(make, rows):
    schema = dataclasses.replace(SCHEMA, more_labels=(Label("stars", task="regression"),))
    bundle = make(FM(embedding_dim=3), schema=schema)
    scores = bundle.score(rows)
    for column, label in enumerate((None, "stars")):
        result = explain(bundle, rows, label=label)
        np.testing.assert_allclose(result.subject.logit, scores[:, column], rtol=1e-6)
        np.testing.assert_allclose(
            result.subject.terms.logit, scores[:, column], rtol=1e-4, atol=1e-5
        )
    # a number, not a probability
    np.testing.assert_array_equal(result.prediction, result.subject.logit)
    assert result.row(0)["label"] == "stars"
    with pytest.raises(
        ConfigError, match="a label must be one of the bundle's, found 'star': did you mean 'stars'"
    ):
        explain(bundle, rows, label="star")


def test_what_cannot_be(make, rows):
    bundle = make(USUAL["autoint+"][0])
    with pytest.raises(
        ConfigError, match=r"model of terms of fields and pairs .* found AutoInt: use 'integrated"
    ):
        explain(bundle, rows, method="terms")
    with pytest.raises(ConfigError, match="found FM: use 'terms'"):
        explain(make(FM()), rows, method="integrated_gradients")
    with pytest.raises(ConfigError, match="did you mean 'occlusion'"):
        explain(bundle, rows, method="oclusion")
    with pytest.raises(DataError, match=r"from 0 to 11, found row 12"):
        explain(bundle, rows).row(12)
    with pytest.raises(DataError, match=r"'price' .* is missing"):
        explain(bundle, rows.drop("price"))
    with pytest.raises(DataError, match="was given none: give background rows"):
        explain(bundle, rows, background=rows.head(0))
    with pytest.raises(DataError, match="has no sample rows: give background rows"):
        explain(dataclasses.replace(bundle, samples=rows.head(0)), rows)


def test_few_background_rows_are_all_used_and_many_sampled(make, rows):
    few = Subject.of(make(LR()), rows)
    np.testing.assert_array_equal(few.others(32, 0), np.tile(np.arange(7), (12, 1)))
    drawn = few.others(3, 0)
    assert drawn.shape == (12, 3)
    assert set(drawn.ravel()) <= set(range(7))
    np.testing.assert_array_equal(drawn, few.others(3, 0))


def test_values_are_as_a_person_wrote_them(make):
    bundle = make(LR())
    frame = pl.DataFrame(
        {
            "user": ["u1", None, "nobody"],
            "history": ["i1|i99", "", "|".join(["i1"] * 11)],
            "item": ["i1", "i2", ""],
            "genres": [["g0", "g1"], [], ["g0"] * 11],
            "price": [1.5, None, float("nan")],
            "hour": ["7", None, " 23"],
        }
    )
    result = field_values(bundle.encoder, frame)
    assert result.row(0) == ("u1", "i1, i99 (not in the vocabulary)", "i1", "g0, g1", "1.5", "7")
    assert result.row(1) == ("(absent)", "(absent)", "i2", "(absent)", "(absent)", "(absent)")
    # A history keeps its latest values; a long cell is cut for reading.
    assert result.row(2)[0] == "nobody (not in the vocabulary)"
    assert result.row(2)[1] == "i1, i1, i1"
    assert result.row(2)[3].endswith("g0, and 3 more")
    assert (result.row(2)[2], *result.row(2)[4:]) == ("(absent)", "(absent)", " 23")


def test_it_prints_in_a_few_lines(make):
    result = explain(make(FM(embedding_dim=3)), log(8))
    lines = repr(result).splitlines()
    assert (
        lines[0]
        == "Explanation of 8 rows: label 'click', by terms; mean absolute contribution of each field"
    )
    means = {
        name: np.abs(result.contributions[:, f]).mean()
        for f, name in enumerate(result.subject.fields)
    }
    ordered = sorted(means, key=lambda name: -means[name])
    assert lines[1:] == [f"  {name}: {means[name]:.4f}" for name in ordered]
    one = repr(explain(make(FM(embedding_dim=3)), log(1)))
    assert one.startswith("Explanation of 1 row: label 'click', by terms; score ")
    assert f"  user = {log(1)['user'][0]}: " in one
    assert repr(result.subject).startswith("Subject(8 rows, label 'click', fields user, history, ")

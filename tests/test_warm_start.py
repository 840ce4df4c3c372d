import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from random_bundle import random_bundle
from torch import nn

from fieldwise import (
    AFM,
    DSSM,
    FFM,
    FM,
    LR,
    AutoInt,
    Bag,
    Batch,
    BundleError,
    Categorical,
    ConfigError,
    DeepFM,
    Encoder,
    Label,
    Layout,
    Numeric,
    Recommender,
    Schema,
    Sequence,
    TrainingSettings,
    WideDeep,
    load_recipe,
    prepare_recipe,
    settings_of,
    train_recipe,
)
from fieldwise.bundle.warm_start import warm_start
from fieldwise.layers import FirstOrder
from fieldwise.models.build import build_network

LABEL = Label("y")
OLD = pl.DataFrame(
    {
        "a": ["p", "q", "q", "r"],
        "n": [1.0, 2.0, 3.0, 4.0],
        "t": ["x", "x|y", "y", "z"],
        "y": [0, 1, 0, 1],
    }
)
NEW = pl.DataFrame(
    {
        "a": ["r", "r", "r", "s"],
        "n": [0.0, 2.0, 9.0, 4.0],
        "t": ["w", "y", "y", "x"],
        "y": [0, 1, 0, 1],
    }
)
A, N, T = Categorical("a"), Numeric("n"), Bag("t")


def bundle_of(settings, fields, frame=OLD):
    return random_bundle(settings, Schema(fields=fields, label=LABEL), frame, std=1.0)


def started(settings, fields, bundle, frame=NEW):
    encoder = Encoder.fit(frame, Schema(fields=fields, label=LABEL))
    network = build_network(settings, encoder.layout, seed=2)
    fresh = {name: t.clone() for name, t in network.state_dict().items()}
    return (
        network,
        encoder,
        fresh,
        warm_start(network, encoder, bundle, labels=bundle.schema.labels),
    )


def row(encoder, field, value):
    at = {
        f.name: (p, s)
        for f, p, s in zip(encoder.fields, encoder.layout.fields, encoder.fitted, strict=True)
    }
    place, fitted = at[field]
    special = {"missing": 0, "unknown": 1}
    return place.row(special[value] if value in special else fitted.values.index(value) + 2)


def test_an_afm_copies_the_vectors_of_an_fm_by_value():
    """Vocabularies differ, and so do the places of a value's row: `r` is the first value here and the last there."""
    bundle = bundle_of(FM(embedding_dim=3), (A, N, T))
    network, encoder, fresh, report = started(
        AFM(embedding_dim=3, attention_dim=2), (A, N, T), bundle
    )
    for name in ("embedding.weight", "first_order.embedding.weight"):
        new, old = network.state_dict()[name], bundle.network.state_dict()[name]
        for field, value in [
            ("a", "r"),
            ("a", "missing"),
            ("a", "unknown"),
            ("t", "x"),
            ("t", "y"),
            ("t", "unknown"),
        ]:
            assert torch.equal(
                new[row(encoder, field, value)], old[row(bundle.encoder, field, value)]
            ), (name, value)
        for field, value in [("a", "s"), ("t", "w")]:
            assert torch.equal(
                new[row(encoder, field, value)], fresh[name][row(encoder, field, value)]
            )
        number = encoder.layout.fields[1].offset + 1
        assert torch.equal(new[number], old[bundle.encoder.layout.fields[1].offset + 1])
    assert torch.equal(network.first_order.bias, bundle.network.first_order.bias)
    # 3 of a's 4 rows, 2 of n's 2, 4 of t's 5
    assert report.taken == {
        "embedding.weight": "9 of 11 rows", "first_order.embedding.weight": "9 of 11 rows", "first_order.bias": "all",
    }  # fmt: skip
    assert set(report.fresh) == {"p", "attention.W", "attention.b", "attention.h"}
    assert all(torch.equal(network.state_dict()[name], fresh[name]) for name in report.fresh)
    assert report.source == "fm"
    assert "copied embedding.weight (9 of 11 rows)" in report.sentence()


def test_the_same_model_and_rows_take_all():
    settings = DeepFM(embedding_dim=3, hidden=(4,))
    bundle = bundle_of(settings, (A, N, T))
    network, _, _, report = started(settings, (A, N, T), bundle, OLD)
    assert all(
        torch.equal(t, bundle.network.state_dict()[name])
        for name, t in network.state_dict().items()
    )
    assert not report.fresh


def test_weights_by_value_are_copied_between_equal_vocabularies():
    """Three values here and there, but not the same ones: the weight of a cross would mean other categories."""
    settings = WideDeep(embedding_dim=3, hidden=(4,), crosses=(("a", "c"),))
    fields = (A, Categorical("c", column="t"))
    bundle = bundle_of(settings, fields)
    other = OLD.with_columns(a=pl.Series(["p", "q", "q", "s"]))
    network, _, fresh, report = started(settings, fields, bundle, other)
    assert report.fresh == {"crosses.weight": "the vocabularies differ"}
    assert torch.equal(network.crosses.weight, fresh["crosses.weight"])
    network, _, _, report = started(settings, fields, bundle, OLD)
    assert torch.equal(network.crosses.weight, bundle.network.crosses.weight)


class ByRow(nn.Module):
    """A model of a user's own: a weight for each row, in a table of its own."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.first_order, self.table = FirstOrder(layout), nn.Embedding(layout.num_rows, 1)
        self.table.row_blocks = [(layout.num_rows,)]

    def forward(self, batch: Batch) -> torch.Tensor:
        return self.first_order(batch) + self.table(batch.ids).sum((1, 2))


def test_a_table_of_ones_own_is_taken_where_vocabularies_are_equal():
    """Three values here and three others there, which a shape alone does not tell."""
    model, fields = settings_of(ByRow), (Categorical("a"),)
    bundle = bundle_of(model, fields)
    network, _, fresh, report = started(
        model, fields, bundle, OLD.with_columns(a=pl.Series(["u", "v", "v", "w"]))
    )
    assert report.fresh == {"table.weight": "the vocabularies differ"}
    assert torch.equal(network.table.weight, fresh["table.weight"])
    network, _, _, report = started(model, fields, bundle, OLD)
    assert torch.equal(network.table.weight, bundle.network.table.weight)
    assert not report.fresh


def test_a_table_of_ones_own_is_not_taken_from_a_grown_bundle():
    """The vocabularies are equal, but the row of `s` is the last one there, and before the rows of `c` here."""
    model, fields = settings_of(ByRow), (A, Categorical("c", column="t"))
    more = OLD[:1].with_columns(a=pl.lit("s"))
    grown, added = bundle_of(model, fields).grow(more)
    network, encoder, fresh, report = started(model, fields, grown, pl.concat([OLD, more]))
    assert added == {"a": 1, "c": 0}
    assert encoder.fitted == grown.encoder.fitted
    assert report.fresh == {"table.weight": "the rows of equal vocabularies differ"}
    assert torch.equal(network.table.weight, fresh["table.weight"])
    new, old = (one.first_order.embedding.weight for one in (network, grown.network))
    for field, value in [("a", "r"), ("a", "s"), ("c", "x"), ("c", "unknown")]:
        assert torch.equal(new[row(encoder, field, value)], old[row(grown.encoder, field, value)])


def test_weights_by_position_are_not_copied_to_other_fields():
    settings = AutoInt(embedding_dim=3, attention_dim=4, layers=1)
    bundle = bundle_of(settings, (A, N))
    network, encoder, fresh, report = started(settings, (N, A), bundle)
    assert torch.equal(network.head.weight, fresh["head.weight"])
    assert report.fresh["head.weight"] == "the fields differ"
    assert torch.equal(
        network.embedding.weight[row(encoder, "a", "r")],
        bundle.network.embedding.weight[row(bundle.encoder, "a", "r")],
    )


def test_columns_of_a_field_aware_table_are_not_copied_to_other_fields():
    """FFM's columns are vectors toward the other fields, in their order; with two fields they are as wide as FM's."""
    aware = replace(FFM(embedding_dim=3), first_order=True)
    bundle = bundle_of(aware, (A, N))
    for model, reason in (
        (aware, "the fields differ"),
        (FM(embedding_dim=3), "a field-aware table and a"),
    ):
        _, _, _, report = started(model, (N, A), bundle)
        assert report.fresh["embedding.weight"].startswith(reason)
    same, _, _, report = started(FFM(embedding_dim=3), (A, N), bundle, OLD)
    assert report.taken["embedding.weight"] == "7 of 7 rows"
    assert torch.equal(same.embedding.weight, bundle.network.embedding.weight)


def test_rows_of_other_encodings(subtests):
    hashed, uniform = Categorical("a", hash_buckets=5), Numeric("n", encoding="uniform", bins=3)
    for old, new, rows in [
        ((hashed,), (hashed,), "6 of 6 rows"),
        ((hashed,), (Categorical("a", hash_buckets=6),), "1 of 7 rows"),
        ((hashed,), (A,), "1 of 4 rows"),
        ((uniform,), (Numeric("n", encoding="quantile", bins=3),), "4 of 4 rows"),
        ((A, uniform), (A, N), "4 of 6 rows"),  # missing, unknown and r of a; missing of n
    ]:
        with subtests.test(old=old, new=new):
            _, _, _, report = started(FM(embedding_dim=3), new, bundle_of(FM(embedding_dim=3), old))
            assert report.taken["embedding.weight"] == rows


def test_a_sequence_that_shares_rows_does_not_overwrite_them():
    """The old history had rows of its own: they must not come over those of the field whose rows it shares here."""
    log = OLD.with_columns(h=pl.Series([["p"], ["q", "r"], ["r"], []]))
    bundle = bundle_of(FM(embedding_dim=3), (A, Sequence("h")), log)
    network, encoder, _, report = started(
        FM(embedding_dim=3), (A, Sequence("h", shares="a")), bundle, log
    )
    for value in ("p", "q", "r", "missing", "unknown"):
        old = bundle.network.embedding.weight[row(bundle.encoder, "a", value)]
        assert torch.equal(network.embedding.weight[row(encoder, "a", value)], old)
    assert report.taken["embedding.weight"] == "5 of 5 rows"


def test_a_field_of_another_role_is_another_field():
    """A tower reads the fields of a role: the weights of one would stand over the other's fields."""
    settings = DSSM(embedding_dim=3, hidden=(4,))
    user, item = Categorical("a", role="user"), Bag("t", role="item")
    bundle = bundle_of(settings, (user, item))
    _, _, _, same = started(settings, (user, item), bundle, OLD)
    assert not same.fresh
    _, _, _, report = started(
        settings, (replace(user, role="item"), replace(item, role="user")), bundle, OLD
    )
    assert set(report.taken) == {"embedding.weight"}
    assert set(report.fresh.values()) == {"the fields differ"}


YES, STARS = Label("y"), Label("n", name="stars", task="regression")


def test_a_head_starts_from_the_head_of_its_label(subtests):
    for old, new, heads in [
        ((YES, STARS), (STARS, YES), {"heads.0.": "heads.1.", "heads.1.": "heads.0."}),
        ((YES, STARS), (STARS,), {"": "heads.1."}),
        ((STARS,), (YES, STARS), {"heads.0.": None, "heads.1.": ""}),
        ((YES,), (STARS,), {"": ""}),  # one label each: any bundle may start any model
        ((YES, STARS), (Label("n", name="other", positive_above=2),), {"": None}),
    ]:
        with subtests.test(old=old, new=new, heads=heads):
            settings = DeepFM(embedding_dim=3, hidden=(4,))
            encoder = Encoder.fit(OLD, Schema(fields=(A, T), label=YES))
            bundle = random_bundle(
                settings, Schema(fields=(A, T), label=old[0], more_labels=old[1:]), OLD
            )
            network = build_network(settings, encoder.layout, 2, labels=len(new))
            report = warm_start(network, encoder, bundle, labels=new)
            former, state = bundle.network.state_dict(), network.state_dict()
            assert torch.equal(state.pop("embedding.weight"), former["embedding.weight"])
            for name, tensor in state.items():
                head = next(h for h in heads if name.startswith(h))
                if heads[head] is None:
                    assert report.fresh[name] == "the bundle has none"
                else:
                    assert torch.equal(tensor, former[heads[head] + name.removeprefix(head)]), name


def test_another_width_is_not_copied_and_nothing_in_common_is_an_error():
    _, _, _, report = started(AFM(embedding_dim=5), (A, N), bundle_of(FM(embedding_dim=3), (A, N)))
    assert report.fresh["embedding.weight"] == "width 3 in the bundle, 5 here"
    assert "first_order.embedding.weight" in report.taken
    with pytest.raises(
        ConfigError, match="needs matching parameters, but a bundle of lr has none"
    ) as caught:
        started(AutoInt(embedding_dim=3), (A, N), bundle_of(LR(), (A, N)))
    assert "\n" not in str(caught.value)


# In a recipe and in the estimator


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A trained FM's folder, its recipe's settings and the rows."""
    folder = tmp_path_factory.mktemp("warm") / "fm"
    settings = [
        "data.rows=1500",
        "data.users=60",
        "data.items=40",
        "training.epochs=2",
        "model.embedding_dim=8",
    ]
    recipe = load_recipe("simulated/fm", settings)
    run = train_recipe(recipe, prepare_recipe(recipe, folder))
    run.bundle.save(folder)
    return folder, settings, run


def warm(trained, *more):
    folder, settings, _ = trained
    recipe = load_recipe("simulated/afm", [*settings, f"warm_start={folder}", *more])
    return recipe, train_recipe(recipe, prepare_recipe(recipe, folder))


def test_a_recipe_starts_from_a_bundle_and_records_it(trained):
    recipe, run = warm(
        trained, "training.epochs=1", "training.learning_rate=1e-9", "training.l2={}"
    )
    assert run.record()["warm_start"]["bundle"] == str(trained[0])
    np.testing.assert_allclose(
        run.bundle.network.embedding.weight.detach(),
        trained[2].bundle.network.embedding.weight.detach(),
        atol=1e-6,
    )
    assert recipe.to_dict()["warm_start"] == str(trained[0])


def test_rows_of_an_earlier_warm_start_count_as_trained(trained, tmp_path):
    """Rows of test part 5 trained the first bundle, whose vectors the second hands on, though it kept them aside."""
    _, second = warm(trained, "training.epochs=1", "seed=5")
    second.bundle.save(tmp_path / "second")
    _, third = warm(trained, "training.epochs=1", "seed=5", f"warm_start={tmp_path / 'second'}")
    assert third.bundle.about.run["test_digest"] == second.bundle.about.run["test_digest"]
    assert (third.warm_start.same_test_rows, third.warm_start.same_valid_rows) == (False, False)


def test_train_reports_copied_weights_and_warns(trained, tmp_path, capsys):
    from fieldwise.cli import run

    folder, settings, _ = trained
    sets = [word for s in [*settings, f"warm_start={folder}"] for word in ("--set", s)]
    for more, unkept, same in (
        ("seed=0", None, (True, True)),
        ("seed=5", "test and validation", (False, False)),
        ("split.valid=0.2", "validation", (True, False)),
    ):
        out_of = ["--out", str(tmp_path / "b"), "--overwrite", "--set", "training.epochs=1"]
        assert run(["train", "simulated/afm", "-q", "--json", *sets, *out_of, "--set", more]) == 0
        out, err = capsys.readouterr()
        assert "warm start from fm: copied embedding.weight" in err
        assert ("warning" in err) == (unkept is not None)
        assert unkept is None or f"warm start did not hold out this run's {unkept} rows" in err
        record = json.loads(out)["warm_start"]
        assert (record["source"], record["same_test_rows"], record["same_valid_rows"]) == (
            "fm",
            *same,
        )


def test_a_relative_path_counts_from_the_recipe_file_and_needs_a_bundle(tmp_path):
    (tmp_path / "r.toml").write_text(
        'extends = "simulated/afm"\ndescription = "d"\nwarm_start = "fm"\n'
    )
    assert load_recipe(tmp_path / "r.toml").warm_start == str(tmp_path / "fm")
    recipe = load_recipe("simulated/afm", ["data.rows=500", f"warm_start={tmp_path / 'none'}"])
    with pytest.raises(BundleError, match=r"none is not a bundle"):
        train_recipe(recipe, prepare_recipe(recipe, tmp_path))


@pytest.mark.filterwarnings("ignore:.*equal a training row")
def test_the_estimator_starts_from_a_bundle(trained, tmp_path):
    folder, _, run = trained
    frame = pl.concat([run.bundle.samples.with_columns(liked=pl.Series(np.arange(32) % 2))] * 4)
    settings = TrainingSettings(epochs=1, learning_rate=1e-9)
    estimator = Recommender(
        run.bundle.schema, AFM(embedding_dim=8), training=settings, warm_start=str(folder)
    )
    estimator.fit(frame)
    assert "first_order.embedding.weight" in estimator.bundle_.about.warm_start["taken"]
    assert (
        np.abs(estimator.bundle_.network.first_order.embedding.weight.detach().numpy()).max() > 0.01
    )
    estimator.save(tmp_path / "b")
    assert Recommender.load(tmp_path / "b").warm_start == str(folder)
    _, again = warm(trained, "training.epochs=1")
    again.bundle.save(tmp_path / "r")
    assert Recommender.load(tmp_path / "r").warm_start == str(folder)
    with pytest.raises(ConfigError, match="warm_start must be the folder of a bundle"):
        Recommender(run.bundle.schema, warm_start=True).fit(frame)

"""Settings by the data: what is given stays, what is not follows from the rows, and every model builds by it."""

import dataclasses
import sys
import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from chunks_lab import prepare

from fieldwise import (
    AFM,
    FM,
    LR,
    AutoInt,
    AutoIntPlus,
    Bag,
    Categorical,
    IntTower,
    Label,
    Layout,
    RandomSplit,
    Recipe,
    Recommender,
    Schema,
    TrainingSettings,
    load_recipe,
    prepare_recipe,
    simulate,
    train_recipe,
)
from fieldwise.config import given
from fieldwise.models import NETWORKS
from fieldwise.models.serialise import model_to_dict
from fieldwise.runs.baseline import below_baseline, fit_baseline
from fieldwise.runs.default_settings import MODEL_DEFAULTS, resolve, training_rules
from fieldwise.runs.pipeline import fit_recipe, resolve_defaults
from fieldwise.runs.training_facts import Facts

IDS = (Categorical("user_id", role="user"), Categorical("item_id", role="item"))
SCHEMA = Schema(fields=IDS, label=Label("liked"))
LAYOUT = Layout.of_sizes([50, 20, 30, 10], ["user", "user", "item", "item"])


def facts(
    rows: int = 9_731, mean: float = 0.93, layout: Layout = LAYOUT, task: str = "binary"
) -> Facts:
    return Facts(layout=layout, rows=rows, mean=mean, task=task)


def own_recipe(**more: object) -> Recipe:
    plain = load_recipe(
        "simulated/fm", ["data.rows=1500", "data.users=60", "data.items=40"]
    ).to_dict()
    return Recipe.from_dict(
        {
            "data": plain["data"],
            "schema": plain["schema"],
            "model": {"name": "fm"},
            "split": plain["split"],
            **more,
        },
        "own",
    )


def test_every_model_builds_by_the_rules_and_every_setting_is_a_number_then(subtests):
    for name in [name for name in NETWORKS if name != "din"]:
        with subtests.test(name=name):
            result = resolve(NETWORKS[name](), TrainingSettings(), facts())
            assert given(result.model) == {f.name for f in dataclasses.fields(result.model)}
            assert given(result.training) == {f.name for f in dataclasses.fields(result.training)}
            network = result.model.build(LAYOUT)
            names = {parameter for parameter, _ in network.named_parameters()}
            assert set(result.training.l2) <= names
            assert {"training.batch_size", "training.learning_rate", "training.l2"} <= {
                c.setting for c in result.chosen
            }


WIDE = facts(layout=Layout.of_sizes([200_000, 200_000]))
MANY = facts(rows=200_000)
EXACT = dataclasses.replace(facts(), exact=True)  # a regression on these rows can be solved
LARGE = dataclasses.replace(facts(), stepped=True, effects=0.5)  # too many to solve it
# model, given settings, facts, chosen settings
CASES: list[tuple[Any, dict[str, Any], Facts, dict[str, Any]]] = [
    (AutoInt(), {}, facts(rows=4_999), {"learning_rate": 0.002}),
    (AutoInt(), {}, facts(rows=5_000), {"learning_rate": 0.003}),
    (AFM(), {}, facts(rows=19_999), {"learning_rate": 0.006}),
    (AFM(), {}, facts(rows=20_000), {"learning_rate": 0.015}),
    (FM(), {"optimizer": "sgd"}, facts(), {"learning_rate": 1e-3}),
    (LR(), {}, facts(), {"unknown_share": 0.0, "optimizer": "adam"}),
    (
        FM(),
        {},
        facts(),
        {
            "unknown_share": MODEL_DEFAULTS.unknown_share,
            "start_from_lr": False,
            "mean_with_lr": False,
        },
    ),
    (LR(), {}, facts(rows=589), {"batch_size": 32}),
    (LR(), {}, facts(rows=9_731), {"batch_size": 128}),  # the largest power of 2 with 50 steps
    (LR(), {}, facts(rows=58_284), {"batch_size": 1024}),
    (LR(), {}, facts(rows=335_955), {"batch_size": 2048}),
    (FM(), {}, WIDE, {"embedding_update": "lazy", "l2_rows": "all", "average": 0.0}),
    (
        FM(),
        {},
        WIDE,
        {"learning_rate": 0.003, "evaluations_per_epoch": 4, "patience": 5, "plateau_patience": 3},
    ),
    (AFM(), {}, WIDE, {"learning_rate": 0.006}),
    (LR(), {}, WIDE, {"learning_rate": 0.003}),
    (
        AFM(),
        {"embedding_update": "dense"},
        facts(rows=20_000, layout=WIDE.layout),
        {"learning_rate": 0.015},
    ),
    (FM(), {"embedding_update": "dense"}, WIDE, {"l2_rows": "all", "average": 0.99}),
    (FM(), {}, facts(mean=3.5, task="regression"), {"monitor": "rmse", "start_at_base_rate": True}),
    (
        FM(),
        {"batch_size": 64, "evaluations_per_epoch": 20},
        MANY,
        {"patience": 100, "plateau_patience": 40},
    ),
    (FM(), {"batch_size": 64}, MANY, {"evaluations_per_epoch": 4}),
    (LR(), {}, EXACT, {"optimizer": "lbfgs"}),
    (LR(), {"monitor": "auc", "refit": True}, EXACT, {"optimizer": "lbfgs"}),
    (LR(), {"epochs": 100}, EXACT, {"optimizer": "adam"}),
    (LR(), {"l2": {}}, EXACT, {"optimizer": "adam"}),
    (LR(), {"optimizer": "sgd"}, EXACT, {"optimizer": "sgd"}),
    (FM(), {}, EXACT, {"optimizer": "adam", "start_from_lr": True, "mean_with_lr": True}),
    (AFM(), {}, EXACT, {"start_from_lr": True, "mean_with_lr": True}),
    (AutoInt(), {}, EXACT, {"start_from_lr": False, "mean_with_lr": True}),
    (AutoInt(), {}, facts(), {"mean_with_lr": False}),
    (AutoInt(), {"mean_with_lr": False}, EXACT, {"mean_with_lr": False}),
    (LR(), {"epochs": 100}, EXACT, {"mean_with_lr": False}),
    (IntTower(), {}, EXACT, {"start_from_lr": False, "mean_with_lr": False}),
    (FM(), {}, EXACT, {"l2_of_lr": None}),
    (
        FM(),
        {},
        LARGE,
        {"start_from_lr": False, "mean_with_lr": True, "l2_of_lr": float(f"{2 / LARGE.rows:.4g}")},
    ),
    (
        AutoInt(),
        {"epochs": 2},
        LARGE,
        {"mean_with_lr": True, "l2_of_lr": float(f"{2 / LARGE.rows:.4g}")},
    ),
    (AutoInt(), {"mean_with_lr": False}, LARGE, {"mean_with_lr": False}),
    (LR(), {}, LARGE, {"optimizer": "adam", "mean_with_lr": False, "l2_of_lr": None}),
    (IntTower(), {}, LARGE, {"mean_with_lr": False, "l2_of_lr": None}),
]


def test_settings_that_the_rules_choose(subtests):
    assert MODEL_DEFAULTS.unknown_share > 0
    for model, fixed, known, expected in CASES:
        with subtests.test(model=model, given=fixed, expected=expected):
            training = resolve(model, TrainingSettings(**fixed), known).training
            assert {name: getattr(training, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("model", "fixed", "known", "reason"),
    [
        (LR(), {}, facts(rows=58_284), "batch size 1024: 58,284 rows"),
        (FM(), {"batch_size": 64}, MANY, "evaluations per epoch 4: 3,125 steps per epoch"),
        (LR(), {}, EXACT, "optimizer lbfgs: solved exactly, 9,731 rows"),
        (
            LR(),
            {"epochs": 5},
            EXACT,
            "optimizer adam: not solved exactly on 9,731 rows, because of the given epochs",
        ),
    ],
)
def test_every_choice_has_its_reason(model, fixed, known, reason):
    assert reason in map(str, resolve(model, TrainingSettings(**fixed), known).chosen)


def test_autoint_plus_normalizes_batches_from_four_rows_a_value_on():
    settings = NETWORKS["autoint+"]
    assert LAYOUT.num_rows == 110
    results = {
        rows: resolve(settings(), TrainingSettings(), facts(rows)).model.batch_norm
        for rows in (439, 440)
    }
    assert results == {439: False, 440: True}
    assert (
        resolve(settings(batch_norm=False), TrainingSettings(), facts()).model.batch_norm is False
    )


def test_what_is_given_stays_even_where_it_is_the_class_s_own_default():
    model = FM(embedding_std=0.01)
    training = TrainingSettings(batch_size=1024, l2={}, monitor="auc")
    result = resolve(model, training, facts())
    assert result.model.embedding_std == 0.01
    assert (result.training.batch_size, result.training.l2, result.training.monitor) == (
        1024,
        {},
        "auc",
    )
    chosen = {choice.setting for choice in result.chosen}
    assert chosen.isdisjoint(
        {"model.embedding_std", "training.batch_size", "training.l2", "training.monitor"}
    )


def test_strengths_of_l2_are_priors_divided_by_rows():
    few = resolve(FM(), TrainingSettings(), facts(rows=1_000)).training.l2
    many = resolve(FM(), TrainingSettings(), facts(rows=100_000)).training.l2
    assert few["first_order.embedding.weight"] == pytest.approx(1 / 1_000)
    assert {name: few[name] / many[name] for name in few} == pytest.approx(
        dict.fromkeys(few, 100.0)
    )


def test_models_with_a_prior_of_many_values_have_it_from_there_on():
    for model in (FM(), LR(), AutoInt()):
        chosen = type(model).data_defaults
        small, large = (resolve(model, TrainingSettings(), known) for known in (facts(), WIDE))
        assert large.training.l2.get("embedding.weight", 0.0) == pytest.approx(
            (chosen.prior if chosen.lazy_prior is None else chosen.lazy_prior) / WIDE.rows, rel=1e-3
        )
        assert small.training.l2.get("embedding.weight", 0.0) == pytest.approx(
            chosen.prior / facts().rows, rel=1e-3
        )
    assert (
        FM.data_defaults.lazy_std,
        resolve(FM(), TrainingSettings(), WIDE).model.embedding_std,
    ) == (0.01, 0.01)
    dense = resolve(FM(), TrainingSettings(embedding_update="dense"), WIDE)
    assert dense.model.embedding_std == FM.data_defaults.std
    assert dense.training.l2["embedding.weight"] == pytest.approx(
        FM.data_defaults.prior / WIDE.rows, rel=1e-3
    )


def test_afm_s_prior_is_divided_by_its_pairs_of_fields():
    narrow = resolve(AFM(), TrainingSettings(), facts(layout=Layout.of_sizes([9] * 3))).training.l2
    wide = resolve(AFM(), TrainingSettings(), facts(layout=Layout.of_sizes([9] * 9))).training.l2
    assert narrow["embedding.weight"] / wide["embedding.weight"] == pytest.approx(36 / 3, rel=1e-3)


def test_a_model_of_one_s_own_keeps_its_settings():
    @dataclasses.dataclass(frozen=True)
    class Own:
        embedding_std: float = 0.01

        def build(self, layout):
            return FM(embedding_std=self.embedding_std).build(layout)

    result = resolve(Own(), TrainingSettings(), facts())
    assert result.model == Own()
    assert result.training.batch_size == 128


def test_a_recipe_of_one_s_own_follows_the_data_and_the_bundle_keeps_the_numbers():
    recipe = own_recipe(training={"epochs": 2})
    assert recipe.defaults == "data"
    assert Recipe.from_dict(recipe.to_dict(), "own").to_dict() == recipe.to_dict()
    run = train_recipe(recipe, prepare_recipe(recipe, None))
    kept = run.bundle.about.recipe.settings
    assert kept["defaults"] == "fixed"
    assert kept["training"]["epochs"] == 2
    assert kept["training"]["batch_size"] == 32
    assert kept["model"] == model_to_dict(run.bundle.settings)
    assert "training.batch_size" in {choice["setting"] for choice in run.record()["defaults"]}
    rows = prepare_recipe(recipe, None)
    again = fit_recipe(Recipe.from_dict(kept, "again"), rows.encoder, rows.train, rows.valid)
    for (name, ours), theirs in zip(
        again.bundle.network.state_dict().items(),
        run.bundle.network.state_dict().values(),
        strict=True,
    ):
        assert torch.equal(ours, theirs), name


def test_fixed_defaults_are_those_of_the_classes():
    recipe = own_recipe(defaults="fixed")
    resolved, chosen = resolve_defaults(recipe, prepare_recipe(recipe, None).train)
    assert resolved.training == TrainingSettings()
    assert chosen == ()


def test_recommender_and_recipe_choose_the_same_numbers():
    log = simulate(1_000, users=50, items=30)
    fitted = Recommender(SCHEMA, AutoInt(), training=TrainingSettings(epochs=1)).fit(log)
    # 900 rows train in both
    prepared = prepare(log, SCHEMA, split=RandomSplit(valid=0.05, test=0.05), seed=0)
    result = resolve(
        AutoInt(), TrainingSettings(epochs=1), Facts.of(prepared.train.table, SCHEMA.labels)
    )
    assert fitted.bundle_.settings == result.model
    assert fitted.bundle_.about.estimator["training"]["l2"] == pytest.approx(
        dict(result.training.l2)
    )


def test_defaults_of_a_rare_label_are_no_worse_than_a_constant():
    """A table without anything to learn and 7 % negatives: 0.66 of logloss was the default of an earlier version."""
    rng = np.random.default_rng(0)
    log = simulate(1_500, users=200, items=60).with_columns(
        liked=(rng.random(1_500) < 0.93).astype(int)
    )
    for model in (FM(), AutoInt()):
        result = Recommender(SCHEMA, model).fit(log[:1_000]).evaluate(log[1_000:])
        rate = float(log["liked"][1_000:].mean())
        constant = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
        assert result["logloss"] < constant + 0.02, type(model).__name__


def test_a_run_that_is_below_lr_on_its_validation_rows_says_so():
    recipe = own_recipe(
        model={"name": "autoint"},
        training={"epochs": 1, "learning_rate": 1e-6, "mean_with_lr": False},
    )
    prepared = prepare_recipe(recipe, None)
    run, lr = (
        train_recipe(recipe, prepared),
        fit_baseline(recipe, prepared, len(prepared.train.table)),
    )
    sentence = below_baseline(run, lr, None)
    assert sentence is not None
    assert f"logloss {lr['logloss']:.4f} compared with {run.valid['logloss']:.4f}" in sentence
    assert "sample" not in sentence
    sentence = below_baseline(run, fit_baseline(recipe, prepared, 500), 500)
    assert sentence is not None
    assert "regression, trained on a sample of 500 rows, is better than this model" in sentence
    for more in (0.01, -1e-9):  # the figures that are printed would be the same
        assert below_baseline(run, {"logloss": run.valid["logloss"] + more}, None) is None


@pytest.mark.filterwarnings("ignore:.* were trained on")
def test_a_warm_start_keeps_its_output_bias(tmp_path):
    log = simulate(1_500, users=50, items=30).with_columns(
        liked=(np.arange(1_500) % 10 > 0).astype(int)
    )
    Recommender(SCHEMA, FM(), training=TrainingSettings(epochs=3)).fit(log).save(tmp_path / "first")
    still = TrainingSettings(epochs=1, learning_rate=1e-9)
    again = Recommender(SCHEMA, FM(), training=still, warm_start=tmp_path / "first").fit(log)
    assert again.evaluate(log)["mean_prediction"] == pytest.approx(0.9, abs=0.03)


def test_a_warm_start_and_a_maximum_over_a_bag_are_trained_by_steps(tmp_path):
    frame = simulate(400, users=20, items=10, seed=0)
    first = Recommender(SCHEMA, LR()).fit(frame)
    first.save(tmp_path / "first")
    again = Recommender(SCHEMA, LR(), warm_start=tmp_path / "first").fit(frame)
    assert first.history_.stopped == "converged"
    assert again.history_.stopped != "converged"
    bags = Schema(
        fields=(Categorical("user_id"), Bag("genres", pooling="max")), label=Label("liked")
    )
    assert Recommender(bags, LR()).fit(frame).history_.stopped != "converged"


def test_a_table_too_large_to_solve_lr_ends_as_a_mean_with_lr_by_steps(monkeypatch):
    """A label without anything to learn, so that the mean has little of the network, and an LR that is the default."""
    rng = np.random.default_rng(0)
    log = simulate(1_500, users=200, items=60).with_columns(liked=rng.integers(0, 2, 1_500))
    monkeypatch.setattr(sys.modules["fieldwise.runs.training_facts"], "MOST_REGRESSION_CELLS", 1)
    parts = {"X": log[:1_000], "eval_set": log[1_000:]}
    mean = Recommender(SCHEMA, AutoIntPlus()).fit(**parts)
    lr = Recommender(SCHEMA, LR()).fit(**parts)
    assert mean.bundle_.network_share < 1
    assert mean.history_.lr is not None
    assert lr.history_.stopped != "converged"
    assert lr.history_.lr is None
    weight = lr.bundle_.network.first_order.embedding.weight
    assert (
        torch.corrcoef(torch.cat([weight, mean.bundle_.network.lr.embedding.weight], 1).T)[0, 1]
        > 0.9
    )


@pytest.mark.slow
def test_new_users_do_not_make_fm_worse_than_lr():
    """A split by time in which nine of ten test users are new: the mean with LR is not worse."""
    rng = np.random.default_rng(0)
    users = np.concatenate([rng.integers(0, 300, 3_000), rng.integers(280, 600, 2_000)])
    items = rng.integers(0, 60, len(users))
    logit = rng.normal(0, 1, 600)[users] + rng.normal(0, 1, 60)[items]
    y = (rng.random(len(users)) < 1 / (1 + np.exp(-logit))).astype(int)
    frame = pl.DataFrame({"user": users, "item": items, "y": y})
    schema = Schema(
        fields=(Categorical("user", role="user"), Categorical("item", role="item")),
        label=Label("y"),
    )
    parts = {"X": frame[:3_000], "eval_set": frame[3_000:4_000]}
    losses = {
        model: Recommender(schema, model(), seed=0).fit(**parts).evaluate(frame[4_000:])["logloss"]
        for model in (LR, FM, AFM)
    }
    assert max(losses[FM], losses[AFM]) < losses[LR] + 0.003


def test_a_run_that_the_chosen_limit_of_epochs_ended_says_so(monkeypatch):
    frame = simulate(300, users=20, items=10, seed=0)
    plain = training_rules

    def few(*given, **more):
        rules = plain(*given, **more)
        return rules | {name: (2, "few") for name in ("epochs",) if name in rules}

    monkeypatch.setattr(sys.modules["fieldwise.runs.default_settings"], "training_rules", few)
    with pytest.warns(UserWarning, match="CHECK training.epochs: 2 epochs ended the training"):
        Recommender(SCHEMA, AutoInt()).fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Recommender(SCHEMA, AutoInt(), training=TrainingSettings(epochs=2)).fit(frame)


def noise(rows, seed):
    """Rows of six fields of 400 values, and a label that depends on none."""
    rng = np.random.default_rng(seed)
    fields = {f"field_{k}": rng.integers(0, 400, rows).astype(str) for k in range(6)}
    return pl.DataFrame({**fields, "y": (rng.random(rows) < 0.25).astype(int)})


@pytest.mark.slow
@pytest.mark.parametrize("model", [AutoIntPlus(), FM(), AFM(), AutoInt()])
def test_a_table_of_noise_with_many_values_ends_near_the_constant(model):
    train, test = noise(4_000, 0), noise(20_000, 1)
    schema = Schema(
        fields=tuple(Categorical(name) for name in train.columns[:-1]), label=Label("y")
    )
    bundle = Recommender(schema, model).fit(train).bundle_
    rate, share = train["y"].mean(), test["y"].mean()
    constant = -share * np.log(rate) - (1 - share) * np.log(1 - rate)
    assert bundle.score(test).std() < 0.1
    y, score = test["y"].to_numpy(), bundle.score(test)
    assert np.mean(np.logaddexp(0, score) - y * score) < constant + 0.001

"""Settings by the data: what is given stays, what is not follows from the rows, and every model builds by it."""

import dataclasses
import sys
import warnings

import numpy as np
import polars as pl
import pytest
import torch
from chunks_lab import prepare

from fieldwise import Recommender
from fieldwise.cli.train import below_baseline
from fieldwise.config import given
from fieldwise.data.prepare.settings import RandomSplit
from fieldwise.data.read.simulation import simulate
from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import AFM, FM, LR, MODELS, AutoInt, IntTower
from fieldwise.models.build import model_to_dict
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.default_settings import DEFAULTS, Facts, resolve, training_rules
from fieldwise.runs.pipeline import fit_baseline, fit_recipe, resolve_defaults, train_recipe
from fieldwise.runs.recipe import Recipe, load_recipe
from fieldwise.schema import Bag, Categorical, Label, Schema
from fieldwise.training.settings import TrainingSettings

IDS = (Categorical("user_id", role="user"), Categorical("item_id", role="item"))
SCHEMA = Schema(fields=IDS, label=Label("liked"))
LAYOUT = Layout.of_sizes([50, 20, 30, 10], ["user", "user", "item", "item"])


def facts(rows: int = 9_731, mean: float = 0.93, layout: Layout = LAYOUT, task: str = "binary") -> Facts:
    return Facts(layout=layout, rows=rows, mean=mean, task=task)


def own_recipe(**more: object) -> Recipe:
    plain = load_recipe("simulated/fm", ["data.rows=1500", "data.users=60", "data.items=40"]).to_dict()
    return Recipe.from_dict(
        {"data": plain["data"], "schema": plain["schema"], "model": {"name": "fm"}, "split": plain["split"], **more},
        "own",
    )


def test_every_model_builds_by_the_rules_and_every_setting_is_a_number_then(subtests):
    for name in [name for name in MODELS if name != "din"]:
        with subtests.test(name=name):
            result = resolve(MODELS[name](), TrainingSettings(), facts())
            assert given(result.model) == {f.name for f in dataclasses.fields(result.model)}
            assert given(result.training) == {f.name for f in dataclasses.fields(result.training)}
            network = result.model.build(LAYOUT)
            names = {parameter for parameter, _ in network.named_parameters()}
            assert set(result.training.l2) <= names
            assert {"training.batch_size", "training.learning_rate", "training.l2"} <= {
                c.setting for c in result.chosen
            }


@pytest.mark.parametrize(
    ("model", "few", "slow", "rate"), [(AutoInt, 5_000, 0.002, 0.003), (AFM, 20_000, 0.006, 0.015)]
)
def test_small_tables_learn_slowly_below_a_number_of_rows(model, few, slow, rate):
    for rows, expected in ((few - 1, slow), (few, rate)):
        assert resolve(model(), TrainingSettings(), facts(rows=rows)).training.learning_rate == expected


def test_autoint_plus_normalizes_batches_from_four_rows_a_value_on():
    settings = MODELS["autoint+"]
    assert LAYOUT.num_rows == 110
    results = {rows: resolve(settings(), TrainingSettings(), facts(rows)).model.batch_norm for rows in (439, 440)}
    assert results == {439: False, 440: True}
    assert resolve(settings(batch_norm=False), TrainingSettings(), facts()).model.batch_norm is False


def test_rare_values_stand_for_unknown_ones_but_in_lr():
    shares = {model: resolve(model(), TrainingSettings(), facts()).training.unknown_share for model in (LR, FM)}
    assert shares == {LR: 0.0, FM: DEFAULTS.unknown_share}
    assert DEFAULTS.unknown_share > 0


def test_what_is_given_stays_even_where_it_is_the_class_s_own_default():
    model = FM(embedding_std=0.01)
    training = TrainingSettings(batch_size=1024, l2={}, monitor="auc")
    result = resolve(model, training, facts())
    assert result.model.embedding_std == 0.01
    assert (result.training.batch_size, result.training.l2, result.training.monitor) == (1024, {}, "auc")
    chosen = {choice.setting for choice in result.chosen}
    assert chosen.isdisjoint({"model.embedding_std", "training.batch_size", "training.l2", "training.monitor"})


def test_strengths_of_l2_are_priors_divided_by_rows():
    few = resolve(FM(), TrainingSettings(), facts(rows=1_000)).training.l2
    many = resolve(FM(), TrainingSettings(), facts(rows=100_000)).training.l2
    assert few["first_order.embedding.weight"] == pytest.approx(1 / 1_000)
    assert {name: few[name] / many[name] for name in few} == pytest.approx(dict.fromkeys(few, 100.0))


def test_afm_s_prior_is_divided_by_its_pairs_of_fields():
    narrow = resolve(AFM(), TrainingSettings(), facts(layout=Layout.of_sizes([9] * 3))).training.l2
    wide = resolve(AFM(), TrainingSettings(), facts(layout=Layout.of_sizes([9] * 9))).training.l2
    assert narrow["embedding.weight"] / wide["embedding.weight"] == pytest.approx(36 / 3, rel=1e-3)


def test_batches_give_small_tables_fifty_steps(subtests):
    for rows, batch in [(589, 32), (9_731, 128), (58_284, 1024), (335_955, 2048)]:
        with subtests.test(rows=rows, batch=batch):
            training = resolve(LR(), TrainingSettings(), facts(rows=rows)).training
            assert training.batch_size == batch
            assert any(
                str(choice) == f"batch size {batch}: {rows:,} rows"
                for choice in resolve(LR(), TrainingSettings(), facts(rows=rows)).chosen
            )


def test_a_large_vocabulary_is_updated_by_the_rows_of_a_batch():
    training = resolve(FM(), TrainingSettings(), facts(layout=Layout.of_sizes([200_000, 200_000]))).training
    assert (training.embedding_update, training.l2_rows, training.average) == ("lazy", "touched", 0.0)


def test_a_regression_watches_rmse_and_starts_at_the_mean():
    result = resolve(FM(), TrainingSettings(), facts(mean=3.5, task="regression"))
    assert result.training.monitor == "rmse"
    assert "training.start_at_base_rate" in {choice.setting for choice in result.chosen}


def test_a_model_of_one_s_own_keeps_its_settings():
    @dataclasses.dataclass(frozen=True)
    class Own:
        embedding_std: float = 0.01

        def build(self, layout):
            return FM(embedding_std=self.embedding_std).build(layout)

    result = resolve(Own(), TrainingSettings(), facts())
    assert result.model == Own()
    assert result.training.batch_size == 128


def test_recipes_of_the_package_keep_their_settings():
    recipe = load_recipe("simulated/afm")
    prepared = prepare_recipe(dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, rows=800)), None)
    assert resolve_defaults(recipe, prepared.train) == (recipe, ())
    assert recipe.training.monitor is None
    assert not recipe.training.start_at_base_rate


def test_a_recipe_of_one_s_own_follows_the_data_and_the_bundle_keeps_the_numbers():
    recipe = own_recipe(training={"epochs": 2})
    assert recipe.defaults == "data"
    assert Recipe.from_dict(recipe.to_dict(), "own").to_dict() == recipe.to_dict()
    run = train_recipe(recipe, prepare_recipe(recipe, None))
    kept = run.bundle.about["recipe"]["settings"]
    assert kept["defaults"] == "fixed"
    assert kept["training"]["epochs"] == 2
    assert kept["training"]["batch_size"] == 32
    assert kept["model"] == model_to_dict(run.bundle.settings)
    assert "training.batch_size" in {choice["setting"] for choice in run.record()["defaults"]}
    rows = prepare_recipe(recipe, None)
    again = fit_recipe(Recipe.from_dict(kept, "again"), rows.encoder, rows.train, rows.valid)
    for (name, ours), theirs in zip(
        again.bundle.network.state_dict().items(), run.bundle.network.state_dict().values(), strict=True
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
    prepared = prepare(log, SCHEMA, split=RandomSplit(valid=0.05, test=0.05), seed=0)  # 900 rows train in both
    result = resolve(AutoInt(), TrainingSettings(epochs=1), Facts.of(prepared.train.table, SCHEMA.labels))
    assert fitted.bundle_.settings == result.model
    assert fitted.bundle_.about["estimator"]["training"]["l2"] == pytest.approx(dict(result.training.l2))


def test_one_setting_of_a_recommender_may_be_changed_and_the_rest_stays_open():
    changed = Recommender(SCHEMA, AFM(attention_dim=8)).set_params(model__embedding_dim=4, training__epochs=2)
    assert given(changed.model) == {"attention_dim", "embedding_dim"}
    assert given(changed.training) == {"epochs"}
    with pytest.raises(ConfigError, match="embedding_dim"):
        changed.set_params(model__embeding_dim=4)


def test_inttower_gets_an_output_bias_and_less_than_a_tenth_of_its_numbers():
    def numbers(model):
        return sum(p.numel() for name, p in model.build(LAYOUT).named_parameters() if name != "embedding.weight")

    result = resolve(IntTower(), TrainingSettings(), facts()).model
    assert result.output_bias
    assert numbers(result) < numbers(IntTower()) / 10


def test_defaults_of_a_rare_label_are_no_worse_than_a_constant():
    """A table without anything to learn and 7 % negatives: 0.66 of logloss was the default of an earlier version."""
    rng = np.random.default_rng(0)
    log = simulate(1_500, users=200, items=60).with_columns(liked=(rng.random(1_500) < 0.93).astype(int))
    for model in (LR(), FM(), AFM(), AutoInt()):
        result = Recommender(SCHEMA, model).fit(log[:1_000]).evaluate(log[1_000:])
        rate = float(log["liked"][1_000:].mean())
        constant = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
        assert result["logloss"] < constant + 0.02, type(model).__name__


def test_a_run_that_is_below_lr_on_its_validation_rows_says_so():
    recipe = own_recipe(model={"name": "autoint"}, training={"epochs": 1, "learning_rate": 1e-6})
    prepared = prepare_recipe(recipe, None)
    run, lr = train_recipe(recipe, prepared), fit_baseline(recipe, prepared, len(prepared.train.table))
    sentence = below_baseline(run, lr, None)
    assert sentence is not None
    assert f"logloss {lr['logloss']:.4f} compared with {run.valid['logloss']:.4f}" in sentence
    assert "sample" not in sentence
    sentence = below_baseline(run, fit_baseline(recipe, prepared, 500), 500)
    assert sentence is not None
    assert "regression, trained on a sample of 500 rows, is better than this model" in sentence
    for more in (0.01, -1e-9):  # the figures that are printed would be the same
        assert below_baseline(run, {"logloss": run.valid["logloss"] + more}, None) is None


def test_rules_go_by_the_settings_that_are_given():
    given_batch = resolve(FM(), TrainingSettings(batch_size=64, evaluations_per_epoch=20), facts(rows=200_000))
    assert (given_batch.training.patience, given_batch.training.plateau_patience) == (100, 40)
    steps = resolve(FM(), TrainingSettings(batch_size=64), facts(rows=200_000))
    assert "evaluations per epoch 4: 3,125 steps per epoch" in [str(choice) for choice in steps.chosen]
    assert resolve(FM(), TrainingSettings(optimizer="sgd"), facts()).training.learning_rate == 1e-3
    large = facts(layout=Layout.of_sizes([200_000, 200_000]))
    dense = resolve(FM(), TrainingSettings(embedding_update="dense"), large).training
    assert (dense.l2_rows, dense.average) == ("all", 0.99)


@pytest.mark.filterwarnings("ignore:.* were trained on")
def test_a_warm_start_keeps_its_output_bias(tmp_path):
    log = simulate(1_500, users=50, items=30).with_columns(liked=(np.arange(1_500) % 10 > 0).astype(int))
    Recommender(SCHEMA, FM(), training=TrainingSettings(epochs=3)).fit(log).save(tmp_path / "first")
    still = TrainingSettings(epochs=1, learning_rate=1e-9)
    again = Recommender(SCHEMA, FM(), training=still, warm_start=tmp_path / "first").fit(log)
    assert again.evaluate(log)["mean_prediction"] == pytest.approx(0.9, abs=0.03)


def test_lr_is_solved_exactly_where_its_rows_fit_and_no_setting_of_steps_is_given():
    def optimizer(model=LR, exact=True, **training):
        given_facts = dataclasses.replace(facts(), exact=exact)
        return resolve(model(), TrainingSettings(**training), given_facts).training.optimizer

    assert optimizer() == "lbfgs"
    assert optimizer(monitor="auc", refit=True) == "lbfgs"
    assert {optimizer(exact=False), optimizer(FM), optimizer(epochs=100), optimizer(l2={})} == {"adam"}
    assert optimizer(optimizer="sgd") == "sgd"
    chosen = resolve(LR(), TrainingSettings(), dataclasses.replace(facts(), exact=True)).chosen
    assert [str(one) for one in chosen] == [
        "optimizer lbfgs: solved exactly, 9,731 rows",
        "monitor logloss: a binary label",
    ]
    by_steps = TrainingSettings(epochs=5, monitor="auc")
    chosen = resolve(LR(), by_steps, dataclasses.replace(facts(), exact=True)).chosen
    assert "optimizer adam: not solved exactly on 9,731 rows, because of the given epochs" in map(str, chosen)


def test_fm_and_afm_start_from_lr_where_it_can_be_solved():
    known = dataclasses.replace(facts(), exact=True)
    starts = {m: resolve(m(), TrainingSettings(), known).training.linear_start for m in (FM, AFM, AutoInt, IntTower)}
    assert starts == {FM: True, AFM: True, AutoInt: False, IntTower: False}
    assert not resolve(FM(), TrainingSettings(), facts()).training.linear_start


def test_a_warm_start_and_a_maximum_over_a_bag_are_trained_by_steps(tmp_path):
    frame = simulate(400, users=20, items=10, seed=0)
    first = Recommender(SCHEMA, LR()).fit(frame)
    first.save(tmp_path / "first")
    again = Recommender(SCHEMA, LR(), warm_start=tmp_path / "first").fit(frame)
    assert first.history_.stopped == "converged"
    assert again.history_.stopped != "converged"
    bags = Schema(fields=(Categorical("user_id"), Bag("genres", pooling="max")), label=Label("liked"))
    assert Recommender(bags, LR()).fit(frame).history_.stopped != "converged"


def test_new_users_do_not_make_fm_worse_than_lr():
    """A split by time in which nine of ten test users are new: the mean with LR is not worse."""
    rng = np.random.default_rng(0)
    users = np.concatenate([rng.integers(0, 300, 3_000), rng.integers(280, 600, 2_000)])
    items = rng.integers(0, 60, len(users))
    logit = rng.normal(0, 1, 600)[users] + rng.normal(0, 1, 60)[items]
    y = (rng.random(len(users)) < 1 / (1 + np.exp(-logit))).astype(int)
    frame = pl.DataFrame({"user": users, "item": items, "y": y})
    schema = Schema(fields=(Categorical("user", role="user"), Categorical("item", role="item")), label=Label("y"))
    parts = {"X": frame[:3_000], "valid": frame[3_000:4_000]}
    losses = {
        model: Recommender(schema, model(), seed=0).fit(**parts).evaluate(frame[4_000:])["logloss"]
        for model in (LR, FM, AFM)
    }
    assert max(losses[FM], losses[AFM]) < losses[LR] + 0.003


def test_a_run_that_the_chosen_limit_of_epochs_ended_says_so(monkeypatch):
    frame = simulate(300, users=20, items=10, seed=0)
    plain = training_rules

    def few(*given):
        rules = plain(*given)
        return rules | {name: (2, "few") for name in ("epochs",) if name in rules}

    monkeypatch.setattr(sys.modules["fieldwise.runs.default_settings"], "training_rules", few)
    with pytest.warns(UserWarning, match="CHECK training.epochs: 2 epochs ended the training"):
        Recommender(SCHEMA, AutoInt()).fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Recommender(SCHEMA, AutoInt(), training=TrainingSettings(epochs=2)).fit(frame)

import dataclasses
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from counted_steps import Ends
from torch import nn

from fieldwise import AFM, DAT, LR, ConfigError, FinalNet, IntTower, TrainingError, TrainingSettings
from fieldwise.evaluation import binary_metrics
from fieldwise.models.build import build_network
from fieldwise.scoring.batches import score_batches
from fieldwise.training import schedule as module
from fieldwise.training.callbacks import Callback, OutOfTime
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective, evaluate

BINARY = Objective()


def run(tables, network=None, *, objective=BINARY, seed=0, progress=None, group=None, **settings):
    network = network or build_network(LR(), tables.layout, seed)
    given = TrainingSettings(**{"batch_size": 32, "epochs": 1, "learning_rate": 0.1, **settings})
    result = Training(
        network, tables.train, tables.valid, settings=given, objective=objective, seed=seed, valid_group=group,
        callbacks=() if progress is None else (progress,),
    ).run()  # fmt: skip
    return network, result


def weights(network):
    return {name: p.detach().numpy().copy() for name, p in network.state_dict().items()}


def assert_equal_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def design(table):
    """One-hot rows [N, R] and labels [N]."""
    x = np.zeros((len(table), table.layout.num_rows))
    np.put_along_axis(x, table.ids.astype(np.int64), 1.0, axis=1)
    return x, np.asarray(table.y, dtype=np.float64)


def scripted(monkeypatch, network, values, monitor="auc", also=None):
    """Evaluation gives `values` in turn; returns the list of the weights that each evaluation saw."""
    seen = []

    def scripted(net, table, objective, group=None, *, loss=False, scores=None):
        seen.append(weights(net))
        if also:
            also(len(seen))
        return {monitor: values[len(seen) - 1]}

    monkeypatch.setattr(module, "evaluate", scripted)
    return seen


# One step against the formula


def lr_gradient(tables, l2=0.0):
    x, y = design(tables.train)
    error = (0.5 - y) / len(y)  # LR starts at zero: every probability is a half
    return x.T @ error, error.sum()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_one_step_is_the_formula(tables, optimizer):
    network, _ = run(
        tables, optimizer=optimizer, batch_size=len(tables.train), adagrad_accumulator=0.1
    )
    rate = 0.1
    for g, parameter in zip(
        lr_gradient(tables),
        (network.first_order.embedding.weight, network.first_order.bias),
        strict=True,
    ):
        g = np.asarray(g)
        expected = {
            "sgd": -rate * g,
            "adagrad": -rate * g / (np.sqrt(0.1 + g**2) + 1e-10),
            # After the bias corrections of step 1 the moments are g and g squared (Kingma & Ba,
            # 2015, algorithm 1).
            "adam": -rate * g / (np.sqrt(g**2) + 1e-8),
        }[optimizer]
        result = parameter.detach().numpy().ravel()
        # below, the sign of g, and with it Adam's step, is a matter of rounding
        clear = np.abs(g.ravel()) > 1e-6
        assert clear.any()
        np.testing.assert_allclose(result[clear], expected.ravel()[clear], rtol=1e-4)


def test_l2_over_two_steps(tables):
    rate, strength = 0.1, 0.5
    rows = len(tables.train)
    network, _ = run(
        tables, optimizer="sgd", batch_size=rows, epochs=2, plateau_factor=1.0,
        l2={"first_order.embedding.*": strength}, patience=9, monitor="logloss",
    )  # fmt: skip
    x, y = design(tables.train)
    w, w0 = np.zeros(x.shape[1]), 0.0
    for _ in range(2):
        error = (1 / (1 + np.exp(-(x @ w + w0))) - y) / rows
        w, w0 = w - rate * (x.T @ error + strength * w), w0 - rate * error.sum()
    np.testing.assert_allclose(
        network.first_order.embedding.weight.detach().numpy().ravel(), w, rtol=1e-4, atol=1e-7
    )
    assert network.first_order.bias.item() == pytest.approx(w0, rel=1e-4, abs=1e-7)


def test_clip_norm_scales_the_whole_gradient(tables):
    network, _ = run(tables, optimizer="sgd", batch_size=len(tables.train), clip_norm=0.01)
    g, g0 = lr_gradient(tables)
    norm = math.sqrt((g**2).sum() + g0**2)
    assert norm > 0.01
    result = network.first_order.embedding.weight.detach().numpy().ravel()
    np.testing.assert_allclose(result, -0.1 * g * 0.01 / norm, rtol=1e-3, atol=1e-9)


def test_regression_steps_on_squared_error_and_clips_predictions_in_metrics(tables):
    regression = {"objective": Objective(task="regression"), "learning_rate": 0.01}
    network, result = run(tables, optimizer="sgd", batch_size=len(tables.train), **regression)
    x, y = design(tables.train)
    expected = -0.01 * (x.T @ (2 * (0 - y)) / len(y))
    np.testing.assert_allclose(
        network.first_order.embedding.weight.detach().numpy().ravel(), expected, rtol=1e-5
    )
    assert result.monitor == "rmse"
    clipped = Objective(task="regression", prediction_range=(0.0, 1.0))
    assert clipped.metrics(np.array([1.0, 0.0]), np.array([7.0, -7.0]))["rmse"] == 0.0


# Evaluations, plateau, early stopping


def test_early_stopping_restores_the_weights_of_the_best_evaluation(tables, monkeypatch):
    network = build_network(LR(), tables.layout, 0)
    seen = scripted(monkeypatch, network, [0.6, 0.8, 0.7, 0.8, 0.79, 0.9])
    _, result = run(tables, network, epochs=9, patience=3)
    assert result.stopped == "patience"
    assert (result.epochs, result.best.epoch, len(result.evaluations)) == (5, 2.0, 5)
    assert_equal_weights(weights(network), seen[1])
    assert not network.training
    assert any(not np.array_equal(seen[1][n], seen[4][n]) for n in seen[1])


def test_the_learning_rate_drops_on_a_plateau(tables, monkeypatch):
    network = build_network(LR(), tables.layout, 0)
    scripted(monkeypatch, network, [0.6, 0.5, 0.5, 0.5, 0.5, 0.7, 0.5, 0.5])
    _, result = run(tables, network, epochs=8, patience=9, plateau_patience=2, plateau_factor=0.5)
    rates = [one.learning_rate for one in result.evaluations]
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025, 0.025])


def test_evaluations_are_spaced_evenly_within_an_epoch(tables):
    # 120 rows: 8 steps
    _, result = run(tables, epochs=2, batch_size=15, evaluations_per_epoch=4, patience=99)
    assert [one.epoch for one in result.evaluations] == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
    # which do not divide the steps: the nearest ones
    _, result = run(tables, batch_size=15, evaluations_per_epoch=3)
    assert [one.epoch for one in result.evaluations] == [3 / 8, 5 / 8, 1.0]
    _, result = run(tables, batch_size=60, evaluations_per_epoch=5)  # more than there are steps
    assert [one.epoch for one in result.evaluations] == [0.5, 1.0]


def test_train_mode_in_every_step_and_evaluation_mode_in_every_evaluation(tables):
    network = build_network(AFM(embedding_dim=4, attention_dim=2, dropout=0.5), tables.layout, 0)
    modes = []
    network.register_forward_hook(
        lambda net, *_: modes.append((net.training, torch.is_grad_enabled()))
    )
    network.eval()
    # an evaluation after each step
    run(tables, network, epochs=3, batch_size=60, evaluations_per_epoch=2, patience=9)
    assert modes == [(True, True), (False, False)] * 6
    assert not network.training


# Seeds


def test_the_same_seed_gives_equal_weights_to_the_bit_and_another_seed_others(tables):
    def train(seed):
        network = build_network(
            AFM(embedding_dim=4, attention_dim=2, dropout=0.3), tables.layout, seed
        )
        return weights(run(tables, network, seed=seed, epochs=2, batch_size=16)[0])

    first = train(1)
    assert_equal_weights(train(1), first)
    other = train(2)
    assert any(not np.array_equal(other[name], value) for name, value in first.items())


@pytest.mark.parametrize("what", ["order", "dropout"])
def test_the_seed_alone_changes_order_and_dropout(tables, what):
    """Dropout: on rows that are all the same, whose order does not matter."""
    model = LR() if what == "order" else AFM(embedding_dim=4, attention_dim=2, dropout=0.5)
    alike = SimpleNamespace(
        layout=tables.layout, train=tables.train.take(np.zeros(120, np.int64)), valid=tables.valid
    )

    def train(seed):
        network = build_network(model, tables.layout, 0)  # equal starting weights
        return weights(
            run(tables if what == "order" else alike, network, seed=seed, batch_size=16)[0]
        )

    assert any(
        not np.array_equal(a, b) for a, b in zip(train(1).values(), train(2).values(), strict=True)
    )


def test_the_global_random_state_is_untouched(tables):
    torch.manual_seed(5)
    before = torch.get_rng_state().clone()
    network = build_network(AFM(embedding_dim=4, attention_dim=2, dropout=0.3), tables.layout, 3)
    run(tables, network, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_each_epoch_sees_every_row_once_in_another_order(tables, monkeypatch):
    seen, kind = [], type(tables.train)
    several, one = kind.batches, kind.batch

    def batches(self, size, *, order=None):
        seen.extend([] if order is None else order.tolist())
        return several(self, size, order=order)

    def batch(self, rows):
        seen.extend([] if isinstance(rows, slice) else rows.tolist())
        return one(self, rows)

    monkeypatch.setattr(kind, "batches", batches)
    monkeypatch.setattr(kind, "batch", batch)
    run(tables, epochs=2)
    rows = len(tables.train)
    assert [sorted(seen[:rows]), sorted(seen[rows:])] == [list(range(rows))] * 2
    assert seen[:rows] != seen[rows:]


# What can go wrong


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_loss_that_is_not_finite_is_one_sentence(tables):
    diverging = {
        "objective": Objective(task="regression"),
        "optimizer": "sgd",
        "learning_rate": 1e20,
    }
    sentence = r"must stay finite, but it is (inf|nan) in epoch \d+: lower learning_rate"
    with pytest.raises(TrainingError, match=sentence) as e:
        run(tables, epochs=5, batch_size=16, **diverging)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("error", "stopped"), [(KeyboardInterrupt, "interrupted"), (OutOfTime, "time")]
)
def test_ctrl_c_or_a_time_limit_within_a_later_epoch_keeps_the_best_so_far(
    tables, monkeypatch, error, stopped
):
    network = build_network(LR(), tables.layout, 0)
    seen = scripted(monkeypatch, network, [0.6, 0.8, 0.7])
    progress = Ends(step=3 * 4 + 2, how=error)  # 4 steps an epoch: in the fourth
    _, result = run(tables, network, epochs=9, progress=progress, patience=9)
    assert result.stopped == stopped
    assert (result.epochs, result.best.epoch) == (4, 2.0)
    assert_equal_weights(weights(network), seen[1])
    assert progress.closed
    assert not network.training


def test_ctrl_c_before_the_first_evaluation_evaluates_what_there_is(tables):
    progress = Ends(step=3)
    network, result = run(tables, progress=progress, epochs=9)
    assert result.stopped == "interrupted"
    assert (result.epochs, result.best.epoch) == (1, 0.75)
    assert result.best.metrics == pytest.approx(evaluate(network, tables.valid, BINARY))
    assert result.seconds_per_epoch is None


class Sleeps(Callback):
    """Each step takes at least so long."""

    def __init__(self, seconds):
        self.seconds = seconds

    def on_step(self, step):
        time.sleep(self.seconds)


@pytest.mark.parametrize(("values", "epochs"), [([0.8, 0.7], 1), ([0.8, 0.9, 0.7], 2)])
def test_the_time_of_a_whole_epoch_that_patience_ends_counts(tables, monkeypatch, values, epochs):
    network = build_network(LR(), tables.layout, 0)
    scripted(monkeypatch, network, values)
    settings = {"epochs": 9, "patience": 1, "evaluations_per_epoch": 2}
    _, result = run(tables, network, progress=Sleeps(0.01), **settings)
    assert (result.stopped, result.epochs) == ("patience", epochs)
    assert result.seconds_per_epoch >= 4 * 0.01  # of 4 steps: the half of a second epoch is none


def test_ctrl_c_during_an_evaluation_counts_that_evaluation(tables):
    _, result = run(tables, progress=Ends(evaluation=1), epochs=9)
    assert (result.stopped, result.epochs, len(result.evaluations)) == ("interrupted", 1, 1)


def test_a_monitor_that_does_not_fit_is_refused(tables, subtests):
    for objective, monitor, sentence in [
        (
            BINARY,
            "rmse",
            "for a binary label, found 'rmse'",
        ),
        (
            Objective(task="regression"),
            "auc",
            "monitor must be one of rmse, mae, ndcg, loss for a regression label",
        ),
        (BINARY, "gauc", "needs groups: set user or group"),
    ]:
        with subtests.test(monitor=monitor), pytest.raises(ConfigError, match=sentence):
            run(tables, objective=objective, monitor=monitor)


def test_group_auc_can_decide(tables):
    group = np.arange(len(tables.valid)) % 3
    network, result = run(tables, monitor="gauc", group=group)
    scores = score_batches(network, tables.valid.batches(1000))
    assert result.monitor == "gauc"
    assert result.best.metrics["gauc"] == pytest.approx(
        binary_metrics(tables.valid.y.astype(np.float64), scores, group=group)["gauc"]
    )


def test_rows_without_targets_are_refused(tables):
    with pytest.raises(ConfigError, match="needs targets"):
        evaluate(
            build_network(LR(), tables.layout, 0), dataclasses.replace(tables.valid, y=None), BINARY
        )


# Scoring


def test_scores_come_in_order_and_the_mode_is_left_as_it_was(tables):
    network = build_network(
        AFM(embedding_dim=4, attention_dim=2, dropout=0.9), tables.layout, 0
    ).train()
    scores = score_batches(network, tables.valid.batches(7))
    assert network.training
    assert scores.dtype == np.float64
    network.eval()
    whole, _ = tables.valid.batch(slice(0, len(tables.valid)))
    np.testing.assert_allclose(scores, network(whole).detach().numpy(), rtol=1e-5, atol=1e-7)
    assert score_batches(network, []).shape == (0,)


def test_the_mode_is_restored_after_an_error_too():
    class Failing(nn.Module):
        def forward(self, batch):
            raise RuntimeError("boom")

    network = Failing().train()
    with pytest.raises(RuntimeError, match="boom"):
        score_batches(network, [(None, None)])
    assert network.training


def test_ctrl_c_while_weights_are_copied_keeps_evaluation_and_weights_together(tables, monkeypatch):
    network = build_network(LR(), tables.layout, 0)
    seen = scripted(monkeypatch, network, [0.6, 0.9])
    copies = []
    state_dict = network.state_dict

    def interrupted():
        copies.append(1)
        # the scripted evaluation reads the state, then `fit` copies it: twice each
        if len(copies) == 4:
            raise KeyboardInterrupt
        return state_dict()

    monkeypatch.setattr(network, "state_dict", interrupted)
    _, result = run(tables, network, epochs=3)
    monkeypatch.undo()
    assert (result.stopped, result.best.metrics["auc"]) == ("interrupted", 0.6)
    assert_equal_weights(weights(network), seen[0])


def test_scores_that_diverged_are_one_sentence(tables):
    with pytest.raises(TrainingError, match=r"(scores|loss) must stay finite.*lower learning_rate"):
        run(tables, learning_rate=1e38, batch_size=len(tables.train), epochs=3, optimizer="sgd")


def test_batch_normalization_refuses_batches_of_one_row(tables):
    with pytest.raises(
        ConfigError,
        match="batch normalization needs batches of at least 2 rows, found batch_size 1",
    ):
        run(tables, build_network(IntTower(), tables.layout, 0), batch_size=1)


def test_a_loss_that_needs_positives_refuses_a_regression(tables, subtests):
    for settings, ask in [
        (IntTower(hidden=(3,), user_heads=1, item_heads=1), "model.cir_weight = 0"),
        (DAT(hidden=(3,)), "model.mimic_user_weight = 0 and model.mimic_item_weight = 0"),
        (FinalNet(block1_hidden=(4,), block2_hidden=(4,)), "model.distillation_weight = 0"),
    ]:
        with (
            subtests.test(ask=ask),
            pytest.raises(ConfigError, match=f"but a label is a regression: set {ask}$"),
        ):
            run(tables, settings.build(tables.layout), objective=Objective(task="regression"))


def test_denormal_numbers_count_as_zero_while_it_trains_and_not_after(tables, monkeypatch):
    def kept():
        return float(((torch.full((1,), 1e-39) * 0.5).view(torch.int32) != 0).float())

    network, inside = build_network(LR(), tables.layout, 0), []
    scripted(monkeypatch, network, [0.5], also=lambda _: inside.append(kept()))
    run(tables, network)
    assert (inside, kept()) == ([0.0], 1.0)

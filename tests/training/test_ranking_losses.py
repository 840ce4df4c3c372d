"""Losses that rank: by hand, by loops over pairs and lists, by finite differences; bad input; calibration."""

import dataclasses
import math

import numpy as np
import polars as pl
import pytest
import torch
from scipy.special import expit, softmax

from fieldwise import FM, LR, ConfigError, DataError, Label, TrainingSettings
from fieldwise.evaluation.ranking import ndcg_values
from fieldwise.models.build import build_network
from fieldwise.training.callbacks import Callback
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.ranking_losses import RANKING_LOSSES, combined, listwise, pairs, pairwise


def rows(seed=0, *, groups=7, count=40, grades=2):
    """Scores, relevances, groups in any order and weights, float64; one group has no relevant row."""
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, count)
    relevance = rng.integers(0, grades, count).astype(float)
    relevance[group == 0] = 0
    return rng.normal(0, 2, count), relevance, group, rng.gamma(2.0, size=count)


def tensors(*arrays):
    return [torch.from_numpy(np.asarray(array)) for array in arrays]


def pairwise_by_loops(s, r, group, w):
    total = 0.0
    for g in np.unique(group):
        of_pairs, mass = 0.0, 0.0
        for i in np.flatnonzero(group == g):
            for j in np.flatnonzero(group == g):
                if r[i] > r[j]:
                    of_pair = (r[i] - r[j]) * w[i] * w[j]
                    of_pairs += of_pair * math.log1p(math.exp(s[j] - s[i]))
                    mass += of_pair
        if mass:
            total += w[group == g].sum() * of_pairs / mass
    return total / len(s)


def listwise_by_loops(s, r, group, w):
    total = 0.0
    for i in range(len(s)):
        of_group = group == group[i]
        total -= w[i] * r[i] * (s[i] - math.log((w[of_group] * np.exp(s[of_group])).sum()))
    return total / len(s)


def combined_by_loops(s, y, group, w):
    p = expit(s)
    logloss = -(w * np.where(y == 1, np.log(p), np.log1p(-p))).mean()
    return logloss + listwise_by_loops(np.log(p), y, group, w)


BY_LOOPS = {
    "pairwise": pairwise_by_loops,
    "listwise": listwise_by_loops,
    "combined": combined_by_loops,
}


def test_two_rows_by_hand():
    s, r, g = tensors([math.log(3), 0.0], [1.0, 0.0], [0, 0])
    # the positive has 3 times the other's exp: a share of 3/4 of the pair and of the list, over 2
    # rows; sigmoids 3/4 and 1/2: log 4/3 and log 2, and of the list 3/5
    assert pairwise(s, r, g).item() == pytest.approx(math.log(4 / 3))
    assert listwise(s, r, g).item() == pytest.approx(math.log(4 / 3) / 2)
    expected = (math.log(4 / 3) + math.log(2) + math.log(5 / 3)) / 2
    assert combined(s, r, g).item() == pytest.approx(expected)


@pytest.mark.parametrize("loss", RANKING_LOSSES)
def test_values_equal_those_of_loops_over_rows(loss, subtests):
    for seed in range(4):
        for grades in (2,) if loss == "combined" else (2, 5):
            s, r, group, w = rows(seed, grades=grades)
            for weight in (None, w):
                expected = BY_LOOPS[loss](s, r, group, np.ones(len(s)) if weight is None else w)
                given = tensors(s, r, group) + ([] if weight is None else tensors(w))
                with subtests.test(seed=seed, grades=grades, weighted=weight is not None):
                    assert RANKING_LOSSES[loss](*given).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("loss", RANKING_LOSSES)
def test_gradients_equal_finite_differences(loss):
    s, r, group, w = tensors(*rows(3))
    s.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: RANKING_LOSSES[loss](z, r, group, w), s)


@pytest.mark.parametrize("loss", RANKING_LOSSES)
def test_a_row_of_weight_two_is_the_row_twice(loss):
    s, r, group, _ = rows(5, count=12, groups=3)
    s, r, group = tensors(s, r, group)
    w = torch.ones(12, dtype=torch.float64)
    w[2] = 2
    twice = torch.cat([torch.arange(12), torch.tensor([2])])
    z = s.clone().requires_grad_()
    value = RANKING_LOSSES[loss](z, r, group, w) * 12
    repeated = s.clone().requires_grad_()
    expected = RANKING_LOSSES[loss](repeated[twice], r[twice], group[twice]) * 13
    assert value.item() == pytest.approx(expected.item(), rel=1e-12)
    value.backward(), expected.backward()
    np.testing.assert_allclose(z.grad, repeated.grad, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("loss", RANKING_LOSSES)
def test_a_row_of_weight_zero_is_no_row(loss):
    s, r, group, w = tensors(*rows(6))
    s[0] = 900.0
    w[0] = 0
    w[group == 1] = 0
    z = s.clone().requires_grad_()
    kept = w > 0
    value = RANKING_LOSSES[loss](z, r, group, w) * len(s)
    expected = RANKING_LOSSES[loss](s[kept], r[kept], group[kept], w[kept]) * int(kept.sum())
    assert value.item() == pytest.approx(expected.item(), rel=1e-10)
    value.backward()
    assert z.grad[kept].isfinite().all()
    assert not z.grad[~kept].any()


@pytest.mark.parametrize("loss", RANKING_LOSSES)
def test_no_row_far_scores_and_a_row_alone(loss):
    none = torch.zeros(0)
    assert RANKING_LOSSES[loss](none, none, none.long()).item() == 0
    far = torch.tensor([-500.0, 500.0], requires_grad=True)
    value = RANKING_LOSSES[loss](far, torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    value.backward()
    assert math.isfinite(value.item())
    assert far.grad.isfinite().all()
    assert far.grad[0] < 0
    if loss != "combined":
        alone = torch.tensor([3.0]), torch.tensor([1.0]), torch.tensor([0])
        assert RANKING_LOSSES[loss](*alone).item() == 0


def test_groups_without_different_labels_have_no_pairs():
    better, worse = pairs(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0, 0, 1]))
    assert better.tolist() == worse.tolist() == []


def test_the_parts_of_whole_groups_add_up():
    """As processes that share a batch compute them: each part's loss by its share of the rows."""
    s, r, group, w = tensors(*rows(2))
    first = group < 3
    for loss in RANKING_LOSSES.values():
        parts = [
            loss(s[mine], r[mine], group[mine], w[mine]) * mine.double().mean()
            for mine in (first, ~first)
        ]
        assert sum(parts).item() == pytest.approx(loss(s, r, group, w).item(), rel=1e-12)


def test_the_combined_loss_is_smallest_at_the_true_probabilities():
    """The expectation over independent labels: no scores have a smaller one, while plain softmax has."""
    p = np.array([0.1, 0.3, 0.6, 0.85])
    true = torch.from_numpy(np.log(p / (1 - p)))
    labels = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 4)
    chance = torch.from_numpy(np.prod(np.where(labels == 1, p, 1 - p), axis=1))
    group = torch.zeros(4, dtype=torch.long)

    def expected(loss, z):
        return sum(c * loss(z, y, group) for c, y in zip(chance, labels, strict=True))

    z = true.clone().requires_grad_()
    expected(combined, z).backward()
    np.testing.assert_allclose(z.grad, 0, atol=1e-12)
    z = true.clone().requires_grad_()
    expected(listwise, z).backward()
    assert z.grad.abs().max() > 0.01


# In a training


def trained(tables, loss, *, objective=None, group=None, valid_group=None, **settings):
    given = {"batch_size": 32, "epochs": 2, "learning_rate": 0.05, "loss": loss, **settings}
    network = build_network(LR(), tables.layout, 0)
    training = Training(
        network,
        tables.train,
        tables.valid,
        settings=TrainingSettings(**given),
        objective=objective or Objective(),
        seed=0,
        train_group=tables.train.ids[:, 0] if group is None else group,
        valid_group=tables.valid.ids[:, 0] if valid_group is None else valid_group,
    )
    return network, training


def test_a_step_is_that_of_the_batch_s_formula(tables):
    """One step of SGD over all rows, against the gradient of NumPy's softmax."""
    network, training = trained(
        tables, "listwise", batch_size=999, epochs=1, optimizer="sgd", learning_rate=1.0
    )
    before = network.first_order.embedding.weight.detach().numpy()[:, 0].copy()
    training.run()
    ids, y = tables.train.ids, tables.train.y
    scores = before[ids].sum(1)
    gradient = np.zeros_like(before)
    for g in np.unique(ids[:, 0]):
        mine = ids[:, 0] == g
        d = softmax(scores[mine]) * y[mine].sum() - y[mine]
        np.add.at(gradient, ids[mine], d[:, None] / len(ids))
    after = network.first_order.embedding.weight.detach().numpy()[:, 0]
    np.testing.assert_allclose(after - before, -gradient, atol=1e-6)


def test_settings_and_rows_that_cannot_be_ranked(tables, subtests):
    regression = dataclasses.replace(Objective(), task="regression")
    graded = Objective.of(Label("stars", task="regression", range=(0, 5)))
    two = Objective.of(Label("a"), Label("b"))
    rows = len(tables.train)
    cases = [
        (ConfigError, "ranks by one label, found 2", {"objective": two}),
        (ConfigError, "a window has 50 of 120 rows.*shuffle_rows = 120", {"shuffle_rows": 50}),
        (DataError, "each of the 120 groups has one label only", {"group": np.arange(rows)}),
        (ConfigError, "the label's range would cut off", {"objective": graded}),
        (ConfigError, "monitor = 'logloss' looks at the size.*'gauc'", {"monitor": "logloss"}),
    ]
    for kind, sentence, given in cases:
        with subtests.test(sentence), pytest.raises(kind, match=sentence):
            trained(tables, "listwise", **given)[1].run()
    with pytest.raises(ConfigError, match="keeps probabilities, which a regression label has not"):
        trained(tables, "combined", objective=regression)[1].run()
    ungrouped = dataclasses.replace(trained(tables, "pairwise")[1], train_group=None)
    with pytest.raises(ConfigError, match="the schema names none: set its group or user"):
        ungrouped.run()
    with pytest.raises(ConfigError, match="solves LR by logloss, found loss = 'combined'"):
        TrainingSettings(loss="combined", optimizer="lbfgs")
    with pytest.raises(ConfigError, match="loss = 'pairwise' gives scores that are none"):
        TrainingSettings(loss="pairwise", mean_with_lr=True)


def test_grades_are_whole_numbers(tables):
    y = tables.train.y.copy()
    y[7] = 2.5
    broken = dataclasses.replace(tables.train, y=y)
    changed = dataclasses.replace(
        trained(tables, "listwise", objective=Objective(task="regression"))[1], train=broken
    )
    with pytest.raises(DataError, match=r"whole numbers from 0 to 30, found 2\.5"):
        changed.run()


def test_the_longest_group_of_pairs(tables):
    times = 40  # 4,800 rows
    long = tables.train.take(np.tile(np.arange(len(tables.train)), times))
    _, training = trained(tables, "pairwise", epochs=1, group=np.zeros(len(long), np.int64))
    with pytest.raises(DataError, match=r"at most 4,096 rows, found a group of 4,800: set loss"):
        dataclasses.replace(training, train=long).run()


def test_groups_of_one_class_are_said_with_their_share(tables):
    said = []

    class Listening(Callback):
        def on_start(self, start):
            said.append(start.remark)

    group = tables.train.ids[:, 0].copy()
    positive = np.flatnonzero(tables.train.y == 1)[:3]
    group[positive] = 900 + np.arange(3)
    _, training = trained(tables, "pairwise", group=group)
    training.callbacks = [Listening()]
    training.run()
    groups = [tables.train.y[group == g] for g in np.unique(group)]
    alone = [y for y in groups if y.min() == y.max()]
    count, share = len(alone), sum(map(len, alone)) / len(group)
    assert said[0].startswith(
        f"{count} of {len(groups)} groups ({count / len(groups):.1%}), with {share:.1%} of the rows"
    )
    assert "pairwise learns no order" in said[0]


def test_losses_that_rank_stop_by_the_order_in_groups(tables):
    for loss, monitor in (("pairwise", "gauc"), ("listwise", "gauc"), ("combined", "auc")):
        assert trained(tables, loss)[1].run().monitor == monitor


@pytest.mark.slow
def test_the_combined_loss_is_as_calibrated_as_logloss():
    """Expected calibration error on simulated rows whose true probabilities are known, over seeds."""
    from fieldwise import Categorical, Recommender, Schema, simulate

    fields = (Categorical("user_id", role="user"), Categorical("item_id", role="item"))
    schema = Schema(fields=fields, label=Label("liked"), user="user_id")
    figures = {"logloss": [], "combined": [], "listwise": []}
    for seed in range(4):
        log = simulate(12_000, users=200, items=100, seed=seed)
        for loss, of_loss in figures.items():
            settings = TrainingSettings(loss=loss)
            model = Recommender(schema, FM(embedding_dim=4), training=settings, seed=seed)
            of_loss.append(model.fit(log[:9_000]).evaluate(log[9_000:]))
    ece = {loss: np.array([one["ece"] for one in of_loss]) for loss, of_loss in figures.items()}
    difference = ece["combined"] - ece["logloss"]
    error = difference.std(ddof=1) / math.sqrt(len(difference))
    assert difference.mean() < 3 * error + 0.005, ece
    gauc = {loss: np.mean([one["gauc"] for one in of_loss]) for loss, of_loss in figures.items()}
    assert gauc["combined"] > gauc["logloss"] - 0.01


def test_grades_of_queries_from_the_recommender_on():
    """Planted: the grade follows a number; scores have no unit, so that scale does not matter."""
    from fieldwise import Numeric, Recommender, Schema

    rng = np.random.default_rng(0)
    quality = rng.normal(size=1200)
    query = np.repeat(np.arange(120), 10)
    grade = np.clip(np.round(1.5 + quality + rng.normal(0, 0.3, 1200)), 0, 4)
    table = pl.DataFrame({"quality": quality, "noise": rng.normal(size=1200), "query": query})
    table = table.with_columns(grade=grade)
    label = Label("grade", task="regression")
    schema = Schema(fields=(Numeric("quality"), Numeric("noise")), label=label, group="query")
    for loss in ("pairwise", "listwise"):
        settings = TrainingSettings(loss=loss, epochs=5)
        model = Recommender(schema, LR(), training=settings).fit(
            table[:800], eval_set=table[800:1000]
        )
        assert model.history_.monitor == "ndcg"
        values, _ = ndcg_values(grade[1000:], quality[1000:], query[1000:])
        assert model.evaluate(table[1000:])["ndcg"] == pytest.approx(values.mean(), abs=0.02)
        at_random, _ = ndcg_values(grade[1000:], rng.normal(size=200), query[1000:])
        assert at_random.mean() < values.mean() - 0.1

"""The in-batch softmax of two towers against loops over rows and candidates; what it needs; that it finds items."""

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from fieldwise import DAT, DSSM, FM, ConfigError, IntTower, TrainingSettings
from fieldwise.models.build import build_network
from fieldwise.training.fit import Training
from fieldwise.training.in_batch_softmax import InBatchSoftmax
from fieldwise.training.objective import Objective

TOWERS = {
    "dssm": DSSM(embedding_dim=4, hidden=(8,), output_dim=5),
    "dat": DAT(embedding_dim=4, hidden=(8,), output_dim=5),
    "inttower": IntTower(embedding_dim=4, hidden=(8, 8)),
}


@pytest.mark.parametrize("name", TOWERS)
def test_all_scores_are_those_of_each_pair(tables, name):
    network = build_network(TOWERS[name], tables.layout, 0).eval()
    batch = tables.train.batch(slice(0, 7))[0]
    user, item = network.user(batch), network.item(batch)
    every = network.score_all(user, item)
    for k in range(7):
        one = network.score(user[k].expand_as(user), item)
        torch.testing.assert_close(every[k], one, rtol=1e-5, atol=1e-5)


def test_the_loss_equals_loops_over_rows_and_candidates(tables):
    train = tables.train
    network = build_network(TOWERS["dssm"], tables.layout, 0).eval()
    loss = InBatchSoftmax(network, train)
    batch, y = train.batch(slice(0, 20))
    weight = torch.linspace(0.5, 2, 20)
    torch.manual_seed(3)
    found = loss(batch, batch, y, weight).item()

    user, item = train.ids[:, 0], train.ids[:, 1]
    positive = train.y == 1
    catalogue = np.unique(item)
    last = {i: np.flatnonzero(item == i)[-1] for i in catalogue}
    torch.manual_seed(3)
    drawn = catalogue[torch.randint(len(catalogue), (20,)).numpy()]
    rows = np.flatnonzero(positive[:20])
    candidates = [*item[rows], *drawn]
    total = 0.0
    for k, row in enumerate(rows):
        logits = []
        for j, candidate in enumerate(candidates):
            liked = (positive & (user == user[row]) & (item == candidate)).any()
            if (liked or candidate == item[row]) and j != k:
                continue
            pair = train.batch(torch.tensor([row]))[0]
            other = train.batch(torch.tensor([last[candidate]]))[0]
            with torch.no_grad():
                score = network.score(network.user(pair), network.item(other)).item()
            share = (positive & (item == candidate)).sum() / positive.sum()
            logits.append(score - np.log(len(rows) * share + 20 / len(catalogue)))
            if j == k:
                own = logits[-1]
        total += weight[row].item() * (logsumexp(logits) - own)
    assert found == pytest.approx(total / 20, rel=1e-5)


def test_a_batch_without_positives_has_no_loss(tables):
    network = build_network(TOWERS["dssm"], tables.layout, 0)
    loss = InBatchSoftmax(network, tables.train)
    batch, y = tables.train.batch(slice(0, 5))
    value = loss(batch, batch, torch.zeros_like(y), None)
    value.backward()
    assert value.item() == 0


def trained(tables, model, objective=None, **settings):
    network = build_network(model, tables.layout, 0)
    given = TrainingSettings(
        loss="in_batch_softmax", batch_size=32, epochs=8, patience=8, **settings
    )
    return Training(
        network,
        tables.train,
        tables.valid,
        settings=given,
        objective=objective or Objective(),
        seed=0,
        valid_group=tables.valid.ids[:, 0],
    ).run()


def test_the_label_weighs_the_loss_as_it_does_logloss(tables):
    losses = {}
    for weight in (1.0, 3.0):
        history = trained(tables, TOWERS["dssm"], Objective(weight=weight), learning_rate=1e-9)
        losses[weight] = history.evaluations[0].train_loss
    assert losses[3.0] == pytest.approx(3 * losses[1.0], rel=1e-5)


def test_it_trains_towers_and_refuses_others(tables):
    for model in TOWERS.values():
        history = trained(tables, model, learning_rate=0.01)
        assert history.monitor == "gauc"
        first, *later = [evaluation.train_loss for evaluation in history.evaluations]
        assert min(later) < first
    with pytest.raises(ConfigError, match=r"needs a two-tower model .* found FMNetwork"):
        trained(tables, FM(embedding_dim=4))
    with pytest.raises(ConfigError, match="needs one binary label"):
        trained(tables, TOWERS["dssm"], Objective(task="regression"))

"""Where the output begins, and rare values shown as unknown."""

import numpy as np
import pytest
import torch

from fieldwise import FFM, Batch, IntTower, Layout
from fieldwise.data.table import EncodedTable
from fieldwise.layout import FieldLayout
from fieldwise.models import NETWORKS
from fieldwise.models.build import build_network
from fieldwise.training.initialise import base_score, start_at_base_rate
from fieldwise.training.objective import Objective
from fieldwise.training.oov_dropout import OutOfVocabularyDropout, value_counts

LAYOUT = Layout.of_sizes([3, 4, 5, 6], ["user", "user", "item", "item"])
NONE = (np.zeros((40, 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64))


def table(y, layout: Layout = LAYOUT) -> EncodedTable:
    rng = np.random.default_rng(0)
    ids = np.stack([f.offset + rng.integers(0, f.rows, len(y)) for f in layout.fields], 1).astype(
        np.int32
    )
    return EncodedTable(
        layout, ids, np.zeros((len(y), 0), np.float32), *NONE[1:], np.asarray(y, np.float32)
    )


def test_every_model_starts_at_the_base_rate(subtests):
    for name in [name for name in NETWORKS if name != "din"]:
        with subtests.test(name=name):
            settings = {"ffm": FFM(first_order=True), "inttower": IntTower(output_bias=True)}.get(
                name
            )
            rows = table([1.0] * 36 + [0.0] * 4)
            network = build_network(settings or NETWORKS[name](), LAYOUT, 0)
            batch, _ = rows.batch(slice(0, 40))
            network.eval()
            before = network(batch)
            assert start_at_base_rate(network, rows, Objective())
            expected = np.log(36.5 / 4.5)
            assert torch.allclose(
                network(batch) - before, torch.full((40,), expected, dtype=torch.float32), atol=1e-4
            )


@pytest.mark.parametrize("name", ["ffm", "inttower"])  # whose papers have no bias
def test_a_model_without_an_output_bias_stays_as_it_is(name):
    rows = table([1.0] * 36 + [0.0] * 4)
    network = build_network(NETWORKS[name](), LAYOUT, 0)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    assert start_at_base_rate(network, rows, Objective()) == []
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_a_regression_starts_at_its_mean_and_several_labels_each_at_theirs():
    y = np.stack([np.r_[np.ones(10), np.zeros(30)], np.full(40, 7.0)], 1)
    network = build_network(NETWORKS["fm"](), LAYOUT, 0, labels=2)
    objective = Objective(more={"minutes": Objective(task="regression")})
    rows = table(y)
    batch, _ = rows.batch(slice(0, 5))
    before = network(batch)
    names = start_at_base_rate(network, rows, objective)
    assert names == ["heads.0.first_order.bias", "heads.1.first_order.bias"]
    change = (network(batch) - before)[0].tolist()
    assert change == pytest.approx([np.log(10.5 / 30.5), 7.0], abs=1e-4)


def test_one_class_gives_a_finite_start():
    assert np.isfinite(base_score(np.ones(10), binary=True))


def test_two_branches_share_the_start():
    network = build_network(NETWORKS["finalnet"](), LAYOUT, 0)
    assert start_at_base_rate(network, table(np.zeros(40)), Objective()) == [
        "head1.bias",
        "head2.bias",
    ]


def unknown_layout() -> Layout:
    fields = [
        FieldLayout(name="u", kind="id", role="user", offset=0, rows=6, unknown=True),
        FieldLayout(name="bin", kind="id", role="context", offset=6, rows=4),
    ]
    return Layout(tuple(fields))


def unknown_rows(ids) -> EncodedTable:
    ids = np.array(ids, np.int32)
    none = np.zeros((len(ids), 0), np.float32), np.zeros(0, np.int32), np.zeros(1, np.int64)
    return EncodedTable(unknown_layout(), ids, *none)


def test_values_are_replaced_by_unknown_by_their_counts_and_in_other_fields_never():
    # Value 2 of `u` is seen 99 times, value 3 once: with strength 1 unknown in 1 of 100 and 1 of 2
    # draws.
    rows = unknown_rows([[2, 7]] * 99 + [[3, 8]])
    show = OutOfVocabularyDropout(rows.layout, value_counts(rows), 1.0, seed=3)
    assert show.probability[6:].tolist() == [0.0] * 4
    assert show.probability[2:4].tolist() == pytest.approx([1 / 100, 1 / 2])
    many = Batch.of_ids(torch.tensor([[2, 7], [3, 8]]).repeat(20_000, 1))
    shown = show(many).ids
    assert torch.equal(shown[:, 1], many.ids[:, 1])
    assert set(shown[:, 0].tolist()) == {1, 2, 3}
    hidden = (shown[:, 0] == 1).view(-1, 2).float().mean(0).tolist()
    assert hidden == pytest.approx([0.01, 0.5], abs=0.012)
    left = show.expected(value_counts(rows))
    assert left[:4].tolist() == pytest.approx([0.0, 0.99 + 0.5, 99 - 0.99, 0.5])
    assert left[6:].tolist() == value_counts(rows)[6:].tolist()


def test_the_draws_follow_the_seed():
    rows = unknown_rows([[2, 7], [3, 8], [4, 9]])
    batch, _ = rows.batch(slice(0, 3))

    def draws(seed):
        show = OutOfVocabularyDropout(rows.layout, value_counts(rows), 1.0, seed)
        return torch.stack([show(batch).ids for _ in range(30)])

    assert torch.equal(draws(5), draws(5))
    assert not torch.equal(draws(5), draws(6))


def test_rows_with_weights_count_by_them():
    # Three positives of weight 1 and one negative of weight 3: half of the weight is positive.
    assert (
        base_score(np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 3.0]), binary=True)
        == 0.0
    )

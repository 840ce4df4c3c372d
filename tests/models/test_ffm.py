import numpy as np
import pytest
import torch
from parity.lab import make_layout

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import FFM, FM, parameter_count


def test_a_case_worked_by_hand(lab):
    """Each field has one row, with a vector toward the first and one toward the second of the other two fields."""
    layout = Layout.of_sizes([1, 1, 1])
    network = FFM(embedding_dim=2).build(layout)
    network.embedding.weight.data = torch.tensor(
        [
            [1.0, 2.0, 0.0, 3.0],  # field 0 toward 1, toward 2
            [5.0, -1.0, 2.0, 2.0],  # field 1 toward 0, toward 2
            [4.0, 1.0, -3.0, 1.0],  # field 2 toward 0, toward 1
        ]
    )
    pairs = (1 * 5 + 2 * -1) + (0 * 4 + 3 * 1) + (2 * -3 + 2 * 1)
    assert network(lab.batch(layout, 1)).item() == pairs


def libffm(table, nodes, normalize):
    """The logit as LIBFFM has it, from nodes (field, feature, value) and a table [features, F, D]."""
    scale = 1 / sum(value**2 for _, _, value in nodes) if normalize else 1.0
    out = 0.0
    for n, (f1, j1, v1) in enumerate(nodes):
        for f2, j2, v2 in nodes[n + 1 :]:
            out += (table[j1, f2] @ table[j2, f1]) * v1 * v2 * scale
    return out


def ours(table, layout, dim):
    """LIBFFM's table without each field's vectors toward itself."""
    out = np.zeros((layout.num_rows, (layout.num_fields - 1) * dim))
    for i, f in enumerate(layout.fields):
        rows = slice(f.offset, f.offset + f.rows)
        out[rows] = np.delete(table[rows], i, axis=1).reshape(f.rows, -1)
    return torch.from_numpy(out)


@pytest.mark.parametrize("name", ["categorical", "numeric"])
def test_is_libffm_without_its_unused_vectors_and_its_scale(lab, name):
    """NOTE[DIFF]: of F vectors a row, one is never read; categories alone are scaled by 1 / F there."""
    layout, dim, rng = lab.layouts[name], 3, np.random.default_rng(0)
    fields, batch = layout.num_fields, lab.batch(layout, 5)
    table = rng.normal(size=(layout.num_rows, fields, dim))
    network = FFM(embedding_dim=dim).build(layout).double()
    network.embedding.weight.data = ours(table, layout, dim)
    values = batch.values.numpy() if name == "numeric" else np.ones((5, fields))
    rows = [[(f, int(batch.ids[b, f]), values[b, f]) for f in range(fields)] for b in range(5)]
    logit = network(batch).detach().numpy()
    np.testing.assert_allclose(logit, [libffm(table, nodes, False) for nodes in rows], atol=1e-12)
    for i, f in enumerate(layout.fields):
        table[f.offset : f.offset + f.rows, i] = 1e6
    np.testing.assert_allclose(logit, [libffm(table, nodes, False) for nodes in rows], atol=1e-12)
    if name == "categorical":
        np.testing.assert_allclose(logit / fields, [libffm(table, nodes, True) for nodes in rows], atol=1e-12)


def test_values_of_a_bag_do_not_meet_one_another(lab):
    """NOTE[DIFF]: a summed bag of two values adds up; LIBFFM adds the two values' product with each other."""
    layout = make_layout(("bag", "item", 3, "sum"), ("id", "user", 2))
    network = lab.randomized(FFM(embedding_dim=2).build(layout))
    table = network.embedding.weight.detach().numpy()

    def logit(*values):
        batch = lab.batch(layout, 1)._replace(
            ids=torch.tensor([[3]]),
            bag_ids=torch.tensor(values),
            bag_segments=torch.zeros(len(values), dtype=torch.int64),
            bag_weights=torch.ones(len(values), dtype=torch.float64),
        )
        return network(batch).item()

    assert logit(0, 2) == pytest.approx(logit(0) + logit(2))
    own = np.stack([table, table], 1)  # LIBFFM's, with some vector toward the own field
    assert libffm(own, [(0, 0, 1.0), (0, 2, 1.0), (1, 3, 1.0)], False) != pytest.approx(logit(0, 2))


def test_a_history_shares_the_vectors_of_its_items(lab):
    """NOTE[DIFF]: the same toward third fields; between the two, both sides take the vector toward the history."""
    layout = lab.layouts["history"]  # user, item, history of items, context
    network = lab.randomized(FFM(embedding_dim=1).build(layout))
    w = network.embedding.weight.detach().numpy()
    user, item, past, context = 2, 4 + 1, 4 + 5, 10 + 2
    batch = lab.batch(layout, 1)._replace(
        ids=torch.tensor([[user, item, context]]),
        bag_ids=torch.tensor([past]),
        bag_segments=torch.tensor([0]),
        bag_weights=torch.ones(1, dtype=torch.float64),
    )
    # Columns of a user: toward item, history, context; of an item: toward user, history, context.
    expected = (
        w[user, 0] * w[item, 0]
        + w[user, 1] * w[past, 0]
        + w[user, 2] * w[context, 0]
        + w[item, 1] * w[past, 1]
        + w[item, 2] * w[context, 1]
        + w[past, 2] * w[context, 2]
    )
    assert network(batch).item() == pytest.approx(expected)


def test_two_histories_of_one_field_take_the_vectors_toward_each_other(lab):
    """Their values are rows of one field, and still each side's vector is the one toward the other side."""
    layout = make_layout(("id", "item", 5), ("history", "user", 0), ("history", "user", 0))
    network = lab.randomized(FFM(embedding_dim=1).build(layout))
    w = network.embedding.weight.detach().numpy()
    item, seen, liked = 4, 1, 3
    batch = lab.batch(layout, 1)._replace(
        ids=torch.tensor([[item]]),
        bag_ids=torch.tensor([seen, liked]),
        bag_segments=torch.tensor([0, 1]),
        bag_weights=torch.ones(2, dtype=torch.float64),
    )
    # Columns of an item: toward the first history, toward the second.
    expected = w[item, 0] * w[seen, 0] + w[item, 1] * w[liked, 1] + w[seen, 1] * w[liked, 0]
    assert network(batch).item() == pytest.approx(expected)


def test_equal_vectors_toward_all_fields_are_an_fm(lab, layout):
    fm, batch = lab.randomized(FM(embedding_dim=3).build(layout)), lab.batch(layout, 6)
    ffm = FFM(embedding_dim=3, first_order=True).build(layout).double()
    state = fm.state_dict()
    ffm.load_state_dict(state | {"embedding.weight": state["embedding.weight"].repeat(1, layout.num_fields - 1)})
    torch.testing.assert_close(ffm(batch), fm(batch), atol=1e-12, rtol=1e-12)


def test_starts_from_a_normal_distribution():
    """NOTE[DIFF]: LIBFFM's first numbers are all positive."""
    torch.manual_seed(0)
    weight = FFM(embedding_std=0.2).build(Layout.of_sizes([1000, 1000])).embedding.weight
    assert weight.mean().abs() < 0.01
    assert weight.std().item() == pytest.approx(0.2, rel=0.05)


def test_the_plain_form_has_the_table_alone():
    network = FFM(embedding_dim=6).build(Layout.of_sizes([30, 12, 8]))
    assert [name for name, _ in network.named_parameters()] == ["embedding.weight"]
    assert parameter_count(network) == 50 * 2 * 6


def test_pairs_need_two_fields():
    with pytest.raises(ConfigError, match="FFM multiplies pairs of fields and needs at least 2 fields, found 1"):
        FFM().build(Layout.of_sizes([3]))


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"embedding_std": -1.0}, "embedding_std must be above 0 and finite, found -1.0"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            FFM(**settings)

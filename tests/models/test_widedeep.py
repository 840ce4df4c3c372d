import numpy as np
import pytest
import torch
from parity import lab as laboratory
from parity.reference import widedeep as reference

from fieldwise.config import parse, to_plain
from fieldwise.errors import ConfigError
from fieldwise.layout import Batch, Layout
from fieldwise.models import WideDeep, parameter_count
from fieldwise.models.widedeep import CrossProducts

SMALL = {"embedding_dim": 3, "hidden": (6, 5)}
CROSSED = [
    ("categorical", (("f0", "f3"), ("f2", "f1"), ("f3", "f2"))),
    ("mixed", (("f4", "f1"),)),
    ("history", (("f0", "f1"), ("f3", "f0"))),
]


def test_one_row_by_hand_with_a_number(lab):
    """NOTE[DIFF]: a number is its value times its field's vector, in the wide part and in the deep part."""
    layout = laboratory.make_layout(("id", "user", 1), ("value", "item", 1))
    network = WideDeep(embedding_dim=2, hidden=(2,)).build(layout).double()
    state = network.state_dict()
    for name, value in {
        "embedding.weight": [[1.0, 2.0], [0.5, -1.0]],
        "first_order.embedding.weight": [[0.1], [0.2]],
        "mlp.layers.0.0.weight": [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]],
        "mlp.layers.0.0.bias": [-1.0, 0.5],
        "mlp.output.weight": [[2.0, 3.0]],
        "mlp.output.bias": [0.25],
    }.items():
        state[name].copy_(torch.tensor(value))
    batch = lab.batch(layout, 1)._replace(values=torch.tensor([[3.0]], dtype=torch.float64))
    # Wide 0.1 + 3 * 0.2; stacked (1, 2, 1.5, -3); hidden relu(1 + 1.5 - 1, 2 - 3 + 0.5) = (1.5, 0); deep 3.25.
    assert network(batch).item() == pytest.approx(0.7 + 3.25)


def ids(rows):
    return Batch.of_ids(torch.tensor(rows))


@pytest.mark.parametrize(
    ("pair", "expected"), [(("field_0", "field_2"), [11.0, 20.0]), (("field_2", "field_0"), [12.0, 11.0])]
)
def test_crosses_by_hand(pair, expected):
    """Fields of 2 and 3 categories, with one of 4 between: 6 weights, in the order of the pair."""
    network = WideDeep(**SMALL, crosses=(pair,)).build(Layout.of_sizes([2, 4, 3]))
    network.mlp.output.weight.data.zero_()
    network.crosses.weight.data[:, 0] = torch.tensor([10.0, 11.0, 12.0, 20.0, 21.0, 22.0])
    # Categories (0, 1) and (1, 0): entries 1 and 3 of a 2 x 3 matrix, entries 2 and 1 of a 3 x 2 matrix.
    assert network(ids([[0, 2, 7], [1, 5, 6]])).tolist() == expected


def test_crosses_are_the_equations(subtests, lab):
    for name, crosses in CROSSED:
        with subtests.test(name=name, crosses=crosses):
            layout, settings = lab.layouts[name], WideDeep(**SMALL, crosses=crosses)
            network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 7)
            expected = reference.logit(settings, layout, batch, lab.weights(network))
            np.testing.assert_allclose(network(batch).detach(), expected, atol=1e-10, rtol=1e-10)
            without = reference.logit(WideDeep(**SMALL), layout, batch, lab.weights(network))
            assert not np.isclose(expected, without).any()


def test_crosses_start_silent_and_learn_the_combinations_present():
    layout = Layout.of_sizes([2, 3])
    torch.manual_seed(0)
    crossed = WideDeep(**SMALL, crosses=(("field_0", "field_1"),)).build(layout)
    torch.manual_seed(0)
    plain = WideDeep(**SMALL).build(layout)
    batch = ids([[0, 3], [1, 2], [1, 2]])
    assert torch.equal(crossed(batch), plain(batch))
    crossed(batch).sum().backward()
    assert crossed.crosses.weight.grad[:, 0].tolist() == [0.0, 1.0, 0.0, 2.0, 0.0, 0.0]


def test_crosses_of_32_bit_ids_do_not_overflow(monkeypatch):
    """The last combination of 46,341 by 46,341 categories has a number above 2^31."""
    layout, zeros = Layout.of_sizes([46_341, 46_341]), torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape: zeros(1, 1).expand(shape))  # one number in memory, not 2^31
    crosses = CrossProducts(layout, (("field_0", "field_1"),))
    last = ids([[46_340, 92_681]])
    assert crosses(last._replace(ids=last.ids.int())).tolist() == [0.0]


def test_crosses_export_and_compile(lab):
    layout = lab.layouts["history"]
    crosses = dict(CROSSED)["history"]
    network, batch = lab.randomized(WideDeep(**SMALL, crosses=crosses).build(layout)), lab.batch(layout, 6)
    rows, values = torch.export.Dim("rows", min=0, max=10_000), torch.export.Dim("values", min=0, max=100_000)
    bag = {0: values} if layout.positions(kind="bag") else {}
    shapes = (Batch({0: rows}, {0: rows}, bag, bag, bag),)
    program = torch.export.export(network, (batch,), dynamic_shapes=shapes).module()
    other = lab.batch(layout, 9, seed=9)
    torch.testing.assert_close(program(other), network(other), atol=1e-12, rtol=0)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), network(batch))
    assert network(lab.batch(layout, 0)).shape == (0,)


def test_crosses_survive_plain_values():
    settings = WideDeep(crosses=(("user", "item"), ("user", "hour")))
    assert to_plain(settings)["crosses"] == [["user", "item"], ["user", "hour"]]
    assert parse(WideDeep, to_plain(settings), "model") == settings


def test_the_defaults_are_the_papers_but_for_the_crosses():
    s = WideDeep()
    assert (s.embedding_dim, s.hidden, s.mlp_dropout, s.batch_norm) == (32, (1024, 512, 256), 0.0, False)
    assert s.build(Layout.of_sizes([3, 4])).crosses is None


def test_parameter_count_is_the_formula(subtests):
    for batch_norm in [False, True]:
        with subtests.test(batch_norm=batch_norm):
            rows, fields, d = 42, 2, 5
            mlp = (fields * d * 7 + 7) + (7 * 4 + 4) + (4 + 1) + (2 * (7 + 4) if batch_norm else 0)
            settings = {"embedding_dim": d, "hidden": (7, 4), "batch_norm": batch_norm}
            layout = Layout.of_sizes([30, 12])
            assert parameter_count(WideDeep(**settings).build(layout)) == rows * (d + 1) + mlp
            crossed = WideDeep(**settings, crosses=(("field_1", "field_0"),)).build(layout)
            assert parameter_count(crossed) == rows * (d + 1) + mlp + 30 * 12


def test_parameter_counts_are_those_of_the_nfm_papers_table_3(subtests):
    for features, fields, dim, millions in [
        (5_382, 10, 128, 2.66),
        (5_382, 10, 256, 4.66),
        (90_445, 3, 128, 12.72),
        (90_445, 3, 256, 24.69),
    ]:
        with subtests.test(features=features, fields=fields, dim=dim, millions=millions), torch.device("meta"):
            network = WideDeep(embedding_dim=dim).build(Layout.of_sizes([features, *[0] * (fields - 1)]))
            assert round(parameter_count(network) / 1e6, 2) == millions


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
        ({"hidden": ()}, "hidden must name the size of at least one layer"),
        ({"mlp_dropout": 1.5}, "mlp_dropout must be at least 0 and less than 1, found 1.5"),
        ({"embedding_std": -1}, "embedding_std must be above 0 and finite, found -1"),
        ({"crosses": [("a", "b")]}, r"crosses must be pairs of names of two fields, .* found \[\('a', 'b'\)\]"),
        ({"crosses": ("a", "b")}, "crosses must be pairs of names of two fields, .* found 'a'"),
        ({"crosses": (("a", "b", "c"),)}, "crosses must be pairs of names of two fields, .* found"),
        ({"crosses": (("a", "a"),)}, r"crosses must be pairs of names of two fields, .* found \('a', 'a'\)"),
        ({"crosses": (("a", 1),)}, r"crosses must be pairs of names of two fields, .* found \('a', 1\)"),
        ({"crosses": (("a", "b"), ("b", "a"))}, r"must name a pair of fields only once, found \('b', 'a'\) again"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            WideDeep(**settings)


def test_crosses_of_other_fields_are_refused(subtests, lab):
    for pair, message in [
        (("f1", "g4"), "crosses must name fields of the schema, found 'g4': did you mean 'f4'"),
        (("f1", "f2"), "crosses must name single-valued categorical fields, found 'f2', a number"),
        (("f3", "f1"), "crosses must name single-valued categorical fields, found 'f3', a bag"),
    ]:
        with subtests.test(pair=pair, message=message), pytest.raises(ConfigError, match=message):
            WideDeep(crosses=(pair,)).build(lab.layouts["mixed"])

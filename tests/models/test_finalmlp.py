import math

import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layers import MLP
from fieldwise.layout import Layout
from fieldwise.models import FinalMLP, parameter_count

SMALL = {"embedding_dim": 4, "stream1_hidden": (6, 8), "stream2_hidden": (4,), "gate_hidden": (5,)}


def test_worked_by_hand(lab):
    layout = Layout.of_sizes([1])
    one = {"embedding_dim": 2, "stream1_hidden": (2,), "stream2_hidden": (1,), "gate_hidden": (1,)}
    network = FinalMLP(**one, stream2_gate_fields=("field_0",)).build(layout).double()
    identity = torch.eye(2)
    state = {
        "embedding.weight": [[2.0, -1.0]],
        "gate1.vector": [1.0, 1.0],
        "gate1.mlp.layers.0.0.weight": [[1.0, 0.0]],
        "gate1.mlp.layers.0.0.bias": [0.0],  # hidden 1
        "gate1.mlp.output.weight": [[math.log(3)], [0.0]],
        "gate1.mlp.output.bias": [0.0, 0.0],  # factors 2 * 3/4 and 1: (3, -1)
        "gate2.fields.weight": [[0.0, -1.0]],
        "gate2.mlp.layers.0.0.weight": [[0.0, -1.0]],
        "gate2.mlp.layers.0.0.bias": [1.0],  # hidden 2
        "gate2.mlp.output.weight": [[0.0], [-math.log(3)]],
        "gate2.mlp.output.bias": [0.0, math.log(3)],  # factors 1 and 2 * 1/4: (2, -1/2)
        "stream1.layers.0.0.weight": identity.tolist(),
        "stream1.layers.0.0.bias": [0.0, 1.5],  # o1 = (3, 0.5)
        "stream2.layers.0.0.weight": [[1.0, 2.0]],
        "stream2.layers.0.0.bias": [1.0],  # o2 = 2
        "fusion.w1.weight": [[1.0, 2.0]],
        "fusion.w1.bias": [-5.0],
        "fusion.w2.weight": [[3.0]],
        "fusion.W": [[[1.0], [4.0]]],
    }
    network.load_state_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in state.items()})
    logit = network(lab.batch(layout, 1))
    assert logit.item() == pytest.approx(-5 + (3 + 1) + 6 + (3 + 2) * 2)


def test_without_gates_and_products_it_is_two_mlps(lab, layout):
    """The paper's DualMLP: the sum of two MLPs' logits, of one bias."""
    settings, batch = FinalMLP(**SMALL, fusion="sum", gates=False, batch_norm=True), lab.batch(layout, 6)
    network = lab.randomized(settings.build(layout))
    x = network.embedding(batch).flatten(1)
    logit = torch.zeros(6, dtype=torch.float64)
    for k, hidden in ((1, settings.stream1_hidden), (2, settings.stream2_hidden)):
        mlp = MLP(x.shape[1], hidden, outputs=1, batch_norm=True).double().eval()
        head = getattr(network.fusion, f"w{k}")
        state = {"output.weight": head.weight, "output.bias": torch.zeros(1) if head.bias is None else head.bias}
        mlp.load_state_dict(getattr(network, f"stream{k}").state_dict() | state)
        logit = logit + mlp(x)[:, 0]
    torch.testing.assert_close(network(batch), logit)


def test_a_gate_of_zeros_changes_nothing(lab, layout):
    """2 sigmoid(0) is 1: with its last layer at zero, every gate passes its features as they are."""
    gated = lab.randomized(FinalMLP(**SMALL, stream1_gate_fields=("f0",)).build(layout))
    with torch.no_grad():
        for gate in (gated.gate1, gated.gate2):
            gate.mlp.output.weight.zero_()
            gate.mlp.output.bias.zero_()
    plain, batch = FinalMLP(**SMALL, gates=False).build(layout).double(), lab.batch(layout, 6)
    state = gated.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    torch.testing.assert_close(gated(batch), plain(batch))


def test_a_gate_reads_its_own_fields_alone(lab):
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 8)
    network = lab.randomized(FinalMLP(**SMALL, stream1_gate_fields=("f2",)).build(layout))
    other = lab.batch(layout, 8, seed=1)
    elsewhere = batch._replace(ids=torch.where(torch.arange(4) == 2, batch.ids, other.ids))
    here = batch._replace(ids=torch.where(torch.arange(4) == 2, other.ids, batch.ids))
    assert torch.equal(network.gate1(elsewhere), network.gate1(batch))
    assert not torch.equal(network.gate1(here), network.gate1(batch))
    assert network.gate2(batch).shape == (1, 16)  # a learned vector is the same for all rows
    assert network.gate1.fields.weight.shape == (3, 4)  # the gate's own table, of f2's rows


def test_all_of_a_fresh_gate_learns(lab):
    """A learned vector that starts from zeros, as in the authors' code, leaves all but the last bias as they are."""
    layout, batch = lab.layouts["categorical"], lab.batch(lab.layouts["categorical"], 32)
    torch.manual_seed(0)
    network = FinalMLP(**SMALL).build(layout).double()

    def trained():
        network.zero_grad()
        network(batch).square().sum().backward()
        return {name for name, p in network.gate1.named_parameters() if p.grad.abs().max() > 0}

    assert trained() == set(dict(network.gate1.named_parameters()))
    with torch.no_grad():
        network.gate1.vector.zero_()
    assert trained() == {"mlp.output.bias"}


def test_fresh_gates_start_around_one(lab):
    layout, batch = lab.layouts["mixed"], lab.batch(lab.layouts["mixed"], 32)
    torch.manual_seed(0)
    network = FinalMLP(stream1_gate_fields=("f0", "f1")).build(layout).double()
    for gate in (network.gate1, network.gate2):
        torch.testing.assert_close(gate(batch), torch.ones(1, 70).double().expand_as(gate(batch)), atol=0.05, rtol=0)


def test_parameter_count_is_the_formula():
    sizes, dim = [7, 3, 4], 4
    settings = FinalMLP(**SMALL, heads=2, stream1_gate_fields=("field_2", "field_0"))
    inputs = 3 * dim
    gate1 = 11 * dim + (2 * dim + 1) * 5 + (5 + 1) * inputs
    gate2 = dim + (dim + 1) * 5 + (5 + 1) * inputs
    stream1, stream2 = (inputs + 1) * 6 + (6 + 1) * 8, (inputs + 1) * 4
    fusion = 1 + 8 + 4 + 2 * 4 * 2
    network = settings.build(Layout.of_sizes(sizes))
    assert parameter_count(network) == 14 * dim + gate1 + gate2 + stream1 + stream2 + fusion


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"heads": 3}, "heads must divide the last sizes of both streams, found heads 3 for sizes 64 and 64: take a"),
        ({"stream2_hidden": (9,), "heads": 2}, "found heads 2 for sizes 64 and 9"),
        ({"heads": 0}, "heads must be a whole number of at least 1, found 0"),
        ({"embedding_dim": True}, "embedding_dim"),
        ({"stream1_hidden": ()}, "stream1_hidden must name the size of at least one layer"),
        ({"stream2_hidden": (4, -1)}, r"stream2_hidden\[1\] must be a whole number of at least 1, found -1"),
        ({"gate_hidden": ()}, "gate_hidden must name the size of at least one layer"),
        ({"stream1_dropout": 1.0}, "stream1_dropout must be at least 0 and less than 1, found 1.0"),
        ({"stream2_dropout": float("nan")}, "stream2_dropout"),
        ({"fusion": "concat"}, "fusion must be one of 'bilinear', 'sum', found 'concat'"),
        ({"embedding_std": 0.0}, "embedding_std must be above 0 and finite, found 0.0"),
        ({"stream1_gate_fields": "user"}, "stream1_gate_fields must be a tuple of field names, .* found 'user'"),
        ({"stream2_gate_fields": ("a", "a")}, r"stream2_gate_fields must name a field once, found \('a', 'a'\)"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            FinalMLP(**settings)


def test_an_unknown_gate_field_is_named_with_the_nearest():
    settings = FinalMLP(stream2_gate_fields=("field_0", "field1"))
    message = "stream2_gate_fields must name fields of the schema, found 'field1': did you mean 'field_1'"
    with pytest.raises(ConfigError, match=message):
        settings.build(Layout.of_sizes([3, 4]))


def test_no_field_is_refused():
    with pytest.raises(ConfigError, match="FinalMLP reads fields and needs at least 1 field, found none"):
        FinalMLP().build(Layout(()))

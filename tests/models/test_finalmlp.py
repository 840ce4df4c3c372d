import pytest
import torch

from fieldwise import ConfigError, FinalMLP, Layout

SMALL = {"embedding_dim": 4, "stream1_hidden": (6, 8), "stream2_hidden": (4,), "gate_hidden": (5,)}


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
        torch.testing.assert_close(
            gate(batch), torch.ones(1, 70).double().expand_as(gate(batch)), atol=0.05, rtol=0
        )


def test_an_unknown_gate_field_is_named_with_the_nearest():
    settings = FinalMLP(stream2_gate_fields=("field_0", "field1"))
    message = (
        "stream2_gate_fields must name fields of the schema, found 'field1': did you mean 'field_1'"
    )
    with pytest.raises(ConfigError, match=message):
        settings.build(Layout.of_sizes([3, 4]))

"""Multi-task networks: each head is the single network of its weights, over one table that is held and saved once."""

import copy

import pytest
import torch
from parity.reference import FIRST as SETTINGS
from parity.reference import REFERENCES, hardest
from safetensors.torch import load, save

from fieldwise import Batch, TrainingSettings
from fieldwise.layers import FieldEmbedding
from fieldwise.models import NETWORKS, parameter_count
from fieldwise.models.build import build_network
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.step import HasAuxiliaryLoss

LAYOUT = {name: hardest(name) for name in REFERENCES}
WITH_AUXILIARY = ("dat", "finalnet", "inttower")
WITH_AND_WITHOUT_A_TABLE = pytest.mark.parametrize(
    "name", [pytest.param("inttower", marks=pytest.mark.slow), "lr"]
)
TABLE = "embedding.weight"


def built(lab, name, labels=2):
    """A multi-task network with random weights, its layout, and a batch."""
    layout = lab.layouts[LAYOUT[name]]
    return (
        lab.randomized(build_network(SETTINGS[name], layout, 0, labels=labels)),
        layout,
        lab.batch(layout, 6),
    )


def singles(name, layout, network):
    """One plain network a label, with the weights of its head and of the shared table."""
    state = network.state_dict()
    plain = []
    for t in range(len(network.heads)):
        own = {
            key.removeprefix(f"heads.{t}."): value
            for key, value in state.items()
            if key.startswith(f"heads.{t}.")
        }
        shared = {TABLE: state[TABLE]} if TABLE in state else {}
        single = SETTINGS[name].build(layout).double().eval()
        single.load_state_dict(own | shared)
        plain.append(single)
    return plain


def test_each_column_is_the_single_network_of_these_weights_and_the_state_holds_the_table_once(
    lab, subtests
):
    for name in NETWORKS:
        with subtests.test(name=name):
            network, layout, batch = built(lab, name)
            expected = torch.stack(
                [single(batch) for single in singles(name, layout, network)], dim=1
            )
            assert network(batch).shape == (6, 2)
            torch.testing.assert_close(network(batch), expected, atol=0, rtol=0)
            state, single = network.state_dict(), SETTINGS[name].build(layout)
            assert isinstance(single, HasAuxiliaryLoss) == (name in WITH_AUXILIARY)
            assert isinstance(network, HasAuxiliaryLoss) == (name in WITH_AUXILIARY)
            shared = {TABLE} if TABLE in single.state_dict() else set()
            heads = [
                f"heads.{t}.{key}"
                for t in range(2)
                for key in single.state_dict()
                if key not in shared
            ]
            assert list(state)[: len(shared)] == list(shared)
            assert set(state) == {*shared, *heads}
            assert parameter_count(network) == 2 * parameter_count(single) - sum(
                state[key].numel() for key in shared
            )
            assert len({tensor.data_ptr() for tensor in state.values() if tensor.numel()}) == len(
                state
            )
            again = build_network(SETTINGS[name], layout, 1, labels=2).double().eval()
            again.load_state_dict(
                load(save({key: value.contiguous() for key, value in state.items()})), strict=True
            )
            torch.testing.assert_close(again(batch), network(batch), atol=0, rtol=0)


@pytest.mark.parametrize("name", WITH_AUXILIARY)
def test_the_auxiliary_losses_are_those_of_the_heads(lab, name):
    network, layout, batch = built(lab, name)
    plain = singles(name, layout, network)
    label = torch.tensor(
        [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]],
        dtype=torch.float64,
    )
    logit, auxiliary = network.forward_with_auxiliary(batch, label)
    own = [single.forward_with_auxiliary(batch, label[:, t]) for t, single in enumerate(plain)]
    torch.testing.assert_close(logit, torch.stack([z for z, _ in own], dim=1), atol=0, rtol=0)
    torch.testing.assert_close(auxiliary, torch.stack([loss for _, loss in own]), atol=0, rtol=0)


def test_one_label_is_the_plain_network_to_the_bit(lab):
    for name, settings in SETTINGS.items():
        layout = lab.layouts[LAYOUT[name]]
        torch.manual_seed(5)
        expected = settings.build(layout)
        result = build_network(settings, layout, 5)
        assert type(result) is type(expected)
        assert all(
            torch.equal(result.state_dict()[key], value)
            for key, value in expected.state_dict().items()
        ), name


def test_heads_start_apart_and_a_seed_fixes_them(lab):
    layout = lab.layouts["categorical"]
    first, again, other = (
        build_network(SETTINGS["autoint"], layout, seed, labels=2).state_dict()
        for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first[TABLE], other[TABLE])
    assert not torch.equal(first["heads.0.head.weight"], first["heads.1.head.weight"])


def test_l2_by_the_tables_name_counts_it_once(lab):
    network, _, batch = built(lab, "fm")
    table = network.embedding.weight
    RunOptimizer(network, TrainingSettings(l2={TABLE: 0.5}, l2_rows="all")).add_l2(batch)
    torch.testing.assert_close(table.grad, 0.5 * table.detach())
    table.grad = None
    RunOptimizer(network, TrainingSettings(l2={TABLE: 0.5}, l2_rows="touched")).add_l2(batch)
    rows = torch.unique(torch.cat([batch.ids.reshape(-1), batch.bag_ids]))
    expected = torch.zeros_like(table).index_copy(0, rows.long(), 0.5 * table.detach()[rows.long()])
    torch.testing.assert_close(table.grad, expected)
    tables = [m for m in network.modules() if isinstance(m, FieldEmbedding)]
    # the shared one, and each head's first-order weights
    assert [m.weight.shape[1] for m in tables] == [4, 1, 1]


@pytest.mark.parametrize("name", ["lr", "fm", "inttower"])
def test_a_copy_has_its_own_table_that_its_heads_share(lab, name):
    network, _, batch = built(lab, name)
    before = network(batch).detach()
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(1.5)
    assert torch.equal(network(batch), before)
    if hasattr(copied, "embedding"):
        assert all(head.embedding is copied.embedding for head in copied.heads)
        assert copied.float().heads[1].embedding.weight.dtype == torch.float32


@WITH_AND_WITHOUT_A_TABLE
def test_exports_with_a_dynamic_batch_and_compiles(lab, name):
    network, layout, batch = built(lab, name)
    rows, values = (
        torch.export.Dim("rows", min=0, max=10_000),
        torch.export.Dim("values", min=0, max=100_000),
    )
    bag = {0: values} if layout.positions(kind="bag") else {}
    shapes = (Batch({0: rows}, {0: rows}, bag, bag, bag),)
    program = torch.export.export(network, (batch,), dynamic_shapes=shapes).module()
    for n in (1, 9):
        other = lab.batch(layout, n, seed=n)
        torch.testing.assert_close(program(other), network(other), atol=1e-12, rtol=0)
    torch.compiler.reset()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), network(batch))

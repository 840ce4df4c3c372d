import math

import pytest
import torch

from fieldwise.errors import ConfigError
from fieldwise.layout import Layout
from fieldwise.models import COLD, parameter_count

SMALL = {"embedding_dim": 4, "hidden": (7, 6)}


@pytest.fixture
def categorical(lab):
    return lab.layouts["categorical"]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_worked_by_hand(lab):
    """Two fields of one number, e = (2, 3); an MLP of one unit."""
    layout = Layout.of_sizes([1, 1])
    batch = lab.batch(layout, 1)
    parameters = {"joint": [[1.0, -1.0], [0.5, 0.0]], "own": [[1.0], [-2.0]]}
    # Joint: 2 - 3 + .1 and 2 / 2 + .2; own: 2 + .1 and -6 + .2.
    expected = {"joint": (sigmoid(-0.9), sigmoid(1.2)), "own": (sigmoid(2.1), sigmoid(-5.8))}
    for se_block, (s_1, s_2) in expected.items():
        network = COLD(embedding_dim=1, hidden=(1,), se_block=se_block).build(layout).double().eval()
        with torch.no_grad():
            network.embedding.weight.copy_(torch.tensor([[2.0], [3.0]]))
            network.se_block.weight.copy_(torch.tensor(parameters[se_block]))
            network.se_block.bias.copy_(torch.tensor([0.1, 0.2]))
            network.mlp.layers[0][0].weight.copy_(torch.tensor([[1.0, 10.0]]))
            network.mlp.output.weight.fill_(2.0)
            network.mlp.output.bias.fill_(0.5)
        assert network.importance(batch)[0].tolist() == pytest.approx([s_1, s_2], rel=1e-6)
        assert float(network(batch).detach()) == pytest.approx(2 * (2 * s_1 + 10 * 3 * s_2) + 0.5, rel=1e-6)


@pytest.mark.parametrize("se_block", ["joint", "own"])
def test_a_block_that_says_one_is_no_block(lab, categorical, se_block):
    """The network that is served, with the weights of the one that chose."""
    network, batch = lab.randomized(COLD(**SMALL, se_block=se_block).build(categorical)), lab.batch(categorical, 8)
    served = COLD(**SMALL, se_block="none").build(categorical).double().eval()
    served.load_state_dict({n: p for n, p in network.state_dict().items() if not n.startswith("se_block")})
    assert not torch.allclose(network(batch), served(batch))
    with torch.no_grad():
        network.se_block.weight.zero_()
        network.se_block.bias.fill_(60.0)
    torch.testing.assert_close(network(batch), served(batch))
    assert torch.equal(served.importance(batch), torch.ones(8, 4).double())


def test_importance_reads_all_fields_or_its_own(lab, categorical):
    batch = lab.batch(categorical, 8)
    other = batch._replace(ids=torch.cat([lab.batch(categorical, 8, 1).ids[:, :1], batch.ids[:, 1:]], 1))
    assert not torch.equal(batch.ids, other.ids)
    for se_block, alone in (("own", True), ("joint", False)):
        network = lab.randomized(COLD(**SMALL, se_block=se_block).build(categorical))
        s, t = network.importance(batch), network.importance(other)
        assert s.shape == (8, 4)
        assert 0 < s.min() < s.max() < 1
        assert torch.equal(s[:, 1:], t[:, 1:]) == alone
        assert not torch.equal(s[:, :1], t[:, :1])


def test_only_the_fields_kept_are_read(lab, categorical):
    batch, other = lab.batch(categorical, 16), lab.batch(categorical, 16, 1)
    network = lab.randomized(COLD(**SMALL, fields_kept=("f3", "f0")).build(categorical))
    kept = torch.tensor([True, False, False, True])
    assert torch.equal(network(batch._replace(ids=torch.where(kept, batch.ids, other.ids))), network(batch))
    assert not torch.equal(network(batch._replace(ids=torch.where(kept, other.ids, batch.ids))), network(batch))
    assert network.names == ["f0", "f3"]
    assert network.importance(batch).shape == (16, 2)


def test_top_fields_are_those_of_the_greatest_mean(lab, categorical):
    """NOTE[DIFF]: the importance differs by row; what counts is its mean over the batch."""
    network, batch = lab.randomized(COLD(**SMALL).build(categorical)), lab.batch(categorical, 64)
    mean = network.importance(batch).mean(0).tolist()
    by_mean = sorted(range(4), key=lambda i: -mean[i])
    for k in range(1, 5):
        assert network.top_fields(batch, k) == tuple(f"f{i}" for i in sorted(by_mean[:k]))
    with torch.no_grad():
        network.se_block.weight.zero_()
        network.se_block.bias.copy_(torch.tensor([0.0, 3.0, -1.0, 1.0]))
    chosen = network.top_fields(batch, 2)
    assert chosen == ("f1", "f3")
    smaller = COLD(**SMALL, se_block="none", fields_kept=chosen).build(categorical)
    assert smaller.mlp.layers[0][0].in_features == 2 * 4


def test_a_field_of_any_role_and_kind_can_be_chosen(lab):
    """NOTE[DIFF]: a cross feature is a field of the schema, weighed like the rest; so are numbers and bags."""
    layout = lab.layouts["mixed"]
    network, batch = lab.randomized(COLD(**SMALL).build(layout)), lab.batch(layout, 16)
    for f, field in enumerate(layout.fields):
        with torch.no_grad():
            network.se_block.weight.zero_()
            network.se_block.bias.zero_()[f] = 1.0
        assert network.top_fields(batch, 1) == (field.name,)


@pytest.mark.parametrize(
    ("se_block", "k", "message"),
    [
        ("joint", 0, "k must be between 1 and the 4 fields, found 0"),
        ("own", 5, "k must be between 1 and the 4 fields, found 5"),
        ("none", 2, "top_fields ranks fields by the SE block, found se_block 'none'"),
    ],
)
def test_top_fields_says_what_it_cannot_do(lab, categorical, se_block, k, message):
    with pytest.raises(ConfigError, match=message):
        COLD(**SMALL, se_block=se_block).build(categorical).top_fields(lab.batch(categorical, 4), k)


def test_parameter_count_is_the_formula():
    layout, dim, first, second = Layout.of_sizes([30, 12, 7]), 10, 8, 6
    base = {"embedding_dim": dim, "hidden": (first, second)}
    for fields, kept in ((3, None), (2, ("field_0", "field_2"))):
        mlp = (fields * dim + 1) * first + (first + 1) * second + second + 1
        blocks = {"joint": (fields * dim + 1) * fields, "own": fields * (dim + 1), "none": 0}
        for se_block, block in blocks.items():
            network = COLD(**base, se_block=se_block, fields_kept=kept).build(layout)
            assert parameter_count(network) == 49 * dim + block + mlp


def test_fields_must_be_there(categorical):
    with pytest.raises(ConfigError, match="COLD weighs fields and needs at least 1 field, found none"):
        COLD().build(Layout(()))
    with pytest.raises(ConfigError, match="fields_kept must name fields of the layout, found 'g1': did you mean 'f1'"):
        COLD(fields_kept=("f0", "g1")).build(categorical)


def test_bad_settings_name_themselves(subtests):
    for settings, message in [
        ({"embedding_dim": 0}, "embedding_dim"),
        ({"hidden": (4, -1)}, r"hidden\[1\] must be a whole number of at least 1, found -1"),
        ({"se_block": "softmax"}, "se_block must be one of 'joint', 'own', 'none', found 'softmax'"),
        ({"fields_kept": ()}, r"fields_kept must name at least one field and none twice, found \(\)"),
        ({"fields_kept": ("a", "a")}, "fields_kept must name at least one field and none twice"),
        ({"mlp_dropout": -0.1}, "mlp_dropout"),
        ({"embedding_std": float("nan")}, "embedding_std must be above 0 and finite, found nan"),
    ]:
        with subtests.test(settings=settings, message=message), pytest.raises(ConfigError, match=message):
            COLD(**settings)

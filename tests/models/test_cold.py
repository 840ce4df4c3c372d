import pytest
import torch

from fieldwise import COLD, ConfigError, Layout

SMALL = {"embedding_dim": 4, "hidden": (7, 6)}


@pytest.fixture
def categorical(lab):
    return lab.layouts["categorical"]


def test_only_the_fields_kept_are_read(lab, categorical):
    batch, other = lab.batch(categorical, 16), lab.batch(categorical, 16, 1)
    network = lab.randomized(COLD(**SMALL, fields_kept=("f3", "f0")).build(categorical))
    kept = torch.tensor([True, False, False, True])
    assert torch.equal(
        network(batch._replace(ids=torch.where(kept, batch.ids, other.ids))), network(batch)
    )
    assert not torch.equal(
        network(batch._replace(ids=torch.where(kept, other.ids, batch.ids))), network(batch)
    )
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


def test_fields_must_be_there(categorical):
    with pytest.raises(
        ConfigError, match="COLD weighs fields and needs at least 1 field, found none"
    ):
        COLD().build(Layout(()))
    with pytest.raises(
        ConfigError,
        match="fields_kept must name fields of the schema, found 'g1': did you mean 'f1'",
    ):
        COLD(fields_kept=("f0", "g1")).build(categorical)

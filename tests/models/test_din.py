import dataclasses

import polars as pl
import pytest
import torch
from parity.reference.din import CASES
from torch import nn
from torch.nn import functional as F

from fieldwise import DIN, Batch, Categorical, ConfigError, Encoder, Label, Layout, Schema, Sequence
from fieldwise.layers.attention import ActivationUnit
from fieldwise.layout import FieldLayout
from fieldwise.models import parameter_count

ITEMS = FieldLayout(name="item", kind="id", role="item", offset=0, rows=4)
HISTORY = FieldLayout(
    name="seen", kind="bag", role="user", offset=0, rows=4, ordered=True, shares="item"
)


def batch_of(items, histories):
    """Rows of one item and one history each."""
    lengths = torch.tensor([len(h) for h in histories])
    return Batch(
        ids=torch.tensor(items).unsqueeze(1),
        values=torch.empty(len(items), 0),
        bag_ids=torch.tensor([i for h in histories for i in h], dtype=torch.int64),
        bag_segments=torch.repeat_interleave(torch.arange(len(items)), lengths),
        bag_weights=torch.tensor([1 / len(h) for h in histories for _ in h]),
    )


def test_without_softmax_weights_keep_their_strength(lab):
    """A history twice as long is an interest twice as strong, unless weights sum to 1."""
    once, twice = batch_of([0], [[1, 3]]), batch_of([0], [[1, 3, 1, 3]])
    for softmax, factor in ((False, 2.0), (True, 1.0)):
        network = lab.randomized(
            DIN(embedding_dim=4, softmax=softmax).build(Layout((ITEMS, HISTORY)))
        )
        one, two = (interest(network, b) for b in (once, twice))
        torch.testing.assert_close(two, factor * one)
        assert one.abs().max() > 1e-3
    assert network.attention_weights(twice).sum().item() == pytest.approx(1)


def interest(network, batch):
    return network.embedding(batch._replace(bag_weights=network.attention_weights(batch)))[:, 1]


def test_an_encoders_empty_history_is_the_missing_rows_vector_with_a_weight(lab):
    """The encoder gives an empty cell the one id "missing": a learned vector for users of whom nothing is known."""
    schema = Schema(fields=(Categorical("item"), Sequence("seen", shares="item")), label=Label("y"))
    frame = pl.DataFrame({"item": ["a", "b", "a"], "seen": [["b"], [], ["new", "a"]]})
    encoder = Encoder.fit(frame, schema)
    batch, _ = encoder.transform(frame).batch(slice(0, 3))
    network = lab.randomized(DIN(embedding_dim=3).build(encoder.layout))
    table, weights = network.embedding.weight, network.attention_weights(batch)
    result = interest(network, batch)
    torch.testing.assert_close(result[1], weights[1] * table[0])
    # A film that training rows never showed is the row "unknown".
    torch.testing.assert_close(result[2], weights[2] * table[1] + weights[3] * table[2])


def test_each_history_attends_with_its_own_candidate(lab):
    layout = lab.layouts["histories"]
    bags = [f.name for f in layout.fields if f.kind == "bag"]
    network, batch = lab.randomized(CASES["plain"].build(layout)), lab.batch(layout, 30)
    weights = network.attention_weights(batch)
    bag = batch.bag_segments % len(bags)
    # no history: its pooling's own
    assert torch.equal(weights[bag == 1], batch.bag_weights[bag == 1])
    for history, candidate, f in (("f2", 0, layout.fields[0]), ("f5", 2, layout.fields[4])):
        other = batch.ids.clone()
        other[:, candidate] = f.offset + (batch.ids[:, candidate] - f.offset + 1) % f.rows
        changed = network.attention_weights(batch._replace(ids=other)) != weights
        assert torch.equal(changed, bag == bags.index(history))


def test_dice_measures_the_values_of_its_own_history_alone(lab):
    layout = lab.layouts["histories"]
    batch = lab.batch(layout, 20)
    bag = batch.bag_segments % 3
    other = batch._replace(
        bag_ids=torch.where(bag == 1, 6 + 1 + (batch.bag_ids + 1) % 4, batch.bag_ids)
    )
    state = []
    for b in (batch, other):
        network = lab.randomized(CASES["dice"].build(layout)).train()
        network(b)
        state.append(
            {n: v for n, v in network.state_dict().items() if "units" in n and "running" in n}
        )
    assert len(state[0]) == 4
    assert all(torch.equal(v, state[1][n]) for n, v in state[0].items())


def test_learns_whether_the_history_holds_the_candidate():
    """What pooling alone cannot tell: the label is the match of one of six values with the row's own item."""
    generator = torch.Generator().manual_seed(0)
    items = dataclasses.replace(ITEMS, rows=20)
    layout = Layout((items, dataclasses.replace(HISTORY, rows=20)))

    def rows(n):
        seen = torch.randint(0, 20, (n, 6), generator=generator)
        any_item = torch.randint(0, 20, (n,), generator=generator)
        own = torch.where(torch.rand(n, generator=generator) < 0.5, seen[:, 2], any_item)
        return batch_of(own.tolist(), seen.tolist()), (seen == own.unsqueeze(1)).any(1).float()

    torch.manual_seed(0)
    network = DIN(embedding_dim=8, embedding_std=0.3, hidden=(16,)).build(layout)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(150):
        batch, label = rows(128)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(network(batch), label).backward()
        optimizer.step()
    batch, label = rows(1000)
    right = ((network.eval()(batch) > 0) == label.bool()).float().mean()
    assert right > 0.95, float(right)


def test_a_variant_chooses_what_is_not_given():
    layout = Layout((ITEMS, HISTORY))
    paper, authors = DIN().build(layout), DIN(variant="authors", softmax=False).build(layout)
    assert [layer[0].out_features for layer in paper.mlp[:-1]] == [200, 80]
    assert [type(layer[1]) for layer in (*paper.mlp[:-1], *paper.units[0].layers)] == [nn.PReLU] * 3
    assert paper.units[0].layers[0][0].weight.shape == (36, 16 + 16 * 16 + 16)
    assert (paper.units[0].softmax, paper.units[0].factor) == (False, 1.0)
    assert [layer[0].out_features for layer in authors.units[0].layers] == [80, 40]
    assert [type(layer[1]) for layer in (*authors.mlp[:-1], *authors.units[0].layers)] == [
        nn.Sigmoid
    ] * 4
    assert (authors.units[0].softmax, authors.units[0].factor) == (False, 0.25)


def test_the_published_count_of_a_run_on_amazon_electronics():
    """BARS, DIN_amazonelectronics_x1_015_8539c013: 5,403,522 parameters.

    That run joins item and category before one unit of width 2 D, here every history has a unit of
    width D; and its unit ends with a bias, which its softmax takes away.
    """
    fields, offset = [], 0
    for name, rows in (("item", 63_003), ("category", 803)):
        one = FieldLayout(name=name, kind="id", role="item", offset=offset, rows=rows)
        seen = dataclasses.replace(
            one, name=f"{name}s", kind="bag", role="user", ordered=True, shares=name
        )
        fields += [one, seen]
        offset += rows
    unit = {"inputs": "difference_product", "activation": "dice", "softmax": True}
    ours = DIN(
        variant="fuxictr", embedding_dim=64, attention_hidden=(512, 256), softmax=True, hidden=(1024, 512, 256),
        activation="dice", batch_norm=True,
    ).build(Layout(tuple(fields)))  # fmt: skip
    own, joined = (parameter_count(ActivationUnit(dim, (512, 256), **unit)) for dim in (64, 128))
    assert parameter_count(ours) - 2 * own + joined + 1 == 5_403_522


def test_a_history_that_shares_rows_is_needed(subtests):
    sentence = r'found none: give the schema one, as in \{ kind = "sequence", .* shares = "'
    for fields in [
        (ITEMS,),
        (ITEMS, dataclasses.replace(HISTORY, shares=None)),
        (ITEMS, dataclasses.replace(HISTORY, ordered=False)),
    ]:
        with subtests.test(fields=fields), pytest.raises(ConfigError, match=sentence):
            DIN().build(Layout(fields))

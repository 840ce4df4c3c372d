"""The forms of tutorials and of authors' code that settings build, in plain PyTorch with copied weights.

Every form is written with `nn.Linear` and `nn.Embedding` as a tutorial has it, gets the weights of the network that the
settings build, and must have its logits and the gradients of all its parameters, in float64.
"""

import pytest
import torch
from parity import lab
from torch import nn

from fieldwise import AFM, IntTower
from fieldwise.ops.dropout import draw_seeds, keep_factors

LAYOUT = lab.LAYOUTS["categorical"]
FIELDS, ROWS, BATCH = LAYOUT.num_fields, LAYOUT.num_rows, 7
EXACT = {"atol": 1e-10, "rtol": 1e-10}


def linear_of(weight, bias=None):
    """A linear layer with a copy of a weight [out, in] and of a bias, of which autograd keeps its own gradient."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if bias is not None:
            layer.bias.copy_(bias)
    return layer


def table_of(weight):
    return nn.Embedding.from_pretrained(weight.detach().clone(), freeze=False)


def gradients_of(logit_B, parameters):
    """Gradients of a sum of the logits with weights that differ from row to row; None where nothing depends on one."""
    weight_B = torch.linspace(-1.0, 2.0, len(logit_B), dtype=torch.float64)
    return torch.autograd.grad((logit_B * weight_B).sum(), parameters, allow_unused=True)


# AFM


class TutorialAFM(nn.Module):
    """All products of two fields, an attention network of two linear layers, a softmax over the pairs."""

    def __init__(self, network, pair_keep_BPD=None, pooled_dropout=0.0):
        super().__init__()
        attention = network.attention
        self.vectors, self.weights = table_of(network.embedding.weight), table_of(network.first_order.embedding.weight)
        self.bias = nn.Parameter(network.first_order.bias.detach().clone())
        self.hidden = linear_of(attention.W, attention.b)
        self.score = linear_of(attention.h.unsqueeze(0))
        self.prediction = linear_of(network.p.unsqueeze(0))
        self.pair_keep_BPD, self.pooled_dropout = pair_keep_BPD, nn.Dropout(pooled_dropout)

    def forward(self, ids_BF):
        x_BFD = self.vectors(ids_BF)
        products = [x_BFD[:, i] * x_BFD[:, j] for i in range(FIELDS) for j in range(i + 1, FIELDS)]
        q_BPD = torch.stack(products, 1)
        if self.pair_keep_BPD is not None:
            q_BPD = q_BPD * self.pair_keep_BPD
        a_BP1 = torch.softmax(self.score(torch.relu(self.hidden(q_BPD))), 1)
        pooled_BD = self.pooled_dropout((a_BP1 * q_BPD).sum(1))
        return (self.weights(ids_BF).sum(1) + self.prediction(pooled_BD) + self.bias).squeeze(1)

    def ordered(self):
        """Its parameters in the order of the network's."""
        hidden, score, prediction = self.hidden, self.score.weight, self.prediction.weight
        return [self.vectors.weight, self.weights.weight, self.bias, hidden.weight, hidden.bias, score, prediction]


AFM_SMALL = {"embedding_dim": 3, "attention_dim": 5}


def wide_afm(settings):
    """A network whose attention has some units on and others off: else b shifts all scores alike."""
    network = lab.randomized(settings.build(LAYOUT)).train()
    network.embedding.weight.data.mul_(3)
    return network


@pytest.mark.parametrize(
    "settings",
    [
        AFM(**AFM_SMALL, pair_dropout=0.4, initial_p="standard_normal"),
        AFM(**AFM_SMALL, variant="paper", dropout=0.4, pooled_dropout=0.0),
    ],
)
def test_afm_with_dropout_on_the_products_alone(settings):
    """As tutorials have it. The mask is that of the network's seed: the tutorial's own would be another draw."""
    network, batch = wide_afm(settings), lab.random_batch(LAYOUT, BATCH)
    torch.manual_seed(3)
    seed = draw_seeds(2)[0]
    pairs = FIELDS * (FIELDS - 1) // 2
    keep = keep_factors(seed, BATCH, pairs * 3, 0.4, dtype=torch.float64).view(BATCH, pairs, 3)
    assert (keep == 0).any()
    tutorial = TutorialAFM(network, pair_keep_BPD=keep)
    torch.manual_seed(3)
    afm_is_the_tutorials(network(batch), network, tutorial, batch)


@pytest.mark.parametrize(
    "settings",
    [
        AFM(**AFM_SMALL, variant="authors", dropout=0.4),
        AFM(**AFM_SMALL, pooled_dropout=0.4),
        AFM(**AFM_SMALL, variant="fuxictr", dropout=0.3, attention_dropout=0.0, pooled_dropout=0.4),
    ],
)
def test_afm_with_dropout_on_the_pooled_vector_alone(settings):
    """As the authors' commands have it: they keep all attention weights."""
    network, batch = wide_afm(settings), lab.random_batch(LAYOUT, BATCH)
    tutorial = TutorialAFM(network, pooled_dropout=0.4)
    torch.manual_seed(3)
    logit_B = network(batch)
    torch.manual_seed(3)
    afm_is_the_tutorials(logit_B, network, tutorial, batch)


def afm_is_the_tutorials(logit_B, network, tutorial, batch):
    expected_B = tutorial(batch.ids)
    torch.testing.assert_close(logit_B, expected_B, **EXACT)
    attention = network.attention
    own = [network.embedding.weight, network.first_order.embedding.weight, network.first_order.bias]
    own += [attention.W, attention.b, attention.h, network.p]
    theirs = gradients_of(expected_B, tutorial.ordered())
    for mine, other in zip(gradients_of(logit_B, own), theirs, strict=True):
        assert other.abs().max() > 1e-6
        torch.testing.assert_close(mine.reshape(other.shape), other, **EXACT)


# IntTower

NUMBERED = lab.make_layout(
    ("id", "user", 4), ("value", "user", 2), ("id", "item", 6), ("id", "user", 3), ("value", "item", 2)
)
USER, ITEM = [0, 3], [2]


class AuthorsTower(nn.Module):
    """A tower of IntTower's authors: Light-SE, the numbers behind the flattened vectors, layers, projections to heads.

    The user's projections read the inputs of the layers, the item's one the last output.
    """

    def __init__(self, tower, projections, reads_inputs):
        super().__init__()
        self.excitation = linear_of(tower.light_se.excite.weight)
        self.linears = nn.ModuleList(linear_of(layer[0].weight, layer[0].bias) for layer in tower.mlp.layers)
        self.norms = nn.ModuleList(nn.BatchNorm1d(layer.out_features, dtype=torch.float64) for layer in self.linears)
        with torch.no_grad():
            for mine, layer in zip(self.norms, tower.mlp.layers, strict=True):
                mine.weight.copy_(layer[1].weight)
                mine.bias.copy_(layer[1].bias)
        self.fe_linears = nn.ModuleList(linear_of(layer.weight, layer.bias) for layer in projections)
        self.reads_inputs = reads_inputs

    def forward(self, x_BFD, numbers_BN):
        gates_BF = torch.softmax(self.excitation(x_BFD.mean(-1)), 1)
        x = torch.cat([(x_BFD + x_BFD * gates_BF.unsqueeze(2)).flatten(1), numbers_BN], -1)
        inputs = []
        for layer, norm in zip(self.linears, self.norms, strict=True):
            inputs.append(x)
            x = torch.relu(norm(layer(x)))
        read = inputs if self.reads_inputs else [x]
        return [project(one) for project, one in zip(self.fe_linears, read, strict=True)]

    def ordered(self):
        """Its parameters in the order of the network's: Light-SE, then layer by layer; the projections apart."""
        layers = zip(self.linears, self.norms, strict=True)
        own = [self.excitation.weight, *(p for layer in layers for module in layer for p in module.parameters())]
        return own, list(self.fe_linears.parameters())


def test_inttower_with_raw_numbers_is_the_authors():
    heads, size = 3, 4
    settings = IntTower(
        variant="authors",
        embedding_dim=3,
        hidden=(6, 5, 4),
        dropout=0.0,
        user_heads=heads,
        item_heads=heads,
        head_dim=size,
        dense_inputs="raw",
        init_std=1e-4,
    )
    network = lab.randomized(settings.build(NUMBERED)).train()
    batch = lab.random_batch(NUMBERED, BATCH)
    for column, field in enumerate(NUMBERED.fields):
        if field.kind == "value":
            batch.ids[:, column] = field.row(1)  # their code knows no missing numbers
    table = table_of(network.embedding.weight)
    user = AuthorsTower(network.user_tower, network.block.user_projections, reads_inputs=True)
    item = AuthorsTower(network.item_tower, [network.block.item_projection], reads_inputs=False)
    bias = nn.Parameter(network.bias.detach().clone())
    x_BFD = table(batch.ids)
    (last,) = item(x_BFD[:, ITEM], batch.values[:, 1:])
    item_BHP = last.reshape(BATCH, heads, size)
    expected_B = bias.expand(BATCH)
    for level in user(x_BFD[:, USER], batch.values[:, :1]):
        user_BHP = level.reshape(BATCH, heads, size)
        expected_B = expected_B + (user_BHP @ item_BHP.permute(0, 2, 1)).max(2).values.sum(1)
    logit_B = network(batch)
    torch.testing.assert_close(logit_B, expected_B, **EXACT)
    trained = [p for tower in (user, item) for p in tower.ordered()[0]]
    projections = [*user.ordered()[1], *item.ordered()[1]]
    expected = gradients_of(expected_B, [bias, table.weight, *trained, *projections])
    names, parameters = zip(*network.named_parameters(), strict=True)
    result = gradients_of(logit_B, parameters)
    for name, mine, theirs in zip(names, result, expected, strict=True):
        if name.startswith("user_tower.mlp.layers.2"):
            assert theirs is None, "no user level reads their last layer"
        else:
            torch.testing.assert_close(mine, theirs, **EXACT, msg=name)

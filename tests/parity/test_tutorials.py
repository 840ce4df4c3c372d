"""The forms of tutorials and of authors' code that settings build, in plain PyTorch with copied weights.

Every form is written with `nn.Linear` and `nn.Embedding` as a tutorial has it, gets the weights of
the network that the settings build, and must have its logits and the gradients of all its
parameters, in float64.
"""

import pytest
import torch
from parity import lab
from torch import nn

from fieldwise import AFM, AutoInt, AutoIntPlus, IntTower
from fieldwise.ops import use_ops
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
        self.vectors, self.weights = (
            table_of(network.embedding.weight),
            table_of(network.first_order.embedding.weight),
        )
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
        return [
            self.vectors.weight,
            self.weights.weight,
            self.bias,
            hidden.weight,
            hidden.bias,
            score,
            prediction,
        ]


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


# AutoInt


class TutorialAttention(nn.Module):
    """A transformer's layer without its feed-forward part: linear layers for Q, K, V and O, the input added, LayerNorm.

    The network's projections are rows of one weight, in the order Q, K, V.
    """

    def __init__(self, layer, *, residual, norm):
        super().__init__()
        weights = layer.projection.weight.chunk(layer.parts)
        biases = layer.projection.bias.chunk(layer.parts)
        self.query, self.key, self.value = (
            linear_of(*both) for both in zip(weights[:3], biases[:3], strict=True)
        )
        self.output = (
            None if layer.output is None else linear_of(layer.output.weight, layer.output.bias)
        )
        self.heads, self.residual = layer.heads, residual
        self.norm = nn.LayerNorm(layer.norm.normalized_shape, dtype=torch.float64) if norm else None
        if self.norm is not None:
            self.norm.load_state_dict(layer.norm.state_dict())

    def forward(self, x_BFD):
        def of_heads(y_BFA):
            return y_BFA.unflatten(2, (self.heads, -1)).transpose(1, 2)

        q, k, v = (
            of_heads(self.query(x_BFD)),
            of_heads(self.key(x_BFD)),
            of_heads(self.value(x_BFD)),
        )
        weights = torch.softmax(q @ k.transpose(2, 3) / q.shape[3] ** 0.5, 3)
        y_BFA = (weights @ v).transpose(1, 2).flatten(2)
        if self.output is not None:
            y_BFA = self.output(y_BFA)
        if self.residual:
            y_BFA = y_BFA + x_BFD
        return y_BFA if self.norm is None else self.norm(y_BFA)

    def ordered(self):
        """Its parameters as the network has them: one weight, one bias, the output's, the norm's."""
        projections = (self.query, self.key, self.value)
        rest = [
            p
            for module in (self.output, self.norm)
            if module is not None
            for p in module.parameters()
        ]
        return [
            [one.weight for one in projections],
            [one.bias for one in projections],
            *([p] for p in rest),
        ]


class TutorialAutoInt(nn.Module):
    """Embeddings and positions, attention layers, ReLU where `ends_in_relu`, a linear unit; with an MLP, its logit."""

    def __init__(self, network, *, residual=True, norm=True, ends_in_relu=False, activation=None):
        super().__init__()
        self.vectors = table_of(network.embedding.weight)
        positions = network.field_vectors
        self.positions = None if positions is None else nn.Parameter(positions.detach().clone())
        self.layers = nn.ModuleList(
            TutorialAttention(one, residual=residual, norm=norm) for one in network.layers
        )
        self.head = linear_of(network.head.weight, network.head.bias)
        self.ends_in_relu = ends_in_relu
        self.deep = None
        if activation is not None:
            hidden = [linear_of(layer[0].weight, layer[0].bias) for layer in network.mlp.layers]
            last = linear_of(network.mlp.output.weight, network.mlp.output.bias)
            self.deep = nn.Sequential(
                *(part for one in hidden for part in (one, activation())), last
            )

    def forward(self, ids_BF):
        x_BFD = self.vectors(ids_BF)
        y_BFA = x_BFD if self.positions is None else x_BFD + self.positions
        for layer in self.layers:
            y_BFA = torch.relu(layer(y_BFA)) if self.ends_in_relu else layer(y_BFA)
        logit_B1 = self.head(y_BFA.flatten(1))
        if self.deep is not None:
            logit_B1 = logit_B1 + self.deep(x_BFD.flatten(1))
        return logit_B1.squeeze(1)

    def ordered(self):
        """Its parameters in the order of the network's, those of one of the network's in one list."""
        own = [] if self.positions is None else [[self.positions]]
        own += [
            [self.vectors.weight],
            *(group for layer in self.layers for group in layer.ordered()),
        ]
        own += [[p] for p in self.head.parameters()]
        return own + ([] if self.deep is None else [[p] for p in self.deep.parameters()])


AUTOINT_SMALL = {"embedding_dim": 6, "attention_dim": 6, "layers": 2, "heads": 3}
TUTORIAL = AUTOINT_SMALL | {"variant": "transformer", "bias": True, "position_std": 1.0}
NO_RESIDUAL = AUTOINT_SMALL | {
    "variant": "fuxictr",
    "residual": "none",
    "scale": True,
    "bias": True,
}
AUTOINT_FORMS = {
    "biases on Q, K, V and O": (AutoInt(**TUTORIAL), {}),
    "no residual": (AutoInt(**TUTORIAL, residual="none"), {"residual": False}),
    "no norm": (AutoInt(**TUTORIAL, norm="none"), {"norm": False}),
    "FuxiCTR's, no residual": (
        AutoInt(**NO_RESIDUAL),
        {"residual": False, "norm": False, "ends_in_relu": True},
    ),
    "MLP with GELU": (
        AutoIntPlus(**TUTORIAL, hidden=(5, 4), mlp_activation="gelu"),
        {"activation": nn.GELU},
    ),
    "MLP with tanh": (
        AutoIntPlus(**TUTORIAL, hidden=(5,), mlp_activation="tanh"),
        {"activation": nn.Tanh},
    ),
}


@pytest.mark.parametrize("form", list(AUTOINT_FORMS))
@pytest.mark.parametrize("mode", ["plain", "auto"])
def test_autoint_is_the_tutorials(form, mode):
    settings, choices = AUTOINT_FORMS[form]
    network, batch = lab.randomized(settings.build(LAYOUT)).train(), lab.random_batch(LAYOUT, BATCH)
    tutorial = TutorialAutoInt(network, **choices)
    expected_B = tutorial(batch.ids)
    groups = tutorial.ordered()
    flat = iter(gradients_of(expected_B, [p for group in groups for p in group]))
    expected = [torch.cat([next(flat) for _ in group]) for group in groups]
    names, parameters = zip(*network.named_parameters(), strict=True)
    with use_ops(mode):
        logit_B = network(batch)
        result = gradients_of(logit_B, parameters)
    torch.testing.assert_close(logit_B, expected_B, **EXACT)
    assert network.logit_terms(batch)[0]["attended"].shape == (BATCH, FIELDS)
    for name, mine, theirs in zip(names, result, expected, strict=True):
        torch.testing.assert_close(mine, theirs, **EXACT, msg=name)


# IntTower

NUMBERED = lab.make_layout(
    ("id", "user", 4),
    ("value", "user", 2),
    ("id", "item", 6),
    ("id", "user", 3),
    ("value", "item", 2),
)
USER, ITEM = [0, 3], [2]


class AuthorsTower(nn.Module):
    """A tower of IntTower's authors: Light-SE, the numbers behind the flattened vectors, layers, projections to heads.

    The user's projections read the inputs of the layers, the item's one the last output.
    """

    def __init__(self, tower, projections, reads_inputs):
        super().__init__()
        self.excitation = linear_of(tower.light_se.excite.weight)
        self.linears = nn.ModuleList(
            linear_of(layer[0].weight, layer[0].bias) for layer in tower.mlp.layers
        )
        self.norms = nn.ModuleList(
            nn.BatchNorm1d(layer.out_features, dtype=torch.float64) for layer in self.linears
        )
        with torch.no_grad():
            for mine, layer in zip(self.norms, tower.mlp.layers, strict=True):
                mine.weight.copy_(layer[1].weight)
                mine.bias.copy_(layer[1].bias)
        self.fe_linears = nn.ModuleList(
            linear_of(layer.weight, layer.bias) for layer in projections
        )
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
        own = [
            self.excitation.weight,
            *(p for layer in layers for module in layer for p in module.parameters()),
        ]
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

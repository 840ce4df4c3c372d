"""What every model must do, on every kind of layout."""

import pytest
import torch
from torch.nn import functional as F

from fieldwise.config import parse, to_plain
from fieldwise.layout import Batch
from fieldwise.models import AFM, FM, LR, MODELS, AutoInt, AutoIntPlus, IntTower

SMALL = {
    "lr": LR(),
    "fm": FM(embedding_dim=4),
    "afm": AFM(embedding_dim=4, attention_dim=6, pair_dropout=0.1, attention_dropout=0.1, pooled_dropout=0.1),
    "autoint": AutoInt(embedding_dim=4, attention_dim=6, layers=2, wide=True, attention_dropout=0.1),
    "autoint+": AutoIntPlus(
        embedding_dim=4, attention_dim=6, layers=2, hidden=(8, 6), batch_norm=True, mlp_dropout=0.1
    ),
    "inttower": IntTower(embedding_dim=4, hidden=(8, 6), user_heads=3, item_heads=2, head_dim=4),
}


@pytest.fixture(params=list(MODELS))
def settings(request):
    return SMALL[request.param]


def test_every_model_is_tested_here():
    assert {name: type(s) for name, s in SMALL.items()} == MODELS


def test_settings_survive_plain_values(settings):
    assert parse(type(settings), to_plain(settings), "model") == settings


def test_a_batch_equals_its_single_rows(lab, layout, settings):
    network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 6)
    singles = torch.cat([network(lab.take(layout, batch, [b])) for b in range(6)])
    torch.testing.assert_close(network(batch), singles, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("rows", [0, 1])
def test_small_batches(lab, layout, settings, rows):
    network, batch = settings.build(layout).eval(), lab.batch(layout, rows)
    logit = network(batch)
    assert logit.shape == (rows,)
    assert logit.dtype == torch.float32
    assert torch.isfinite(logit).all()


def without_gradient(network, layout):
    """Names of the parameters that cannot change the output in training, by the model's own mathematics."""
    names = set()
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Sequential):
            names |= {
                f"{name}.{at}.bias"  # batch normalization takes any constant away
                for at, (layer, after) in enumerate(zip(module, list(module)[1:], strict=False))
                if isinstance(layer, torch.nn.Linear) and isinstance(after, torch.nn.BatchNorm1d)
            }
    items = len(layout.positions(role="item"))
    for tower, fields in (("item_tower", items), ("user_tower", layout.num_fields - items)):
        if fields == 1:  # Light-SE weighs the fields by a softmax, and of one field that is 1
            names |= {n for n, _ in network.named_parameters() if n.startswith(f"{tower}.light_se.")}
    return names


def test_gradients_reach_every_parameter_and_are_finite(lab, layout, settings):
    network, batch = lab.randomized(settings.build(layout), seed=1).train(), lab.batch(layout, 16)
    label = (torch.arange(16) % 3 == 0).double()
    F.binary_cross_entropy_with_logits(network(batch), label).backward()
    largest = {}
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        largest[name] = float(parameter.grad.abs().max())
    assert {name for name, size in largest.items() if size < 1e-12} == without_gradient(network, layout)


def test_overfits_a_few_rows(lab, settings):
    layout = lab.layouts["mixed"]
    torch.manual_seed(0)
    network, batch = settings.build(layout).eval(), lab.batch(layout, 16)
    label = (torch.arange(16) % 2).float()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
    for _ in range(120):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(network(batch), label)
        loss.backward()
        optimizer.step()
    assert loss < (0.45 if isinstance(settings, LR) else 0.1)


def test_same_seed_same_network(lab, layout, settings):
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(settings.build(layout).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_state_holds_no_index(lab, settings):
    """What a bundle saves are the weights; what the layout tells is rebuilt from it."""
    names = settings.build(lab.layouts["mixed"]).state_dict()
    assert not [n for n in names if n.split(".")[-1] in ("left", "right", "order", "positions", "is_max")]


@pytest.mark.parametrize("kind", ["categorical", "mixed"])
def test_exports_with_a_dynamic_batch(lab, settings, kind):
    layout = lab.layouts[kind]
    network = lab.randomized(settings.build(layout))
    batch = lab.batch(layout, 6)
    rows = torch.export.Dim("rows", min=0, max=10_000)
    values = torch.export.Dim("values", min=0, max=100_000)
    bag = {0: values} if kind == "mixed" else {}
    shapes = (Batch({0: rows}, {0: rows}, bag, bag, bag),)
    program = torch.export.export(network, (batch,), dynamic_shapes=shapes).module()
    for n in (1, 9):
        other = lab.batch(layout, n, seed=n)
        torch.testing.assert_close(program(other), network(other), atol=1e-12, rtol=0)


def test_compiles_without_graph_breaks(lab, settings):
    layout = lab.layouts["mixed"]
    network, batch = lab.randomized(settings.build(layout)), lab.batch(layout, 6)
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch), network(batch))

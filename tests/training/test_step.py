"""One training step as a whole: fast and plain operations, precision, compilation."""

import numpy as np
import pytest
import torch
from torch import nn

from fieldwise import (
    AFM,
    FM,
    LR,
    AutoInt,
    Callback,
    ConfigError,
    DeepFM,
    IntTower,
    TrainingSettings,
)
from fieldwise.models.build import build_network
from fieldwise.ops import devices, use_ops
from fieldwise.ops.native import NATIVE
from fieldwise.training import step as step_module
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.step import Step

needs_native = pytest.mark.skipif(not NATIVE.ready, reason="no native library")


def step_of(tables, network, **settings):
    return Step(network, tables.train, TrainingSettings(**settings), Objective(), 0)


class Losses(Callback):
    def __init__(self):
        self.found = []

    def on_step(self, step):
        self.found.append(step.loss.item())


def losses(tables, model, **settings):
    progress = Losses()
    given = TrainingSettings(**{"batch_size": 24, "epochs": 2, "learning_rate": 0.05, **settings})
    network = build_network(model, tables.layout, 1)
    names = list(network.state_dict())
    Training(
        network,
        tables.train,
        tables.valid,
        settings=given,
        objective=Objective(),
        seed=1,
        callbacks=(progress,),
    ).run()
    assert list(network.state_dict()) == names
    return np.array(progress.found)


MODELS = {
    "fm": FM(embedding_dim=5),
    "afm": AFM(embedding_dim=5, attention_dim=3, embedding_std=0.5, dropout=0.2),
    "afm-fuxictr": AFM(
        embedding_dim=5, attention_dim=3, embedding_std=0.5, variant="fuxictr", dropout=0.2
    ),
    "autoint": AutoInt(
        embedding_dim=5,
        embedding_std=0.5,
        layers=2,
        heads=2,
        attention_dim=4,
        attention_dropout=0.2,
    ),
    "inttower": IntTower(
        embedding_dim=5,
        embedding_std=0.5,
        hidden=(6, 5),
        user_heads=2,
        item_heads=2,
        head_dim=3,
        dropout=0.2,
    ),
    "deepfm": DeepFM(embedding_dim=5, embedding_std=0.5, hidden=(7, 6), mlp_dropout=0.3),
}


@needs_native
def test_ten_steps_with_fast_and_plain_operations_give_the_same_losses(subtests, tables):
    """Dropout included: every backend drops the same elements."""
    for name in MODELS:
        with subtests.test(name=name):
            with use_ops("plain"):
                plain = losses(tables, MODELS[name])
            fast = losses(tables, MODELS[name])
            assert len(plain) == 10
            assert np.ptp(plain) > 1e-3, "the weights have moved"
            np.testing.assert_allclose(fast, plain, rtol=0, atol=1e-5)


# Precision


def test_bfloat16_rounds_the_forward_pass_and_nothing_else(tables, monkeypatch):
    monkeypatch.setattr(step_module, "slow_bfloat16", lambda _: None)
    model = DeepFM(embedding_dim=4, hidden=(8,), embedding_std=0.5, mlp_dropout=0)
    network = build_network(model, tables.layout, 0)
    batch, y = tables.train.batch(slice(0, 30))
    half, own = step_of(tables, network, precision="bfloat16").forward(batch, y)
    whole = network(batch)
    assert own is None
    assert half.dtype == torch.float32
    error = (half - whole).abs().max().item()
    assert 1e-6 < error < 0.05, "rounded, but not far off"
    nn.functional.binary_cross_entropy_with_logits(half, y).backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in network.parameters())
    result, expected = losses(tables, model, precision="bfloat16"), losses(tables, model)
    np.testing.assert_allclose(result, expected, atol=0.02)
    assert not np.array_equal(result, expected)


def test_a_processor_without_bfloat16_is_a_warning_at_the_start(tables, monkeypatch):
    network = build_network(LR(), tables.layout, 0)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    step_of(tables, network, precision="bfloat16")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    with pytest.warns(UserWarning, match=r"no bfloat16 arithmetic.*set precision = 'float32'"):
        step_of(tables, network, precision="bfloat16")
    assert devices.slow_bfloat16("cuda") is None


# Compilation


DROPPING = DeepFM(embedding_dim=4, hidden=(8,), mlp_dropout=0.5)
# of PyTorch, on its own code
by_itself = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


@by_itself
# torch.compile's own, after a graph break
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("name", ["deepfm", pytest.param("inttower", marks=pytest.mark.slow)])
def test_a_compiled_network_trains_as_the_plain_one(tables, name, monkeypatch):
    model = {
        "deepfm": DeepFM(embedding_dim=4, hidden=(8,), mlp_dropout=0),
        "inttower": IntTower(
            embedding_dim=4, hidden=(6,), user_heads=1, item_heads=1, head_dim=3, dropout=0
        ),
    }[name]
    real = torch.compile
    # no minute of C++ in a test
    monkeypatch.setattr(torch, "compile", lambda f, **_: real(f, backend="aot_eager"))
    batch_size = 50  # 120 rows: the last batch has 20
    np.testing.assert_allclose(
        losses(tables, model, compile=True, batch_size=batch_size), losses(tables, model, batch_size=batch_size),
        atol=1e-5,
    )  # fmt: skip


@by_itself
@pytest.mark.slow
@pytest.mark.parametrize("model", [AFM(embedding_dim=4, attention_dim=3, dropout=0.4), DROPPING])
def test_a_compiled_network_drops_what_the_plain_one_drops(tables, model):
    """By PyTorch's own compiler, which would use another generator."""
    torch._dynamo.reset()
    np.testing.assert_allclose(
        losses(tables, model, compile=True), losses(tables, model), atol=1e-5
    )


def test_compilation_keeps_pytorchs_generator(tables, monkeypatch):
    given = []
    monkeypatch.setattr(torch, "compile", lambda f, **options: given.append(options) or f)
    step_of(tables, build_network(DROPPING, tables.layout, 0), compile=True)
    assert given == [{"options": {"fallback_random": True}}]


@by_itself
def test_without_a_compiler_compile_is_one_sentence(tables, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/g++")
    import torch._inductor.config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", ("/nowhere/g++",))
    torch._dynamo.reset()
    # PyTorch's own patch: undone by monkeypatch the setting would stay, and warn in every later
    # compilation.
    with (
        torch.compiler.config.patch(force_disable_caches=True),
        pytest.raises(
            ConfigError, match=r"compile = true needs a working C\+\+ compiler.*set compile = false"
        ) as e,
    ):
        losses(tables, DeepFM(embedding_dim=3, hidden=(5,)), compile=True)
    assert "\n" not in str(e.value)
    torch._dynamo.reset()

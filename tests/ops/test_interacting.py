"""AutoInt's layer as one op: the plain backend against NumPy, the native one against the plain one."""

import itertools

import numpy as np
import pytest
import torch

from fieldwise import ConfigError
from fieldwise.layers import InteractingLayer, InteractingOptions
from fieldwise.ops import field_attention, use_ops
from fieldwise.ops.dropout import keep_factors
from fieldwise.ops.interacting import RESIDUALS, Choices, interacting
from fieldwise.ops.native import NATIVE


def _random(batch, fields, size):
    torch.manual_seed(0)
    return [
        torch.randn(batch, fields, size, dtype=torch.float64, requires_grad=True) for _ in range(3)
    ]


def test_each_head_is_softmax_of_scores_times_v(subtests):
    for scale in [False, True]:
        for heads in [1, 2, 3]:
            with subtests.test(scale=scale, heads=heads):
                q, k, v = _random(2, 4, 6)
                out, weights = field_attention(q, k, v, heads=heads, scale=scale)
                size = 6 // heads
                for b in range(2):
                    for h in range(heads):
                        part = slice(h * size, (h + 1) * size)
                        q_, k_, v_ = (t[b, :, part].detach().numpy() for t in (q, k, v))
                        e = np.exp(q_ @ k_.T / (np.sqrt(size) if scale else 1.0))
                        a = e / e.sum(1, keepdims=True)
                        np.testing.assert_allclose(weights[b, h].detach(), a, atol=1e-12)
                        np.testing.assert_allclose(out[b, :, part].detach(), a @ v_, atol=1e-12)


needs_native = pytest.mark.skipif(not NATIVE.ready, reason=NATIVE.why)
MODES = ["plain", "auto"]
# Rows, fields, D, A, H.
SHAPES = [
    (1, 1, 3, 4, 1),
    (9, 2, 6, 6, 2),
    (8, 5, 8, 8, 4),
    (17, 10, 10, 64, 2),
    (3, 7, 13, 15, 3),
    (5, 39, 16, 6, 1),
]
CHOICES = [
    dict(
        zip(
            ("residual", "norm", "relu_on_projections", "bias", "scale", "output_relu"),
            values,
            strict=True,
        )
    )
    for values in itertools.product(
        ("none", "projected", "identity"),
        ("none", "before_relu", "after_relu"),
        *[(False, True)] * 4,
    )
]
BUSY = {
    "residual": "projected",
    "norm": "before_relu",
    "relu_on_projections": True,
    "bias": True,
    "scale": True,
}


def _arguments(shape, *, residual="projected", norm="none", bias=False, dtype=torch.float64, **_):
    """x, weight, bias, and the norm's weight and bias; random, so that no ReLU input is exactly 0."""
    batch, fields, dim, size, _ = shape
    torch.manual_seed(0)
    rows = (4 if residual == "projected" else 3) * size
    shapes = [(batch, fields, dim), (rows, dim), (rows,), (size,), (size,)]
    there = [True, True, bias, norm != "none", norm != "none"]
    return [
        torch.randn(s, dtype=dtype).requires_grad_() if t else None
        for s, t in zip(shapes, there, strict=True)
    ]


def _call(arguments, heads, *, bias=False, seed=None, dropout=0.0, **choice):
    if seed is not None:
        torch.manual_seed(seed)
    choices = Choices(heads=heads, dropout=dropout, **choice)
    return interacting(*arguments, choices=choices, training=dropout > 0)


def _present(arguments):
    return [t for t in arguments if t is not None]


def _numpy(x, W, b, norm_weight, norm_bias, heads, keep=None, **options):
    """Row by row and head by head; keep [B, H, F, F]."""
    residual, norm, scale = (options[name] for name in ("residual", "norm", "scale"))
    relu_on_projections, output_relu = options["relu_on_projections"], options["output_relu"]
    parts = 4 if residual == "projected" else 3
    size = len(W) // parts
    inner, result = size // heads, []
    for r, row in enumerate(x):
        projected = row @ W.T + (0.0 if b is None else b)
        if relu_on_projections:
            projected = np.maximum(projected, 0.0)
        q, k, v, *rest = np.split(projected, parts, axis=1)
        y = np.zeros((len(row), size))
        for h in range(heads):
            own = slice(h * inner, (h + 1) * inner)
            e = np.exp(q[:, own] @ k[:, own].T / (np.sqrt(inner) if scale else 1.0))
            a = e / e.sum(1, keepdims=True) * (1.0 if keep is None else keep[r, h])
            y[:, own] = a @ v[:, own]
        y = y + (rest[0] if rest else row if residual == "identity" else 0.0)
        for step in ("before_relu", "relu", "after_relu"):
            if step == "relu" and output_relu:
                y = np.maximum(y, 0.0)
            if step == norm:
                y = (y - y.mean(1, keepdims=True)) / np.sqrt(
                    y.var(1, keepdims=True) + 1e-5
                ) * norm_weight + norm_bias
        result.append(y)
    return np.array(result)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_it_is_the_equations_for_every_choice(mode, dropout, step):
    for choice in CHOICES[::step]:  # 5 and the numbers of alternatives have no common divisor
        arguments = _arguments((2, 3, 6, 6, 2), **choice)
        torch.manual_seed(5)
        seed = torch.randint(0, 2**63 - 1, (1,))[0]
        keep = (
            keep_factors(seed, 2, 2 * 3 * 3, dropout, dtype=torch.float64).view(2, 2, 3, 3).numpy()
        )
        with use_ops(mode):
            result = _call(arguments, 2, seed=5, dropout=dropout, **choice)
        reference = _numpy(
            *(None if t is None else t.detach().numpy() for t in arguments), 2, keep, **choice
        )
        np.testing.assert_allclose(result.detach(), reference, atol=1e-11, err_msg=str(choice))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_gradients_are_those_of_finite_differences(mode, dropout):
    for choice in CHOICES[::11] if mode == "auto" else CHOICES[::29]:
        arguments = _arguments((2, 3, 4, 4, 2), **choice)

        def layer(*present, choice=choice, arguments=arguments):
            values = iter(present)
            return _call(
                [None if t is None else next(values) for t in arguments],
                2,
                seed=1,
                dropout=dropout,
                **choice,
            )

        with use_ops(mode):
            assert torch.autograd.gradcheck(layer, _present(arguments), fast_mode=True), choice


@needs_native
def test_native_and_plain_give_the_same_numbers(subtests):
    for shape in SHAPES:
        for dtype, tolerance in [(torch.float64, 1e-10), (torch.float32, 1e-4)]:
            with subtests.test(shape=shape, dtype=dtype, tolerance=tolerance):
                for number, choice in enumerate(CHOICES[::7]):
                    if choice["residual"] == "identity" and shape[2] != shape[3]:
                        continue
                    if dtype == torch.float32 and (
                        choice["norm"] != "none" or choice["relu_on_projections"]
                    ):
                        continue  # a deviation near 0 or a ReLU's corner tells roundings apart
                    results = []
                    for mode in ("plain", "native"):
                        arguments = _arguments(shape, dtype=dtype, **choice)
                        with use_ops(mode):
                            y = _call(
                                arguments, shape[4], seed=1, dropout=0.3 * (number % 2), **choice
                            )
                        results.append(
                            [y, *torch.autograd.grad(y.square().sum(), _present(arguments))]
                        )
                    for plain, native in zip(*results, strict=True):
                        spread = float(plain.detach().abs().max()) + 1.0
                        assert float((native - plain).detach().abs().max()) <= tolerance * spread, (
                            choice
                        )


def test_nan_and_infinity_stay_in_their_row(subtests):
    for norm in ["none", "before_relu", "after_relu"]:
        for bad in [float("nan"), float("inf")]:
            for mode in MODES:
                with subtests.test(norm=norm, bad=bad, mode=mode):
                    choice = BUSY | {"norm": norm, "relu_on_projections": False}
                    arguments = _arguments((20, 4, 3, 6, 2), dtype=torch.float32, **choice)
                    x, weight = arguments[:2]
                    clean = _call(arguments, 2, **choice)
                    with torch.no_grad():
                        x[7, 2, 1] = bad
                    with use_ops(mode):
                        spoilt = _call(arguments, 2, **choice)
                        into_x, into_weight = torch.autograd.grad(spoilt.sum(), (x, weight))
                    assert spoilt[7].isnan().any()
                    assert into_x[7].isnan().any()
                    assert into_weight.isnan().any()
                    others = torch.arange(20) != 7
                    torch.testing.assert_close(spoilt[others], clean[others])
                    assert into_x[others].isfinite().all()


@pytest.mark.parametrize("mode", MODES)
def test_large_scores_neither_overflow_nor_vanish(mode):
    x, weight = (t.detach() for t in _arguments((4, 5, 3, 6, 2), dtype=torch.float32)[:2])
    arguments = [x * 30, weight, None, None, None]
    with use_ops(mode):
        result = _call(arguments, 2)
    with use_ops("plain"):
        reference = _call([None if t is None else t.double() for t in arguments], 2)
    torch.testing.assert_close(result.double(), reference, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("mode", MODES)
def test_scores_of_which_all_are_far_below_zero_are_a_softmax_too(mode):
    """Every score is -200, whose exponential is 0 in float32: each field gets the mean of the values."""
    x = torch.randn(20, 5, 2)
    x[..., 0] = 1.0
    weight = torch.tensor([[-200.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # query, key and value
    with use_ops(mode):
        y = interacting(x, weight, choices=Choices(1, "none", output_relu=False))
    torch.testing.assert_close(y, x[..., 1:].mean(1, keepdim=True).expand(20, 5, 1))


def test_dropout_needs_training():
    x, weight = (t.detach() for t in _arguments((1, 4, 3, 6, 2), residual="none")[:2])
    choice = {"heads": 2, "residual": "none", "output_relu": False}
    calm = interacting(x, weight, choices=Choices(**choice))
    dropping = Choices(dropout=0.5, **choice)
    assert torch.equal(calm, interacting(x, weight, choices=dropping))
    assert not torch.equal(calm, interacting(x, weight, choices=dropping, training=True))


@needs_native
def test_autocast_leaves_it_in_float32_on_other_processors(monkeypatch):
    monkeypatch.setitem(vars(NATIVE), "bfloat16", False)
    arguments = _arguments((5, 4, 6, 6, 2), dtype=torch.float32, **BUSY)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = _call([arguments[0].bfloat16(), *arguments[1:]], 2, **BUSY)
    assert mixed.dtype == torch.float32
    gradient = torch.autograd.grad(mixed.sum(), arguments[1])[0]
    assert gradient.dtype == torch.float32
    rounded = [arguments[0].bfloat16().float(), *arguments[1:]]
    torch.testing.assert_close(mixed, _call(rounded, 2, **BUSY))


def _rounded(tensor):
    return tensor.detach().bfloat16().float().requires_grad_()


@pytest.mark.skipif(not NATIVE.bfloat16, reason="this machine has no bfloat16 kernels")
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("shape", [(37, 7, 5, 15, 3), (16, 10, 10, 64, 4), (5, 23, 64, 64, 4)])
def test_bfloat16_products_are_those_of_rounded_operands(shape, dropout, subtests):
    """With operands that bfloat16 holds, the forward pass has no other rounding; gradients are rounded once more."""
    for residual, norm, relu in itertools.product(
        ("none", "projected", "identity"), ("none", "before_relu", "after_relu"), (False, True)
    ):
        choice = {"residual": residual, "norm": norm, "relu_on_projections": relu, "bias": relu}
        choice["scale"] = shape[3] == 64  # a quarter, by which the weights stay those of bfloat16
        if residual == "identity" and shape[2] != shape[3]:
            continue
        with subtests.test(**choice):
            arguments = _arguments(shape, dtype=torch.float32, **choice)
            arguments = [
                _rounded(t / shape[2] ** 0.5) if k < 2 else t for k, t in enumerate(arguments)
            ]
            results = []
            for half in (False, True):
                with torch.autocast("cpu", torch.bfloat16, enabled=half):
                    y = _call(arguments, shape[4], seed=1, dropout=dropout, **choice)
                assert y.dtype == torch.float32
                weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
                results.append([y.detach(), *torch.autograd.grad(y, _present(arguments), weights)])
            (y, *grads), (half_y, *half_grads) = results
            torch.testing.assert_close(half_y, y, rtol=1e-5, atol=1e-5)
            for grad, half_grad in zip(grads, half_grads, strict=True):
                assert float((half_grad - grad).norm()) <= 0.01 * float(grad.norm())
            assert not torch.equal(half_grads[1], grads[1])  # it was the other kernel


@pytest.mark.skipif(not NATIVE.bfloat16, reason="this machine has no bfloat16 kernels")
def test_bfloat16_rounds_weights_and_inputs_to_the_nearest_even():
    """A lone field attends to itself: y = V x, of numbers halfway between two of bfloat16, and of one that is NaN."""
    x = torch.tensor([[[1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 0.0]], [[torch.nan, 0.0, 0.0, 0.0]]])
    value = torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 2.0 + 2**-7, 0.0, 5.0]])
    weight = torch.cat([torch.zeros(4, 4), value])
    with torch.autocast("cpu", torch.bfloat16):
        y = interacting(x, weight, choices=Choices(1, "none", output_relu=False))
    assert y[0, 0].tolist() == [1.0 + 1.0 + 1.0 + 2**-6, 2.0]
    assert y[1].isnan().all()


def test_sizes_that_do_not_fit_are_named(subtests):
    for shapes, choice, message in [
        ([(2, 3, 4), (8, 5)], {}, r"the fields' vectors must be \[B, F, 5\]"),
        ([(2, 3, 4), (12, 4)], {}, "4 equal parts divisible by heads, found 12 rows and 2 heads"),
        (
            [(2, 3, 4), (24, 4)],
            {"residual": "identity"},
            "as many outputs as inputs, found 8 and 4",
        ),
        ([(2, 3, 4), (8, 4), (4,)], {}, "the bias must have 8 entries"),
        ([(2, 3, 4), (8, 4)], {"norm": "before_relu"}, "a weight and a bias of 2 entries"),
        (
            [(2, 3, 4), (8, 4), (8,), (2,), (2,)],
            {"norm": "before_relu", "epsilon": 0.0},
            r"epsilon must be above 0, found 0\.0",
        ),
    ]:
        with (
            subtests.test(shapes=shapes, choice=choice, message=message),
            pytest.raises(ConfigError, match=message),
        ):
            interacting(*(torch.ones(s) for s in shapes), choices=Choices(heads=2, **choice))


def test_forward_and_attend_give_the_same(subtests):
    """`forward` runs the op, `attend` the steps one by one."""
    for size, residual, output_projection, mode in itertools.product(
        (4, 6), RESIDUALS, (False, True), MODES
    ):
        choices = {"residual": residual, "output_projection": output_projection}
        with subtests.test(size=size, mode=mode, **choices):
            torch.manual_seed(0)
            options = InteractingOptions(
                **choices, bias=True, relu_on_projections=True, norm="after_relu"
            )
            layer = InteractingLayer(4, size, 2, options, 0.3).double()
            x, result = torch.randn(5, 3, 4, dtype=torch.float64), []
            with use_ops(mode):
                for call in (layer.forward, layer.attend):
                    torch.manual_seed(1)
                    result.append(call(x))
            torch.testing.assert_close(result[0], result[1][0])

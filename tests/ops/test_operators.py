"""What all operators owe: inputs that would mislead a kernel are refused, and derivatives that they lack are errors."""

import pytest
import torch
from torch.autograd import forward_ad

from fieldwise import ConfigError
from fieldwise.ops import max_sim, pair_attention_pool, pair_indices, use_ops
from fieldwise.ops.dropout import dropout
from fieldwise.ops.fm import fm_logit
from fieldwise.ops.interacting import Choices, interacting
from fieldwise.ops.native import ISAS, NATIVE, backend_of
from fieldwise.ops.rows import RowRule, gather_rows, group_rows, squares_of_rows, update_rows_

needs_native = pytest.mark.skipif(not NATIVE.ready, reason=NATIVE.why)
PAIRS = pair_indices(4)
IDS = torch.tensor([[0, 1], [2, 2]])

# Each op of several floating-point tensors, and these tensors' sizes.
OPS = {
    "pair attention": (
        lambda x, W, b, h: pair_attention_pool(x, *pair_indices(x.shape[1]), W, b, h),
        [(3, 4, 2), (5, 2), (5,), (5,)],
    ),
    "interacting": (
        lambda x, weight: interacting(x, weight, choices=Choices(heads=1)),
        [(3, 4, 2), (8, 2)],
    ),
    "max_sim": (max_sim, [(3, 4, 2), (3, 5, 2)]),
    "fm": (lambda table, first: fm_logit(table, first, IDS), [(6, 3), (6, 1)]),
}
each_op = pytest.mark.parametrize("name", OPS)


def tensors(sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for s in sizes
    ]


def dropped_pairs(x, W, b, h):
    drops = {"pair_dropout": 0.3, "attention_dropout": 0.2, "training": True}
    return pair_attention_pool(x, *pair_indices(x.shape[1]), W, b, h, **drops)


BUSY = {"residual": "projected", "norm": "before_relu", "relu_on_projections": True, "scale": True}


def busy_interacting(x, weight, bias, norm_weight, norm_bias):
    norms = {"norm_weight_A": norm_weight, "norm_bias_A": norm_bias}
    choices = Choices(heads=2, **BUSY, dropout=0.2)
    return interacting(x, weight, bias_N=bias, **norms, choices=choices, training=True)


MANY = torch.randint(50, (8, 8192), generator=torch.Generator().manual_seed(1)).t()
LARGE = {  # `worth` in native/parallel.h keeps less than 2^18 numbers a thread on one
    "pair attention": (dropped_pairs, [(2053, 10, 14), (15, 14), (15,), (15,)]),
    "interacting": (busy_interacting, [(301, 6, 5), (24, 5), (24,), (6,), (6,)]),
    "max_sim": (max_sim, [(301, 9, 7), (301, 5, 7)]),
    "fm": (lambda table, first: fm_logit(table, first, MANY), [(50, 16), (50, 1)]),
    "dropout": (lambda x: dropout(x, 0.3, True), [(4100, 257)]),
}


def all_of(op, inputs):
    """The output and the gradients, by one seed."""
    torch.manual_seed(3)
    out = op(*inputs)
    return out, *torch.autograd.grad((out * out.detach().cos()).sum(), inputs)


@needs_native
@pytest.mark.parametrize("name", LARGE)
def test_threads_change_no_bit(name, same_on_all_threads):
    op, sizes = LARGE[name]
    inputs = tensors(sizes, torch.float32)
    with use_ops("native"):
        same_on_all_threads(lambda: all_of(op, inputs))


def with_other_strides(t):
    if t.ndim > 1:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    return torch.stack([t, t]).t().reshape(-1)[::2]


@needs_native
@pytest.mark.parametrize("name", LARGE)
def test_strides_and_an_expanded_gradient_do_not_matter(name):
    op, sizes = LARGE[name]
    inputs = [t.detach() for t in tensors(sizes)]
    strided = [with_other_strides(t) for t in inputs]
    with use_ops("native"):
        results = [all_of(op, [t.requires_grad_() for t in x]) for x in (strided, inputs)]
        for upstream in (lambda y: torch.ones(1, dtype=y.dtype).expand_as(y), torch.ones_like):
            torch.manual_seed(3)
            y = op(*inputs)
            results.append(torch.autograd.grad(y, inputs, upstream(y)))
    for ours, expected in zip(results[0] + results[2], results[1] + results[3], strict=True):
        assert torch.equal(ours, expected)


@needs_native
@pytest.mark.parametrize("name", LARGE)
def test_all_instruction_sets_give_the_same(name, monkeypatch):
    """All builds of the kernels that this machine can run."""
    op, sizes = LARGE[name]
    inputs, best = tensors(sizes), NATIVE.isa
    with use_ops("plain"):
        reference = all_of(op, inputs)
    for isa in ISAS[: ISAS.index(best) + 1]:
        monkeypatch.setitem(vars(NATIVE), "isa", isa)
        with use_ops("native"):
            for ours, expected in zip(all_of(op, inputs), reference, strict=True):
                torch.testing.assert_close(
                    ours,
                    expected,
                    rtol=1e-7,
                    atol=1e-9 * (1 + float(expected.detach().abs().max())),
                )


@pytest.mark.parametrize("mode", ["plain", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("name", [*OPS, "dropped pairs", "dropout"])
def test_gradients_are_those_of_finite_differences(name, mode):
    more = {
        "dropped pairs": (dropped_pairs, OPS["pair attention"][1]),
        "dropout": (LARGE["dropout"][0], [(4, 9)]),
    }
    op, sizes = (OPS | more)[name]

    def seeded(*inputs):
        torch.manual_seed(1)  # the same mask at every call
        return op(*inputs)

    with use_ops(mode):
        assert torch.autograd.gradcheck(seeded, tensors(sizes))


def rule_cases():
    """The arguments of each operator, of which the quickest to check is no slow test."""
    x, W, b, h = tensors(OPS["pair attention"][1])
    layer, seed = tensors([(5, 4, 3), (24, 3), (24,), (6,), (6,)]), torch.tensor([7])
    bare = [*tensors([(5, 4, 3), (18, 3)]), None, None, None]
    yield pytest.param("max_sim", tuple(tensors([(2, 3, 4), (2, 33, 4)])))
    for name, arguments in [
        ("pair_attention_pool", (x, *PAIRS, W, b, h, torch.tensor([1, 2]), 0.2, 0.3)),
        ("interacting", (*bare, seed, 2, "none", "none", False, False, True, 1e-5, 0.3, False)),
        (
            "interacting",
            (*layer, seed, 2, "projected", "before_relu", True, True, True, 1e-5, 0.3, False),
        ),
        ("fm_logit", (*tensors(OPS["fm"][1]), IDS)),
        ("dropout", (*tensors([(4, 9)]), seed, 0.25)),
    ]:
        yield pytest.param(name, arguments, marks=pytest.mark.slow)


@needs_native
@pytest.mark.parametrize(("name", "arguments"), list(rule_cases()))
def test_operators_keep_the_rules_of_pytorch(name, arguments):
    torch.library.opcheck(getattr(torch.ops.fieldwise, name).default, arguments)


@needs_native
@each_op
def test_compile_and_export_go_through_the_operator(name):
    op, sizes = OPS[name]

    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return op(*inputs)

    inputs = tensors(sizes)
    constants, rows = [t.detach() for t in inputs], torch.export.Dim("rows", min=2)
    dynamic = tuple({0: rows} if t.ndim == 3 else None for t in inputs)
    with use_ops("native"):
        reference = all_of(op, inputs)
        compiled = all_of(torch.compile(op, fullgraph=True, backend="aot_eager"), inputs)
        exported = torch.export.export(Module(), tuple(constants), dynamic_shapes=(dynamic,))
    for ours, expected in zip(compiled, reference, strict=True):
        torch.testing.assert_close(ours, expected)
    assert "fieldwise." in exported.graph_module.code
    fewer = [t[:2] if t.ndim == 3 else t for t in constants]
    torch.testing.assert_close(exported.module()(*fewer), reference[0][:2].detach())
    portable = torch.export.export(Module(), tuple(constants))
    assert "fieldwise" not in portable.graph_module.code
    torch.testing.assert_close(portable.module()(*constants), reference[0].detach())


@needs_native
@each_op
def test_a_second_derivative_is_an_error_and_not_left_out(name):
    op, sizes = OPS[name]
    inputs = tensors(sizes)
    with use_ops("native"):
        first = torch.autograd.grad(op(*inputs).square().sum(), inputs, create_graph=True)
        with pytest.raises(RuntimeError, match=r"second derivatives use use_ops\('plain'\)"):
            torch.autograd.grad(first[1].square().sum(), inputs, allow_unused=True)
    with use_ops("plain"):
        first = torch.autograd.grad(op(*inputs).square().sum(), inputs, create_graph=True)
        assert torch.autograd.grad(first[1].square().sum(), inputs[1])[0].abs().sum() > 0


@needs_native
@each_op
def test_tensors_of_several_types_are_never_read_as_one(name):
    op, sizes = OPS[name]
    mixed = [t.detach() for t in tensors(sizes)]
    mixed[1] = mixed[1].float()
    with (
        use_ops("native"),
        pytest.raises(ConfigError, match=r"float32 on cpu, torch\.float64 on cpu"),
    ):
        op(*mixed)
    with torch.autocast("cpu", torch.bfloat16):  # it leaves float64 as it is
        assert backend_of(*mixed) == "plain"
        assert backend_of(*(t.bfloat16() for t in mixed)) == "native"
        assert backend_of(*(t.bfloat16() for t in mixed), autocasts=False) == "plain"


@needs_native
def test_an_operator_called_by_itself_refuses_mixed_types_too():
    user, item = (t.detach() for t in tensors(OPS["max_sim"][1]))
    with pytest.raises(ConfigError, match="all float32 or all float64, found float32, float64"):
        torch.ops.fieldwise.max_sim(user, item.float())


@each_op
def test_autocast_computes_in_float32_on_every_backend(name):
    op, sizes = OPS[name]
    inputs = [t.detach() for t in tensors(sizes, torch.bfloat16)]
    reference = op(*(t.float() for t in inputs))
    for mode in ("plain", "auto"):
        with use_ops(mode), torch.autocast("cpu", torch.bfloat16):
            result = op(*inputs)
        assert result.dtype == torch.float32
        torch.testing.assert_close(result, reference)


def test_a_narrow_table_is_gathered_as_it_is_under_autocast():
    table, ids = torch.randn(6, 5).bfloat16(), torch.tensor([5, 0])
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(gather_rows(table, ids), table[ids])
        groups, moved = group_rows(ids, 6), table.clone()
        update_rows_(moved, (), groups, torch.ones(2, 5).bfloat16(), RowRule(name="sgd", rate=1.0))
    assert torch.equal(moved[ids], table[ids] - 1)


@pytest.fixture
def memory_of_nan():
    """PyTorch fills new memory with NaN (integers with their largest value), to detect unwritten elements."""
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.utils.deterministic.fill_uninitialized_memory = before[1]


def interacting_case(batch, norm, residual, bias, normed):
    """The layer with some of its optional operands given, whether or not the choices read them."""
    names = [*(["bias_N"] if bias else []), *(["norm_weight_A", "norm_bias_A"] if normed else [])]
    rows = 8 if residual == "projected" else 6
    sizes = {"bias_N": (rows,), "norm_weight_A": (2,), "norm_bias_A": (2,)}

    def op(x, weight, *rest):
        return interacting(
            x, weight, **dict(zip(names, rest, strict=True)), choices=Choices(1, residual, norm)
        )

    return op, [(batch, 4, 2), (rows, 2), *(sizes[name] for name in names)]


WRITTEN = {
    **OPS,
    **{
        f"interacting {norm} {residual} {bias} {normed}": interacting_case(
            3, norm, residual, bias, normed
        )
        for norm, residual, bias, normed in [
            ("none", "none", False, False),
            ("none", "projected", True, True),
            ("none", "identity", False, True),
            ("before_relu", "projected", False, True),
            ("after_relu", "identity", True, True),
        ]
    },
    "interacting no rows": interacting_case(0, "after_relu", "projected", True, True),
    "pair attention no rows": (OPS["pair attention"][0], [(0, 4, 2), (5, 2), (5,), (5,)]),
    "pair attention one pair": (OPS["pair attention"][0], [(3, 2, 2), (5, 2), (5,), (5,)]),
    "max_sim no rows": (max_sim, [(0, 4, 2), (0, 5, 2)]),
    "max_sim one head": (max_sim, [(3, 4, 2), (3, 1, 2)]),
    "fm no rows": (lambda table, first: fm_logit(table, first, IDS[:0]), [(6, 3), (6, 1)]),
    "fm no fields": (lambda table, first: fm_logit(table, first, IDS[:, :0]), [(6, 3), (6, 1)]),
    "gather_rows": (lambda table: gather_rows(table, IDS), [(6, 3)]),
    "gather no rows": (lambda table: gather_rows(table, IDS[:0]), [(6, 3)]),
    "dropout": (lambda x: dropout(x, 0.5, True), [(5, 7)]),
    "dropout no rows": (lambda x: dropout(x, 0.5, True), [(0, 7)]),
}


@needs_native
def test_every_output_and_gradient_is_written(subtests, memory_of_nan):
    """By both backends the same, also where an operand is given that nothing reads: then there is no gradient."""
    for name in WRITTEN:
        with subtests.test(name=name):
            op, sizes = WRITTEN[name]
            results = {}
            for mode in ("plain", "native"):
                torch.manual_seed(0)
                inputs = tensors(sizes)
                with use_ops(mode):
                    out = op(*inputs)
                    results[mode] = (
                        out,
                        *torch.autograd.grad(
                            (out * out.detach().cos()).sum(), inputs, allow_unused=True
                        ),
                    )
            for ours, expected in zip(results["native"], results["plain"], strict=True):
                assert (ours is None) == (expected is None)
                if ours is not None:
                    torch.testing.assert_close(ours, expected)


@needs_native
def test_the_operator_itself_writes_a_gradient_of_a_norm_that_is_not_there(memory_of_nan):
    x, weight, norm_weight, norm_bias = tensors([(3, 4, 2), (8, 2), (2,), (2,)])
    seed, choices = (
        torch.zeros(1, dtype=torch.int64),
        (1, "projected", "none", False, False, True, 1e-5, 0.0, False),
    )
    out = torch.ops.fieldwise.interacting(x, weight, None, norm_weight, norm_bias, seed, *choices)
    assert [g.tolist() for g in torch.autograd.grad(out.sum(), [norm_weight, norm_bias])] == [
        [0, 0],
        [0, 0],
    ]


DUAL = OPS | {"gather_rows": WRITTEN["gather_rows"], "dropout": WRITTEN["dropout"]}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # PyTorch's own rules use it
@pytest.mark.parametrize("name", DUAL)
def test_forward_mode_differentiation_has_the_right_tangent(name):
    """All inputs move; the slope between two points is the tangent."""
    op, sizes = DUAL[name]
    inputs = [t.detach() for t in tensors(sizes)]
    generator = torch.Generator().manual_seed(1)
    ways = [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in inputs]

    def moved(step):
        torch.manual_seed(0)
        return op(*(t + step * way for t, way in zip(inputs, ways, strict=True)))

    with forward_ad.dual_level():
        torch.manual_seed(0)
        duals = (forward_ad.make_dual(t, way) for t, way in zip(inputs, ways, strict=True))
        tangent = forward_ad.unpack_dual(op(*duals)).tangent
    assert tangent is not None
    torch.testing.assert_close(tangent, (moved(1e-6) - moved(-1e-6)) / 2e-6, atol=1e-7, rtol=1e-6)


@needs_native
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_native_operations_refuse_tangents():
    op, sizes = OPS["max_sim"]
    user, item = (t.detach() for t in tensors(sizes))
    with (
        forward_ad.dual_level(),
        use_ops("native"),
        pytest.raises(ConfigError, match="no forward-mode derivative"),
    ):
        op(user, forward_ad.make_dual(item, item))


@each_op
def test_transforms_of_functions_find_plain_pytorch(name):
    op, sizes = OPS[name]
    inputs = [t.detach() for t in tensors(sizes)]
    leaves = [t.clone().requires_grad_() for t in inputs]
    reference = torch.autograd.grad(op(*leaves).sum(), leaves)
    result = torch.func.grad(lambda *t: op(*t).sum(), argnums=tuple(range(len(inputs))))(*inputs)
    for ours, expected in zip(result, reference, strict=True):
        torch.testing.assert_close(ours, expected)


@needs_native
@pytest.mark.parametrize("pairs", [([0, -1], [1, 2]), ([0, 1], [1, 4])])
def test_a_pair_of_no_field_is_an_error(pairs):
    x, W, b, h = tensors(OPS["pair attention"][1])
    with use_ops("native"), pytest.raises(IndexError, match="pairs must be of fields 0 to 3"):
        pair_attention_pool(x, *(torch.tensor(side) for side in pairs), W, b, h)


@needs_native
def test_sizes_that_do_not_fit_are_refused(subtests):
    for name, sizes in [
        ("pair attention", [(3, 4, 2), (5, 3), (5,), (5,)]),
        ("pair attention", [(3, 4, 2), (5, 2), (4,), (5,)]),
        ("pair attention", [(3, 4, 2), (5, 2), (5,), (5, 1)]),
        ("fm", [(6, 3), (5, 1)]),
        ("fm", [(6, 3), (6,)]),
        ("max_sim", [(3, 4, 2), (3, 5, 3)]),
    ]:
        with (
            subtests.test(name=name, sizes=sizes),
            use_ops("native"),
            pytest.raises(ValueError, match="takes"),
        ):
            OPS[name][0](*tensors(sizes))


@needs_native
def test_an_update_that_does_not_fit_its_table_is_refused(subtests):
    for rule in ["sgd", "adagrad", "rowwise_adagrad", "adam"]:
        with subtests.test(rule=rule):
            table, groups, grads = (
                torch.zeros(6, 2),
                group_rows(torch.tensor([1, 5, 1]), 6),
                torch.ones(3, 2),
            )
            shapes = {
                "sgd": [],
                "adagrad": [(6, 2)],
                "rowwise_adagrad": [(6,)],
                "adam": [(6, 2), (6, 2)],
            }[rule]
            states, how = [torch.zeros(s) for s in shapes], RowRule(name=rule, rate=0.1)
            with use_ops("native"):
                with pytest.raises(IndexError, match="0 to 4, found 1 to 5"):
                    update_rows_(table[:5], [s[:5] for s in states], groups, grads, how)
                with pytest.raises(ConfigError, match="a gradient"):
                    update_rows_(table, states, groups, grads[:2], how)
                with pytest.raises(ConfigError, match="a gradient"):
                    squares_of_rows(table, groups, torch.ones(3, 1), 0.0)
                with pytest.raises(ConfigError, match=f"for {rule}, found"):
                    update_rows_(table, [*states[1:], torch.zeros(6, 3)], groups, grads, how)
                assert not table.any()
                before = table._version
                update_rows_(table, states, groups, grads, how)
            assert table._version > before  # so that a backward pass that saved it finds out


@needs_native
def test_ids_that_changed_under_a_graph_are_refused():
    """NumPy writes past PyTorch's count of versions."""
    ids = IDS.int().numpy().copy()
    table, first = tensors(OPS["fm"][1])
    with use_ops("native"):
        logit = fm_logit(table, first, torch.from_numpy(ids))
        ids[1, 1] = 77
        with pytest.raises(IndexError, match="0 to 5, found 77 at position 3"):
            logit.sum().backward()

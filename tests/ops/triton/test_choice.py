"""Which backend runs on a GPU, and that kernels compile for one; neither needs a GPU."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import fieldwise.ops.triton as triton_backends
from fieldwise.ops import use_ops
from fieldwise.ops.backends import backend_of

# Every kernel, as its host function launches it, for one size of each kind of tile.
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from fieldwise.ops.triton import keep_kernels, maxsim, maxsim_kernels, pair_attention, pair_attention_kernels as pairs

def signature(kernel, constants, byte):
    for name in kernel.arg_names:
        if name in constants:
            yield name, "constexpr"
        elif name.startswith("factor"):
            yield name, "fp32"
        elif name in ("grad_B",) or "_" in name and not name.startswith(("low", "high", "threshold")):
            kind = {"slots_FF": "i32", "wins_BHW": "i32", "rows_C": "i64"}.get(name, "fp32")
            yield name, "*" + ("i8" if byte and name in ("user_UHP", "item_NKP") else kind)
        else:
            yield name, "i32"

def build(kernel, options, byte=False, **constants):
    blocks = {k: v for k, v in options.items() if k.isupper()} | constants
    source = ASTSource(fn=kernel, signature=dict(signature(kernel, blocks, byte)), constexprs=blocks)
    rest = {k: v for k, v in options.items() if not k.isupper()}
    print(kernel.__name__, len(triton.compile(source, target=GPUTarget("cuda", 80, 32), options=rest).asm["cubin"]))

for size, attention, drop in [(16, 16, True), (10, 40, False)]:
    blocks = pair_attention._blocks(size, attention)
    build(pairs.forward_kernel, blocks, DROP_0=drop, DROP_1=drop)
    build(pairs.row_kernel, blocks, DROP_0=drop, DROP_1=drop, N=8)
    build(pairs.weight_kernel, blocks, DROP_0=drop)
build(keep_kernels.dropout_kernel, {"BLOCK": 256})
blocks = maxsim._blocks(3, 40, 32)
build(maxsim_kernels.forward_kernel, blocks)
build(maxsim_kernels.backward_kernel, blocks, BLOCK_W=2)
stored = {"BLOCK_C": 4, "BLOCK_H": 4, "BLOCK_K": 32, "BLOCK_P": 32, "num_warps": 4}
build(maxsim_kernels.stored_kernel, stored, ROWS=False, BYTES=False)
build(maxsim_kernels.stored_kernel, stored, byte=True, ROWS=True, BYTES=True)
"""


def test_float32_on_a_gpu_is_tritons_where_it_is_installed():
    best = "triton" if triton_backends.READY else "plain"
    single, double = (SimpleNamespace(is_cuda=True, dtype=t) for t in (torch.float32, torch.float64))
    assert backend_of(single, single, triton=True) == best
    assert backend_of(single) == "plain"
    assert backend_of(double, triton=True) == "plain"
    assert backend_of(single, double, triton=True) == "plain"
    with use_ops("plain"):
        assert backend_of(single, triton=True) == "plain"


@pytest.mark.parametrize("name", sorted(triton_backends.OPERATORS))
def test_every_operator_has_an_implementation_on_gpus(installed, name):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fieldwise::{name}", "CUDA")


@pytest.mark.slow
def test_importing_fieldwise_does_not_import_triton():
    code = "import sys, fieldwise.ops; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_kernels_compile_for_nvidia_gpus(installed, tmp_path):
    # The interpreter takes much that the compiler does not.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path)}
    script = tmp_path / "script.py"
    script.write_text(COMPILE)
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 11

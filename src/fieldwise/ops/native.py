"""The native CPU library, loaded for the best instruction set of this machine, and the choice of an op's backend.

An op runs in plain PyTorch, the reference, or in a kernel of the library: a shared library of C
functions that take pointers and sizes (sources in `native/`, built by CMake when the package is
installed), so one build works with every Python and PyTorch version. It runs on PyTorch's OpenMP
threads, `torch.get_num_threads()` of them. Two environment variables are for tests:
FIELDWISE_NATIVE is the path of another build of the library, FIELDWISE_ISA a lower instruction set.
"""

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast, get_args

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.library import Library, register_autocast, register_autograd, register_fake

from fieldwise.errors import ConfigError

ISAS = ("baseline", "avx2", "avx512")  # in the order of the library's fw_isa()
VERSION = 5  # version of the library's interface: fw_version() in native/parallel.cpp
OPENMP = ("libgomp", "libomp", "libiomp5")
TYPE_NAMES = {torch.float32: "float", torch.float64: "double"}


@dataclass(frozen=True)
class Native:
    """The native library, or the reason why there is none.

    Args:
        library: None if it cannot be used.
        isa: the instruction set of the kernels.
        threaded: whether PyTorch's OpenMP was found; without it, kernels run on one thread.
        why: a sentence for `fieldwise doctor`.
        bfloat16: whether it has kernels with products in bfloat16 that this machine runs.
    """

    library: ctypes.CDLL | None
    isa: str
    threaded: bool
    why: str
    bfloat16: bool = False

    @property
    def ready(self) -> bool:
        """Whether native kernels can be called."""
        return self.library is not None

    def call(self, name: str, *arguments: Any) -> None:
        """Call a kernel on `torch.get_num_threads()` threads.

        It takes a contiguous CPU tensor as the address of its first element, and a tuple as an
        array of int64.

        Errors:
            MemoryError: the kernel could not allocate its scratch space.
        """
        in_c: list[Any] = []
        for given in arguments:
            if isinstance(given, Tensor):
                in_c.append(ctypes.c_void_p(given.data_ptr()))
            else:
                in_c.append(
                    (ctypes.c_int64 * len(given))(*given) if isinstance(given, tuple) else given
                )
        if getattr(self.library, f"{name}_{self.isa}")(torch.get_num_threads(), *in_c):
            raise MemoryError(f"the native kernel {name} could not allocate its scratch space")


def type_name(*tensors: Tensor) -> str:
    """The type in a kernel's name, `float` or `double`, which all its tensors must have.

    Errors:
        ConfigError: tensors of different types, or of another type.
    """
    types = {t.dtype for t in tensors}
    name = TYPE_NAMES.get(tensors[0].dtype)
    if name is None or len(types) > 1:
        result = ", ".join(sorted(str(t).removeprefix("torch.") for t in types))
        raise ConfigError(
            f"native ops take tensors that are all float32 or all float64, found {result}: convert them"
        )
    return name


def _load() -> Native:
    spec = importlib.util.find_spec("fieldwise._native")
    path = os.environ.get("FIELDWISE_NATIVE") or (spec.origin if spec else None)
    if path is None:
        return _absent(
            "it was not built when fieldwise was installed (no working C++ compiler, or a pure wheel)"
        )
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        return _absent(f"it cannot be loaded ({e})")
    result = int(library.fw_version()) if hasattr(library, "fw_version") else 0
    if result != VERSION:
        return _absent(
            f"it has version {result}, this fieldwise needs {VERSION}: reinstall fieldwise"
        )
    best = int(library.fw_isa())
    wanted = os.environ.get("FIELDWISE_ISA")
    if wanted is not None and wanted not in ISAS[: best + 1]:
        return _absent(
            f"FIELDWISE_ISA must be one of {', '.join(ISAS[: best + 1])} on this machine, found {wanted!r}"
        )
    isa = wanted or ISAS[best]
    threaded = False
    for runtime in loaded_openmp():  # the library gets the entry point of PyTorch's OpenMP
        with suppress(OSError, AttributeError):
            library.fw_use_openmp(ctypes.cast(ctypes.CDLL(runtime).GOMP_parallel, ctypes.c_void_p))
            threaded = True
            break
    threads = (
        "PyTorch's threads" if threaded else "one thread: PyTorch's OpenMP library was not found"
    )
    bfloat16 = isa == ISAS[-1] and hasattr(library, "fw_bfloat16") and bool(library.fw_bfloat16())
    kernels = f"{isa} and bfloat16 kernels" if bfloat16 else f"{isa} kernels"
    return Native(library, isa, threaded, f"{kernels} on {threads}", bfloat16)


def _absent(why: str) -> Native:
    return Native(None, "none", False, f"no native library: {why}")


def loaded_openmp() -> list[str]:
    """Paths of OpenMP runtimes that may be loaded, PyTorch's own first."""
    beside = sorted(
        str(p) for p in (Path(torch.__file__).parent / "lib").glob("lib*omp*") if p.is_file()
    )
    if not sys.platform.startswith("linux"):
        return beside
    mapped = {
        line.split(maxsplit=5)[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "omp" in line
    }
    results = sorted(path for path in mapped if Path(path).name.startswith(OPENMP))
    # If several runtimes are loaded, PyTorch's own is the one next to its libraries.
    return sorted(results, key=lambda path: path not in beside)


NATIVE = _load()


OPERATORS: Library = Library("fieldwise", "FRAGMENT")  # type: ignore[no-untyped-call]


def define(schema: str) -> None:
    """Declare an operator `torch.ops.fieldwise.NAME` by its schema, in PyTorch's notation."""
    OPERATORS.define(schema)  # type: ignore[no-untyped-call]


def implement(name: str, function: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register the CPU implementation of an operator, and what gives its uninitialised outputs for tracing."""
    OPERATORS.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
    register_fake(f"fieldwise::{name}", fake, lib=OPERATORS)


def implement_with_gradient(
    schema: str,
    forward: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    *,
    into: Sequence[int],
    keeps: Sequence[int],
) -> None:
    """Declare and register an operator NAME, whose tensors are its first inputs, and its derivative NAME_backward.

    Under autocast NAME computes in float32. A derivative through NAME_backward is an error: PyTorch
    would warn, and skip it.

    Args:
        schema: of NAME, in PyTorch's notation; only its first output has a gradient.
        forward: the CPU implementation of NAME.
        fake: gives its uninitialised outputs for tracing.
        backward: the CPU implementation of NAME_backward, which takes NAME's inputs, its kept
            outputs and the first output's gradient.
        into: numbers of the inputs that have a gradient, empty for an input that is None.
        keeps: numbers of the outputs that NAME_backward takes.
    """
    name, _, inputs = schema.partition(" -> ")[0].removesuffix(")").partition("(")
    gradient = f"{name}_backward"
    tensors = inputs.count("Tensor")
    saved_outputs = "".join(f"Tensor output_{k}, " for k in keeps)
    define(schema)
    define(
        f"{gradient}({inputs}, {saved_outputs}Tensor grad) -> ({', '.join(['Tensor'] * len(into))})"
    )

    def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*inputs[:tensors], *(outputs[k] for k in keeps))
        ctx.others = inputs[tensors:]
        ctx.mark_non_differentiable(*outputs[1:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        operands = ctx.saved_tensors[:tensors]
        outputs = ctx.saved_tensors[tensors:]
        result: list[Tensor | None] = [None] * (tensors + len(ctx.others))
        if grad is not None:
            grads = getattr(torch.ops.fieldwise, gradient)(*operands, *ctx.others, *outputs, grad)
            for k, value in zip(into, grads, strict=True):
                result[k] = None if operands[k] is None else value
        return tuple(result)

    def refuse(ctx: Any, *grads: Any) -> NoReturn:
        del ctx, grads
        raise RuntimeError(
            f"fieldwise::{gradient} has no derivative: for second derivatives use use_ops('plain')"
        )

    implement(name, forward, fake)
    implement(gradient, backward, lambda *inputs: empty_like([inputs[k] for k in into]))
    register_autograd(f"fieldwise::{name}", differentiate, setup_context=save, lib=OPERATORS)
    register_autocast(f"fieldwise::{name}", "cpu", torch.float32, lib=OPERATORS)
    register_autograd(f"fieldwise::{gradient}", refuse, lib=OPERATORS)


def empty_like(tensors: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
    """Uninitialised contiguous gradients of operands, of which the first is a tensor; of None an empty one."""
    assert tensors[0] is not None
    return tuple(tensors[0].new_empty(0 if t is None else t.shape) for t in tensors)


Mode = Literal["auto", "plain", "native"]
Backend = Literal["plain", "native"]
NATIVE_TYPES = (torch.float32, torch.float64)
# types that autocast casts to float32
AUTOCAST_TYPES = (torch.float32, torch.bfloat16, torch.float16)

# Every op with a native backend. On other devices than the CPU field self-attention without dropout
# is PyTorch's `scaled_dot_product_attention`.
OPS = (
    "AFM pair attention",
    "field self-attention",
    "MaxSim",
    "sparse embedding update",
    "FM",
    "dropout",
)

_mode: Mode = "auto"


@contextmanager
def use_ops(mode: Mode) -> Iterator[None]:
    """A context that sets the backend of ops, for the whole process (not per thread).

    Args:
        mode: `auto`: the fastest backend that supports the tensors. The plain one is used during
            export, since an exported model must run without fieldwise, inside transforms of
            `torch.func`, and for tensors with a forward-mode tangent, which the others do not
            support. `plain`: only PyTorch. `native`: the native kernels, also in exports; the op
            raises if they do not support a tensor (its type, its device, a tangent).

    Errors:
        ConfigError: an unknown mode; `native` without the native library.

    >>> with use_ops("plain"):
    ...     backend_of(torch.ones(1))
    'plain'
    """
    global _mode
    before = _mode
    _mode = checked(mode)
    try:
        yield
    finally:
        _mode = before


def checked(mode: str) -> Mode:
    """The mode, after checking it (ConfigError)."""
    known = get_args(Mode)
    if mode not in known:
        raise ConfigError(
            f"ops must be one of {', '.join(known)}, found {mode!r}: set FIELDWISE_OPS or use_ops"
        )
    if mode == "native" and not NATIVE.ready:
        raise ConfigError(f"native ops need the native library: {NATIVE.why}; use 'auto'")
    return cast(Mode, mode)


def backend_of(*tensors: Tensor, autocasts: bool = True) -> Backend:
    """The backend for these tensors.

    Args:
        tensors: all floating-point inputs of the op.
        autocasts: whether autocast casts the tensors to float32 before they reach the operator.

    Errors:
        ConfigError: the mode is `native` and a tensor is not a float32 or float64 tensor on the
            CPU, or has a tangent.
    """
    first = tensors[0]
    compiling = torch.compiler.is_compiling()
    if _mode == "plain":
        return "plain"
    if not compiling and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):  # type: ignore[no-untyped-call]
        if _mode == "native":
            raise ConfigError(
                "native ops have no forward-mode derivative, found a tensor with a tangent: use 'auto'"
            )
        return "plain"
    # Transforms of `torch.func` (grad, vmap, jvp) would loop over operators or skip them.
    transformed = not compiling and torch._C._are_functorch_transforms_active()
    if _mode == "auto" and (torch.compiler.is_exporting() or transformed):
        return "plain"
    on_cpu = all(t.device.type == "cpu" for t in tensors)
    one_type = first.dtype in NATIVE_TYPES and all(t.dtype == first.dtype for t in tensors)
    cast = (
        autocasts
        and torch.is_autocast_enabled("cpu")
        and all(t.dtype in AUTOCAST_TYPES for t in tensors)
    )
    if NATIVE.ready and on_cpu and (one_type or cast):
        return "native"
    if _mode == "native":
        result = ", ".join(sorted({f"{t.dtype} on {t.device.type}" for t in tensors}))
        raise ConfigError(
            f"native ops take float32 or float64 tensors of one type on the CPU, found {result}"
        )
    return "plain"


def plain_is_set() -> bool:
    """Whether only the reference implementations are to run."""
    return _mode == "plain"


def backends_here(device: torch.device) -> dict[str, str]:
    """The backend of each op on a device of this machine and the reason, as printed by `fieldwise doctor`."""
    if _mode == "plain":
        return dict.fromkeys(OPS, "plain PyTorch, set by FIELDWISE_OPS")
    if device.type == "cpu":
        return dict.fromkeys(
            OPS, f"native, {NATIVE.why}" if NATIVE.ready else f"plain PyTorch, {NATIVE.why}"
        )
    return dict.fromkeys(OPS, "plain PyTorch")


def missing_on(device: torch.device) -> str | None:
    """A sentence on native operations that a CPU lacks; None if it has them, and for other devices, which have none."""
    if _mode != "auto" or device.type != "cpu" or NATIVE.ready:
        return None
    return f"operations run as plain PyTorch, many times slower: {NATIVE.why}"


def float32_under_autocast(*tensors: Tensor) -> list[Tensor]:
    """The tensors, cast to float32 if autocast is on and they are narrower: the operators' autocast rule.

    The caller must compute under `torch.autocast(..., enabled=False)`.
    """
    on = torch.is_autocast_enabled(tensors[0].device.type)
    return [t.float() if on and t.dtype in AUTOCAST_TYPES else t for t in tensors]


if "FIELDWISE_OPS" in os.environ:
    _mode = checked(os.environ["FIELDWISE_OPS"])

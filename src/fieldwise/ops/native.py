"""The native CPU library: loading it for the best instruction set of this machine, or reporting why it is missing.

It is a shared library of C functions that take pointers and sizes (sources in `native/`, built by CMakeLists.txt when
the package is installed), so one build works with every Python and PyTorch version. It runs on PyTorch's OpenMP
threads, `torch.get_num_threads()` of them. Two environment variables are for tests: FIELDWISE_NATIVE is the path of
another build of the library, FIELDWISE_ISA a lower instruction set.
"""

import ctypes
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.library import Library, register_autocast, register_autograd, register_fake

from fieldwise.errors import ConfigError

__all__ = [
    "NATIVE",
    "OPERATORS",
    "Native",
    "define",
    "implement",
    "implement_with_gradient",
    "loaded_openmp",
    "pointer",
    "save_with_second_output",
    "type_name",
]

ISAS = ("baseline", "avx2", "avx512")  # in the order of the library's fw_isa()
VERSION = 4  # version of the library's interface: fw_version() in native/parallel.cpp
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

        Errors:
            MemoryError: the kernel could not allocate its scratch space.
        """
        function = getattr(self.library, f"{name}_{self.isa}")
        if function(torch.get_num_threads(), *arguments):
            raise MemoryError(f"the native kernel {name} could not allocate its scratch space")


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """The address of a contiguous CPU tensor's first element."""
    return ctypes.c_void_p(tensor.data_ptr())


def type_name(*tensors: Tensor) -> str:
    """The type in a kernel's name, `float` or `double`, which all its tensors must have.

    Errors:
        ConfigError: tensors of different types, or of another type.
    """
    types = {t.dtype for t in tensors}
    name = TYPE_NAMES.get(tensors[0].dtype)
    if name is None or len(types) > 1:
        found = ", ".join(sorted(str(t).removeprefix("torch.") for t in types))
        raise ConfigError(f"native ops take tensors that are all float32 or all float64, found {found}: convert them")
    return name


def _load() -> Native:
    spec = importlib.util.find_spec("fieldwise._native")
    path = os.environ.get("FIELDWISE_NATIVE") or (spec.origin if spec else None)
    if path is None:
        return _absent("it was not built when fieldwise was installed (no working C++ compiler, or a pure wheel)")
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        return _absent(f"it cannot be loaded ({e})")
    found = int(library.fw_version()) if hasattr(library, "fw_version") else 0
    if found != VERSION:
        return _absent(f"it has version {found}, this fieldwise needs {VERSION}: reinstall fieldwise")
    best = int(library.fw_isa())
    wanted = os.environ.get("FIELDWISE_ISA")
    if wanted is not None and wanted not in ISAS[: best + 1]:
        return _absent(f"FIELDWISE_ISA must be one of {', '.join(ISAS[: best + 1])} on this machine, found {wanted!r}")
    isa = wanted or ISAS[best]
    threaded = _share_threads(library)
    threads = "PyTorch's threads" if threaded else "one thread: PyTorch's OpenMP library was not found"
    bfloat16 = isa == ISAS[-1] and hasattr(library, "fw_bfloat16") and bool(library.fw_bfloat16())
    kernels = f"{isa} and bfloat16 kernels" if bfloat16 else f"{isa} kernels"
    return Native(library, isa, threaded, f"{kernels} on {threads}", bfloat16)


def _absent(why: str) -> Native:
    return Native(None, "none", False, f"no native library: {why}")


def _share_threads(library: ctypes.CDLL) -> bool:
    """Pass the entry point of PyTorch's OpenMP runtime to the library; returns whether it was found."""
    for path in loaded_openmp():
        try:
            entry = ctypes.CDLL(path).GOMP_parallel
        except (OSError, AttributeError):
            continue
        library.fw_use_openmp(ctypes.cast(entry, ctypes.c_void_p))
        return True
    return False


def loaded_openmp() -> list[str]:
    """Paths of OpenMP runtimes that may be loaded, PyTorch's own first."""
    beside = sorted(str(p) for p in (Path(torch.__file__).parent / "lib").glob("lib*omp*") if p.is_file())
    if not sys.platform.startswith("linux"):
        return beside
    mapped = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "omp" in line}
    found = sorted(path for path in mapped if Path(path).name.startswith(OPENMP))
    # If several runtimes are loaded, PyTorch's own is the one next to its libraries.
    return sorted(found, key=lambda path: path not in beside)


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
    name: str,
    forward: tuple[Callable[..., Any], Callable[..., Any]],
    backward: tuple[Callable[..., Any], Callable[..., Any]],
    save: Callable[..., None],
    differentiate: Callable[..., Any],
) -> None:
    """Register CPU implementations, shapes, derivative and autocast of the declared operators NAME and NAME_backward.

    Under autocast NAME computes in float32. A derivative through NAME_backward is an error: PyTorch would warn, and
    skip it.

    Args:
        name: NAME.
        forward: the implementation of NAME, and what gives its uninitialised outputs for tracing.
        backward: those of NAME_backward.
        save: saves the inputs of `differentiate` in autograd's context (PyTorch's `setup_context`).
        differentiate: a gradient for every input, by NAME_backward.
    """
    gradient = f"{name}_backward"
    implement(name, *forward)
    implement(gradient, *backward)
    register_autograd(f"fieldwise::{name}", differentiate, setup_context=save, lib=OPERATORS)
    register_autocast(f"fieldwise::{name}", "cpu", torch.float32, lib=OPERATORS)

    def refuse(ctx: Any, *grads: Any) -> NoReturn:
        del ctx, grads
        raise RuntimeError(f"fieldwise::{gradient} has no derivative: for second derivatives use use_ops('plain')")

    register_autograd(f"fieldwise::{gradient}", refuse, lib=OPERATORS)


def save_with_second_output(ctx: Any, inputs: Sequence[Tensor], output: tuple[Tensor, Tensor]) -> None:
    """The `save` of an operator with only tensor inputs, whose second output is for the backward pass."""
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)

"""The devices on which networks compute, their random states, and PyTorch's threads.

GCC's OpenMP runtime, which PyTorch uses under Linux, reads OMP_WAIT_POLICY only when it is loaded.
But if it manages more threads than there are processors, its idle threads spin for microseconds
instead of milliseconds. So an extra team of a few sleeping threads is kept.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.ops.native import NATIVE, loaded_openmp
from fieldwise.storage.machine import available_cores

CPU = torch.device("cpu")
Precision = Literal["float32", "bfloat16"]
# Names of torch.cpu.get_capabilities(): x86's dot products and tiles, ARM's.
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


def open_device(name: str, what: str = "device") -> torch.device:
    """The device of a name, with its number if it has several.

    Args:
        name: `cpu`, `cuda` (PyTorch's current GPU), `cuda:N`, `mps`, another type of PyTorch's, or
            `auto`: `cuda` if PyTorch can use a GPU, else `mps` if it can use Apple's, else `cpu`.
        what: what an error calls the setting.

    Errors:
        ConfigError: there is no such device; the message says which there are.

    >>> open_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = "cpu"
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
    try:
        device = torch.device(name)
        if device.type == "cpu" and not device.index:
            return CPU
        module = torch.get_device_module(device)
    except (RuntimeError, ValueError):  # no device of PyTorch's, or a number beyond all
        raise ConfigError(
            f"{what} must be auto, cpu, cuda, cuda:N or mps, found {name!r}: {_known()}"
        ) from None
    if not module.is_available():
        raise ConfigError(
            f"{what} = {name!r} cannot be used here: {_why_not(device.type)}; {_known()}"
        )
    if device.type == "mps":
        return device
    count = module.device_count()
    if device.index is not None and device.index >= count:
        numbers = "0" if count == 1 else f"0 to {count - 1}"
        raise ConfigError(
            f"{what} = {name!r} does not exist: {device.type} has the numbers {numbers} here; {_known()}"
        )
    return torch.device(
        device.type, module.current_device() if device.index is None else device.index
    )


def auto_words() -> str:
    """A sentence that says which device `auto` is here, and why if it is the CPU."""
    device = open_device("auto")
    why = f"; {_why_not('cuda')}" if device.type == "cpu" else ""
    return f"device auto: {device_words(device)}{why}"


def device_of(network: nn.Module) -> torch.device:
    """The device of a network's parameters and buffers; the CPU if it has none."""
    for tensor in (*network.parameters(), *network.buffers()):
        return tensor.device
    return CPU


def device_words(device: torch.device) -> str:
    """A device's type, with its name if it is a GPU of CUDA."""
    if device.type != "cuda":
        return device.type
    return f"cuda, {torch.cuda.get_device_properties(device).name}"


@contextmanager
def kept_rng(device: torch.device) -> Iterator[None]:
    """A context after which the random states of the CPU and of a device are as before.

    >>> before = torch.get_rng_state()
    >>> with kept_rng(CPU):
    ...     _ = torch.manual_seed(7)
    >>> torch.equal(torch.get_rng_state(), before)
    True
    """
    with torch.random.fork_rng(devices=[]):
        state = get_rng_state(device)
        try:
            yield
        finally:
            set_rng_state(device, state)


def get_rng_state(device: torch.device) -> Tensor | None:
    """The random state of a device other than the CPU, as a tensor on the CPU; None for the CPU."""
    return None if device.type == "cpu" else _call(device, "get_rng_state")


def set_rng_state(device: torch.device, state: Tensor | None) -> None:
    """Set a device's random state to what `get_rng_state` found."""
    if state is not None and device.type != "cpu":
        _call(device, "set_rng_state", state)


def wait_for(device: torch.device) -> None:
    """Wait until a device has done what was asked of it; the CPU always has."""
    if device.type != "cpu":
        _call(device, "synchronize")


def _call(device: torch.device, name: str, *arguments: Any) -> Any:
    """Call a function of PyTorch's module of a device; those of Apple's do not take the device."""
    device_argument = () if device.type == "mps" else (device,)
    return getattr(torch.get_device_module(device), name)(*arguments, *device_argument)


def _why_not(kind: str) -> str:
    if kind == "cuda":
        built = torch.version.cuda or torch.version.hip
        if not built:
            return f"PyTorch {torch.__version__} was built without CUDA, install a build with it (pytorch.org)"
        return f"PyTorch {torch.__version__} (CUDA {built}) finds no GPU, check `nvidia-smi` and the driver"
    return f"PyTorch {torch.__version__} finds no such device"


def _known() -> str:
    """The devices that there are, for the end of an error."""
    results = ["cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        results.append("mps")
    return f"choose one that this machine has: {', '.join(results)}"


_PROCESS = os.getpid()


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """A context that flushes denormals (float32: below 1.2e-38) to zero, on the calling thread and PyTorch's.

    Denormal numbers come from a saturated softmax, and are about a hundred times slower to compute
    with: epochs of AFM on Frappe (D 256, squared loss) grew from ten seconds to over two minutes.

    At the end the threads keep denormals again; if the calling thread flushed them already, nothing
    changes. A thread started inside the context inherits the setting. Without the native library,
    or in a forked child (where the other threads do not exist), only the calling thread flushes
    them.

    >>> with flushed_denormals():
    ...     print(float(torch.tensor(1e-39) * 1.0))
    0.0
    """
    tiny = torch.full((1,), 1e-39, dtype=torch.float32, device="cpu")
    if bool((tiny * 1.0 == 0).item()):
        yield
        return
    threads = torch.get_num_threads()
    torch.set_flush_denormal(True)
    if NATIVE.library is not None and os.getpid() == _PROCESS:
        NATIVE.library.fw_flush_denormals(threads, 1)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        if NATIVE.library is not None and os.getpid() == _PROCESS:
            NATIVE.library.fw_flush_denormals(threads, 0)


SET_BY_HAND = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


def use_passive_openmp_wait() -> bool:
    """Make PyTorch's idle threads sleep from now on in this process; results do not change.

    Returns:
        False if nothing was done: OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, there is only one
        thread, or PyTorch uses another OpenMP runtime than GCC's.
    """
    threads = torch.get_num_threads()
    if threads < 2 or any(name in os.environ for name in SET_BY_HAND):
        return False
    return _keep_team(max(2, available_cores() - threads + 2))


@cache
def _keep_team(size: int) -> bool:
    """Start a team of `size` threads, including the calling one, that ends with the process."""
    runtime = next(
        (path for path in loaded_openmp() if Path(path).name.startswith("libgomp")), None
    )
    if runtime is None:
        return False
    library = ctypes.CDLL(runtime)
    started = threading.Event()
    # run once by each thread of the team
    nothing = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)

    def keep() -> None:
        library.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))
        started.set()
        threading.Event().wait()

    threading.Thread(target=keep, name="fieldwise-idle-team", daemon=True).start()
    started.wait()
    return True


def slow_bfloat16(device: str = "cpu") -> str | None:
    """A sentence if bfloat16 would be slower than float32 on a device (`cpu` or `cuda`), else None."""
    result = torch.cpu.get_capabilities()
    if device != "cpu" or any(result.get(name) for name in BFLOAT16):
        return None
    return (
        "this CPU has no bfloat16 arithmetic (AVX512-BF16, AMX or ARM's), so PyTorch computes its products up to "
        "100 times slower than in float32: set precision = 'float32'"
    )


def in_precision(precision: Precision, device: str) -> contextlib.AbstractContextManager[object]:
    """A context in which a network on a device (`cpu`, `cuda`, `mps`) multiplies matrices in this precision.

    >>> with in_precision("bfloat16", "cpu"):
    ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
    torch.bfloat16
    """
    return (
        torch.autocast(device, dtype=torch.bfloat16)
        if precision == "bfloat16"
        else contextlib.nullcontext()
    )

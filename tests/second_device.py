"""A second device for tests without a GPU: its tensors cannot mix with those of the CPU.

PyTorch's `PrivateUse1` device, set up from Python under the name `second`. A tensor there wraps a
CPU tensor that no one else sees; each operation runs on the wrapped tensors, after a check that all
of its tensors are on the device. So `.numpy()`, an index on the CPU, or a constant made without a
device are errors, as on a GPU or stricter, and what the plain operations compute equals the CPU's.
As on a GPU, tensors without dimensions may come from the CPU where they are not indices.
`torch.autocast` multiplies matrices in its type there.

With FIELDWISE_TEST_DEVICE=cuda the same tests run on a GPU.
"""

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

__all__ = ["SecondTensor", "device_of_tests"]

NAME = "second"
PRODUCTS = ("addmm", "bmm", "linear", "matmul", "mm")
KEPT: list[torch.library.Library] = []
COPIES = ("aten::copy_", "aten::_to_copy", "aten::_copy_from")
INDICES = ("aten::index", "aten::gather", "aten::embedding", "aten::scatter", "aten::take")
FACTORIES = (
    "arange", "arange.start", "arange.start_step", "empty.memory_format", "empty_strided", "eye", "full", "linspace",
    "ones", "rand", "randint", "randint.low", "randn", "randperm", "scalar_tensor", "tril_indices", "triu_indices",
    "zeros",
)  # fmt: skip


class SecondTensor(Tensor):
    """A tensor of the device; `held` is on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "SecondTensor":
        sparse = held.layout != torch.strided
        place = (None, None) if sparse else (held.stride(), held.storage_offset())
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, *place, dtype=held.dtype, layout=held.layout,
            device=torch.device(NAME, 0), requires_grad=False,
        )  # fmt: skip
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"SecondTensor({self.held!r})"

    def tolist(self) -> Any:
        return self.held.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(
        cls,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = function._schema.name
        _check(name, (args, kwargs))
        target = kwargs.get("device")
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        result = function(*tree_map(_held, args), **tree_map(_held, kwargs))
        if name == "aten::copy_" and not isinstance(args[0], SecondTensor):
            return args[0]
        if name == "aten::_local_scalar_dense" or (
            target is not None and torch.device(target).type == "cpu"
        ):
            return result
        return return_and_correct_aliasing(
            function, args, kwargs, tree_map_only(Tensor, SecondTensor, result)
        )


def _held(value: Any) -> Any:
    return value.held if isinstance(value, SecondTensor) else value


def _check(name: str, given: Any) -> None:
    if name in COPIES:
        return
    strange = [
        t
        for t in tree_flatten(given)[0]
        if isinstance(t, Tensor) and not isinstance(t, SecondTensor)
    ]
    if (name.startswith(INDICES) and strange) or any(t.dim() for t in strange):
        raise RuntimeError(
            f"{name}: expected all tensors on {NAME}:0, found one on {strange[0].device}"
        )


def _factory(name: str) -> Any:
    packet, _, overload = name.partition(".")
    function = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def make(*args: Any, **kwargs: Any) -> Tensor:
        kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        return SecondTensor(function(*args, **kwargs))

    return make


def _narrow(name: str) -> Any:
    """A product of matrices under autocast."""
    function = getattr(torch.ops.aten, name).default
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def multiply(*args: Any) -> Tensor:
        kind = torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return function(
                *(
                    a.to(kind) if isinstance(a, Tensor) and a.is_floating_point() else a
                    for a in args
                )
            )

    return multiply


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """What `torch.tensor(..., device=...)` calls below the subclass."""
    _held(target).copy_(_held(source))
    return target


class _Module:
    """What `torch.second` has."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Draws are the CPU's."""

    def get_rng_state(self, device: Any = None) -> Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        assert state.device.type == "cpu"

    def synchronize(self, device: object = None) -> None:
        """Nothing is ever waiting."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def _set_up() -> None:
    _setup_privateuseone_for_python_backend(NAME, _Module())
    for name in FACTORIES:
        torch.library.impl(f"aten::{name}", "PrivateUse1", _factory(name))
    torch.library.impl("aten::_copy_from", "PrivateUse1", _copy_from)
    others = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    others.fallback(torch.library.fallthrough_kernel)
    KEPT.append(others)
    for name in PRODUCTS:
        torch.library.impl(f"aten::{name}", "AutocastPrivateUse1", _narrow(name))


@cache
def device_of_tests() -> str:
    """The name of the device that tests take: the second one, or what the environment says."""
    wanted = os.environ.get("FIELDWISE_TEST_DEVICE", NAME)
    if wanted == NAME:
        _set_up()
    return wanted

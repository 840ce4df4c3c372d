"""The attention ops of AFM and AutoInt: the public functions, with the backend given by `ops`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import Timed
from benchmarks.memory import peak_bytes
from benchmarks.timing import seconds_of
from fieldwise.ops import field_attention, pair_attention_pool, pair_indices, use_ops


def pooling_flops(batch: int, fields: int, dim: int, attention: int) -> float:
    """Floating-point operations of a forward pass of AFM's pooling: those of the formula, independent of the kernel.

    Per pair: its product D, its hidden vector 2 D A, ReLU and score 3 A, the weighted sum 2 D.
    """
    pairs = batch * fields * (fields - 1) / 2
    return pairs * (2 * dim * attention + 3 * attention + 3 * dim)


def pooling_works(
    batch: int, fields: int, dim: int, attention: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward pass without gradients, and a forward and backward pass to all of its inputs."""
    torch.manual_seed(0)
    inputs = [
        x.requires_grad_()
        for x in (
            torch.randn(batch, fields, dim),
            torch.randn(attention, dim),
            torch.randn(attention),
            torch.randn(attention),
        )
    ]
    left, right = pair_indices(fields)
    gradient = torch.randn(batch, dim)

    def pooled() -> Tensor:
        x, weight, bias, score = inputs
        return _first(pair_attention_pool(x, left, right, weight, bias, score))

    def forward() -> None:
        with torch.no_grad():
            pooled()

    def both() -> None:
        for x in inputs:
            x.grad = None
        pooled().backward(gradient)

    return forward, both


def pooling(options: dict[str, Any]) -> Timed:
    """Seconds forward and backward and forward alone, and the peak memory of both in this fresh process."""
    sizes = [options[name] for name in ("fields", "dim", "attention")]
    with use_ops(options["ops"]):
        for work in pooling_works(min(64, options["batch"]), *sizes):
            work()
        forward, both = pooling_works(options["batch"], *sizes)
        peak = peak_bytes(both)
    flops = pooling_flops(options["batch"], *sizes)

    def turn() -> dict[str, float]:
        with use_ops(options["ops"]):
            alone, together = seconds_of(forward, both)
        found = {"seconds": together, "forward seconds": alone, "forward GFLOP/s": flops / alone / 1e9}
        return found if peak is None else {**found, "peak MB": max(peak, 1) / 1e6}

    return turn, {"ops": options["ops"]}


def attention_works(batch: int, fields: int, size: int, heads: int) -> Callable[[], object]:
    """A forward and backward pass of AutoInt's attention over projected fields."""
    torch.manual_seed(0)
    inputs = [torch.randn(batch, fields, size, requires_grad=True) for _ in range(3)]
    gradient = torch.randn(batch, fields, size)

    def both() -> None:
        for x in inputs:
            x.grad = None
        _first(field_attention(*inputs, heads=heads)).backward(gradient)

    return both


def over_sizes(options: dict[str, Any]) -> Timed:
    """Seconds forward and backward for each point: a size by its name, and the op's arguments."""
    makers: dict[str, Callable[..., Callable[[], object]]] = {
        "pooling": lambda **sizes: pooling_works(**sizes)[1],
        "attention": attention_works,
    }
    works = {name: makers[options["op"]](**sizes) for name, sizes in options["points"].items()}

    def turn() -> dict[str, float]:
        with use_ops(options["ops"]):
            return {name: seconds_of(work)[0] for name, work in works.items()}

    return turn, {"ops": options["ops"]}


def _first(found: Tensor | tuple[Tensor, ...]) -> Tensor:
    """The output of an op, without the weights that some ops also return."""
    return found if isinstance(found, Tensor) else found[0]

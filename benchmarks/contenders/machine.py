"""The machine's own speed, measured together with the contenders in every case."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.case import Timed
from fieldwise.ops.native import NATIVE

SIZE, SMALL = 1024, 256


def rates(_: dict[str, Any]) -> Timed:
    """Matrix products of 1024 x 1024 in float32, of 256 x 256 in bfloat16; a copy of 64 MB (bytes read and written).

    The bfloat16 matrices are small, since a processor without bfloat16 instructions is hundreds of times slower.
    """
    torch.manual_seed(0)
    a, b = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    out = torch.empty(SIZE, SIZE)
    low_a, low_b, low_out = (x[:SMALL, :SMALL].bfloat16().contiguous() for x in (a, b, out))
    source, target = torch.randn(2**24), torch.empty(2**24)

    def best(work: Callable[[], object], times: int = 5) -> float:
        found = []
        for _ in range(times):
            began = time.perf_counter()
            work()
            found.append(time.perf_counter() - began)
        return min(found)

    def turn() -> dict[str, float]:
        return {
            "GFLOP/s float32": 2e-9 * SIZE**3 / best(lambda: torch.mm(a, b, out=out)),
            "GFLOP/s bfloat16": 2e-9 * SMALL**3 / best(lambda: torch.mm(low_a, low_b, out=low_out)),
            "copy GB/s": 2 * source.nbytes / 1e9 / best(lambda: target.copy_(source)),
        }

    facts = {"PyTorch": torch.__version__, "CPU instructions": torch.backends.cpu.get_cpu_capability()}
    return turn, {**facts, "native ops": NATIVE.isa if NATIVE.ready else f"none ({NATIVE.why})"}

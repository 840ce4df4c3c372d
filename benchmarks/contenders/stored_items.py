"""MaxSim of one user's heads against many stored items."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.case import Timed
from benchmarks.device import device_of, waited, watched
from benchmarks.timing import seconds_of
from fieldwise.ops import max_sim, use_ops
from fieldwise.ops.stored_items import StoredItems


def plain(user_HP: Tensor, items_NKP: Tensor) -> Callable[[], Tensor]:
    """The public op for rows: the user's heads are repeated for every item."""

    def score() -> Tensor:
        return max_sim(user_HP.expand(items_NKP.shape[0], -1, -1), items_NKP)

    return score


def product(user_HP: Tensor, items_NKP: Tensor) -> Callable[[], Tensor]:
    """One matrix product of all items' heads with the user's, then maxima and sums, in plain PyTorch."""
    flat = items_NKP.reshape(-1, items_NKP.shape[2])

    def score() -> Tensor:
        scores = (flat @ user_HP.t()).view(*items_NKP.shape[:2], -1)
        return scores.amax(1).sum(1)

    return score


def scored(options: dict[str, Any]) -> Timed:
    """Seconds of scoring all items by one method, and the difference from float32 scores relative to their spread."""
    torch.manual_seed(0)
    user = torch.randn(options["levels"] * options["heads"], options["dim"])
    items = torch.randn(options["items"], options["heads"], options["dim"])
    device = device_of(options)
    user, items = user.to(device), items.to(device)
    reference = product(user, items)()
    work = waited(WAYS[options["way"]](user, items), device)
    with use_ops(options.get("ops", "auto")), torch.no_grad():
        difference = float((work().float() - reference).abs().max() / reference.std())
    flops = 2.0 * user.shape[0] * items.numel()

    def turn() -> dict[str, float]:
        with use_ops(options.get("ops", "auto")), torch.no_grad():
            seconds = seconds_of(work)[0]
        return {"seconds": seconds, "GFLOP/s": flops / seconds / 1e9}

    return watched(turn, device), {"largest difference": f"{difference:.1e} of the scores' standard deviation"}


def bfloat16_product(user_HP: Tensor, items_NKP: Tensor) -> Callable[[], Tensor]:
    return product(user_HP.bfloat16(), items_NKP.bfloat16())


def stored(storage: str) -> Callable[[Tensor, Tensor], Callable[[], Tensor]]:
    """Items stored in a number type, scored by fieldwise's op for stored items."""

    def made(user_HP: Tensor, items_NKP: Tensor) -> Callable[[], Tensor]:
        kept = StoredItems.of(items_NKP, storage)

        def score() -> Tensor:
            scores: Tensor = kept.scores(user_HP)
            return scores

        return score

    return made


WAYS = {
    "op": plain,
    "product": product,
    "bfloat16 product": bfloat16_product,
    **{name: stored(name) for name in ("float32", "bfloat16", "int8")},
}

"""One context against many candidates, and the same rows scored in full: requests of `benchmarks.candidates`."""

from typing import Any

import torch

from benchmarks.candidates import MODELS, request
from benchmarks.case import Timed
from benchmarks.timing import seconds_of
from fieldwise.models.build import build_network
from fieldwise.ops import use_ops
from fieldwise.scoring.candidates import joined, score_candidates


def scored(options: dict[str, Any]) -> Timed:
    """Seconds of a request: `shared` through `score_candidates`, else all full rows in one prepared batch."""
    torch.manual_seed(0)
    split, context, candidates = request(options["candidates"])
    network = build_network(MODELS[options["model"]], split.layout, 0).eval()
    full = joined(split, context, candidates)

    def score() -> torch.Tensor:
        if options["shared"]:
            return score_candidates(network, split, context, candidates)
        logits: torch.Tensor = network(full)
        return logits

    def turn() -> dict[str, float]:
        with torch.no_grad(), use_ops(options["ops"]):
            return {"seconds": seconds_of(score)[0]}

    with torch.no_grad(), use_ops("plain"):
        difference = float((score_candidates(network, split, context, candidates) - network(full)).abs().max())
    return turn, {"largest difference of a logit": f"{difference:.0e}"}

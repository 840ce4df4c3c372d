"""fieldwise's own training loop."""

from itertools import count
from typing import Any

import torch

from benchmarks.case import Timed
from benchmarks.contenders.fieldwise_log import known_settings, table, valid_table
from benchmarks.device import device_of, watched
from benchmarks.log import Log
from benchmarks.timing import steps_to_time
from fieldwise.models import parameter_count
from fieldwise.models.build import build_network, model_from_dict
from fieldwise.ops import use_ops
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective


def epoch(options: dict[str, Any]) -> Timed:
    """The steps of an epoch of `fit`, including batch assembly and shuffling, as in its `seconds_per_epoch`."""
    log = Log.open(options["log"])
    rows, share = steps_to_time(len(log.y), options["batch"], options.get("steps"))
    train, few = table(log.first(rows)), valid_table(log, 256)
    settings = known_settings(
        {"batch_size": options["batch"], "epochs": 1, "monitor": "logloss", **options.get("training", {})}
    )
    network, device = build_network(model_from_dict(options["model"]), train.layout, 0), device_of(options)

    def turn() -> dict[str, float]:
        with use_ops(options.get("ops", "auto")):
            result = fit(network, train, few, settings=settings, objective=Objective(), seed=0)
        assert result.seconds_per_epoch is not None
        return {"seconds": result.seconds_per_epoch * share}

    return watched(turn, device), {"parameters": parameter_count(network), "timed rows": rows}


def trained(options: dict[str, Any]) -> Timed:
    """A turn trains a new model with its own seed: the seconds of an epoch's steps, and the validation AUC."""
    log = Log.open(options["log"])
    train, held = table(log), valid_table(log)
    settings = known_settings({"epochs": options["epochs"], "patience": options["epochs"] + 1, **options["training"]})
    torch.set_num_threads(options.get("threads", torch.get_num_threads()))
    model = model_from_dict(options["model"])
    seeds = count()

    def turn() -> dict[str, float]:
        seed = next(seeds)
        network = build_network(model, train.layout, seed)
        result = fit(network, train, held, settings=settings, objective=Objective(), seed=seed)
        assert result.seconds_per_epoch is not None
        return {"seconds": result.seconds_per_epoch, "auc": result.history[-1].metrics["auc"]}

    network = build_network(model, train.layout, 0)
    return turn, {"parameters": parameter_count(network), **options["training"]}

"""fieldwise's epoch and scoring at several numbers of rows."""

import time
from collections.abc import Callable
from typing import Any

from torch import nn

from benchmarks.case import Timed
from benchmarks.contenders.fieldwise_log import table, valid_table
from benchmarks.log import Log
from fieldwise.data.table import EncodedTable
from fieldwise.models.build import build_network, model_from_dict
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.fit import fit
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings


def epochs(options: dict[str, Any]) -> Timed:
    """Seconds of an epoch's steps."""
    few = valid_table(Log.open(options["log"]), 256)
    settings = TrainingSettings(batch_size=options["batch"], epochs=1, monitor="logloss")

    def epoch(network: nn.Module, rows: EncodedTable) -> float:
        result = fit(network, rows, few, settings=settings, objective=Objective(), seed=0)
        assert result.seconds_per_epoch is not None
        return result.seconds_per_epoch

    return _over_rows(options, epoch)


def scorings(options: dict[str, Any]) -> Timed:
    """Seconds of scoring all rows."""

    def score(network: nn.Module, rows: EncodedTable) -> float:
        began = time.perf_counter()
        score_batches(network, rows.batches(SCORING_BATCH))
        return time.perf_counter() - began

    return _over_rows(options, score)


def _over_rows(options: dict[str, Any], work: Callable[[nn.Module, EncodedTable], float]) -> Timed:
    log = Log.open(options["log"])
    tables = {f"{n}": table(log.first(n)) for n in options["points"]}
    network = build_network(model_from_dict(options["model"]), table(log.first(2)).layout, 0)
    return lambda: {name: work(network, rows) for name, rows in tables.items()}, {}

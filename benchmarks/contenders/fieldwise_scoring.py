"""Scoring encoded rows, and from a Parquet file to a Parquet file."""

import time
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.case import Timed
from benchmarks.contenders.fieldwise_log import table
from benchmarks.log import Log
from fieldwise.bundle.bundle import Bundle
from fieldwise.cli import predict
from fieldwise.cli.options import Reading
from fieldwise.models.build import build_network, model_from_dict
from fieldwise.ops import use_ops
from fieldwise.scoring.batches import SCORING_BATCH, score_batches


def encoded(options: dict[str, Any]) -> Timed:
    """Logits of the log's training rows."""
    rows = table(Log.open(options["log"]))
    network = build_network(model_from_dict(options["model"]), rows.layout, 0)

    def turn() -> dict[str, float]:
        began = time.perf_counter()
        score_batches(network, rows.batches(SCORING_BATCH))
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "rows per second": len(rows) / seconds}

    return turn, {"rows": len(rows)}


def parquet(options: dict[str, Any]) -> Timed:
    """`fieldwise predict`: a bundle and a Parquet file of raw values to a Parquet file of keys and scores."""
    bundle, data, out = (Path(options[name]) for name in ("bundle", "data", "out"))
    how = {"threads": options["threads"], "precision": options.get("precision", "float32")}
    wanted = predict.PredictOptions(bundle=bundle, data=data, out=out, reading=Reading(), **how)

    def turn() -> dict[str, float]:
        out.unlink(missing_ok=True)
        began = time.perf_counter()
        with use_ops(options["ops"]):
            predict.run(wanted)
        seconds = time.perf_counter() - began
        if pl.scan_parquet(out).select(pl.len()).collect().item() != options["rows"]:
            raise ValueError("not every row was scored")
        return {"seconds": seconds, "rows per second": options["rows"] / seconds}

    facts = Bundle.load(bundle).about
    return turn, {"rows": options["rows"], "parameters": facts["run"]["parameters"]}

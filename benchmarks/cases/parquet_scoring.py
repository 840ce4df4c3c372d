"""Scoring from a Parquet file to a Parquet file."""

from pathlib import Path

import polars as pl

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.log import FRAPPE_SIZES, Log, random_log
from fieldwise.bundle.bundle import Bundle, sample_rows
from fieldwise.data.encode.encoder import Encoder
from fieldwise.models import AutoInt, parameter_count
from fieldwise.models.build import build_network
from fieldwise.schema import Categorical, Schema
from fieldwise.schema.label import Label

MODEL = AutoInt(variant="fuxictr", embedding_dim=10, layers=3, heads=2, attention_dim=64)


def parquet_scoring(settings: Settings) -> Case:
    """Scoring 1,000,000 rows with AutoInt from Parquet to Parquet, compared with FuxiCTR's predict."""
    rows = settings.rows_of(1_000_000, 100_000, 300)
    log = random_log(rows, FRAPPE_SIZES)
    log.save(settings.folder / "log")
    raw, encoded = settings.folder / "raw.parquet", settings.folder / "fuxictr.parquet"
    names = [f"f{f}" for f in range(len(FRAPPE_SIZES))]
    columns = dict(zip(names, log.ids.T, strict=True))
    frame = pl.DataFrame({**columns, "y": log.y.astype(int), "row": range(rows)})
    frame.with_columns(pl.col(names).cast(pl.String)).write_parquet(raw)
    pl.DataFrame({**{n: c.astype("int64") + 1 for n, c in columns.items()}, "y": log.y}).write_parquet(encoded)
    save_bundle(raw, settings.folder / "bundle", log)
    own = {"bundle": str(settings.folder / "bundle"), "data": str(raw), "rows": rows}
    theirs = {
        "log": str(settings.folder / "log"),
        "data": str(encoded),
        "out": str(settings.folder / "fuxictr-scores.parquet"),
        "settings": {"embedding_dim": 10, "layers": 3, "heads": 2, "attention_dim": 64},
        "batch": 4096,
        "rows": rows,
    }
    return Case(
        title=f"Scoring {rows:,} rows with AutoInt from Parquet to Parquet",
        about="Ten fields of Frappe's sizes, D 10, 3 layers, 2 heads, A 64. fieldwise's `predict` reads raw text "
        "values, loads and checks its bundle, encodes, scores and writes. FuxiCTR's `predict` reads integers prepared "
        "in advance by its preprocessing, with its own loader (batches of 4096) and its model in memory; Polars "
        "writes its scores.",
        measures=("seconds", "rows per second"),
        contenders=(
            Contender(
                name="fieldwise",
                make="fieldwise_scoring:parquet",
                options={**own, "ops": "auto", "out": str(settings.folder / "scores.parquet")},
            ),
            Contender(
                name="fieldwise, bfloat16",
                make="fieldwise_scoring:parquet",
                options={**own, "ops": "auto", "precision": "bfloat16", "out": str(settings.folder / "half.parquet")},
            ),
            Contender(
                name="fieldwise, plain ops",
                make="fieldwise_scoring:parquet",
                options={**own, "ops": "plain", "out": str(settings.folder / "plain-scores.parquet")},
            ),
            Contender(name="FuxiCTR 2.3.10", make="fuxictr:predict", options=theirs, peers=True),
        ),
        targets=(Target.faster("fieldwise", "FuxiCTR 2.3.10", 10),),
    )


def save_bundle(raw: Path, folder: Path, log: Log) -> None:
    """Save a bundle with untrained weights, which are as fast as trained ones."""
    schema = Schema(fields=tuple(Categorical(f"f{f}") for f in range(len(log.sizes))), label=Label("y"), keys=("row",))
    frame = pl.read_parquet(raw)
    encoder = Encoder.fit(frame, schema)
    network = build_network(MODEL, encoder.layout, 0).eval()
    about = {"run": {"parameters": parameter_count(network)}}
    Bundle(schema, encoder, MODEL, network, sample_rows(schema, frame), about).save(folder)

"""The cases by name: each function builds a case and its data for the settings of a run."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.criteo import TIME, blocks
from benchmarks.log import FRAPPE_SIZES, Log, random_log
from fieldwise.bundle.about import About
from fieldwise.bundle.bundle import Bundle, sample_rows
from fieldwise.data.encode.encoder import Encoder
from fieldwise.models import AutoInt, parameter_count
from fieldwise.models.build import build_network
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.recipe_files import load_recipe
from fieldwise.schema import Categorical, Label, Schema

__all__ = ["CASES", "GPU_CASES"]

FRAPPE_ROWS = 202_027
_VALID_ROWS = 57_722
FUXICTR = "FuxiCTR 2.3.10"
PLAIN = "plain PyTorch loop"
GPU = "cuda"
LAZY = {"embedding_update": "lazy"}
"""Training settings of embedding updates that touch only the batch's rows."""
BFLOAT16 = {"precision": "bfloat16"}
"""Training settings of bfloat16 arithmetic."""


def data_folder() -> Path | None:
    """The folder of public data sets: FIELDWISE_DATA, or `shared/data` next to the project; None if absent."""
    named = os.environ.get("FIELDWISE_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "data"
    return folder if folder.is_dir() else None


def frappe_log(rows: int) -> Log:
    """`rows` training rows in a random order, and the same share of the validation rows."""
    share = min(1.0, rows / FRAPPE_ROWS)
    folder = data_folder()
    if folder is None or not (folder / "frappe").is_dir():
        return random_log(rows, FRAPPE_SIZES, valid_rows=round(share * _VALID_ROWS))
    prepared = prepare_recipe(load_recipe("frappe/fm"), folder)
    fields = prepared.encoder.layout.fields
    offsets = np.array([field.offset for field in fields], dtype=np.int32)
    order = np.random.default_rng(0).permutation(len(prepared.train.table))[:rows]
    held = np.random.default_rng(1).permutation(len(prepared.valid.table))[
        : round(share * _VALID_ROWS)
    ]
    return Log(
        tuple(field.rows for field in fields),
        prepared.train.table.ids[order] - offsets,
        prepared.train.main[order],
        prepared.valid.table.ids[held] - offsets,
        prepared.valid.main[held],
        f"Frappe (libFM form), {len(order):,} training rows",
    )


def saved_frappe(settings: Settings) -> tuple[Log, str]:
    """Frappe's log (or one of its shape) and the file that it was written to for the contenders."""
    rows = settings.rows_of(FRAPPE_ROWS, FRAPPE_ROWS, 600)
    log = (
        random_log(rows, FRAPPE_SIZES, valid_rows=100)
        if settings.size == "tiny"
        else frappe_log(rows)
    )
    path = settings.folder / "log.npz"
    log.save(path)
    return log, str(path)


def ours(name: str, function: str, options: Mapping[str, Any], **more: Any) -> Contender:
    """A contender of `benchmarks.contenders.ours`."""
    return Contender(name=name, make=f"ours:{function}", options={**options, **more})


def afm_epoch(settings: Settings) -> Case:
    """An epoch of AFM on Frappe: fieldwise, FuxiCTR, DeepCTR-Torch, a plain PyTorch loop."""
    log, folder = saved_frappe(settings)
    batch = settings.pick(4096, 4096, 100)
    sizes = {"embedding_dim": 10, "attention_dim": 128}
    shared = {"log": folder, "batch": batch, "settings": sizes}
    few = {**shared, "steps": settings.pick(10, 4, 2)}
    own = {"log": folder, "batch": batch, "model": {"name": "afm", **sizes}}
    rows = len(log.y)
    return Case(
        title="An epoch of AFM, D 10, A 128",
        about=f"{log.about}; batch {batch}, float32, Adam, no dropout or penalty. Seconds are those of an epoch's "
        f"training steps over {rows:,} rows; timings of fewer rows are scaled to an epoch. Those of fieldwise include "
        "shuffling and batch assembly; FuxiCTR and DeepCTR-Torch get batches prepared in memory. FuxiCTR's step "
        "clips gradient norms, as its released code always does.",
        contenders=(
            ours("fieldwise", "epoch", own),
            Contender(
                name=FUXICTR, make="fuxictr:epoch", options={**few, "model": "afm"}, peers=True
            ),
            Contender(
                name="DeepCTR-Torch 0.3.0", make="deepctr_torch:epoch", options=few, peers=True
            ),
            ours(PLAIN, "plain_afm_epoch", few),
        ),
        targets=(
            Target("fieldwise", FUXICTR, 20),
            Target("fieldwise", "DeepCTR-Torch 0.3.0", 20),
            Target("fieldwise", PLAIN, 10),
        ),
    )


def autoint_epoch(settings: Settings) -> Case:
    """An epoch of AutoInt on Frappe: fieldwise in float32 and bfloat16, its plain ops, FuxiCTR."""
    log, folder = saved_frappe(settings)
    batch = settings.pick(4096, 4096, 100)
    sizes = {"embedding_dim": 10, "attention_dim": 64, "layers": 3, "heads": 2}
    few = {"log": folder, "batch": batch, "settings": sizes, "steps": settings.pick(10, 4, 2)}
    own = {
        "log": folder,
        "batch": batch,
        "model": {"name": "autoint", "variant": "fuxictr", **sizes},
        "steps": settings.pick(None, 10, 2),
    }
    return Case(
        title="An epoch of AutoInt, D 10, 3 layers, 2 heads, A 64",
        about=f"{log.about}; batch {batch}, Adam, no dropout or penalty, fieldwise's variant `fuxictr`. Seconds are "
        f"those of an epoch's training steps over {len(log.y):,} rows; timings of fewer rows are scaled to an epoch. "
        "FuxiCTR gets batches prepared in memory.",
        contenders=(
            ours("fieldwise", "epoch", own),
            ours("fieldwise, bfloat16", "epoch", own, training=BFLOAT16),
            ours("fieldwise, plain ops", "epoch", own, ops="plain", steps=few["steps"]),
            Contender(
                name=FUXICTR, make="fuxictr:epoch", options={**few, "model": "autoint"}, peers=True
            ),
        ),
        targets=(Target("fieldwise", FUXICTR, 5), Target("fieldwise, bfloat16", FUXICTR, 8)),
    )


MODEL = AutoInt(variant="fuxictr", embedding_dim=10, layers=3, heads=2, attention_dim=64)


def parquet_scoring(settings: Settings) -> Case:
    """Scoring 1,000,000 rows with AutoInt from Parquet to Parquet, compared with FuxiCTR's predict."""
    rows = settings.rows_of(1_000_000, 100_000, 300)
    log = random_log(rows, FRAPPE_SIZES)
    log.save(settings.folder / "log.npz")
    raw = settings.folder / "raw.parquet"
    encoded = settings.folder / "fuxictr.parquet"
    names = [f"f{f}" for f in range(len(FRAPPE_SIZES))]
    columns = dict(zip(names, log.ids.T, strict=True))
    frame = pl.DataFrame({**columns, "y": log.y.astype(int), "row": range(rows)})
    frame.with_columns(pl.col(names).cast(pl.String)).write_parquet(raw)
    pl.DataFrame(
        {**{n: c.astype("int64") + 1 for n, c in columns.items()}, "y": log.y}
    ).write_parquet(encoded)
    save_bundle(raw, settings.folder / "bundle", log)
    own = {"folder": str(settings.folder), "rows": rows}
    theirs = {
        "log": str(settings.folder / "log.npz"),
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
            ours("fieldwise", "parquet", own, out="scores.parquet"),
            ours("fieldwise, bfloat16", "parquet", own, out="half.parquet", precision="bfloat16"),
            ours("fieldwise, plain ops", "parquet", own, out="plain-scores.parquet", ops="plain"),
            Contender(name=FUXICTR, make="fuxictr:predict", options=theirs, peers=True),
        ),
        targets=(Target("fieldwise", FUXICTR, 10),),
    )


def save_bundle(raw: Path, folder: Path, log: Log) -> None:
    """Save a bundle with untrained weights, which are as fast as trained ones."""
    schema = Schema(
        fields=tuple(Categorical(f"f{f}") for f in range(len(log.sizes))),
        label=Label("y"),
        keys=("row",),
    )
    frame = pl.read_parquet(raw)
    encoder = Encoder.fit(frame, schema)
    network = build_network(MODEL, encoder.layout, 0).eval()
    about = About(run={"parameters": parameter_count(network)})
    Bundle(schema, encoder, MODEL, network, sample_rows(schema, frame), about).save(
        folder, overwrite=True
    )


def preparing(settings: Settings) -> Case:
    """Encoding a Criteo-like CSV file of 39 columns: fieldwise, scikit-learn's encoders, FuxiCTR's preprocessing."""
    rows = settings.rows_of(5_000_000, 200_000, 2_000)
    path = settings.folder / "log.csv"
    with path.open("wb") as file:
        for k, block in enumerate(blocks(rows)):
            block.drop(TIME).write_csv(file, include_header=k == 0)
    options = {"path": str(path), "rows": rows}
    # One run of a slow contestant takes minutes at the full size, so all contestants get the same
    # few rounds.
    return Case(
        title=f"Encoding {rows:,} rows of 39 columns from a CSV file",
        about="A 0/1 label, 13 numbers with missing values and 26 categories (4 to 2,000,000 values), read, fitted "
        "and encoded to disk. FuxiCTR 2.3.10 runs on Polars 1, since its CSV reader uses an argument that Polars 2 "
        "removed; its numbers are scaled by its `StandardScaler`, missing ones filled with 0.",
        contenders=(
            ours("fieldwise", "encoding", options, by="fieldwise"),
            ours("scikit-learn", "encoding", options, by="scikit-learn"),
            Contender(name=FUXICTR, make="fuxictr:preprocess", options=options, peers=True),
        ),
        targets=(Target("fieldwise", FUXICTR, 3), Target("fieldwise", "scikit-learn", 15)),
    )


def gpu_afm_epoch(settings: Settings) -> Case:
    """An epoch of AFM on Frappe on one GPU: fieldwise, FuxiCTR, a plain PyTorch loop."""
    return on_gpu(afm_epoch(settings), settings, (FUXICTR, PLAIN))


def gpu_autoint_epoch(settings: Settings) -> Case:
    """An epoch of AutoInt on Frappe on one GPU: fieldwise in float32, bfloat16 and compiled, its plain ops, FuxiCTR."""
    return on_gpu(autoint_epoch(settings), settings, (FUXICTR, "fieldwise, plain ops"))


def on_gpu(case: Case, settings: Settings, against: tuple[str, ...]) -> Case:
    """A case of the CPU with whole epochs on a GPU, fieldwise also in other ways, and targets of its own."""
    wanted = {"fieldwise", "fieldwise, plain ops", *against}
    contenders = [
        dataclasses.replace(one, options=_options(one, settings))
        for one in case.contenders
        if one.name in wanted
    ]
    own = next(one for one in contenders if one.name == "fieldwise")
    more = {
        "fieldwise, bfloat16": BFLOAT16,
        "fieldwise, compiled": {"compile": True},
        "fieldwise, lazy Adam": LAZY,
    }
    contenders += [
        dataclasses.replace(
            own, name=name, options={**own.options, "training": {"device": GPU, **training}}
        )
        for name, training in more.items()
    ]
    return dataclasses.replace(
        case,
        title=f"{case.title}, on a GPU",
        about=f"{case.about} All on one GPU; seconds end when it is done. Peak memory is that of tensors there.",
        contenders=tuple(contenders),
        targets=tuple(Target("fieldwise", other, 1) for other in against),
        measures=("seconds", "peak MB"),
    )


def _options(contender: Contender, settings: Settings) -> Mapping[str, Any]:
    options = {**contender.options, "steps": settings.pick(None, 30, 2), "device": GPU}
    if contender.make.startswith("ours"):
        options["training"] = {**contender.options.get("training", {}), "device": GPU}
    return options


CASES: dict[str, Callable[[Settings], Case]] = {
    "afm-epoch": afm_epoch,
    "autoint-epoch": autoint_epoch,
    "parquet-scoring": parquet_scoring,
    "preparing": preparing,
}
GPU_CASES: dict[str, Callable[[Settings], Case]] = {
    "gpu-afm-epoch": gpu_afm_epoch,
    "gpu-autoint-epoch": gpu_autoint_epoch,
}
"""`python -m benchmarks run gpu`: written without a GPU, and never measured so far."""

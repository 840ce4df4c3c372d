"""`fieldwise index` and `fieldwise evaluate-cascade`."""

import json as json_module
import sys
from dataclasses import asdict
from pathlib import Path
from typing import cast, get_args

import numpy as np
import polars as pl
from rich.table import Table

from fieldwise.bundle import Bundle
from fieldwise.cli.options import set_threads
from fieldwise.cli.show import console, say
from fieldwise.config import nearest
from fieldwise.data.columns import as_text
from fieldwise.data.tables import as_table
from fieldwise.errors import ConfigError, DataError
from fieldwise.ops.stored_items import Storage
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.evaluate import CascadeReport, evaluate_cascade
from fieldwise.serving.index import MANIFEST, build_index, item_column, open_index

__all__ = ["run_evaluate_cascade", "run_index"]


def run_index(
    folder: Path,
    items: Path,
    out: Path,
    id_column: str | None,
    storage: str | None,
    changes_alone: bool,
    remove: Path | None,
    separator: str | None,
    encoding: str,
    as_json: bool,
    threads: int | None,
) -> None:
    """Build or update an index."""
    if storage is not None and storage not in get_args(Storage):
        raise ConfigError(f"--storage must be known, found {storage!r}: {nearest(storage, get_args(Storage))}")
    set_threads(threads)
    bundle = Bundle.load(folder)
    old = open_index(out) if (out / MANIFEST).exists() else None
    column = id_column or (old.id_column if old else item_column(bundle.schema))
    if id_column is None and old is None:
        say(f"items are named by the column {column!r} (--id names another)")
    given = as_table(items, separator=separator, encoding=encoding)
    if changes_alone or remove is not None:
        if old is None:
            raise ConfigError(f"--changes and --remove need an index to change, found none at {out}: leave them out")
        gone = None if remove is None else as_table(remove, separator=separator, encoding=encoding)
        given = _merged(old.items, given if changes_alone else None, gone, given, column)
    chosen = cast(Storage, storage or (old.stored.storage if old else "float32"))
    index, changes = build_index(bundle, given, out, id_column=column, storage=chosen)
    plain = {
        "index": str(out),
        "items": len(index),
        **asdict(changes),
        "storage": chosen,
        "bytes": index.stored.num_bytes,
    }
    if as_json:
        json_module.dump(plain, sys.stdout, indent=1)
        print()
        return
    print(
        f"{len(index):,} items in {out}, {chosen}, {index.stored.num_bytes / 2**20:,.1f} MB of heads: "
        f"{changes.new:,} new, {changes.changed:,} changed, {changes.removed:,} removed, {changes.kept:,} kept as they "
        "were"
    )


def _merged(
    old: pl.DataFrame, changed: pl.DataFrame | None, gone: pl.DataFrame | None, given: pl.DataFrame, column: str
) -> pl.DataFrame:
    """The catalogue after some changes: `changed` rows replace or follow the old ones, those of `gone` leave."""
    base = old if changed is not None else given
    for table, name in ((changed, "--items"), (gone, "--remove")):
        if table is not None and column not in table.columns:
            raise DataError(
                f"the table of {name} must have the column {column!r} of ids: {nearest(column, table.columns)}"
            )
    if changed is not None:
        if sorted(changed.columns) != sorted(old.columns):
            raise DataError(
                f"changed items must have the columns of the index's: {', '.join(old.columns)}; found "
                f"{', '.join(changed.columns)}"
            )
        new = as_text(changed.get_column(column)).implode()
        base = base.filter(~as_text(base.get_column(column)).is_in(new))
        base = pl.concat([base, changed.select(base.columns).cast(dict(base.schema))])  # type: ignore[arg-type]
    if gone is None:
        return base
    ids = as_text(gone.get_column(column))
    unknown = ids.filter(~ids.is_in(as_text(base.get_column(column)).implode()))
    if len(unknown):
        raise DataError(f"--remove must name items of the index, found {unknown[0]!r} and no such item")
    return base.filter(~as_text(base.get_column(column)).is_in(ids.implode()))


def run_evaluate_cascade(
    prerank: Path,
    ranker: Path,
    index: Path,
    data: Path,
    k: int,
    size: int,
    rows: int,
    seed: int,
    separator: str | None,
    encoding: str,
    as_json: bool,
    threads: int | None,
) -> None:
    """Measure a cascade against ranking everything."""
    set_threads(threads)
    cascade = Cascade(Bundle.load(prerank), open_index(index), Bundle.load(ranker))
    frame = as_table(data, separator=separator, encoding=encoding)
    if frame.height > rows:
        say(f"{rows:,} of {frame.height:,} rows drawn as contexts, seed {seed} (--rows takes more)")
        frame = frame[np.sort(np.random.default_rng(seed).choice(frame.height, rows, replace=False))]
    report = evaluate_cascade(cascade, frame, k=k, prerank=size)
    if as_json:
        json_module.dump(asdict(report), sys.stdout, indent=1)
        print()
    else:
        _print(report)


def _print(report: CascadeReport) -> None:
    out = console()
    out.print(
        f"{report.contexts:,} contexts, {report.items:,} items, {report.prerank:,} pre-ranked, {report.k} returned; "
        "against ranking all items:"
    )
    table = Table("metric", "value", box=None)
    table.add_row(f"recall@{report.k}", f"{report.recall:.4f}")
    table.add_row(f"NDCG@{report.k}", f"{report.ndcg:.4f}")
    table.add_row("best item found", f"{report.best_found:.4f}")
    if report.hit_rate is not None:
        table.add_row(f"hit rate@{report.k} of the rows' own items", f"{report.hit_rate:.4f}")
        table.add_row("the same, ranking all items", f"{report.hit_rate_all:.4f}")
    out.print(table)
    table = Table("pre-ranked", f"of the best {report.k} among them", title="\nrecall of pre-ranking", box=None)
    for size, share in report.recall_by_prerank.items():
        table.add_row(f"{size:,}", f"{share:.4f}")
    out.print(table)
    table = Table("stage", "p50", "p95", "p99", title="\nmilliseconds a request", box=None)
    for stage, values in report.milliseconds.items():
        name = "ranking all items" if stage == "everything" else stage
        table.add_row(name, *(f"{value:.2f}" for value in values))
    out.print(table)

"""`fieldwise index` and `fieldwise evaluate-cascade`."""

import json as json_module
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import cast, get_args

import polars as pl
from polars.exceptions import PolarsError
from rich.table import Table

from fieldwise.bundle.bundle import Bundle
from fieldwise.cli.next import suggest
from fieldwise.cli.options import Reading, set_threads
from fieldwise.cli.show import console, drawn_rows, say
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text
from fieldwise.errors import ConfigError, DataError
from fieldwise.ops.stored_items import Storage
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.evaluate import CascadeReport, evaluate_cascade
from fieldwise.serving.index import build_index, item_column, old_index, open_index
from fieldwise.storage.files import check_folder

__all__ = ["run_evaluate_cascade", "run_index"]


def run_index(
    folder: Path,
    items: Path | None,
    out: Path,
    id_column: str | None,
    storage: str | None,
    changes_alone: bool,
    remove: Path | None,
    reading: Reading,
    as_json: bool,
    threads: int | None,
) -> None:
    """Build or update an index."""
    if storage is not None and storage not in get_args(Storage):
        raise ConfigError(f"--storage must be known, found {storage!r}: {nearest(storage, get_args(Storage))}")
    check_folder(out)
    set_threads(threads)
    bundle = Bundle.load(folder)
    if items is None and (remove is None or changes_alone):
        raise ConfigError("an index is of items: give --items (it may stay away with --remove alone)")
    old = old_index(out)
    column = id_column or (old.id_column if old else item_column(bundle.schema))
    if old is not None and column != old.id_column:
        raise ConfigError(
            f"the index {out} names its items by {old.id_column!r}, found --id {column}: take another --out"
        )
    if id_column is None and old is None:
        say(f"items are named by the column {column!r} (--id names another)")
    given = None if items is None else reading.table(items)
    if changes_alone or remove is not None:
        if old is None:
            raise ConfigError(f"--changes and --remove need an index to change, found none at {out}: leave them out")
        gone = None if remove is None else reading.table(remove)
        given = _merged(old.items, given if changes_alone else None, gone, given, column)
    assert given is not None, "items, or what is left of the old ones"
    chosen = cast(Storage, storage or (old.stored.storage if old else "float32"))
    index, changes = build_index(bundle, given, out, id_column=column, storage=chosen, note=say)
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
    if find_spec("uvicorn") is not None:
        suggest("a page that recommends these items", "serve", "--prerank", folder, "--index", out)


def _merged(
    old: pl.DataFrame, changed: pl.DataFrame | None, gone: pl.DataFrame | None, given: pl.DataFrame | None, column: str
) -> pl.DataFrame:
    """The catalogue after some changes: `changed` rows replace or follow the old ones, those of `gone` leave."""
    base = old if changed is not None or given is None else given
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
        base = pl.concat(
            [base, pl.DataFrame([_as(changed.get_column(c), base.get_column(c).dtype) for c in base.columns])]
        )
    if gone is None:
        return base
    ids = as_text(gone.get_column(column))
    unknown = ids.filter(~ids.is_in(as_text(base.get_column(column)).implode()))
    if len(unknown):
        raise DataError(f"--remove must name items of the index, found {unknown[0]!r}, which it does not hold")
    return base.filter(~as_text(base.get_column(column)).is_in(ids.implode()))


def _as(column: pl.Series, kind: pl.DataType) -> pl.Series:
    """A column in the type that the index has, if no value is changed by it."""
    try:
        cast = column.cast(kind)
        same = cast.cast(column.dtype).eq_missing(column)
    except PolarsError:
        cast = column.cast(kind, strict=False)
        same = cast.is_null() == column.is_null()
    if not same.all():
        row = int((~same).arg_max() or 0)
        raise DataError(
            f"changed items must have the types of the index's: column {column.name!r} is {kind} there, found "
            f"{column[row]!r} in row {row} (counting from 0); build the index from the whole catalogue instead"
        )
    return cast


def run_evaluate_cascade(
    prerank: Path,
    ranker: Path,
    index: Path,
    data: Path,
    k: int,
    size: int,
    probe: int | None,
    rows: int,
    seed: int,
    reading: Reading,
    as_json: bool,
    threads: int | None,
) -> None:
    """Measure a cascade against ranking everything."""
    set_threads(threads)
    cascade = Cascade(Bundle.load(prerank), open_index(index), Bundle.load(ranker), probe=probe)
    frame = reading.table(data)
    contexts = drawn_rows(frame, rows, seed, "rows drawn as contexts")
    report = evaluate_cascade(cascade, contexts, k=k, prerank=size)
    if as_json:
        json_module.dump(asdict(report), sys.stdout, indent=1)
        print()
        return
    _print(report, probe)
    if find_spec("uvicorn") is not None:
        given = ["--prerank", prerank, "--index", index, *([] if probe is None else ["--probe", probe])]
        suggest("a page that recommends by both", "serve", ranker, *given)


def _print(report: CascadeReport, probe: int | None) -> None:
    out = console()
    out.print(
        f"{report.contexts:,} contexts, {report.items:,} items, {min(report.prerank, report.items):,} pre-ranked, "
        f"{report.k} returned; against ranking all items:"
    )
    table = Table("metric", "value", box=None)
    table.add_row(f"recall@{report.k}", f"{report.recall:.4f}")
    table.add_row(f"NDCG@{report.k}", f"{report.ndcg:.4f}")
    table.add_row("best item found", f"{report.best_found:.4f}")
    if probe is not None:
        table.add_row("items scored by the IntTower, in the mean", f"{report.candidates:,.0f}")
        table.add_row(f"its best {report.prerank:,} of all items among them", f"{report.candidate_recall:.4f}")
    if report.hit_rate is not None:
        table.add_row(f"hit rate@{report.k} of the own items of {report.targets:,} rows", f"{report.hit_rate:.4f}")
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

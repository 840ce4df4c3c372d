"""`fieldwise store`."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.options import AsJson, Reading
from fieldwise.cli.show import print_json


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options of `fieldwise store load`."""

    table: Annotated[Path, typer.Argument(metavar="FILE", help="One row per user or item: CSV, TSV, Parquet or Arrow.")]
    to: Annotated[
        str,
        typer.Option(
            envvar="FIELDWISE_STORE",
            show_envvar=True,
            help="redis://HOST/0#users or postgresql://HOST/DATABASE#users; the part after # is the table's name.",
        ),
    ]
    id_column: Annotated[str, typer.Option("--id", help="Column of user or item ids.")] = "user_id"
    reading: Reading
    json: AsJson = False


def run_load(options: LoadOptions) -> None:
    """Write a table into a store.

    It replaces a table of this name; servers read the old one until the new is complete.
    """
    from fieldwise.data.read.chunked_table import SlicedTable
    from fieldwise.serving.stores import load_table, open_store

    store = open_store(options.to, options.id_column)
    began = time.perf_counter()
    loaded = load_table(SlicedTable(options.table, options.reading.text), store)
    seconds = time.perf_counter() - began
    if options.json:
        print_json({"store": store.shown, **loaded, "seconds": seconds})
        return
    before = "" if loaded["before"] is None else f", replacing {loaded['before']:,}"
    print(f"{loaded['rows']:,} rows in {store.shown}{before}: {', '.join(loaded['columns'])}; {seconds:.1f} s")

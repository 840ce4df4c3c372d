"""`fieldwise store load`: write a table of users' or items' features into a store."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fieldwise.cli import options as opt
from fieldwise.cli import show


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options of `fieldwise store load`."""

    table: Annotated[
        Path, Argument(metavar="FILE", help=f"One row per user or item: {opt.READ_FORMATS}.")
    ]
    to: Annotated[
        str,
        Option(
            envvar="FIELDWISE_STORE",
            help="redis://HOST/0#users or postgresql://HOST/DATABASE#users; the part after # is the table's name.",
        ),
    ]
    id_column: Annotated[str, Option("--id", help="Column of user or item ids.")] = "user_id"
    reading: opt.Reading
    json: opt.AsJson = False


def run(options: LoadOptions) -> None:
    """Write a table into a store.

    It replaces a table of this name; servers read the old one until the new is complete.
    """
    from fieldwise.data.read.sliced_table import SlicedTable
    from fieldwise.serving.stores import load_table, open_store

    store = open_store(options.to, options.id_column)
    began = time.perf_counter()
    # a store knows no schema: nothing may be lost
    every_column = options.reading.text(text_columns=None)
    loaded = load_table(SlicedTable(options.table, every_column), store)
    seconds = time.perf_counter() - began
    if options.json:
        show.print_json({"store": store.shown, **loaded, "seconds": seconds})
        return
    replaced = ""
    if loaded["before"] is not None:
        replaced = f", replacing {loaded['before']:,}"
    columns = ", ".join(loaded["columns"])
    print(f"{loaded['rows']:,} rows in {store.shown}{replaced}: {columns}; {seconds:.1f} s")

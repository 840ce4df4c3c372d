"""`fieldwise store`."""

import json as json_module
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.options import Columns, Encoding, Separator, column_names

__all__ = ["app"]

app = typer.Typer(
    name="store", help="Features of users and items in Redis or PostgreSQL, for `serve`.", no_args_is_help=True
)


@app.command()
def load(
    table: Annotated[Path, typer.Argument(metavar="FILE", help="One row each: CSV, TSV, Parquet or Arrow.")],
    to: Annotated[
        str,
        typer.Option(
            envvar="FIELDWISE_STORE",
            show_envvar=True,
            help="redis://HOST/0#users or postgresql://HOST/DATABASE#users; what stands behind # is the name.",
        ),
    ],
    id_column: Annotated[str, typer.Option("--id", help="The column that names a user, or an item.")] = "user_id",
    separator: Separator = None,
    encoding: Encoding = "utf-8",
    columns: Columns = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Write a table into a store. A table of this name is replaced; servers read it until the new one is whole."""
    from fieldwise.serving.stores.load import load_table
    from fieldwise.serving.stores.url import StoreURL

    address = StoreURL.parse(to)
    began = time.perf_counter()
    loaded = load_table(
        table, address, id_column, separator=separator, encoding=encoding, columns=column_names(columns)
    )
    seconds = time.perf_counter() - began
    if json:
        json_module.dump({"store": address.shown, **asdict(loaded), "seconds": seconds}, sys.stdout, indent=1)
        print()
        return
    before = "" if loaded.before is None else f", in place of {loaded.before:,}"
    print(f"{loaded.rows:,} rows in {address.shown}{before}: {', '.join(loaded.columns)}; {seconds:.1f} s")

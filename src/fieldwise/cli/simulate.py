"""`fieldwise simulate`: a simulated log as a file."""

from pathlib import Path
from typing import Annotated

from typer import Option

from fieldwise.cli import options as opt
from fieldwise.cli import show
from fieldwise.storage.outputs import check_output


def run(
    *,
    out: Annotated[Path, Option(help=f"File to write: {opt.WRITTEN_FORMATS}.")],
    rows: Annotated[int, Option(min=1, help="Number of rows.")] = 120_000,
    users: Annotated[int, Option(min=1, help="Number of users.")] = 1_000,
    items: Annotated[int, Option(min=1, help="Number of films.")] = 400,
    seed: opt.Seed = 0,
    overwrite: opt.Overwrite = False,
) -> None:
    """Write a simulated log, with the true probability of every row."""
    from fieldwise.data.read.simulation import simulate
    from fieldwise.data.read.table_writer import write_table

    check_output(out, overwrite=overwrite)
    frame = simulate(rows, users=users, items=items, seed=seed)
    write_table(frame, out)
    columns = ", ".join(frame.columns)
    show.say(f"{show.counted(frame.height, 'row')} written to {out} ({columns})")
    show.suggest("write a schema and a recipe for it", "init", out, "--label", "liked")

"""The log of the epoch cases: Frappe's rows if its files are present, else simulated rows of the same shape."""

import os
from pathlib import Path

import numpy as np

from benchmarks.log import FRAPPE_SIZES, Log, random_log
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.recipe import load_recipe

__all__ = ["FRAPPE_ROWS", "data_folder", "frappe_log"]

FRAPPE_ROWS = 202_027
_VALID_ROWS = 57_722


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
    held = np.random.default_rng(1).permutation(len(prepared.valid.table))[: round(share * _VALID_ROWS)]
    return Log(
        tuple(field.rows for field in fields),
        prepared.train.table.ids[order] - offsets,
        prepared.train.main[order],
        prepared.valid.table.ids[held] - offsets,
        prepared.valid.main[held],
        f"Frappe (libFM form), {len(order):,} training rows",
    )

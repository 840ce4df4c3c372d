"""Common parts of cases: the Frappe log on disk, and training settings."""

from benchmarks.case import Settings
from benchmarks.frappe import FRAPPE_ROWS, frappe_log
from benchmarks.log import FRAPPE_SIZES, Log, random_log

__all__ = ["BFLOAT16", "DENSE", "LAZY", "saved_frappe"]

LAZY = {"embedding_update": "lazy"}
"""Training settings of embedding updates that touch only the batch's rows."""
DENSE = {"embedding_update": "dense"}
"""Training settings of updates of the whole table at every step."""
BFLOAT16 = {"precision": "bfloat16"}
"""Training settings of bfloat16 arithmetic."""


def saved_frappe(settings: Settings) -> tuple[Log, str]:
    """Frappe's log (or one of its shape) and the folder that it was written to for the contenders."""
    rows = settings.rows_of(FRAPPE_ROWS, FRAPPE_ROWS, 600)
    log = random_log(rows, FRAPPE_SIZES, valid_rows=100) if settings.size == "tiny" else frappe_log(rows)
    folder = settings.folder / "log"
    log.save(folder)
    return log, str(folder)

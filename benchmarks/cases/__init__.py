"""The cases by name: each function builds a case and its data for the settings of a run. One file per case."""

from collections.abc import Callable

from benchmarks.case import Case, Settings
from benchmarks.cases.afm_epoch import afm_epoch
from benchmarks.cases.afm_pooling import afm_pooling
from benchmarks.cases.autoint_epoch import autoint_epoch
from benchmarks.cases.candidates import candidates
from benchmarks.cases.fm_epoch import fm_epoch
from benchmarks.cases.fm_scoring import fm_scoring
from benchmarks.cases.inttower_epoch import inttower_epoch
from benchmarks.cases.maxsim import maxsim
from benchmarks.cases.parquet_scoring import parquet_scoring
from benchmarks.cases.preparing import preparing
from benchmarks.cases.sizes import sizes_dim, sizes_fields, sizes_rows, sizes_vocabulary
from benchmarks.cases.update_step import update_step

__all__ = ["CASES", "SHORT"]

CASES: dict[str, Callable[[Settings], Case]] = {
    "afm-pooling": afm_pooling,
    "afm-epoch": afm_epoch,
    "autoint-epoch": autoint_epoch,
    "fm-epoch": fm_epoch,
    "fm-scoring": fm_scoring,
    "candidates": candidates,
    "inttower-epoch": inttower_epoch,
    "update-step": update_step,
    "maxsim": maxsim,
    "parquet-scoring": parquet_scoring,
    "preparing": preparing,
    "sizes-fields": sizes_fields,
    "sizes-dim": sizes_dim,
    "sizes-vocabulary": sizes_vocabulary,
    "sizes-rows": sizes_rows,
}

SHORT = ("afm-pooling", "afm-epoch", "autoint-epoch", "fm-epoch", "maxsim", "update-step")
"""What `make bench` runs, at the quick size."""

"""The development tables: raw rows, and a schema with the corrections that a user would make to the inferred one.

Nothing here is tuned. Corrections state only what anyone who knows the table knows: the meaning of
the label, which numbers are ids, which columns are not fields. Bins, vocabularies and everything
else are as inferred.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.data.infer.schema import infer_schema
from fieldwise.data.prepare.settings import (
    ColumnSplit,
    NegativeSampling,
    RandomSplit,
    SplitSettings,
)
from fieldwise.data.read.public_sets import PUBLIC_SETS
from fieldwise.data.read.simulation import simulate
from fieldwise.schema import Categorical, Label, Role, Schema

__all__ = ["TABLES", "DevTable", "corrected"]

CENSUS = """
age class_worker det_ind_code det_occ_code education wage_per_hour hs_college marital_stat major_ind_code
major_occ_code race hisp_origin sex union_member unemp_reason full_or_part_emp capital_gains capital_losses
stock_dividends tax_filer_stat region_prev_res state_prev_res det_hh_fam_stat det_hh_summ instance_weight
mig_chg_msa mig_chg_reg mig_move_reg mig_same mig_prev_sunbelt num_emp fam_under_18 country_father
country_mother country_self citizenship own_or_self vet_question vet_benefits weeks_worked year income_50k
"""
CENSUS_NUMBERS = (
    *(
        "age",
        "wage_per_hour",
        "capital_gains",
        "capital_losses",
        "stock_dividends",
        "instance_weight",
    ),
    *("num_emp", "weeks_worked"),
)


@dataclass(frozen=True, kw_only=True)
class DevTable:
    """One table, and what a user corrects in its inferred schema.

    Args:
        about: description for the page.
        read: function that returns the raw rows, from the folder of data sets and a seed.
        label: the label with its rule.
        leave_out: columns that are not fields.
        categorical: columns whose numbers are ids.
        roles: roles of columns; `everything` is the role of all others.
        time: the column that orders rows.
        group: the column of the user.
        keys: columns that identify a row.
        rows: number of rows used for development, if there are additional test rows; else all rows
            are used.
        by_seed: whether every seed has its own rows; otherwise all seeds have the same rows.
    """

    name: str
    about: str
    read: Callable[[Path, int], pl.DataFrame]
    label: Label
    leave_out: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    roles: Mapping[str, Role] = field(default_factory=dict)
    everything: Role | None = None
    time: str | None = None
    group: str | None = None
    keys: tuple[str, ...] = ()
    split: SplitSettings = field(default_factory=lambda: RandomSplit(valid=0.1, test=0.2))
    rows: int | None = None
    negatives: NegativeSampling | None = None
    by_seed: bool = False


def corrected(frame: pl.DataFrame, by: DevTable) -> Schema:
    """The inferred schema of a table's rows with its corrections applied."""
    taken = frame.drop([c for c in by.leave_out if c in frame.columns])
    guess = infer_schema(taken, label=by.label.column).schema
    fields = []
    for one in guess.fields:
        role = by.roles.get(one.column, by.everything or one.role)
        if one.column in by.categorical and not isinstance(one, Categorical):
            one = Categorical(one.name, role=role, column=one.column)
        fields.append(replace(one, role=role))
    return Schema(fields=tuple(fields), label=by.label, time=by.time, group=by.group, keys=by.keys)


@cache
def _public(name: str, data_dir: Path) -> pl.DataFrame:
    return PUBLIC_SETS[name].read(data_dir)


def _set(name: str) -> Callable[[Path, int], pl.DataFrame]:
    return lambda data_dir, _: _public(name, data_dir)


def _ratings(data_dir: Path) -> pl.DataFrame:
    return _public("movielens-1m", data_dir).filter(pl.col("rating") != 3)


def _by_time(rows: int, more: int) -> Callable[[Path, int], pl.DataFrame]:
    """Consecutive ratings in time order, from a position sampled once (seed 0); the `more` after them are test rows.

    The last tenth of the `rows` are the validation rows.
    """

    def read(data_dir: Path, _: int) -> pl.DataFrame:
        frame = _ratings(data_dir).sort("timestamp", maintain_order=True)
        first = int(np.random.default_rng([0, rows]).integers(0, frame.height - rows - more + 1))
        parts = np.repeat(["train", "valid", "test"], [rows - rows // 10, rows // 10, more])
        return frame.slice(first, rows + more).with_columns(part=pl.Series(parts))

    return read


def _at_random(rows: int, more: int) -> Callable[[Path, int], pl.DataFrame]:
    """Ratings sampled once (seed 0) from all, in the file's order: `rows` for the table and `more` test rows."""

    def read(data_dir: Path, _: int) -> pl.DataFrame:
        frame = _ratings(data_dir)
        rng = np.random.default_rng([0, rows])
        return _parted(
            frame[np.sort(rng.choice(frame.height, rows + more, replace=False))], more, rng
        )

    return read


def _parted(frame: pl.DataFrame, tests: int, rng: np.random.Generator) -> pl.DataFrame:
    """The rows with a column `part`: a random sample is `test`, the others are `train`."""
    parts = np.repeat(["train", "test"], [frame.height - tests, tests])
    return frame.with_columns(part=pl.Series(rng.permutation(parts)))


@cache
def _census(data_dir: Path) -> pl.DataFrame:
    path = data_dir / "census-income" / "census-income.test.gz"
    frame = pl.read_csv(path, has_header=False, new_columns=CENSUS.split(), infer_schema=False)
    frame = frame.with_columns(pl.all().str.strip_chars()).with_columns(pl.all().replace("?", None))
    return frame.with_columns(pl.col(name).cast(pl.Float64) for name in CENSUS_NUMBERS)


_PART = ColumnSplit(column="part", valid_share=0.1)


def _simulated(name: str, rows: int, more: int) -> DevTable:
    def read(_: Path, seed: int) -> pl.DataFrame:
        return _parted(simulate(rows + more, seed=seed), more, np.random.default_rng([seed, rows]))

    return DevTable(
        name=name,
        about=f"simulated log: {rows:,} rows and {more:,} test rows sampled from one log, with other samples for each "
        "seed",
        read=read,
        label=Label("liked"),
        leave_out=("title", "true_probability", "part"),
        time="timestamp",
        group="user_id",
        keys=("user_id", "item_id", "timestamp"),
        split=_PART,
        rows=rows,
        by_seed=True,
    )


def _movies(name: str, rows: int, more: int, *, by_time: bool) -> DevTable:
    of_time = f"{rows:,} consecutive ratings, and the next {more:,} as test rows"
    at_random = f"{rows:,} ratings sampled at random, and {more:,} others as test rows"
    return DevTable(
        name=name,
        about=f"MovieLens-1M with ids: {of_time if by_time else at_random}",
        read=(_by_time if by_time else _at_random)(rows, more),
        label=Label("rating", positive_above=3, drop_values=(3,)),
        leave_out=("title", "user_order", "split", "part"),
        roles={"release_year": "item"},
        time="timestamp",
        group="user_id",
        keys=("user_id", "movie_id"),
        split=ColumnSplit(column="part") if by_time else _PART,
        rows=rows,
    )


_ALL = (
    _simulated("sim-1k", 1_000, 10_000),
    _movies("ml1m-random-1k", 1_000, 20_000, by_time=False),
    _simulated("sim-10k", 10_000, 10_000),
    _movies("ml1m-time-10k", 10_000, 5_000, by_time=True),
    DevTable(
        name="criteo",
        about="Criteo's sample of 10,000 rows, random split",
        read=_set("criteo-sample"),
        label=Label("label"),
        everything="context",
    ),
    DevTable(
        name="avazu",
        about="Avazu's sample of 15,000 rows, random split",
        read=_set("avazu-sample"),
        label=Label("click"),
        categorical=tuple(f"C{k}" for k in range(14, 22)),
        everything="context",
    ),
    DevTable(
        name="adult",
        about="UCI Adult, the official test rows",
        read=_set("adult"),
        label=Label("income", positive_values=(">50K",)),
        leave_out=("split",),
        everything="context",
        split=ColumnSplit(column="split", valid_share=0.1),
    ),
    DevTable(
        name="book-crossing",
        about="Book-Crossing's ratings above 7, random split",
        read=_set("book-crossing"),
        label=Label("rating", positive_above=7),
        leave_out=("isbn", "title"),
        roles={"year": "item"},
        group="user_id",
        keys=("user_id", "book_id"),
    ),
    DevTable(
        name="census-income",
        about="Census-Income (KDD), its test file, income above 50,000, random split",
        read=lambda data_dir, _: _census(data_dir),
        label=Label("income_50k", positive_values=("50000+.",)),
        leave_out=("instance_weight",),
        everything="context",
    ),
    _movies("ml1m-time-100k", 100_000, 20_000, by_time=True),
    _simulated("sim-120k", 120_000, 20_000),
    DevTable(
        name="frappe",
        about="Frappe, the published split, with two sampled negatives per positive in the training rows",
        read=_set("frappe"),
        label=Label("label", positive_values=(1,)),
        leave_out=("split",),
        categorical=("city",),
        roles={"country": "context", "city": "context", "cost": "context"},
        group="user",
        keys=("user", "item"),
        split=ColumnSplit(column="split"),
        negatives=NegativeSampling(
            user="user", item="item", per_positive=2, parts=("train",), only_where_missing=True
        ),
    ),
)
TABLES: dict[str, DevTable] = {table.name: table for table in _ALL}
"""The twelve tables by which the defaults are judged, from the smallest to the largest."""

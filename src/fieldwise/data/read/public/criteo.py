"""Criteo Display Advertising Challenge (Criteo Labs, Kaggle, 2014): the official file, and a 10,000-row head of it."""

from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import open_source
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.public.sets import PublicSet, need
from fieldwise.errors import DataError

__all__ = ["CRITEO", "CRITEO_SAMPLE", "load_criteo", "load_criteo_sample"]

_NUMERIC = tuple(f"I{k}" for k in range(1, 14))
_COLUMNS = ("label", *_NUMERIC, *(f"C{k}" for k in range(1, 27)))


def load_criteo(folder: Path) -> pl.DataFrame:
    """Read the official `train.txt` (plain or `.gz`), in its order, which is chronological.

    Returns:
        label (0 or 1), I1 to I13 (Int64), C1 to C26 (text); an empty field is null.

    Errors:
        DataError: the file is absent or malformed.
    """
    return _read(need(folder, "train.txt"))


def load_criteo_sample(folder: Path) -> pl.DataFrame:
    """Like `load_criteo`, from `train_examples.txt`: the first 10,000 rows of the official file."""
    return _read(need(folder, "train_examples.txt"))


def _read(path: Path) -> pl.DataFrame:
    frame = read_delimited(open_source(path), separator="\t", names=_COLUMNS, quoting=False, infer=False)
    for name in ("label", *_NUMERIC):
        column = frame.get_column(name)
        number = column.cast(pl.Int64, strict=False)
        wrong = number.is_null() & column.is_not_null() if name != "label" else ~number.is_in([0, 1]).fill_null(False)
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            rule = "label is 0 or 1" if name == "label" else f"{name} is a whole number or empty"
            raise DataError(f"Criteo's {rule}: {path} line {row + 1} holds {column[row]!r}; use the official file")
        frame = frame.with_columns(number)
    return frame


_TERMS = "Criteo's terms for the challenge's data: research, no commercial use"
_HOME = "https://ailab.criteo.com/ressources/"

CRITEO = PublicSet(
    name="criteo",
    folder="criteo",
    title="Criteo Display Advertising Challenge",
    rows=45_840_617,
    licence=_TERMS,
    homepage=_HOME,
    load=load_criteo,
    needs=(("train.txt",),),
    by_hand=f"accept Criteo's terms at {_HOME} and put train.txt (or train.txt.gz) into the folder criteo",
)
CRITEO_SAMPLE = PublicSet(
    name="criteo-sample",
    folder="criteo",
    title="Criteo Display Advertising Challenge, the first 10,000 rows",
    rows=10_000,
    licence=_TERMS,
    homepage=_HOME,
    load=load_criteo_sample,
    needs=(("train_examples.txt",),),
    by_hand=(
        f"accept Criteo's terms at {_HOME} and put the first 10,000 lines of train.txt into the folder criteo "
        "as train_examples.txt"
    ),
)

"""UCI Adult (Census Income): B. Becker, R. Kohavi, 1996, doi:10.24432/C5XW20."""

from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import ByteSource
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.public.sets import PublicSet, RemoteFile, need, read_checked
from fieldwise.errors import DataError
from fieldwise.storage.checksums import Checksum

__all__ = ["ADULT", "load_adult"]

_INTEGERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education_num",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital_gain",
    "capital_loss",
    "hours_per_week",
    "native_country",
    "income",
)
_ORIGIN = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_FILES = (
    RemoteFile(
        url=f"{_ORIGIN}/adult.data",
        name="adult.data",
        bytes=3_974_305,
        checksum=Checksum(kind="sha256", value="5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
    ),
    RemoteFile(
        url=f"{_ORIGIN}/adult.test",
        name="adult.test",
        bytes=2_003_153,
        checksum=Checksum(kind="sha256", value="a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
    ),
)


def load_adult(folder: Path, *, verify: bool = True) -> pl.DataFrame:
    """Read Adult: the rows of `adult.data`, then those of `adult.test`.

    Args:
        folder: with both files, each plain or `.gz`.
        verify: whether their checksums must hold.

    Returns:
        The 14 attributes under UCI's names with underscores (age, fnlwgt, education_num, capital_gain, capital_loss
        and hours_per_week Int64, the others text, `?` as null), income (`<=50K` or `>50K`) and split (`train`, `test`).

    Errors:
        DataError: a file is absent, malformed or not the official one.
    """
    parts = [_read(need(folder, file.name), file.checksum if verify else None) for file in _FILES]
    return pl.concat([part.with_columns(split=pl.lit(s)) for part, s in zip(parts, ("train", "test"), strict=True)])


def _read(path: Path, checksum: Checksum | None) -> pl.DataFrame:
    content = read_checked(path, checksum)
    # adult.test begins with a remark, and both files end in a blank line.
    line = 2 if content.startswith(b"|") else 1
    rows = content[content.find(b"\n") + 1 :] if line == 2 else content
    source = ByteSource(path=path, content=rows.rstrip(b"\r\n") + b"\n", first_line=line)
    frame = read_delimited(source, separator=",", names=_COLUMNS, quoting=False, infer=False)
    frame = frame.with_columns(pl.all().str.strip_chars()).with_columns(pl.col("income").str.strip_suffix("."))
    frame = frame.with_columns(pl.all().replace("?", None))
    for name in _INTEGERS:
        column = frame.get_column(name)
        wrong = column.cast(pl.Int64, strict=False).is_null()
        if wrong.any():
            row = int(wrong.arg_max() or 0)
            raise DataError(f"Adult's {name} is a whole number: {path} line {row + line} holds {column[row]!r}")
    unknown = ~frame.get_column("income").is_in(["<=50K", ">50K"]).fill_null(False)
    if unknown.any():
        row = int(unknown.arg_max() or 0)
        found = frame.get_column("income")[row]
        raise DataError(f"Adult's income is <=50K or >50K: {path} line {row + line} holds {found!r}")
    return frame.with_columns(pl.col(_INTEGERS).cast(pl.Int64))


ADULT = PublicSet(
    name="adult",
    folder="adult",
    title="UCI Adult (Census Income)",
    rows=48_842,
    licence="CC BY 4.0 (UCI Machine Learning Repository)",
    homepage="https://archive.ics.uci.edu/dataset/2/adult",
    load=load_adult,
    needs=(("adult.data",), ("adult.test",)),
    files=_FILES,
)

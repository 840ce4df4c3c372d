"""The common columns and types of a table's files."""

from collections.abc import Mapping
from pathlib import Path

import polars as pl

from fieldwise.errors import DataError

__all__ = ["check_columns", "common_schema"]

_INTEGERS = (pl.Int8, pl.Int16, pl.Int32, pl.Int64)
_UNSIGNED = (pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)


def check_columns(path: Path, names: list[str], first: Path, wanted: list[str]) -> None:
    """Check that a file has the columns of the first one, in any order.

    Errors:
        DataError: a column is missing or extra.
    """
    for there, other, one, two in ((names, wanted, path, first), (wanted, names, first, path)):
        extra = [name for name in there if name not in set(other)]
        if extra:
            raise DataError(
                f"the files of a table must have the same columns, but {one} has {extra[0]!r} and {two} has not: "
                "remove or add it, or leave out the file"
            )


def common_schema(schemas: Mapping[Path, pl.Schema]) -> pl.Schema:
    """The schema of the first file, with types that hold the values of all files.

    Integers, and Float32 with Float64, become the narrowest type that holds both without loss; a column of nulls takes
    any type. All else must be equal.

    Errors:
        DataError: a column is missing, extra, or of another type; both files are named.

    >>> first, second = pl.Schema({"a": pl.Int8()}), pl.Schema({"a": pl.UInt16()})
    >>> common_schema({Path("1.parquet"): first, Path("2.parquet"): second})
    Schema([('a', Int32)])
    """
    (first, common), *others = schemas.items()
    common, since = pl.Schema(common), dict.fromkeys(common, first)
    for path, schema in others:
        check_columns(path, schema.names(), first, common.names())
        for name, dtype in schema.items():
            wider = _wider(common[name], dtype)
            if wider is None:
                raise DataError(
                    f"a column must have one type in all files, but {name!r} is {common[name]} in {since[name]} and "
                    f"{dtype} in {path}: convert one of them"
                )
            if wider != common[name]:
                common[name], since[name] = wider, path
    return common


def _wider(one: pl.DataType, other: pl.DataType) -> pl.DataType | None:
    if one == other:
        return one
    if pl.Null in (one, other):
        return other if one == pl.Null else one
    if {one, other} == {pl.Float32(), pl.Float64()}:
        return pl.Float64()
    if one in _INTEGERS and other in _INTEGERS:
        return max(one, other, key=lambda kind: _INTEGERS.index(type(kind)))
    if one in _UNSIGNED and other in _UNSIGNED:
        return max(one, other, key=lambda kind: _UNSIGNED.index(type(kind)))
    signed, unsigned = (one, other) if one in _INTEGERS else (other, one)
    if signed in _INTEGERS and unsigned in _UNSIGNED[:3]:
        return _INTEGERS[max(_INTEGERS.index(type(signed)), _UNSIGNED.index(type(unsigned)) + 1)]()
    return None

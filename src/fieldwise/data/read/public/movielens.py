"""MovieLens-1M: `ratings.dat`, `users.dat`, `movies.dat`, or the ratings rebuilt as `ratings.csv`.

F. M. Harper, J. A. Konstan: The MovieLens Datasets: History and Context. ACM TiiS 5(4), 19, 2015.
"""

from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import open_source, read_content, read_lines
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.public.sets import Member, PublicSet, RemoteFile, check_content, check_described, find, need
from fieldwise.errors import DataError
from fieldwise.storage.checksums import Checksum

__all__ = ["MOVIELENS_1M", "load_movielens", "time_splits"]

_RATINGS = Checksum(kind="git-sha1", value="77a7c4b150f588c23bb9e1f068aa996c0b413695")
_USERS = Checksum(kind="sha256", value="1dc3a95300cb19f7c10e027daf29b8cdf1d908dab65b5edfb45950aa389a10a3")
_MOVIES = Checksum(kind="sha256", value="0140fc2356357c1a851d0f52e893a1e4d3696df632c4141cea8d5bc3d621f0b9")
_ROWS, _N_USERS, _N_MOVIES = 1_000_209, 6_040, 3_706
_REBUILT = ("user_id", "movie_id", "rating", "timestamp", "ts_lo", "ts_hi", "user_order", "split")


def load_movielens(folder: Path, *, verify: bool = True) -> pl.DataFrame:
    """Read MovieLens-1M, one row per rating in the file's order.

    The rebuilt `ratings.csv` has only bounds for some timestamps, and only for low ratings. So `timestamp` is the
    integer midpoint of the bounds for ALL of its rows (the upper bound if there is no lower one), and the bounds and
    their source are not returned: they would leak the label.

    Args:
        folder: with `users.dat`, `movies.dat`, and `ratings.dat` or `ratings.csv`, each plain or `.gz`.
        verify: whether the files must be the official ones (by checksum; the rebuilt ratings by their counts).

    Returns:
        user_id, movie_id, rating, timestamp (unix seconds), user_order (position in the user's own history, from 0),
        split (`train`, `val`, `test`: the earliest 80 %, next 10 %, last 10 % of all ratings), gender, age,
        occupation, zip (text), title, genres (text joined by `|`), release_year.

    Errors:
        DataError: a file is absent, malformed or not the official one.
    """
    official = find(folder, "ratings.dat")
    if official is not None:
        ratings = _official_ratings(official, verify)
    else:
        ratings = _rebuilt_ratings(need(folder, "ratings.dat", "ratings.csv"), verify)
    users = _dat(
        need(folder, "users.dat"),
        ("user_id", "gender", "age", "occupation", "zip"),
        text=("gender", "zip"),
        checksum=_USERS if verify else None,
    )
    movies = _dat(
        need(folder, "movies.dat"),
        ("movie_id", "title", "genres"),
        text=("title", "genres"),
        checksum=_MOVIES if verify else None,
        encoding="iso-8859-1",
    )
    year = pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int64)
    movies = movies.with_columns(release_year=year)
    joined = ratings.join(users, on="user_id", how="left", maintain_order="left").join(
        movies, on="movie_id", how="left", maintain_order="left"
    )
    check_described(joined, folder, user_id="gender", movie_id="title")
    return joined


def time_splits(time: pl.Expr) -> pl.Expr:
    """`train`, `val`, `test`: the earliest 80 %, next 10 %, last 10 % by `time`; ties keep the rows' order."""
    place, rows = time.rank("ordinal") - 1, pl.len()
    train_end, val_end = rows * 8 // 10, rows * 9 // 10
    label = pl.when(place < train_end).then(pl.lit("train")).when(place < val_end).then(pl.lit("val"))
    return label.otherwise(pl.lit("test"))


def _official_ratings(path: Path, verify: bool) -> pl.DataFrame:
    names = ("user_id", "movie_id", "rating", "timestamp")
    frame = _dat(path, names, text=(), checksum=_RATINGS if verify else None)
    # An ordinal rank breaks ties by the rows' order, which is the file's.
    order = (pl.col("timestamp").rank("ordinal").over("user_id") - 1).cast(pl.Int64)
    return frame.with_columns(user_order=order, split=time_splits(pl.col("timestamp")))


def _rebuilt_ratings(path: Path, verify: bool) -> pl.DataFrame:
    frame = read_delimited(open_source(path), separator=",")
    absent = [name for name in _REBUILT if name not in frame.columns]
    if absent:
        raise DataError(f"{path} must have the columns {', '.join(_REBUILT)}: {', '.join(absent)} is missing")
    frame = _integers(frame, path, tuple(name for name in _REBUILT if name != "split"), first_line=2)
    low, high = pl.col("ts_lo"), pl.col("ts_hi")
    # low + (high - low) // 2 is exact in integers, and is the known timestamp if both bounds are equal.
    frame = frame.select(
        "user_id",
        "movie_id",
        "rating",
        (low + (high - low) // 2).fill_null(high).alias("timestamp"),
        "user_order",
        "split",
    )
    if frame.get_column("timestamp").has_nulls():
        raise DataError(f"every row of {path} needs the upper bound ts_hi of its timestamp; fetch the file again")
    counts = (frame.height, frame.get_column("user_id").n_unique(), frame.get_column("movie_id").n_unique())
    if verify and counts != (_ROWS, _N_USERS, _N_MOVIES):
        raise DataError(
            f"{path} must hold {_ROWS} ratings by {_N_USERS} users of {_N_MOVIES} movies, "
            f"found {counts[0]}, {counts[1]} and {counts[2]}; it is incomplete"
        )
    return frame


def _dat(
    path: Path,
    names: tuple[str, ...],
    *,
    text: tuple[str, ...],
    checksum: Checksum | None,
    encoding: str = "utf-8",
) -> pl.DataFrame:
    """A `::`-separated file: columns `text` as String, the others as Int64."""
    content = read_content(path)
    lines = read_lines(path, encoding, content)
    marks = lines.str.count_matches("::", literal=True)
    wrong = marks != len(names) - 1
    if not len(lines) or wrong.any():
        row = int(wrong.arg_max() or 0)
        found = f"line {row + 1} has {marks[row] + 1}" if len(lines) else "it is empty"
        raise DataError(
            f"{path} must have {len(names)} fields per line, {'::'.join(names)}: {found}; use the official file"
        )
    # After checking the lines' format, so that a file of another format is not reported as damaged.
    check_content(path, content, checksum)
    frame = lines.str.split_exact("::", len(names) - 1).struct.rename_fields(list(names)).struct.unnest()
    return _integers(frame, path, tuple(name for name in names if name not in text), first_line=1)


def _integers(frame: pl.DataFrame, path: Path, names: tuple[str, ...], first_line: int) -> pl.DataFrame:
    for name in names:
        column = frame.get_column(name)
        whole = column.cast(pl.Int64, strict=False)
        if whole.null_count() > column.null_count():
            row = int((whole.is_null() & column.is_not_null()).arg_max() or 0)
            raise DataError(f"{name} is a whole number: {path} line {row + first_line} holds {column[row]!r}")
        frame = frame.with_columns(whole)
    return frame


MOVIELENS_1M = PublicSet(
    name="movielens-1m",
    folder="ml-1m",
    title="MovieLens-1M ratings",
    rows=_ROWS,
    licence="research use; no redistribution and no commercial use without permission (GroupLens)",
    homepage="https://grouplens.org/datasets/movielens/1m/",
    load=load_movielens,
    needs=(("ratings.dat", "ratings.csv"), ("users.dat",), ("movies.dat",)),
    files=(
        RemoteFile(
            url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
            name="ml-1m.zip",
            checksum=Checksum(kind="md5", value="c4d9eecfca2ab87c1945afe126590906"),
            unpack=(
                Member(path="ml-1m/ratings.dat", name="ratings.dat", checksum=_RATINGS),
                Member(path="ml-1m/users.dat", name="users.dat", checksum=_USERS),
                Member(path="ml-1m/movies.dat", name="movies.dat", checksum=_MOVIES),
            ),
        ),
    ),
)

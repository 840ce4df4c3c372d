"""MovieLens-1M: both forms of its ratings, by hand and against the published counts."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from fieldwise import DataError
from fieldwise.data.read.public_sets import PUBLIC_SETS

COLUMNS = [
    *("user_id", "movie_id", "rating", "timestamp", "user_order", "split"),
    *("gender", "age", "occupation", "zip", "title", "genres", "release_year"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two users and three movies; ratings are each test's own."""
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    (folder / "users.dat").write_text("1::F::1::10::01234\n2::M::56::16::98107-2117\n")
    movies = (
        "1::Les Misérables (1995)::Drama|Musical\n"
        "7::2001: A Space Odyssey (1968)::Sci-Fi\n9::M (1931)::Film-Noir\n"
    )
    (folder / "movies.dat").write_bytes(movies.encode("iso-8859-1"))
    return folder


def read(folder: Path, *, verify: bool = False) -> pl.DataFrame:
    official = PUBLIC_SETS["movielens-1m"]
    return (official if verify else replace(official, checksums={})).read(folder.parent)


def _ratings(folder: Path, rows: list[tuple[int, int, int, int]]) -> None:
    (folder / "ratings.dat").write_text("".join("::".join(map(str, row)) + "\n" for row in rows))


def test_official_ratings_by_hand(folder: Path) -> None:
    times = [50, 30, 30, 90, 10, 30, 70, 80, 20, 60]
    users = [1, 1, 1, 1, 2, 2, 2, 1, 2, 2]
    _ratings(folder, [(u, 1, 3, t) for u, t in zip(users, times, strict=True)])
    frame = read(folder)
    assert frame.columns == COLUMNS
    assert frame.get_column("timestamp").to_list() == times
    # User 1 in time: rows 1, 2 (a tie, in the file's order), 0, 7, 3; user 2: rows 4, 8, 5, 9, 6.
    assert frame.get_column("user_order").to_list() == [2, 0, 1, 4, 0, 2, 4, 3, 1, 3]
    # Of 10 rows the 8 earliest train, the ninth (time 80) validates, the last (time 90) tests.
    expected = ["train"] * 10
    expected[7], expected[3] = "val", "test"
    assert frame.get_column("split").to_list() == expected
    assert frame.row(0, named=True) | {"rating": 3} == dict(
        zip(
            COLUMNS,
            [
                1,
                1,
                3,
                50,
                2,
                "train",
                "F",
                1,
                10,
                "01234",
                "Les Misérables (1995)",
                "Drama|Musical",
                1995,
            ],
            strict=True,
        )
    )


def test_a_tie_at_the_cut_keeps_the_files_order(folder: Path) -> None:
    _ratings(folder, [(1, 7, 3, 5)] * 10)
    frame = read(folder)
    assert frame.get_column("split").to_list() == ["train"] * 8 + ["val", "test"]
    assert frame.get_column("release_year").to_list() == [1968] * 10


HEADER = "user_id,movie_id,rating,timestamp,ts_lo,ts_hi,ts_source,user_order,split\n"


def test_rebuilt_ratings_by_hand(folder: Path) -> None:
    rows = [
        "1,1,5,100,100,100,S,1,train",  # known
        "1,7,3,,90,95,,0,train",  # midpoint 92.5, cut to 92
        "2,9,1,,,40,,0,val",  # no lower bound: the upper one
        "2,7,4,44,44,44,B,1,test",
    ]
    (folder / "ratings.csv").write_text(HEADER + "\n".join(rows) + "\n")
    frame = read(folder)
    assert frame.columns == COLUMNS
    assert frame.get_column("timestamp").to_list() == [100, 92, 40, 44]
    assert frame.get_column("user_order").to_list() == [1, 0, 0, 1]
    assert frame.get_column("split").to_list() == ["train", "train", "val", "test"]
    assert frame.null_count().sum_horizontal().item() == 0
    with pytest.raises(DataError, match=r"ratings\.csv is not the official file: its sha256 is"):
        read(folder, verify=True)


def test_faults_of_ratings(subtests, folder):
    for name, content, message in [
        (
            "ratings.dat",
            "1::1::3\n",
            "every line has 4 fields, user_id::movie_id::rating::timestamp: .*line 1 holds '1::1::3'",
        ),
        ("ratings.dat", "1::1::3::5\n1::1::3::5::6\n", "line 2 holds '1::1::3::5::6'"),
        ("ratings.dat", "", "it is empty"),
        (
            "ratings.dat",
            "1::1::3::5\n1::1::x::5\n",
            "rating is a whole number: .*ratings.dat line 2 holds 'x'",
        ),
        ("ratings.dat", "1::8::3::5\n", "does not describe movie_id 8"),
        ("ratings.dat", "3::1::3::5\n", "does not describe user_id 3"),
        (
            "ratings.csv",
            "user_id,movie_id,rating\n1,1,1\n",
            "must have the columns user_id, .*, ts_source, user_order, split, found user_id, movie_id, rating",
        ),
        ("ratings.csv", HEADER + "1,1,5,,90,,S,1,train\n", "needs the upper bound ts_hi"),
        (
            "ratings.csv",
            HEADER + "1,1,5,5,5,5,S,1,train\n1,1,5,x,5,5,S,1,train\n",
            "line 3 holds 'x'",
        ),
    ]:
        with subtests.test(name=name, content=content, message=message):
            (folder / name).write_text(content)
            with pytest.raises(DataError, match=message):
                read(folder)
            (folder / name).unlink()


def test_only_the_official_files_are_taken(folder: Path) -> None:
    _ratings(folder, [(1, 7, 3, 5)])
    with pytest.raises(DataError, match=r"ratings\.dat is not the official file: its git-sha1 is"):
        read(folder, verify=True)


def test_the_published_counts(real_data: Path) -> None:
    frame = PUBLIC_SETS["movielens-1m"].read(real_data)
    assert frame.columns == COLUMNS
    assert frame.height == PUBLIC_SETS["movielens-1m"].rows == 1_000_209
    assert frame.select(pl.col("user_id", "movie_id").n_unique()).row(0) == (6_040, 3_706)
    histogram = (
        frame.get_column("rating").value_counts().sort("rating").get_column("count").to_list()
    )
    assert histogram == [56_174, 107_557, 261_197, 348_971, 226_310]
    assert dict(frame.get_column("split").value_counts().iter_rows()) == {
        "train": 800_167,
        "val": 100_021,
        "test": 100_021,
    }
    assert frame.unique("user_id").get_column("gender").value_counts().sort("gender").rows() == [
        ("F", 1709),
        ("M", 4331),
    ]
    assert (frame.get_column("timestamp").min(), frame.get_column("timestamp").max()) == (
        956_703_932,
        1_046_454_590,
    )
    assert (frame.get_column("release_year").min(), frame.get_column("release_year").max()) == (
        1919,
        2000,
    )
    # A null, an unset type or a bound would separate rows with rating 1 to 3 of unknown times:
    # there must be none.
    assert frame.null_count().sum_horizontal().item() == 0
    assert frame.get_column("timestamp").dtype == pl.Int64
    ordered = frame.sort("user_id", "user_order")  # the midpoints keep each user's own order
    assert ordered.select(pl.col("timestamp").diff().over("user_id").min()).item() >= 0
    # user_order counts each user's rows without a gap.
    order = frame.group_by("user_id").agg(
        n=pl.len(), top=pl.col("user_order").max(), u=pl.col("user_order").n_unique()
    )
    assert order.select(
        (pl.col("n") == pl.col("u")).all() & (pl.col("n") == pl.col("top") + 1).all()
    ).item()

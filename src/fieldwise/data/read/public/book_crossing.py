"""Book-Crossing's explicit ratings, in the reduced form of the Case Recommender project.

C.-N. Ziegler, S. McNee, J. Konstan, G. Lausen: Improving Recommendation Lists Through Topic Diversification. WWW 2005.
"""

from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import ByteSource, read_lines
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.public.sets import PublicSet, check_described, need, read_checked
from fieldwise.errors import DataError
from fieldwise.storage.checksums import Checksum

__all__ = ["BOOK_CROSSING", "load_book_crossing"]

_RATINGS = Checksum(kind="sha256", value="703c6efadfee9bd790354b230fe948c61f246ba5e3642c67ace96501de6667b3")
_BOOKS = Checksum(kind="sha256", value="e8785b6744d6758b41ed497a5849a66ab2e17279b71e67d0a43b1e0687a39df1")
_USERS = Checksum(kind="sha256", value="95f6ba8786e13c99bf879ffbdebe6615016931f1ccba1a2ff9b7555dcd0492d3")
_BOOK_COLUMNS = ("Book_ID", "ISBN", "Book-Title", "Book-Author", "Year-Of-Publication", "Publisher")
_IMAGES = 3  # columns of URLs at the end, not kept
_HOME = "https://github.com/caserec/Datasets-for-Recommender-Systems"


def load_book_crossing(folder: Path, *, verify: bool = True) -> pl.DataFrame:
    """Read Book-Crossing, one row per explicit rating, in the file's order.

    The file of books lost its quoting before publication: each `;` became a tab. If one ended an `&amp;`, the only HTML
    entity in the file, it is restored; remaining tabs belong to the title.

    Args:
        folder: with `book_ratings.dat`, `items_info.dat` and `users_info.dat`, each plain or `.gz`.
        verify: whether their checksums must hold.

    Returns:
        user_id, book_id, rating (1 to 10), age (Int64; the source filled unknown ones), city, region, country (text,
        null if the user's location does not have it or is n/a), isbn, title, author, publisher (text) and year (Int64,
        null if it is 0).

    Errors:
        DataError: a file is absent, malformed or not the published one.
    """
    paths = [need(folder, name) for name in ("book_ratings.dat", "items_info.dat", "users_info.dat")]
    ratings, books, users = (
        reader(path, read_checked(path, checksum if verify else None))
        for path, reader, checksum in zip(
            paths, (_read_ratings, _read_books, _read_users), (_RATINGS, _BOOKS, _USERS), strict=True
        )
    )
    for name, table, key in (("users_info.dat", users, "user_id"), ("items_info.dat", books, "book_id")):
        twice = table.get_column(key).is_duplicated()
        if twice.any():
            found = table.get_column(key)[int(twice.arg_max() or 0)]
            raise DataError(f"{name} must describe each {key} once, but in {folder} it has {key} {found} twice")
    joined = ratings.join(users, on="user_id", how="left", maintain_order="left").join(
        books, on="book_id", how="left", maintain_order="left"
    )
    check_described(joined, folder, user_id="known_user", book_id="title")
    return joined.drop("known_user")


def _read_ratings(path: Path, content: bytes) -> pl.DataFrame:
    frame = read_delimited(ByteSource(path=path, content=content), separator="\t", quoting=False, infer=False)
    if frame.columns != ["user", "item", "rating"]:
        raise DataError(f"{path} must have the columns user, item and rating, found {', '.join(frame.columns)}")
    numbers = frame.with_columns(pl.all().cast(pl.Float64, strict=False))
    wrong = numbers.select(pl.any_horizontal(pl.all().is_null() | (pl.all() % 1 != 0))).to_series()
    outside = wrong | ~numbers.get_column("rating").is_between(1, 10).fill_null(False)
    if outside.any():
        row = int(outside.arg_max() or 0)
        raise DataError(
            f"user, item and rating are whole numbers, the rating from 1 to 10: {path} line {row + 2} holds "
            f"{', '.join(map(repr, frame.row(row)))}"
        )
    return numbers.select(pl.all().cast(pl.Int64)).rename({"user": "user_id", "item": "book_id"})


def _read_books(path: Path, content: bytes) -> pl.DataFrame:
    header, *lines = read_lines(path, content=content).to_list() or [""]
    if tuple(header.split("\t")[: len(_BOOK_COLUMNS)]) != _BOOK_COLUMNS:
        raise DataError(f"{path} must begin with the columns {', '.join(_BOOK_COLUMNS)}, found {header!r}")
    rows = [_book(path, number, line) for number, line in enumerate(lines, 2)]
    columns = {"book_id": pl.Int64, "year": pl.Int64}
    names = ("book_id", "isbn", "title", "author", "year", "publisher")
    return pl.DataFrame(rows, schema={name: columns.get(name, pl.String) for name in names}, orient="row")


def _book(path: Path, number: int, line: str) -> tuple[int, str, str, str, int | None, str]:
    # Every line but the header ends in a tab: the last value is empty.
    values = line.replace("&amp\t", "&").split("\t")
    if len(values) < len(_BOOK_COLUMNS) + _IMAGES + 1:
        found = f"it has {len(values)}"
    elif not (values[0].isdecimal() and values[-6].isdecimal()):
        found = f"they are {values[0]!r} and {values[-6]!r}"
    else:
        title = ";".join(values[2:-7])
        return int(values[0]), values[1], title, values[-7], int(values[-6]) or None, values[-5]
    raise DataError(
        "a book has 9 values and an empty last one, its id and year whole numbers: "
        f"{path} line {number}: {found}; use the published file"
    )


def _read_users(path: Path, content: bytes) -> pl.DataFrame:
    header, *lines = read_lines(path, content=content).to_list() or [""]
    if header != "User-ID\tLocation\tAge":
        raise DataError(f"{path} must have the columns User-ID, Location and Age, found {header!r}")
    rows = []
    for number, line in enumerate(lines, 2):
        values = line.split("\t")
        if len(values) != 4 or not (values[0].isdecimal() and values[2].isdecimal()):
            raise DataError(f"a user has an id, a location and an age: {path} line {number} holds {line!r}")
        # City, region, country: some cities have commas of their own.
        parts = [part.strip() for part in f", , {values[1]}".split(",")]
        *city, region, country = [None if part in ("", "n/a") else part for part in parts]
        rows.append((int(values[0]), ", ".join(filter(None, city)) or None, region, country, int(values[2]), True))
    names = {"user_id": pl.Int64, "city": pl.String, "region": pl.String, "country": pl.String, "age": pl.Int64}
    return pl.DataFrame(rows, schema={**names, "known_user": pl.Boolean}, orient="row")


BOOK_CROSSING = PublicSet(
    name="book-crossing",
    folder="book-crossing",
    title="Book-Crossing, reduced: explicit ratings of books",
    rows=62_656,
    licence="free for research when acknowledged (Ziegler et al., WWW 2005)",
    homepage=_HOME,
    load=load_book_crossing,
    needs=(("book_ratings.dat",), ("items_info.dat",), ("users_info.dat",)),
    by_hand=(
        f"download Processed Datasets/BookCrossing/book_crossing.zip from {_HOME} and unpack its files into the folder "
        "book-crossing"
    ),
)

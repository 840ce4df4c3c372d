"""Book-Crossing: books whose semicolons became tabs, locations as readers wrote them; the published counts."""

import re
from pathlib import Path

import polars as pl
import pytest

from fieldwise import DataError
from fieldwise.data.read.public_sets import PUBLIC_SETS, load_book_crossing
from fieldwise.data.read.text_stream import ByteSource

RATINGS = "user\titem\trating\n"
BOOKS = (
    "Book_ID\tISBN\tBook-Title\tBook-Author\tYear-Of-Publication\tPublisher\t"
    "Image-URL-S\tImage-URL-M\tImage-URL-L\n"
)
USERS = "User-ID\tLocation\tAge\n"
URLS = "\thttp://s\thttp://m\thttp://l\t\n"
BOOK = "7\t0393045218\tA title\tAn author\t1999\tA publisher" + URLS
USER = "5\tminneapolis, minnesota, usa\t24\t\n"


def files(
    folder: Path, ratings: str = "5\t7\t8.000000\n", books: str = BOOK, users: str = USER
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "book_ratings.dat").write_text(RATINGS + ratings)
    (folder / "items_info.dat").write_text(BOOKS + books)
    (folder / "users_info.dat").write_text(USERS + users)
    return folder


def read(folder: Path) -> pl.DataFrame:
    return load_book_crossing(
        *(folder / name for name in ("book_ratings.dat", "items_info.dat", "users_info.dat"))
    )


def test_a_row_by_hand(tmp_path: Path) -> None:
    frame = read(files(tmp_path))
    assert frame.columns == [
        *("user_id", "book_id", "rating", "city", "region", "country", "age"),
        *("isbn", "title", "author", "year", "publisher"),
    ]
    book = ("0393045218", "A title", "An author", 1999, "A publisher")
    assert frame.rows() == [(5, 7, 8, "minneapolis", "minnesota", "usa", 24, *book)]


def test_lost_semicolons_are_put_back(subtests, tmp_path):
    for line, title, author, publisher in [
        (
            "7\tI\tMummies\tBarber\t1999\tW. W. Norton &amp\t Company",
            "Mummies",
            "Barber",
            "W. W. Norton & Company",
        ),
        ("7\tI\tAngels &amp\t Demons\tDan Brown\t1999\tP", "Angels & Demons", "Dan Brown", "P"),
        # an entity at the end
        ("7\tI\tT\tA &amp\t B\t1999\tX &amp\t Y &amp\t", "T", "A & B", "X & Y &"),
        (
            "7\tI\tOut of Africa \t and Shadows\tDinesen\t1999\tP",
            "Out of Africa ; and Shadows",
            "Dinesen",
            "P",
        ),
        ("7\tI\tA\tB &amp\t C\tD\tAuthor\t1999\tP", "A;B & C;D", "Author", "P"),
        ("7\tI\tA \t B: Inside R&D\tAn author\t1999\tP", "A ; B: Inside R&D", "An author", "P"),
    ]:
        with subtests.test(line=line, title=title, author=author, publisher=publisher):
            row = read(files(tmp_path, books=line + URLS)).row(0, named=True)
            assert (row["title"], row["author"], row["publisher"], row["year"]) == (
                title,
                author,
                publisher,
                1999,
            )


def test_a_location_is_city_region_and_country(subtests, tmp_path):
    for location, expected in [
        ("berkeley, ,", ("berkeley", None, None)),
        ("lakeland, tennessee,", ("lakeland", "tennessee", None)),
        (
            "coalville, leicestershire, england, united kingdom",
            ("coalville, leicestershire", "england", "united kingdom"),
        ),
        ("bern, switzerland", (None, "bern", "switzerland")),
        ("usa", (None, None, "usa")),
        ("n/a, n/a, spain", (None, None, "spain")),
        ("", (None, None, None)),
    ]:
        with subtests.test(location=location, expected=expected):
            row = read(files(tmp_path, users=f"5\t{location}\t24\t\n")).row(0, named=True)
            assert (row["city"], row["region"], row["country"]) == expected


def test_a_year_of_zero_is_unknown(tmp_path: Path) -> None:
    assert read(files(tmp_path, books=BOOK.replace("1999", "0")))["year"].to_list() == [None]


def test_a_bad_line_is_named(subtests, tmp_path):
    for change, message in [
        (
            {"ratings": "5\t7\t8\n5\t7\t11\n"},
            r"from 1 to 10: .*book_ratings.dat line 3 holds '5, 7, 11'",
        ),
        ({"ratings": "5\t7\tgood\n"}, r"line 2 holds '5, 7, good'"),
        ({"ratings": "5\t7\t7.5\n"}, r"line 2 holds '5, 7, 7.5'"),
        ({"ratings": "5\t8\t9\n"}, "book_id must be listed: .* does not describe book_id 8"),
        ({"ratings": "6\t7\t9\n"}, "user_id must be listed: .* does not describe user_id 6"),
        (
            {"books": BOOK.replace("1999", "MCMXCIX")},
            r"its id and year whole numbers: .*items_info.dat line 2 holds '7\\t0393045218",
        ),
        ({"books": "7\tI\tT\n"}, r"a book has 9 values .*items_info.dat line 2 holds"),
        (
            {"users": USER + USER},
            "each user_id must be described once, but in .* user_id 5 is there twice",
        ),
        (
            {"books": BOOK + BOOK},
            "each book_id must be described once, but in .* book_id 7 is there twice",
        ),
        ({"users": "5\tusa\n"}, r"an id, a location and an age: .*users_info.dat line 2"),
        ({"users": "5\tusa\told\t\n"}, r"users_info.dat line 2 holds '5\\tusa\\told\\t'"),
    ]:
        with subtests.test(change=change, message=message), pytest.raises(DataError, match=message):
            read(files(tmp_path, **change))


def test_other_columns_and_foreign_files(tmp_path: Path) -> None:
    folder = files(tmp_path / "book-crossing")
    (folder / "book_ratings.dat").write_text("u\ti\tr\n5\t7\t8\n")
    with pytest.raises(DataError, match="must have the columns user, item, rating, found u, i, r"):
        read(folder)
    (folder / "users_info.dat").write_text("id\tplace\tage\n" + USER)
    (folder / "book_ratings.dat").write_text(RATINGS + "5\t7\t8\n")
    with pytest.raises(
        DataError,
        match=r"must begin with the columns User-ID, Location, Age, found 'id\\tplace\\tage'",
    ):
        read(folder)
    with pytest.raises(
        DataError, match=r"book_ratings\.dat is not the official file: its sha256 is"
    ):
        PUBLIC_SETS["book-crossing"].read(tmp_path)
    (folder / "book_ratings.dat").unlink()
    with pytest.raises(
        DataError, match=r"book-crossing is not complete: .*download .*book_crossing\.zip"
    ):
        PUBLIC_SETS["book-crossing"].read(tmp_path)


def test_the_published_counts(real_data: Path) -> None:
    frame = PUBLIC_SETS["book-crossing"].read(real_data)
    assert (frame.height, frame["user_id"].n_unique(), frame["book_id"].n_unique()) == (
        62_656,
        1_295,
        14_684,
    )
    assert frame["rating"].min() == 1
    assert frame["rating"].max() == 10


def test_every_book_keeps_its_values(real_data: Path) -> None:
    """Told apart in another way than the reader's: around the year, where only one value can be one."""
    path = real_data / "book-crossing" / "items_info.dat.gz"
    frame = PUBLIC_SETS["book-crossing"].read(real_data).unique("book_id")
    results = {row["book_id"]: row for row in frame.iter_rows(named=True)}
    told = 0
    for line in b"".join(ByteSource(path=path).chunks()).decode().splitlines()[1:]:
        number, isbn, rest = line.replace("&amp\t", "&").split("\t", 2)
        before, _, _ = rest.partition("\thttp://images.amazon.com")
        years = re.findall(r"(?<=\t)\d{1,4}(?=\t)", before)
        if int(number) in results and len(years) == 1:
            row, told = results[int(number)], told + 1
            words, _, publisher = before.partition(f"\t{years[0]}\t")
            title, _, author = words.rpartition("\t")
            expected = (isbn, title.replace("\t", ";"), author, int(years[0]) or None, publisher)
            assert (
                row["isbn"],
                row["title"],
                row["author"],
                row["year"],
                row["publisher"],
            ) == expected
    assert told > 0.99 * len(results)

"""Public data sets: sources, licence terms, downloads, and readers of their official formats.

A reader makes one table of the paths of a set's files, each plain or `.gz`. A line that breaks the
format is named.
"""

import gzip
import hashlib
import http.client
import io
import tomllib
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from fieldwise.data.read.delimited_text import read_delimited
from fieldwise.data.read.formats.libfm import read_libfm
from fieldwise.data.read.text_stream import ByteSource, read_lines
from fieldwise.errors import DataError
from fieldwise.storage.files import write_atomically

_GIT_DIGITS = 40
"""Of git's id of a file, a SHA-1; other checksums are SHA-256."""


def find(folder: Path, *names: str) -> Path | None:
    """The first of `names` that is in `folder`, plain or with `.gz`."""
    for name in names:
        for suffix in ("", ".gz"):
            path = folder / (name + suffix)
            if path.is_file():
                return path
    return None


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A public data set.

    Args:
        name: its name in commands and recipes.
        folder: its folder below the data folder.
        title: its full name.
        rows: number of rows in its official files.
        licence: the licence terms, in a sentence.
        load: makes one table of the files that it needs.
        needs: for each such file its possible names below the set's folder, plain or `.gz`; the
            first is the official one.
        checksums: of its files by name, as far as they are known: SHA-256, or git's id (SHA-1) of
            40 digits.
        origin: address of the folder of its official files, or of a zip archive with them; empty if
            a person must accept terms.
        by_hand: without an origin, a sentence that says where to get the set and where to put it.
    """

    name: str
    folder: str
    title: str
    rows: int
    licence: str
    load: Callable[..., pl.DataFrame]
    needs: Sequence[Sequence[str]]
    checksums: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    by_hand: str = ""

    def present(self, data_dir: str | Path) -> bool:
        """Whether every file that the set needs is in its folder below `data_dir`; their contents are not checked."""
        return None not in self._paths(data_dir)

    def read(self, data_dir: str | Path) -> pl.DataFrame:
        """Read the set from its folder below `data_dir`; of files with checksums only the official ones are taken."""
        paths: list[Path] = []
        for names, path in zip(self.needs, self._paths(data_dir), strict=True):
            if path is None:
                remedy = self.by_hand or f"run `fieldwise fetch {self.name}`"
                raise DataError(
                    f"{self.name} is not complete: {' or '.join(names)} (plain or .gz) is not in "
                    f"the folder {Path(data_dir) / self.folder}; {remedy}, or give the folder above {self.folder!r} as "
                    "the data folder (FIELDWISE_DATA)"
                )
            paths.append(path)
        for path in paths:
            self.verify(path)
        return self.load(*paths)

    def verify(self, path: Path) -> None:
        """Raise a DataError if a file, or what its `.gz` holds, has another checksum than the official one."""
        checksum = self.checksums.get(path.name.removesuffix(".gz"))
        if checksum is None:
            return
        try:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                difference = _checksum_difference(file.read(), checksum)
        except (OSError, EOFError) as e:
            raise DataError(f"{path} cannot be read ({e}); remove it and fetch it again") from e
        if difference:
            raise DataError(
                f"{path} is not the official file: {difference}; remove it and fetch it again"
            )

    def _paths(self, data_dir: str | Path) -> list[Path | None]:
        """The files that the set needs, in order; None for one that is not there."""
        return [find(Path(data_dir) / self.folder, *names) for names in self.needs]


def _checksum_difference(content: bytes, expected: str) -> str:
    """What the checksum of some content is instead of the expected one; empty if it is right."""
    if len(expected) == _GIT_DIGITS:
        name = "git-sha1"
        hasher = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    else:
        name = "sha256"
        hasher = hashlib.sha256(usedforsecurity=False)
    hasher.update(content)
    checksum = hasher.hexdigest()
    if checksum == expected:
        return ""
    return f"its {name} is {checksum}, expected {expected}"


def _check(wrong: pl.Series, cells: pl.Series, rule: str, path: Path, first_line: int = 1) -> None:
    """Raise a DataError for the first of the wrong rows; the first row stands on the line `first_line`."""
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise DataError(
            f"{rule}: {path} line {row + first_line} holds {cells[row]!r}; use the official file"
        )


def _integers(
    frame: pl.DataFrame, names: Sequence[str], path: Path, first_line: int = 1
) -> pl.DataFrame:
    """The table with columns of whole numbers as Int64; an empty cell is null."""
    for name in names:
        text = frame.get_column(name)
        whole = text.cast(pl.Int64, strict=False)
        _check(
            whole.is_null() & text.is_not_null(),
            text,
            f"{name} is a whole number",
            path,
            first_line,
        )
        frame = frame.with_columns(whole)
    return frame


def _binary(frame: pl.DataFrame, name: str, path: Path, first_line: int = 1) -> pl.DataFrame:
    """The table with a column of 0 and 1 as Int64."""
    text = frame.get_column(name)
    _check(~text.is_in(["0", "1"]).fill_null(False), text, f"{name} is 0 or 1", path, first_line)
    return frame.with_columns(text.cast(pl.Int64))


def _delimited(path: Path, separator: str, columns: Sequence[str], *, header: bool) -> pl.DataFrame:
    """A text file of these columns, all as text; with `header` its first line must name them."""
    frame = read_delimited(
        ByteSource(path=path), separator=separator, names=None if header else columns
    )
    if tuple(frame.columns) != tuple(columns):
        raise DataError(
            f"{path} must have the columns {', '.join(columns)}, found {', '.join(frame.columns)}"
        )
    return frame


def _joined(
    ratings: pl.DataFrame, users: pl.DataFrame, items: pl.DataFrame, item_id: str, folder: Path
) -> pl.DataFrame:
    """Ratings with the columns of their users and items, each of which must be described once."""
    for table, key in ((users, "user_id"), (items, item_id)):
        described = table.get_column(key)
        repeated = described.filter(described.is_duplicated())
        if len(repeated):
            raise DataError(
                f"each {key} must be described once, but in {folder} {key} {repeated[0]} is there twice"
            )
        rated = ratings.get_column(key)
        unknown = rated.filter(~rated.is_in(described.implode()))
        if len(unknown):
            raise DataError(
                f"every rating's {key} must be listed: {folder} does not describe {key} {unknown[0]}"
            )
        ratings = ratings.join(table, on=key, how="left", maintain_order="left")
    return ratings


_INTEGERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
_ADULT = (
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


def load_adult(train: Path, test: Path | None = None) -> pl.DataFrame:
    """UCI Adult (Census Income): B. Becker, R. Kohavi, 1996, doi:10.24432/C5XW20; `adult.data`, then `adult.test`.

    Without `test` it is `adult.data` alone.

    Returns:
        The 14 attributes under UCI's names with underscores (age, fnlwgt, education_num,
        capital_gain, capital_loss and hours_per_week Int64, the others text, `?` as null), income
        (`<=50K` or `>50K`) and split (`train`, `test`).
    """
    parts = []
    files = {"train": train} if test is None else {"train": train, "test": test}
    for split, path in files.items():
        content = b"".join(ByteSource(path=path).chunks())
        # adult.test begins with a remark, and both files end in a blank line.
        line = 1
        rows = content
        if content.startswith(b"|"):
            line = 2
            rows = content[content.find(b"\n") + 1 :]
        source = ByteSource(path=path, content=rows.rstrip(b"\r\n") + b"\n", first_line=line)
        frame = read_delimited(source, separator=",", names=_ADULT)
        frame = frame.with_columns(pl.col("income").str.strip_suffix("."))
        frame = _integers(frame, _INTEGERS, path, line)
        income = frame.get_column("income")
        _check(
            ~income.is_in(["<=50K", ">50K"]).fill_null(False),
            income,
            "income is <=50K or >50K",
            path,
            line,
        )
        parts.append(frame.with_columns(pl.col(pl.String).replace("?", None), split=pl.lit(split)))
    return pl.concat(parts)


_CRITEO_NUMBERS = tuple(f"I{k}" for k in range(1, 14))
_CRITEO = ("label", *_CRITEO_NUMBERS, *(f"C{k}" for k in range(1, 27)))


def load_criteo(path: Path) -> pl.DataFrame:
    """Criteo Display Advertising Challenge (Criteo Labs, Kaggle, 2014), in the file's order, which is chronological.

    Returns:
        label (0 or 1), I1 to I13 (Int64), C1 to C26 (text); an empty field is null.
    """
    frame = _delimited(path, "\t", _CRITEO, header=False)
    return _integers(_binary(frame, "label", path), _CRITEO_NUMBERS, path)


_SITE = ("site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category")
_AVAZU = (
    *("id", "click", "hour", "C1", "banner_pos", *_SITE),
    *("device_id", "device_ip", "device_model", "device_type", "device_conn_type"),
    *(f"C{k}" for k in range(14, 22)),
)
_AVAZU_SAMPLE = tuple(name for name in _AVAZU if name not in ("id", "click", "device_ip"))


def load_avazu(path: Path) -> pl.DataFrame:
    """Avazu Click-Through Rate Prediction (Kaggle, 2014), in the file's order, which is chronological.

    Returns:
        click (Int64, 0 or 1), every other column as text (`hour` as YYMMDDHH), and hour_of_day
        (`00` to `23`) and weekday (`1` Monday to `7` Sunday), derived from `hour`, as text.
    """
    frame = _binary(_delimited(path, ",", _AVAZU, header=True), "click", path, 2)
    hour = frame.get_column("hour")
    day = ("20" + hour.str.head(6)).str.to_date("%Y%m%d", strict=False)
    _check(
        ~hour.str.contains(r"^\d{8}$").fill_null(False) | day.is_null(),
        hour,
        "hour is YYMMDDHH",
        path,
        2,
    )
    times = {"hour_of_day": hour.str.tail(2), "weekday": day.dt.weekday().cast(pl.String)}
    return frame.select("click", pl.exclude("click")).with_columns(**times)


def load_avazu_sample(features: Path, clicks: Path) -> pl.DataFrame:
    """A random sample of Avazu: as `load_avazu`, without id, device_ip, hour and weekday."""
    x = _delimited(features, ",", _AVAZU_SAMPLE, header=True)
    y = _delimited(clicks, ",", ("click",), header=True)
    if x.height != y.height:
        raise DataError(
            f"{features} and {clicks} must have equally many rows, found {x.height} and {y.height} rows"
        )
    return pl.concat(
        [_binary(y, "click", clicks, 2), x.rename({"hour": "hour_of_day"})], how="horizontal"
    )


_FRAPPE_OFFSETS = {
    "user": 0,
    "item": 957,
    "daytime": 5039,
    "weekday": 5046,
    "isweekend": 5053,
    "homework": 5055,
    "cost": 5058,
    "weather": 5060,
    "country": 5069,
    "city": 5149,
}
"""Where each field's ids begin among the features."""
_FRAPPE_FEATURES = 5382


def load_frappe(train: Path, valid: Path, test: Path) -> pl.DataFrame:
    """Frappe: context-aware app usage, in the libFM form of He and Chua (Neural Factorization Machines, SIGIR 2017).

    L. Baltrunas, K. Church, A. Karatzoglou, N. Oliver: Frappe. arXiv:1505.03014, 2015.
    `train` may hold the positives alone, whose negatives are to be sampled. `feature_map.csv`
    (feature_id, field, raw_value) beside the files, or in the folder above `libfm/`, gives raw
    values.

    Returns:
        label (1 or -1), user, item, daytime, weekday, isweekend, homework, cost, weather, country,
        city (all text: raw values if there is a feature map, else the ids within the field), split
        (`train`, `valid`, `test`).
    """
    parts = []
    for split, path in (("train", train), ("valid", valid), ("test", test)):
        parts.append(_frappe_rows(path).with_columns(split=pl.lit(split)))
    frame = pl.concat(parts)
    map_path = find(valid.parent, "feature_map.csv")
    if map_path is None and valid.parent.name == "libfm":
        map_path = find(valid.parent.parent, "feature_map.csv")
    if map_path is None:
        return frame.with_columns(
            (pl.col(name) - offset).cast(pl.String) for name, offset in _FRAPPE_OFFSETS.items()
        )
    values = _delimited(map_path, ",", ("feature_id", "field", "raw_value"), header=True)
    ids = values.get_column("feature_id").cast(pl.Int64, strict=False)
    if ids.has_nulls() or sorted(ids) != list(range(_FRAPPE_FEATURES)):
        raise DataError(
            f"{map_path} must give each feature id from 0 to {_FRAPPE_FEATURES - 1} once; remove it to use plain ids"
        )
    fields = pl.col(list(_FRAPPE_OFFSETS))
    return frame.with_columns(fields.replace_strict(ids, values.get_column("raw_value")))


def _frappe_rows(path: Path) -> pl.DataFrame:
    """The rows of a libFM file of Frappe: label and, for each field, the id among all features."""
    rows = read_libfm(ByteSource(path=path))
    count = rows.get_column("ids").list.len()
    n_fields = len(_FRAPPE_OFFSETS)
    _check(count != n_fields, count, f"every row has {n_fields} features, one per field", path)
    fields = [pl.col("ids").list.get(k).alias(name) for k, name in enumerate(_FRAPPE_OFFSETS)]
    frame = rows.select(pl.col("label").cast(pl.Int64), *fields)
    starts = list(_FRAPPE_OFFSETS.values())
    ends = [*starts[1:], _FRAPPE_FEATURES]
    for name, start, end in zip(_FRAPPE_OFFSETS, starts, ends, strict=True):
        ids = frame.get_column(name)
        rule = f"field {name!r} has the ids from {start} to {end - 1}"
        _check(~ids.is_between(start, end - 1), ids, rule, path)
    return frame


_REBUILT = (
    "user_id",
    "movie_id",
    "rating",
    "timestamp",
    "ts_lo",
    "ts_hi",
    "ts_source",
    "user_order",
    "split",
)


def load_movielens(ratings: Path, users: Path, movies: Path) -> pl.DataFrame:
    """MovieLens-1M, one row per rating in the file's order.

    F. M. Harper, J. A. Konstan: The MovieLens Datasets: History and Context. ACM TiiS 5(4), 19,
    2015. The rebuilt `ratings.csv` has only bounds for some timestamps, and only for low ratings.
    So `timestamp` is the
    integer midpoint of the bounds for ALL of its rows (the upper bound if there is no lower one),
    and the bounds and their source are not returned: they would leak the label.

    Returns:
        user_id, movie_id, rating, timestamp (unix seconds), user_order (position in the user's own
        history, from 0), split (`train`, `val`, `test`: the earliest 80 %, next 10 %, last 10 % of
        all ratings), gender, age, occupation, zip (text), title, genres (text joined by `|`),
        release_year.
    """
    is_rebuilt = ratings.name.startswith("ratings.csv")
    rated = _rebuilt_ratings(ratings) if is_rebuilt else _official_ratings(ratings)
    described_movies = _dat(
        movies, ("movie_id", "title", "genres"), text=("title", "genres"), encoding="iso-8859-1"
    )
    year = pl.col("title").str.extract(r"\((\d{4})\)\s*$").cast(pl.Int64)
    described_users = _dat(
        users, ("user_id", "gender", "age", "occupation", "zip"), text=("gender", "zip")
    )
    return _joined(
        rated,
        described_users,
        described_movies.with_columns(release_year=year),
        "movie_id",
        users.parent,
    )


def _rebuilt_ratings(path: Path) -> pl.DataFrame:
    """The rebuilt `ratings.csv` of MovieLens-1M, with the middle of the bounds of each timestamp."""
    rated = _delimited(path, ",", _REBUILT, header=True)
    numbers = [name for name in _REBUILT if name not in ("ts_source", "split")]
    rated = _integers(rated, numbers, path, 2)
    low = pl.col("ts_lo")
    high = pl.col("ts_hi")
    # Exact in integers, and the known timestamp if both bounds are equal.
    middle = (low + (high - low) // 2).fill_null(high).alias("timestamp")
    rated = rated.select("user_id", "movie_id", "rating", middle, "user_order", "split")
    if rated.get_column("timestamp").has_nulls():
        rule = f"every row of {path} needs the upper bound ts_hi of its timestamp"
        raise DataError(f"{rule}; fetch the file again")
    return rated


def _official_ratings(path: Path) -> pl.DataFrame:
    """The official `ratings.dat` of MovieLens-1M, with the rebuilt file's order and split."""
    # An ordinal rank breaks ties by the rows' order, which is the file's.
    rank = pl.col("timestamp").rank("ordinal")
    n_earlier = rank - 1
    split = (
        pl.when(n_earlier < pl.len() * 8 // 10)
        .then(pl.lit("train"))
        .when(n_earlier < pl.len() * 9 // 10)
        .then(pl.lit("val"))
        .otherwise(pl.lit("test"))
    )
    return _dat(path, ("user_id", "movie_id", "rating", "timestamp")).with_columns(
        user_order=(rank.over("user_id") - 1).cast(pl.Int64), split=split
    )


def _dat(
    path: Path, names: tuple[str, ...], *, text: tuple[str, ...] = (), encoding: str = "utf-8"
) -> pl.DataFrame:
    """A `::`-separated file: columns `text` as String, the others as Int64."""
    lines = read_lines(ByteSource(path=path, encoding=encoding))
    if not len(lines):
        raise DataError(
            f"{path} must have {len(names)} fields per line, {'::'.join(names)}: it is empty"
        )
    wrong = lines.str.count_matches("::", literal=True) != len(names) - 1
    _check(wrong, lines, f"every line has {len(names)} fields, {'::'.join(names)}", path)
    frame = (
        lines.str.split_exact("::", len(names) - 1)
        .struct.rename_fields(list(names))
        .struct.unnest()
    )
    return _integers(frame, [name for name in names if name not in text], path)


_BOOK = ("Book_ID", "ISBN", "Book-Title", "Book-Author", "Year-Of-Publication", "Publisher")
_IMAGE_COLUMNS = 3
"""Columns of URLs at the end, which are left out."""


def load_book_crossing(ratings: Path, books: Path, users: Path) -> pl.DataFrame:
    """Book-Crossing's explicit ratings, in the reduced form of the Case Recommender project, in the file's order.

    C.-N. Ziegler, S. McNee, J. Konstan, G. Lausen: Improving Recommendation Lists Through Topic
    Diversification. WWW 2005.
    The file of books lost its quoting before publication: each `;` became a tab. If one ended an
    `&amp;`, the only HTML entity in the file, it is restored; remaining tabs belong to the title.

    Returns:
        user_id, book_id, rating (1 to 10), age (Int64; the source filled unknown ones), city,
        region, country (text, null if the user's location does not have it or is n/a), isbn, title,
        author, publisher (text) and year (Int64, null if it is 0).
    """
    frame = _delimited(ratings, "\t", ("user", "item", "rating"), header=True)
    numbers = frame.with_columns(pl.all().cast(pl.Float64, strict=False))
    is_whole = numbers.select(pl.all_horizontal((pl.all() % 1 == 0).fill_null(False))).to_series()
    is_valid = is_whole & numbers.get_column("rating").is_between(1, 10).fill_null(False)
    rule = "user, item and rating are whole numbers, the rating from 1 to 10"
    shown = frame.select(pl.concat_str(pl.all(), separator=", ", ignore_nulls=True)).to_series()
    _check(~is_valid, shown, rule, ratings, 2)
    rated = numbers.select(pl.all().cast(pl.Int64)).rename({"user": "user_id", "item": "book_id"})

    lines = _lines_below(books, _BOOK)
    # Every line but the header ends in a tab: the last value is empty.
    rows = lines.str.replace_all("&amp\t", "&", literal=True).str.split("\t").to_frame()
    cells = pl.first().list
    number = cells.get(0)
    year = cells.get(-6, null_on_oob=True)
    count = cells.len()
    has_numbers = number.str.contains(_DIGITS) & year.str.contains(_DIGITS)
    is_book = (count > len(_BOOK) + _IMAGE_COLUMNS) & has_numbers
    rule = "a book has 9 values and an empty last one, its id and year whole numbers"
    _check(~rows.select(is_book).to_series().fill_null(False), lines, rule, books, 2)
    described = rows.select(
        book_id=number.cast(pl.Int64),
        isbn=cells.get(1),
        title=cells.slice(2, count - len(_BOOK) - _IMAGE_COLUMNS).list.join(";"),
        author=cells.get(-7),
        year=year.cast(pl.Int64).replace(0, None),
        publisher=cells.get(-5),
    )
    return _joined(rated, _read_users(users), described, "book_id", ratings.parent)


def _read_users(path: Path) -> pl.DataFrame:
    """The users of Book-Crossing: id, city, region, country and age."""
    lines = _lines_below(path, ("User-ID", "Location", "Age"))
    rows = lines.str.split("\t").to_frame()
    cells = pl.first().list
    number = cells.get(0)
    age = cells.get(2, null_on_oob=True)
    has_numbers = number.str.contains(_DIGITS) & age.str.contains(_DIGITS)
    is_valid = rows.select((cells.len() == 4) & has_numbers).to_series().fill_null(False)
    _check(~is_valid, lines, "a user has an id, a location and an age", path, 2)
    # City, region, country: some cities have commas of their own.
    part = pl.element().str.strip_chars()
    parts = (
        (", , " + cells.get(1))
        .str.split(",")
        .list.eval(pl.when(~part.is_in(["", "n/a"])).then(part))
        .list
    )
    return rows.select(
        user_id=number.cast(pl.Int64),
        city=parts.head(parts.len() - 2).list.drop_nulls().list.join(", ").replace("", None),
        region=parts.get(-2),
        country=parts.get(-1),
        age=age.cast(pl.Int64),
    )


_DIGITS = r"^[0-9]+$"


def _lines_below(path: Path, columns: tuple[str, ...]) -> pl.Series:
    """The lines below a header that begins with these columns."""
    lines = read_lines(ByteSource(path=path))
    header = lines[0] if len(lines) else ""
    if not header.startswith("\t".join(columns)):
        raise DataError(
            f"{path} must begin with the columns {', '.join(columns)}, found {header!r}"
        )
    return lines.slice(1)


_LOADERS = (
    load_adult,
    load_avazu,
    load_avazu_sample,
    load_book_crossing,
    load_criteo,
    load_frappe,
    load_movielens,
)


def _described() -> dict[str, PublicSet]:
    """The sets by name, as `public_sets.toml` describes them, where `load` names one of the functions above."""
    loaders: dict[str, Callable[..., pl.DataFrame]] = {load.__name__: load for load in _LOADERS}
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    return {
        name: PublicSet(name=name, **{**table, "load": loaders[table["load"]]})
        for name, table in tables.items()
    }


PUBLIC_SETS = _described()

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes so far and, if known, the total."""

_DOWNLOAD_CHUNK_BYTES = 1 << 18
_TIMEOUT_S = 60.0


def fetch(
    public_set: PublicSet, data_dir: str | Path, *, progress: Progress = lambda *_: None
) -> list[Path]:
    """Download a public set's files into its folder below `data_dir`; correct existing files are kept.

    A file is stored when its checksum is right. Of a zip archive only the set's files are kept,
    under their own names: names inside the archive are never used as paths. `progress` is called
    during each download.

    Returns:
        The files, in the set's order; an already present `NAME.gz` stands for `NAME`.

    Errors:
        DataError: the set's terms must be accepted by a person, the source cannot be reached, a
            checksum is wrong, an existing file is not the official one, the disk is full.
    """
    if not public_set.origin:
        raise DataError(f"{public_set.name} cannot be fetched by a program: {public_set.by_hand}")
    folder = Path(data_dir) / public_set.folder
    origin = public_set.origin
    is_archive = origin.endswith(".zip")
    downloads: dict[str, bytes] = {}
    paths = []
    for name, *_ in public_set.needs:
        path = find(folder, name)
        if path is not None:
            public_set.verify(path)
            paths.append(path)
            continue
        url = origin if is_archive else f"{origin}/{name}"
        if not downloads.get(url):
            downloads[url] = _download(url, progress)
        content = downloads[url]
        if is_archive:
            content = _unzipped(content, f"{public_set.folder}/{name}", url)
        difference = _checksum_difference(content, public_set.checksums[name])
        if difference:
            raise DataError(
                f"{name} of {url} is not the official file: {difference}; nothing was stored, fetch again"
            )
        path = folder / name
        write_atomically(path, content)
        paths.append(path)
    return paths


def _unzipped(archive: bytes, member: str, url: str) -> bytes:
    """A file of a zip archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            return packed.read(member)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as e:
        raise DataError(f"{url} is not a zip archive with {member} ({e}); fetch again") from e


def _download(url: str, progress: Progress) -> bytes:
    """The bytes at an address."""
    request = urllib.request.Request(
        url, headers={"User-Agent": "fieldwise", "Accept-Encoding": "identity"}
    )
    content = bytearray()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            length = response.headers.get("Content-Length")
            total = None if length is None else int(length)
            progress(0, total)
            while chunk := response.read(_DOWNLOAD_CHUNK_BYTES):
                content += chunk
                progress(len(content), total)
    except urllib.error.HTTPError as e:
        raise DataError(
            f"{url} answered {e.code} {e.reason}; try later or download it manually"
        ) from e
    # URLError, timeouts and broken connections are OSErrors.
    except (OSError, http.client.HTTPException) as e:
        reason = getattr(e, "reason", None) or e or type(e).__name__
        raise DataError(
            f"cannot download {url} ({reason}); check the network and fetch again"
        ) from e
    if total is not None and len(content) < total:
        raise DataError(f"{url} broke off after {len(content)} of {total} bytes; fetch again")
    return bytes(content)

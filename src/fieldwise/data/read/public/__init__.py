"""Public data sets: sources, licence terms, and readers of their official formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from fieldwise.data.read.public import readers
from fieldwise.errors import DataError
from fieldwise.storage.checksums import Checksum

__all__ = ["PUBLIC_SETS", "PublicSet", "find"]


def find(folder: Path, *names: str) -> Path | None:
    """The first of `names` that is in `folder`, plain or with `.gz`."""
    options = (folder / (name + end) for name in names for end in ("", ".gz"))
    return next((path for path in options if path.is_file()), None)


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A public data set.

    Args:
        name: its name in commands and recipes.
        folder: its folder below the data folder.
        title: its full name.
        rows: number of rows in its official files.
        licence: the licence terms, in a sentence.
        homepage: address of its description.
        load: makes one table of the files that it needs.
        needs: for each such file its possible names below the set's folder, plain or `.gz`; the first is the official
            one.
        checksums: of its files by name, as far as they are known.
        origin: address of the folder of its official files, or of a zip archive with them; empty if a person must
            accept terms.
        by_hand: without an origin, a sentence that says where to get the set and where to put it.
    """

    name: str
    folder: str
    title: str
    rows: int
    licence: str
    homepage: str
    load: Callable[..., pl.DataFrame]
    needs: tuple[tuple[str, ...], ...]
    checksums: Mapping[str, Checksum] = field(default_factory=dict)
    origin: str = ""
    by_hand: str = ""

    def present(self, data_dir: str | Path) -> bool:
        """Whether every file that the set needs is in its folder below `data_dir`; their contents are not checked."""
        return None not in self._paths(data_dir)

    def read(self, data_dir: str | Path, *, verify: bool = True) -> pl.DataFrame:
        """Read the set from its folder below `data_dir`; with `verify`, only the official files are taken."""
        found = self._paths(data_dir)
        paths = [path for path in found if path is not None]
        if len(paths) < len(found):
            get = self.by_hand or f"run `fieldwise data fetch {self.name}`"
            raise DataError(
                f"{self.name} is not complete: {' or '.join(self.needs[found.index(None)])} (plain or .gz) is not in "
                f"the folder {Path(data_dir) / self.folder}; {get}, or give the folder above {self.folder!r} as the "
                "data folder (FIELDWISE_DATA)"
            )
        for path in paths if verify else ():
            self.verify(path)
        return self.load(*paths)

    def verify(self, path: Path) -> None:
        """Raise a DataError if a file, or what its `.gz` holds, has another checksum than the official one."""
        checksum = self.checksums.get(path.name.removesuffix(".gz"))
        try:
            found = None if checksum is None else checksum.of_file(path)
        except (OSError, EOFError) as e:
            raise DataError(f"{path} cannot be read ({e}); remove it and fetch it again") from e
        if checksum is not None and found != checksum.value:
            raise DataError(
                f"{path} is not the official file: its {checksum.kind} is {found}, expected {checksum.value}; "
                "remove it and fetch it again"
            )

    def _paths(self, data_dir: str | Path) -> list[Path | None]:
        return [find(Path(data_dir) / self.folder, *names) for names in self.needs]


def _sha256(value: str) -> Checksum:
    return Checksum(kind="sha256", value=value)


_CRITEO_TERMS = "Criteo's terms for the challenge's data: research, no commercial use"
_CRITEO = "https://ailab.criteo.com/ressources/"
_AVAZU_TERMS = "Kaggle's competition rules: competition and non-commercial research use, no redistribution"
_AVAZU = "https://www.kaggle.com/c/avazu-ctr-prediction"
_CASE_RECOMMENDER = "https://github.com/caserec/Datasets-for-Recommender-Systems"

_SETS = (
    PublicSet(
        name="movielens-1m",
        folder="ml-1m",
        title="MovieLens-1M ratings",
        rows=1_000_209,
        licence="research use; no redistribution and no commercial use without permission (GroupLens)",
        homepage="https://grouplens.org/datasets/movielens/1m/",
        load=readers.load_movielens,
        needs=(("ratings.dat", "ratings.csv"), ("users.dat",), ("movies.dat",)),
        checksums={
            "ratings.dat": Checksum(kind="git-sha1", value="77a7c4b150f588c23bb9e1f068aa996c0b413695"),
            "ratings.csv": _sha256("09e1094f5119a3e1a9786bd9f04c6b4920b60699ca47bcffd83f69ac51417579"),
            "users.dat": _sha256("1dc3a95300cb19f7c10e027daf29b8cdf1d908dab65b5edfb45950aa389a10a3"),
            "movies.dat": _sha256("0140fc2356357c1a851d0f52e893a1e4d3696df632c4141cea8d5bc3d621f0b9"),
        },
        origin="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
    ),
    PublicSet(
        name="frappe",
        folder="frappe",
        title="Frappe app usage with context, libFM form",
        rows=288_609,
        licence="research use; no redistribution without permission, no commercial use (L. Baltrunas)",
        homepage="https://github.com/hexiangnan/neural_factorization_machine",
        load=readers.load_frappe,
        needs=tuple(
            (*names, *(f"libfm/{name}" for name in names))
            for names in (
                ("frappe.train.libfm", "frappe.train_positives.libfm"),
                ("frappe.validation.libfm",),
                ("frappe.test.libfm",),
            )
        ),
        checksums={
            "frappe.train.libfm": Checksum(kind="git-sha1", value="176b2aaf1f63dd13d3e66a5c17c8ec8186e91893"),
            "frappe.validation.libfm": _sha256("fdf4be563a7dd9b15f7a6e8b32671e90e6e7a2a2bd3af4e10bf13c5ad7e76e9e"),
            "frappe.test.libfm": _sha256("a2ebaef3a9af8e55f8bb0d08bc4923965e42e43760ebd7635ac2f8c5db99e097"),
        },
        origin="https://raw.githubusercontent.com/hexiangnan/neural_factorization_machine/master/data/frappe",
    ),
    PublicSet(
        name="adult",
        folder="adult",
        title="UCI Adult (Census Income)",
        rows=48_842,
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        homepage="https://archive.ics.uci.edu/dataset/2/adult",
        load=readers.load_adult,
        needs=(("adult.data",), ("adult.test",)),
        checksums={
            "adult.data": _sha256("5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
            "adult.test": _sha256("a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
        },
        origin="https://archive.ics.uci.edu/ml/machine-learning-databases/adult",
    ),
    PublicSet(
        name="criteo",
        folder="criteo",
        title="Criteo Display Advertising Challenge",
        rows=45_840_617,
        licence=_CRITEO_TERMS,
        homepage=_CRITEO,
        load=readers.load_criteo,
        needs=(("train.txt",),),
        by_hand=f"accept Criteo's terms at {_CRITEO} and put train.txt (or train.txt.gz) into the folder criteo",
    ),
    PublicSet(
        name="criteo-sample",
        folder="criteo",
        title="Criteo Display Advertising Challenge, the first 10,000 rows",
        rows=10_000,
        licence=_CRITEO_TERMS,
        homepage=_CRITEO,
        load=readers.load_criteo,
        needs=(("train_examples.txt",),),
        by_hand=f"accept Criteo's terms at {_CRITEO} and put the first 10,000 lines of train.txt into the folder "
        "criteo as train_examples.txt",
    ),
    PublicSet(
        name="avazu",
        folder="avazu",
        title="Avazu Click-Through Rate Prediction",
        rows=40_428_967,
        licence=_AVAZU_TERMS,
        homepage=_AVAZU,
        load=readers.load_avazu,
        needs=(("train.csv", "train"),),
        by_hand=f"accept the competition's rules at {_AVAZU} and put train.gz (or train.csv) into the folder avazu",
    ),
    PublicSet(
        name="avazu-sample",
        folder="avazu",
        title="Avazu Click-Through Rate Prediction, 15,000 random rows",
        rows=15_000,
        licence=_AVAZU_TERMS,
        homepage=_AVAZU,
        load=readers.load_avazu_sample,
        needs=(
            ("random_15k/X_test_xsmall.csv", "first_hour/train.csv"),
            ("random_15k/y_test_xsmall.csv", "first_hour/test.csv"),
            ("random_15k/y_test_xsmall.csv", "first_hour/dev.csv"),
        ),
        by_hand=f"accept the competition's rules at {_AVAZU} and put X_test_xsmall.csv and y_test_xsmall.csv "
        "into the folder avazu/random_15k",
    ),
    PublicSet(
        name="book-crossing",
        folder="book-crossing",
        title="Book-Crossing, reduced: explicit ratings of books",
        rows=62_656,
        licence="free for research when acknowledged (Ziegler et al., WWW 2005)",
        homepage=_CASE_RECOMMENDER,
        load=readers.load_book_crossing,
        needs=(("book_ratings.dat",), ("items_info.dat",), ("users_info.dat",)),
        checksums={
            "book_ratings.dat": _sha256("703c6efadfee9bd790354b230fe948c61f246ba5e3642c67ace96501de6667b3"),
            "items_info.dat": _sha256("e8785b6744d6758b41ed497a5849a66ab2e17279b71e67d0a43b1e0687a39df1"),
            "users_info.dat": _sha256("95f6ba8786e13c99bf879ffbdebe6615016931f1ccba1a2ff9b7555dcd0492d3"),
        },
        by_hand=f"download Processed Datasets/BookCrossing/book_crossing.zip from {_CASE_RECOMMENDER} and unpack its "
        "files into the folder book-crossing",
    ),
)
PUBLIC_SETS: dict[str, PublicSet] = {public_set.name: public_set for public_set in _SETS}

"""Public tables under other headers: scikit-learn's, statsmodels' where it is installed, and the shared data.

A header's answer is `kinds roles`: of kinds `c` (category), `n` (number), `b` (bag), `t` (time) and `o` (omitted), of
roles `u`, `i` and `x` (context), none: any; `U` and `I` are ids of a user and an item. `label` stands before cells
that must be positive, `/`, and those that must be negative.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import polars as pl
from sklearn import datasets

from benchmarks.inference.tables import Table, written
from benchmarks.inference.worlds import Column

__all__ = ["PUBLIC"]

ROWS = 20_000
KINDS = {"c": "category", "n": "number", "b": "bag", "t": "time", "o": "omitted"}
ROLES = {"u": "user", "i": "item", "x": "context", "U": "user", "I": "item"}
Made = tuple[str, str, pl.DataFrame, Mapping[str, str]]


def _tables(sets: Callable[[], Iterator[Made]]) -> Callable[..., Iterator[Table]]:
    def made(folder: Path, *, anonymous: bool = False, only: str = "") -> Iterator[Table]:
        for name, file, frame, answers in sets():
            if only not in name:
                continue
            columns = [
                _column(f"c{at}" if anonymous else header, frame.to_series(at - 1), answer)
                for at, (header, answer) in enumerate(answers.items(), 1)
            ]
            yield written(folder, name, file, columns)

    return made


def _column(header: str, cells: pl.Series, answer: str) -> Column:
    word, _, rest = answer.partition(" ")
    if word == "label":
        yes, _, no = rest.partition("/")
        positive, negative = (frozenset(_cell(cell) for cell in part.split(",") if cell) for part in (yes, no))
        return Column(name=header, cells=cells, kinds=frozenset(("label",)), positive=positive, negative=negative)
    kinds = frozenset(KINDS[letter] for letter in word)
    roles = frozenset(ROLES[letter] for letter in rest) or frozenset(ROLES.values())
    identity = ROLES[rest] if rest in ("U", "I") else ""
    return Column(name=header, cells=cells, kinds=kinds, roles=roles, identity=identity)


def _cell(text: str) -> object:
    return int(text) if text.removeprefix("-").isdigit() else text


def _scikit_learn() -> Iterator[Made]:
    for name, answers in (("breast_cancer", "label 1/0"), ("diabetes", "label")):
        bunch = getattr(datasets, f"load_{name}")()
        frame = pl.DataFrame(bunch.data, schema=list(map(str, bunch.feature_names)))
        few = {column: "cn" if frame[column].n_unique() < 10 else "n" for column in frame.columns}
        yield name, "csv ,", frame.with_columns(target=pl.Series(bunch.target)), few | {"target": answers}
    for name, positive in (("wine", 0), ("digits", 8)):
        bunch = getattr(datasets, f"load_{name}")()
        frame = pl.DataFrame(bunch.data, schema=[f"x{k}" for k in range(bunch.data.shape[1])])
        kinds = {
            c: "o" if frame[c].n_unique() == 1 else "cn" if frame[c].n_unique() < 10 else "n" for c in frame.columns
        }
        label = pl.Series((bunch.target == positive).astype(int))
        yield name, "csv ;", frame.with_columns(is_it=label), kinds | {"is_it": "label 1/0"}


def _statsmodels() -> Iterator[Made]:
    if find_spec("statsmodels") is None:
        return
    from statsmodels import datasets as sets

    for name, label, kinds in (
        ("spector", "GRADE", {"PSI": "cn"}),
        ("anes96", "vote", dict.fromkeys(("TVnews", "selfLR", "ClinLR", "DoleLR", "PID", "educ", "income"), "cn")),
        ("modechoice", "choice", {"individual": "co U", "mode": "cn I", "psize": "cn"}),
    ):
        frame = pl.DataFrame({str(c): v.to_numpy() for c, v in getattr(sets, name).load_pandas().data.items()})
        frame = frame.with_columns(pl.col(c).cast(pl.Int64) for c in frame.columns if (frame[c] % 1 == 0).all())
        answers = {column: kinds.get(column, "n") for column in frame.columns}
        yield name, "csv ,", frame, answers | {label: "label 1/0"}


def _shared() -> Iterator[Made]:
    data = Path(os.environ.get("FIELDWISE_DATA", ""))
    if not os.environ.get("FIELDWISE_DATA") or not (data / "ml-1m").is_dir():
        return
    yield _films(data / "ml-1m")
    frame = pl.read_csv(data / "frappe/raw/frappe.csv.gz", separator="\t").drop("cnt").head(ROWS)
    answers = dict(zip(("utente", "software"), ("c U", "c I"), strict=True))
    answers |= {"momento": "c x", "giorno": "c x", "festivo": "c x", "compiti": "c x", "prezzo": "c i", "tempo": "c x"}
    yield "software", "csv ;", frame, answers | {"paese": "c ux", "luogo": "c ux"}
    yield _income(data / "adult")
    yield _census(data / "census-income")
    yield _hashes(data / "criteo")
    yield _first_hour(data / "avazu")
    yield _books(data / "book-crossing")
    frame = pl.read_csv(data / "open-bandit/random/men/men.csv.gz").drop("")
    answers = {"shown_at": "t", "garment": "cn I", "slot": "cn x", "hit": "label 1/0", "prob": "no"}
    answers |= {f"profile{k}": "c" for k in range(4)} | {f"near{k}": "cno" for k in range(frame.width - 9)}
    yield "garments", "parquet", frame, answers


def _films(folder: Path) -> Made:
    def side(name: str, columns: str) -> pl.DataFrame:
        lines = (folder / name).read_text(encoding="latin-1").splitlines()
        return pl.DataFrame([line.split("::") for line in lines], schema=columns.split(), orient="row")

    ratings = pl.read_csv(folder / "ratings.csv.gz").select("user_id", "movie_id", "rating", "timestamp")
    frame = (
        ratings.cast({"user_id": pl.String, "movie_id": pl.String})
        .head(ROWS)
        .join(side("users.dat", "user_id gender age job zip"), on="user_id", how="left", maintain_order="left")
    )
    frame = frame.join(side("movies.dat", "movie_id title genres"), on="movie_id", how="left", maintain_order="left")
    headers = ("Mitglied", "Streifen", "Note", "Zeit", "Geschlecht", "Altersklasse", "Beruf", "PLZ", "Titel", "Art")
    answers = ("c U", "c I", "label 4,5/1,2", "t", "c u", "cn u", "c u", "c u", "co i", "b i")
    return "streifen", "csv ;", frame, dict(zip(headers, answers, strict=True))


def _income(folder: Path) -> Made:
    frame = pl.read_csv(folder / "adult.data.gz", has_header=False, infer_schema=False).head(ROWS)
    frame = frame.select(pl.all().str.strip_chars())
    headers = "edad empleo peso estudios años estado oficio familia raza sexo ganancia pérdida horas país ingresos"
    answers = ("n", "c", "n", "c", "cn", *["c"] * 5, "n", "n", "n", "c", "label >50K/<=50K")
    return "ingresos", "csv ;", frame.drop_nulls(), dict(zip(headers.split(), answers, strict=True))


def _census(folder: Path) -> Made:
    frame = pl.read_csv(folder / "census-income.test.gz", has_header=False, infer_schema=False).head(ROWS)
    frame = frame.select(pl.all().str.strip_chars())
    numbers = {0: "n", 5: "n", 16: "n", 17: "n", 18: "n", 24: "n", 30: "cn", 39: "cn"}
    codes = {2: "cn", 3: "cn", 36: "cn", 38: "cn", 40: "cn"}
    answers = {f"q{k}": {**numbers, **codes}.get(k, "c") for k in range(41)}
    return "interviews", "csv |", frame, answers | {"over": "label 50000+./- 50000."}


def _hashes(folder: Path) -> Made:
    frame = pl.read_csv(folder / "train_examples.txt.gz", separator="\t", has_header=False)
    answers = {"y": "label 1/0"} | {f"n{k}": "n" for k in range(1, 14)}
    for k in range(26):
        distinct = frame.to_series(14 + k).n_unique()
        answers[f"h{k}"] = "co" if distinct > frame.height / 3 else "c"
    return "hashes", "csv tab", frame, answers


def _first_hour(folder: Path) -> Made:
    frame = pl.read_csv(folder / "first_hour/train.csv.gz", schema_overrides={"id": pl.String})
    headers = (
        "rid clk hr k1 place pg pgdom pgcat app appdom appcat dv dvip dvmodel dvtype net k14 w h k17 k18 k19 k20 k21"
    )
    answers = ["o", "label 1/0", "o", "cn", "cn", *["c"] * 9, "cn", "cn", "c", "cn", "cn", "c", "cn", "c", "c", "c"]
    answers = ["co" if header == "dvip" else answer for header, answer in zip(headers.split(), answers, strict=True)]
    return "places", "csv ,", frame, dict(zip(headers.split(), answers, strict=True))


def _books(folder: Path) -> Made:
    def read(name: str) -> pl.DataFrame:
        text = pl.read_csv(
            folder / name, separator="\t", quote_char=None, infer_schema=False, truncate_ragged_lines=True
        )
        return text.rename({text.columns[0]: "key"})

    frame = read("book_ratings.dat.gz").rename({"key": "user"}).head(ROWS)
    frame = frame.with_columns(pl.col("rating").cast(pl.Float64).cast(pl.Int64))
    items = read("items_info.dat.gz").select(
        "key", "ISBN", "Book-Title", "Book-Author", "Year-Of-Publication", "Publisher"
    )
    frame = frame.join(items, left_on="item", right_on="key", how="left", maintain_order="left")
    people = read("users_info.dat.gz").select("key", "Location")
    frame = frame.join(people, left_on="user", right_on="key", how="left", maintain_order="left")
    headers = ("lezer", "boek", "cijfer", "nummer", "titel", "schrijver", "jaar", "uitgever", "woonplaats")
    answers = ("c U", "c I", "label 9,10/1,2,3,4", "co i", "co i", "c i", "cn i", "c i", "cb u")
    return "boeken", "csv ;", frame, dict(zip(headers, answers, strict=True))


PUBLIC = {"scikit-learn": _tables(_scikit_learn), "statsmodels": _tables(_statsmodels), "shared": _tables(_shared)}

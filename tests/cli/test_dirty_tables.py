"""Tables as people have them: from the file to predictions by `init`, `train` and `predict`, nothing silently wrong."""

from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cli.test_bad_input import refused

from fieldwise import Bundle, as_table

ROWS = 300
QUICK = ("--set", "model.name=lr", "--set", "training.epochs=2", "--quiet")


def table(**columns: object) -> pl.DataFrame:
    """A log whose label follows the item: what any reading that keeps rows and labels apart can learn."""
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 12, ROWS), rng.integers(0, 8, ROWS)
    frame = pl.DataFrame(
        {"user": [f"u{k}" for k in user], "item": [f"i{k}" for k in item], **columns}
    )
    return frame.with_columns(
        click=pl.Series((rng.random(ROWS) < np.where(item % 2, 0.9, 0.1)).astype(int))
    )


def text(frame: pl.DataFrame, **options: object) -> str:
    return frame.write_csv(**options)  # type: ignore[call-overload, no-any-return]


DATES = [(date(2025, 1, 1) + timedelta(days=k)).strftime("%d.%m.%Y") for k in range(ROWS)]
YES_AND_NO = pl.when(pl.col("click") == 1).then(pl.lit("yes")).otherwise(pl.lit("no"))


FILES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "BOM, CRLF, quoted line breaks and emoji": (
        b"\xef\xbb\xbf"
        + text(
            table(
                note=[f"a\n{k % 4}, b" for k in range(ROWS)],
                mood=["😀", "😭", "👩‍👩‍👧"] * (ROWS // 3),
            )
        )
        .replace("\nu", "\r\nu")
        .replace("user,", "🧑,")
        .encode(),
        (),
    ),
    "latin-1": (
        text(table()).replace("u1", "ü1").encode("latin-1"),
        ("--read", "encoding=latin-1"),
    ),
    "semicolons and decimal commas": (
        text(table(price=[f"{k // 7},{k % 7}5" for k in range(ROWS)]), separator=";").encode(),
        (),
    ),
    "ids as floats, leading zeros, a constant and an empty column": (
        text(
            table(
                age=[None, 30.0, 40.0] * (ROWS // 3),
                zip=[f"0{k % 5}123" for k in range(ROWS)],
                country=["XX"] * ROWS,
                empty=[None] * ROWS,
            )
        ).encode(),
        (),
    ),
    "yes and no": (text(table().with_columns(click=YES_AND_NO)).encode(), ()),
    "dates": (text(table(date=DATES)).encode(), ()),  # data/test_timestamps.py has other forms
}


@pytest.mark.parametrize("name", FILES)
def test_from_a_file_to_predictions(done, tmp_path: Path, name: str) -> None:
    content, reading = FILES[name]
    (tmp_path / "t.csv").write_bytes(content)
    done("init", "t.csv", *reading)
    done("train", "t.toml", "--out", "b", *QUICK)
    if name == "dates":
        assert 'kind = "time"' in (tmp_path / "t.toml").read_text()
    done("predict", "b", "--data", "t.csv", "--out", "p.csv", *reading)
    result, given = pl.read_csv(tmp_path / "p.csv"), as_table(frame_of(tmp_path, reading))
    assert result.height == given.height == ROWS
    clicked = given.get_column("click").cast(pl.String).is_in(["1", "yes"])
    means = (
        result.with_columns(clicked=clicked)
        .group_by("clicked")
        .agg(pl.col("prediction").mean())
        .sort("clicked")
    )
    assert means["prediction"][1] > means["prediction"][0]  # the label is not inverted


def frame_of(folder: Path, reading: tuple[str, ...]) -> pl.DataFrame:
    options = dict(word.split("=", 1) for word in reading[1::2])
    return as_table(folder / "t.csv", **options)  # type: ignore[arg-type]


def test_parquet_with_structs_vectors_and_durations(done, tmp_path: Path) -> None:
    vectors = pl.Series(
        np.random.default_rng(1).random((ROWS, 4)).tolist(), dtype=pl.Array(pl.Float32, 4)
    )
    frame = table(
        place=[{"lat": 1.0, "lon": 2.0}] * ROWS,
        embedding=vectors,
        stay=[timedelta(minutes=k % 90) for k in range(ROWS)],
        tags=pl.Series([[k % 3, k % 5] for k in range(ROWS)], dtype=pl.Array(pl.Int32, 2)),
        seen=[datetime(2026, 1, 1) + timedelta(hours=k) for k in range(ROWS)],
    )
    frame.write_parquet(tmp_path / "t.parquet")
    done("init", "t.parquet")
    assert "no field reads its type" in (tmp_path / "schema.toml").read_text()
    done("train", "t.toml", "--out", "b", *QUICK)
    bundle = Bundle.load(tmp_path / "b")
    names = {f.name for f in bundle.schema.fields}
    assert names == {
        "user",
        "item",
        "embedding",
        "stay",
        "tags",
    }
    assert bundle.schema.time == "seen"
    done("predict", "b", "--data", "t.parquet", "--out", "p.csv")
    in_file = pl.read_csv(tmp_path / "p.csv")["prediction"].to_numpy()
    np.testing.assert_allclose(in_file, np.asarray(bundle.predict(frame)), rtol=1e-4)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (text(table().head(1)), ("'click' only holds 0",)),
        (text(table().head(1).clear()), ("the table has none",)),
        (text(table().with_columns(click=pl.lit("no"))), ("'click' only holds 'no'", "rows of both classes")),
        (text(table().head(2).with_columns(click=pl.Series([0, 1]))), ("training, validation and test rows",)),
        (text(table().with_columns(click=pl.Series(["a", "b", "c"] * (ROWS // 3)))), ("holds 3, ", "with --positive")),
    ],
)  # fmt: skip
def test_one_row_one_class_and_many_classes_are_sentences(
    fieldwise, tmp_path: Path, content: str, parts
) -> None:
    (tmp_path / "t.csv").write_text(content)
    refused(fieldwise("init", "t.csv"), *parts)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".toml"] == []


@pytest.mark.filterwarnings("default")
def test_a_file_without_a_header(fieldwise, done, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text(table(), include_header=False))
    code, _, err = fieldwise("init", "t.csv", "--out", "-")
    assert code == 2  # no column looks like a label
    assert "fieldwise: warning: the first line of t.csv was read as the column names" in err
    assert "give its column names (`columns`)" in err
    reading = ("--read", "columns=user, item,click")
    assert fieldwise("init", "t.csv", "--out", "-", *reading)[2].endswith(
        "t.csv --read columns=user,item,click\n"
    )
    done("init", "t.csv", *reading)
    assert (
        'columns = [\n    "user",\n    "item",\n    "click",\n]'
        in (tmp_path / "t.toml").read_text()
    )
    done("train", "t.toml", "--out", "b", *QUICK)
    done("predict", "b", "--data", "t.csv", "--out", "p.csv", *reading)
    assert pl.read_csv(tmp_path / "p.csv").height == ROWS
    done("evaluate", "b", "--data", "t.csv", "--json", *reading)
    for names, sentence in (
        ("user,item", "line 1 has 3"),
        ("user,,click", "must name every column"),
        ("a,a,b", "repeats 'a'"),
    ):
        refused(fieldwise("init", "t.csv", "--out", "-", "--read", "columns=" + names), sentence)
    table().write_csv(tmp_path / "named.csv")
    table().write_parquet(tmp_path / "t.parquet")
    for file, sentence in (
        ("named.csv", "first line of named.csv is one"),
        ("t.parquet", "`columns` is for delimited text, but t.parquet is Parquet:"),
    ):
        refused(fieldwise("init", file, "--out", "-", *reading), sentence, "omit ")


def test_exact_copies_of_rows_are_counted_and_stay(fieldwise, tmp_path: Path) -> None:
    rows = table(row_id=[f"r{k}" for k in range(ROWS)])
    (tmp_path / "t.csv").write_text(text(rows))
    assert "an earlier row" not in fieldwise("init", "t.csv", "--out", "-")[2]
    (tmp_path / "t.csv").write_text(text(pl.concat([rows, rows.head(7), rows.head(2)])))
    sentence = "9 of 309 rows equal an earlier row in every column: they are kept"
    assert sentence in fieldwise("init", "t.csv", "--out", "-")[2]
    assert sentence in fieldwise("init", "t.csv")[2]
    assert as_table(tmp_path / "t.csv").height == 309

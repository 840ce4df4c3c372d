"""UCI Adult: its remark line, full stops and question marks; the published counts."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fieldwise import DataError, load_recipe
from fieldwise.data.read.public_sets import PUBLIC_SETS, load_adult
from fieldwise.runs.data import prepare_recipe

ROW = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
ROW += "{}, {}\n"
REMARK = "|1x3 Cross validator\n"
_INTEGERS = ("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")


def _files(folder: Path, data: str, test: str) -> tuple[Path, Path]:
    folder.mkdir(exist_ok=True)
    (folder / "adult.data").write_text(data)
    (folder / "adult.test").write_text(test)
    return folder / "adult.data", folder / "adult.test"


def test_rows_by_hand(tmp_path: Path) -> None:
    data = ROW.format("United-States", "<=50K") + ROW.format("?", ">50K") + "\n"
    frame = load_adult(*_files(tmp_path, data, REMARK + ROW.format("Cuba", ">50K.") + "\n"))
    attributes = (
        39,
        "State-gov",
        77516,
        "Bachelors",
        13,
        "Never-married",
        "Adm-clerical",
        "Not-in-family",
    )
    attributes = (*attributes, "White", "Male", 2174, 0, 40)
    assert frame.rows() == [
        (*attributes, "United-States", "<=50K", "train"),
        (*attributes, None, ">50K", "train"),
        (*attributes, "Cuba", ">50K", "test"),
    ]
    assert [name for name, dtype in frame.schema.items() if dtype == pl.Int64] == [
        *("age", "fnlwgt", "education_num", "capital_gain", "capital_loss", "hours_per_week")
    ]


def test_a_bad_line_is_named_by_its_number_in_the_file(subtests, tmp_path):
    for bad, message in [
        (ROW.format("Cuba", "50K."), "income is <=50K or >50K: .*adult.test line 3 holds '50K'"),
        (
            ROW.format("Cuba", ">50K.").replace("39", "x"),
            "age is a whole number: .*adult.test line 3 holds 'x'",
        ),
        ("39, State-gov\n", "15 fields: .*adult.test line 3 has 2"),
        (ROW.format("Cuba, Havana", ">50K."), "15 fields: .*adult.test line 3 has 16"),
    ]:
        with subtests.test(bad=bad, message=message):
            good = ROW.format("Cuba", ">50K.")
            with pytest.raises(DataError, match=message):
                load_adult(*_files(tmp_path, good, REMARK + good + bad))


def test_foreign_files(tmp_path: Path) -> None:
    _files(tmp_path / "adult", ROW.format("Cuba", "<=50K"), REMARK)
    with pytest.raises(DataError, match=r"adult\.data is not the official file: its sha256 is"):
        PUBLIC_SETS["adult"].read(tmp_path)


def test_the_published_counts(real_data: Path) -> None:
    frame = PUBLIC_SETS["adult"].read(real_data)
    counts = (
        frame.group_by("split")
        .agg(pl.len(), positive=(pl.col("income") == ">50K").sum())
        .sort("split")
        .rows()
    )
    assert counts == [("test", 16_281, 3_846), ("train", 32_561, 7_841)]
    unknown = (
        frame.filter(pl.any_horizontal(pl.all().is_null()))
        .group_by("split")
        .len()
        .sort("split")
        .rows()
    )
    assert unknown == [("test", 1_221), ("train", 2_399)]


def test_adult_data_alone(tmp_path: Path) -> None:
    _files(tmp_path / "adult", ROW.format("Cuba", "<=50K"), REMARK)
    alone = load_adult(tmp_path / "adult" / "adult.data")
    assert alone.get_column("split").to_list() == ["train"]
    assert (
        PUBLIC_SETS["adult-train"].checksums["adult.data"]
        == PUBLIC_SETS["adult"].checksums["adult.data"]
    )


def test_the_tutorials_bins_are_those_of_pandas(real_data: Path) -> None:
    """A script that cuts the whole table has other bins for fnlwgt, whose largest number is no training row's."""
    pandas = pytest.importorskip("pandas")
    prepared = prepare_recipe(load_recipe("adult/afm-tutorial"), real_data)
    parts = (prepared.train, prepared.valid, prepared.test)
    assert [len(part.table) for part in parts] == [19_537, 6_512, 6_512]
    numeric = [f for f in prepared.encoder.layout.fields if f.name in _INTEGERS]
    own = prepared.train.frame.to_pandas()
    whole = pandas.concat([part.frame.to_pandas() for part in parts])
    differing = {}
    for field in numeric:
        position = [f.name for f in prepared.encoder.layout.fields].index(field.name)
        bins = [part.table.ids[:, position] - field.offset for part in parts]
        assert bins[0].tolist() == (pandas.cut(own[field.name], bins=10, labels=False) + 1).tolist()
        of_whole = pandas.cut(whole[field.name], bins=10, labels=False) + 1
        differing[field.name] = int((np.concatenate(bins) != of_whole).sum())
    assert differing == {**dict.fromkeys(_INTEGERS, 0), "fnlwgt": 292}

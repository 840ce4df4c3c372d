"""Criteo and Avazu: official forms by hand, samples against their published counts."""

import gzip
from pathlib import Path

import polars as pl
import pytest

from fieldwise import DataError
from fieldwise.data.read.public_sets import PUBLIC_SETS, load_avazu, load_criteo

CRITEO = ["1", "-2", *[""] * 11, "7", "68fd1e64", *[""] * 24, "00000123"]
AVAZU = "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,"
AVAZU += "device_ip,device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
ROW = "10000169349117863715,{click},{hour},1005,0,1f,f3,28,ec,78,07,a9,96,71,1,0,15704,320,50,1722,0,35,-1,79"


@pytest.mark.parametrize("name", ["train.txt", "train_examples.txt.gz"])
def test_criteo_by_hand(tmp_path: Path, name: str) -> None:
    text = ("\t".join(CRITEO) + "\n" + "0" + "\t" * 39 + "\n").encode()
    (tmp_path / "criteo").mkdir()
    (tmp_path / "criteo" / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    frame = PUBLIC_SETS["criteo" if name == "train.txt" else "criteo-sample"].read(tmp_path)
    assert frame.columns == [
        "label",
        *(f"I{k}" for k in range(1, 14)),
        *(f"C{k}" for k in range(1, 27)),
    ]
    assert frame.dtypes == [pl.Int64] * 14 + [pl.String] * 26
    assert frame.rows() == [
        (1, -2, *[None] * 11, 7, "68fd1e64", *[None] * 24, "00000123"),
        (0, *[None] * 39),
    ]


def test_criteo_faults(subtests, tmp_path):
    for at, value, message in [
        (0, "2", "label is 0 or 1: .*train.txt line 2 holds '2'"),
        (0, "", "label is 0 or 1: .*line 2 holds None"),
        (3, "x", "I3 is a whole number: .*line 2 holds 'x'"),
        (3, "1\t2", "40 fields: .*line 2 has 41"),
    ]:
        with subtests.test(at=at, value=value, message=message):
            bad = list(CRITEO)
            bad[at] = value
            (tmp_path / "train.txt").write_text("\t".join(CRITEO) + "\n" + "\t".join(bad) + "\n")
            with pytest.raises(DataError, match=message):
                load_criteo(tmp_path / "train.txt")


@pytest.mark.parametrize("name", ["train.csv", "train.gz", "train"])
def test_avazu_by_hand(tmp_path: Path, name: str) -> None:
    # 21 October 2014 was a Tuesday, the 26th a Sunday.
    text = "\n".join(
        [AVAZU, ROW.format(click=0, hour="14102100"), ROW.format(click=1, hour="14102623"), ""]
    ).encode()
    (tmp_path / "avazu").mkdir()
    (tmp_path / "avazu" / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    frame = PUBLIC_SETS["avazu"].read(tmp_path)
    assert frame.columns == [
        "click",
        *AVAZU.replace("click,", "").split(","),
        "hour_of_day",
        "weekday",
    ]
    assert frame.dtypes == [pl.Int64] + [pl.String] * 25
    assert frame.select("click", "id", "hour", "C20", "hour_of_day", "weekday").rows() == [
        (0, "10000169349117863715", "14102100", "-1", "00", "2"),
        (1, "10000169349117863715", "14102623", "-1", "23", "7"),
    ]


def test_avazu_faults(subtests, tmp_path):
    for text, message in [
        (
            f"{AVAZU}\n{ROW.format(click=2, hour='14102100')}\n",
            "click is 0 or 1: .*train.csv line 2 holds '2'",
        ),
        (
            f"{AVAZU}\n{ROW.format(click=1, hour='14139900')}\n",
            "hour is YYMMDDHH: .*train.csv line 2 holds '14139900'",
        ),
        (f"{AVAZU}\n{ROW.format(click=1, hour='21')}\n", "hour is YYMMDDHH: .* holds '21'"),
        (
            f"{AVAZU},C22\n{ROW.format(click=1, hour='14102100')},1\n",
            "must have the columns id, click",
        ),
    ]:
        with subtests.test(text=text, message=message):
            (tmp_path / "train.csv").write_text(text)
            with pytest.raises(DataError, match=message):
                load_avazu(tmp_path / "train.csv")


def test_avazu_sample_by_hand(tmp_path: Path) -> None:
    random = tmp_path / "avazu" / "random_15k"
    random.mkdir(parents=True)
    columns = AVAZU.split(",")
    keep = [k for k, name in enumerate(columns) if name not in ("id", "click", "device_ip")]
    short = ",".join(ROW.format(click=1, hour="05").split(",")[k] for k in keep)
    (random / "X_test_xsmall.csv").write_text(
        ",".join(columns[k] for k in keep) + f"\n{short}\n{short}\n"
    )
    (random / "y_test_xsmall.csv").write_text("click\n1\n0\n")
    frame = PUBLIC_SETS["avazu-sample"].read(tmp_path)
    assert frame.select("click", "hour_of_day").rows() == [(1, "05"), (0, "05")]
    assert not {"hour", "weekday", "id", "device_ip"} & set(frame.columns)
    (random / "y_test_xsmall.csv").write_text("click\n1\n")
    with pytest.raises(DataError, match="found 2 and 1 rows"):
        PUBLIC_SETS["avazu-sample"].read(tmp_path)


def test_absent_files_tell_where_to_get_them(subtests, tmp_path):
    for name in ["criteo", "criteo-sample", "avazu", "avazu-sample"]:
        with (
            subtests.test(name=name),
            pytest.raises(
                DataError,
                match=f"{name} is not complete.*accept .*https://.*into the folder.*FIELDWISE_DA",
            ),
        ):
            PUBLIC_SETS[name].read(tmp_path)
    for name in ["adult", "frappe", "movielens-1m"]:
        fetched = rf"{name} is not complete: .*`fieldwise fetch {name}`.*FIELDWISE_DATA"
        with subtests.test(name=name), pytest.raises(DataError, match=fetched):
            PUBLIC_SETS[name].read(tmp_path)


def test_the_samples_published_counts(real_data: Path) -> None:
    criteo = PUBLIC_SETS["criteo-sample"].read(real_data)
    assert (criteo.height, criteo.get_column("label").sum()) == (10_000, 2_182)
    avazu = PUBLIC_SETS["avazu-sample"].read(real_data)
    assert (avazu.height, avazu.get_column("click").sum()) == (15_000, 2_559)
    assert avazu.get_column("hour_of_day").unique().sort().to_list() == [
        f"{h:02}" for h in range(24)
    ]

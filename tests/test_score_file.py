"""Scoring a file in slices against scoring its rows at once: any kind of file in and out, any size of slice."""

import dataclasses
import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from random_bundle import random_bundle

from fieldwise import (
    FM,
    AutoIntPlus,
    Bag,
    Bundle,
    Categorical,
    ConfigError,
    DataError,
    Label,
    Numeric,
    Schema,
    as_table,
    simulate,
)
from fieldwise.bundle import score_file as module
from fieldwise.bundle.score_file import score_file
from fieldwise.data.read import sliced_table
from fieldwise.data.read.table_writer import write_table
from fieldwise.data.reports import ShownReports

SCHEMA = Schema(
    fields=(Categorical("user_id"), Categorical("hour"), Numeric("length"), Bag("genres")),
    label=Label("liked"),
    keys=("user_id", "item_id"),
)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return random_bundle(FM(embedding_dim=4), SCHEMA, simulate(300, users=20, items=15))


@pytest.fixture
def rows() -> pl.DataFrame:
    return simulate(101, users=40, items=15, seed=5).drop("liked", "true_probability")


def test_a_file_scored_in_parts_gives_the_predictions_of_the_whole(
    subtests, bundle, rows, tmp_path, monkeypatch
):
    for slice_rows, given, out in [
        (7, "parquet", "csv"), (7, "arrow", "tsv.gz"), (7, "csv", "arrow"), (101, "parquet", "parquet"),
        (5000, "csv", "parquet"),
    ]:  # fmt: skip
        with subtests.test(slice_rows=slice_rows, given=given, out=out):
            folder = tmp_path / f"{slice_rows} {given} {out}"
            folder.mkdir()
            write_table(rows, folder / f"rows.{given}")
            monkeypatch.setattr(module, "SLICE_ROWS", slice_rows)
            done = score_file(bundle, folder / f"rows.{given}", folder / f"scores.{out}")
            result = as_table(folder / f"scores.{out}")
            assert (done.rows, done.columns) == (101, ("user_id", "item_id", "prediction"))
            assert result.select("user_id", "item_id").equals(rows.select("user_id", "item_id"))
            np.testing.assert_allclose(result["prediction"], bundle.predict(rows), rtol=1e-6)
            assert done.unseen == pytest.approx(
                bundle.encoder.unseen_in(bundle.encoder.transform(rows))
            )
            assert done.unseen["user_id"] > 0
            assert len(list(folder.iterdir())) == 2


@pytest.fixture
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_ROWS", 10)


@pytest.mark.usefixtures("_short_slices")
def test_reports_count_all_rows(bundle: Bundle, rows: pl.DataFrame, tmp_path: Path) -> None:
    write_table(rows, tmp_path / "rows.csv")
    out = io.StringIO()
    with ShownReports(as_json=True, out=out) as reports:
        score_file(bundle, tmp_path / "rows.csv", tmp_path / "out.parquet", reports=reports)
    report = json.loads(out.getvalue())
    assert (report["phase"], report["rows"], report["rows_total"]) == ("prediction", 101, 101)


@pytest.mark.usefixtures("_short_slices")
def test_several_files_are_scored_in_the_order_of_their_names(
    subtests, bundle, rows, tmp_path, monkeypatch
):
    monkeypatch.setattr(sliced_table, "_WHOLE", 1000)  # text is read in chunks, too
    for kind in ("parquet", "arrow", "csv", "csv.gz"):
        with subtests.test(kind=kind):
            folder = tmp_path / kind
            folder.mkdir()
            for k, part in enumerate((rows.head(40), rows.slice(40, 1), rows.tail(60))):
                write_table(part, folder / f"{k}.{kind}")
            done = score_file(bundle, folder / "*", tmp_path / "scores.parquet")
            assert done.rows == 101
            result = as_table(tmp_path / "scores.parquet")
            assert result.select("user_id", "item_id").equals(rows.select("user_id", "item_id"))
            np.testing.assert_allclose(result["prediction"], bundle.predict(rows), rtol=1e-6)
            with pytest.raises(ConfigError, match="out must not be an input"):
                score_file(bundle, folder, folder / f"1.{kind}")


@pytest.mark.usefixtures("_short_slices")
def test_rows_without_keys_are_numbered_through_all_slices(
    bundle: Bundle, rows: pl.DataFrame, tmp_path: Path
) -> None:
    bare = dataclasses.replace(bundle, schema=dataclasses.replace(SCHEMA, keys=()))
    rows.write_parquet(tmp_path / "rows.parquet", row_group_size=13)
    score_file(bare, tmp_path / "rows.parquet", tmp_path / "out.arrow")
    assert as_table(tmp_path / "out.arrow")["row"].to_list() == list(range(101))


def test_a_table_without_rows_gives_its_columns(
    bundle: Bundle, rows: pl.DataFrame, tmp_path: Path
) -> None:
    rows.clear().write_parquet(tmp_path / "rows.parquet")
    for suffix in ("parquet", "csv"):
        assert score_file(bundle, tmp_path / "rows.parquet", tmp_path / f"out.{suffix}").rows == 0
        result = as_table(tmp_path / f"out.{suffix}")
        assert (result.columns, result.height) == (["user_id", "item_id", "prediction"], 0)


@pytest.mark.usefixtures("_short_slices")
def test_a_bad_cell_is_named_by_its_row_in_the_file_and_nothing_is_written(
    bundle: Bundle, rows: pl.DataFrame, tmp_path: Path
) -> None:
    bad = rows.with_columns(
        length=pl.when(pl.int_range(pl.len()) == 64).then(float("inf")).otherwise("length")
    )
    bad.write_parquet(tmp_path / "rows.parquet")
    (tmp_path / "out.parquet").write_bytes(b"as it was")
    with pytest.raises(
        DataError,
        match=r"column 'length' \(field 'length'\) holds inf in row 64 \(counting from 0\)",
    ):
        score_file(bundle, tmp_path / "rows.parquet", tmp_path / "out.parquet")
    assert (tmp_path / "out.parquet").read_bytes() == b"as it was"
    assert len(list(tmp_path.iterdir())) == 2


def test_wrong_files_are_errors_before_any_row_is_scored(bundle, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(Bundle, "score_table", lambda *_: pytest.fail("work was begun"))
    table, out = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    rows.drop("hour").write_parquet(table)
    with pytest.raises(DataError, match=r"'hour' \(field 'hour'\) is missing among user_id, "):
        score_file(bundle, table, out)
    rows.write_parquet(table)
    content = table.read_bytes()
    table.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="not a whole Parquet file"):
        score_file(bundle, table, out)
    assert [p.name for p in tmp_path.iterdir()] == ["rows.parquet"]
    table.write_bytes(content)
    out.mkdir()
    with pytest.raises(DataError, match=r"out\.parquet: it is a folder; choose another name"):
        score_file(bundle, table, out)


def test_a_label_that_is_a_number_has_no_logit(
    bundle: Bundle, rows: pl.DataFrame, tmp_path: Path
) -> None:
    rows.write_parquet(tmp_path / "rows.parquet")
    plain = dataclasses.replace(
        SCHEMA, fields=SCHEMA.fields[:2], label=Label("length", task="regression")
    )
    of_number = random_bundle(bundle.settings, plain, rows)
    with pytest.raises(ConfigError, match="the label 'length' is a number: omit it"):
        score_file(of_number, tmp_path / "rows.parquet", tmp_path / "out.parquet", logit=True)
    assert (
        score_file(of_number, tmp_path / "rows.parquet", tmp_path / "out.parquet").columns[-1]
        == "prediction"
    )


def test_bfloat16_multiplies_in_16_bits_and_float32_stays_as_it_was(bundle, rows, tmp_path):
    autoint = random_bundle(
        AutoIntPlus(embedding_dim=4, hidden=(16,)), SCHEMA, simulate(300, users=20, items=15)
    )
    write_table(rows, tmp_path / "rows.parquet")
    results = {}
    for precision in ("float32", "bfloat16"):
        path = tmp_path / f"{precision}.parquet"
        score_file(autoint, tmp_path / "rows.parquet", path, logit=True, precision=precision)
        results[precision] = as_table(path)["logit"].to_numpy()
    exact = autoint.score(rows)
    np.testing.assert_array_equal(results["float32"], exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        np.testing.assert_array_equal(results["bfloat16"], autoint.score(rows))
    assert 0 < np.abs(results["bfloat16"] - exact).max() < 0.05 * np.abs(exact).max()


KILLED = """
import os, signal, sys
from pathlib import Path
import polars as pl
from fieldwise.data.read.table_writer import TableWriter
with TableWriter(Path(sys.argv[1])) as writer:
    writer.add(pl.DataFrame({"score": [0.5]}))
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks")
def test_leftovers_of_a_killed_prediction_are_removed(bundle, rows, tmp_path):
    rows.write_csv(tmp_path / "rows.csv")
    out = tmp_path / "out" / "scores.parquet"
    killed = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(out.parent.iterdir())) == 1
    score_file(bundle, tmp_path / "rows.csv", out)
    assert list(out.parent.iterdir()) == [out]

"""Recipes whose rows do not fit in `data.memory`: prepared in files, with the same result, and resumed."""

import dataclasses
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock, create_autospec

import polars as pl
import pytest
from chunks_lab import assert_equal

from fieldwise import (
    DataError,
    MissingExtraError,
    Recipe,
    as_table,
    load_recipe,
    prepare_recipe,
    simulate,
)
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.chunk_limits import ChunkLimits
from fieldwise.data.read.formats import table_files
from fieldwise.data.read.load_table import open_files
from fieldwise.data.read.table_writer import write_table
from fieldwise.data.read.text_format import TextFormat
from fieldwise.data.reports import Reports
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.large_table import large_table
from fieldwise.storage.cache import ENTRY, Cache

pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("log")
    rows = simulate(40_000, users=300, items=100).with_columns(wide=pl.lit("x" * 400))
    for k in range(2):
        rows[k * 20_000 : (k + 1) * 20_000].write_parquet(
            folder / f"{k}.parquet", row_group_size=5_000
        )
    return folder


@pytest.fixture(scope="module")
def whole(log: Path) -> Prepared:
    return prepare_recipe(recipe(log), Path())


def recipe(log: Path, memory: str | None = None) -> Recipe:
    one = load_recipe("simulated/afm", [f"data.path={log}"])
    return dataclasses.replace(one, data=dataclasses.replace(one.data, memory=memory))


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, said: list[str]) -> Cache:
    return Cache(folder=tmp_path / "cache", note=said.append)


def test_little_memory_changes_nothing(
    log: Path, whole: Prepared, cache: Cache, said: list[str]
) -> None:
    result = prepare_recipe(recipe(log, "64MB"), Path(), cache=cache)
    assert result.train.budget.chunk_rows is not None
    assert result.train.budget.chunk_rows < len(result.train.table)
    entry = ENTRY.open(cache.entries()[0].folder)
    assert all(entry.path(part).stat().st_size for part in entry.parts)
    assert any(part.startswith("train.rows/rows-") for part in entry.parts)
    assert_equal(result, whole)
    assert [p.name for p in cache.folder.iterdir() if not p.name.startswith(".making")] == [
        cache.entries()[0].folder.name
    ]
    assert not list((cache.folder / ".making").iterdir())
    # the memory is no part of the key
    again = prepare_recipe(recipe(log, "65MB"), Path(), cache=cache)
    assert_equal(again, whole)
    assert any(line.startswith("read from the cache: ") for line in said)


def test_no_cache_leaves_no_file(
    log: Path, whole: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    reports = Told()
    assert_equal(prepare_recipe(recipe(log, "64MB"), Path(), reports=reports), whole)
    assert list(tmp_path.iterdir()) == []
    assert reports.phases == [
        ("reading rows", None),
        ("labels, split and rows of each part", 40_000),
        ("vocabularies and scales", len(whole.train.table)),
        *((f"encoding {name} rows", len(getattr(whole, name).table)) for name in PARTS),
        ("finishing the preparation", None),
    ]
    assert reports.done["reading rows"] == 40_000
    assert reports.done["encoding train rows"] == len(whole.train.table)


def test_an_interrupted_preparation_goes_on(log, whole, cache, said, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            "fieldwise.data.prepare.preparation.group_codes",
            lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            prepare_recipe(recipe(log, "64MB"), Path(), cache=cache)
    assert cache.entries() == []
    monkeypatch.setattr(
        "fieldwise.data.prepare.preparation.split_table",
        lambda *_, **__: pytest.fail("rows are split again"),
    )
    assert_equal(prepare_recipe(recipe(log, "64MB"), Path(), cache=cache), whole)
    assert any("was interrupted: it goes on" in line for line in said)


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "last", ["fieldwise.data.prepare.preparation.write_facts", "fieldwise.storage.cache.seal"]
)
def test_a_disk_that_is_full_at_the_end_costs_no_finished_stage(
    last, log, whole, cache, said, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(last, full)
        try:
            # without an entry
            assert_equal(prepare_recipe(recipe(log, "64MB"), Path(), cache=cache), whole)
        except OSError:
            assert "write_facts" in last
        else:
            assert any(line.startswith("not stored in the cache: ") for line in said)
    assert cache.entries() == []
    (left,) = (cache.folder / ".making").iterdir()
    rows = {path: path.stat().st_ino for path in left.glob("*/*.npy")}
    free = sum(path.stat().st_size for path in left.rglob("*") if path.is_file()) // 2
    # too little for all
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(
        "fieldwise.data.prepare.preparation.split_table",
        lambda *_, **__: pytest.fail("rows are divided again"),
    )
    assert_equal(prepare_recipe(recipe(log, "64MB"), Path(), cache=cache), whole)
    entry = cache.entries()[0].folder
    assert {entry / path.relative_to(left): inode for path, inode in rows.items()} == {
        path: path.stat().st_ino for path in entry.glob("*/*.npy")
    }
    assert not [path for path in entry.rglob("*") if path.name.endswith(".done")]
    assert not list((cache.folder / ".making").iterdir())


def test_text_that_was_read_stays_after_a_kill_and_not_after_an_error(tmp_path, cache, monkeypatch):
    log = tmp_path / "log.csv"
    simulate(30_000, users=300, items=100).with_columns(wide=pl.lit("x" * 400)).write_csv(log)
    for error, stays in ((DataError("as if a row were wrong"), False), (KeyboardInterrupt(), True)):
        with monkeypatch.context() as patch:
            patch.setattr("fieldwise.data.prepare.preparation.split_table", Mock(side_effect=error))
            with pytest.raises(type(error)):
                prepare_recipe(recipe(log, "64MB"), Path(), cache=cache)
        assert bool(list(cache.folder.glob(".making/*/source/rows/*.arrow"))) == stays
    told = create_autospec(Reports, instance=True)
    result = prepare_recipe(recipe(log, "64MB"), Path(), cache=cache, reports=told)
    assert told.add.call_args_list[0].args[0] > 10_000, "rows that were not read again"
    assert_equal(result, prepare_recipe(recipe(log), Path()))


def test_clearing_the_cache_removes_interrupted_preparations(log, cache, monkeypatch):
    monkeypatch.setattr(
        "fieldwise.data.prepare.preparation.Encoder.fit",
        lambda *_, **__: pytest.fail("as if killed"),
    )
    with pytest.raises(pytest.fail.Exception):
        prepare_recipe(recipe(log, "64MB"), Path(), cache=cache)
    assert list((cache.folder / ".making").iterdir())
    cache.clear()
    assert not list((cache.folder / ".making").iterdir())


def test_a_disk_without_room_is_told_before_work(
    log: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10**6))
    monkeypatch.setattr(
        "fieldwise.runs.large_table.open_files", lambda *_, **__: pytest.fail("work was begun")
    )
    with pytest.raises(DataError, match=r"needs some \d\d MB of disk, and .* has 1 MB free"):
        prepare_recipe(recipe(log, "64MB"), Path(), cache=cache)


@pytest.mark.parametrize(
    ("row_group", "message"),
    [
        (
            2_000,
            r"memory must hold two chunks .* one of 2,000 rows .* set data.memory to 24\dMB or more",
        ),
        (
            100,
            r"data.memory must hold a chunk .* 64MB is too little for rows of 10,\d* bytes; set it to 32\dMB or more",
        ),
    ],
)
def test_rows_too_wide_for_the_memory_name_the_least_that_works(
    row_group, message, tmp_path, cache
):
    simulate(2_000, users=30, items=20).with_columns(wide=pl.lit("x" * 10_000)).write_parquet(
        tmp_path / "wide.parquet", row_group_size=row_group
    )
    with pytest.raises(DataError, match=message):
        prepare_recipe(recipe(tmp_path / "wide.parquet", "64MB"), Path(), cache=cache)


def test_an_entry_whose_rows_are_too_wide_for_less_memory_stays(
    tmp_path: Path, cache: Cache, said: list[str]
) -> None:
    simulate(2_000, users=30, items=20).with_columns(wide=pl.lit("x" * 10_000)).write_parquet(
        tmp_path / "wide.parquet", row_group_size=100
    )
    prepare_recipe(recipe(tmp_path / "wide.parquet", "900MB"), Path(), cache=cache)
    with pytest.raises(DataError, match=r"data.memory must hold a chunk"):
        prepare_recipe(recipe(tmp_path / "wide.parquet", "64MB"), Path(), cache=cache)
    assert len(cache.entries()) == 1
    assert not any("is damaged" in line for line in said)


def test_without_pyarrow_only_a_stated_memory_is_an_error(log, whole, monkeypatch):
    def missing() -> None:
        raise MissingExtraError("pip install 'fieldwise[large]'")

    monkeypatch.setattr("fieldwise.runs.large_table.arrow_library", missing)
    monkeypatch.setattr("fieldwise.runs.data_settings.available_memory", lambda: 10**7)
    assert_equal(prepare_recipe(recipe(log), Path()), whole)
    with pytest.raises(MissingExtraError, match="large"):
        prepare_recipe(recipe(log, "64MB"), Path())


def test_the_memory_of_text_is_told_by_its_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldwise.runs.data_settings.LEAST_MEMORY_BYTES", 0)
    rows = simulate(30_000, users=300, items=100)
    for name in ("log.csv", "log.csv.gz"):
        write_table(rows, tmp_path / name)
    text, packed = ((tmp_path / name).stat().st_size for name in ("log.csv", "log.csv.gz"))
    monkeypatch.setattr(table_files, "UNPACKED_PER_PACKED_BYTE", text / packed)
    size = as_table(tmp_path / "log.csv").estimated_size()
    for name in ("log.csv", "log.csv.gz"):
        # preparing takes some six times the rows
        for memory, large in ((5 * size, True), (7 * size, False)):
            result = large_table(DataSettings(path=str(tmp_path / name), memory=int(memory)))
            assert (result is not None) == large


def test_rows_that_are_read_again_for_their_types_are_told(tmp_path: Path) -> None:
    text = "n,user\n" + "1,u\n" * 200_000 + "x,u\n"  # the last value makes text of n
    (tmp_path / "log.csv").write_text(text)
    told, bounds = Told(), ChunkLimits.within(1 << 20)
    frame = open_files(
        [tmp_path / "log.csv"], TextFormat(), bounds, tmp_path / "scratch", told
    ).frame
    assert frame["n"].dtype == pl.String
    assert frame.height == 200_001
    assert told.phases == [("reading rows", None), ("reading rows again", 200_001)]
    assert told.done == {"reading rows": 200_001, "reading rows again": 200_001}


class Told(Reports):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.phases: list[tuple[str, int | None]] = []
        self.done: dict[str, int] = {}

    def begin(self, phase: str, rows: int | None = None, **_: object) -> None:
        self.phases.append((phase, rows))

    def add(self, rows: int, **_: object) -> None:
        phase = self.phases[-1][0]
        self.done[phase] = self.done.get(phase, 0) + rows

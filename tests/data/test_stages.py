"""Preparation in stages, in chunks and on an engine: equal to preparation at once, and goes on after a kill."""

import dataclasses
import errno
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pytest
from chunks_lab import CASES, ONE_LABEL, SCHEMA, assert_equal, log, prepare, prepared, rows_of
from engines import HereEngine

from fieldwise import (
    Categorical,
    ColumnSplit,
    DataError,
    Encoder,
    Label,
    LeaveLastOutSplit,
    Numeric,
    RandomSplit,
    Schema,
    TimeSplit,
)
from fieldwise.data.encode.kinds import Counted, count_column
from fieldwise.data.encode.kinds.numeric import quantile_edges
from fieldwise.data.encode.text_counts import frequent_texts
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.data.prepare import ordering
from fieldwise.data.prepare.file_tasks import counted_files, encode_file
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.preparation import Preparation, link_results
from fieldwise.data.prepare.prepared import read_prepared
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.mapped_rows import MappedRows, RowsWriter
from fieldwise.data.reports import Reports
from fieldwise.distributed.engine import answered, done_here
from fieldwise.schema import Field
from fieldwise.storage.machine import ahead, each
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

pytest.importorskip("pyarrow")


def staged(folder: Path, case: str = "random", **more: Any) -> Preparation:
    schema, split, added = CASES[case]
    settings = {
        "schema": schema,
        "split": split,
        "seed": 3,
        **added,
        "folder": folder,
        "chunk_rows": lambda _: 101,
    }
    return Preparation(**{**settings, **more})


class Phases(Reports):
    """Remembers the phases with a number of rows, and how many of them were counted."""

    def __init__(self) -> None:
        self.phases: list[list[Any]] = []

    def begin(self, phase: str, rows: int | None = None, **_: Any) -> None:
        self.phases.append([phase, rows, 0])

    def add(self, rows: int, **_: Any) -> None:
        self.phases[-1][2] += rows


def run(folder: Path, case: str = "random") -> None:
    """Prepare a case; its phases count all of their rows."""
    reports = Phases()
    result = staged(folder, case, reports=reports).run(lambda _: MappedRows(frame=rows_of(case)))
    assert_equal(result, read_prepared(folder))
    counted = [(rows, done) for _, rows, done in reports.phases if rows is not None]
    assert len(counted) == 5
    assert all(rows == done for rows, done in counted), reports.phases


@pytest.mark.parametrize("case", CASES)
def test_stages_give_what_is_prepared_at_once(case: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    run(tmp_path / "made", case)
    assert_equal(read_prepared(tmp_path / "made"), prepared(case))
    (tmp_path / "kept").mkdir()
    link_results(tmp_path / "made", tmp_path / "kept")
    assert_equal(read_prepared(tmp_path / "kept"), prepared(case))
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {"encoder.json", "prepared.json"} | {
        name for part in PARTS for name in (part, f"{part}.rows", f"{part}.group.npy")
    }


class Killed(BaseException):
    """What a test raises where a process would be killed."""


def test_a_preparation_killed_at_any_rename_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = whole_label()

    def run(folder: Path) -> None:
        staged(folder, "time").run(in_files(rows, 100))

    replace, renames, stop = os.replace, 0, 0

    def counted(*args: Any) -> None:
        nonlocal renames
        renames += 1
        if renames == stop:
            raise Killed
        replace(*args)

    monkeypatch.setattr(os, "replace", counted)
    (tmp_path / "whole").mkdir()
    run(tmp_path / "whole")
    wanted = prepare(rows, SCHEMA, split=TimeSplit(), seed=3)
    for stop in range(1, renames + 1, renames // 5):
        folder, renames = tmp_path / str(stop), 0
        folder.mkdir()
        with pytest.raises(Killed):
            run(folder)
        with pytest.raises((OSError, LookupError, ValueError)):
            read_prepared(folder)  # never a table that opens but is not whole
        renames = -1_000
        run(folder)
        assert_equal(read_prepared(folder), wanted)


def test_a_stage_that_cannot_be_flushed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fieldwise.data.prepare.preparation.sync_tree", full)
    with pytest.raises(DataError, match="the disk is full: cannot write"):
        run(tmp_path)


def whole_label() -> pl.DataFrame:
    """Rows by time of which no label is dropped: files that hold rows of one part are moved to it."""
    return rows_of("time").filter(pl.col("rating") != 3).sort("day", maintain_order=True)


def in_files(rows: pl.DataFrame, rows_per_file: int) -> Callable[[Path], MappedRows]:
    def source(folder: Path) -> MappedRows:
        writer = RowsWriter(folder, gather=0)
        for chunk in rows.iter_slices(rows_per_file):
            writer.add(chunk)
        return MappedRows.of(writer.finish())

    return source


@pytest.mark.parametrize("case", ["stratified", "leave last out", "negatives"])
def test_rows_that_lie_in_files_are_prepared_alike(case: str, tmp_path: Path) -> None:
    assert_equal(staged(tmp_path, case).run(in_files(rows_of(case), 30)), prepared(case))


def test_files_of_one_part_are_moved_and_not_written_again(tmp_path: Path) -> None:
    schema, split = dataclasses.replace(ONE_LABEL, keys=()), TimeSplit(valid=0.2, test=0.2)
    rows = log().sort("day", maintain_order=True)
    wanted = prepare(rows, schema, split=split, seed=3)
    files = {}

    def source(folder: Path) -> MappedRows:
        table = in_files(rows, 50)(folder)
        files.update({file.path.stat().st_ino: file for file in table.files})
        return table

    assert_equal(
        staged(tmp_path, "time", schema=schema, split=split, chunk_rows=lambda _: 33).run(source),
        wanted,
    )
    ends = np.cumsum([0, *(wanted.counts[f"{name}_rows"] for name in PARTS)])
    kept = [
        path.stat().st_ino
        for name in PARTS
        for path in sorted((tmp_path / f"{name}.rows").iterdir())
    ]
    whole = [i for i, file in files.items() if not any(file.first < end < file.end for end in ends)]
    assert [i for i in kept if i in files] == whole
    assert 14 <= len(whole) < len(files) == 18


def test_a_system_that_moves_no_mapped_file_copies_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowsWriter, "take", lambda *_: False)
    schema, split, added = CASES["time"]
    result = staged(tmp_path, "time", chunk_rows=lambda _: 33).run(in_files(whole_label(), 50))
    assert_equal(result, prepare(whole_label(), schema, split=split, seed=3, **added))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rating": None}, r"1 of 900 rows have none in column 'rating', the first is row 700 "),
        ({"text_price": "dear"}, r"column 'text_price' .* holds the text 'dear' in row 700 "),
        ({"day": None}, r"column 'day' holds None in row 700 "),
        ({"minutes": float("inf")}, r"'minutes' holds inf in row 700 "),
        ({"part": "else"}, r"column 'part' holds 'else' in row 700 "),
        ({"user": None}, r"column 'user' has none in row 700 "),
    ],
)
def test_errors_count_the_rows_of_the_whole_table(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    ((column, value),) = change.items()
    rows = log().with_row_index("n")
    rows = rows.with_columns(
        pl.when(pl.col("n") == 700).then(pl.lit(value)).otherwise(pl.col(column)).alias(column)
    )
    split = {
        "part": ColumnSplit(column="part", valid_share=0.2),
        "user": LeaveLastOutSplit(),
        "day": TimeSplit(),
    }.get(column, RandomSplit())
    schema = dataclasses.replace(SCHEMA, label=Label("rating", positive_above=3))
    with pytest.raises(DataError, match=message):
        prepare(rows, schema, split=split, seed=0)
    chunks = Preparation(
        schema=schema, split=split, seed=0, folder=tmp_path, chunk_rows=lambda _: 64
    )
    with pytest.raises(DataError, match=message):
        chunks.run(lambda _: MappedRows(frame=rows))


@pytest.mark.parametrize("form", [str, int])
def test_counts_in_files_are_those_in_memory(
    form: Callable[[int], str | int], tmp_path: Path
) -> None:
    draw = np.random.default_rng(0)
    texts = [form(k) for k in draw.zipf(1.2, 2_000) % 1_000]
    chunks = []
    for start in range(0, len(texts), 100):
        result, counts = np.unique(texts[start : start + 100], return_counts=True)
        chunks.append(pl.DataFrame({"text": result, "n": counts}))
    every, number = np.unique(texts, return_counts=True)
    ranked = sorted(zip(-number, map(str, every.tolist()), strict=True))
    wanted = tuple(text for n, text in ranked if -n >= 3), (number < 3).sum()
    assert frequent_texts(chunks, 3, budget=NO_LIMIT) == wanted
    budget = MemoryBudget(tmp_path)
    assert frequent_texts(chunks, 3, most=100, budget=budget) == wanted
    assert any(tmp_path.rglob("*.arrow"))
    assert frequent_texts(chunks, 10_000, most=100, budget=budget) == ((), len(every))


def test_quantiles_with_point_masses_are_numpys_of_the_rest() -> None:
    draw = np.random.default_rng(0)
    number = np.concatenate([np.zeros(500), np.full(300, 9.5), draw.normal(size=200)])
    draw.shuffle(number)
    rest = number[(number != 0) & (number != 9.5)]
    above = np.min(number[number > 0])
    wanted = np.concatenate([[0, 9.5, above], np.quantile(rest, np.linspace(0, 1, 4)[1:-1])])
    np.testing.assert_array_equal(
        np.sort(quantile_edges(number, 5, point_masses=True, budget=NO_LIMIT)), np.sort(wanted)
    )


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full, raising=False)
    with pytest.raises(DataError, match="the disk is full: cannot write"):
        MemoryBudget(tmp_path, 10).empty(100, np.int64)


def test_a_long_vocabulary_finds_texts_by_their_hashes() -> None:
    values = tuple(f"v{k * 7919:x}" for k in range(60_000))
    draw = np.random.default_rng(0)
    texts = [values[k] if k < len(values) else f"new {k}" for k in draw.integers(0, 70_000, 5_000)]
    texts[7:9] = [None, ""]
    vocabulary = Vocabulary(values=values)
    assert vocabulary.ids(pl.Series(texts)).tolist() == vocabulary.ids_of(texts).tolist()
    assert vocabulary.ids(pl.Series(texts)).dtype == np.int32
    assert "_hashes" in vars(vocabulary)


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (lambda k: f"2026-01-{1 + k % 28:02}T{k % 24:02}:00:{k % 60:02}.5", None),
        (lambda k: f"{1 + k % 28:02}.{1 + k % 12:02}.2026" if k % 7 else "2026-03-01 12:00", None),
        (lambda k: f"{1 + k % 12}/{1 + k % 28}/2026", None),
        (lambda k: f"{k:07}.50", None),
        (lambda k: "20260131" if k < 400 else "2026-02-01", None),
        (lambda k: f"{1 + k % 28:02}.{1 + k % 12:02}.2026", "%d.%m.%Y"),
    ],
)
def test_times_of_text_are_decided_by_all_chunks(cells, form, tmp_path: Path) -> None:
    frame = pl.DataFrame({"day": [cells(k) for k in np.random.default_rng(0).permutation(500)]})
    read_at_once = mock.patch(
        "fieldwise.data.prepare.ordering._from_text", wraps=ordering._from_text
    )
    budget = MemoryBudget(tmp_path, chunk_rows=64)
    with read_at_once as read:
        result = order_values(frame, "day", "time", form, budget=budget)
    assert max([len(call.args[0]) for call in read.call_args_list], default=0) <= 64
    np.testing.assert_array_equal(
        result, order_values(frame, "day", "time", form, budget=NO_LIMIT), strict=True
    )


@pytest.mark.parametrize(
    ("early", "late", "form", "message"),
    [
        (
            "05.05.2026",
            "06.05.2026",
            None,
            "day and month are ambiguous: .* as '%d.%m.%Y' and as '%m.%d.%Y'",
        ),
        (
            "30.01.2026",
            "01.30.2026",
            None,
            "every row needs a number or a date .* 500 of 500 rows are like it",
        ),
        ("2026-01-30", "soon", None, "holds 'soon' in row 300 "),
        ("30.01.2026", "soon", "%d.%m.%Y", "holds 'soon' in row 300 "),
        (
            "2026-01-30",
            " ",
            None,
            "every row needs its time .* in row 300 .* 200 of 500 rows have none",
        ),
        (
            "2026-01-30 10:00",
            "2026-01-30 10:00Z",
            None,
            "all times have an offset from UTC or none: .* 200 of 500",
        ),
    ],
)
def test_times_of_text_in_chunks_have_the_errors_of_the_whole(
    early, late, form, message, tmp_path: Path
) -> None:
    frame = pl.DataFrame({"day": [early] * 300 + [late] * 200})
    for budget in (MemoryBudget(), MemoryBudget(tmp_path, chunk_rows=64)):
        with pytest.raises(DataError, match=message):
            order_values(frame, "day", "time", form, budget=budget)


def test_numbers_without_statistics_are_not_kept(tmp_path: Path, subtests: pytest.Subtests) -> None:
    column = pl.Series("price", [3.0, None, -8.0, 1e30])
    every = [3.0, -8.0, 1e30]
    kept: dict[str, list[float]] = {
        "none": [-8.0, 1e30],
        "log": [],
        "minmax": every,
        "standard": every,
    }
    for transform, numbers in kept.items():
        with subtests.test(transform=transform):
            field = Numeric("price", transform=transform)
            (counted,) = count_column(field, column, budget=NO_LIMIT)
            assert (counted.rows, counted.present) == (4, 3)
            assert counted.values.get_column("number").to_list() == numbers
            schema, rows = Schema(fields=(field,), label=Label("rating")), column.to_frame()
            whole = Encoder.fit(rows, schema)
            budget = MemoryBudget(tmp_path, chunk_rows=2)
            assert Encoder.fit(rows, schema, budget=budget) == whole
            with pytest.raises(
                DataError, match=r"column 'price' .* is null or empty in all 4 training rows"
            ):
                Encoder.fit(rows.clear(4), schema, budget=budget)


@pytest.fixture
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowsWriter.__init__, "__kwdefaults__", {"gather": 1})


@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize("case", ["random", "histories", "target encoding"])
def test_an_engine_prepares_the_same_rows(case: str, tmp_path: Path) -> None:
    here = HereEngine()
    assert_equal(
        staged(tmp_path, case, engine=here).run(lambda _: MappedRows(frame=rows_of(case))),
        prepared(case),
    )
    done = Counter(here.done)
    assert done["count_file"] > 3
    assert done["encode_file"] >= done["count_file"] + len(PARTS) - 1


def spread(frame: pl.DataFrame, folder: Path, rows: int = 50) -> MappedRows:
    writer = RowsWriter(folder / "rows")
    for chunk in frame.iter_slices(rows):
        writer.add(chunk)
    return MappedRows.of(writer.finish())


ONE = Schema(fields=(Categorical("kind"), Numeric("price")), label=Label("rating"))


@pytest.mark.usefixtures("_small_files")
@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pl.Series("price", ["1"] * 777 + ["much"] + ["2"] * 122),
            r"in row 777 \(counting from 0\)",
        ),
        (pl.Series("kind", [None] * 900, dtype=pl.String), "null or empty in all 900"),
    ],
)
def test_an_engine_finds_the_fault_of_the_whole_table(
    column: pl.Series, message: str, tmp_path: Path
) -> None:
    frame = log().with_columns(column)
    with pytest.raises(DataError, match=message) as expected:
        Encoder.fit(frame, ONE)
    rows = spread(frame, tmp_path)
    budget = MemoryBudget(tmp_path, chunk_rows=40)

    def counted(f: Field) -> Iterable[Counted]:
        return counted_files(rows, ONE, HereEngine(), budget=budget)(f)

    with pytest.raises(DataError) as result:
        Encoder.fit(frame, ONE, counted=counted, budget=budget)
    assert str(result.value) == str(expected.value)


def test_warnings_come_back() -> None:
    def warned(_: object) -> dict[str, int]:
        warnings.warn("the header looks like a row", stacklevel=1)
        return {}

    with pytest.warns(UserWarning, match="the header looks like a row"):
        answered(done_here(warned, "{}"))


def test_an_encoder_that_was_replaced_is_not_used(tmp_path: Path) -> None:
    frame = log()
    rows = spread(frame, tmp_path)
    path = tmp_path / "encoder.json"
    path.write_text(Encoder.fit(frame, ONE).to_json())
    given = {
        "rows": str(rows.files[0].path),
        "first": 0,
        "encoder": str(path),
        "digest": "0" * 64,
        "to": str(tmp_path / "e"),
    }
    with pytest.raises(DataError, match="must hold the encoder that was fitted"):
        encode_file(given)


def test_threads_have_the_context_variables_of_their_caller() -> None:
    variable = ContextVar("variable", default=0)
    token = variable.set(4)
    assert list(ahead(variable.get() for _ in range(3))) == [4, 4, 4]
    assert each(lambda _: variable.get(), range(3), rows=10**6) == [4, 4, 4]
    variable.reset(token)

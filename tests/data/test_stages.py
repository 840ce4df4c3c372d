"""Preparation in stages: equal to preparation at once, and goes on after a kill at any moment."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from pieces_lab import CASES, ONE_LABEL, assert_equal, log, prepared, rows_of

from fieldwise.data.prepare.files import read_prepared
from fieldwise.data.prepare.parts import Plan
from fieldwise.data.prepare.prepared import prepare
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.prepare.split_settings import TimeSplit
from fieldwise.data.prepare.stages import Stages
from fieldwise.data.read.mapped import MappedRows, RowsWriter
from fieldwise.data.reports import NoReports

pytest.importorskip("pyarrow")


def stages(folder: Path, case: str = "random") -> Stages:
    schema, split, add = CASES[case]
    return Stages(folder=folder, plan=Plan(schema=schema, split=split, seed=3, add=add))


def run(folder: Path, case: str = "random") -> None:
    stages(folder, case).run(lambda _: MappedRows(frame=rows_of(case)), lambda _: 101)


@pytest.mark.parametrize("case", CASES)
def test_stages_give_what_is_prepared_at_once(case: str, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    run(tmp_path / "made", case)
    assert_equal(read_prepared(tmp_path / "made"), prepared(case))
    (tmp_path / "kept").mkdir()
    Stages.link(tmp_path / "made", tmp_path / "kept")
    assert_equal(read_prepared(tmp_path / "kept"), prepared(case))
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {"encoder.json", "prepared.json"} | {
        name for part in PARTS for name in (part, f"{part}.rows", f"{part}.group.npy")
    }


class Killed(BaseException):
    """What a test raises where a process would be killed."""


@pytest.mark.parametrize("files", [False, True])
def test_a_preparation_killed_at_any_rename_goes_on(
    files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = whole_label() if files else rows_of("random")
    case = "time" if files else "random"

    def run(folder: Path) -> None:
        stages(folder, case).run(in_files(rows, 100) if files else lambda _: MappedRows(frame=rows), lambda _: 101)

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
    schema, split, add = CASES[case]
    wanted = prepare(rows, schema, split=split, seed=3, add=add)
    for stop in range(1, renames + 1, renames // 7):
        folder, renames = tmp_path / str(stop), 0
        folder.mkdir()
        with pytest.raises(Killed):
            run(folder)
        with pytest.raises((OSError, LookupError, ValueError)):
            read_prepared(folder)  # never a table that opens but is not whole
        renames = -1_000
        run(folder)
        assert_equal(read_prepared(folder), wanted)


def test_finished_stages_are_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("fieldwise.data.prepare.stages.Encoder.fit", killed)
        with pytest.raises(Killed):
            run(tmp_path)
    assert Stages.begun(tmp_path)
    stages(tmp_path).run(lambda _: pytest.fail("the rows were read again"), lambda _: 101)
    assert_equal(read_prepared(tmp_path), prepared("random"))


def whole_label() -> pl.DataFrame:
    """Rows by time of which no label is dropped: files that hold rows of one part are moved to it."""
    return rows_of("time").filter(pl.col("rating") != 3).sort("day", maintain_order=True)


def in_files(rows: pl.DataFrame, rows_per_file: int) -> Callable[[Path], MappedRows]:
    def source(folder: Path) -> MappedRows:
        writer = RowsWriter(folder, gather=0)
        for piece in rows.iter_slices(rows_per_file):
            writer.add(piece)
        return MappedRows.of(writer.finish())

    return source


@pytest.mark.parametrize("case", CASES)
def test_rows_that_lie_in_files_are_prepared_alike(case: str, tmp_path: Path) -> None:
    stages(tmp_path, case).run(in_files(rows_of(case), 7), lambda _: 101)
    assert_equal(read_prepared(tmp_path), prepared(case))


def test_files_of_one_part_are_moved_and_not_written_again(tmp_path: Path) -> None:
    schema, split = dataclasses.replace(ONE_LABEL, keys=()), TimeSplit(valid=0.2, test=0.2)
    rows = log().sort("day", maintain_order=True)
    wanted = prepare(rows, schema, split=split, seed=3)
    plan, files = Plan(schema=schema, split=split, seed=3), {}

    def source(folder: Path) -> MappedRows:
        table = in_files(rows, 50)(folder)
        files.update({file.path.stat().st_ino: file for file in table.files})
        return table

    Stages(folder=tmp_path, plan=plan).run(source, lambda _: 33)
    found = read_prepared(tmp_path)
    assert_equal(found, wanted)
    ends = np.cumsum([0, *(wanted.counts[f"{name}_rows"] for name in PARTS)])
    kept = [path.stat().st_ino for name in PARTS for path in sorted((tmp_path / f"{name}.rows").iterdir())]
    whole = [i for i, file in files.items() if not any(file.first < end < file.end for end in ends)]
    assert [i for i in kept if i in files] == whole
    assert 14 <= len(whole) < len(files) == 18


def test_a_system_that_moves_no_mapped_file_copies_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowsWriter, "take", lambda *_: False)
    stages(tmp_path, "time").run(in_files(whole_label(), 50), lambda _: 33)
    schema, split, add = CASES["time"]
    assert_equal(read_prepared(tmp_path), prepare(whole_label(), schema, split=split, seed=3, add=add))


class Phases(NoReports):
    """Remembers the phases with a number of rows, and how many of them were counted."""

    def __init__(self) -> None:
        self.phases: list[list[Any]] = []

    def begin(self, phase: str, rows: int | None = None, **_: Any) -> None:
        self.phases.append([phase, rows, 0])

    def add(self, rows: int, **_: Any) -> None:
        self.phases[-1][2] += rows


@pytest.mark.parametrize("case", [*CASES, "files"])
def test_every_phase_counts_all_of_its_rows(case: str, tmp_path: Path) -> None:
    told = Phases()
    source = in_files(whole_label(), 100) if case == "files" else lambda _: MappedRows(frame=rows_of(case))
    made = stages(tmp_path, "time" if case == "files" else case)
    dataclasses.replace(made, reports=told).run(source, lambda _: 101)
    counted = [(rows, done) for _, rows, done in told.phases if rows is not None]
    assert len(counted) == 5
    assert all(rows == done for rows, done in counted), told.phases

"""Preparation in stages: equal to preparation at once, and goes on after a kill at any moment."""

import os
from pathlib import Path
from typing import Any

import pytest
from pieces_lab import CASES, assert_equal, prepared, rows_of

from fieldwise.data.prepare.files import read_prepared
from fieldwise.data.prepare.parts import Plan
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.prepare.stages import Stages

pytest.importorskip("pyarrow")


def stages(folder: Path, case: str = "random") -> Stages:
    schema, split, add = CASES[case]
    return Stages(folder=folder, plan=Plan(schema=schema, split=split, seed=3, add=add))


def run(folder: Path, case: str = "random") -> None:
    stages(folder, case).run(lambda _: rows_of(case), lambda _: 101)


@pytest.mark.parametrize("case", CASES)
def test_stages_give_what_is_prepared_at_once(case: str, tmp_path: Path) -> None:
    run(tmp_path, case)
    assert_equal(read_prepared(tmp_path), prepared(case))
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {"encoder.json", "prepared.json"} | {
        name for part in PARTS for name in (part, f"{part}.rows", f"{part}.group.npy")
    }


class Killed(BaseException):
    """What a test raises where a process would be killed."""


def test_a_preparation_killed_at_any_rename_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    wanted = prepared("random")
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

"""Preparation on an engine: equal to the bit to that in one process, with one sentence for what goes wrong."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from engines import HereEngine
from pieces_lab import CASES, assert_equal, log, prepared, rows_of

from fieldwise.data.encode.encoder import Encoder
from fieldwise.data.encode.spread import fit_spread
from fieldwise.data.prepare.files import read_prepared
from fieldwise.data.prepare.parts import Plan
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.prepare.stages import Stages
from fieldwise.data.read.mapped import MappedRows, RowsWriter
from fieldwise.distributed import engine as engine_module
from fieldwise.distributed.engine import Task, answered, done_here
from fieldwise.errors import ConfigError, DataError
from fieldwise.schema import Categorical, Label, Numeric, Schema
from fieldwise.storage.scratch import Scratch

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowsWriter.__init__, "__kwdefaults__", {"gather": 1, "sync": False})
    monkeypatch.setattr(engine_module, "PATIENCE", 0.0)


@pytest.mark.parametrize("case", CASES)
def test_an_engine_prepares_the_same_rows(case: str, tmp_path: Path) -> None:
    schema, split, add = CASES[case]
    here = HereEngine()
    stages = Stages(folder=tmp_path, plan=Plan(schema=schema, split=split, seed=3, add=add), engine=here)
    stages.run(lambda _: MappedRows(frame=rows_of(case)), lambda _: 101)
    assert_equal(read_prepared(tmp_path), prepared(case))
    done = Counter(here.done)
    assert done["count_file"] > 3
    assert done["learn_file"] == sum(not f.shares for f in schema.fields)
    assert done["encode_file"] >= done["count_file"] + len(PARTS) - 1


def spread(frame: pl.DataFrame, folder: Path, rows: int = 50) -> MappedRows:
    writer = RowsWriter(folder / "rows")
    for piece in frame.iter_slices(rows):
        writer.add(piece)
    return MappedRows.of(writer.finish())


def scratch(folder: Path) -> Scratch:
    (folder / "work").mkdir()
    return Scratch(folder / "work", piece=40)


ONE = Schema(fields=(Categorical("kind"), Numeric("price")), label=Label("rating"))


def test_an_error_names_the_row_of_the_whole_table(tmp_path: Path) -> None:
    frame = log().with_columns(price=pl.Series(["1"] * 777 + ["much"] + ["2"] * 122))
    rows, place = spread(frame, tmp_path), scratch(tmp_path)
    with pytest.raises(DataError) as expected:
        Encoder.fit(frame, ONE)
    with pytest.raises(DataError) as found:
        fit_spread(rows, ONE, HereEngine(), place, lambda _: None)
    assert "in row 777 (counting from 0)" in str(found.value)
    assert str(found.value) == str(expected.value)


def test_a_column_without_values_is_refused_as_by_one_process(tmp_path: Path) -> None:
    frame = log().with_columns(kind=pl.lit(None, pl.String))
    with pytest.raises(DataError) as expected:
        Encoder.fit(frame, ONE)
    with pytest.raises(DataError) as found:
        fit_spread(spread(frame, tmp_path), ONE, HereEngine(), scratch(tmp_path), lambda _: None)
    assert str(found.value) == str(expected.value)


def size_of(given: object) -> dict[str, int]:
    return {"n": 1}


def test_a_machine_that_does_not_see_a_file_says_which(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    path.write_bytes(b"12345")
    task = Task(given={}, reads=(path,), writes=tmp_path).to_json()
    assert answered(done_here(size_of, task)) == {"n": 1}
    path.write_bytes(b"1234")
    with pytest.raises(ConfigError, match=r"has 4 bytes on .*, and 5 where the command runs"):
        answered(done_here(size_of, task))
    path.unlink()
    with pytest.raises(ConfigError, match=f"does not see {path}: put it in a folder that all machines share"):
        answered(done_here(size_of, task))
    gone = Task(given={}, writes=tmp_path / "gone").to_json()
    with pytest.raises(ConfigError, match=f"does not see {tmp_path / 'gone'}"):
        answered(done_here(size_of, gone))


def test_machines_need_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task(given={}).to_json()
    monkeypatch.setattr(engine_module, "__version__", "0.0.0")
    with pytest.raises(ConfigError, match=r"one version of fieldwise: .* has 0.0.0, and "):
        answered(done_here(size_of, task))


def warned(given: object) -> dict[str, int]:
    import warnings

    warnings.warn("the header looks like a row", stacklevel=1)
    return {}


def test_warnings_come_back() -> None:
    with pytest.warns(UserWarning, match="the header looks like a row"):
        answered(done_here(warned, Task(given={}).to_json()))


def test_an_encoder_that_was_replaced_is_not_used(tmp_path: Path) -> None:
    from fieldwise.data.encode.spread import encode_file

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

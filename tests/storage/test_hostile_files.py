"""Links, other users' files, files that make a reader panic, and cells that run: none does what its author wished."""

import os

import polars as pl
import pytest

from fieldwise import DataError, as_table
from fieldwise.cli.show import console, say, visible
from fieldwise.data.read.sliced_table import SlicedTable
from fieldwise.data.read.table_writer import TableWriter
from fieldwise.storage.cache import Cache
from fieldwise.storage.locks import try_lock


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / ".key.lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), try_lock(tmp_path / ".key.lock"):
        pass
    (tmp_path / ".new.lock").symlink_to(tmp_path / "absent")
    with pytest.raises(OSError, match="symbolic links"), try_lock(tmp_path / ".new.lock"):
        pass
    assert target.read_text() == "kept"
    assert not (tmp_path / "absent").exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no owners of files")
def test_an_entry_of_the_cache_that_is_another_users_is_not_read(tmp_path, monkeypatch):
    notes = []
    cache = Cache(folder=tmp_path / "cache", note=notes.append)
    cache.put("key", "a thing", lambda folder: (folder / "thing").write_text("theirs"))
    read = lambda folder: (folder / "thing").read_text()  # noqa: E731
    assert cache.get("key", read) == "theirs"
    own = os.lstat

    def as_of_another(path, **more):
        result = own(path, **more)
        return os.stat_result((*result[:4], 4242, *result[5:10]))

    monkeypatch.setattr(os, "lstat", as_of_another)
    monkeypatch.setattr("pathlib.Path.lstat", as_of_another)
    assert cache.get("key", read) is None
    assert "is another user's and not read" in notes[-1]
    assert (tmp_path / "cache" / "key" / "thing").exists(), "it is theirs to remove"


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_a_file_that_makes_polars_panic_is_one_sentence(tmp_path, monkeypatch, suffix):
    path = tmp_path / f"log.{suffix}"
    frame = pl.DataFrame({"a": [1]})
    frame.write_parquet(path) if suffix == "parquet" else frame.write_ipc(path)

    def panic(*args, **more):
        raise pl.exceptions.PanicException("called `Result::unwrap()` on an `Err` value")

    for name in (
        "read_parquet",
        "read_ipc",
        "scan_parquet",
        "scan_ipc",
        "read_parquet_schema",
        "read_ipc_schema",
    ):
        monkeypatch.setattr(pl, name, panic)
    for read in (as_table, SlicedTable):
        with pytest.raises(DataError, match=r"is not a whole .* file \(called `Result::unwrap"):
            read(path)


def test_cells_that_a_spreadsheet_would_run_are_guarded(tmp_path):
    cells = [
        "=cmd|' /C calc'!A0",
        "+1",
        "@SUM(A1)",
        "-2+3",
        "\t=1",
        "\r=1",
        "-5",
        "-1.5e3",
        "a=b",
        "",
        None,
        "'=1",
    ]
    frame = pl.DataFrame({"key": cells, "n": [-1.0] * len(cells)})
    with TableWriter(tmp_path / "safe.csv", raw=False) as writer:
        writer.add(frame)
        writer.add(frame)
    assert writer.guarded == 10
    result = pl.read_csv(tmp_path / "safe.csv")["key"].to_list()
    runs = {*cells[:6]} - {"+1"}  # a number is no formula
    guarded = [f"'{cell}" if cell in runs else cell for cell in cells]
    assert result == guarded * 2
    with TableWriter(tmp_path / "raw.csv") as writer:
        writer.add(frame)
    assert pl.read_csv(tmp_path / "raw.csv")["key"].to_list() == cells
    with TableWriter(tmp_path / "whole.parquet", raw=False) as writer:
        writer.add(frame)
    assert pl.read_parquet(tmp_path / "whole.parquet").equals(frame), "no spreadsheet reads these"


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet"])
def test_an_error_while_a_table_is_made_is_not_told_as_one_in_writing(tmp_path, name):
    def write():
        with TableWriter(tmp_path / name) as writer:
            writer.add(pl.DataFrame({"n": [1]}))
            raise ConnectionError("the server is away")

    with pytest.raises(ConnectionError, match=r"^the server is away$"):
        write()
    assert not list(tmp_path.iterdir())


def test_escapes_of_a_terminal_are_shown_and_not_sent(capsys):
    from rich.table import Table

    hostile = "a\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb"
    table = Table(hostile, title=hostile)
    table.add_row(hostile)
    console().print(table)
    console().print(hostile)
    say(hostile)
    told = "".join(capsys.readouterr())
    assert not set(told) & set("\x1b\x07\x9b\u202e")
    assert told.count("\\x1b]0;owned") >= 4
    assert visible("é\t漢\n") == "é\t漢\n"


def test_what_a_killed_writer_left_is_removed_a_day_later(tmp_path, monkeypatch):
    from fieldwise.storage import files

    monkeypatch.setattr(files, "_SWEPT", set())
    old, new = tmp_path / ".0123456789ab.part", tmp_path / ".ba9876543210.part"
    mine = tmp_path / ".mine.part"
    for path in (old, new, mine):
        path.write_text("half")
    for path in (old, mine):
        os.utime(path, (0, 0))
    files.write_atomically(tmp_path / "file", b"whole")
    assert {path.name for path in tmp_path.iterdir()} == {mine.name, new.name, "file"}


def test_a_gzip_file_that_holds_too_much_is_not_unpacked(tmp_path, monkeypatch):
    import gzip

    from fieldwise.data.read import text_stream

    monkeypatch.setattr(text_stream, "UNPACKED_BYTES_ALLOWED", 100_000)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 500_000))
    with pytest.raises(DataError, match="100 times its size, or 0 MiB, and"):
        as_table(tmp_path / "bomb.csv.gz")
    (tmp_path / "log.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 20_000))
    assert as_table(tmp_path / "log.csv.gz").height == 20_000


def test_a_header_of_a_million_columns_is_refused_soon(tmp_path):
    (tmp_path / "wide.csv").write_text(",".join(f"c{n}" for n in range(1_000_000)) + "\n")
    with pytest.raises(DataError, match="may have 100,000 columns, and the header of"):
        as_table(tmp_path / "wide.csv")
    (tmp_path / "twice.csv").write_text(",".join(f"c{n % 5_000}" for n in range(10_000)) + "\n")
    with pytest.raises(DataError, match="columns must have different names"):
        as_table(tmp_path / "twice.csv")

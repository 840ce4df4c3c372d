"""The cache of prepared data: the second run opens it, nothing stale or damaged is ever read, and digests of rows."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from chunks_lab import assert_equal

from fieldwise import FieldwiseError, Recipe, as_table, load_recipe, prepare_recipe, simulate
from fieldwise.data.read.chunk_limits import table_bytes
from fieldwise.runs.cache_key import PACKAGE, code_digest, preparing_sources
from fieldwise.runs.inputs import data_files
from fieldwise.runs.row_digests import digest_rows, rows_digest
from fieldwise.storage.artifact import seal
from fieldwise.storage.cache import ABOUT, ENTRY, Cache, default_cache
from fieldwise.storage.checksums import WordSums, word_sums
from fieldwise.storage.locks import one_writer


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, said: list[str]) -> Cache:
    return Cache(folder=tmp_path / "kept", note=said.append)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    simulate(600, users=20, items=15).write_csv(tmp_path / "log.csv")
    return load_recipe("simulated/afm", [f"data.path={tmp_path / 'log.csv'}"])


def test_the_second_run_reads_what_the_first_kept(cache, recipe, said, monkeypatch):
    first = prepare_recipe(recipe, Path(), cache=cache)
    assert said == []
    monkeypatch.setattr(
        "fieldwise.runs.raw_table.Preparation.run", lambda *_, **__: pytest.fail("made again")
    )
    second = prepare_recipe(recipe, Path(), cache=cache)
    assert_equal(first, second)
    assert_equal(
        first, prepare_recipe(dataclasses.replace(recipe, name="other"), Path(), cache=cache)
    )
    assert [line.startswith("read from the cache: ") for line in said] == [True, True]
    assert rows_digest(second.test.frame, recipe.schema) == rows_digest(
        first.test.frame, recipe.schema
    )


def test_whatever_changes_the_data_is_another_entry(cache, recipe, tmp_path, monkeypatch):
    prepare_recipe(recipe, Path(), cache=cache)
    changed = [
        dataclasses.replace(recipe, seed=1),
        dataclasses.replace(
            recipe, schema=dataclasses.replace(recipe.schema, fields=recipe.schema.fields[:-1])
        ),
        dataclasses.replace(recipe, split=dataclasses.replace(recipe.split, test=0.3)),
    ]
    for k, other in enumerate(changed, start=2):
        prepared = prepare_recipe(other, Path(), cache=cache)
        assert_equal(prepared, prepare_recipe(other, Path()))
        assert len(cache.entries()) == k
    path = tmp_path / "log.csv"
    moment = path.stat().st_mtime_ns
    path.write_bytes(path.read_bytes().replace(b"Mon", b"Tue"))  # as long as before
    os.utime(path, ns=(moment, moment))
    assert_equal(prepare_recipe(recipe, Path(), cache=cache), prepare_recipe(recipe, Path()))
    assert len(cache.entries()) == 5
    monkeypatch.setattr("fieldwise.runs.cache_key.code_digest", lambda _: "other code")
    prepare_recipe(recipe, Path(), cache=cache)
    assert len(cache.entries()) == 6


def test_a_damaged_entry_is_told_and_made_again(subtests, cache, recipe, said):
    first = prepare_recipe(recipe, Path(), cache=cache)
    for name, how in [
        ("train/ids.*.npy", "changed"), ("encoder.json", "cut"), ("test.arrow", "gone"), (ABOUT, "changed"),
        (ABOUT, "gone"),
    ]:  # fmt: skip
        with subtests.test(name=name, how=how):
            said.clear()
            (entry,) = cache.entries()
            (file,) = entry.folder.glob(name)
            content = file.read_bytes()
            if how == "gone":
                file.unlink()
            else:
                changed = content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]
                file.write_bytes(content[:-9] if how == "cut" else changed)
            assert_equal(prepare_recipe(recipe, Path(), cache=cache), first)
            if name != ABOUT:
                assert "is damaged" in said[0]
                assert len(said) == 1
            said.clear()
            prepare_recipe(recipe, Path(), cache=cache)
            assert said[-1].startswith("read from the cache")
            assert [p.name for p in cache.folder.iterdir()] == [entry.folder.name]


@pytest.mark.parametrize("name", ["encoder.json", "prepared.json", ABOUT])
def test_an_entry_of_deep_json_is_damaged(
    cache: Cache, recipe: Recipe, said: list[str], name: str
) -> None:
    """With checksums that fit: someone who may write the cache made it."""
    prepare_recipe(recipe, Path(), cache=cache)
    (entry,) = cache.entries()
    about = json.loads((entry.folder / ABOUT).read_text())
    (entry.folder / name).write_text("[" * 100_000)
    if name != ABOUT:
        (entry.folder / ABOUT).unlink()
        seal(ENTRY, entry.folder, title=about["title"], made=about["made"])
    else:
        assert [one.title for one in cache.entries()] == ["damaged"]
    prepare_recipe(recipe, Path(), cache=cache)
    assert sum("is damaged" in one for one in said) == 1
    assert [one.title for one in cache.entries()] == [about["title"]]


def test_all_files_of_a_public_set_count_those_in_a_linked_folder_too(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "data" / "frappe", tmp_path / "elsewhere"
    (place / "deep" / "er").mkdir(parents=True)
    elsewhere.mkdir()
    for file in (place / "map.csv", place / "deep" / "er" / "f", elsewhere / "frappe.train.libfm"):
        file.write_text("1")
    (place / "libfm").symlink_to(elsewhere)
    result = data_files(load_recipe("frappe/fm").data, tmp_path / "data")
    assert set(result) == {
        "map.csv",
        os.path.join("deep", "er", "f"),
        os.path.join("libfm", "frappe.train.libfm"),
    }


def test_a_file_that_changes_while_it_is_read_is_not_kept(cache, recipe, tmp_path, monkeypatch):
    from fieldwise.runs import data as pipeline

    load = pipeline.load_frame

    def changing(*given):
        frame = load(*given)
        (tmp_path / "log.csv").write_bytes((tmp_path / "log.csv").read_bytes() + b"\n")
        return frame

    monkeypatch.setattr(pipeline, "load_frame", changing)
    prepare_recipe(recipe, Path(), cache=cache)
    assert cache.entries() == []


@pytest.mark.parametrize("fits", [False, True])
def test_the_cache_takes_the_room_of_the_raw_and_the_encoded_rows(fits, cache, recipe, monkeypatch):
    encoded = 4 * 600 * 14  # bytes: 14 cells, numbers and labels in each row
    free = table_bytes(as_table(Path(recipe.data.path or ""))) + encoded - (not fits)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=free))
    prepare_recipe(recipe, Path(), cache=cache)
    assert len(cache.entries()) == fits


def test_rows_of_a_given_table_are_no_lines_of_the_recipes_file(recipe: Recipe) -> None:
    frame = as_table(Path(recipe.data.path or ""))
    label = recipe.schema.labels[0].column
    with pytest.raises(FieldwiseError) as told:
        prepare_recipe(recipe, Path(), frame.with_columns(pl.lit(None, pl.Int64).alias(label)))
    assert "row 0" in str(told.value)
    assert "log.csv" not in str(told.value)


def test_what_breaks_off_leaves_nothing(cache: Cache, said: list[str]) -> None:
    def breaks(folder: Path) -> None:
        (folder / "half").write_bytes(b"1")
        raise OSError("no more")

    cache.put("k", "a thing", breaks)
    assert list(cache.folder.iterdir()) == []
    assert "not stored in the cache: a thing (cannot write " in said[0]
    assert "no more" in said[0]
    assert len(said) == 1
    with pytest.raises(KeyboardInterrupt):
        cache.put("k", "a thing", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert list(cache.folder.iterdir()) == []


def write(size: int):
    return lambda folder: (folder / "file").write_bytes(bytes(size)) and None


def test_the_longest_unused_make_room(tmp_path: Path) -> None:
    cache = Cache(folder=tmp_path, limit=250)
    for k, key in enumerate("abc"):
        cache.put(key, key, write(100))
        if (tmp_path / key / ABOUT).exists():
            os.utime(tmp_path / key / ABOUT, (1000 + k, 1000 + k))
    assert sorted(entry.title for entry in cache.entries()) == ["b", "c"]
    assert cache.get("b", lambda folder: folder.name) == "b"
    cache.put("d", "d", write(100))
    assert sorted(entry.title for entry in cache.entries()) == ["b", "d"]
    cache.put("huge", "huge", write(300))
    assert sorted(entry.title for entry in cache.entries()) == ["b", "d"]


def test_two_processes_may_keep_the_same(cache: Cache) -> None:
    def other_is_first(folder: Path) -> None:
        cache.put("k", "theirs", write(5))
        write(5)(folder)

    cache.put("k", "ours", other_is_first)
    (entry,) = cache.entries()
    assert entry.title == "theirs"
    assert [p.name for p in cache.folder.iterdir()] == ["k"]


def test_an_entry_whose_removal_breaks_off_is_no_entry(cache, tmp_path, monkeypatch):
    cache.put("k", "a thing", write(5))
    killed = tmp_path / "kept" / ".fieldwise-scratch.abcd1234"
    killed.mkdir()
    monkeypatch.setattr("fieldwise.storage.cache.scratch_folder", lambda _: nullcontext(killed))
    cache.clear()
    monkeypatch.undo()
    (left,) = cache.folder.iterdir()
    assert left == killed
    assert cache.get("k", lambda folder: folder) is None
    cache.put("k", "made again", write(5))
    assert [entry.title for entry in cache.entries()] == ["made again"]


def test_clear_removes_entries_and_parts_and_nothing_else(cache: Cache) -> None:
    cache.put("k", "a thing", write(5))
    (cache.folder / ".fieldwise-scratch.abcd1234").mkdir()
    os.utime(cache.folder / ".fieldwise-scratch.abcd1234", (0, 0))
    (cache.folder / "mine").mkdir()
    assert [entry.title for entry in cache.clear()] == ["a thing"]
    assert [p.name for p in cache.folder.iterdir()] == ["mine"]


def test_what_a_killed_process_began_goes_after_a_week(cache: Cache) -> None:
    days = {"old": 8, "young": 6, "used": 8}
    for key, age in days.items():
        with cache.making(key) as folder:
            (folder / "rows").write_bytes(b"1")
        os.utime(folder, (time.time() - 86_400 * age,) * 2)
    with one_writer(cache.folder / ".making" / "used"):
        os.utime(cache.folder / ".making" / "used", (0, 0))
        cache.put("k", "a thing", write(5))
        assert sorted(path.name for path in (cache.folder / ".making").iterdir()) == [
            "used",
            "young",
        ]


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path / "f"))
    assert default_cache().folder == tmp_path / "f" / "prepared"
    monkeypatch.delenv("FIELDWISE_CACHE")
    assert default_cache().folder == tmp_path / "x" / "fieldwise" / "prepared"


# Digests

ROWS = pl.DataFrame(
    {
        "t": ["a", None, ""],
        "n": [1, None, 3],
        "x": [0.5, None, 2.0],
        "b": [True, None, False],
        "l": [[1, None], None, []],
        "d": pl.Series(["2026-01-01", None, "2026-01-02"]).str.to_date(),
    }
)


def test_the_same_rows_have_one_digest_however_they_are_stored() -> None:
    stored = ROWS.with_columns(
        pl.col("t").cast(pl.Categorical), pl.col("n").cast(pl.Int8), pl.col("x").cast(pl.Float32)
    )
    for same in (ROWS.clone(), stored, pl.concat([ROWS[:1], ROWS[1:]], rechunk=False)):
        assert digest_rows(same) == digest_rows(ROWS)


def test_other_rows_have_another_digest(subtests):
    for other in [
        ROWS[::-1],
        ROWS[:2],
        ROWS.select(reversed(ROWS.columns)),
        ROWS.rename({"t": "T"}),
        ROWS.with_columns(t=pl.Series(["a", "", None])),
        ROWS.with_columns(n=pl.Series([1, 3, None])),
        ROWS.with_columns(n=pl.Series([1, 0, 3])),
        ROWS.with_columns(l=pl.Series([[None, 1], None, []])),
        ROWS.with_columns(l=pl.Series([[1, None], [], None])),
        ROWS.with_columns(pl.col("n").cast(pl.String)),
        ROWS.with_columns(d=pl.col("d").dt.offset_by("1d")),
    ]:
        with subtests.test(other=other):
            assert digest_rows(other) != digest_rows(ROWS)
    one, other = (pl.DataFrame({"t": cells}) for cells in (["ab", "c"], ["a", "bc"]))
    assert digest_rows(one) != digest_rows(other), "text does not flow from cell to cell"


def test_word_sums_tell_damage(subtests, tmp_path):
    for size in [0, 1, 8, 2**20, 2**20 + 3, 3 * 2**20]:
        with subtests.test(size=size):
            content = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
            path = tmp_path / "f"
            path.write_bytes(content.tobytes())
            result = word_sums(path)
            sums, start = WordSums(), 0
            for length in [5, 2**20, 7, 2**21 - 12, size]:
                sums.update(content[start : start + length])
                start += length
            assert sums.hexdigest() == result
            for at in {0, size // 2, size - 1} if size else set():
                content[at] ^= 1
                path.write_bytes(content.tobytes())
                assert word_sums(path) != result
                content[at] ^= 1
            path.write_bytes(content.tobytes() + b"\0")
            assert word_sums(path) != result


def test_the_key_covers_every_file_that_preparing_loads():
    """Python itself says which: a new process imports what prepares data, and nothing else."""
    code = (
        "import sys, fieldwise.runs.data\n"
        "for name, module in sys.modules.items():\n"
        "    if name.partition('.')[0] == 'fieldwise': print(module.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {Path(line).relative_to(PACKAGE).as_posix() for line in done.stdout.splitlines()}
    assert preparing_sources(PACKAGE).keys() == loaded
    folders = {name.partition("/")[0] for name in loaded}
    assert "storage" in folders
    assert not folders & {"models", "serving"}


def test_a_changed_byte_of_a_preparing_file_changes_the_key(
    tmp_path: Path, subtests: pytest.Subtests
):
    package = tmp_path / "fieldwise"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    before = code_digest.__wrapped__(package)
    reached = preparing_sources(package)
    for name in ("storage/scratch.py", "errors.py", "data/table.py", "schema/ids.py", "config.py"):
        with subtests.test(name=name):
            (package / name).write_bytes(reached[name] + b"#")
            assert code_digest.__wrapped__(package) != before
            (package / name).write_bytes(reached[name])
    for file in [*(package / "models").glob("*.py"), *(package / "serving").glob("*.py")]:
        file.write_bytes(file.read_bytes() + b"#")
    assert code_digest.__wrapped__(package) == before

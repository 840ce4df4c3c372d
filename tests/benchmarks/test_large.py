"""The generated log of `benchmarks.large`, and its watch over memory."""

import json
import os
import re
import subprocess
import sys
import time
from hashlib import sha256

import numpy as np
import polars as pl
import pytest
from benchmarks.large import fuxi
from benchmarks.large.__main__ import main
from benchmarks.large.disk_full import Case, wrong, wrong_again
from benchmarks.large.fuxi import parts
from benchmarks.large.kills import Attempt
from benchmarks.large.log import BLOCK, CATEGORIES, NUMBERS, Log, about, write_log
from benchmarks.large.memory import Memory, members
from benchmarks.large.process import watched
from benchmarks.large.recipe import MODELS, write_recipe
from benchmarks.large.small_disk import Taken, on_small_disk
from sklearn.metrics import roc_auc_score

from fieldwise.config import given
from fieldwise.layout import Layout
from fieldwise.models.build import build_network
from fieldwise.runs.defaults import Facts, resolve
from fieldwise.runs.recipe import load_recipe
from fieldwise.training.optimizers import run_optimizer

ROWS = 30_000
MB = 2**20


@pytest.fixture(scope="module")
def rows():
    return pl.from_arrow(Log(3).block(0, ROWS))


def read(folder):
    return pl.concat([pl.read_parquet(path) for path in sorted((folder / "rows").iterdir())])


def test_a_shorter_log_is_the_beginning_of_a_longer_one_in_any_number_of_files(tmp_path):
    folders = [tmp_path / name for name in ("long", "short", "again", "other")]
    for folder, rows, seed, files in zip(folders, (9000, 7000, 7000, 7000), (3, 3, 3, 4), (3, 2, 2, 1), strict=True):
        write_log(folder, rows, seed=seed, files=files)
    long, short, again, other = (read(folder) for folder in folders)
    assert long.height == 9000
    assert {long.schema[one.name] for one in CATEGORIES} == {pl.Int32, pl.String}
    assert long.head(7000).equals(short)
    assert not short.equals(other)
    assert again.equals(short)
    bytes_of = [[p.read_bytes() for p in sorted((folder / "rows").iterdir())] for folder in folders]
    assert bytes_of[1] == bytes_of[2]


def test_pieces_join_at_the_borders_of_blocks():
    log = Log(0)
    at_once = [pl.from_arrow(piece) for piece in log.rows(BLOCK - 300, BLOCK + 200)]
    assert [piece.height for piece in at_once] == [300, 200]
    assert at_once[1].equals(pl.from_arrow(log.block(1, 200)))


def test_blocks_differ():
    log = Log(0)
    columns = {**{one.name: 0 for one in (*NUMBERS, *CATEGORIES)}, "label": 0}
    first, second = (pl.from_arrow(log.block(block, 500)) for block in (0, 1))
    assert [name for name in columns if first[name].equals(second[name])] == []


def test_values_of_a_category_are_distinct_and_fall_as_one_by_rank(rows):
    assert [one.size for one in CATEGORIES][:2] == [4, 7]
    assert CATEGORIES[-1].size == 2_000_000
    for one in CATEGORIES[:9]:
        counts = np.sort(rows[one.name].drop_nulls().value_counts()["count"].to_numpy())[::-1]
        assert len(counts) == one.size, one.name
        # Rank r of V is drawn where log(r) <= u log(V + 1) < log(r + 1).
        expected = np.log1p(1 / np.arange(1, 4)) / np.log(one.size + 1)
        np.testing.assert_allclose(counts[:3] / counts.sum(), expected, atol=0.015)
    assert rows["category_26"].n_unique() > 5000


def test_numbers_are_missing_as_they_say(rows):
    for one in NUMBERS:
        absent = rows[one.name].is_null().to_numpy()
        if one.missing in ("never", "random"):
            assert abs(absent.mean() - one.part) < 0.01, one.name
        if one.missing == "stretches":
            assert {bool(x) for x in absent[:20_000]} == {bool(absent[0])}, one.name
        if one.missing == "category":
            parts = pl.DataFrame({"c": rows["category_4"], "absent": absent}).group_by("c").agg(pl.mean("absent"))
            assert set(parts["absent"]) == {0.0, 1.0}, one.name


def test_the_label_follows_the_rows(rows):
    """The mean label of a value in one half of the rows ranks the other half's rows."""
    half = ROWS // 2
    for name in ("category_5", "category_8"):
        means = rows[:half].group_by(name).agg(pl.mean("label").alias("mean"))
        score = rows[half:].join(means, on=name, how="left", maintain_order="left")["mean"].fill_null(0.3)
        assert roc_auc_score(rows[half:]["label"], score) > 0.55


HOLDS = """
import sys, time
held = bytearray(int(sys.argv[1]) << 20)
held[::4096] = b"x" * len(held[::4096])
{more}
print("ready", flush=True)
time.sleep(60)
"""


def test_memory_counts_a_process_and_what_it_started():
    inner = [sys.executable, "-c", HOLDS.format(more=""), "30"]
    more = f"import subprocess\nchild = subprocess.Popen({inner!r}, stdout=subprocess.PIPE)\nchild.stdout.readline()"
    alone = subprocess.Popen(
        [sys.executable, "-c", HOLDS.format(more=more), "50"], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        alone.stdout.readline()
        with Memory(alone.pid) as memory:
            time.sleep(0.5)
        sample = memory.now()
    finally:
        for pid in reversed(members(alone.pid)):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        alone.communicate()
    assert sample.processes == 2
    assert 80 * MB < sample.anonymous < 80 * MB + 2 * 15 * MB  # an interpreter takes about 6 MB
    assert 80 * MB < memory.peak() < 80 * MB + 2 * 15 * MB
    assert members(alone.pid) == []


def test_a_watched_command_is_told_line_by_line():
    code = "import sys, time; print('a', file=sys.stderr, flush=True); time.sleep(.4); sys.exit('b')"
    done = watched([sys.executable, "-c", code])
    assert done.code == 1
    assert [line for _, line in done.lines] == ["a", "b"]
    assert done.lines[1][0] - done.lines[0][0] > 0.3
    assert done.memory.peak() > MB
    with pytest.raises(SystemExit, match="status 1"):
        done.checked()


@pytest.mark.slow
def test_a_small_log_is_trained_on_and_measured(tmp_path, capsys):
    log, out = tmp_path / "log", tmp_path / "results.json"
    assert main(["make", "--rows", "20000", "--out", str(log)]) == 0
    words = ["run", "--data", str(log), "--rows-check", "--work", str(tmp_path), "--json", str(out)]
    assert main([*words, "--set", "training.batch_size=128"]) == 0  # 125 steps, not 4
    found = json.loads(out.read_text())[0]
    assert found["auc"]["test"] > 0.6
    assert found["log"]["rows"] == 20_000
    assert found["bytes"]["peak anonymous"] > 50 * MB
    assert "peak anonymous" in capsys.readouterr().out


@pytest.mark.parametrize("way", ["mount", "file"])
def test_a_small_disk_is_full_for_the_command_alone(tmp_path, way):
    if way == "mount" and subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("mount namespaces are not permitted here")
    held, place = tmp_path / "held", tmp_path / "disk"
    held.mkdir()
    (held / "old").write_bytes(b"x" * 10_000)
    code = f"import pathlib; pathlib.Path({str(place)!r}, 'new').write_bytes(bytes(10**6))"
    found = on_small_disk(place, 500_000, held, [sys.executable, "-c", code], way=way)
    assert found["code"] == 1
    assert re.search(r"OSError.*(No space left|File too large)", found["lines"][-1])
    assert found["after"]["old"] == found["before"]["old"]
    assert found["used"] <= 500_000 + 2**17  # 0 if the command ends before it is looked at
    enough = on_small_disk(place, 2 * 10**6, held, [sys.executable, "-c", code], way=way)
    assert enough["code"] == 0


def test_what_a_full_disk_may_not_do():
    case = Case(name="bundle", words=[], env=[], contents=None, kept="bundle")
    before = {"bundle/a": "1", "other": "2"}
    good = {"code": 2, "lines": ["the disk is full"], "before": before, "after": {**before, ".rest": "3"}}
    assert wrong(case, good) == []
    assert wrong(case, good | {"code": 0, "after": {"bundle/a": "9"}}) == []
    assert wrong(case, good | {"after": {"bundle/a": "9"}}) == ["bundle/a was there before and is not as it was"]
    assert wrong(case, good | {"after": {}}) == ["bundle/a was there before and is not as it was"]
    assert wrong(case, good | {"lines": ["Traceback (most recent call last):", "E"]}) == ["a traceback was shown"]
    assert wrong(case, good | {"code": -7}) == ["it ended with a signal: status -7"]
    assert wrong(case, good | {"after": {**before, "bundle/b": "3"}}) == [
        "bundle/b was left beside what was there before"
    ]


def test_an_attempt_is_killed_or_ends_and_says_when_it_is_prepared():
    code = "import sys, time; print('1 test rows', file=sys.stderr, flush=True); time.sleep({})"
    words = [sys.executable, "-c"]
    one = Attempt([*words, code.format(60)], dict(os.environ))
    assert one.prepared.wait(30)
    assert one.killed_after(0)
    assert one.lines == ["1 test rows"]
    assert not Attempt([*words, code.format(0)], dict(os.environ)).killed_after(30)
    busy = Attempt([*words, "while True: pass"], dict(os.environ))
    assert busy.killed_after(0.3)
    assert not busy.lines


def test_the_rows_that_another_library_reads_are_the_log_in_three_parts(tmp_path):
    write_log(tmp_path / "log", 1003, seed=3, files=3)
    parts(about(tmp_path / "log"), tmp_path / "parts")
    found = [pl.read_parquet(tmp_path / "parts" / f"{part}.parquet") for part in ("train", "valid", "test")]
    assert [one.height for one in found] == [802, 100, 101]
    assert pl.concat(found).equals(read(tmp_path / "log"))


def test_recipes_are_whole_and_take_changes(tmp_path):
    write_log(tmp_path, 50)
    log = about(tmp_path)
    for name in MODELS:
        path = write_recipe(
            tmp_path / "recipe.toml", log, name, training={"epochs": 3}, model_settings={"embedding_dim": 4}
        )
        recipe = load_recipe(str(path))
        assert (recipe.model.embedding_dim, recipe.training.epochs, recipe.data.path) == (4, 3, log["path"])
        assert len(recipe.schema.fields) == 39
        assert recipe.defaults == "data"
        ours = fuxi.SETTINGS.get(name, {"model": {}, "training": {}})
        also = write_recipe(
            tmp_path / "recipe.toml", log, name, training=ours["training"], model_settings=ours["model"]
        )
        facts = Facts(layout=Layout.of_sizes([50, 20], ["user", "item"]), rows=1_000)
        for one in (recipe, load_recipe(str(also))):
            found = resolve(one.model, one.training, facts)
            run_optimizer(build_network(found.model, facts.layout, 0, labels=1), found.training)  # settings that agree
        recipe = load_recipe(str(write_recipe(tmp_path / "recipe.toml", log, name, stated=False)))
        assert given(recipe.model) | given(recipe.training) == set()  # as for a user who states nothing


def test_space_that_another_program_takes_is_gone_in_the_midst(tmp_path):
    if subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("mount namespaces are not permitted here")
    held, place = tmp_path / "held", tmp_path / "disk"
    held.mkdir()
    code = (
        f"import pathlib, shutil, time; folder = pathlib.Path({str(place)!r}); "
        "assert shutil.disk_usage(folder).free > 3 * 10**6; "
        "[((folder / str(k)).write_bytes(bytes(10**5)), time.sleep(0.05)) for k in range(20)]"
    )
    found = on_small_disk(place, 300_000, held, [sys.executable, "-c", code], taken=Taken(room=4 * 10**6))
    assert found["code"] == 1
    assert "No space left" in found["lines"][-1]
    assert {"0", "1"} <= set(found["after"]) < {str(k) for k in range(20)}
    phase = 'import sys; print(\'{"phase": "first"}\', file=sys.stderr, flush=True); time.sleep(1); '
    said = code.replace("[((folder", f"{phase}[((folder")
    taken = Taken(room=4 * 10**6, after="first", again=True)
    found = on_small_disk(place, 300_000, held, [sys.executable, "-c", said], taken=taken)
    assert found["code"] == 1
    assert found["after"] == {"0": sha256(b"").hexdigest()}
    assert found["again"]["code"] == 0
    assert found["again"]["after"] == {str(k): sha256(bytes(10**5)).hexdigest() for k in range(20)}


def test_what_a_second_attempt_must_have_done():
    whole = {"cache/a/entry.json": "1", "cache/a/rows": "2", "cache/b": "3"}
    good = {"code": 0, "lines": [], "after": whole | {"cache/a/entry.json": "9"}}
    assert wrong_again(good, whole) == []
    assert wrong_again(good | {"code": 2, "lines": ['{"phase": "x"}', "it failed"]}, whole) == ["status 2: it failed"]
    other = " is not as in a run that was not disturbed"
    assert wrong_again(good | {"after": whole | {"cache/b": "4", "c": "5"}}, whole) == [f"cache/b{other}", f"c{other}"]

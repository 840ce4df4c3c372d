"""The generated log of `benchmarks.large`, its watch over memory, and its recipes."""

import json
import sys
import time

import numpy as np
import polars as pl
import pytest
from benchmarks.large.__main__ import main
from benchmarks.large.log import BLOCK, CATEGORIES, NUMBERS, Log, about, write_log
from benchmarks.large.run import MODELS, watched, write_recipe
from sklearn.metrics import roc_auc_score

from fieldwise.config import given
from fieldwise.runs.recipe import load_recipe

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
print("ready", file=sys.stderr, flush=True)
time.sleep(60)
"""


def test_memory_counts_a_process_and_what_it_started():
    inner = [sys.executable, "-c", HOLDS.format(more=""), "30"]
    more = f"import subprocess\nchild = subprocess.Popen({inner!r}, stdout=subprocess.PIPE)\nchild.stdout.readline()"
    outer = [sys.executable, "-c", HOLDS.format(more=more), "50"]
    ready = []

    def settled(seconds, lines):
        if lines and not ready:
            ready.append(seconds)
        return bool(ready) and seconds > ready[0] + 0.5

    done = watched(outer, stop=settled)
    assert done.code == -9
    assert 80 * MB < done.peak() < 80 * MB + 2 * 15 * MB  # an interpreter takes about 6 MB


def test_a_watched_command_is_told_line_by_line():
    code = "import sys, time; print('a', file=sys.stderr, flush=True); time.sleep(.4); print('o'); sys.exit('b')"
    done = watched([sys.executable, "-c", code])
    assert (done.code, done.out) == (1, "o\n")
    assert [line for _, line in done.lines] == ["a", "b"]
    assert done.lines[1][0] - done.lines[0][0] > 0.3
    assert done.peak() > MB
    with pytest.raises(SystemExit, match="status 1"):
        done.checked()


def test_what_is_killed_is_over_at_once():
    began = time.perf_counter()
    done = watched([sys.executable, "-c", "import time; time.sleep(60)"], stop=lambda seconds, _: seconds > 0.2)
    assert done.code == -9
    assert time.perf_counter() - began < 30


@pytest.mark.slow
def test_a_small_log_is_trained_on_and_measured(tmp_path, capsys):
    log, out = tmp_path / "log", tmp_path / "results.json"
    assert main(["make", "--rows", "20000", "--out", str(log)]) == 0
    words = ["run", "--data", str(log), "--work", str(tmp_path), "--json", str(out)]
    assert main([*words, "--set", "training.batch_size=128"]) == 0  # 125 steps, not 4
    found = json.loads(out.read_text())
    assert found["auc"]["test"] > 0.6
    assert found["log"]["rows"] == 20_000
    assert found["bytes"]["peak anonymous"] > 50 * MB
    assert "peak anonymous" in capsys.readouterr().out


@pytest.mark.slow
def test_killed_trainings_end_as_one_that_nobody_killed(tmp_path, capsys):
    write_log(tmp_path / "log", 20_000)
    words = ["--data", str(tmp_path / "log"), "--work", str(tmp_path), "--json", str(tmp_path / "results.jsonl")]
    for what in ("preparation", "training"):
        assert main(["kills", *words, "--what", what, "--times", "1", "--threads", "1"]) == 0
    assert capsys.readouterr().out.count("of all equal") == 2


def test_recipes_state_a_model_and_nothing_else(tmp_path):
    write_log(tmp_path, 50)
    log = about(tmp_path)
    for name in MODELS:
        recipe = load_recipe(str(write_recipe(tmp_path / "recipe.toml", log, name, {"epochs": 3}, "1GB")))
        assert (recipe.training.epochs, recipe.data.path, recipe.defaults) == (3, log["path"], "data")
        assert len(recipe.schema.fields) == 39
        assert (given(recipe.model), given(recipe.training)) == (set(), {"epochs"})  # as for a user who states nothing

"""The generated log of `benchmarks.large`, its watch over memory, and its recipes."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from benchmarks.criteo import SIZES, TIME, blocks
from benchmarks.large import MODELS, Watched, anonymous, main, watched, write_recipe
from benchmarks.log import CATEGORIES
from sklearn.metrics import roc_auc_score

from fieldwise import load_recipe
from fieldwise.config import given

ROWS = 30_000
MB = 2**20


@pytest.fixture(scope="module")
def rows():
    return pl.concat(blocks(ROWS, 3))


def test_a_shorter_log_is_the_beginning_of_a_longer_one_in_any_number_of_files(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("benchmarks.criteo.BLOCK", 1000)
    first, second = (block.drop(TIME) for block in blocks(2000))
    assert [name for name in first.columns if first[name].equals(second[name])] == []
    sizes, result = {"long": (1300, 2), "short": (1100, 3), "one": (1100, 1)}, {}
    for name, (rows, files) in sizes.items():
        main(
            [
                "make",
                "--rows",
                str(rows),
                "--files",
                str(files),
                "--seed",
                "3",
                "--out",
                str(tmp_path / name),
            ]
        )
        parts = sorted((tmp_path / name).iterdir())
        assert len(parts) == files
        result[name] = pl.concat([pl.read_parquet(path) for path in parts])
    assert result["long"].height == 1300
    assert result["long"].head(1100).equals(result["short"])
    assert result["one"].equals(result["short"])


def test_values_of_a_category_are_distinct_and_fall_as_one_by_rank(rows):
    for name, size in list(zip(CATEGORIES, SIZES, strict=True))[:9]:
        counts = np.sort(rows[name].drop_nulls().value_counts()["count"].to_numpy())[::-1]
        assert len(counts) == size, name
        # Rank r of V is drawn where log(r) <= u log(V + 1) < log(r + 1).
        expected = np.log1p(1 / np.arange(1, 4)) / np.log(size + 1)
        np.testing.assert_allclose(counts[:3] / counts.sum(), expected, atol=0.015)
    assert rows["C26"].n_unique() > 5000


def test_the_label_follows_the_rows(rows):
    """The mean label of a value in one half of the rows ranks the other half's rows."""
    half = ROWS // 2
    for name in ("C4", "C7"):
        means = rows[:half].group_by(name).agg(pl.mean("label").alias("mean"))
        score = (
            rows[half:]
            .join(means, on=name, how="left", maintain_order="left")["mean"]
            .fill_null(0.3)
        )
        assert roc_auc_score(rows[half:]["label"], score) > 0.55


HOLDS = """
import sys
held = bytearray(int(sys.argv[1]) << 20)
held[::4096] = b"x" * len(held[::4096])
{more}
print("ready", flush=True)
sys.stdin.read()
"""


def test_memory_counts_a_process_and_what_it_started():
    inner = [sys.executable, "-c", HOLDS.format(more=""), "30"]
    more = f"import subprocess\nchild = subprocess.Popen({inner!r}, stdout=subprocess.PIPE)\nchild.stdout.readline()"
    outer = [sys.executable, "-c", HOLDS.format(more=more), "50"]
    with subprocess.Popen(outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        result = anonymous(process.pid)
        process.communicate()
    assert 80 * MB < result < 80 * MB + 2 * 15 * MB  # an interpreter takes about 6 MB


def test_a_watched_command_has_lines_times_and_peaks_of_memory():
    code = "import sys, time; print('a', file=sys.stderr, flush=True); print('o'); time.sleep(1); sys.exit('b')"
    done = watched([sys.executable, "-c", code])
    assert (done.code, done.out) == (1, "o\n")
    (first, a), (second, b) = done.lines
    assert (a, b) == ("a", "b")
    assert 0 < first <= second <= done.seconds
    assert done.memory
    with pytest.raises(SystemExit, match="status 1"):
        done.checked()
    done = Watched(0, "", [], 3.0, 0.1, [(0.0, 5), (1.0, 9), (2.0, 7)])
    assert (done.peak(), done.peak(stop=1.0), done.peak(1.5), done.peak(5.0)) == (9, 5, 7, 0)


@pytest.mark.slow
def test_a_small_log_is_trained_on_and_measured(tmp_path, capsys):
    log, out = tmp_path / "log", tmp_path / "results.json"
    assert main(["make", "--rows", "20000", "--out", str(log)]) == 0
    words = ["run", "--data", str(log), "--work", str(tmp_path), "--json", str(out)]
    assert main([*words, "--set", "training.batch_size=128"]) == 0  # 125 steps, not 4
    result = json.loads(out.read_text())
    assert result["auc"]["test"] > 0.6
    assert result["rows"] == 20_000
    assert result["bytes"]["peak anonymous"] > 50 * MB
    assert "peak anonymous" in capsys.readouterr().out


def test_recipes_state_a_model_and_nothing_else(tmp_path):
    for name in MODELS:
        recipe = load_recipe(str(write_recipe(tmp_path / "recipe.toml", tmp_path, name, "1GB")))
        assert (recipe.data.path, recipe.defaults, len(recipe.schema.fields)) == (
            str(tmp_path),
            "data",
            39,
        )
        # as for a user who states nothing
        assert (given(recipe.model), given(recipe.training)) == (set(), set())

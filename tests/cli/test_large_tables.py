"""Commands on a table that does not fit in `data.memory` give what they give on one that does."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from fieldwise import load_recipe, prepare_recipe
from fieldwise.storage.cache import default_cache

pytest.importorskip("pyarrow")

ROWS = 40_000
# and names of folders, which differ
TIMES = ("seconds", "seconds_per_epoch", "seconds_preparing", "elapsed")
NAMES = (
    "recipe recipe_file base bundle bundles name folder memory out study title runs key id index"
)


@pytest.fixture
def recipes(tmp_path: Path, recipe: Path, log: pl.DataFrame) -> dict[str, Path]:
    """A recipe on many copies of the log, once with memory for all of them."""
    rows = pl.concat([log] * (ROWS // log.height)).with_columns(wide=pl.lit("x" * 400))
    (tmp_path / "log").mkdir()
    for k in range(2):
        rows[k * ROWS // 2 : (k + 1) * ROWS // 2].write_parquet(tmp_path / "log" / f"{k}.parquet")
    text = recipe.read_text().replace(str(tmp_path / "log.csv"), str(tmp_path / "log"))
    text = text.replace("batch_size = 64", "batch_size = 4096")
    results = {name: tmp_path / f"{name}.toml" for name in ("whole", "bounded")}
    results["whole"].write_text(text)
    results["bounded"].write_text(text.replace("[data]", '[data]\nmemory = "64MB"'))
    return results


def without_times(out: str) -> Any:
    """A command's JSON without durations and names."""

    def rest(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: rest(v) for k, v in value.items() if k not in (*TIMES, *NAMES.split())}
        return [rest(one) for one in value] if isinstance(value, list) else value

    return rest(json.loads(out))


@pytest.mark.slow
def test_every_command_gives_what_it_gives_in_memory(subtests, done, recipes):
    assert (
        prepare_recipe(
            load_recipe(recipes["bounded"]), Path(), cache=default_cache()
        ).train.budget.chunk_rows
        is not None
    )
    assert (
        prepare_recipe(
            load_recipe(recipes["whole"]), Path(), cache=default_cache()
        ).train.budget.chunk_rows
        is None
    )
    commands = {
        "train": ("train", "{recipe}", "--out", "{name}"),
        "evaluate": ("evaluate", "{name}"),
        "calibrate": ("evaluate", "{name}", "--calibrate", "platt", "--out", "{name}-calibrated"),
        "warm start": ("train", "{recipe}", "--out", "{name}-2", "--set", "warm_start={name}"),
        "explain": ("explain", "{name}", "--data", "log", "--rows", "50"),
        "compare": ("compare", "{recipe}", "--seeds", "2"),
        "tune": ("tune", "{recipe}", "--trials", "2"),
    }
    for case, words in commands.items():
        with subtests.test(case=case):
            results = {}
            for name, recipe in recipes.items():
                given = [word.format(name=name, recipe=recipe) for word in words]
                out = done(*given, "--json")[0]
                results[name] = without_times(out)
            assert results["bounded"] == results["whole"]
    with subtests.test(case="report"):
        for name in recipes:
            done("report", name, "--out", f"{name}.html")
    with subtests.test(case="predict"):
        for name in recipes:
            done("predict", name, "--data", "log", "--out", f"{name}.csv")
        assert Path("bounded.csv").read_bytes() == Path("whole.csv").read_bytes()

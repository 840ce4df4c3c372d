"""Commands on a table that does not fit in `data.memory` give what they give on one that does."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cli.conftest import write_recipe
from cli.test_serving import TOWER

from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.recipe import load_recipe
from fieldwise.storage.cache import default_cache

pytest.importorskip("pyarrow")

ROWS = 40_000
TIMES = ("seconds", "seconds_per_epoch", "seconds_preparing", "elapsed")  # and names of folders, which differ
NAMES = "recipe recipe_file base bundle bundles name folder memory out study title runs key id index"


@pytest.fixture
def recipes(tmp_path: Path, recipe: Path, log: pl.DataFrame) -> dict[str, Path]:
    return in_two_memories(tmp_path, recipe, log)


def in_two_memories(tmp_path: Path, recipe: Path, log: pl.DataFrame) -> dict[str, Path]:
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


def told(out: str) -> Any:
    """A command's JSON without durations and names."""

    def rest(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: rest(v) for k, v in value.items() if k not in (*TIMES, *NAMES.split())}
        return [rest(one) for one in value] if isinstance(value, list) else value

    return rest(json.loads(out))


@pytest.mark.slow
def test_every_command_gives_what_it_gives_in_memory(subtests, done, recipes):
    assert prepare_recipe(load_recipe(recipes["bounded"]), Path(), cache=default_cache()).train.bound is not None
    assert prepare_recipe(load_recipe(recipes["whole"]), Path(), cache=default_cache()).train.bound is None
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
                results[name] = told(out)
            assert results["bounded"] == results["whole"]
    with subtests.test(case="report"):
        for name in recipes:
            done("report", name, "--out", f"{name}.html")
    with subtests.test(case="predict"):
        for name in recipes:
            done("predict", name, "--data", "log", "--out", f"{name}.csv")
        assert Path("bounded.csv").read_bytes() == Path("whole.csv").read_bytes()


@pytest.mark.slow
def test_an_index_of_a_tower_is_that_of_one_trained_in_memory(done, tmp_path, recipe, log):
    write_recipe(recipe, **TOWER)
    log.select("item", "tags", "price").unique("item", keep="first", maintain_order=True).write_csv("items.csv")
    results = {}
    for name, own in in_two_memories(tmp_path, recipe, log).items():
        done("train", own, "--out", name, "--json")
        prepared = prepare_recipe(load_recipe(own), Path(), cache=default_cache())  # from the cache
        assert (prepared.train.bound is None) == (name == "whole")
        for form in ("float32", "int8"):
            out = f"{name}-{form}"
            words = "index", name, "--items", "items.csv", "--out", out, "--storage", form, "--json"
            said = done(*words)[0]
            assert json.loads(said)["items"] == json.loads(said)["new"] == 7
            arrays = {path.name: path.read_bytes() for path in Path(out).iterdir() if path.suffix == ".npy"}
            assert arrays
            results[name, form] = arrays, told(said)
    assert results["bounded", "float32"] == results["whole", "float32"]
    assert results["bounded", "int8"] == results["whole", "int8"]
    assert results["bounded", "int8"] != results["bounded", "float32"]

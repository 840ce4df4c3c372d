"""`fieldwise audit`: text, JSON, exit codes, and what a recipe has that is given again."""

import json

import numpy as np
import polars as pl


def table(folder):
    rng = np.random.default_rng(0)
    paid = rng.integers(0, 2, 400)
    frame = pl.DataFrame({"age": rng.integers(20, 60, 400), "refund": 9.5 * paid, "paid": paid})
    frame.write_csv(folder / "orders.csv")
    return folder / "orders.csv"


def test_it_names_the_column_and_fails_if_asked(fieldwise, tmp_path):
    path = table(tmp_path)
    code, out, err = fieldwise("audit", path, "--label", "paid")
    assert code == 0, err
    assert "HIGH predicts-alone: column 'refund'" in out
    assert "look at rows" in out
    code, _, err = fieldwise("audit", path, "--label", "paid", "--fail-on", "high")
    assert code == 2
    assert "--fail-on high allows no such finding, found 1" in err


def test_json_is_one_object(fieldwise, tmp_path):
    code, out, _ = fieldwise("audit", table(tmp_path), "--label", "paid", "--json")
    assert code == 0
    assert json.loads(out)["findings"][0]["column"] == "refund"


def test_what_a_recipe_has_is_not_given_again(fieldwise):
    code, _, err = fieldwise("audit", "simulated/lr", "--label", "liked")
    assert code == 2
    assert "--label is for a table, found the recipe simulated/lr" in err
    assert fieldwise("audit", "simulated/lr", "--set", "data.rows=2000")[0] == 0


def test_settings_are_for_a_recipe(fieldwise, tmp_path):
    code, _, err = fieldwise("audit", table(tmp_path), "--set", "seed=1")
    assert code == 2
    assert "--set changes a recipe" in err

"""`fieldwise compare`: what a person and a program see."""

import json

import pytest


@pytest.fixture
def lr(recipe):
    other = recipe.with_name("plain.toml")
    other.write_text(recipe.read_text().replace('name = "fm"\nembedding_dim = 4\n', 'name = "lr"\n'))
    return other


def test_a_table_for_people(fieldwise, recipe, lr):
    code, out, err = fieldwise("compare", lr, recipe, "--seeds", 2, "--no-cache", "--quiet")
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if "base line" in line]
    assert "80 test rows, mean of 2 seeds [95 % interval]" in out
    assert [line.split()[0] for line in lines] == ["plain"]
    assert all(word in out for word in ("AUC", "logloss", "DeLong", "parameters", "s/epoch"))


def test_json_and_no_second_run(fieldwise, recipe, lr):
    ask = ("compare", lr, recipe, "--seeds", 2, "--json", "--base", recipe, "--metric", "logloss")
    code, out, err = fieldwise(*ask)
    assert code == 0
    assert f"{recipe} seed 1: done, 4 of 4 runs" in err
    (board,) = json.loads(out)["boards"]
    assert (board["metric"], board["base"], board["rows"]) == ("logloss", str(recipe), 80)
    values = [line["metrics"]["logloss"]["value"] for line in board["lines"]]
    assert values == sorted(values)
    code, again, err = fieldwise(*ask)
    assert "epoch" not in err  # nothing is trained
    assert json.loads(again) == json.loads(out)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--base", "none.toml"), "base line must be one of the recipes compared"),
        (("--metric", "rmse"), "metric must be one of auc, logloss"),
        (("--plot", "board.txt"), "a plot is a file of .png, .svg, .pdf, found 'board.txt'"),
        (("--set", "training.epoch=3"), "has no setting 'epoch': did you mean 'epochs'?"),
    ],
)
def test_errors_are_one_sentence(fieldwise, recipe, options, sentence):
    code, _, err = fieldwise("compare", recipe, "--seeds", 1, "--quiet", "--no-cache", *options)
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_the_same_recipe_twice(fieldwise, recipe):
    code, _, err = fieldwise("compare", recipe, recipe)
    assert code == 2
    assert "twice" in err

"""`fieldwise compare`: what a person and a program see."""

import json

import polars as pl
import pytest
from cli.test_bad_input import refused

from fieldwise.evaluation.lists import LIST_MEASURES


@pytest.fixture
def lr(recipe):
    other = recipe.with_name("plain.toml")
    other.write_text(
        recipe.read_text().replace('name = "fm"\nembedding_dim = 4\n', 'name = "lr"\n')
    )
    return other


def test_a_table_for_people(fieldwise, recipe, lr):
    code, out, err = fieldwise("compare", lr, recipe, "--seeds", 2, "--quiet")
    assert (code, err) == (0, "")
    lines = [line for line in out.splitlines() if "baseline" in line]
    assert "80 test rows, mean of 2 seeds [95 % interval]" in out
    assert [line.split()[0] for line in lines] == ["plain"]
    assert all(word in out for word in ("AUC", "logloss", "DeLong", "parameters", "s/epoch"))


def test_json_and_no_second_run(fieldwise, done, recipe, lr):
    ask = ("compare", recipe, lr, "--seeds", 2, "--json", "--metric", "logloss")
    out, err = done(*ask)
    assert f"{lr} seed 1: done, 4 of 4 runs" in err
    (board,) = json.loads(out)["boards"]
    assert (board["metric"], board["base"], board["rows"]) == ("logloss", str(recipe), 80)
    values = [line["metrics"]["logloss"]["value"] for line in board["lines"]]
    assert values == sorted(values)
    again, err = done(*ask)
    assert "epoch" not in err  # nothing is trained
    assert json.loads(again) == json.loads(out)


def test_settings_of_all_recipes_are_printed(fieldwise, recipe):
    ask = ("compare", recipe, "--seeds", 1, "--quiet", "--set", "training.epochs=1")
    assert "All recipes ran with training.epochs=1." in fieldwise(*ask)[1]
    result = json.loads(fieldwise(*ask, "--json")[1])
    assert result["settings"] == ["training.epochs=1"]
    (line,) = result["boards"][0]["lines"]
    assert "p" not in line["metrics"]["auc"]


def test_ctrl_c_names_the_folder_of_finished_runs(fieldwise, recipe, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fieldwise.runs.recorded_runs.recorded_runs", stop)
    code, _, err = fieldwise("compare", recipe, "--store", "kept")
    assert code == 130
    assert "finished runs are kept in kept" in err


def test_rankings_stand_below_the_figures(fieldwise, recipe, lr):
    ask = ("compare", recipe, lr, "--seeds", 1, "--quiet", "--ranking", "--keep-seen", "--k", 3)
    code, out, err = fieldwise(*ask)
    assert (code, err) == (0, "")
    assert (
        "ranking by user and item: 9 users, all 7 items; mean of 1 seed [95 % interval] for other users"
        in out
    )
    for word in ("HR@3", "NDCG@3", "recall@3", "NDCG@3 minus mine's", "popularity", "lists of 3"):
        assert word in out
    assert "shared by two users" in out
    (board,) = json.loads(fieldwise(*ask, "--json")[1])["boards"]
    (ranking,) = board["rankings"]
    assert {line["recipe"] for line in ranking["lines"]} == {str(recipe), str(lr), "popularity"}
    assert (ranking["k"], ranking["users"], ranking["items"]) == (3, 9, 7)
    assert set(ranking["lines"][0]["lists"]) == set(LIST_MEASURES)
    drawn = fieldwise(*ask, "--candidates", 2, "--users", 5)[1]
    assert "5 of 9 users (seed 0), 2 items sampled of 7 (seed 0), plus those they liked" in drawn
    assert "Metrics on sampled candidates are higher" in drawn
    assert "shared by two users" not in drawn
    assert "How lists differ" not in out + drawn


def test_wrong_options_are_one_sentence(subtests, fieldwise, recipe, log):
    for options, sentence in [
        (("--metric", "rmse"), "metric must be one of auc, logloss"),
        (("--set", "training.epoch=3"), "a recipe has no setting 'training.epoch': did"),
        (
            ("--k", 5),
            "--k is an option of --ranking, which is not given: add --ranking, or omit --k",
        ),
        (("--keep-seen",), "--keep-seen is an option of --ranking"),
        (
            ("--ranking", "--candidates", "some"),
            "must be `all` or the number of sampled items, found 'some'",
        ),
        (("--ranking", "--candidates", "0"), "candidates must be at least 1, found 0"),
    ]:
        with subtests.test(options=options, sentence=sentence):
            refused(fieldwise("compare", recipe, "--seeds", 1, "--quiet", *options), sentence)
    log.with_columns(user=pl.lit("u0"), item=pl.lit("i0")).write_csv("log.csv")
    refused(
        fieldwise("compare", recipe, "--ranking"), "were liked before: --keep-seen ranks them too"
    )
    recipe.write_text(
        recipe.read_text().replace('column = "click" }', 'column = "click", task = "regression" }')
    )
    refused(fieldwise("compare", recipe, "--ranking"), "a rule (positive_above), or omit --ranking")


def test_a_bundle_and_its_recipe_have_equal_ranking_metrics(fieldwise, recipe, bundle):
    ask = ("--ranking", "--keep-seen", "--k", 3)
    (board,) = json.loads(fieldwise("compare", recipe, "--seeds", 1, "-q", "--json", *ask)[1])[
        "boards"
    ]
    line = next(one for one in board["rankings"][0]["lines"] if one["recipe"] != "popularity")
    result = json.loads(fieldwise("evaluate", bundle, "--json", *ask)[1])["ranking"]
    own = next(one for one in result["lines"] if one["recipe"] == "b")
    assert own["metrics"] == line["metrics"]
    assert "popularity" in fieldwise("evaluate", bundle, *ask)[1]
    refused(
        fieldwise("evaluate", bundle, "--data", "log.csv", "--ranking"),
        "--ranking excludes items that users liked in training rows, which --data does not have",
    )


def test_the_data_folder_of_every_recipe_must_exist(fieldwise, recipe, monkeypatch):
    monkeypatch.setenv("FIELDWISE_DATA", "gone")
    ask = ("compare", "adult/afm", recipe, "--seeds", 1, "--quiet")
    refused(fieldwise(*ask), "the data folder must exist: gone does not; check FIELDWISE_DATA")

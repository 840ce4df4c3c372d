"""`fieldwise explain`: one row, a set, and what is refused."""

import json
import re

import numpy as np
import polars as pl
import pytest
from chunks_lab import prepare
from cli.test_bad_input import refused, with_cell

from fieldwise import Bundle
from fieldwise.cli.explain import print_attention
from fieldwise.explain import effects
from fieldwise.runs.recipe_files import load_recipe


@pytest.fixture
def table(tmp_path, log):
    log.write_csv(tmp_path / "rows.csv")
    return tmp_path / "rows.csv"


def test_a_row_as_json(as_json, bundle, log, table):
    result = as_json("explain", bundle, "--data", table, "--row", 3)
    score = Bundle.load(bundle).score(log)[3]
    assert result["score"] == pytest.approx(score, rel=1e-6)
    assert result["base"] + sum(f["contribution"] for f in result["fields"]) == pytest.approx(
        score, abs=1e-5
    )
    values = {f["field"]: f["value"] for f in result["fields"]}
    row = log.row(3, named=True)
    tags = ", ".join(row["tags"].split("|"))
    assert values == {
        "user": row["user"],
        "item": row["item"],
        "tags": tags,
        "price": str(row["price"]),
    }
    assert (result["row"], result["method"], len(result["pairs"])) == (3, "terms", 6)


def test_without_data_the_test_rows_are_explained(as_json, bundle, table, monkeypatch, tmp_path):
    """As `evaluate` measures them: the rows of the split, scored as the bundle scores them in the file."""
    result = as_json("explain", bundle, "--row", 0)
    assert result["data"] == "the recipe's test rows"
    expected = pl.read_csv(bundle.parent / "log.csv")  # split as the recipe says
    saved = Bundle.load(bundle)
    recipe = load_recipe(bundle.parent / "mine.toml")
    prepared = prepare(expected, saved.schema, split=recipe.split, seed=recipe.seed)
    assert result["score"] == pytest.approx(saved.score(prepared.test.frame)[0], rel=1e-6)


def test_why_an_item_is_not_in_the_list_of_recommend(fieldwise, as_json, done, bundle, table):
    """Every item that the command does not recommend, by the rows of a table and by the recipe's own."""
    ask = ("--user", "u3", "--k", 2, "--include-seen")
    done("recommend", bundle, "--log", table, *ask, "--out", "top.csv")
    listed = pl.read_csv("top.csv")["item"].to_list()
    places = {}
    for item in (f"i{k}" for k in range(7)):
        answer = as_json("explain", bundle, "--why-not", item, "--data", table, *ask)
        places[item] = answer["place"]
        assert answer["reason"] == ("listed" if item in listed else "score")
    assert sorted(places.values()) == [1, 2, 3, 4, 5, 6, 7]
    assert [places[item] for item in listed] == [1, 2]
    (third,) = [item for item, place in places.items() if place == 3]
    out, _ = done("explain", bundle, "--why-not", third, "--user", "u3", "--k", 2, "--include-seen")
    words = f"'{third}' is not in the list: it is at place 3 by score, behind the list's last item by score"
    assert out.startswith(words)
    assert re.search(r"field +value +of the last item +difference", out)
    pinned = done("explain", bundle, "--why-not", listed[1], *ask, "--pin", f"1={third}")[0]
    assert "it is at place 2 by score, and pinned items have the places before it" in pinned
    for options, sentence in [
        (("--user", "u3"), "--user is an option of --why-not: give --why-not ITEM"),
        (("--exclude-seen",), "--exclude-seen is an option of --why-not"),
        (("--why-not", "i1"), "--why-not is about the list of a user: give --user ID"),
        (("--why-not", "i1", *ask, "--tower", "t"), "needs --tower and --index: give both"),
        (("--why-not", "i1", "--user", "new"), "the model knows, found 'new', whose list is by"),
        (("--why-not", "i9", *ask), "an item must be one of the catalogue's 7, found 'i9'"),
        (("--why-not", "i1", *ask, "--limit", "tags"), "--limit must be COLUMN=N, each column"),
        (("--why-not", "i1", *ask, "--pin", "x=i1"), "--pin must be PLACE=ITEM, each place once"),
    ]:
        refused(fieldwise("explain", bundle, *options), sentence)


def test_a_row_to_read(fieldwise, bundle, table):
    code, out, err = fieldwise("explain", bundle, "--data", table, "--row", 0)
    assert (code, err.startswith("next, ")) == (0, True)
    first, _, second = out.splitlines()[:3]
    assert re.fullmatch(r"click: [\d.]+ %(, (more|less) than usual)?, mainly because .+", first)
    assert second.startswith("probability 0.")
    assert "(exact terms)" in out
    assert "pairs, the first 6 of 6" in out
    assert out.count(" × ") == 12  # six pairs, by names and by values


def test_directions_are_the_effects_of_python(fieldwise, done, bundle, table):
    expected = effects(Bundle.load(bundle))
    out = done("explain", bundle, "--data", table, "--row", 0)[0]
    lines = out.split("directions, the mean prediction")[1].splitlines()[2:]
    assert [line.split()[0] for line in lines[: len(expected)]] == [
        one["field"] for one in expected
    ]
    result = json.loads(fieldwise("explain", bundle, "--data", table, "--rows", 50, "--json")[1])[
        "effects"
    ]
    assert result == expected


def test_uniform_attention_is_a_sentence(capsys):
    print_attention(np.full((2, 1, 6, 6), 0.1677), list("abcdef"))
    text = capsys.readouterr().out
    assert text.strip().startswith(
        "attention is uniform: all weights are within 10 % of the equal ones, 0.1667"
    )


def test_a_set_of_rows(done, bundle, table):
    out, err = done("explain", bundle, "--data", table, "--rows", 50, "--faithfulness")
    assert err.startswith("50 of 400 rows sampled (use --rows for more)\nnext, ")
    assert out.startswith("click: 50 rows, mean score ")
    assert "user × item" in out
    order = [
        line.split()[0] for line in out.split("faithfulness:")[1].splitlines()[2:] if "0." in line
    ]
    assert sorted(order) == ["occlusion", "random", "terms"]
    assert order[-1] == "random"
    result = json.loads(done("explain", bundle, "--data", table, "--faithfulness", "--json")[0])
    assert (result["rows"], len(result["pairs"]), "planted_pairs" in result) == (400, 6, False)
    assert {c["order"] for c in result["faithfulness"]} == {"terms", "occlusion", "random"}
    assert all(len(c["deletion"]) == len(c["insertion"]) == 5 for c in result["faithfulness"])


def test_other_models_have_their_own_parts(done, recipe, table):
    text = recipe.read_text()
    for model, settings, words in (
        ("autoint", "layers = 1", ("integrated gradients", "attention is uniform: all weights")),
        (
            "inttower",
            "hidden = [4]\nuser_heads = 2\nitem_heads = 2\nhead_dim = 2\ncir_weight = 0.0",
            ("levels", "gates"),
        ),
    ):
        recipe.write_text(text.replace('name = "fm"', f'name = "{model}"\n{settings}'))
        done("train", recipe, "--out", model, "--quiet", "--json")
        for which in (("--row", 1), ("--rows", 20)):
            out = done("explain", model, "--data", table, *which)[0]
            assert all(word in out for word in words)


def test_the_simulated_logs_pairs_are_counted(fieldwise, done, tmp_path):
    done("simulate", "--rows", 600, "--out", "log.csv")
    short = "--set", "data.rows=2000", "--set", "training.epochs=1"
    done("train", "simulated/fm", "--out", "b", "--quiet", "--json", *short)
    out = done("explain", "b", "--data", "log.csv", "--rows", 20, "--json")[0]
    assert json.loads(out)["planted_pairs"]["of"] == 5
    assert (
        "planted pairs among the first 5: "
        in fieldwise("explain", "b", "--data", "log.csv", "--rows", 20)[1]
    )


def test_what_is_refused(fieldwise, bundle, log, table, tmp_path):
    explain = "explain", bundle, "--data", table
    refused(
        fieldwise(*explain, "--row", 400),
        "--row counts from 0",
        "there are 400 rows in",
        "found 400",
    )
    refused(fieldwise(*explain, "--row", 1, "--faithfulness"), "omit --row")
    refused(fieldwise(*explain, "--method", "occlussion"), "did you mean 'occlusion'")
    refused(fieldwise(*explain, "--method", "integrated_gradients"), "found FM: use 'terms'")
    refused(fieldwise(*explain, "--label", "clik"), "did you mean 'click'")
    refused(fieldwise(*explain, "--background", "absent.csv"), "absent.csv")
    refused(fieldwise("explain", "nothing", "--data", table), "nothing is not a bundle")
    log.head(0).write_csv(tmp_path / "none.csv")
    refused(fieldwise("explain", bundle, "--data", "none.csv"), "there are none in none.csv")
    log.drop("price").write_csv(tmp_path / "less.csv")
    refused(fieldwise("explain", bundle, "--data", "less.csv"), "'price'", "is missing")
    with_cell(log, "price", 399, "cheap").write_csv(tmp_path / "bad.csv")
    refused(fieldwise("explain", bundle, "--data", "bad.csv", "--row", 399), "'cheap'", "row 399")
    refused(fieldwise("explain", bundle, "--data", "bad.csv"), "'cheap'", "row 399")

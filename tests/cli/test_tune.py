"""`fieldwise tune`: what a person and a program see."""

import json
from pathlib import Path

import pytest
from cli.test_bad_input import refused

from fieldwise import load_recipe


@pytest.fixture
def tuned(recipe):
    recipe.write_text(
        recipe.read_text() + '\n[search]\n"model.embedding_dim" = { choices = [2, 4] }\n'
    )
    return recipe


def test_a_search_for_people(fieldwise, tuned):
    code, out, err = fieldwise("tune", tuned, "--trials", 3, "--seeds", 2, "--quiet")
    assert (code, err) == (0, "")
    assert "best logloss on validation rows" in out
    assert "This study evaluated only these settings on the test rows, after the search." in out
    assert all(
        path in out
        for path in (
            "training.learning_rate",
            "training.l2.embedding.weight",
            "model.embedding_dim",
        )
    )
    assert "recipe: runs/tune/mine-" in out
    result = json.loads(
        fieldwise("tune", tuned, "--trials", 3, "--seeds", 2, "--quiet", "--json")[1]
    )
    assert sum(result["trials"].values()) == 3
    assert (
        load_recipe(result["recipe_file"]).model.embedding_dim
        == result["values"]["model.embedding_dim"]
    )
    assert [run["seed"] for run in result["runs"]] == [0, 1]


def test_a_search_that_goes_on_after_its_test_evaluation_says_so(fieldwise, tuned):
    ask = ("tune", tuned, "--seeds", 1, "--quiet")
    _, out, err = fieldwise(*ask[:-1], "--trials", 1)
    assert "0 of 1 trial; searching " in err
    assert "on the test rows, after the search." in out
    for _ in range(2):
        code, out, err = fieldwise(*ask, "--trials", 4)
        assert (code, err) == (0, "")
        went_on = (
            "after 1 trial; the search then went on to 4 trials, and they are still the best."
            in out
        )
        assert went_on or "2 settings have been evaluated on them by now" in out
    (record,) = Path("runs/tune").glob("*.test.json")
    err = fieldwise("tune", tuned, "--seeds", 1, "--trials", 2)[2]
    assert "4 trials, more than the 2 requested" in err
    for damage in (
        b"{",
        b"[" * 100_000,
        b"[{}]",
        b'{"a": 1}',
        b"[]",
        b"[1]",
        b'[{"trial": "\xff"}]',
    ):
        record.write_bytes(damage)
        refused(
            fieldwise(*ask, "--trials", 4),
            f"fieldwise: the record of test evaluations {record} is damaged (",
        )


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ('"model.embeding_dim" = { choices = [2] }', "did you mean 'embedding_dim'?"),
        (
            '"model.embedding_dim" = { low = 0, high = 2 }',
            "embedding_dim must be a whole number of at least 1, found 0",
        ),
        (
            '"model.embedding_dim" = 3',
            "must be a table with low and high, or with choices, or false, found 3",
        ),
    ],
)
def test_a_wrong_space_is_one_sentence(fieldwise, recipe, search, sentence):
    recipe.write_text(recipe.read_text() + f"\n[search]\n{search}\n")
    refused(fieldwise("tune", recipe, "--trials", 1, "--quiet"), sentence)

"""Search spaces: what they say, and that every packaged recipe takes all of its own."""

from fnmatch import fnmatchcase

import pytest

from fieldwise import ConfigError, load_recipe, prepare_recipe, recipe_names
from fieldwise.models import NETWORKS
from fieldwise.models.build import build_network
from fieldwise.runs.bounds import OneOf, Range, parse_space
from fieldwise.runs.search_space import check_space, default_space, search_space
from fieldwise.runs.setting_paths import with_values


def test_paths_are_quoted_or_nested():
    nested = {
        "training": {"l2": {"embedding.weight": {"low": 0, "high": 1}}},
        "model": {"heads": {"choices": [1, 2]}},
    }
    quoted = {
        "training.l2.embedding.weight": {"low": 0, "high": 1},
        "model.heads": {"choices": [1, 2]},
    }
    assert parse_space(nested, "search") == parse_space(quoted, "search")
    assert parse_space(quoted, "search")["model.heads"] == OneOf(choices=(1, 2))


def test_invalid_ranges_are_refused(subtests):
    for table, sentence in [
        (
            {"a": 3},
            "search.a must be a table with low and high, or with choices, or false, found 3",
        ),
        ({"a": {"low": 2, "high": 1}}, "low must not exceed high, found 2 and 1"),
        ({"a": {"low": 0, "high": 1, "log": True}}, "lies above 0"),
        ({"a": {"low": 1, "high": 2, "log": True, "step": 1}}, "log = true or a step"),
        ({"a": {"low": 1, "hihg": 2}}, "has no setting 'hihg': did you mean 'high'?"),
        ({"a": {"choices": []}}, "at least one value"),
        (
            {"a": {"low": 1, "high": 3, "step": 0.5}},
            "the step of a range of whole numbers is one, found 0.5",
        ),
        ({"a": {"low": 1, "high": 3, "step": 4}}, "at most high - low, found 4"),
    ]:
        with subtests.test(table=table, sentence=sentence):
            with pytest.raises(ConfigError) as e:
                parse_space(table, "search")
            assert sentence in str(e.value)


def test_values_reach_their_places():
    recipe = load_recipe("frappe/afm")
    changed = with_values(
        recipe,
        {
            "training.learning_rate": 0.5,
            "training.l2.embedding.weight": 0.25,
            "model.attention_dim": 8,
        },
    )
    assert (changed.training.learning_rate, changed.model.attention_dim) == (0.5, 8)
    assert changed.training.l2 == {"embedding.weight": 0.25}
    assert with_values(recipe, {}).to_dict() == recipe.to_dict()


def test_paths_that_cannot_be_searched_are_errors(subtests):
    """What a search is judged by stays as it is."""
    judges = ["seed", "data_seed", "split.valid", "training.monitor", "target_encoding.folds"]
    for path, sentence in [
        ("model.attention_dmi", "did you mean 'attention_dim'"),
        ("model.dropout", "dropout must be"),
        *((path, r"may only change model\.\* and training\.\*") for path in judges),
    ]:
        with subtests.test(path=path), pytest.raises(ConfigError, match=sentence):
            check_space(load_recipe("frappe/afm"), {path: Range(low=1, high=2)})


def test_a_recipes_own_space_lies_over_the_models(tmp_path):
    (tmp_path / "own.toml").write_text(
        'extends = "simulated/afm"\n[search]\n"model.dropout" = false\n"model.attention_dim" = { choices = [4] }\n'
    )
    space = search_space(load_recipe(tmp_path / "own.toml"))
    assert space["model.attention_dim"] == OneOf(choices=(4,))
    assert space["training.learning_rate"] == default_space("afm")["training.learning_rate"]
    assert "model.dropout" not in space


SIMULATED = [name for name in recipe_names() if name.startswith("simulated/")]


@pytest.mark.parametrize("names", [SIMULATED, pytest.param(recipe_names(), marks=pytest.mark.slow)])
def test_packaged_recipes_have_a_space_that_they_take(names):
    """Those of the simulated log, one of each model; slow: all."""
    for name in names:
        recipe = load_recipe(name)
        check_space(recipe, search_space(recipe))


def test_every_l2_of_a_space_names_parameters_of_its_model(tmp_path):
    layouts, without = {}, set()
    for name in NETWORKS:
        recipe = load_recipe(f"simulated/{name.replace('+', '-plus')}", ["data.rows=3000"])
        assert type(recipe.model) is NETWORKS[name]
        schema = recipe.schema.to_toml()
        if schema not in layouts:
            layouts[schema] = prepare_recipe(recipe, tmp_path).encoder.layout
        parameters = [
            n for n, _ in build_network(recipe.model, layouts[schema], 0).named_parameters()
        ]
        patterns = [
            p.removeprefix("training.l2.")
            for p in search_space(recipe)
            if p.startswith("training.l2.")
        ]
        if not patterns:
            without.add(name)
        for pattern in patterns:
            assert any(fnmatchcase(p, pattern) for p in parameters), (name, pattern, parameters)
    assert without == set(), "models without an L2 to search"

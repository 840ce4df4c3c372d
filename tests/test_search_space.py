"""Search spaces: what they say, and that every packaged recipe takes all of its own."""

from fnmatch import fnmatchcase

import pytest

from fieldwise.errors import ConfigError
from fieldwise.models import MODELS
from fieldwise.models.build import build_network
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.recipe import (
    Choices,
    Range,
    check_space,
    default_space,
    load_recipe,
    parse_space,
    recipe_names,
    search_space,
    with_values,
)


def test_paths_are_quoted_or_nested():
    nested = {"training": {"l2": {"embedding.weight": {"low": 0, "high": 1}}}, "model": {"heads": {"choices": [1, 2]}}}
    quoted = {"training.l2.embedding.weight": {"low": 0, "high": 1}, "model.heads": {"choices": [1, 2]}}
    assert parse_space(nested, "search") == parse_space(quoted, "search")
    assert parse_space(quoted, "search")["model.heads"] == Choices(choices=(1, 2))


def test_what_is_no_range_is_refused(subtests):
    for table, sentence in [
        ({"a": 3}, "search.a must be a table with low and high, or with choices, or false, found 3"),
        ({"a": {"low": 2, "high": 1}}, "low must not exceed high, found 2 and 1"),
        ({"a": {"low": 0, "high": 1, "log": True}}, "lies above 0"),
        ({"a": {"low": 1, "high": 2, "log": True, "step": 1}}, "log = true or a step"),
        ({"a": {"low": 1, "hihg": 2}}, "has no setting 'hihg': did you mean 'high'?"),
        ({"a": {"choices": []}}, "at least one value"),
        ({"a": {"low": 1, "high": 3, "step": 0.5}}, "the step of a range of whole numbers is one, found 0.5"),
        ({"a": {"low": 1, "high": 3, "step": 4}}, "at most high - low, found 4"),
    ]:
        with subtests.test(table=table, sentence=sentence):
            with pytest.raises(ConfigError) as e:
                parse_space(table, "search")
            assert sentence in str(e.value)


def test_values_reach_their_places():
    recipe = load_recipe("frappe/afm")
    changed = with_values(
        recipe, {"training.learning_rate": 0.5, "training.l2.embedding.weight": 0.25, "model.attention_dim": 8}
    )
    assert (changed.training.learning_rate, changed.model.attention_dim) == (0.5, 8)
    assert changed.training.l2 == {"embedding.weight": 0.25}
    assert with_values(recipe, {}).to_dict() == recipe.to_dict()


def test_a_path_that_is_none_is_named():
    recipe = load_recipe("frappe/afm")
    with pytest.raises(ConfigError, match="did you mean 'attention_dim'"):
        check_space(recipe, {"model.attention_dmi": Range(low=1, high=2)})
    with pytest.raises(ConfigError, match="dropout must be"):
        check_space(recipe, {"model.dropout": Range(low=0.5, high=1.5)})


def test_a_recipes_own_space_lies_over_the_models(tmp_path):
    (tmp_path / "own.toml").write_text(
        'extends = "simulated/afm"\n[search]\n"model.dropout" = false\n"model.attention_dim" = { choices = [4] }\n'
    )
    space = search_space(load_recipe(tmp_path / "own.toml"))
    assert space["model.attention_dim"] == Choices(choices=(4,))
    assert space["training.learning_rate"] == default_space("afm")["training.learning_rate"]
    assert "model.dropout" not in space


def test_what_a_search_is_judged_by_stays_as_it_is(subtests):
    for path in ["seed", "data_seed", "split.valid", "training.monitor", "target_encoding.folds"]:
        with subtests.test(path=path), pytest.raises(ConfigError, match=r"may only change model\.\* and training\.\*"):
            check_space(load_recipe("simulated/afm"), {path: Range(low=1, high=2)})


def test_every_packaged_recipe_has_a_space_that_it_takes(subtests):
    for data in sorted({name.partition("/")[0] for name in recipe_names()}):
        with subtests.test(data=data):
            for name in recipe_names():
                if name.startswith(f"{data}/"):
                    recipe = load_recipe(name)
                    check_space(recipe, search_space(recipe))


def test_every_l2_of_a_space_names_parameters_of_its_model(tmp_path):
    layouts, without = {}, set()
    for name in MODELS:
        recipe = load_recipe(f"simulated/{name.replace('+', '-plus')}", ["data.rows=3000"])
        assert type(recipe.model) is MODELS[name]
        schema = recipe.schema.to_toml()
        if schema not in layouts:
            layouts[schema] = prepare_recipe(recipe, tmp_path).encoder.layout
        parameters = [n for n, _ in build_network(recipe.model, layouts[schema], 0).named_parameters()]
        patterns = [p.removeprefix("training.l2.") for p in search_space(recipe) if p.startswith("training.l2.")]
        if not patterns:
            without.add(name)
        for pattern in patterns:
            assert any(fnmatchcase(p, pattern) for p in parameters), (name, pattern, parameters)
    assert without == set(), "models without an L2 to search"

"""Settings out of range, and layouts that a model cannot be built on: one sentence that names the setting."""

import math
import re
import types
import typing
from typing import Literal, Union, get_args, get_origin

import pytest
import torch
from parity.lab import make_layout
from parity.reference import FIRST, REFERENCES, layouts_of

from fieldwise import ConfigError, Layout
from fieldwise.models import NETWORKS
from fieldwise.models.serialise import model_from_dict

NEEDS = {name: getattr(reference, "NEEDS", "a field") for name, reference in REFERENCES.items()}
PAIRS, TOWERS = (
    [name for name in NETWORKS if NEEDS[name] == needed] for needed in ("pairs", "towers")
)


def options(hint):
    """The types that a hint allows, None left out."""
    if get_origin(hint) in (Union, types.UnionType):
        return [a for a in get_args(hint) if a is not type(None)]
    return [hint]


def wrong_values(name, hint):
    """Values that no setting of such a type can have."""
    for option in options(hint):
        if option is bool:
            yield from ("no", 1)
        elif option is int:
            yield from (-1, 2.5, "8", True)
        elif option is float:
            yield from (math.nan, -1.0, math.inf, "0.5", True)
            if "dropout" in name:
                yield 1.0
        elif get_origin(option) is tuple and get_args(option)[0] is int:
            yield from ((0,), (8, -1), "88", [8])
        elif get_origin(option) is Literal:
            yield "nonsense"


def refusal(model, name, value):
    """The sentence that refuses a value of a model's setting."""
    try:
        NETWORKS[model](**{name: value})
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{model} takes {name}={value!r}")


def hints(model):
    """The types of a model's settings by name."""
    settings = NETWORKS[model]
    return {
        n: h
        for n, h in typing.get_type_hints(settings).items()
        if n in settings.__dataclass_fields__
    }


def test_a_wrong_setting_is_one_sentence_that_names_it(subtests):
    for model in NETWORKS:
        with subtests.test(model=model):
            wrong = [
                (name, value)
                for name, hint in hints(model).items()
                for value in wrong_values(name, hint)
            ]
            for name, value in wrong:
                said = refusal(model, name, value)
                assert name in said, f"{model}({name}={value!r}): {said}"
                assert "\n" not in said


SENTENCES = [
    (
        "afm",
        {"variant": "keras"},
        "variant must be one of 'paper', 'authors', 'fuxictr', .*, found 'keras'",
    ),
    ("fm", {"embedding_dim": 0}, "embedding_dim must be a whole number of at least 1, found 0"),
    ("fm", {"embedding_std": math.inf}, "embedding_std must be above 0 and finite, found inf"),
    ("afm", {"dropout": 1.0}, "^dropout must be at least 0 and less than 1, found 1.0"),
    ("dat", {"category_weight": -0.5}, "category_weight must be 0 or more and finite, found -0.5"),
    ("dcnv2", {"rank": 0}, "rank must be a whole number of at least 1, found 0"),
    (
        "deepfm",
        {"hidden": ()},
        r"hidden must name the size of at least one layer, as in \(400, 400\), found \(\)",
    ),
    ("dcn", {"hidden": [4]}, r"hidden must be a tuple of sizes, as in \(400, 400\), found \[4\]"),
    (
        "din",
        {"attention_hidden": (8, 0)},
        r"attention_hidden\[1\] must be a whole number of at least 1, found 0",
    ),
    (
        "autoint",
        {"heads": 3},
        "attention_dim must be divisible by heads, found attention_dim 64 and heads 3",
    ),
    (
        "cold",
        {"fields_kept": ()},
        r"fields_kept must name at least one field and none twice, found \(\)",
    ),
    ("dssm", {"output_dim": 1}, "output_dim must be at least 2 for similarity 'cosine', found 1"),
    (
        "finalmlp",
        {"heads": 3},
        "heads must divide the last sizes of both streams, found heads 3 for sizes 64 and 64",
    ),
    (
        "finalmlp",
        {"stream1_gate_fields": "user"},
        "stream1_gate_fields must be a tuple of field names, .* 'user'",
    ),
    (
        "finalmlp",
        {"stream2_gate_fields": ("a", "a")},
        r"stream2_gate_fields must name a field once, found",
    ),
    (
        "finalnet",
        {"block1_hidden": (6, 5)},
        r"block1_hidden\[1\] must be divisible by factors, found 5 and factors",
    ),
    (
        "finalnet",
        {"block1_hidden": (6,), "factors": 3},
        r"block2_hidden\[0\] must be divisible by factors, found 64",
    ),
    ("hofm", {"order": 1}, "order must be a whole number of at least 2, found 1"),
    (
        "inttower",
        {"variant": "authors", "cir_weight": 0.1, "item_heads": 2},
        "as many user heads as item heads, found user_heads 32",
    ),
    (
        "widedeep",
        {"crosses": [("a", "b")]},
        r"crosses must be pairs of names of two fields, .* found \[\('a', 'b'\)\]",
    ),
    (
        "widedeep",
        {"crosses": ("a", "b")},
        "crosses must be pairs of names of two fields, .* found 'a'",
    ),
    (
        "widedeep",
        {"crosses": (("a", "b", "c"),)},
        "crosses must be pairs of names of two fields, .* found",
    ),
    (
        "widedeep",
        {"crosses": (("a", "a"),)},
        r"crosses must be pairs of names of two fields, .* found \('a', 'a'\)",
    ),
    (
        "widedeep",
        {"crosses": (("a", 1),)},
        r"crosses must be pairs of names of two fields, .* found \('a', 1\)",
    ),
    (
        "widedeep",
        {"crosses": (("a", "b"), ("b", "a"))},
        r"name a pair of fields only once, found \('b', 'a'\) again",
    ),
    (
        "xdeepfm",
        {"cin_layers": (8, 7, 5), "variant": "authors"},
        r"cin_layers\[1\] must be even .*, found 7",
    ),
    (
        "xdeepfm",
        {"cin_layers": (7, 5), "variant": "deepctr"},
        r"cin_layers\[0\] must be even .*, found 7",
    ),
]


def test_sentences(subtests):
    for model, settings, message in SENTENCES:
        with (
            subtests.test(model=model, settings=settings),
            pytest.raises(ConfigError, match=message),
        ):
            NETWORKS[model](**settings)


def test_the_recipe_names_the_setting_and_its_model():
    with pytest.raises(ConfigError, match=re.escape("model has no setting 'embeding_dim'")):
        model_from_dict({"name": "autoint+", "embeding_dim": 8})


def small(model):
    return FIRST[model]


def test_no_field_is_refused(subtests):
    for model in NETWORKS:
        name = (
            "HOFM of order 3"
            if model == "hofm"
            else type(small(model)).__name__.replace("Plus", r"\+")
        )
        message = (
            "DIN"
            if model == "din"
            else rf"^{name}('s user tower needs|.* needs at least \d fields?, found none)"
        )
        with subtests.test(model=model), pytest.raises(ConfigError, match=message):
            small(model).build(Layout(()))


def test_one_field_is_enough_for_the_others(subtests, lab):
    for model in [m for m in NETWORKS if NEEDS[m] == "a field"]:
        with subtests.test(model=model):
            layout = make_layout(("id", "user", 4))
            assert torch.isfinite(small(model).build(layout).eval()(lab.batch(layout, 3))).all()


def test_pairs_need_two_fields(subtests):
    for model in PAIRS:
        with (
            subtests.test(model=model),
            pytest.raises(
                ConfigError, match="needs at least 2 fields, found 1: add fields to the schema"
            ),
        ):
            small(model).build(Layout.of_sizes([4]))


def test_a_tower_without_fields_is_named(subtests):
    for roles, side in [
        (["item", "item"], "user"),
        (["user", "context"], "item"),
        (["context", "context"], "item"),
    ]:
        for model in TOWERS:
            with (
                subtests.test(roles=roles, side=side, model=model),
                pytest.raises(
                    ConfigError,
                    match=rf"{side} tower needs a field of role .*{side}.*set fields' roles",
                ),
            ):
                small(model).build(Layout.of_sizes([3, 4], roles))


@pytest.mark.parametrize("kind", ["numeric", "bags"])
def test_numbers_alone_and_bags_alone_are_scored_or_refused(lab, kind):
    """The contract's tests score those that take them."""
    for model, reference in REFERENCES.items():
        if model in ("din", "dat"):  # a history's candidate and a user's id are categories
            with pytest.raises(ConfigError, match="field"):
                small(model).build(lab.layouts[kind])
        else:
            assert kind in layouts_of(reference), model

import copy
import dataclasses
import tomllib
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fieldwise import AFM, ConfigError, SchemaError, TrainingSettings
from fieldwise.config import given as given_settings
from fieldwise.config import parse, to_plain, toml_tables
from fieldwise.layout import Layout
from fieldwise.runs.default_settings import resolve
from fieldwise.runs.training_facts import Facts


@dataclass(frozen=True)
class Circle:
    radius: float
    kind: Literal["circle"] = "circle"


@dataclass(frozen=True)
class Square:
    side: float
    corners: int = 4
    kind: Literal["square"] = "square"

    def __post_init__(self):
        if self.side <= 0:
            raise ConfigError(f"side must be above 0, found {self.side}")


@dataclass(frozen=True)
class Inner:
    steps: int = 1
    verbose: bool = False


@dataclass(frozen=True)
class Outer:
    name: str
    _: KW_ONLY
    rate: float = 0.5
    mode: Literal["fast", "slow"] = "fast"
    inner: Inner = field(default_factory=Inner)
    limit: int | None = None
    shape: Circle | Square | None = None
    shapes: tuple[Circle | Square, ...] = ()
    betas: tuple[float, float] = (0.9, 0.999)
    weights: dict[str, float] = field(default_factory=dict)
    values: tuple[bool | int | float | str, ...] = ()
    count: float | int = 0
    anything: Any = None
    derived: int = field(default=7, init=False)


FULL = Outer(
    "a", rate=0.25, mode="slow", inner=Inner(steps=3, verbose=True), limit=9, shape=Circle(1.5),
    shapes=(Square(2.0), Circle(0.5)), betas=(0.1, 0.2), weights={"x": 1.0}, values=(True, 1, 1.5, "1"),
)  # fmt: skip


def plain(settings):
    data = to_plain(settings)
    del data["derived"]
    return data


def test_plain_values_are_those_of_toml_and_json():
    assert plain(FULL) == {
        "name": "a", "rate": 0.25, "mode": "slow", "inner": {"steps": 3, "verbose": True}, "limit": 9,
        "shape": {"radius": 1.5, "kind": "circle"},
        "shapes": [{"side": 2.0, "corners": 4, "kind": "square"}, {"radius": 0.5, "kind": "circle"}],
        "betas": [0.1, 0.2], "weights": {"x": 1.0}, "values": [True, 1, 1.5, "1"], "count": 0,
    }  # fmt: skip


def test_values_of_a_table_get_the_types_of_the_settings():
    """None is the default, whole numbers become floats where a float is meant, and a built value is taken as it is."""
    assert "limit" not in plain(Outer("b"))
    data = {"name": "a", "limit": None, "rate": 1, "betas": [0, 1], "weights": {"x": 2}, "count": 3}
    settings = parse(Outer, {**data, "inner": Inner(steps=2), "shape": Circle(1.0)}, "top")
    assert (settings.limit, settings.inner.steps) == (None, 2)
    assert [type(v) for v in (settings.rate, *settings.betas, settings.weights["x"])] == [float] * 4
    assert type(settings.count) is int


def test_invalid_settings_are_one_sentence_with_their_path(subtests):
    for data, sentence in [
        ({"nam": "a"}, r"top has no setting 'nam': did you mean 'name'\? known: .*name.*"),
        (
            {"name": "a", "inner": {"stepz": 1}},
            r"top\.inner has no setting 'stepz': did you mean 'steps'\?",
        ),
        ({"name": "a", "steps": 1}, r"top has no setting 'steps': did you mean 'inner\.steps'\?"),
        ({"name": "a", "qqqq": 1}, r"top has no setting 'qqqq': known: anything, betas"),
        ({"name": "a", "derived": 1}, "top has no setting 'derived'"),
        ({"rate": 1.0}, "top needs the setting 'name', which is missing"),
        (
            {"name": "a", "shape": {"kind": "circle"}},
            r"top\.shape needs the setting 'radius', which is missing",
        ),
        ({"name": 3}, "top.name must be of type str, found 3"),
        (
            {"name": "a", "inner": {"steps": "3"}},
            r"top\.inner\.steps must be of type int, found '3'",
        ),
        (
            {"name": "a", "inner": {"steps": 1.0}},
            r"top\.inner\.steps must be of type int, found 1\.0",
        ),
        (
            {"name": "a", "inner": {"verbose": 1}},
            r"top\.inner\.verbose must be of type bool, found 1",
        ),
        ({"name": "a", "rate": True}, r"top\.rate must be of type float, found True"),
        (
            {"name": "a", "rate": 10**400},
            r"top\.rate must be a number below 1e308, found 10000000…",
        ),
        ({"name": "a", "limit": "1"}, r"^top\.limit must be of type int, found '1'$"),
        ({"name": "a", "limit": False}, r"top\.limit must be of type int, found False"),
        ({"name": "a", "inner": 3}, r"top\.inner must be a table of settings, found 3"),
        (
            {"name": "a", "mode": "medium"},
            r"top\.mode must be one of 'fast', 'slow', found 'medium'",
        ),
        ({"name": "a", "mode": True}, r"top\.mode must be one of 'fast', 'slow', found True"),
        (
            {"name": "a", "shape": 3},
            r"^top\.shape must be a table of settings with a kind \(circle, square\), found",
        ),
        (
            {"name": "a", "shape": {"radius": 1.0}},
            r"top\.shape needs kind = one of circle, square, found none",
        ),
        (
            {"name": "a", "inner": {"steps": True}},
            r"top\.inner\.steps must be of type int, found True",
        ),
        (
            {"name": "a", "shape": {"kind": ["circle"]}},
            r"top\.shape needs kind = one of circle, square, found \['c",
        ),
        (
            {"name": "a", "shape": {"kind": "oval"}},
            r"top\.shape needs kind = one of circle, square, found 'oval'",
        ),
        (
            {"name": "a", "shape": {"kind": "square", "radius": 1.0}},
            r"top\.shape has no setting 'radius'",
        ),
        (
            {"name": "a", "shapes": [{"kind": "circle", "radius": "x"}]},
            r"top\.shapes\[0\]\.radius must be of type flo",
        ),
        (
            {"name": "a", "shapes": [{"kind": "square", "side": -1.0}]},
            r"top\.shapes\[0\]: side must be above 0, found",
        ),
        ({"name": "a", "betas": [0.9]}, r"top\.betas must hold 2 values, found 1"),
        ({"name": "a", "betas": [0.9, "x"]}, r"top\.betas\[1\] must be of type float, found 'x'"),
        ({"name": "a", "betas": 0.9}, r"top\.betas must be a list, found 0\.9"),
        ({"name": "a", "values": "abc"}, r"top\.values must be a list, found 'abc'"),
        ({"name": "a", "values": [[1]]}, r"top\.values\[0\]"),
        ({"name": "a", "weights": {"x": "y"}}, r"top\.weights\.x must be of type float, found 'y'"),
        (
            {"name": "a", "weights": [1.0]},
            r"top\.weights must be a table of settings, found \[1\.0\]",
        ),
        ([], r"top must be a table of settings, found \[\]"),
    ]:
        with subtests.test(data=data, sentence=sentence):
            with pytest.raises(ConfigError, match=sentence) as caught:
                parse(Outer, data, "top")
            assert "\n" not in str(caught.value)


def test_errors_are_of_the_class_asked_for():
    with pytest.raises(SchemaError):
        parse(Outer, {"nam": "a"}, "top", SchemaError)
    with pytest.raises(SchemaError, match=r"top\.shape: side must be above 0"):
        parse(Outer, {"name": "a", "shape": {"kind": "square", "side": 0}}, "top", SchemaError)


finite = st.floats(allow_nan=False, allow_infinity=False)
circles = st.builds(Circle, finite)
squares = st.builds(Square, st.floats(min_value=1e-3, max_value=1e3), st.integers())
settings_of_any_kind = st.builds(
    Outer,
    st.text(),
    rate=finite,
    mode=st.sampled_from(["fast", "slow"]),
    inner=st.builds(Inner, steps=st.integers(), verbose=st.booleans()),
    limit=st.none() | st.integers(),
    shape=st.none() | circles | squares,
    shapes=st.lists(circles | squares, max_size=3).map(tuple),
    betas=st.tuples(finite, finite),
    weights=st.dictionaries(st.text(), finite, max_size=3),
    values=st.lists(st.booleans() | st.integers() | finite | st.text(), max_size=4).map(tuple),
)


@example(FULL)
@example(Outer("b"))
@given(settings_of_any_kind)
def test_round_trip_of_any_settings(settings):
    back = parse(Outer, plain(settings), "top")
    assert back == settings
    assert [type(v) for v in back.values] == [type(v) for v in settings.values]


def test_given_settings_have_one_order():
    """A copied frozen set may have another order, and another hash, by which scikit-learn compares parameters."""
    forward = TrainingSettings(learning_rate=0.1, epochs=2, patience=1)
    backward = TrainingSettings(patience=1, epochs=2, learning_rate=0.1)
    assert repr(vars(copy.deepcopy(forward))) == repr(vars(forward)) == repr(vars(backward))
    assert given_settings(forward) == {"learning_rate", "epochs", "patience"}


def test_replace_gives_what_it_changes_and_leaves_the_others_to_the_data():
    """The planted case: rules choose the embedding's size from the data, and dropout is changed by hand."""
    facts = Facts(layout=Layout.of_sizes([500, 300]), rows=9_731, mean=0.93)
    plain_model = resolve(AFM(), TrainingSettings(), facts)
    model = dataclasses.replace(AFM(), attention_dropout=0.45)
    training = dataclasses.replace(TrainingSettings(epochs=3), patience=9)
    for copied in (copy.copy, copy.deepcopy):
        assert given_settings(copied(model)) == {"attention_dropout"}
        assert given_settings(copied(training)) == {"epochs", "patience"}
    changed = resolve(model, training, facts)
    expected = resolve(AFM(attention_dropout=0.45), TrainingSettings(epochs=3, patience=9), facts)
    assert changed == expected
    assert changed.training.batch_size == plain_model.training.batch_size == 128
    assert TrainingSettings().batch_size != 128
    assert changed.model.embedding_std == plain_model.model.embedding_std != AFM().embedding_std

    # also settings that equal their class's defaults stay given
    epochs = TrainingSettings().epochs
    again = dataclasses.replace(TrainingSettings(epochs=epochs), l2={"a": 1.0})
    assert given_settings(again) == {"epochs", "l2"}
    assert given_settings(dataclasses.replace(again)) == {"epochs", "l2"}
    assert given_settings(dataclasses.replace(TrainingSettings())) == set()
    with pytest.raises(ConfigError, match="has no setting 'epoch': did you mean 'epochs'"):
        dataclasses.replace(TrainingSettings(), epoch=3)


N = 100_000
DEEP_TOML = [
    "a = " + "[" * N,
    "a = " + "[" * 60 + "]" * 60,
    "a = " + "{a = " * 60 + "1" + "}" * 60,
    "a." * N + "a = 1",
    "'a' . \"b\" . " * N + "a = 1",
    "[[" + "a." * N + "a]]",
    "a.b.c = " + "{a.b.c.d.e.f.g = " * 8 + "1" + "}" * 8,
]


def test_deep_toml_is_refused_soon(subtests):
    """`tomllib` takes minutes for a key of 100,000 parts, and ends in RecursionError for brackets."""
    for text in DEEP_TOML:
        with (
            subtests.test(text=text),
            pytest.raises(tomllib.TOMLDecodeError, match="at most 50 levels"),
        ):
            toml_tables(text)


def test_toml_that_is_long_and_not_deep_is_read():
    lines = [f"a{n} = [{n}.5, '{'a.b ' * 60}']" for n in range(200)]
    lines += ["a." * 48 + "a = 1", "b = " + "[" * 49 + "]" * 49, f"word = '{'a' * 100_000}'"]
    text = "\n".join(lines)
    assert toml_tables(text) == tomllib.loads(text)

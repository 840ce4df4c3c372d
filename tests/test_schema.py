import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import Bag, Categorical, Label, Numeric, Schema, SchemaError, Sequence

USER, PRICE, CLICK = Categorical("user"), Numeric("n"), Label("click")


def schema_of(**changes):
    return Schema(**({"fields": (USER,), "label": CLICK} | changes))


def test_columns_are_names_where_left_out_and_roles_keep_their_order():
    fields = (
        Categorical("a", role="item"),
        USER,
        Sequence("seen", column="a"),
        Bag("tags", role="item"),
    )
    schema = schema_of(fields=fields)
    assert [f.column for f in schema.fields] == ["a", "user", "a", "tags"]
    assert schema.columns == ("a", "user", "tags")
    names = {role: [f.name for f in schema.with_role(role)] for role in ("item", "user", "context")}
    assert names == {"item": ["a", "tags"], "user": ["seen"], "context": ["user"]}


def test_toml_as_a_person_writes_it(tmp_path):
    text = """
    time = "timestamp"
    group = "user"
    keys = ["user", "film"]

    [label]
    column = "rating"
    positive_above = 3
    drop_values = [3]

    [[more_labels]]
    column = "rating"
    name = "stars"
    task = "regression"
    range = [1, 5]
    weight = 0.1

    [[fields]]
    kind = "categorical"
    name = "user"
    role = "user"

    [[fields]]
    kind = "numeric"
    name = "age"
    encoding = "quantile"
    bins = 5
    """
    liked = Label("rating", positive_above=3.0, drop_values=(3,))
    stars = Label("rating", name="stars", task="regression", range=(1.0, 5.0), weight=0.1)
    expected = Schema(
        fields=(Categorical("user", role="user"), Numeric("age", encoding="quantile", bins=5)),
        label=liked, more_labels=[stars], time="timestamp", group="user", keys=("user", "film"),
    )  # fmt: skip
    assert Schema.from_toml(text) == expected
    assert expected.labels == (liked, stars)
    file = tmp_path / "schema.toml"
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())  # a byte order mark is no fault
    assert Schema.from_toml(file) == expected


names = st.text(min_size=1, max_size=12)
roles = st.sampled_from(["user", "item", "context"])
poolings = st.sampled_from(["mean", "sum", "max"])
scalars = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
)
counts = st.integers(1, 10**6)
vocabulary = {"min_count": counts, "hash_buckets": st.none() | counts}
columns = st.text(max_size=12)


def field_named(name):
    common = {"name": st.just(name), "role": roles, "column": columns}
    several = (
        common | vocabulary | {"separator": st.text(min_size=1, max_size=3), "pooling": poolings}
    )
    return st.one_of(
        st.builds(Categorical, **common, **vocabulary),
        st.builds(
            Numeric,
            **common,
            encoding=st.sampled_from(["value", "uniform", "quantile"]),
            transform=st.sampled_from(["none", "minmax", "standard", "log"]),
            bins=st.integers(2, 1000),
            missing=st.sampled_from(["zero", "vector"]),
        ),
        st.builds(Bag, **several),
        st.builds(Sequence, **several, max_length=counts),
    )


@st.composite
def labels(draw):
    column, drop = draw(names), tuple(draw(st.lists(scalars, max_size=3)))
    common = {"drop_values": drop, "name": draw(columns), "weight": draw(st.floats(1e-3, 1e3))}
    rule = draw(st.sampled_from(["none", "above", "values", "number", "range"]))
    if rule == "above":
        return Label(
            column, positive_above=draw(st.floats(allow_nan=False, allow_infinity=False)), **common
        )
    if rule == "values":
        return Label(
            column, positive_values=tuple(draw(st.lists(scalars, min_size=1, max_size=3))), **common
        )
    if rule == "range":
        low, scale = draw(st.floats(-1e6, 1e6)), draw(st.none() | st.floats(1e-3, 1e6))
        return Label(
            column,
            task="regression",
            range=(low, low + draw(st.floats(1e-3, 1e6))),
            scale=scale,
            **common,
        )
    return Label(column, task="regression" if rule == "number" else "binary", **common)


@st.composite
def schemas(draw):
    chosen = draw(st.lists(names, min_size=1, max_size=5, unique=True))
    fields = tuple(draw(field_named(name)) for name in chosen)
    taken = {f.column for f in fields}
    free = labels().filter(lambda label: label.column not in taken)
    label, *more = draw(st.lists(free, min_size=1, max_size=3, unique_by=lambda label: label.name))
    others = st.none() | names.filter(
        lambda name: name not in {label.column, *(other.column for other in more)}
    )
    return Schema(
        fields=fields, label=label, more_labels=tuple(more), time=draw(others), group=draw(others),
        keys=tuple(draw(st.lists(names, max_size=3, unique=True))),
    )  # fmt: skip


@given(schemas())
def test_round_trips_and_hash(schema):
    assert Schema.from_dict(schema.to_dict()) == schema
    back = Schema.from_toml(schema.to_toml())
    assert back == schema
    assert hash(back) == hash(schema)
    # == holds 1, 1.0 and true for the same, which labels must not.
    for values in ("drop_values", "positive_values"):
        types = [
            [[type(v) for v in getattr(label, values) or ()] for label in s.labels]
            for s in (back, schema)
        ]
        assert types[0] == types[1]


def test_every_contradiction_is_one_sentence(subtests):
    for build, sentence in [
        (lambda: Categorical(""), "a field needs a name that is text, found ''"),
        (
            lambda: Categorical("u", role="film"),
            r"field 'u': role must be one of 'user', 'item', 'context', found",
        ),
        (
            lambda: Categorical("u", kind="bag"),
            r"field 'u': kind must be one of 'categorical', found 'bag'",
        ),
        (
            lambda: Numeric("n", encoding="bins"),
            r"field 'n': encoding must be one of .*, found 'bins'",
        ),
        (
            lambda: Numeric("n", transform="sqrt"),
            "field 'n': transform must be one of .*, found 'sqrt'",
        ),
        (
            lambda: Numeric("n", missing="mean"),
            "field 'n': missing must be one of .*, found 'mean'",
        ),
        (lambda: Numeric("n", bins=1), "field 'n': bins must be at least 2, found 1"),
        (lambda: Numeric("n", bins="8"), "field 'n': bins must be a whole number, found '8'"),
        (lambda: Numeric("n", bins=8.0), "field 'n': bins must be a whole number, found 8.0"),
        (
            lambda: Numeric("n", point_masses=1),
            "field 'n': point_masses must be true or false, found 1",
        ),
        (lambda: Categorical("u", column=3), "field 'u': column must be text, found 3"),
        (lambda: Bag("b", separator=3), "field 'b': separator must be text, found 3"),
        (lambda: Label(3), "label: column must be text, found 3"),
        (
            lambda: Label("y", positive_above="3"),
            "label: positive_above must be a number, found '3'",
        ),
        (lambda: schema_of(user=3), "schema: user must be text, found 3"),
        (
            lambda: schema_of(fields=("u",)),
            r"a schema's fields must be a list of Categorical, .*, found 'u': write fields = ",
        ),
        (
            lambda: schema_of(fields=USER),
            r"a schema's fields must be a list of Categorical, .*, found Categorical\(",
        ),
        (lambda: Bag("b", pooling="min"), "field 'b': pooling must be one of .*, found 'min'"),
        (lambda: Bag("b", separator=""), "field 'b': separator must not be empty"),
        (lambda: Sequence("s", separator=""), "field 's': separator must not be empty"),
        (
            lambda: Sequence("s", max_length=0),
            "field 's': max_length must be a whole number of at least 1, found 0",
        ),
        (
            lambda: Categorical("u", min_count=0),
            "field 'u': min_count must be a whole number of at least 1, found 0",
        ),
        (
            lambda: Bag("b", min_count=-1),
            "field 'b': min_count must be a whole number of at least 1, found -1",
        ),
        (
            lambda: Sequence("s", hash_buckets=0),
            "'s': hash_buckets must be a whole number of at least 1, found 0",
        ),
        (
            lambda: Sequence("s", shares="user", min_count=2),
            "'s' shares the rows of 'user', with its min_count and",
        ),
        (
            lambda: Bag("b", shares="user", hash_buckets=9),
            "'b' shares the rows of 'user', with its min_count and",
        ),
        (
            lambda: schema_of(fields=(USER, Bag("s", shares="usr"))),
            "found 'usr', no field of that name: did you mean",
        ),
        (
            lambda: schema_of(fields=(USER, PRICE, Bag("b", shares="n"))),
            "one of kind 'numeric': known: user",
        ),
        (
            lambda: schema_of(fields=(Sequence("s", shares="s"),)),
            "found 's', one of kind 'sequence': add one",
        ),
        (
            lambda: Label("y", positive_above=3, positive_values=(4,)),
            "positive_above or positive_values, not both",
        ),
        (
            lambda: Label("y", task="regression", positive_above=3),
            "a regression label takes no positive rule",
        ),
        (
            lambda: Label("y", task="regression", positive_values=(1,)),
            "a regression label takes no positive rule",
        ),
        (lambda: Label("y", range=(0.0, 1.0)), "a binary label takes no range"),
        (
            lambda: Label("y", task="regression", range=(5, 1)),
            r"two increasing finite numbers, found \[5, 1\]",
        ),
        (
            lambda: Label("y", task="regression", range=(math.nan, 1)),
            "range must be two increasing finite numbers",
        ),
        *(
            (
                lambda weight=weight: Label("y", weight=weight),
                f"weight must be above 0 and finite, found {weight}",
            )
            for weight in (0, -1.0, math.nan, math.inf)
        ),
        (
            lambda: schema_of(more_labels=(Label("click"),)),
            "labels' names must be unique, found 'click' more than",
        ),
        (
            lambda: schema_of(more_labels=Label("buy")),
            "more_labels must be a list of labels, found the label 'buy'",
        ),
        (
            lambda: schema_of(more_labels=("buy",)),
            r"labels must each be a Label, found 'buy': write Label",
        ),
        (lambda: Label("buy", weight="2"), "label: weight must be a number, found '2'"),
        (lambda: Label("y", task="regression", scale=0), "scale"),
        (lambda: Label("y", task="regression", scale=math.inf), "scale"),
        (lambda: Label("y", scale=2.0), "scale"),
        (
            lambda: schema_of(more_labels=(Label("user", name="u"),)),
            "field 'user' reads the label's column 'user'",
        ),
        (
            lambda: schema_of(more_labels=(Label("buy"),), time="buy"),
            "time must not be the label's column 'buy'",
        ),
        (
            lambda: schema_of(more_labels=(Label("buy"),), group="buy"),
            "group must not be the label's column 'buy'",
        ),
        (lambda: schema_of(fields=()), "a schema needs at least one field, found none"),
        (
            lambda: schema_of(fields=(USER, Bag("user"))),
            "field names must be unique, found 'user' more than once",
        ),
        (
            lambda: schema_of(fields=(Numeric("x", column="click"),)),
            "field 'x' reads the label's column 'click'",
        ),
        (lambda: Schema.from_toml("fields = ["), "schema is not valid TOML"),
        (
            lambda: Label("y", task="ranking"),
            "label: task must be one of 'binary', 'regression', found 'ranking'",
        ),
        (lambda: Label(""), "a label needs a column, found an empty name"),
        (
            lambda: Label("y", positive_above=math.nan),
            "a label's positive_above must be finite, found nan",
        ),
        (
            lambda: Label("y", drop_values=(math.inf,)),
            "positive_values and drop_values must be finite, found inf",
        ),
        (
            lambda: Label("y", positive_values=()),
            "a label's positive_values must have at least one value, found none",
        ),
        (lambda: schema_of(keys="user"), "keys must be a list of columns, found the text 'user'"),
        (lambda: schema_of(group="click"), "group must not be the label's column 'click'"),
    ]:
        with subtests.test(build=build, sentence=sentence):
            with pytest.raises(SchemaError, match=sentence) as caught:
                build()
            assert "\n" not in str(caught.value)


FIRST = "[label]\ncolumn='y'\n[[fields]]\n"


def test_faults_in_a_file_name_the_file_and_the_setting(subtests, tmp_path):
    for text, sentence in [
        (
            FIRST + "kind='categorical'\nname='u'\nmin_cuont=2",
            r"fields\[0\] has no setting 'min_cuont'",
        ),
        (
            FIRST + "name='u'",
            r"fields\[0\] needs kind = one of bag, categorical, numeric, sequence",
        ),
        (FIRST + "kind='bag'", r"fields\[0\] needs the setting 'name'"),
        (FIRST + "kind='bag'\nname='b'\nmin_count=0", r"fields\[0\]: field 'b': min_count must"),
        (
            "[label]\ncolumn='y'\ntask='rank'\n[[fields]]\nkind='bag'\nname='b'",
            r"label\.task must be one of 'binary'",
        ),
        ("[[fields]]\nkind='bag'\nname='b'", "needs the setting 'label'"),
        ("[label\n", "is not valid TOML: .*line 1"),
        ("a." * 100_000 + "a = 1", "is not valid TOML: .*at most 50 levels"),
    ]:
        with subtests.test(text=text, sentence=sentence):
            file = tmp_path / "films.toml"
            file.write_text(text, "utf-8")
            with pytest.raises(SchemaError, match=r"films\.toml.*" + sentence):
                Schema.from_toml(file)


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path):
    file = tmp_path / "films.toml"
    for _ in range(2):  # absent, then in another encoding
        with pytest.raises(SchemaError, match=r"films\.toml"):
            Schema.from_toml(file)
        file.write_bytes("name = 'é'".encode("latin-1"))


def test_labels_have_defaults_and_take_lists():
    assert schema_of().labels == (CLICK,)
    # lists become tuples
    listed = schema_of(label=Label("y", positive_values=[1, 2], drop_values=[3]))
    assert Schema.from_toml(listed.to_toml()) == listed
    assert (CLICK.name, CLICK.weight) == ("click", 1.0)


def test_written_schemas_keep_shared_fields_and_take_a_second_label_by_hand():
    for fields in (
        (Sequence("seen", shares="user"), USER),
        (USER, Bag("liked", shares="user", pooling="sum")),
    ):
        schema = schema_of(fields=fields)
        assert Schema.from_toml(schema.to_toml()) == schema
        assert 'shares = "user"' in schema.to_toml()
    text = schema_of().to_toml() + '\n[[more_labels]]\ncolumn = "buy"\n'
    assert Schema.from_toml(text) == schema_of(more_labels=(Label("buy"),))


def test_numbers_of_numpy_are_numbers():
    assert Numeric("n", encoding="quantile", bins=np.int64(4)).bins == 4
    assert Label("y", positive_above=np.float64(3)).positive_above == 3

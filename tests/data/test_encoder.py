"""The encoder against plain Python, scikit-learn and NumPy; unseen values, leakage, JSON, and each bad table."""

import json
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldwise import (
    Bag,
    Categorical,
    DataError,
    Encoder,
    Label,
    Numeric,
    Schema,
    SchemaError,
    Sequence,
)
from fieldwise.data.encode.encoder import check_table
from fieldwise.data.table import EncodedTable
from fieldwise.schema import Field
from fieldwise.storage.scratch import NO_LIMIT

Local = tuple[list[int], float | None]  # local row ids of one cell, and its number


def schema_of(*fields: Field) -> Schema:
    return Schema(fields=fields, label=Label("y"))


def fitted(field: Field, train: list[object]) -> Encoder:
    return Encoder.fit(pl.DataFrame({field.column: train}), schema_of(field))


def encode(encoder: Encoder, cells: list[object] | pl.Series) -> EncodedTable:
    return encoder.transform(pl.DataFrame({encoder.fields[0].column: cells}))


def local_rows(table: EncodedTable) -> list[list[Local]]:
    """What each cell became, its field's offset taken away: read with plain loops."""
    fields = table.layout.fields
    bags = len([f for f in fields if f.kind == "bag"])
    rows: list[list[Local]] = []
    for n in range(len(table)):
        cells: list[Local] = []
        single = value = bag = 0
        for f in fields:
            if f.kind == "bag":
                begin, end = (
                    table.bag_offsets[n * bags + bag],
                    table.bag_offsets[n * bags + bag + 1],
                )
                cells.append(([int(i) - f.offset for i in table.bag_ids[begin:end]], None))
                bag += 1
            else:
                number = float(table.values[n, value]) if f.kind == "value" else None
                value += f.kind == "value"
                cells.append(([int(table.ids[n, single]) - f.offset], number))
                single += 1
        rows.append(cells)
    return rows


def plain_text(value: object) -> str | None:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def plain_list(f: Bag | Sequence, cell: object) -> list[str]:
    parts = cell.split(f.separator) if isinstance(cell, str) else (cell or [])
    texts = [t.strip() for t in map(plain_text, parts) if t is not None and t.strip()]
    return texts[-f.max_length :] if isinstance(f, Sequence) else texts


def plain_fit(f: Field, train: list[object]) -> Callable[[object], Local]:
    """The plain reference: one field, one cell at a time."""
    if isinstance(f, Numeric):
        return plain_numeric(f, [float(x) for x in train if x is not None])
    if isinstance(f, Categorical):
        seen = Counter(t for t in map(plain_text, train) if t is not None)
    else:
        # A sequence's vocabulary holds what was cut off too: it was seen.
        longest = Bag(f.name, separator=f.separator)
        seen = Counter(t for cell in train for t in plain_list(longest, cell))
    kept = sorted((t for t in seen if seen[t] >= f.min_count), key=lambda t: (-seen[t], t.encode()))
    ids = {t: k + 2 for k, t in enumerate(kept)}
    if isinstance(f, Categorical):
        return lambda cell: (
            [0 if plain_text(cell) is None else ids.get(str(plain_text(cell)), 1)],
            None,
        )
    return lambda cell: ([ids.get(t, 1) for t in plain_list(f, cell)] or [0], None)


def plain_numeric(f: Numeric, numbers: list[float]) -> Callable[[object], Local]:
    def logged(x: float) -> float:
        return math.copysign(math.log(1 + abs(x)), x) if f.transform == "log" else x

    numbers = [logged(x) for x in numbers]
    low, high = min(numbers), max(numbers)
    mean = sum(numbers) / len(numbers)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers))

    def value(cell: object) -> Local:
        if cell is None:
            return [0], (1.0 if f.missing == "vector" else 0.0)
        x = logged(float(str(cell)))
        if f.transform != "log":
            width = (high - low) or 1.0
            x = min(max(x, low - 10 * width), high + 10 * width)
        if f.transform == "minmax":
            x = min(max((x - low) / ((high - low) or 1.0), 0.0), 1.0)
        elif f.transform == "standard":
            x = (x - mean) / (deviation if low < high else 1.0)
        return [1], x

    return value


TEXT = st.sampled_from(["a", "b", "c", "é", "A", "12", "", " x"])
WHOLE = st.integers(-3, 3) | st.integers(2**24 - 1, 2**24 + 1)
CELLS = {
    "text": st.none() | TEXT,
    "whole": st.none() | WHOLE,
    "number": st.none() | st.sampled_from([-2.5, -1.0, 0.0, 0.25, 1.0, 3.0, 1e6]),
    "joined": st.none() | st.lists(TEXT, max_size=4).map("|".join),
    "lists": st.none() | st.lists(st.none() | WHOLE, max_size=4),
}
TYPES = {
    "text": pl.String,
    "whole": pl.Int64,
    "number": pl.Float64,
    "joined": pl.String,
    "lists": pl.List(pl.Int64),
}


@st.composite
def problems(draw: st.DrawFn) -> tuple[Schema, pl.DataFrame, pl.DataFrame]:
    """A schema, training rows, and other rows."""
    fields: list[Field] = []
    train, other = {}, {}
    heights = draw(st.integers(1, 8)), draw(st.integers(0, 5))
    for k in range(draw(st.integers(1, 4))):
        name, count = f"f{k}", draw(st.integers(1, 2))
        kind = draw(st.sampled_from(list(CELLS)))
        f: Field
        if kind == "number" and draw(st.booleans()):
            transform = draw(st.sampled_from(["none", "minmax", "standard", "log"]))
            missing = draw(st.sampled_from(["zero", "vector"]))
            f = Numeric(name, transform=transform, missing=missing)
        elif kind in ("text", "whole", "number"):
            f = Categorical(name, min_count=count)
        elif draw(st.booleans()):
            f = Bag(name, min_count=count, pooling=draw(st.sampled_from(["mean", "sum", "max"])))
        else:
            f = Sequence(name, min_count=count, max_length=draw(st.integers(1, 3)))
        fields.append(f)
        # every field has a value to learn from
        seed = {"text": "a", "joined": "a", "lists": [1]}.get(kind, 1)
        cells = [draw(st.lists(CELLS[kind], min_size=n, max_size=n)) for n in heights]
        train[name] = pl.Series([seed, *cells[0]], dtype=TYPES[kind])
        other[name] = pl.Series(cells[1], dtype=TYPES[kind])
    return schema_of(*fields), pl.DataFrame(train), pl.DataFrame(other)


@given(problems())
def test_equals_the_plain_reference(problem: tuple[Schema, pl.DataFrame, pl.DataFrame]) -> None:
    schema, train, other = problem
    encoder = Encoder.fit(train, schema)
    at = encoder.layout.fields
    assert [f.offset for f in at] == [sum(g.rows for g in at[:k]) for k in range(len(at))]
    read = Encoder.from_json(encoder.to_json())
    assert (read, read.layout) == (encoder, encoder.layout)
    references = [plain_fit(f, train[f.column].to_list()) for f in schema.fields]
    for frame in (train, other):
        expected = [
            [
                reference(row[f.column])
                for f, reference in zip(schema.fields, references, strict=True)
            ]
            for row in frame.to_dicts()
        ]
        result = local_rows(read.transform(frame))
        assert [[ids for ids, _ in row] for row in result] == [
            [ids for ids, _ in row] for row in expected
        ]
        for row, reference in zip(result, expected, strict=True):
            for (_, number), (_, true_number) in zip(row, reference, strict=True):
                assert number == (
                    None if true_number is None else pytest.approx(true_number, rel=1e-5, abs=1e-5)
                )


ANY = st.one_of(
    st.lists(st.none() | st.text()),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
    st.lists(st.none() | st.floats()),
    st.lists(st.none() | st.booleans()),
    st.lists(st.none()),
)


@given(ANY, ANY.map(lambda cells: [cells]), st.booleans())
def test_no_value_crashes_a_category_or_a_bag(
    cells: list[object], lists: list[object], hashed: bool
) -> None:
    buckets = 3 if hashed else None
    one = fitted(Categorical("c", hash_buckets=buckets), ["known"])
    ids = encode(one, cells).ids[:, 0].tolist()
    absent = [plain_text(c) is None for c in cells]
    assert [i == 0 for i in ids] == absent
    if not hashed:
        assert all(
            i == 1
            for i, gone, c in zip(ids, absent, cells, strict=True)
            if not gone and c != "known"
        )
    for f in (Bag("c", hash_buckets=buckets), Sequence("c", hash_buckets=buckets)):
        several = fitted(f, ["known"])
        for given_cells in (cells, lists):
            table = encode(several, given_cells)
            assert table.bag_offsets.shape == (len(given_cells) + 1,)
            assert np.diff(table.bag_offsets).min(initial=1) >= 1
            assert ((table.bag_ids >= 0) & (table.bag_ids < several.layout.num_rows)).all()


@given(st.lists(st.floats(-3e38, 3e38), min_size=1), st.lists(st.none() | st.floats(-3e38, 3e38)))
def test_no_number_becomes_infinite(train: list[float], other: list[float | None]) -> None:
    for transform in ("none", "minmax", "standard", "log"):
        table = encode(
            fitted(Numeric("x", transform=transform), train), pl.Series(other, dtype=pl.Float64)
        )
        assert np.isfinite(table.values).all()
    for encoding in ("uniform", "quantile"):
        encoder = fitted(Numeric("x", encoding=encoding, bins=4), train)
        ids = encode(encoder, pl.Series(other, dtype=pl.Float64)).ids[:, 0]
        assert ((ids >= 0) & (ids < encoder.layout.num_rows)).all()
        assert [i == 0 for i in ids] == [x is None for x in other]


def test_an_id_is_one_value_in_every_form() -> None:
    encoder = fitted(Categorical("c"), [12, 7])
    forms = [
        ["12", "7", "8"],
        [12, 7, 8],
        [12.0, 7.0, 8.0],
        [Decimal("12.00"), Decimal("7.00"), Decimal("8.00")],
    ]
    assert [encode(encoder, form).ids.ravel().tolist() for form in forms] == [[2, 3, 1]] * 4
    for trained in ([True, False, True], ["True", "False", "True"], ["true", "false", "true"]):
        flags = fitted(Categorical("c"), trained)
        for form in ([True, False], ["True", "False"], ["TRUE", "FALSE"], ["true", "false"]):
            assert encode(flags, [*form, None] * 100).ids.ravel().tolist() == [2, 3, 0] * 100
    bag = fitted(Bag("c"), [[12, 7], [12]])
    assert [
        encode(bag, form).bag_ids.tolist() for form in (["12|7"], [[12.0, 7.0]], [["12", "7"]])
    ] == [[2, 3]] * 3


def test_large_ids_stay_apart() -> None:
    ids = [2**24 + k for k in range(4)] + [2**53 - 1, 2**62, 2**62 + 1]
    table = encode(fitted(Categorical("c"), ids), ids)
    assert sorted(table.ids.ravel().tolist()) == list(range(2, 9))
    floats = [float(x) for x in ids[:5]]
    assert encode(fitted(Categorical("c"), ids[:5]), floats).ids.ravel().tolist() == list(
        range(2, 7)
    )
    assert table.ids.dtype == np.int32
    frame = pl.DataFrame({"big": ["a"] * 3, "c": ["a", "b", "c"]})  # behind a field of many rows
    encoder = Encoder.fit(
        frame, schema_of(Categorical("big", hash_buckets=2**24), Categorical("c"))
    )
    assert encoder.transform(frame).ids[:, 1].tolist() == [2**24 + 1 + k for k in (2, 3, 4)]


def test_more_rows_than_ids_can_count_are_refused() -> None:
    schema = schema_of(Categorical("a", hash_buckets=2**30), Categorical("b", hash_buckets=2**30))
    with pytest.raises(
        DataError, match="may take 2147483647 embedding rows, found 2147483650; lower hash_buckets"
    ):
        Encoder.fit(pl.DataFrame({"a": [1], "b": [1]}), schema)


def test_hashed_rows_are_the_published_hash() -> None:
    encoder = fitted(Categorical("c", hash_buckets=1000), ["x"])
    published = {"": None, "a": 0xAF63DC4C8601EC8C, "foobar": 0x85944171F73967E8}
    expected = [0 if h is None else 1 + h % 1000 for h in published.values()]
    assert encode(encoder, list(published)).ids.ravel().tolist() == expected
    assert encoder.layout.num_rows == 1001


def test_a_column_may_have_any_name() -> None:
    for name in ("n", "text", "id", "count", "cell", "^.*$"):
        encoder = fitted(Categorical(name), ["a", "b", "a"])
        assert encode(encoder, ["b", "a"]).ids.ravel().tolist() == [3, 2]


TRAIN = np.random.default_rng(0).lognormal(3.0, 1.5, 400)
OTHER = np.concatenate([TRAIN[:50], [TRAIN.min() - 5, TRAIN.max() * 2, -3.0, 0.0]])


def test_a_constant_column_becomes_zero(subtests):
    for transform in ["standard", "minmax"]:
        for constant in [0.1, 7.0, -3e30]:
            with subtests.test(transform=transform, constant=constant):
                encoder = fitted(Numeric("x", transform=transform), [constant] * 3)
                assert np.abs(encode(encoder, [constant]).values).item() <= abs(constant) * 1e-15
                assert np.abs(
                    encode(fitted(Numeric("x"), [0.1] * 3), [0.6]).values
                ).item() == pytest.approx(0.5)


def test_uniform_bins_equal_numpys_histogram() -> None:
    encoder = fitted(Numeric("x", encoding="uniform", bins=7), TRAIN)
    counts, _ = np.histogram(TRAIN, bins=7)
    result = encode(encoder, TRAIN).ids[:, 0]
    assert np.bincount(result, minlength=8).tolist() == [0, *counts.tolist()]
    assert encode(encoder, [TRAIN.min() - 1e9, TRAIN.max() + 1e9, None]).ids.ravel().tolist() == [
        1,
        7,
        0,
    ]


def test_a_number_on_an_edge_falls_in_the_upper_bin() -> None:
    for encoding in ("uniform", "quantile"):
        encoder = fitted(Numeric("x", encoding=encoding, bins=4), [0, 1, 2, 3, 4])
        assert encode(encoder, [0.0, 0.99, 1.0, 2.0, 3.0, 4.0]).ids.ravel().tolist() == [
            1,
            1,
            2,
            3,
            4,
            4,
        ]


@pytest.mark.parametrize(
    "train", [[17, 90, 25, 33], list(range(-3, 38)), [0.1, 0.7, 0.3], [0] * 50 + [99_999]]
)
def test_uniform_bins_closed_on_the_right_equal_pandas_cut(train: list[object]) -> None:
    pandas = pytest.importorskip("pandas")
    encoder = fitted(
        Numeric("x", encoding="uniform", transform="none", bins=10, closed="right"), train
    )
    edges = np.linspace(min(train), max(train), 11)
    cells = np.concatenate(
        [train, edges[1:-1], np.nextafter(edges[1:], -np.inf), np.nextafter(edges[:-1], np.inf)]
    )
    _, bounds = pandas.cut(train, bins=10, retbins=True)
    expected = pandas.cut(cells, bins=bounds, labels=False) + 1
    assert encode(encoder, pl.Series(cells)).ids.ravel().tolist() == expected.tolist()
    assert (
        encode(encoder, train).ids.ravel().tolist()
        == (pandas.cut(train, bins=10, labels=False) + 1).tolist()
    )
    left = fitted(Numeric("x", encoding="uniform", transform="none", bins=10), train)
    assert encode(left, [edges[5]]).ids.item() == encode(encoder, [edges[5]]).ids.item() + 1
    assert (
        encode(Encoder.from_json(encoder.to_json()), pl.Series(cells)).ids.ravel().tolist()
        == expected.tolist()
    )


def test_closed_on_the_right_is_for_bins_without_point_masses(subtests) -> None:
    for settings in ({}, {"encoding": "quantile", "point_masses": True}):
        with (
            subtests.test(**settings),
            pytest.raises(SchemaError, match=r"field 'x': closed = 'right' belongs to enc"),
        ):
            Numeric("x", closed="right", **settings)


def test_quantile_bins_equal_numpys_quantiles() -> None:
    encoder = fitted(Numeric("x", encoding="quantile", bins=8), TRAIN)
    edges = np.quantile(TRAIN, np.arange(1, 8) / 8)
    result = encode(encoder, OTHER).ids[:, 0]
    assert result.tolist() == [1 + int((edges <= x).sum()) for x in OTHER]
    assert np.ptp(np.bincount(encode(encoder, TRAIN).ids[:, 0])[1:]) <= 1
    assert encode(encoder, [None, float("nan")]).ids.ravel().tolist() == [0, 0]


def test_bins_after_the_logarithm_cut_the_logarithm() -> None:
    encoder = fitted(Numeric("x", encoding="uniform", bins=5, transform="log"), TRAIN)
    counts, _ = np.histogram(np.log1p(TRAIN), bins=5)
    assert np.bincount(encode(encoder, TRAIN).ids[:, 0], minlength=6).tolist() == [
        0,
        *counts.tolist(),
    ]


def test_equal_quantiles_are_one_edge() -> None:
    encoder = fitted(Numeric("x", encoding="quantile", bins=10), [0.0] * 90 + [1.0] * 10)
    ids = encode(encoder, [0.0, 1.0, None]).ids.ravel().tolist()
    assert len(set(ids)) == 3
    assert encoder.layout.num_rows <= 4


def test_unseen_is_the_share_of_unknown_values() -> None:
    schema = schema_of(Categorical("c"), Bag("b"), Categorical("h", hash_buckets=5), Numeric("x"))
    train = pl.DataFrame({"c": ["a", "b"], "b": ["p|q", "p"], "h": ["a", "b"], "x": [1, 2]})
    other = pl.DataFrame(
        {"c": ["a", "z", "y", None], "b": ["p|z", "q", None, "z"], "h": ["u"] * 4, "x": [9] * 4}
    )
    encoder = Encoder.fit(train, schema)
    assert encoder.unseen_in(encoder.transform(other)) == {"c": 0.5, "b": 0.4}
    assert encoder.unseen_in(encoder.transform(other.clear())) == {"c": 0.0, "b": 0.0}


def test_no_row_has_no_unknown_value_in_any_of_several_bags() -> None:
    frame = pl.DataFrame({"a": ["p|q", "p"], "b": ["p", "q"]})
    encoder = Encoder.fit(frame, schema_of(Bag("a"), Bag("b")))
    assert encoder.unseen_in(encoder.transform(frame.clear())) == {"a": 0.0, "b": 0.0}
    assert encoder.unknown_fields(encoder.transform(frame.clear())) == []


def test_the_order_of_training_rows_and_their_index_change_nothing() -> None:
    rng = np.random.default_rng(1)
    train = pl.DataFrame({"c": rng.integers(0, 9, 200), "x": rng.normal(size=200)})
    schema = schema_of(Categorical("c"), Numeric("x", encoding="quantile"))
    shuffled = train[rng.permutation(200)]
    assert Encoder.fit(train, schema) == Encoder.fit(shuffled, schema)


def test_an_empty_table_encodes_to_no_rows() -> None:
    schema = schema_of(Categorical("c"), Numeric("x"), Bag("b"))
    train = pl.DataFrame({"c": ["a"], "x": [1.0], "b": ["p"]})
    table = Encoder.fit(train, schema).transform(train.clear())
    assert len(table) == 0
    assert table.bag_offsets.tolist() == [0]
    assert list(table.batches(4)) == []
    with pytest.raises(DataError, match="an encoder needs training rows, found none"):
        Encoder.fit(train.clear(), schema)


ALL_NULL = [
    (Categorical("c"), [None, None]), (Categorical("c"), ["", ""]),
    (Categorical("c", hash_buckets=4), [None, None]), (Numeric("c"), [None, None]),
    (Numeric("c"), [float("nan"), float("nan")]), (Numeric("c", encoding="uniform"), ["", " "]),
    (Bag("c"), [None, "|"]), (Sequence("c"), [[], []]),
]  # fmt: skip


def test_a_column_without_values_is_named(subtests):
    for f, cells in ALL_NULL:
        with (
            subtests.test(f=f, cells=cells),
            pytest.raises(
                DataError,
                match=r"column 'c' \(field 'c'\) is null or empty in all 2 training rows; remove",
            ),
        ):
            fitted(f, cells)


def test_a_missing_column_is_named_wherever_it_is_missed() -> None:
    schema = schema_of(Categorical("user", column="user_id"), Bag("b"))
    frame = pl.DataFrame({"user_id": [1], "b": ["p"]})
    encoder = Encoder.fit(frame, schema)
    without = frame.rename({"user_id": "usr"})
    calls = (
        lambda: check_table(without, schema, budget=NO_LIMIT),
        lambda: Encoder.fit(without, schema),
        lambda: encoder.transform(without),
    )
    for call in calls:
        with pytest.raises(DataError, match=r"'user_id' \(field 'user'\) is missing among usr, b"):
            call()


def test_bad_numbers_name_field_and_row_in_training_and_later() -> None:
    schema = schema_of(Numeric("age"))
    encoder = Encoder.fit(pl.DataFrame({"age": [1.0]}), schema)
    for cells, message in (
        (["1", "old"], "holds the text 'old' in row 1"),
        ([1.0, np.inf], "holds inf in row 1"),
    ):
        frame = pl.DataFrame({"age": cells})
        for call in (
            lambda f: check_table(f, schema, budget=NO_LIMIT),
            lambda f: Encoder.fit(f, schema),
            encoder.transform,
        ):
            with pytest.raises(DataError, match=rf"column 'age' \(field 'age'\) {message}"):
                call(frame)


def test_a_damaged_encoder_is_refused(subtests):
    for damage in [
        "",
        "{",
        "[" * 100_000,
        "[]",
        "3",
        "null",
        '{"fields": 3}',
        '{"fields": [3]}',
        '{"fields": [{}]}',
    ]:
        with subtests.test(damage=damage), pytest.raises(DataError, match="bundle/encoder"):
            Encoder.from_json(damage, "bundle/encoder")


def test_an_unknown_key_in_an_encoder_is_named() -> None:
    data = json.loads(fitted(Categorical("c"), ["a"]).to_json())
    data["fields"][0]["fitted"]["valuez"] = []
    with pytest.raises(DataError, match=r"fields\[0\]\.fitted has no setting 'valuez'"):
        Encoder.from_json(json.dumps(data))


def test_a_value_that_a_stored_vocabulary_has_twice_is_refused() -> None:
    """Of more than a few texts each is searched by its hash, and no seed gives two equal ones different hashes."""
    data = json.loads(fitted(Categorical("c"), ["a"]).to_json())
    data["fields"][0]["fitted"]["values"] = [*"abcdefghijklmnopqrstuvwxyz", "k"]
    with pytest.raises(
        DataError, match=r"fields\[0\].fitted.values must have each value once, found 'k'"
    ) as caught:
        Encoder.from_json(json.dumps(data), "bundle/encoder")
    assert "\n" not in str(caught.value)


SHARING = schema_of(
    Sequence("seen", max_length=3, shares="film"),
    Categorical("user"),
    Categorical("film"),
    Bag("top", shares="film"),
)


def sharing_rows(rows: int = 60, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)

    def several() -> list[str]:
        return [
            "|".join(f"m{k}" for k in rng.integers(0, 9, rng.integers(0, 5))) for _ in range(rows)
        ]

    film = [f"m{k}" for k in rng.integers(0, 7, rows)]
    return pl.DataFrame(
        {"seen": several(), "user": rng.integers(0, 5, rows), "film": film, "top": several()}
    )


def test_a_field_that_shares_reads_the_other_fields_rows() -> None:
    frame = sharing_rows()
    encoder = Encoder.fit(frame, SHARING)
    seen, user, film, top = encoder.layout.fields
    assert [(f.offset, f.rows) for f in (user, film)] == [(0, 7), (7, 9)]
    assert [(f.offset, f.rows, f.shares) for f in (seen, top)] == [(7, 9, "film")] * 2
    assert (user.shares, film.shares, encoder.layout.num_rows) == (None, None, 16)
    other = sharing_rows(seed=1)
    row_of = dict(
        zip(
            frame["film"],
            [row[2][0][0] for row in local_rows(encoder.transform(frame))],
            strict=True,
        )
    )
    for cells, row in zip(other.to_dicts(), local_rows(encoder.transform(other)), strict=True):
        for name, result, keep in (("seen", row[0][0], 3), ("top", row[3][0], 9)):
            films = [f for f in cells[name].split("|") if f][-keep:]
            # no training row is of m7 or m8
            assert result == ([row_of.get(f, 1) for f in films] or [0])


def test_a_shared_vocabulary_is_learned_from_the_other_column_of_training_rows_alone() -> None:
    frame = sharing_rows()
    encoder = Encoder.fit(frame, SHARING)
    assert (
        Encoder.fit(frame.with_columns(seen=pl.lit("m1|m1|m8"), top=pl.lit("m2")), SHARING)
        == encoder
    )
    alone = Encoder.fit(frame, schema_of(Categorical("film")))
    assert encoder.fitted[0] == encoder.fitted[2] == encoder.fitted[3] == alone.fitted[0]
    unseen = pl.DataFrame({"seen": ["m1|m8"], "user": [0], "film": ["m8"], "top": ["m7|m8|m1|m2"]})
    counts = encoder.unseen_counts(encoder.transform(unseen))
    assert counts == {"seen": (1, 2), "user": (0, 1), "film": (1, 1), "top": (2, 4)}


def test_json_holds_a_shared_vocabulary_once() -> None:
    frame = sharing_rows()
    encoder = Encoder.fit(frame, SHARING)
    text = encoder.to_json()
    assert text.count('"m1"') == 1
    back = Encoder.from_json(text)
    assert back == encoder
    # bundles of one log have one vocabulary in memory
    assert back.fitted[0] is Encoder.from_json(text).fitted[0]
    assert back.layout == encoder.layout
    np.testing.assert_array_equal(back.transform(frame).bag_ids, encoder.transform(frame).bag_ids)
    data = json.loads(text)
    del data["fields"][2]["fitted"]
    with pytest.raises(
        DataError, match="the encoder has no fitted values for field 'seen'; save the bundle again"
    ):
        Encoder.from_json(json.dumps(data), "the encoder")


def test_a_shared_hashed_field_hashes_alike() -> None:
    schema = schema_of(Categorical("film", hash_buckets=50), Sequence("seen", shares="film"))
    encoder = Encoder.fit(pl.DataFrame({"film": ["a"], "seen": ["a"]}), schema)
    films = [f"new{k}" for k in range(30)]
    table = encoder.transform(pl.DataFrame({"film": films, "seen": films}))
    assert table.ids[:, 0].tolist() == table.bag_ids.tolist()
    assert encoder.layout.num_rows == 51


def test_a_shared_field_without_any_value_of_the_other_is_refused(subtests):
    refusal = r"no training row's column 'seen' \(field 'seen'\) holds a value of field 'film'"
    for buckets in [None, 5]:
        for cells in ["m1;m2", "", None, "9"]:
            with subtests.test(buckets=buckets, cells=cells):
                schema = schema_of(
                    Categorical("film", hash_buckets=buckets), Sequence("seen", shares="film")
                )
                frame = pl.DataFrame(
                    {"film": ["m1", "m2"], "seen": pl.Series([cells] * 2, dtype=pl.String)}
                )
                if buckets and cells:  # hashed, every value has a row, and no cell holds two
                    assert Encoder.fit(frame, schema).transform(frame).bag_ids.size == 2
                    continue
                with pytest.raises(DataError, match=refusal):
                    Encoder.fit(frame, schema)

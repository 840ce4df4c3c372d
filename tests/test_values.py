"""A value is one value: in a file, a frame of any library, a request, a server's own log and an exported encoder."""

import asyncio
import datetime as dt
import json
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from exported import exported
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_bundle import random_bundle
from sklearn.preprocessing import StandardScaler

from fieldwise import (
    AFM,
    FM,
    AutoInt,
    Bag,
    Bundle,
    BundleError,
    Categorical,
    DataError,
    DCNv2,
    Encoder,
    FinalMLP,
    Label,
    Numeric,
    Schema,
    Sequence,
)
from fieldwise.data.encode.columns import as_text
from fieldwise.data.encode.encoder import encode_row
from fieldwise.scoring.recommend import IdColumns, recommend
from fieldwise.serving.rows import request_frame, values_of
from fieldwise.serving.stores import Lookup, Stores, TableStore
from fieldwise.serving.user_log import UserLog, tables_of_log

TIMES = st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))
SPANS = st.timedeltas(dt.timedelta(-400), dt.timedelta(400))
MILLISECOND = dt.timedelta(milliseconds=1)
WHOLE = st.integers(-100, 100)
FLOATS = st.one_of(
    st.floats(-1e30, 1e30),
    st.sampled_from([0.1, 0.3, 1 / 7, 12.0, 1e-5, 2.0**60, float("nan"), -0.0]),
)
SHORT = st.one_of(
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([float(np.float32(x)) for x in (0.1, 1 / 7)]),
)
TEXTS = st.text(st.sampled_from("ab|é1. ,"), max_size=4)
NUMBER_TEXTS = st.sampled_from(["1", " 2.5 ", "", " ", "1e3", ".5", "+1", "-0", "007", "4.10"])


def in_milliseconds(values):
    return values.map(
        lambda value: (
            value - value % MILLISECOND if isinstance(value, dt.timedelta) else floor(value)
        )
    )


def floor(time):
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


# The type of a column, its values, and whether they may be numbers.
TYPES = {
    "i8": (pl.Int8, WHOLE, True),
    "i64": (pl.Int64, st.integers(-(2**60), 2**60), True),
    "u64": (pl.UInt64, st.integers(0, 2**64 - 1), True),
    "f32": (pl.Float32, SHORT, True),
    "f64": (pl.Float64, FLOATS, True),
    "bool": (pl.Boolean, st.booleans(), True),
    "text": (pl.String, TEXTS, False),
    "numbers as text": (pl.String, NUMBER_TEXTS, True),
    "category": (pl.Categorical(), TEXTS, False),
    "enum": (pl.Enum(["a", "b|a", "7"]), st.sampled_from(["a", "b|a", "7"]), False),
    "decimal": (pl.Decimal(12, 2), st.decimals(-1000, 1000, places=2), True),
    "date": (pl.Date, st.dates(dt.date(1900, 1, 1), dt.date(2200, 1, 1)), True),
    "time": (pl.Time, st.times(), True),
    "ms": (pl.Datetime("ms"), in_milliseconds(TIMES), True),
    "us": (pl.Datetime("us"), TIMES, True),
    "ns": (pl.Datetime("ns"), TIMES, True),
    "zoned": (pl.Datetime("us", "UTC"), TIMES.map(lambda time: time.replace(tzinfo=dt.UTC)), True),
    "duration ms": (pl.Duration("ms"), in_milliseconds(SPANS), True),
    "duration us": (pl.Duration("us"), SPANS, True),
    "duration ns": (pl.Duration("ns"), SPANS, True),
}
LISTS = {name: TYPES[name] for name in ("i64", "f32", "f64", "bool", "text", "us", "date")}
CATEGORIES = (Categorical("x"), Categorical("x", hash_buckets=50))
ONE_VALUE = (
    *CATEGORIES,
    Bag("x"),
    Sequence("x", max_length=2),
    Numeric("x"),
    Numeric("x", encoding="quantile"),
)


def arrays(table):
    return {"ids": table.ids, "values": table.values, "bag_ids": table.bag_ids}


def check_equal(result, expected, where):
    for name, array in expected.items():
        np.testing.assert_array_equal(np.asarray(result[name]), array, err_msg=f"{where}: {name}")


@st.composite
def columns(draw):
    """A column of some type, and a field that reads it."""
    lists = draw(st.booleans())
    kind, values, numbers = draw(st.sampled_from(list((LISTS if lists else TYPES).values())))
    if lists:
        kind, values = pl.List(kind), st.lists(st.one_of(values, st.none()), max_size=3)
        field = draw(st.sampled_from([Bag("x"), Sequence("x", max_length=2)]))
    else:
        field = draw(st.sampled_from(ONE_VALUE if numbers else ONE_VALUE[:-2]))
    cells = draw(st.lists(st.one_of(values, st.none()), min_size=1, max_size=5))
    return pl.Series("x", cells, dtype=kind), cells, field


def stored_rows(frame):
    """The rows of a server's own log, as its requests find them."""
    store = TableStore("id", frame.with_row_index("id"))
    stores = Stores(users=Lookup("users", store))
    return asyncio.run(stores.users.get([str(k) for k in range(frame.height)]))


def lost_by_pandas(column):
    """Whether `to_pandas` makes floats of integers with missing ones that floats cannot tell apart."""
    if not column.dtype.is_integer() or not column.null_count():
        return False
    return any(abs(value) >= 2**53 for value in column.drop_nulls())


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(one=columns())
def test_a_value_is_the_same_on_every_way_into_a_model(one, tmp_path):
    column, cells, field = one
    frame = column.to_frame()
    schema = Schema(fields=(field,), label=Label("y"))
    try:
        encoder = Encoder.fit(frame, schema)
    except DataError as e:
        assume("needs values to learn from" not in str(e))
        raise
    expected = arrays(encoder.transform(frame))

    frame.write_parquet(tmp_path / "x.parquet")
    check_equal(arrays(encoder.transform(tmp_path / "x.parquet")), expected, "Parquet")
    check_equal(arrays(encoder.transform(frame.to_arrow())), expected, "pyarrow")
    if not column.dtype.is_nested() and not lost_by_pandas(column):
        check_equal(arrays(encoder.transform(frame.to_pandas())), expected, "pandas")
    if isinstance(column.dtype, pl.Datetime | pl.Duration):
        for unit in ("us", "ns"):
            other = frame.with_columns(pl.col("x").dt.cast_time_unit(unit))
            if column.dtype.time_unit == "ms" or unit == "ns":
                check_equal(arrays(encoder.transform(other)), expected, unit)
    if column.dtype == pl.Float32:
        check_equal(arrays(encoder.transform(frame.cast(pl.Float64))), expected, "64 bits")
    if column.dtype == pl.Int8:
        check_equal(arrays(encoder.transform(frame.cast(pl.Float32))), expected, "32 bits")

    rows = stored_rows(frame)
    bodies = json.loads(json.dumps([{"x": row["x"]} for row in rows]))
    if field.cell == "number" and column.dtype.is_temporal():
        bodies = [{"x": None if number != number else number} for number in numbers_of(column)]
    check_equal(arrays(encoder.transform(request_frame(bodies, [field]))), expected, "request")
    single = [
        encode_row(encoder, encoder.layout, values_of(body, [field], "row")) for body in bodies
    ]
    check_equal(
        {"ids": np.concatenate([batch.ids for batch in single])}, {"ids": expected["ids"]}, "cell"
    )

    program = exported(encoder, tmp_path)
    check_equal(program.encode([{"x": cell} for cell in cells]), expected, "exported")


def test_a_number_at_the_edge_of_two_bins_is_in_the_same_one_in_an_exported_encoder(
    tmp_path, subtests
):
    frame = pl.DataFrame({"x": [0.0, 2.5, 5.0, 7.5, 10.0, None]})
    for closed, expected in [("left", [1, 2, 3, 4, 4, 0]), ("right", [1, 1, 2, 3, 4, 0])]:
        with subtests.test(closed=closed):
            field = Numeric("x", encoding="uniform", transform="none", bins=4, closed=closed)
            encoder = Encoder.fit(frame, Schema(fields=(field,), label=Label("y")))
            assert encoder.transform(frame).ids.ravel().tolist() == expected
            assert (
                exported(encoder, tmp_path).encode(frame.to_dicts())["ids"].ravel().tolist()
                == expected
            )


def numbers_of(column):
    """The numbers of times: seconds since 1970, since midnight, or of a duration."""
    from fieldwise.data.encode.columns import as_number

    return as_number(column, "x").fill_null(float("nan")).to_list()


def test_the_text_of_a_value(subtests):
    day = dt.datetime(2026, 1, 2)
    for cells, kind, texts in [
        ([1 / 7, 0.1, 12.0], pl.Float32, ["0.14285715", "0.1", "12"]),
        (
            [1 / 7, float(np.float32(1 / 7)), float("nan")],
            pl.Float64,
            ["0.14285714285714285", "0.14285715", None],
        ),
        (
            [day, day.replace(hour=8, microsecond=250_000)],
            pl.Datetime("ns"),
            ["2026-01-02", "2026-01-02 08:00:00.25"],
        ),
        ([day], pl.Datetime("ms", "Europe/Berlin"), ["2026-01-02 01:00:00+01:00"]),
        ([dt.time(8, 30), dt.time(8, 30, 0, 5)], pl.Time, ["08:30:00", "08:30:00.000005"]),
        ([dt.timedelta(milliseconds=300), dt.timedelta(2)], pl.Duration("ns"), ["0.3", "172800"]),
        ([Decimal("1.50"), Decimal("100")], pl.Decimal(9, 2), ["1.5", "100"]),
        (["", " ", "4.10"], pl.String, [None, " ", "4.10"]),
    ]:
        with subtests.test(kind=kind):
            assert as_text(pl.Series(cells, dtype=kind)).to_list() == texts


def test_numbers_in_a_format_are_read_in_rows_and_in_the_log():
    field = Numeric("price", number_format="1.234,5")
    log = pl.DataFrame({"price": ["999", "1.604", "12.500,75", "", None]})
    expected = [999.0, 1604.0, 12500.75, None, None]
    assert request_frame(log.to_dicts(), [field])["price"].to_list() == expected
    assert (
        request_frame([{"price": row["price"]} for row in stored_rows(log)], [field])[
            "price"
        ].to_list()
        == expected
    )
    assert request_frame([{"price": 1.604}], [field])["price"].to_list() == [1.604], (
        "a number is no text"
    )


def test_an_empty_id_is_no_user_and_no_item():
    ids = ["a", "", None, "b", " "]
    log = pl.DataFrame({"u": ids * 4, "i": ["x", "y", "", "x", "y"] * 4, "y": [0, 1] * 10})
    fields = Categorical("u", role="user"), Categorical("i", role="item")
    schema = Schema(fields=fields, label=Label("y"), user="u", item="i")
    items, users = tables_of_log(log, [schema], "i", "u")
    assert items["i"].to_list() == ["x", "y"]
    assert users["u"].to_list() == [" ", "a", "b"], "blanks are a value"
    assert UserLog(log, [schema], "u", "i").used("") == []
    result = recommend(
        random_bundle(FM(embedding_dim=2), schema, log), log, IdColumns(), n=5, exclude_seen=False
    )
    assert sorted(set(result["i"])) == ["x", "y"]
    assert sorted(set(result["u"])) == [" ", "a", "b"]


MODELS = [
    FM(embedding_dim=4),
    AFM(embedding_dim=4),
    AutoInt(embedding_dim=4),
    DCNv2(embedding_dim=4),
    FinalMLP(embedding_dim=4),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("transform", ["none", "standard", "minmax", "log"])
def test_numbers_beyond_the_training_range_are_clipped_and_predictions_finite(model, transform):
    rng = np.random.default_rng(0)
    train = pl.DataFrame({"u": ["a", "b"] * 100, "x": rng.normal(100, 20, 200)})
    schema = Schema(fields=(Categorical("u"), Numeric("x", transform=transform)), label=Label("y"))
    bundle = random_bundle(model, schema, train)
    new = pl.DataFrame({"u": ["a"] * 4, "x": [9.97e36, -9.97e36, 3.4e38, 100.0]})
    assert np.isfinite(bundle.predict(new)).all()
    low, high = train["x"].min(), train["x"].max()
    beyond = 10 * (high - low)
    edge = pl.DataFrame({"u": ["a"] * 2, "x": [high + beyond, low - beyond]})
    if transform in ("none", "standard"):
        near = pl.DataFrame({"u": ["a"], "x": [high + 0.9 * beyond]})
        values = bundle.encoder.transform(new).values.ravel()
        np.testing.assert_allclose(
            bundle.encoder.transform(edge).values.ravel(), values[:2], rtol=1e-6
        )
        assert bundle.encoder.transform(near).values.item() < values[0]
        (cell,) = (
            encode_row(bundle.encoder, bundle.encoder.layout, {"u": "a", "x": 9.97e36})
            .values.ravel()
            .tolist()
        )
        assert cell == pytest.approx(values[0], rel=1e-6)


def test_a_column_that_differs_by_rounding_is_constant_as_for_scikit_learn(subtests):
    rng = np.random.default_rng(0)
    for x in [
        np.where(rng.random(800) < 0.5, 0.3, 0.1 + 0.2),
        np.full(500, 0.1),
        1e9 + 1e-9 * rng.random(500),
        1e9 + rng.random(500),
        rng.random(500),
        np.array([0.0, 1e-300] * 10),
    ]:
        with subtests.test(first=x[0]):
            (fitted,) = Encoder.fit(
                pl.DataFrame({"x": x}), Schema(fields=(Numeric("x"),), label=Label("y"))
            ).fitted
            assert fitted.scale == pytest.approx(
                StandardScaler().fit(x[:, None]).scale_[0], rel=1e-6
            )


def test_a_bundle_of_the_format_before_is_refused(tmp_path):
    frame = pl.DataFrame({"u": ["a", "b"]})
    schema = Schema(fields=(Categorical("u"),), label=Label("y"))
    random_bundle(FM(embedding_dim=2), schema, frame).save(tmp_path / "b")
    manifest = tmp_path / "b" / "bundle.json"
    manifest.write_text(manifest.read_text("utf-8").replace('"format": 3', '"format": 2'), "utf-8")
    with pytest.raises(
        BundleError, match=r"has format 2, .* reads no format before 3: train it again"
    ):
        Bundle.load(tmp_path / "b")


def test_no_prediction_is_nan():
    frame = pl.DataFrame({"u": ["a", "b"], "x": [1.0, 2.0]})
    schema = Schema(fields=(Categorical("u"), Numeric("x")), label=Label("y"))
    bundle = random_bundle(FM(embedding_dim=4), schema, frame, std=1e30)
    for surface in (
        bundle.predict,
        lambda rows: bundle.score_candidates({"u": "a"}, rows.select("x")),
    ):
        with pytest.raises(
            DataError, match=r"a prediction must be a finite number, but found .* row 0"
        ):
            surface(frame)


def test_the_text_of_a_time_keeps_its_offset_whatever_the_fraction():
    times = [
        dt.datetime(2000, 1, 1, 0, 0, 0, 1),
        dt.datetime(2000, 1, 1, 10),
        dt.datetime(2000, 1, 1, 10, 0, 0, 500_000),
    ]
    expected = [
        "2000-01-01 00:00:00.000001+00:00",
        "2000-01-01 10:00:00+00:00",
        "2000-01-01 10:00:00.5+00:00",
    ]
    column = pl.Series(times).dt.replace_time_zone("UTC")
    for unit in ("us", "ns"):
        assert as_text(column.dt.cast_time_unit(unit)).to_list() == expected

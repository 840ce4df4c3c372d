"""A kind of field is one class: column = cell = exported, for every kind; a new kind touches few files."""

import ast
import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import polars as pl
import pytest
from exported import exported
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_values import FLOATS, LISTS, TEXTS, TYPES

from fieldwise import Bag, Categorical, DataError, Encoder, Label, Numeric, Schema, Sequence, Vector
from fieldwise.data.encode.columns import as_list, as_text
from fieldwise.data.encode.encoder import encode_row
from fieldwise.data.encode.kinds import KINDS as REGISTERED
from fieldwise.data.encode.kinds import Cells, Counted, Kind, kind_of, register
from fieldwise.data.encode.portable import CellEncoder, any_text, cell_texts, marks_of
from fieldwise.schema.fields import Column

SRC = Path(__file__).parents[1] / "src" / "fieldwise"
KINDS = {"Categorical", "Numeric", "Bag", "Sequence", "Vector"}
NAMES = {"categorical", "numeric", "sequence"}
# What a new kind of field touches, as docs/development.md says.
TOUCHED = {"schema/fields.py", "data/encode/kinds/", "data/infer/fields.py"}


def dispatches(text):
    """Whether a module depends on the kind of a field: by its class, which an import may rename, or by its name."""
    if not any(word in text for word in KINDS | NAMES):
        return False
    nodes = list(ast.walk(ast.parse(text)))
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)} & KINDS
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fieldwise.schema"):
            classes |= {one.asname or one.name for one in node.names if one.name in KINDS}
    used = set()
    for node in nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "isinstance"
        ):
            used |= {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
        elif isinstance(node, ast.MatchClass) and isinstance(node.cls, ast.Name):
            used.add(node.cls.id)
        elif (
            isinstance(node, ast.Compare)
            and isinstance(node.left, ast.Attribute)
            and node.left.attr == "kind"
        ):
            used |= {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
    return bool(used & (classes | NAMES))


def test_no_module_depends_on_the_kind_of_a_field():
    results = {
        path.relative_to(SRC).as_posix()
        for path in SRC.rglob("*.py")
        if dispatches(path.read_text())
    }
    assert results == set(), "kinds are registered by their classes"
    scripts = [
        path.name
        for path in (SRC / "serving" / "static").glob("*.js")
        if ".kind" in path.read_text()
    ]
    assert scripts == [], "the page asks for a field's `cell`"
    page = (SRC.parents[1] / "docs" / "development.md").read_text()
    section = page.partition("## A new kind of field")[2].partition("\n## ")[0]
    assert {name for name in TOUCHED if f"`{name}`" in section} == TOUCHED


def test_each_kind_states_what_its_cells_hold():
    fields = (
        Categorical("a"),
        Numeric("b"),
        Bag("c"),
        Sequence("d", max_length=3, shares="a"),
        Vector("e"),
    )
    assert [f.cell for f in fields] == ["category", "number", "list", "list", "vector"]
    assert [f.max_length for f in fields] == [None, None, None, 3, None]
    assert [f.shares for f in fields] == [None, None, None, "a", None]


@dataclass(frozen=True, kw_only=True)
class Weekday(Column):
    """The day of the week of a date."""

    kind: Literal["weekday"] = "weekday"
    cell: ClassVar[Literal["category"]] = "category"
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None


@dataclass(frozen=True, kw_only=True)
class Days:
    """Missing, unknown, Monday to Sunday."""

    seen: int
    kind: Literal["days"] = "days"
    rows: ClassVar[int] = 9


def weekday_row(text):
    """The row of a text that begins with a date."""
    try:
        return 1 + dt.date.fromisoformat(text[:10]).isoweekday()
    except ValueError:
        return 1


def weekday_cell(encoder, value):
    """The row of a cell's day."""
    text = any_text(value)
    return [0 if text is None else weekday_row(text)], []


class WeekdayKind(Kind):
    forms = (Days,)
    plain_types = frozenset({type(None), str})
    cell = staticmethod(weekday_cell)
    helpers = (weekday_row,)

    def count(self, f, cells, missing):
        texts = as_text(cells).drop_nulls()
        return Counted(len(cells), len(texts), pl.DataFrame({"n": [len(texts)]}))

    def fit(self, f, values, *, budget):
        return Days(seen=sum(chunk["n"].sum() for chunk in values))

    def column(self, f, fitted, cells, missing):
        dates = as_text(cells).str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False, exact=True)
        rows = 1 + dates.dt.weekday().cast(pl.Int32).fill_null(0)
        return Cells(np.where(as_text(cells).is_null(), 0, rows.to_numpy()).astype(np.int32))


@dataclass(frozen=True, kw_only=True)
class Pair(Column):
    """Two numbers."""

    separator: str = "|"
    kind: Literal["pair"] = "pair"
    cell: ClassVar[Literal["list"]] = "list"
    max_length: ClassVar[None] = None
    shares: ClassVar[None] = None


@dataclass(frozen=True, kw_only=True)
class Positions:
    """How many numbers a vector has."""

    length: int
    kind: Literal["positions"] = "positions"
    rows: ClassVar[int] = 2


def pair_cell(encoder, value):
    """A vector's numbers, zeros for a missing one."""
    numbers = [float(text) for text in cell_texts(value, encoder.field.separator)]
    length = encoder.fitted.length
    if len(numbers) not in (0, length):
        raise ValueError(f"{length} numbers are needed")
    return [1 if numbers else 0], numbers or [0.0] * length


class PairKind(Kind):
    forms = (Positions,)
    plain_types = frozenset({type(None), str, int, float, list})
    cell = staticmethod(pair_cell)

    def count(self, f, cells, missing):
        lengths = as_list(cells, f.separator).list.len()
        return Counted(len(cells), int((lengths > 0).sum()), pl.DataFrame({"n": [lengths.max()]}))

    def fit(self, f, values, *, budget):
        return Positions(length=max(chunk["n"].max() for chunk in values))

    def column(self, f, fitted, cells, missing):
        lists = as_list(cells, f.separator).list.eval(pl.element().cast(pl.Float64)).to_list()
        if {len(numbers) for numbers in lists} - {0, fitted.length}:
            raise DataError(f"{fitted.length} numbers are needed")
        ids = np.array([1 if numbers else 0 for numbers in lists], np.int32)
        filled = [numbers or [0.0] * fitted.length for numbers in lists]
        return Cells(ids, numbers=np.array(filled, np.float32).reshape(-1, fitted.length))


@pytest.fixture(autouse=True, scope="module")
def _kinds_of_the_test():
    kinds = dict(REGISTERED)
    register(Weekday)(WeekdayKind)
    register(Pair)(PairKind)
    yield
    REGISTERED.clear()
    REGISTERED.update(kinds)


VARIANTS = {
    Categorical: [{}, {"min_count": 2}, {"hash_buckets": 50}],
    Numeric: [
        {},
        {"transform": "log", "missing": "vector"},
        {"transform": "minmax"},
        {"transform": "none"},
        {"encoding": "quantile"},
        {"encoding": "quantile", "transform": "log"},
        {"encoding": "uniform", "closed": "right", "bins": 3},
        {"encoding": "piecewise", "bins": 3},
        {"encoding": "piecewise", "bins": 4, "transform": "log", "point_masses": True},
        {"number_format": "1.234,5"},
    ],
    Bag: [
        {},
        {"pooling": "sum"},
        {"hash_buckets": 9, "separator": "a"},
        {"separator": "words"},
        {"hash_buckets": 9, "separator": "words"},
    ],
    Sequence: [{"max_length": 2}],
    Vector: [{}, {"normalise": True}],
}
"""Settings by which fields of a kind are encoded differently; a kind without any here is tested as it is."""
VECTORS = st.lists(FLOATS, min_size=2, max_size=2)
COLUMNS = {
    **TYPES,
    **{f"lists of {name}": (pl.List(kind), st.lists(values | st.none(), max_size=3), False)
       for name, (kind, values, _) in LISTS.items()},
    "vectors": (pl.List(pl.Float64), VECTORS, False),
    "vectors as text": (pl.String, st.sampled_from(["1|2", "0.5| -3", "", "1e3|7"]), False),
    "booleans as text": (pl.String, st.sampled_from(["True", "False", "tRUE", "FALSE"]), False),
    "dates as text": (pl.String, st.sampled_from(["2026-01-02", "2026-01-03 10:00:00", "x"]), False),
    "mixed text": (pl.String, TEXTS | st.sampled_from(["NA", "-999", "1.234,5", "7", "12"]), True),
}  # fmt: skip


def encode_whole(encoder, frame):
    """The column by its kind: rows, numbers, vectors among them, and lengths as lists."""
    (field,) = encoder.fields
    cells = kind_of(field).column(field, encoder.fitted[0], frame["x"], encoder.missing)
    lengths = np.ones(len(cells.ids), int) if cells.lengths is None else cells.lengths
    rows = np.split(cells.ids, np.cumsum(lengths)[:-1])
    numbers = [[]] * frame.height if cells.numbers is None else cells.numbers
    if cells.vectors is not None:
        numbers = cells.vectors.numbers(slice(None)).numpy()
    return [(row.tolist(), list(number)) for row, number in zip(rows, numbers, strict=True)]


@pytest.mark.parametrize("cls", [*REGISTERED, Weekday, Pair], ids=lambda cls: cls.__name__)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_cell_is_encoded_as_its_column_in_the_package_and_in_an_export(cls, data, tmp_path):
    options = data.draw(st.sampled_from(VARIANTS.get(cls, [{}])))
    field = cls("x", **options)
    names = sorted(COLUMNS)
    if cls is Pair:
        names = ["vectors", "vectors as text"]
    if cls is Vector:
        names = ["vectors", "lists of f32", "lists of f64"]
    kind, values, _ = COLUMNS[data.draw(st.sampled_from(names))]
    cells = data.draw(st.lists(values | st.none(), min_size=1, max_size=6))
    frame = pl.DataFrame({"x": pl.Series(cells, dtype=kind)})
    schema = Schema(fields=(field,), label=Label("y"), missing=("NA", "-999"))
    try:
        encoder = Encoder.fit(frame[: data.draw(st.integers(1, len(cells)))], schema)
        expected = encode_whole(encoder, frame)
    except (DataError, pl.exceptions.PolarsError):
        return  # an export may read what a table of another type refuses
    assert Encoder.from_json(encoder.to_json()) == encoder

    cell_encoder = CellEncoder(
        field, encoder.fitted[0], marks_of(encoder.missing), kind_of(field).cell, False, ((0, 0),)
    )
    for cell, (rows, numbers) in zip(cells, expected, strict=True):
        if not kind_of(field).encodes_cell(cell):
            continue
        cell_rows, cell_numbers = cell_encoder.cell(cell_encoder, cell)
        assert cell_rows == rows, cell
        np.testing.assert_array_equal(np.float32(cell_numbers), np.float32(numbers))
        batch = encode_row(encoder, encoder.layout, {"x": cell})
        ids = batch.bag_ids if encoder.layout.fields[0].kind == "bag" else batch.ids
        assert ids.ravel().tolist() == rows
        np.testing.assert_array_equal(batch.values.ravel(), np.float32(numbers))

    result = exported(encoder, tmp_path).encode([{"x": cell} for cell in cells])
    ids = result["bag_ids"] if encoder.layout.fields[0].kind == "bag" else result["ids"]
    assert ids.ravel().tolist() == [row for rows, _ in expected for row in rows]
    np.testing.assert_array_equal(
        result["values"].ravel(),
        np.float32([number for _, numbers in expected for number in numbers]),
    )


def test_a_kind_of_the_test_is_encoded_by_hand(tmp_path):
    """2 January 2026 is a Friday."""
    frame = pl.DataFrame({"day": ["2026-01-02", None, "soon"], "v": ["1|2", "", "3|4"]})
    schema = Schema(fields=(Weekday("day"), Pair("v")), label=Label("y"))
    encoder = Encoder.fit(frame, schema)
    rows = [encode_row(encoder, encoder.layout, row) for row in frame.to_dicts()]
    assert [row.ids.ravel().tolist() for row in rows] == [[6, 10], [0, 9], [1, 10]]
    assert [row.values.ravel().tolist() for row in rows] == [[1, 2], [0, 0], [3, 4]]
    program = exported(encoder, tmp_path)
    assert program.encode(frame.to_dicts())["ids"].tolist() == [[6, 10], [0, 9], [1, 10]]
    assert encode_row(encoder, encoder.layout, {"day": None, "v": "1|2|3"}) is None
    with pytest.raises(ValueError, match=r"row 0, column 'v': 2 numbers are needed, found '1'"):
        program.encode([{"day": None, "v": "1"}])
    reloaded = Encoder.from_json(encoder.to_json())
    assert reloaded == encoder
    table = reloaded.transform(frame.select("day", v=pl.lit("")).head(1), part=encoder.layout)
    assert table.ids.tolist() == [[6, 9]]

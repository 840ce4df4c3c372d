"""Every public function that takes a table takes all that `as_table` takes, and gives the same for each."""

import dataclasses
import datetime as dt
import importlib
import inspect
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from ids import ITEM, USER
from random_bundle import random_bundle

import fieldwise
from fieldwise import (
    FM,
    Bag,
    Bundle,
    Categorical,
    Encoder,
    IdColumns,
    IntTower,
    Label,
    Numeric,
    Recommender,
    Schema,
    TrainingSettings,
    as_table,
    infer_schema,
    load_recipe,
    prepare_recipe,
)
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.data.read.tables import TableLike
from fieldwise.explain import Subject, effects, explain
from fieldwise.scoring.recommend import recommend
from fieldwise.serving import (
    Ranker,
    build_index,
    evaluate_cascade,
    item_table,
    with_changed_items,
    without_items,
)

ROOMS = (
    "fieldwise",
    "fieldwise.evaluation",
    "fieldwise.explain",
    "fieldwise.scoring.recommend",
    "fieldwise.report",
)
ROOMS += ("fieldwise.layers", "fieldwise.models", "fieldwise.ops", "fieldwise.serving")
SCHEMA = Schema(
    fields=(
        USER,
        ITEM,
        Bag("genres", role="item"),
        Numeric("price", role="item"),
        Categorical("device"),
    ),
    label=Label("click"),
    keys=("user", "item"),
)
TOWER = IntTower(
    embedding_dim=4, hidden=(6, 5), user_heads=2, item_heads=3, head_dim=4, cir_weight=0
)
CATALOGUE = IdColumns(user="user", item="item", title="title")
QUICK = TrainingSettings(epochs=1)


def _log() -> pl.DataFrame:
    rng = np.random.default_rng(0)
    item = rng.integers(0, 20, 200)
    return pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, 8, 200)],
            "item": [f"i{k}" for k in item],
            "title": [f"Title {k}" for k in item],
            "genres": [f"g{k % 3}|g{k % 5}" for k in item],
            "price": [round(k * 0.37, 2) for k in item],
            "device": rng.choice(["phone", "tv"], 200),
            "click": rng.integers(0, 2, 200),
        }
    )


LOG = _log()
ITEMS = LOG.unique("item", maintain_order=True).select("item", "title", "genres", "price")
CONTEXTS = LOG.head(5).select("user", "device", "item", "click")
CONTEXT, NEW_USER = LOG.head(1).select("user", "device"), LOG.with_columns(user=pl.lit("new"))


@cache
def _ranker() -> Bundle:
    return random_bundle(FM(embedding_dim=4), SCHEMA, LOG, samples=LOG.head(7))


@cache
def _towers() -> Bundle:
    return random_bundle(TOWER, SCHEMA, LOG, samples=LOG.head(7))


@cache
def _fitted() -> Recommender:
    return Recommender(SCHEMA, FM(embedding_dim=4), training=QUICK).fit(LOG)


pytestmark = pytest.mark.filterwarnings("ignore:.* were trained on")
RECIPE = load_recipe("simulated/lr", ["data.rows=300"])
SIMULATED = fieldwise.simulate(300)
Given = Callable[[pl.DataFrame], Any]


def _index(given: Given, folder: Path) -> Any:
    return build_index(_towers(), given(ITEMS), folder / "index")[0]


def _cascade_report(given: Given, folder: Path) -> Any:
    ranker = Ranker(_ranker(), _index(as_table, folder), tower=_towers())
    report = evaluate_cascade(ranker, given(CONTEXTS), k=3, prerank=6)
    return {k: v for k, v in dataclasses.asdict(report).items() if k != "milliseconds"}


def _refitted(given: Given, **more: Any) -> np.ndarray:
    return (
        Recommender(SCHEMA, FM(embedding_dim=4), training=QUICK)
        .fit(given(LOG), **more)
        .decision_function(LOG)
    )


CASES: dict[str, Callable[[Given, Path], Any]] = {
    "fieldwise.Bundle.score": lambda given, _: _ranker().score(given(LOG)),
    "fieldwise.Bundle.predict": lambda given, _: _ranker().predict(given(LOG)),
    "fieldwise.Bundle.score_candidates": lambda given, _: _ranker().score_candidates(
        given(CONTEXT), given(ITEMS)
    ),
    "fieldwise.Encoder.fit": lambda given, _: Encoder.fit(given(LOG), SCHEMA).to_json(),
    "fieldwise.Bundle.grow": lambda given, _: _ranker().grow(given(NEW_USER))[0].digest,
    "fieldwise.Encoder.grow": lambda given, _: _ranker().encoder.grow(given(NEW_USER))[0].to_json(),
    "fieldwise.Encoder.transform": lambda given, _: _ranker().encoder.transform(given(LOG)).ids,
    "fieldwise.Recommender.fit": lambda given, _: _refitted(given, eval_set=given(LOG.tail(60))),
    "fieldwise.Recommender.predict": lambda given, _: _fitted().predict(given(LOG)),
    "fieldwise.Recommender.predict_proba": lambda given, _: _fitted().predict_proba(given(LOG)),
    "fieldwise.Recommender.decision_function": lambda given, _: _fitted().decision_function(
        given(LOG)
    ),
    "fieldwise.Recommender.score_candidates": lambda given, _: _fitted().score_candidates(
        given(CONTEXT), given(ITEMS)
    ),
    "fieldwise.Recommender.evaluate": lambda given, _: _fitted().evaluate(given(LOG)),
    "fieldwise.Bundle.recommend": lambda given, _: _ranker().recommend(
        given(LOG), CATALOGUE, users=["u1"]
    ),
    "fieldwise.Recommender.score": lambda given, _: _fitted().score(given(LOG)),
    "fieldwise.Recommender.explain": lambda given, _: (
        _fitted().explain(given(LOG.head(5)), background=given(LOG)).contributions
    ),
    "fieldwise.Recommender.plot": lambda given, _: str(_fitted().plot("roc", given(LOG))),
    "fieldwise.Recommender.recommend": lambda given, _: _fitted().recommend(
        given(LOG), CATALOGUE, "u1"
    ),
    "fieldwise.audit": lambda given, _: fieldwise.audit(given(LOG), "click").findings,
    "fieldwise.as_table": lambda given, _: as_table(given(LOG)),
    "fieldwise.explain.Subject.of": lambda given, _: (
        Subject.of(_ranker(), given(LOG.head(5)), background=given(LOG)).values
    ),
    "fieldwise.explain.explain": lambda given, _: (
        explain(_ranker(), given(LOG.head(5)), background=given(LOG)).contributions
    ),
    "fieldwise.explain.effects": lambda given, _: str(effects(_ranker(), given(LOG))),
    "fieldwise.infer_schema": lambda given, _: infer_schema(given(LOG), label="click").to_toml(),
    "fieldwise.prepare_recipe": lambda given, folder: (
        prepare_recipe(RECIPE, folder, given(SIMULATED)).train.table.ids
    ),
    "fieldwise.scoring.recommend.recommend": lambda given, _: recommend(
        _ranker(), given(LOG), CATALOGUE, users=["u1"]
    ),
    "fieldwise.serving.item_table": lambda given, _: item_table(given(ITEMS), "item").items,
    "fieldwise.serving.without_items": lambda given, _: without_items(
        given(ITEMS), given(ITEMS.head(3)), "item"
    ),
    "fieldwise.serving.with_changed_items": lambda given, _: with_changed_items(
        given(ITEMS), given(ITEMS.head(3).with_columns(price=pl.lit(9.5))), "item"
    ),
    "fieldwise.serving.build_index": lambda given, folder: _index(given, folder).items,
    "fieldwise.serving.evaluate_cascade": _cascade_report,
}
KEPT = {  # built by the package from tables that came through one of the above
    "fieldwise.scoring.recommend.BatchRecommender.__init__",
    "fieldwise.Bundle.__init__",
    "fieldwise.explain.Subject.__init__",
    "fieldwise.serving.ItemIndex.__init__",
    "fieldwise.serving.ItemTable.__init__",
    "fieldwise.serving.Ranker.encode",
}
GIVES_TABLES = (
    "fieldwise.Bundle.recommend",
    "fieldwise.Recommender.recommend",
    "fieldwise.scoring.recommend.recommend",
)


def _functions() -> Iterator[tuple[str, Any]]:
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value):
                own = [
                    vars(base)
                    for base in reversed(value.__mro__)
                    if base.__module__.startswith("fieldwise.")
                ]
                for attribute, member in {
                    name: member for names in own for name, member in names.items()
                }.items():
                    if not attribute.startswith("_") or attribute == "__init__":
                        bare = getattr(member, "__func__", getattr(member, "fn", member))
                        if inspect.isfunction(bare):
                            yield f"{room}.{name}.{attribute}", bare
            elif inspect.isfunction(value):
                yield f"{room}.{name}", value


def _takes_a_table(function: Any) -> bool:
    # what a module imports for its annotations alone
    late = {"np": np, "pl": pl, "Prepared": Prepared}
    hints = (
        get_type_hints(function, localns=late, include_extras=True)
        if function.__name__ != "__init__"
        else {}
    )
    hints = hints or function.__annotations__
    given = [str(hint) for name, hint in hints.items() if name != "return"]
    return any("DataFrame" in hint or str(TableLike) in hint for hint in given)


@pytest.mark.parametrize("name", GIVES_TABLES)
def test_a_table_comes_back_as_the_kind_that_went_in(name: str, tmp_path: Path) -> None:
    for kind, table in (("pandas", pd.DataFrame), ("pyarrow", pa.Table), ("lazy", pl.DataFrame)):
        assert isinstance(CASES[name](_given(kind, tmp_path), tmp_path), table), kind


def test_no_public_function_that_takes_a_table_is_left_out() -> None:
    results = {name for name, function in _functions() if _takes_a_table(function)}
    assert results - KEPT - {"fieldwise.as_table"} == CASES.keys() - {"fieldwise.as_table"}


KINDS = ("polars", "lazy", "pandas", "pyarrow", "path", "text path")


def _given(kind: str, folder: Path) -> Given:
    def write(frame: pl.DataFrame) -> Path:
        path = folder / f"{len(list(folder.iterdir()))}.parquet"
        frame.write_parquet(path)
        return path

    ways: dict[str, Given] = {
        "polars": lambda frame: frame,
        "lazy": pl.DataFrame.lazy,
        "pandas": lambda frame: frame.to_pandas().set_index(np.arange(frame.height)[::-1]),
        "pyarrow": pl.DataFrame.to_arrow,
        "path": write,
        "text path": lambda frame: str(write(frame)),
    }
    return ways[kind]


def test_every_kind_of_table_is_taken(subtests, tmp_path):
    others = KINDS[1:]
    # one kind each: all are turned into a table by one function
    for number, name in enumerate(CASES):
        with subtests.test(name=name):
            folder = tmp_path / name
            (folder / "tables").mkdir(parents=True)
            expected = CASES[name](lambda frame: frame, folder / "polars")
            kind = others[number % len(others)]
            result = CASES[name](_given(kind, folder / "tables"), folder / kind)
            if isinstance(expected, pl.DataFrame):
                assert as_table(result).equals(expected), kind
            else:
                np.testing.assert_equal(result, expected, kind)


def test_other_objects_than_tables_are_errors(subtests, tmp_path):
    for name in CASES:
        with (
            subtests.test(name=name),
            pytest.raises(
                fieldwise.DataError, match="a table must be a path, a polars DataFrame or LazyFrame"
            ),
        ):
            CASES[name](lambda frame: {"no", "table"} if frame.height > 1 else frame, tmp_path)


def test_a_category_of_pandas_has_the_text_of_a_cell_with_its_value(subtests) -> None:
    moments = pd.to_datetime(["2026-01-02", "2026-01-02 08:30:00.25", None], format="ISO8601")
    for cells in (
        pd.Series(moments),
        pd.Series(moments.tz_localize("UTC")),
        pd.Series(np.array([4.1, 7.0, np.nan], np.float32)),
        pd.Series([1.5, 1e-5, None]),
        pd.Series([True, False, None], dtype=object),
        pd.Series([dt.date(2026, 1, 2), dt.date(2026, 1, 3), None]),
        pd.Series(pd.to_timedelta([0.3, 86_400, None], unit="s")),
        pd.Series([Decimal("1.50"), Decimal("2"), None]),
    ):
        with subtests.test(dtype=str(cells.dtype)):
            plain = as_text(as_table(cells.to_frame("x")).get_column("x")).to_list()
            assert (
                as_text(as_table(cells.astype("category").to_frame("x")).get_column("x")).to_list()
                == plain
            )


def test_missing_periods_and_intervals_of_pandas_are_missing() -> None:
    frame = pd.DataFrame(
        {
            "month": pd.PeriodIndex(["2026-01", None], freq="M"),
            "bin": pd.arrays.IntervalArray.from_tuples([(0, 1), None]),
        }
    )
    table = as_table(frame)
    assert table.rows() == [("2026-01", "(0.0, 1.0]"), (None, None)]
    assert as_table(frame[1:]).dtypes == [pl.String, pl.String]


def test_a_column_of_uuids_is_text() -> None:
    ids = [UUID(int=12), None, UUID(int=2**127)]
    texts = [None if value is None else str(value) for value in ids]
    in_polars = pl.DataFrame({"who": pl.Series(ids, dtype=pl.Object)})
    for given in (
        pd.DataFrame({"who": pd.Series(ids, dtype=object)}),
        in_polars,
        in_polars.lazy(),
        {"who": ids},
    ):
        frame = as_table(given)
        assert frame.schema == {"who": pl.String}
        assert frame["who"].to_list() == texts


def test_polars_objects_of_several_types_stay_as_they_are() -> None:
    given = pl.DataFrame({"who": pl.Series([UUID(int=12), object()], dtype=pl.Object)})
    assert as_table(given).schema == {"who": pl.Object}

"""Requests completed from stores, against the same requests with their fields written out."""

import asyncio
import datetime as dt

import polars as pl
import pytest
from serving.conftest import SCHEMA, catalogue

from fieldwise import Categorical, Numeric
from fieldwise.serving import Ranker, build_index
from fieldwise.serving.rows import RequestError
from fieldwise.serving.service import Service
from fieldwise.serving.stores import (
    FeatureStore,
    Lookup,
    StoreError,
    StoreFacts,
    Stores,
    TableStore,
)

USERS = pl.DataFrame(
    {"user": [1, 2], "history": [["i1", "i2"], None], "device": ["tv", "phone"], "price": [5, 6]}
)
ITEMS = catalogue(4).with_columns(price=pl.Series([1, 2, 3, None]))
FIELDS = SCHEMA.fields


class Failing(FeatureStore):
    """A store that was opened and fails since."""

    kind = "redis"

    def __init__(self, store):
        self.column, self.columns, self.asked = store.column, store.columns, 0

    async def get(self, ids, columns=None):
        self.asked += 1
        raise StoreError("gone", "secret host")


def stores(users=None, items=None, **more):
    users = TableStore("user", USERS) if users is None else users
    items = TableStore("item", ITEMS) if items is None else items
    return Stores(users=Lookup("users", users), items=Lookup("items", items), **more)


def rows(given, store=None, fields=FIELDS, items=None):
    return asyncio.run((store or stores()).rows(given, fields, items))


def test_rows_that_name_users_and_items_alone_are_completed():
    given = [{"user": 1, "item": "i2"}, {"user": "2", "item": "i3"}, {"user": 1.0, "item": "i2"}]
    result, facts = rows(given)
    genres = ITEMS["genres"].to_list()
    first = {"history": ["i1", "i2"], "device": "tv", "genres": genres[2].split("|"), "price": 3.0}
    assert facts == StoreFacts()
    assert result[0] == {"user": 1, "item": "i2", **first}
    assert result[2] == {"user": 1.0, "item": "i2", **first}
    assert result[1]["history"] is None
    assert result[1]["price"] is None, "the item's, not the user's"
    given = {"user": 1, "item": "i1", "history": None, "price": 9, "genres": ["x"]}
    assert rows([given])[0] == [{**given, "device": "tv"}], (
        "given values override stored ones, also null"
    )
    for row, field, part in (
        ({"user": 1, "item": "i9"}, "rows[1].item", "an item"), ({"user": 3, "item": "i1"}, "rows[1].user", "a user"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=f"{part} must be known to the server") as caught:
            rows([{"user": 1, "item": "i1"}, row])
        assert (caught.value.field, caught.value.status) == (field, 404)


def test_whole_rows_and_rows_without_ids_ask_no_store():
    whole = {
        "user": "nobody",
        "item": "none",
        "history": None,
        "device": None,
        "genres": None,
        "price": None,
    }
    users, items = Failing(TableStore("user", USERS)), Failing(TableStore("item", ITEMS))
    store = stores(users, items)
    given = [whole, {}, {"user": None, "item": ["i1"]}, {"user": {"a": 1}, "item": float("nan")}]
    assert rows(given, store) == (given, StoreFacts())
    assert users.asked == items.asked == 0
    whole = {"history": [], "device": "tv", "price": 1}
    assert asyncio.run(store.context("1", whole, FIELDS)) == ({"user": "1", **whole}, StoreFacts())
    with pytest.raises(RequestError, match="cannot be reached"):
        asyncio.run(store.context("1", {"device": "tv"}, FIELDS))

    class Counting(TableStore):
        async def get(self, ids, columns=None):
            asked.append(list(ids))
            return await super().get(ids, columns)

    asked = []
    several = [{"user": 1}, {"user": "1"}, {"user": 2}, {"user": 1, "history": [], "device": "a"}]
    rows(several, stores(Counting("user", USERS)))
    assert asked == [["1", "2"]], "each id once"


def test_items_of_the_index_serve_where_there_is_no_store(tmp_path, tower):
    numbered = catalogue(5).with_columns(item=pl.int_range(5), price=pl.date(2026, 1, 2))
    service = Service(
        ranker=Ranker(None, build_index(tower, numbered, tmp_path / "ix")[0], tower=tower)
    )
    result, _ = rows([{"user": 1, "item": 4.0}], Stores(), items=service.item_rows)
    genres = numbered["genres"][4]
    seconds = dt.datetime(2026, 1, 2, tzinfo=dt.UTC).timestamp()
    assert result == [
        {"user": 1, "item": 4.0, "genres": genres.split("|") if genres else [""], "price": seconds}
    ]


def test_a_store_that_fails():
    given = [{"user": 1, "item": "i1"}, {"user": 2, "item": "i2", "device": "tv"}]
    with pytest.raises(
        RequestError, match="the users' store cannot be reached: retry later"
    ) as caught:
        rows(given, stores(Failing(TableStore("user", USERS))))
    assert (caught.value.field, caught.value.status) == ("rows[0].user", 503)
    result, facts = rows(given, stores(Failing(TableStore("user", USERS)), on_failure="degrade"))
    (missing,) = facts.degraded
    assert (missing.store, missing.ids, missing.columns) == (
        "users",
        ["1", "2"],
        ["device", "history"],
    )
    assert missing.message == "the users' store cannot be reached: device, history taken as null"
    assert [row["history"] for row in result] == [None, None]
    assert [row["device"] for row in result] == [None, "tv"]
    assert result[0]["price"] == 2.0, "items are there"


def test_a_context_is_completed():
    store = stores()
    result = asyncio.run(store.context("1", {"device": "radio"}, FIELDS))
    assert result == ({"user": "1", "history": ["i1", "i2"], "device": "radio"}, StoreFacts())
    assert asyncio.run(store.context(None, {"a": 1}, FIELDS)) == ({"a": 1}, StoreFacts())
    assert asyncio.run(store.context("1", {"user": 1.0}, FIELDS))[0]["history"] == ["i1", "i2"]
    with pytest.raises(RequestError, match="must be that of the user '1', found '2'"):
        asyncio.run(store.context("1", {"user": 2}, FIELDS))
    for user, status, users in (("3", 404, store), ("1", 422, Stores())):
        with pytest.raises(RequestError) as caught:
            asyncio.run(users.context(user, {}, FIELDS))
        assert (caught.value.field, caught.value.status) == ("user", status)


def test_stored_values_that_a_field_cannot_have():
    items = TableStore("item", ITEMS.with_columns(price=pl.Series(["1", "cheap", "1e39", None])))
    given = [{"user": 1, "item": f"i{k}"} for k in (0, 1, 2)]
    with pytest.raises(RequestError, match="the items' store has unreadable data") as caught:
        rows(given, stores(items=items))
    assert (caught.value.field, caught.value.status) == ("rows[1].item", 503)
    result, facts = rows(given, stores(items=items, on_failure="degrade"))
    assert [row["price"] for row in result] == [1.0, None, None]
    assert [(one.ids, one.columns, one.reason) for one in facts.degraded] == [
        (["i1", "i2"], ["price"], "damaged")
    ]
    given_price = [{**given[1], "price": 2}]
    assert rows(given_price, stores(items=items))[1] == StoreFacts(), "given, so not missed"


def test_times_are_numbers_where_the_model_reads_numbers():
    """As a table's: a bundle scores a stored row as the same row of a frame."""
    from fieldwise.data.encode.columns import as_number, as_text

    frame = pl.DataFrame(
        {
            "user": ["a", "b"], "day": [dt.date(2026, 1, 2), dt.date(1969, 12, 30)],
            "moment": [dt.datetime(2026, 1, 2, 3, 4, 5, 600_000), dt.datetime(1950, 1, 2, 3, 4, 5)],
            "clock": [dt.time(23, 59, 58), dt.time(0, 0, 1)], "took": [dt.timedelta(hours=1), dt.timedelta(days=2)],
            "code": ["20260102", "12"],
        }
    )  # fmt: skip
    names = frame.columns[1:]
    numbers = [Numeric(name, role="user") for name in names]
    result, _ = rows([{"user": "a"}, {"user": "b"}], stores(TableStore("user", frame)), numbers)
    for name in names:
        assert [row[name] for row in result] == as_number(frame[name], name).to_list(), name
    texts = [Categorical(name, role="user") for name in names if name != "took"]
    result, _ = rows([{"user": "a"}, {"user": "b"}], stores(TableStore("user", frame)), texts)
    for field in texts:
        assert [row[field.name] for row in result] == as_text(frame[field.name]).to_list()

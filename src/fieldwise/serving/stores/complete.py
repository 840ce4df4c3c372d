"""Requests completed from stores: given values take precedence; missing ones are null and reported, or an error."""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any, Literal

from fieldwise.schema import Field
from fieldwise.serving.faults import FAULTS
from fieldwise.serving.rows import RequestError, text_of, values_of
from fieldwise.serving.stores.base import FeatureStore, Reason, Row, StoreError
from fieldwise.serving.stores.lookup import Lookup

__all__ = ["Missing", "OnFailure", "StoreRefusedError", "Stores"]

OnFailure = Literal["degrade", "refuse"]
WHY: Mapping[Reason, str] = {
    "slow": "did not answer in time",
    "gone": "cannot be reached",
    "paused": "failed a moment ago and will be retried soon",
    "damaged": "has unreadable data",
}


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Values that were missing for a response.

    Args:
        store: `users` or `items`.
        ids: the ids whose values are missing.
        columns: the missing columns, taken as null.
        reason: `slow`, `gone`, `paused` (it failed a moment ago) or `damaged` (unreadable data).
        message: the same as a sentence.
    """

    store: str
    ids: list[str]
    columns: list[str]
    reason: Reason
    message: str


class StoreRefusedError(RequestError):
    """A request that is rejected with 503 because a store failed.

    Args:
        store: `users` or `items`.
        reason: as in `Missing`.
        place: the part of the request with the id.
    """

    def __init__(self, store: str, reason: Reason, place: str) -> None:
        super().__init__(f"the {store}' store {WHY[reason]}: retry later, or give the fields", place, 503)
        self.store, self.reason = store, reason


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The stores of a server.

    Args:
        users: the store of users by id.
        items: the store of items by id; default: the items of the index.
        on_failure: handling of store failures: `refuse` the request with 503, or `degrade` the response, with null
            for missing values.
    """

    users: Lookup | None = None
    items: Lookup | None = None
    on_failure: OnFailure = "refuse"

    @property
    def lookups(self) -> list[Lookup]:
        """The configured stores."""
        return [one for one in (self.users, self.items) if one is not None]

    async def open(self) -> None:
        """Connect and check.

        Errors:
            ConfigError: as for `FeatureStore.open`.
        """
        for one in self.lookups:
            await one.open()

    async def close(self) -> None:
        """Close connections."""
        for one in self.lookups:
            await one.close()

    async def states(self) -> dict[str, dict[str, str]]:
        """Each store's kind and current state."""
        await asyncio.gather(*(one.get([]) for one in self.lookups), return_exceptions=True)
        return {one.name: {"kind": one.kind, "state": one.state} for one in self.lookups}

    async def context(
        self, user: str | None, context: Mapping[str, Any], fields: Iterable[Field]
    ) -> tuple[dict[str, Any], list[Missing]]:
        """A context with the fields of a user.

        Args:
            user: id of the user; None for a complete context.
            context: given values by column, which take precedence.
            fields: a model's user and context fields.

        Errors:
            RequestError: an unknown user (404); no store of users (422); a store that fails (503).
        """
        if user is None:
            return dict(context), []
        if self.users is None:
            raise RequestError("this server has no users: give their fields as context", "user")
        needed = [f for f in fields if f.column != self.users.column]
        lacking = {f.column for f in needed} - context.keys()
        values, missing = await self._values("users", self.users, {user: "user"}, needed, lacking)
        return {self.users.column: user, **values[user], **context}, missing

    async def rows(
        self, rows: Sequence[Mapping[str, Any]], fields: Sequence[Field], items: FeatureStore | None = None
    ) -> tuple[list[dict[str, Any]], list[Missing]]:
        """Rows completed with the stored values of their users and items.

        Args:
            rows: given values by column, which take precedence; no store is queried for a complete row.
            fields: a model's fields.
            items: used if there is no store of items.

        Errors:
            RequestError: as for `context`.
        """
        whole = [dict(row) for row in rows]
        both: tuple[tuple[str, FeatureStore | None], ...] = (("users", self.users), ("items", self.items or items))
        added = await asyncio.gather(
            *(self._added(name, store, rows, fields) for name, store in both if store is not None)
        )
        for values, _ in added:
            for row, more in zip(whole, values, strict=True):
                row |= {column: value for column, value in more.items() if column not in row}
        return whole, [one for _, missing in added for one in missing]

    async def _added(
        self, name: str, store: FeatureStore, rows: Sequence[Mapping[str, Any]], fields: Sequence[Field]
    ) -> tuple[list[Mapping[str, Any]], list[Missing]]:
        """The values that one store adds to each row."""
        held = set(store.columns) - {store.column}
        needed = [f for f in fields if f.column in held and (f.role == "item") == (name == "items")]
        columns = {f.column for f in needed}
        ids: list[str | None] = [None] * len(rows)
        places: dict[str, str] = {}
        lacking: set[str] = set()
        for number, row in enumerate(rows):
            if not columns <= row.keys() and (one := _id_of(row, store.column)) is not None:
                ids[number] = one
                places.setdefault(one, f"rows[{number}].{store.column}")
                lacking |= columns - row.keys()
        values, missing = await self._values(name, store, places, needed, lacking) if places else ({}, [])
        return [{} if one is None else values[one] for one in ids], missing

    async def _values(
        self, name: str, store: FeatureStore, places: Mapping[str, str], needed: Sequence[Field], lacking: set[str]
    ) -> tuple[dict[str, dict[str, Any]], list[Missing]]:
        """The values of the needed fields by id; `places` are the parts of the request with the ids."""
        try:
            rows = await store.get(list(places), {field.column for field in needed})
        except StoreError as e:
            columns = sorted(lacking & set(store.columns))
            missing = self._without(name, list(places), columns, e.reason, next(iter(places.values())))
            return {one: dict.fromkeys(columns) for one in places}, missing
        values, damaged = {}, []
        for (one, place), row in zip(places.items(), rows, strict=True):
            if row is None:
                who, how = ("an item", "") if name == "items" else ("a user", " as context" if place == "user" else "")
                raise RequestError(
                    f"{who} must be known to the server, found {one[:60]!r}: give its fields{how}", place, 404
                )
            held = row.keys() | set(store.columns)
            values[one], unreadable = _readable(row, [f for f in needed if f.column in held])
            damaged += self._without(name, [one], sorted(lacking & unreadable), "damaged", place)
        return values, damaged

    def _without(self, name: str, ids: list[str], columns: list[str], reason: Reason, place: str) -> list[Missing]:
        """A report of missing columns, if there are any and degraded responses are allowed."""
        if not columns:
            return []
        if self.on_failure == "refuse":
            raise StoreRefusedError(name, reason, place)
        message = f"the {name}' store {WHY[reason]}: {', '.join(columns)} taken as null"
        return [Missing(store=name, ids=ids, columns=columns, reason=reason, message=message)]


def _readable(stored: Row, needed: Sequence[Field]) -> tuple[dict[str, Any], set[str]]:
    """The values of fields in a stored row, with null for unreadable ones, and the columns of these."""
    values: dict[str, Any] = {}
    unreadable = set()
    for field in needed:
        value = stored.get(field.column)
        try:
            if field.cell == "number" and isinstance(value, str):
                value = _number(value)
            values |= values_of({field.column: value}, [field], "stored")
        except FAULTS:
            values[field.column] = None
            unreadable.add(field.column)
    return values, unreadable


def _number(text: str) -> Any:
    """A stored date or time as seconds, as numeric fields read it from tables; other text unchanged."""
    try:
        if text[2:3] == ":":
            clock = time.fromisoformat(text)
            return clock.hour * 3600 + clock.minute * 60 + clock.second
        if text[4:5] != "-":
            return text
        moment = datetime.fromisoformat(text)
    except ValueError:
        return text
    return math.floor((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _id_of(row: Mapping[str, Any], column: str) -> str | None:
    try:
        return text_of(row.get(column)) or None
    except (TypeError, ValueError):
        return None  # the error is raised when the row is read

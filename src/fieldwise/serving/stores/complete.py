"""Requests completed from stores: what is given counts first, what a store cannot give is null and said, or refused."""

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
    "paused": "failed a moment ago and is tried again soon",
    "damaged": "holds what cannot be read",
}


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What an answer had to do without.

    Args:
        store: `users` or `items`.
        ids: whose values are missing.
        columns: which of their values; they count as null.
        reason: `slow`, `gone`, `paused` (it failed a moment ago) or `damaged` (it holds what cannot be read).
        message: the same in a sentence.
    """

    store: str
    ids: list[str]
    columns: list[str]
    reason: Reason
    message: str


class StoreRefusedError(RequestError):
    """A request that is refused with 503 since a store cannot give what it needs.

    Args:
        store: `users` or `items`.
        reason: as of `Missing`.
        place: where the request names whose values are missing.
    """

    def __init__(self, store: str, reason: Reason, place: str) -> None:
        super().__init__(f"the {store}' store {WHY[reason]}: ask again later, or give the fields", place, 503)
        self.store, self.reason = store, reason


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The stores of a server.

    Args:
        users: by the id of a user.
        items: by the id of an item; where there is none, the items of the index are taken.
        on_failure: what becomes of a request when a store fails: `refuse` it with 503, or `degrade` the answer, with
            null for what is missing.
    """

    users: Lookup | None = None
    items: Lookup | None = None
    on_failure: OnFailure = "refuse"

    @property
    def lookups(self) -> list[Lookup]:
        """Those that there are."""
        return [one for one in (self.users, self.items) if one is not None]

    async def open(self) -> None:
        """Connect and check.

        Errors:
            ConfigError: as of `FeatureStore.open`.
        """
        for one in self.lookups:
            await one.open()

    async def close(self) -> None:
        """Give connections back."""
        for one in self.lookups:
            await one.close()

    async def states(self) -> dict[str, dict[str, str]]:
        """Each store's kind and state, asked now."""
        await asyncio.gather(*(one.get([]) for one in self.lookups), return_exceptions=True)
        return {one.name: {"kind": one.kind, "state": one.state} for one in self.lookups}

    async def context(
        self, user: str | None, context: Mapping[str, Any], fields: Iterable[Field]
    ) -> tuple[dict[str, Any], list[Missing]]:
        """A context with the fields of a user.

        Args:
            user: who; None for a context that is whole.
            context: values by column, which count first.
            fields: what a model reads of users and contexts.

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
        """Rows with what the stores hold of the users and items that they name.

        Args:
            rows: values by column, which count first; a row that has all columns asks no store.
            fields: what a model reads.
            items: taken where there is no store of items.

        Errors:
            RequestError: as of `context`.
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
        """For each row what one store adds to it."""
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
        """By id what the needed fields read of a store; `places` are the ids' in the request."""
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
        """What is said of missing columns, if there are any and the answer may be degraded."""
        if not columns:
            return []
        if self.on_failure == "refuse":
            raise StoreRefusedError(name, reason, place)
        message = f"the {name}' store {WHY[reason]}: {', '.join(columns)} counted as null"
        return [Missing(store=name, ids=ids, columns=columns, reason=reason, message=message)]


def _readable(stored: Row, needed: Sequence[Field]) -> tuple[dict[str, Any], set[str]]:
    """What fields read of a stored row, null for what they cannot, and the columns of the latter."""
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
    """A stored date or time as the seconds that a numeric field reads of a table's; other texts as they are."""
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
        return None  # who reads the row will say what is wrong

"""Requests completed from stores: what is given counts first, what a store cannot give is null and said, or refused."""

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time
from typing import Any, Literal

from fieldwise.schema import Field, Numeric
from fieldwise.serving.rows import RequestError, text_of, values_of
from fieldwise.serving.stores.base import FeatureStore, Reason, Row, StoreError
from fieldwise.serving.stores.lookup import Lookup

__all__ = ["Missing", "OnFailure", "Stores"]

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
        (whole,), missing = await _completed([context], [user], needed, self.users, "users", "user", self.on_failure)
        return {self.users.column: user, **whole}, missing

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
        whole, missing = [dict(row) for row in rows], []
        for name, source in (("users", self.users), ("items", self.items or items)):
            if source is None:
                continue
            columns = set(source.columns)
            own = [f for f in fields if (f.role == "item") == (name == "items")]
            needed = [f for f in own if f.column in columns and f.column != source.column]
            ids = [_id_of(row, source.column) if any(f.column not in row for f in needed) else None for row in whole]
            if any(one is not None for one in ids):
                place = f"rows[{{}}].{source.column}"
                whole, found = await _completed(whole, ids, needed, source, name, place, self.on_failure)
                missing += found
        return whole, missing


async def _completed(
    rows: Sequence[Mapping[str, Any]],
    ids: Sequence[str | None],
    needed: Sequence[Field],
    source: FeatureStore,
    name: str,
    place: str,
    on_failure: OnFailure,
) -> tuple[list[dict[str, Any]], list[Missing]]:
    """Each row with an id, over what the source holds of it; `place` is the id's in the request."""
    wanted = list(dict.fromkeys(one for one in ids if one is not None))
    lacking = {f.column: None for row, one in zip(rows, ids, strict=True) if one for f in needed if f.column not in row}
    try:
        found = dict(zip(wanted, await source.get(wanted), strict=True))
    except StoreError as e:
        columns = [column for column in lacking if column in source.columns]
        if columns and on_failure == "refuse":
            raise _refused(name, e.reason, place.format(_first(ids))) from None
        missing = [_missing(name, wanted, columns, e.reason)] if columns else []
        return [dict.fromkeys(columns) | dict(row) if one else dict(row) for row, one in zip(rows, ids, strict=True)], (
            missing
        )
    known: dict[str, dict[str, Any]] = {}
    damaged: list[Missing] = []
    for one, row in found.items():
        if row is None:
            number = ids.index(one)
            kind = name.removesuffix("s")
            article = "an" if kind == "item" else "a"
            raise RequestError(
                f"{article} {kind} must be known to the server, found {one[:60]!r}: give its fields"
                + (" as context" if place == "user" else ""),
                place.format(number),
                404,
            )
        known[one], unreadable = _readable(row, [f for f in needed if f.column in source.columns or f.column in row])
        unreadable = [column for column in unreadable if column in lacking]
        if unreadable and on_failure == "refuse":
            raise _refused(name, "damaged", place.format(ids.index(one)))
        if unreadable:
            damaged.append(_missing(name, [one], unreadable, "damaged"))
    return [known[one] | dict(row) if one else dict(row) for row, one in zip(rows, ids, strict=True)], damaged


def _readable(stored: Row, needed: Sequence[Field]) -> tuple[dict[str, Any], list[str]]:
    """What fields read of a stored row, null for what they cannot, and the columns of the latter."""
    values: dict[str, Any] = {}
    unreadable = []
    for field in needed:
        value = stored.get(field.column)
        if isinstance(field, Numeric) and isinstance(value, str):
            value = _number(value)
        try:
            values |= values_of({field.column: value}, [field], "stored")
        except RequestError:
            values[field.column] = None
            unreadable.append(field.column)
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


def _first(ids: Sequence[str | None]) -> int:
    return next(number for number, one in enumerate(ids) if one is not None)


def _refused(name: str, reason: Reason, field: str) -> RequestError:
    return RequestError(f"the {name}' store {WHY[reason]}: ask again later, or give the fields", field, 503)


def _missing(name: str, ids: list[str], columns: list[str], reason: Reason) -> Missing:
    message = f"the {name}' store {WHY[reason]}: {', '.join(columns)} counted as null"
    return Missing(store=name, ids=ids, columns=columns, reason=reason, message=message)

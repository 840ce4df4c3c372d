"""Requests completed with stored values: given ones take precedence, missing ones are null or an error."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from fieldwise.schema import Field
from fieldwise.schema.ids import FEATURES_TIME, FEATURES_TTL
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.serving.rows import FAULTS, RequestError, text_of, values_of
from fieldwise.serving.stores.base import REASON_TEXTS, UNREADABLE, Reason, Row, StoreError
from fieldwise.serving.stores.lookup import Lookup

OnFailure = Literal["degrade", "refuse"]
DATE_OR_TIME = re.compile(r"\d\d:|\d{4}-")


@dataclass(frozen=True)
class Missing:
    """Values that were missing for a response: the `columns` of `ids` in a store (`users`, `items`), taken as null."""

    store: str
    ids: list[str]
    columns: list[str]
    reason: Reason
    message: str


Enriched = tuple[list[dict[str, Any]], list[Missing]]
"""Rows, and what they lack."""


class StoreRefusedError(RequestError):
    """A request that is refused because a store failed."""

    def __init__(self, store: str, reason: Reason, field: str) -> None:
        super().__init__(
            f"the {store}' store {REASON_TEXTS[reason]}: retry later, or give the fields",
            field,
            503,
        )
        self.store = store
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Stores:
    """The stores of a server.

    Args:
        users: features of users.
        items: features of items; those of the index if omitted.
        on_failure: `refuse` the request with 503, or `degrade` the response.
    """

    users: Lookup | None = None
    items: Lookup | None = None
    on_failure: OnFailure = "refuse"

    @property
    def lookups(self) -> list[Lookup]:
        """Those that there are."""
        return [lookup for lookup in (self.users, self.items) if lookup is not None]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Connect to each store and check it, then close the connections."""
        try:
            for lookup in self.lookups:
                await lookup.store.open()
            yield
        finally:
            for lookup in self.lookups:
                await lookup.store.close()

    async def states(self) -> dict[str, dict[str, str]]:
        """Each store's kind and current state."""
        health_checks = [lookup.get([]) for lookup in self.lookups]
        await asyncio.gather(*health_checks, return_exceptions=True)
        return {
            lookup.name: {"kind": lookup.kind, "state": lookup.state} for lookup in self.lookups
        }

    async def context(
        self,
        user: Any,
        context: Row,
        fields: Iterable[Field],
        *,
        missing: Sequence[str] = MISSING_MARKS,
    ) -> tuple[dict[str, Any], list[Missing]]:
        """A context with the stored fields of a user (None: as it is given), and what the store lacks.

        `missing` has the marks of missing numbers, as `request_frame`.
        """
        if user is None:
            return dict(context), []
        if self.users is None:
            raise RequestError("this server has no users: give their fields as context", "user")

        column = self.users.column
        is_same_user = True
        with suppress(TypeError, ValueError):  # the error is raised when the row is read
            is_same_user = text_of(context.get(column, user)) == text_of(user)
        if not is_same_user:
            raise RequestError(
                f"a context must be that of the user {str(user)[:60]!r}, found {str(context[column])[:60]!r}",
                f"context.{column}",
            )

        rows = [{**context, column: user}]
        added, missing_values = await self._stored(self.users, rows, fields, missing, "user")
        return {column: user, **added[0], **context}, missing_values

    async def rows(
        self,
        rows: Sequence[Row],
        fields: Sequence[Field],
        items: Lookup | None = None,
        *,
        missing: Sequence[str] = MISSING_MARKS,
    ) -> Enriched:
        """Rows with the stored values of their users and items (of `items`, if there is no store of them).

        No store is asked for a complete row. `missing` has the marks of missing numbers, as
        `request_frame`.
        """
        lookups = [lookup for lookup in (self.users, self.items or items) if lookup is not None]
        answers = await asyncio.gather(
            *(self._stored(lookup, rows, fields, missing) for lookup in lookups)
        )
        enriched = [dict(row) for row in rows]
        missing_values: list[Missing] = []
        for added, missing_in_store in answers:
            enriched = [row | more | row for row, more in zip(enriched, added, strict=True)]
            missing_values += missing_in_store
        return enriched, missing_values

    async def _stored(
        self,
        lookup: Lookup,
        rows: Sequence[Row],
        fields: Iterable[Field],
        marks: Sequence[str],
        field: str = "",
    ) -> Enriched:
        """The values that a store adds to each row; `field` is the part of the request with a single row's id."""
        needed = _stored_fields(lookup, fields)
        columns = {field.column for field in needed}
        ids: list[str | None] = []
        field_of_id: dict[str, str] = {}
        not_given: set[str] = set()
        for number, row in enumerate(rows):
            row_id = None
            if field or not columns <= row.keys():
                row_id = _id_in(row, lookup.column)
            ids.append(row_id)
            if row_id is not None:
                field_of_id.setdefault(row_id, field or f"rows[{number}].{lookup.column}")
                not_given |= columns - row.keys()

        stamps = {FEATURES_TIME, FEATURES_TTL}.intersection(lookup.store.columns)
        stored_rows, reason = await _rows_or_reason(lookup, list(field_of_id), columns | stamps)

        values: dict[str | None, dict[str, Any]] = {None: {}}
        ids_by_missing: dict[tuple[Reason, tuple[str, ...]], list[str]] = {}
        for (row_id, id_field), stored in zip(field_of_id.items(), stored_rows, strict=True):
            if stored is None:
                raise _unknown_id(lookup.name, row_id, id_field, has_context=bool(field))
            readable = _readable_values(stored, needed, marks)
            stale = not_given & _stale_columns(stored, lookup.store.columns)
            if stale:
                readable |= dict.fromkeys(stale)
                ids_by_missing.setdefault(("stale", tuple(sorted(stale))), []).append(row_id)
            missing_columns = tuple(sorted(not_given - readable.keys()))
            if missing_columns:
                if self.on_failure == "refuse":
                    raise StoreRefusedError(lookup.name, reason, id_field)
                ids_by_missing.setdefault((reason, missing_columns), []).append(row_id)
            values[row_id] = readable | dict.fromkeys(missing_columns)

        missing = []
        for (why, missing_columns), row_ids in ids_by_missing.items():
            message = (
                f"the {lookup.name}' store {REASON_TEXTS[why]}: {', '.join(missing_columns)} "
                "taken as null"
            )
            missing.append(Missing(lookup.name, row_ids, list(missing_columns), why, message))
        return [values[row_id] for row_id in ids], missing


def _stored_fields(lookup: Lookup, fields: Iterable[Field]) -> list[Field]:
    """The fields of the store's side, users or items, whose columns it has."""
    stored_columns = set(lookup.store.columns) - {lookup.column}
    of_items = lookup.name == "items"
    return [
        field
        for field in fields
        if field.column in stored_columns and (field.role == "item") == of_items
    ]


def _id_in(row: Row, column: str) -> str | None:
    """A row's id as text; None without a valid one: the error is raised when the row is read."""
    try:
        return text_of(row.get(column)) or None
    except (TypeError, ValueError):
        return None


async def _rows_or_reason(
    lookup: Lookup, ids: list[str], columns: Collection[str]
) -> tuple[list[Row | None], Reason]:
    """The rows of ids, `UNREADABLE` if the store fails, and the reason of what cannot be read."""
    if not ids:
        return [], "damaged"
    try:
        return await lookup.get(ids, columns), "damaged"
    except StoreError as e:
        return [UNREADABLE] * len(ids), e.reason


def _stale_columns(row: Row, columns: Sequence[str]) -> set[str]:
    """The columns of features in a stored row that are older than their time to live."""
    computed = row.get(FEATURES_TIME)
    time_to_live = row.get(FEATURES_TTL)
    if computed is None or time_to_live is None or time.time() - computed <= time_to_live:
        return set()
    return set(columns[list(columns).index(FEATURES_TTL) + 1 :])


def _unknown_id(store: str, row_id: str, field: str, *, has_context: bool) -> RequestError:
    """The error of an id that a store does not have."""
    if store == "items":
        subject = "an item"
        remedy = "give its fields"
    else:
        subject = "a user"
        remedy = "give its fields as context" if has_context else "give its fields"
    return RequestError(
        f"{subject} must be known to the server, found {row_id[:60]!r}: {remedy}", field, 404
    )


def _readable_values(row: Row, fields: Sequence[Field], marks: Sequence[str]) -> dict[str, Any]:
    """The values of fields in a stored row, without the unreadable ones; dates and times of numbers are seconds."""
    values: dict[str, Any] = {}
    if row is UNREADABLE:
        return values
    for field in fields:
        value = row.get(field.column)
        with suppress(*FAULTS):
            if field.cell == "number" and isinstance(value, str) and DATE_OR_TIME.match(value):
                value = _unix_seconds(value)
            if value != value:  # NaN
                value = None
            values |= values_of({field.column: value}, [field], "stored", missing=marks)
    return values


def _unix_seconds(text: str) -> int:
    """The whole seconds since 1970 of a date, or those of a time of day, in UTC if it has no zone."""
    if text[2] == ":":
        text = f"1970-01-01T{text}"
    moment = datetime.fromisoformat(text)
    return math.floor(moment.replace(tzinfo=moment.tzinfo or UTC).timestamp())

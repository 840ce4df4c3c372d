"""Requests completed with stored values: given ones take precedence, missing ones are null or an error."""

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime
from typing import Any, Literal

from fieldwise.schema import Field
from fieldwise.schema.ids import FEATURES_TIME, FEATURES_TTL
from fieldwise.schema.number_format import MISSING_MARKS
from fieldwise.serving.rows import RequestError, text_of, values_of
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


@dataclass(frozen=True)
class StoreFacts:
    """What a response says of its stored values.

    Args:
        degraded: the missing ones.
        features_age: by store, the age in seconds of the oldest features that were used.
    """

    degraded: list[Missing] = dataclass_field(default_factory=list)
    features_age: dict[str, float] = dataclass_field(default_factory=dict)


Enriched = tuple[list[dict[str, Any]], StoreFacts]
"""Rows with stored values, and what these are."""


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
        features: Collection[str] = (),
    ) -> tuple[dict[str, Any], StoreFacts]:
        """A context with the stored fields of a user (None: as it is given), and what these are.

        `missing` has the marks of missing numbers, as `request_frame`; `features` the columns that are
        too old after the store's time to live.
        """
        if user is None:
            return dict(context), StoreFacts()
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
        added, facts = await self._stored(self.users, rows, fields, missing, features, "user")
        return {column: user, **added[0], **context}, facts

    async def rows(
        self,
        rows: Sequence[Row],
        fields: Sequence[Field],
        items: Lookup | None = None,
        *,
        missing: Sequence[str] = MISSING_MARKS,
        features: Collection[str] = (),
    ) -> Enriched:
        """Rows with the stored values of their users and items (of `items`, if there is no store of them).

        No store is asked for a complete row. `missing` and `features` are as of `context`.
        """
        lookups = [lookup for lookup in (self.users, self.items or items) if lookup is not None]
        answers = await asyncio.gather(
            *(self._stored(lookup, rows, fields, missing, features) for lookup in lookups)
        )
        enriched = [dict(row) for row in rows]
        of_all = StoreFacts()
        for added, facts in answers:
            enriched = [row | more | row for row, more in zip(enriched, added, strict=True)]
            of_all.degraded.extend(facts.degraded)
            of_all.features_age.update(facts.features_age)
        return enriched, of_all

    async def _stored(
        self,
        lookup: Lookup,
        rows: Sequence[Row],
        fields: Iterable[Field],
        marks: Sequence[str],
        features: Collection[str],
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

        has_stamps = FEATURES_TTL in lookup.store.columns
        stamps = [FEATURES_TIME, FEATURES_TTL] if has_stamps else []
        stored_rows, reason = await _rows_or_reason(
            lookup, list(field_of_id), columns.union(stamps)
        )

        values: dict[str | None, dict[str, Any]] = {None: {}}
        answer = _AnswerOfStore(lookup.name)
        for (row_id, id_field), stored in zip(field_of_id.items(), stored_rows, strict=True):
            if stored is None:
                raise _unknown_id(lookup.name, row_id, id_field, has_context=bool(field))
            readable = _readable_values(stored, needed, marks)
            stale = answer.add_features(row_id, stored, not_given.intersection(features, readable))
            missing_columns = not_given - readable.keys()
            if missing_columns:
                if self.on_failure == "refuse":
                    raise StoreRefusedError(lookup.name, reason, id_field)
                answer.add_missing(row_id, missing_columns, reason)
            values[row_id] = readable | dict.fromkeys(stale | missing_columns)
        return [values[row_id] for row_id in ids], answer.facts()


class _AnswerOfStore:
    """Collects what rows of a store lack, and how old their features are."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ids_by_missing: dict[tuple[Reason, tuple[str, ...]], list[str]] = {}
        self._ages: list[float] = []

    def add_missing(self, row_id: str, columns: Collection[str], reason: Reason) -> None:
        """Note that an id has no values in these columns."""
        self._ids_by_missing.setdefault((reason, tuple(sorted(columns))), []).append(row_id)

    def add_features(self, row_id: str, row: Row, columns: Collection[str]) -> set[str]:
        """Note the age of a row's features in these columns; returns the columns if they are too old."""
        computed: Any = row.get(FEATURES_TIME)
        time_to_live = row.get(FEATURES_TTL)
        if not columns or (computed is None and time_to_live is None):
            return set()
        try:
            age = time.time() - computed
            is_stale = time_to_live is not None and age > time_to_live
        except TypeError:  # a stamp that is missing or no number
            is_stale = True
        if is_stale:
            self.add_missing(row_id, columns, "stale")
            return set(columns)
        self._ages.append(age)
        return set()

    def facts(self) -> StoreFacts:
        """All that was noted."""
        facts = StoreFacts()
        for (reason, columns), row_ids in self._ids_by_missing.items():
            message = f"the {self._name}' store {REASON_TEXTS[reason]}: {', '.join(columns)} taken as null"
            facts.degraded.append(Missing(self._name, row_ids, list(columns), reason, message))
        if self._ages:
            facts.features_age[self._name] = round(max(self._ages), 3)
        return facts


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
        with suppress(RequestError, ValueError, ArithmeticError):
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

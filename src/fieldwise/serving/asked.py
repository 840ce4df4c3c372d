"""A request for recommendations, as a service takes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldwise.errors import DataError
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.rows import RequestError, text_of
from fieldwise.serving.user_log import UserLog
from fieldwise.serving.whole import WholeRanking

__all__ = ["Asked", "Explained", "check_filter", "used_items"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for recommendations.

    Args:
        context: raw values of user and context fields, by column.
        user: who asks; where left out, the context's value of the log's user column.
        k: how many items; where left out, 10 or all that there are.
        prerank, candidates, exclude, where: as in `Query`.
        exclude_seen: whether items that the user has used by the log must not come; the service's own where left out.
    """

    context: Mapping[str, Any]
    user: str | None = None
    k: int | None = None
    prerank: int = 200
    candidates: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    where: Mapping[str, Sequence[str]]
    exclude_seen: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Explained:
    """What is to be explained: rows, or some items in a context.

    Args:
        rows: raw values by column.
        context: of the items; raw values by column.
        items: their ids.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    items: Sequence[str] = ()


def used_items(asked: Asked, log: UserLog | None, by_default: bool) -> list[str]:
    """The items that must not come since the user has used them.

    Args:
        asked: the request.
        log: what users have used, where the server has one.
        by_default: whether they are left out where the request does not say.

    Errors:
        RequestError: the request wants it, and there is no log or it names no user.
    """
    wanted = by_default if asked.exclude_seen is None else asked.exclude_seen
    if not wanted:
        return []
    if log is None:
        raise RequestError("this server has no log of what users have used: start it with --log", "exclude_seen")
    user = asked.context.get(log.column) if asked.user is None else asked.user
    if user is None and asked.exclude_seen:
        raise RequestError("to leave out what a user has used, name the user", "user")
    try:
        return [] if user is None else log.used(text_of(user))
    except (TypeError, ValueError) as e:
        raise RequestError(f"a user must be {e}", f"context.{log.column}") from None


def check_filter(cascade: Cascade | WholeRanking, column: str) -> None:
    """Refuse to filter by something that is no column of the items, or one that holds no texts or numbers.

    Errors:
        RequestError: it names the column, and those that there are.
    """
    if column not in cascade.index.items.columns:
        known = ", ".join(cascade.index.items.columns)
        raise RequestError(f"items are filtered by {known}, found {column[:60]!r}", f"where.{column}")
    try:
        cascade.filters.texts(column)
    except DataError as e:
        raise RequestError(str(e), f"where.{column}") from None

"""Requests for recommendations and explanations, as a service takes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fieldwise.errors import DataError
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.rows import RequestError, text_of
from fieldwise.serving.user_log import Seen, UserLog
from fieldwise.serving.whole import WholeRanking

__all__ = ["Asked", "Explained", "check_filter", "used_items"]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request for recommendations.

    Args:
        context: raw values of user and context fields, by column.
        user: id of the user; if omitted, the context's value of the log's user column.
        k: number of items; if omitted, 10, or all if there are fewer.
        prerank, candidates, exclude, where: as in `Query`.
        exclude_seen: which items of the user's rows in the log to exclude: those of `positive` rows, all (True) or
            none; the service's setting if omitted.
    """

    context: Mapping[str, Any]
    user: str | None = None
    k: int | None = None
    prerank: int = 200
    candidates: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    where: Mapping[str, Sequence[str]]
    exclude_seen: Seen | None = None


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A request for explanations of rows, or of some items in a context.

    Args:
        rows: raw values by column.
        context: context of the items: raw values by column.
        items: ids of the items.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    context: Mapping[str, Any] = field(default_factory=dict)
    items: Sequence[str] = ()


def used_items(asked: Asked, log: UserLog | None, by_default: Seen) -> list[str]:
    """The items to exclude because of the user's rows.

    Args:
        asked: the request.
        log: the users' rows, if the server has them.
        by_default: which to exclude if the request does not say.

    Errors:
        RequestError: the request asks for it, but there is no log, or no user in the request.
    """
    wanted = by_default if asked.exclude_seen is None else asked.exclude_seen
    if not wanted:
        return []
    if log is None:
        raise RequestError(
            "this server has no log of the items that users have used: start it with --log", "exclude_seen"
        )
    user = asked.context.get(log.column) if asked.user is None else asked.user
    if user is None and asked.exclude_seen:
        raise RequestError("to exclude items that a user has used, give the user", "user")
    try:
        return [] if user is None else log.used(text_of(user), wanted)
    except (TypeError, ValueError) as e:
        raise RequestError(f"a user must be {e}", f"context.{log.column}") from None


def check_filter(cascade: Cascade | WholeRanking, column: str) -> None:
    """Check that items can be filtered by a column.

    Errors:
        RequestError: an unknown column, or an unsupported type.
    """
    if column not in cascade.index.items.columns:
        known = ", ".join(cascade.index.items.columns)
        raise RequestError(
            f"filters must name a column of the items, {known}, found {column[:60]!r}", f"where.{column}"
        )
    try:
        cascade.filters.texts(column)
    except DataError as e:
        raise RequestError(str(e), f"where.{column}") from None

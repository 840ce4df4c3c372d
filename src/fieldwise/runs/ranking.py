"""Ranking evaluation: ranking a catalogue for the users of the test rows.

Letters: U users, N items, P test positives, S seen pairs.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import torch

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import to_plain
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import latest_values, order_values
from fieldwise.data.prepare.prepared import Prepared, SplitPart
from fieldwise.data.prepare.settings import PARTS
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.ranking import places
from fieldwise.schema import Schema
from fieldwise.schema.ids import id_columns
from fieldwise.scoring.items import ItemTable
from fieldwise.scoring.ranker import Ranker

USER = "user"
ITEM = "item"
ROW = "row"


@dataclass(frozen=True, kw_only=True)
class RankingSettings:
    """Settings of the ranking evaluation.

    Args:
        candidates: number of sampled items per user, besides the test positives, none of them
            liked; None: all items.
        users: maximum number of users, sampled; None: all.
        keep_seen: also rank items that the user liked in training or validation rows.
        seed: seed for sampling users and items, and for the order of equal scores.
    """

    candidates: int | None = None
    users: int | None = 1000
    keep_seen: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("candidates", "users"):
            result = getattr(self, name)
            if result is not None and result < 1:
                raise ConfigError(f"ranking: {name} must be at least 1, found {result}")


def check_ranking(schema: Schema) -> None:
    """Check, before any work, that a schema allows ranking; else a ConfigError."""
    if schema.label.task != "binary":
        raise ConfigError(
            f"ranking needs a binary label, but {schema.label.name!r} is a number: give it "
            "a rule (positive_above), or omit the ranking"
        )
    own = {f.column for f in schema.with_role("item")}
    if not own or own == set(schema.columns):
        side = "user or context" if own else "item"
        raise ConfigError(
            f"ranking needs fields of items and of users or contexts, but no field of the schema has the role {side}: "
            "set the fields' roles, or omit the ranking"
        )


class RankingTask:
    """A ranking task for a recipe's rows: users with their test positives, and the candidate items.

    Errors:
        ConfigError: no column of user or item ids, or the label is not binary.
        DataError: no user liked an item of the test rows.

    Attributes:
        columns: the columns of `user` and `item` ids.
        contexts: the first liked test row of each user, with the user and context columns, [U].
        items: items with their columns, each with its latest values, [N].
        user: user of each test positive, from 0, ascending [P].
        place: row in `items` of each test positive [P].
        seen: rows of `items` to exclude, per user.
        likes: number of positive training rows of each item [N].
        users: number of users U.
        all_users: number of users of the test rows with a test positive that is not excluded.
        liked_before: number of test positives that are excluded because their user liked them
            before.
    """

    def __init__(self, prepared: Prepared, schema: Schema, settings: RankingSettings) -> None:
        check_ranking(schema)
        columns = _columns(prepared, schema)
        likes = {}  # user and item of a part's positive rows, as text, and the rows' numbers
        for name in PARTS:
            part: SplitPart = getattr(prepared, name)
            rows = np.flatnonzero(part.main > 0.5)
            named = {
                role: as_text(part.frame.get_column(column))[rows]
                for role, column in columns.items()
            }
            likes[name] = pl.DataFrame({**named, ROW: rows}).drop_nulls()
        items = _catalogue(prepared, schema, columns[ITEM])
        names = as_text(items.get_column(columns[ITEM]))
        row_of = pl.DataFrame({ITEM: names, "place": np.arange(len(names))})
        seen = pl.concat([likes["train"], likes["valid"]]).select(USER, ITEM).unique()
        pairs = likes["test"]
        frame = prepared.test.frame
        if schema.time is not None and schema.time in frame.columns:
            times = order_values(frame, schema.time, "time", schema.time_format, schema.missing)
            moment = times[pairs.get_column(ROW).to_numpy()]
            pairs = pairs[np.argsort(moment, kind="stable")]
        first = pairs.unique(USER, keep="first")  # its context is used even if its item is excluded
        targets = pairs.unique([USER, ITEM], keep="first")
        before = targets.height
        if not settings.keep_seen:
            targets = targets.join(seen, on=[USER, ITEM], how="anti")
        liked_before = before - targets.height
        if not targets.height:
            result = (
                f"all {before:,} were liked before: keep_seen=True ranks them too"
                if before
                else "there is none"
            )
            raise DataError(
                f"ranking needs test rows with an item that their user liked, by the columns {columns[USER]!r} and "
                f"{columns[ITEM]!r}, and {result}"
            )
        users = targets.get_column(USER).unique().sort()
        rng = np.random.default_rng([settings.seed, 0])
        some = len(users) if settings.users is None else min(settings.users, len(users))
        chosen = users.gather(np.sort(rng.choice(len(users), some, replace=False)))
        number = pl.DataFrame({USER: chosen, "number": np.arange(some)})
        targets = targets.join(number, on=USER).join(row_of, on=ITEM).sort("number", "place")
        rows = (
            number.join(first, on=USER, how="left", maintain_order="left")
            .get_column(ROW)
            .to_numpy()
        )
        left_out = seen.clear() if settings.keep_seen else seen
        of_user = left_out.join(number, on=USER).join(row_of, on=ITEM).sort("number", "place")
        cuts = np.searchsorted(of_user.get_column("number").to_numpy(), np.arange(1, some))
        counts = row_of.join(
            likes["train"].group_by(ITEM).len(), on=ITEM, how="left", maintain_order="left"
        )
        own = {f.column for f in schema.with_role("item")} | {columns[ITEM]}
        self.settings = settings
        self.columns = columns
        self.items = items
        self.users = some
        self.all_users = len(users)
        self.contexts = frame[rows].select([c for c in schema.columns if c not in own])
        self.user, self.place = (
            targets.get_column(name).to_numpy() for name in ("number", "place")
        )
        self.seen = np.split(of_user.get_column("place").to_numpy(), cuts)
        self.likes = counts.get_column("len").fill_null(0).to_numpy().astype(np.int64)
        self.liked_before = liked_before

    @cached_property
    def ends(self) -> np.ndarray:
        """The start of each user's test positives, and the last one's end [U + 1]."""
        return np.searchsorted(self.user, np.arange(self.users + 1))

    def candidates(self, number: int) -> np.ndarray:
        """The rows of `items` to rank for a user, ascending."""
        free = np.ones(self.items.height, bool)
        free[self.seen[number]] = False
        if self.settings.candidates is not None:
            own = self.place[self.ends[number] : self.ends[number + 1]]
            free[own] = False
            others = np.flatnonzero(free)
            rng = np.random.default_rng([self.settings.seed, 1, number])
            free[:] = False
            free[rng.choice(others, min(self.settings.candidates, len(others)), replace=False)] = (
                True
            )
            free[own] = True
        return np.flatnonzero(free)

    @cached_property
    def digest(self) -> str:
        """A digest of users, positives and candidates: equal for comparable models."""
        hasher = hashlib.sha256(repr(to_plain(self.settings)).encode())
        hasher.update(
            "\n".join(as_text(self.items.get_column(self.columns[ITEM])).to_list()).encode()
        )
        sizes = np.array([len(rows) for rows in self.seen])
        for array in (self.user, self.place, self.likes, sizes, *self.seen):
            hasher.update(np.ascontiguousarray(array, np.int64).tobytes())
        return hasher.hexdigest()

    @cached_property
    def tie(self) -> np.ndarray:
        """A random order that breaks ties between equal scores [N]."""
        return np.random.default_rng([self.settings.seed, 2]).permutation(self.items.height)

    def sentence(self) -> str:
        """A description of the task."""
        s = self.settings
        who = (
            f"{self.users:,} users"
            if self.users == self.all_users
            else f"{self.users:,} of {self.all_users:,} users"
        )
        drawn = "" if self.users == self.all_users else f" (seed {s.seed})"
        if s.candidates is None:
            what = f"all {self.items.height:,} items"
        else:
            what = f"{s.candidates:,} items sampled of {self.items.height:,} (seed {s.seed}), plus those they liked"
        less = (
            "" if s.keep_seen else ", without those the user liked in training and validation rows"
        )
        if self.liked_before:  # 0 if they are kept
            less += f" ({self.liked_before:,} test positives among them, left out too)"
        return (
            f"ranking by {self.columns[USER]} and {self.columns[ITEM]}: {who}{drawn}, {what}{less}"
        )

    def ranks(self, scores: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
        """The ranks of test positives among their user's candidates, from 1 [P], by the scores of a user and items."""
        out = np.empty(len(self.user), np.int64)
        for number in range(self.users):
            rows = self.candidates(number)
            own = slice(self.ends[number], self.ends[number + 1])
            out[own] = places(
                scores(number, rows), np.searchsorted(rows, self.place[own]), self.tie[rows]
            )
        return out

    def by_popularity(self) -> np.ndarray:
        """The ranks by popularity (number of positive training rows), as a baseline."""
        return self.ranks(lambda _, rows: self.likes[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """The ranks of the test positives by a bundle and by popularity."""

    place: np.ndarray  # the rank of each test positive among its user's candidates, from 1 [P]
    popular: np.ndarray  # the same by popularity
    user: np.ndarray  # the user of each, from 0 [P]
    # plain values: settings, the task's digest and description, numbers of users and items
    about: Mapping[str, Any]

    @property
    def users(self) -> int:
        """The number of users."""
        return int(self.about["users"])


def rank_items(bundle: Bundle, task: RankingTask) -> Ranked:
    """Rank every user's candidates by the main label's scores in the context of the user's first liked test row."""
    items = ItemTable(id_column=task.columns[ITEM], items=task.items)
    ranker = Ranker(bundle, items, own=task.items.columns)
    contexts = ranker.encode(task.contexts)

    def scores(number: int, rows: np.ndarray) -> np.ndarray:
        context, _ = contexts.batch(slice(number, number + 1))
        return ranker.scorer.score(context, torch.from_numpy(rows))[:, 0]

    about = {
        "settings": to_plain(task.settings),
        "digest": task.digest,
        "sentence": task.sentence(),
        "users": task.users,
        "all_users": task.all_users,
        "items": task.items.height,
    }
    return Ranked(
        place=task.ranks(scores), popular=task.by_popularity(), user=task.user, about=about
    )


def _columns(prepared: Prepared, schema: Schema) -> dict[str, str]:
    result = id_columns(prepared.test.frame.columns, schema)
    for role, column in result.items():
        if column is None:
            raise ConfigError(
                f"ranking needs a column of {role} ids, which the schema does not have: set {role} = COLUMN in it"
            )
    return {role: str(column) for role, column in result.items()}


def _catalogue(prepared: Prepared, schema: Schema, item: str) -> pl.DataFrame:
    """Every item of all parts with the latest values of its fields, by the schema's time, else of the last rows."""
    columns = list(dict.fromkeys([item, *(f.column for f in schema.with_role("item"))]))
    time = [] if schema.time is None or schema.time in columns else [schema.time]
    rows = pl.concat([getattr(prepared, name).frame.select(columns + time) for name in PARTS])
    rows = rows.with_columns(as_text(rows.get_column(item)).alias(f"{item} as text"))
    return latest_values(rows, f"{item} as text", [schema], "item").select(columns)

"""Ranking evaluation: ranking a catalogue for the users of the test rows.

Letters: U users, N items, P test positives, S seen pairs.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import to_plain
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.ordering import latest_values, times_of
from fieldwise.data.prepare.prepared import Prepared, SplitPart
from fieldwise.data.prepare.settings import PARTS
from fieldwise.errors import Argument, ConfigError, DataError
from fieldwise.evaluation.lists import Exposure
from fieldwise.evaluation.ranking import places
from fieldwise.schema import Schema
from fieldwise.schema.ids import id_columns
from fieldwise.scoring.items import ItemTable, top_k_indices
from fieldwise.scoring.ranker import Ranker

USER = "user"
ITEM = "item"
ROW = "row"
USER_NUMBER = "user number"
ITEM_ROW = "item row"
LISTED_ITEMS = 100
"""The longest list of a user that is kept, to measure lists of any cutoff up to it."""
NO_ITEM = -1
"""In place of an item where a list is shorter."""


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
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"ranking: {name} must be at least 1, found {count}")


def check_ranking(schema: Schema) -> None:
    """Check, before any work, that a schema allows ranking; else a ConfigError."""
    obstacle = ranking_obstacle(schema)
    if obstacle:
        raise ConfigError(f"{obstacle}, or omit ", Argument("ranking"))


def ranking_obstacle(schema: Schema) -> str:
    """Why a schema does not allow ranking, and what to change in it; empty if it does."""
    if schema.label.task != "binary":
        return (
            f"ranking needs a binary label, but {schema.label.name!r} is a number: give it "
            "a rule (positive_above)"
        )
    item_columns = {field.column for field in schema.with_role("item")}
    if not item_columns or item_columns == set(schema.columns):
        side = "user or context" if item_columns else "item"
        return (
            f"ranking needs fields of items and of users or contexts, but no field of the schema has the role {side}: "
            "set the fields' roles"
        )
    return ""


class Ranks(NamedTuple):
    """The ranks of test positives among their user's candidates, from 1 [P], and each user's best items [U, L]."""

    rank: np.ndarray
    lists: np.ndarray


def _nothing_to_rank(columns: Mapping[str, str], *, liked_before: int) -> DataError:
    """The error of test rows without an item to rank, of which some users may have liked all before."""
    reason: list[object] = ["there is none"]
    if liked_before:
        reason = [
            f"all {liked_before:,} were liked before: ",
            Argument("keep_seen", True),
            " ranks them too",
        ]
    return DataError(
        f"ranking needs test rows with an item that their user liked, by the columns {columns[USER]!r} and "
        f"{columns[ITEM]!r}, and ",
        *reason,
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
        item: row in `items` of each test positive [P].
        seen: rows of `items` to exclude, per user.
        likes: number of positive training rows of each item [N].
        users: number of users U.
        all_users: number of users of the test rows with a test positive that is not excluded.
        liked_before: number of test positives that are excluded because their user liked them
            before.
    """

    def __init__(self, prepared: Prepared, schema: Schema, settings: RankingSettings) -> None:
        check_ranking(schema)
        columns = _id_columns(prepared, schema)
        train_likes = _likes(prepared.train, columns)
        valid_likes = _likes(prepared.valid, columns)
        test_likes = _in_time_order(_likes(prepared.test, columns), prepared.test.frame, schema)
        items = _catalogue(prepared, schema, columns[ITEM])
        item_ids = as_text(items.get_column(columns[ITEM]))
        item_rows = pl.DataFrame({ITEM: item_ids, ITEM_ROW: np.arange(len(item_ids))})

        excluded = pl.concat([train_likes, valid_likes]).select(USER, ITEM).unique()
        if settings.keep_seen:
            excluded = excluded.clear()
        # the context of a user's first one is used even if its item is excluded
        first_likes = test_likes.unique(USER, keep="first")
        all_positives = test_likes.unique([USER, ITEM], keep="first")
        positives = all_positives.join(excluded, on=[USER, ITEM], how="anti")
        if positives.height == 0:
            raise _nothing_to_rank(columns, liked_before=all_positives.height)

        all_users = positives.get_column(USER).unique().sort()
        users = _sampled_users(all_users, settings)
        user_numbers = pl.DataFrame({USER: users, USER_NUMBER: np.arange(len(users))})
        ranked = _numbered(positives, user_numbers, item_rows)
        seen = _numbered(excluded, user_numbers, item_rows)
        seen_ends = np.searchsorted(
            seen.get_column(USER_NUMBER).to_numpy(), np.arange(1, len(users))
        )
        contexts = user_numbers.join(first_likes, on=USER, how="left", maintain_order="left")
        context_rows = contexts.get_column(ROW).to_numpy()
        item_columns = {field.column for field in schema.with_role("item")} | {columns[ITEM]}
        context_columns = [column for column in schema.columns if column not in item_columns]
        item_likes = item_rows.join(
            train_likes.group_by(ITEM).len(), on=ITEM, how="left", maintain_order="left"
        )

        self.settings = settings
        self.columns = columns
        self.items = items
        self.users = len(users)
        self.all_users = len(all_users)
        self.contexts = prepared.test.frame[context_rows].select(context_columns)
        self.user = ranked.get_column(USER_NUMBER).to_numpy()
        self.item = ranked.get_column(ITEM_ROW).to_numpy()
        self.seen = np.split(seen.get_column(ITEM_ROW).to_numpy(), seen_ends)
        self.likes = item_likes.get_column("len").fill_null(0).to_numpy().astype(np.int64)
        self.liked_before = all_positives.height - positives.height

    @cached_property
    def ends(self) -> np.ndarray:
        """The start of each user's test positives, and the last one's end [U + 1]."""
        return np.searchsorted(self.user, np.arange(self.users + 1))

    def _positives(self, number: int) -> slice:
        """Where a user's test positives are among those of all users."""
        return slice(self.ends[number], self.ends[number + 1])

    def candidates(self, number: int) -> np.ndarray:
        """The rows of `items` to rank for a user, ascending."""
        is_candidate = np.ones(self.items.height, bool)
        is_candidate[self.seen[number]] = False
        if self.settings.candidates is None:
            return np.flatnonzero(is_candidate)

        positives = self.item[self._positives(number)]
        is_candidate[positives] = False
        others = np.flatnonzero(is_candidate)
        rng = np.random.default_rng([self.settings.seed, 1, number])
        count = min(self.settings.candidates, len(others))
        sampled = rng.choice(others, count, replace=False)
        return np.union1d(sampled, positives)

    @cached_property
    def digest(self) -> str:
        """A digest of users, positives and candidates: equal for comparable models."""
        hasher = hashlib.sha256(repr(to_plain(self.settings)).encode())
        item_ids = as_text(self.items.get_column(self.columns[ITEM])).to_list()
        hasher.update("\n".join(item_ids).encode())
        seen_counts = np.array([len(rows) for rows in self.seen])
        for array in (self.user, self.item, self.likes, seen_counts, *self.seen):
            hasher.update(np.ascontiguousarray(array, np.int64).tobytes())
        return hasher.hexdigest()

    @cached_property
    def tie(self) -> np.ndarray:
        """A random order that breaks ties between equal scores [N]."""
        return np.random.default_rng([self.settings.seed, 2]).permutation(self.items.height)

    def sentence(self) -> str:
        """A description of the task."""
        settings = self.settings
        users = f"{self.users:,} users"
        if self.users < self.all_users:
            users = f"{self.users:,} of {self.all_users:,} users (seed {settings.seed})"

        items = f"all {self.items.height:,} items"
        if settings.candidates is not None:
            items = (
                f"{settings.candidates:,} items sampled of {self.items.height:,} (seed {settings.seed}), "
                "plus those they liked"
            )

        exclusion = ""
        if not settings.keep_seen:
            exclusion = ", without those the user liked in training and validation rows"
        if self.liked_before:  # 0 if they are kept
            exclusion += f" ({self.liked_before:,} test positives among them, left out too)"
        return (
            f"ranking by {self.columns[USER]} and {self.columns[ITEM]}: {users}, {items}{exclusion}"
        )

    def ranks(self, scores: Callable[[int, np.ndarray], np.ndarray]) -> Ranks:
        """Ranks and lists by the scores of a user and items."""
        ranks = np.empty(len(self.user), np.int64)
        lists = np.full((self.users, min(LISTED_ITEMS, self.items.height)), NO_ITEM, np.int32)
        for number in range(self.users):
            candidates = self.candidates(number)
            positives = self._positives(number)
            numbers = np.searchsorted(candidates, self.item[positives])
            of_candidates = scores(number, candidates)
            tie = self.tie[candidates]
            ranks[positives] = places(of_candidates, numbers, tie)
            best = candidates[top_k_indices(of_candidates, lists.shape[1], tie)]
            lists[number, : len(best)] = best
        return Ranks(ranks, lists)

    def by_popularity(self) -> Ranks:
        """The ranks by popularity (number of positive training rows), as a baseline."""
        return self.ranks(lambda _, rows: self.likes[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class RankedLists:
    """Each user's best items, by their numbers in the catalogue.

    Args:
        model: those by the bundle [U, L]; -1 after the end of a shorter list.
        popular: those by popularity, likewise.
        likes: number of positive training rows of each item [N].
    """

    model: np.ndarray
    popular: np.ndarray
    likes: np.ndarray

    def exposure(self, k: int, *, popular: bool = False) -> Exposure | None:
        """The exposure of the first k items of each list; None if the lists that were kept are shorter."""
        lists = self.popular if popular else self.model
        if min(k, len(self.likes)) > lists.shape[1]:
            return None
        first = lists[:, :k]
        is_item = first != NO_ITEM
        exposure = Exposure(self.likes)
        exposure.add(first[is_item], is_item.sum(1))
        return exposure


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """The ranks of the test positives by a bundle and by popularity, and the lists of users.

    There are no lists where items are sampled for each user, nor in runs of earlier versions.
    """

    rank: np.ndarray  # the rank of each test positive among its user's candidates, from 1 [P]
    popular: np.ndarray  # the same by popularity
    user: np.ndarray  # the user of each, from 0 [P]
    # plain values: settings, the task's digest and description, numbers of users and items
    about: Mapping[str, Any]
    lists: RankedLists | None = None

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
    model = task.ranks(scores)
    popular = task.by_popularity()
    lists = None
    if task.settings.candidates is None or task.settings.candidates >= task.items.height:
        lists = RankedLists(model=model.lists, popular=popular.lists, likes=task.likes)
    return Ranked(rank=model.rank, popular=popular.rank, user=task.user, about=about, lists=lists)


def _id_columns(prepared: Prepared, schema: Schema) -> dict[str, str]:
    """The columns of user and item ids, by role."""
    columns = {}
    for role, column in id_columns(prepared.test.frame.columns, schema).items():
        if column is None:
            raise ConfigError(
                f"ranking needs a column of {role} ids, which the schema does not have: set {role} = COLUMN in it"
            )
        columns[role] = str(column)
    return columns


def _likes(part: SplitPart, columns: Mapping[str, str]) -> pl.DataFrame:
    """User and item of a part's positive rows, as text, and the rows' numbers."""
    rows = np.flatnonzero(part.main > 0.5)
    ids = {role: as_text(part.frame.get_column(column))[rows] for role, column in columns.items()}
    return pl.DataFrame({**ids, ROW: rows}).drop_nulls()


def _in_time_order(likes: pl.DataFrame, frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """Likes of the rows of `frame` by their time, if the rows have it."""
    times = times_of(frame, schema)
    if times is None:
        return likes
    like_times = times[likes.get_column(ROW).to_numpy()]
    return likes[np.argsort(like_times, kind="stable")]


def _sampled_users(users: pl.Series, settings: RankingSettings) -> pl.Series:
    """At most as many users as the settings allow, in their order."""
    count = len(users)
    if settings.users is not None:
        count = min(settings.users, count)
    rng = np.random.default_rng([settings.seed, 0])
    return users.gather(np.sort(rng.choice(len(users), count, replace=False)))


def _numbered(
    pairs: pl.DataFrame, user_numbers: pl.DataFrame, item_rows: pl.DataFrame
) -> pl.DataFrame:
    """The pairs of numbered users, with the numbers of users and the rows of items, sorted by them."""
    numbered = pairs.join(user_numbers, on=USER).join(item_rows, on=ITEM)
    return numbered.sort(USER_NUMBER, ITEM_ROW)


def _catalogue(prepared: Prepared, schema: Schema, item: str) -> pl.DataFrame:
    """Every item of all parts with the latest values of its fields, by the schema's time, else of the last rows."""
    field_columns = [field.column for field in schema.with_role("item")]
    columns = list(dict.fromkeys([item, *field_columns]))
    columns_to_read = list(columns)
    if schema.time is not None and schema.time not in columns:
        columns_to_read.append(schema.time)

    parts = [getattr(prepared, name).frame.select(columns_to_read) for name in PARTS]
    rows = pl.concat(parts)
    id_as_text = f"{item} as text"
    rows = rows.with_columns(as_text(rows.get_column(item)).alias(id_as_text))
    return latest_values(rows, id_as_text, [schema], "item").select(columns)

"""The task of ranking a catalogue for the users of the test rows, and where a bundle puts what they liked.

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
from fieldwise.data.prepare.ordering import order_values
from fieldwise.data.prepare.prepared import PARTS, Part, Prepared
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.top_k import places
from fieldwise.schema import Schema
from fieldwise.schema.ids import id_columns
from fieldwise.scoring.candidates import score_candidates
from fieldwise.scoring.request import split_columns

__all__ = ["Ranked", "RankingSettings", "RankingTask", "check_ranking", "rank_items"]

USER, ITEM, ROW = "user", "item", "row"


@dataclass(frozen=True, kw_only=True)
class RankingSettings:
    """For whom what is ranked.

    Args:
        candidates: items drawn for each user beside the test positives, none of them liked; None: all items.
        users: at most, drawn; None: all.
        user: column that names a user, where it is not the schema's (`fieldwise.schema.ids`).
        item: column that names an item, likewise.
        keep_seen: rank what the user liked in training or validation rows, too.
        seed: of users and items drawn, and of the order of equal scores.
    """

    candidates: int | None = None
    users: int | None = 1000
    user: str | None = None
    item: str | None = None
    keep_seen: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("candidates", "users"):
            found = getattr(self, name)
            if found is not None and found < 1:
                raise ConfigError(f"ranking: {name} must be at least 1, found {found}")


def check_ranking(schema: Schema) -> None:
    """Refuse, before any work, a schema whose rows cannot be ranked by.

    Errors:
        ConfigError: the main label is no binary one, or all fields are of items, or none is.
    """
    if schema.label.task != "binary":
        raise ConfigError(
            f"ranking needs a label that says what was liked, but {schema.label.name!r} is a number: make it binary by "
            "a rule (positive_above), or leave --ranking out"
        )
    own = {f.column for f in schema.with_role("item")}
    if not own or own == set(schema.columns):
        side = "user or context" if own else "item"
        raise ConfigError(
            f"ranking needs fields of items and of users or contexts, but no field of the schema has the role {side}: "
            "give the fields their roles, or leave --ranking out"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RankingTask:
    """Users with what they liked in the test rows, and the items to find it among.

    Args:
        columns: which of the table name `user` and `item`.
        contexts: of each user the first liked test row, with what models read of users and contexts, [U].
        items: with what models read of them, as their latest rows have it, [N].
        user: of each test positive, from 0, ascending [P].
        place: of each test positive, its row of `items` [P].
        seen: of each user the rows of `items` that are left out.
        likes: positive training rows of each item [N].
        all_users: of the test rows that liked an item which is not left out.
        liked_before: test positives that are left out, since their user liked them before.
    """

    settings: RankingSettings
    columns: Mapping[str, str]
    contexts: pl.DataFrame
    items: pl.DataFrame
    user: np.ndarray
    place: np.ndarray
    seen: list[np.ndarray]
    likes: np.ndarray
    all_users: int
    liked_before: int

    @classmethod
    def of(cls, prepared: Prepared, schema: Schema, settings: RankingSettings) -> "RankingTask":
        """The task of a recipe's rows.

        Errors:
            ConfigError: no column names users or items, or the label is no binary one.
            DataError: no user liked an item of the test rows.
        """
        check_ranking(schema)
        columns = _columns(prepared, schema, settings)
        likes = {name: _likes(getattr(prepared, name), columns) for name in PARTS}
        items = _catalogue(prepared, schema, columns[ITEM])
        names = as_text(items.get_column(columns[ITEM]))
        row_of = pl.DataFrame({ITEM: names, "place": np.arange(len(names))})
        seen = pl.concat([likes["train"], likes["valid"]]).select(USER, ITEM).unique()
        pairs = _in_order(likes["test"], prepared.test.frame, schema)
        first = pairs.unique(USER, keep="first")  # gives the context, whatever becomes of its item
        targets = pairs.unique([USER, ITEM], keep="first")
        before = targets.height
        if not settings.keep_seen:
            targets = targets.join(seen, on=[USER, ITEM], how="anti")
        liked_before = before - targets.height
        if not targets.height:
            found = f"all {before:,} were liked before: --keep-seen ranks them too" if before else "there is none"
            raise DataError(
                f"ranking needs test rows with an item that their user liked, by the columns {columns[USER]!r} and "
                f"{columns[ITEM]!r}, and {found}"
            )
        users = targets.get_column(USER).unique().sort()
        rng = np.random.default_rng([settings.seed, 0])
        some = len(users) if settings.users is None else min(settings.users, len(users))
        chosen = users.gather(np.sort(rng.choice(len(users), some, replace=False)))
        number = pl.DataFrame({USER: chosen, "number": np.arange(some)})
        targets = targets.join(number, on=USER).join(row_of, on=ITEM).sort("number", "place")
        rows = number.join(first, on=USER, how="left", maintain_order="left").get_column(ROW).to_numpy()
        left_out = seen.clear() if settings.keep_seen else seen
        of_user = left_out.join(number, on=USER).join(row_of, on=ITEM).sort("number", "place")
        cuts = np.searchsorted(of_user.get_column("number").to_numpy(), np.arange(1, some))
        counts = row_of.join(likes["train"].group_by(ITEM).len(), on=ITEM, how="left", maintain_order="left")
        own = {f.column for f in schema.with_role("item")} | {columns[ITEM]}
        return cls(
            settings=settings,
            columns=columns,
            contexts=prepared.test.frame[rows].select([c for c in schema.columns if c not in own]),
            items=items,
            user=targets.get_column("number").to_numpy(),
            place=targets.get_column("place").to_numpy(),
            seen=np.split(of_user.get_column("place").to_numpy(), cuts),
            likes=counts.get_column("len").fill_null(0).to_numpy().astype(np.int64),
            all_users=len(users),
            liked_before=liked_before,
        )

    @property
    def users(self) -> int:
        """How many users' items are ranked."""
        return self.contexts.height

    @cached_property
    def ends(self) -> np.ndarray:
        """Where each user's test positives begin, and the last one's end [U + 1]."""
        return np.searchsorted(self.user, np.arange(self.users + 1))

    def candidates(self, number: int) -> np.ndarray:
        """The rows of `items` that are ranked for a user, ascending."""
        free = np.ones(self.items.height, bool)
        free[self.seen[number]] = False
        if self.settings.candidates is not None:
            own = self.place[self.ends[number] : self.ends[number + 1]]
            free[own] = False
            others = np.flatnonzero(free)
            rng = np.random.default_rng([self.settings.seed, 1, number])
            free[:] = False
            free[rng.choice(others, min(self.settings.candidates, len(others)), replace=False)] = True
            free[own] = True
        return np.flatnonzero(free)

    @cached_property
    def digest(self) -> str:
        """Of who is to find what among which items: equal for models that can be compared."""
        hasher = hashlib.sha256(repr(to_plain(self.settings)).encode())
        hasher.update("\n".join(as_text(self.items.get_column(self.columns[ITEM])).to_list()).encode())
        sizes = np.array([len(rows) for rows in self.seen])
        for array in (self.user, self.place, self.likes, sizes, *self.seen):
            hasher.update(np.ascontiguousarray(array, np.int64).tobytes())
        return hasher.hexdigest()

    @cached_property
    def tie(self) -> np.ndarray:
        """An order drawn once, by which items of equal score are ranked [N]."""
        return np.random.default_rng([self.settings.seed, 2]).permutation(self.items.height)

    def sentence(self) -> str:
        """Who is to find what among which items."""
        s = self.settings
        who = f"{self.users:,} users" if self.users == self.all_users else f"{self.users:,} of {self.all_users:,} users"
        drawn = "" if self.users == self.all_users else f" (seed {s.seed})"
        if s.candidates is None:
            what = f"all {self.items.height:,} items"
        else:
            what = f"{s.candidates:,} items drawn of {self.items.height:,} (seed {s.seed}) beside what they liked"
        less = "" if s.keep_seen else ", less what the user liked in training and validation rows"
        gone = f" ({self.liked_before:,} test positives among it)" if self.liked_before and not s.keep_seen else ""
        return f"ranking by {self.columns[USER]} and {self.columns[ITEM]}: {who}{drawn}, {what}{less}{gone}"

    def ranks(self, scores: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
        """The place of each test positive among its user's candidates, from 1 [P].

        Args:
            scores: of a user, by number, and candidates, by their rows of `items`: a number each.
        """
        out = np.empty(len(self.user), np.int64)
        for number in range(self.users):
            rows, own = self.candidates(number), slice(self.ends[number], self.ends[number + 1])
            out[own] = places(scores(number, rows), np.searchsorted(rows, self.place[own]), self.tie[rows])
        return out

    def by_popularity(self) -> np.ndarray:
        """The places that the numbers of positive training rows give: what a model has to beat."""
        return self.ranks(lambda _, rows: self.likes[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranked:
    """Where a bundle, and popularity, put the test positives.

    Args:
        place: of each test positive among its user's candidates, from 1 [P].
        popular: the same by popularity.
        user: of each, from 0 [P].
        about: plain values: the settings, the task's digest and sentence, users, items.
    """

    place: np.ndarray
    popular: np.ndarray
    user: np.ndarray
    about: Mapping[str, Any]

    @property
    def users(self) -> int:
        """How many there are."""
        return int(self.about["users"])


def rank_items(bundle: Bundle, task: RankingTask) -> Ranked:
    """Rank every user's candidates by the main label's scores in the context of the user's first liked test row.

    Errors:
        DataError: a column of the schema's fields is absent, or training diverged.
    """
    split = split_columns(bundle.encoder, bundle.encoder.layout, task.contexts.columns, task.items.columns)
    items = bundle.encoder.transform_part(task.items, split.candidates.layout)
    contexts = bundle.encoder.transform_part(task.contexts, split.context.layout)
    whole, _ = items.batch(slice(0, len(items)))

    def scores(number: int, rows: np.ndarray) -> np.ndarray:
        every = task.settings.candidates is None
        candidates = whole if every else items.batch(torch.from_numpy(rows))[0]
        context, _ = contexts.batch(slice(number, number + 1))
        found = score_candidates(bundle.network, split, context, candidates).double().numpy()
        main = found if found.ndim == 1 else found[:, 0]
        return main[rows] if every else main

    about = {
        "settings": to_plain(task.settings),
        "digest": task.digest,
        "sentence": task.sentence(),
        "users": task.users,
        "all_users": task.all_users,
        "items": task.items.height,
    }
    return Ranked(place=task.ranks(scores), popular=task.by_popularity(), user=task.user, about=about)


def _columns(prepared: Prepared, schema: Schema, settings: RankingSettings) -> dict[str, str]:
    found = id_columns(prepared.test.frame.columns, schema, user=settings.user, item=settings.item)
    for role, column in found.items():
        if column is None:
            raise ConfigError(
                f"ranking needs a column of {role}s, and the schema says none: say {role} = COLUMN in it, or give "
                f"--{role} COLUMN"
            )
    if found[USER] == found[ITEM]:
        raise ConfigError(f"users and items must be named by two columns, found {found[USER]!r} for both")
    return {role: str(column) for role, column in found.items()}


def _likes(part: Part, columns: Mapping[str, str]) -> pl.DataFrame:
    """User and item of a part's positive rows, as text, and the rows' numbers; rows without one of the two are none."""
    rows = np.flatnonzero(part.main > 0.5)
    named = {role: as_text(part.frame.get_column(column))[rows] for role, column in columns.items()}
    return pl.DataFrame({**named, ROW: rows}).drop_nulls()


def _in_order(likes: pl.DataFrame, frame: pl.DataFrame, schema: Schema) -> pl.DataFrame:
    """By the schema's time, or as they stand."""
    if schema.time is None or schema.time not in frame.columns:
        return likes
    moment = order_values(frame, schema.time, "time", schema.time_format)[likes.get_column(ROW).to_numpy()]
    return likes[np.argsort(moment, kind="stable")]


def _catalogue(prepared: Prepared, schema: Schema, item: str) -> pl.DataFrame:
    """Every item of all parts with its fields, as its latest row has them: by the schema's time, or the last one."""
    columns = list(dict.fromkeys([item, *(f.column for f in schema.with_role("item"))]))
    time = [] if schema.time is None or schema.time in columns else [schema.time]
    rows = pl.concat([getattr(prepared, name).frame.select(columns + time) for name in PARTS])
    if schema.time is not None:
        rows = rows[np.argsort(order_values(rows, schema.time, "time", schema.time_format), kind="stable")]
    named = rows.with_columns(as_text(rows.get_column(item)).alias(f"{item} as text")).drop_nulls(f"{item} as text")
    latest = named.unique(f"{item} as text", keep="last", maintain_order=True).sort(f"{item} as text")
    catalogue: pl.DataFrame = latest.select(columns)
    return catalogue

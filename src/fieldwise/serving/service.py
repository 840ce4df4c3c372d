"""What a server answers, without HTTP: predictions, recommendations, explanations, similar items."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import polars as pl
import torch

from fieldwise.bundle.bundle import Bundle
from fieldwise.errors import ConfigError, DataError
from fieldwise.explain.explanation import explain
from fieldwise.explain.measured_pairs import measured_pairs
from fieldwise.ops.stored_items import StoredItems
from fieldwise.schema import Field
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.index import ItemIndex
from fieldwise.serving.page.browse import Browser
from fieldwise.serving.page.shown import shown_table
from fieldwise.serving.queries import Found, Prepared, Query
from fieldwise.serving.rows import NO_ITEMS, RequestError, frame_of, text_of, values_of
from fieldwise.serving.stores.table import IndexItems
from fieldwise.serving.user_log import UserLog
from fieldwise.serving.whole import WholeRanking

A = TypeVar("A")
T = TypeVar("T")

__all__ = ["Asked", "Service"]


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


class Service:
    """Bundles that answer requests of plain values.

    Args:
        ranker: scores and explains rows, and ranks.
        cascade: recommends, in two stages or by ranking every item; its ranking bundle is `ranker`.
        log: what users have used, and their latest contexts.
        exclude_seen: whether what a user has used by the log is left out of recommendations, unless a request says
            otherwise.

    Errors:
        ConfigError: neither a ranker nor a cascade.
    """

    def __init__(
        self,
        ranker: Bundle | None = None,
        cascade: Cascade | WholeRanking | None = None,
        *,
        log: UserLog | None = None,
        exclude_seen: bool = True,
    ) -> None:
        scores = ranker or (cascade.ranker if cascade else None) or (cascade.prerank if cascade else None)
        if scores is None:
            raise ConfigError(
                "a server needs a bundle that scores: give a ranking bundle, or an IntTower with its index"
            )
        self.bundle, self.cascade = scores, cascade
        self.log, self.exclude_seen = log, exclude_seen and log is not None
        self._browsers: dict[str | None, Browser] = {}

    @property
    def about(self) -> str:
        """What it serves, in a few words."""
        model = f"model {self.bundle.digest[:12]}{' (calibrated)' if self.bundle.calibration else ''}"
        if self.cascade is None:
            return model
        if isinstance(self.cascade, WholeRanking):
            return f"{model}, which ranks all {len(self.cascade.index):,} items"
        tower, index = self.cascade.prerank.digest[:12], self.cascade.index
        return f"{model}, pre-ranked by {tower}, index {index.generation[:12]} of {len(index):,} items"

    @property
    def ranked(self) -> str | None:
        """How recommendations are made: `all` items ranked by the bundle, `preranked` ones, by the `tower` alone."""
        if self.cascade is None:
            return None
        if isinstance(self.cascade, WholeRanking):
            return "all"
        return "tower" if self.cascade.ranker is None else "preranked"

    def cost(self, asked: Asked) -> int:
        """How many items a request's recommendations make the bundle score, at most."""
        if not isinstance(self.cascade, WholeRanking):
            return asked.prerank
        return len(self.cascade.index if asked.candidates is None else asked.candidates)

    def warm_up(self, before: "Service | None" = None) -> None:
        """Answer once, so that what is made at a first request is there.

        Args:
            before: the service that this one follows; the columns that it filters by are made ready.

        Errors:
            ConfigError: the items lack the column that names them for people in the service before.
        """
        for title in () if before is None else tuple(before._browsers):
            self.browser(title)
        sample = self.bundle.samples.head(1)
        if sample.height:
            self.bundle.score(sample)
        if self.cascade is not None:
            self.cascade.index.places  # noqa: B018
            self._shown  # noqa: B018
            with suppress(DataError):  # who asks for an item by its id is told
                self.item_rows.plain  # noqa: B018
            rows = [bundle.samples.head(1).to_dicts() for bundle in self._bundles]
            if all(rows):
                size = len(self.cascade.index)
                self.cascade.recommend(Query(context=rows[0][0] | rows[-1][0], k=min(10, size), prerank=200))
            if before is not None and before.cascade is not None:
                known = self.cascade.index.items.columns
                self.cascade.filters.prepare([c for c in before.cascade.filters.prepared if c in known])

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
        """Score and prediction of each row, by label where there are several.

        Errors:
            RequestError: a row lacks a column or holds what it must not.
        """
        return _one(self.predict_all([rows]))

    def predict_all(self, requests: Sequence[Sequence[Mapping[str, Any]]]) -> list[list[dict[str, float]] | DataError]:
        """`predict` of several requests at once; the error of one stands in its place."""
        frames = [_tried(self._frame, rows) for rows in requests]
        whole = [frame for frame in frames if isinstance(frame, pl.DataFrame)]
        scored = iter(self._predictions(pl.concat(whole)) if whole else ())
        return [frame if isinstance(frame, DataError) else list(islice(scored, frame.height)) for frame in frames]

    def _frame(self, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        return frame_of(rows, self.bundle.schema.fields)

    def _predictions(self, frame: pl.DataFrame) -> list[dict[str, float]]:
        score = self.bundle.score(frame)
        prediction = self.bundle.prediction(score)
        names = [label.name for label in self.bundle.schema.labels]
        if len(names) == 1:
            return [{"score": float(s), "prediction": float(p)} for s, p in zip(score, prediction, strict=True)]
        parts = {f"{name}.score": score[:, column] for column, name in enumerate(names)}
        parts |= {f"{name}.prediction": prediction[:, column] for column, name in enumerate(names)}
        return [{name: float(values[row]) for name, values in parts.items()} for row in range(len(score))]

    def recommend(self, asked: Asked) -> dict[str, Any]:
        """The best items with their columns and scores, how many were left after each stage, and what each took.

        Errors:
            RequestError: no index; an unknown candidate or item column; a context that lacks a column.
        """
        return _one(self.recommend_all([asked]))

    def recommend_all(self, requests: Sequence[Asked]) -> list[dict[str, Any] | DataError]:
        """`recommend` of several requests at once; the error of one stands in its place."""
        prepared = [_tried(self._prepared, asked) for asked in requests]
        whole = [one[0] for one in prepared if not isinstance(one, DataError)]
        found = iter(self._cascade().recommend_prepared(whole) if whole else ())
        return [one if isinstance(one, DataError) else self._recommended(next(found), one[1]) for one in prepared]

    def _prepared(self, asked: Asked) -> tuple[Prepared, int]:
        """A request as a query, and how many items it leaves out since the user has used them."""
        cascade = self._cascade()
        size = len(cascade.index)
        k = min(10, size) if asked.k is None else asked.k
        if k > size:
            raise RequestError(f"k must be at most the {size:,} items of the {cascade.index.what}, found {k}", "k")
        candidates, used = asked.candidates, self._used(asked)
        query = Query(
            context=values_of(asked.context, self.context_fields, "context"),
            k=k,
            prerank=max(k, asked.prerank),
            candidates=None if candidates is None else self._known(candidates, "candidates"),
            exclude=[*asked.exclude, *used],
            where=asked.where,
        )
        for column in asked.where:
            if column not in cascade.index.items.columns:
                known = ", ".join(cascade.index.items.columns)
                raise RequestError(f"items are filtered by {known}, found {column[:60]!r}", f"where.{column}")
            try:
                cascade.filters.texts(column)
            except DataError as e:
                raise RequestError(str(e), f"where.{column}") from None
        return cascade.prepare(query), sum(one in cascade.index.places for one in used)

    def _used(self, asked: Asked) -> list[str]:
        """The items that must not come since the user has used them."""
        wanted = self.exclude_seen if asked.exclude_seen is None else asked.exclude_seen
        if not wanted:
            return []
        if self.log is None:
            raise RequestError("this server has no log of what users have used: start it with --log", "exclude_seen")
        user = asked.context.get(self.log.column) if asked.user is None else asked.user
        if user is None and asked.exclude_seen:
            raise RequestError("to leave out what a user has used, name the user", "user")
        try:
            return [] if user is None else self.log.used(text_of(user))
        except (TypeError, ValueError) as e:
            raise RequestError(f"a user must be {e}", f"context.{self.log.column}") from None

    def _recommended(self, found: Found, seen: int) -> dict[str, Any]:
        return {
            "items": self._items(found.rows, found.scores),
            "ranked": self.ranked,
            "seen": seen,
            "counts": dict(found.counts),
            "milliseconds": {stage: 1000 * seconds for stage, seconds in found.seconds.items()},
        }

    def explain(
        self,
        *,
        rows: Sequence[Mapping[str, Any]],
        context: Mapping[str, Any],
        items: Sequence[str],
        pairs: bool = False,
    ) -> list[dict[str, Any]]:
        """Why rows, or some items in a context, have their scores.

        With `pairs`, what pairs of fields give together is measured (`measured_pairs`) where the model has no terms of
        pairs.

        Errors:
            RequestError: as in `predict` and `recommend`.
        """
        fields = self.bundle.schema.fields
        frame = frame_of(rows, fields)
        if items:
            index = self._cascade().index
            places = index.rows_of(self._known(items, "items"))
            whole = values_of(context, self.explained_fields, "context")
            others = frame_of([whole], [f for f in fields if f.role != "item"], "context")
            own = index.items[places.numpy()].select(list(dict.fromkeys(f.column for f in fields if f.role == "item")))
            frame = own.join(others, how="cross")
        found = explain(self.bundle, frame)
        explained = [found.row(number) for number in range(frame.height)]
        for number, one in enumerate(explained):
            if pairs and "pairs" not in one:
                one["measured_pairs"] = measured_pairs(found, number)
        return explained

    def similar(self, item: str, k: int) -> list[dict[str, Any]]:
        """The items whose heads are nearest to an item's, by the mean over its heads of the best cosine.

        Errors:
            RequestError: no index, or an unknown item.
        """
        index = self._cascade().index
        if not isinstance(index, ItemIndex):
            raise RequestError(
                "similar items are those with the nearest heads of an IntTower, and this server ranks by another "
                "bundle alone: start it with --prerank",
                "server",
                404,
            )
        if item not in index.places:
            raise RequestError(index.unknown(item), "id", 404)
        own = index.places[item]
        heads = _floats(self._directions[own : own + 1])[0]
        scores = self._directions.scores(heads).numpy() / len(heads)
        scores[own] = -np.inf
        best = np.argsort(-scores, kind="stable")[: min(k, len(index) - 1)]
        return self._items(best, {"similarity": scores[best].astype(np.float64)})

    def browser(self, title: str | None = None) -> Browser:
        """This service to look around in, kept by title; the browser does not hold the service.

        Errors:
            ConfigError: as of `Browser`.
        """
        if title not in self._browsers:
            self._browsers[title] = Browser(self.bundle, self.cascade, title)
        return self._browsers[title]

    def items(self, places: np.ndarray) -> list[dict[str, Any]]:
        """Items of the index by where they stand, with their columns as JSON has them.

        Errors:
            RequestError: no index.
        """
        return self._items(places, {})

    @cached_property
    def item_rows(self) -> IndexItems:
        """What the bundle reads of the index's items, by id.

        Errors:
            RequestError: no index.
        """
        columns = [field.column for field in self.bundle.schema.with_role("item")]
        return IndexItems(self._cascade().index, columns)

    def _cascade(self) -> Cascade | WholeRanking:
        if self.cascade is None:
            raise RequestError(NO_ITEMS, "server", 404)
        return self.cascade

    @property
    def _bundles(self) -> list[Bundle]:
        """Those that recommend."""
        prerank = self._cascade().prerank
        return [self.bundle] if prerank is None else [prerank, self.bundle]

    @cached_property
    def _directions(self) -> StoredItems:
        """Heads of length 1, in the index's storage."""
        index = self._cascade().index
        assert isinstance(index, ItemIndex), "checked before"
        stored = index.stored
        return StoredItems.of(torch.nn.functional.normalize(_floats(stored), dim=2), stored.storage)

    def _known(self, ids: Sequence[str], name: str) -> Sequence[str]:
        index = self._cascade().index
        for number, one in enumerate(ids):
            if one not in index.places:
                raise RequestError(index.unknown(one), f"{name}[{number}]")
        return ids

    @cached_property
    def context_fields(self) -> list[Field]:
        """What recommendations read of users and contexts, one field a column.

        Errors:
            RequestError: no index.
        """
        bundles = reversed(self._bundles)
        return list({f.column: f for bundle in bundles for f in _outside_items(bundle)}.values())

    @cached_property
    def explained_fields(self) -> list[Field]:
        """What explanations of items read of users and contexts, one field a column."""
        return list({f.column: f for f in _outside_items(self.bundle)}.values())

    def _items(self, places: np.ndarray, scores: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """Items with their columns as JSON has them, and some scores."""
        ids, columns = self._cascade().index.ids, {name: values.tolist() for name, values in scores.items()}
        shown = self._shown  # read row by row: gathering rows wakes as many threads as there are cores
        return [
            {
                "id": ids[place],
                **{name: values[n] for name, values in columns.items()},
                "fields": dict(zip(shown.columns, shown.row(place), strict=True)),
            }
            for n, place in enumerate(places.tolist())
        ]

    @cached_property
    def _shown(self) -> pl.DataFrame:
        """The catalogue as answers show it."""
        return shown_table(self._cascade().index.items)


def _outside_items(bundle: Bundle) -> list[Field]:
    return [f for f in bundle.schema.fields if f.role != "item"]


def _floats(stored: StoredItems) -> torch.Tensor:
    heads = stored.heads.to(torch.float32)
    return heads if stored.scale is None else heads * stored.scale.unsqueeze(2)


def _tried(call: Callable[[A], T], given: A) -> T | DataError:
    try:
        return call(given)
    except DataError as e:
        return e


def _one(answers: list[T | DataError]) -> T:
    (answer,) = answers
    if isinstance(answer, DataError):
        raise answer
    return answer

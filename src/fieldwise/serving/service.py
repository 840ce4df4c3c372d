"""The service behind the server, without HTTP: predictions, recommendations, explanations, similar items."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.errors import ConfigError, DataError
from fieldwise.explain.effects import effect
from fieldwise.schema import Field
from fieldwise.serving.answers import Predicted, explanations, item_answers, only_answer, predictions, tried
from fieldwise.serving.asked import Asked, Explained, check_filter, used_items
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.index import ItemIndex
from fieldwise.serving.page.browse import Browser
from fieldwise.serving.page.shown import shown_table
from fieldwise.serving.queries import Found, Prepared, Query
from fieldwise.serving.rows import NO_ITEMS, RequestError, frame_of, values_of
from fieldwise.serving.similar import SimilarItems
from fieldwise.serving.stores.table import IndexItems
from fieldwise.serving.user_log import Seen, UserLog
from fieldwise.serving.whole import WholeRanking

__all__ = ["Service"]


class Service:
    """Bundles that serve requests of plain values.

    Args:
        ranker: the bundle that scores, explains and ranks rows.
        cascade: the recommender, with two stages or ranking every item; its ranking bundle is `ranker`.
        log: users' rows: the items in them, and the latest contexts.
        exclude_seen: which items of a user's rows to exclude, unless a request overrides it: those of `positive` rows
            (of all, if the log does not say which are positive), all or none.

    Errors:
        ConfigError: neither a ranker nor a cascade.
    """

    def __init__(
        self,
        ranker: Bundle | None = None,
        cascade: Cascade | WholeRanking | None = None,
        *,
        log: UserLog | None = None,
        exclude_seen: Seen = "positive",
    ) -> None:
        scores = ranker or (cascade.ranker if cascade else None) or (cascade.prerank if cascade else None)
        if scores is None:
            raise ConfigError(
                "a server needs a bundle that scores: give a ranking bundle, or an IntTower with its index"
            )
        self.bundle, self.cascade = scores, cascade
        self.log = log
        self.exclude_seen: Seen = log is not None and (exclude_seen if log.positive else bool(exclude_seen))
        self._browsers: dict[str | None, Browser] = {}
        self._effects: dict[str, dict[str, Any]] = {}

    @property
    def about(self) -> str:
        """A short description of what is served."""
        model = f"model {self.bundle.digest[:12]}{' (calibrated)' if self.bundle.calibration else ''}"
        if self.cascade is None:
            return model
        if isinstance(self.cascade, WholeRanking):
            return f"{model}, which ranks all {len(self.cascade.index):,} items"
        tower, index = self.cascade.prerank.digest[:12], self.cascade.index
        return f"{model}, pre-ranked by {tower}, index {index.generation[:12]} of {len(index):,} items"

    @property
    def ranked(self) -> str | None:
        """The kind of ranking: `all` items by the bundle, `preranked` ones, or by the `tower` only."""
        if self.cascade is None:
            return None
        if isinstance(self.cascade, WholeRanking):
            return "all"
        return "tower" if self.cascade.ranker is None else "preranked"

    def cost(self, asked: Asked) -> int:
        """The maximum number of items that the bundle has to score for a request."""
        if not isinstance(self.cascade, WholeRanking):
            return asked.prerank
        return len(self.cascade.index if asked.candidates is None else asked.candidates)

    def warm_up(self, before: "Service | None" = None) -> None:
        """Serve one request, to build everything that a first request builds.

        Args:
            before: the previous service; the filter indexes of its columns are built.

        Errors:
            ConfigError: the items lack the display column of the previous service.
        """
        for title in () if before is None else tuple(before._browsers):
            self.browser(title)
        sample = self.bundle.samples.head(1)
        if sample.height:
            self.bundle.score(sample)
        if self.cascade is not None:
            self.cascade.index.places  # noqa: B018
            self._shown  # noqa: B018
            with suppress(DataError):  # reported by requests for items by id
                self.item_rows.plain  # noqa: B018
            rows = [bundle.samples.head(1).to_dicts() for bundle in self._bundles]
            if all(rows):
                size = len(self.cascade.index)
                self.cascade.recommend(Query(context=rows[0][0] | rows[-1][0], k=min(10, size), prerank=200))
            if before is not None and before.cascade is not None:
                known = self.cascade.index.items.columns
                self.cascade.filters.prepare([c for c in before.cascade.filters.prepared if c in known])

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> Predicted:
        """Score and prediction of each row, by label if there are several.

        Errors:
            RequestError: a row lacks a column or has an invalid value.
        """
        return only_answer(self.predict_all([rows]))

    def predict_all(self, requests: Sequence[Sequence[Mapping[str, Any]]]) -> list[Predicted | BaseException]:
        """`predict` for several requests at once, with an exception in place of a failed result."""
        fields = self.bundle.schema.fields
        frames = [tried(lambda one: frame_of(one, fields), rows) for rows in requests]
        whole = [frame for frame in frames if isinstance(frame, pl.DataFrame)]
        scored = iter(predictions(self.bundle, pl.concat(whole)) if whole else ())
        return [frame if isinstance(frame, BaseException) else list(islice(scored, frame.height)) for frame in frames]

    def recommend(self, asked: Asked) -> dict[str, Any]:
        """The best items with their columns and scores, and the number of items and time of each stage.

        Errors:
            RequestError: no index; an unknown candidate or item column; a context that lacks a column.
        """
        return only_answer(self.recommend_all([asked]))

    def recommend_all(self, requests: Sequence[Asked]) -> list[dict[str, Any] | BaseException]:
        """`recommend` for several requests at once, with an exception in place of a failed result."""
        prepared = [tried(self._prepared, asked) for asked in requests]
        whole = [one[0] for one in prepared if not isinstance(one, BaseException)]
        found = iter(self._cascade().recommend_prepared(whole) if whole else ())
        return [one if isinstance(one, BaseException) else self._recommended(next(found), one[1]) for one in prepared]

    def _prepared(self, asked: Asked) -> tuple[Prepared, int]:
        """The query of a request, and the number of items excluded because of the user's rows."""
        cascade = self._cascade()
        size = len(cascade.index)
        k = min(10, size) if asked.k is None else asked.k
        if k > size:
            raise RequestError(f"k must be at most the {size:,} items of the {cascade.index.what}, found {k}", "k")
        candidates, used = asked.candidates, used_items(asked, self.log, self.exclude_seen)
        query = Query(
            context=values_of(asked.context, self.context_fields, "context"),
            k=k,
            prerank=max(k, asked.prerank),
            candidates=None if candidates is None else self._known(candidates, "candidates"),
            exclude=[*asked.exclude, *used],
            where=asked.where,
        )
        for column in asked.where:
            check_filter(cascade, column)
        return cascade.prepare(query), sum(one in cascade.index.places for one in used)

    def _recommended(self, found: Found, seen: int) -> dict[str, Any]:
        return {
            "items": self._items(found.rows, found.scores),
            "ranked": self.ranked,
            "seen": seen,
            "counts": dict(found.counts),
            "milliseconds": {stage: 1000 * seconds for stage, seconds in found.seconds.items()},
        }

    def explain(self, asked: Explained, *, pairs: bool = False) -> list[dict[str, Any]]:
        """Explain the scores of rows, or of some items in a context.

        With `pairs`, the joint effects of pairs of fields are measured (`measured_pairs`) if the model has no pair
        terms.

        Errors:
            RequestError: as for `predict` and `recommend`.
        """
        return explanations(self.bundle, self.explained_rows(asked), pairs=pairs)

    def effect(self, field: Field) -> list[dict[str, Any]]:
        """The one effect of a field (`fieldwise.explain.effects`), computed once.

        Errors:
            DataError: the bundle has no sample rows.
        """
        if field.name not in self._effects:
            self._effects[field.name] = effect(self.bundle, field)
        return [self._effects[field.name]]

    def explained_rows(self, asked: Explained) -> pl.DataFrame:
        """The rows to explain as a table; errors as for `explain`."""
        fields = self.bundle.schema.fields
        frame = frame_of(asked.rows, fields)
        if asked.items:
            index = self._cascade().index
            places = index.rows_of(self._known(asked.items, "items"))
            whole = values_of(asked.context, self.explained_fields, "context")
            others = frame_of([whole], [f for f in fields if f.role != "item"], "context")
            own = index.items[places.numpy()].select(list(dict.fromkeys(f.column for f in fields if f.role == "item")))
            frame = own.join(others, how="cross")
        return frame

    def similar(self, item: str, k: int) -> list[dict[str, Any]]:
        """The items with the nearest heads to an item's, by the mean over its heads of the best cosine.

        Errors:
            RequestError: no index, or an unknown item.
        """
        index = self._cascade().index
        if not isinstance(index, ItemIndex):
            raise RequestError(
                "similar items need the item heads of an IntTower, and this server only has another bundle: start it "
                "with --prerank",
                "server",
                404,
            )
        if item not in index.places:
            raise RequestError(index.unknown(item), "id", 404)
        best, similarity = self._similar.nearest(index.places[item], k)
        return self._items(best, {"similarity": similarity})

    def browser(self, title: str | None = None) -> Browser:
        """The page's browser of this service, cached by title; it does not reference the service.

        Errors:
            ConfigError: as for `Browser`.
        """
        if title not in self._browsers:
            self._browsers[title] = Browser(self.bundle, self.cascade, title)
        return self._browsers[title]

    def items(self, places: np.ndarray) -> list[dict[str, Any]]:
        """Items of the index by position, with their columns as JSON values.

        Errors:
            RequestError: no index.
        """
        return self._items(places, {})

    @cached_property
    def item_rows(self) -> IndexItems:
        """The bundle's item fields of the index's items, by id.

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
        """The bundles of the recommender."""
        prerank = self._cascade().prerank
        return [self.bundle] if prerank is None else [prerank, self.bundle]

    @cached_property
    def _similar(self) -> SimilarItems:
        index = self._cascade().index
        assert isinstance(index, ItemIndex), "checked before"
        return SimilarItems(index)

    def _known(self, ids: Sequence[str], name: str) -> Sequence[str]:
        index = self._cascade().index
        for number, one in enumerate(ids):
            if one not in index.places:
                raise RequestError(index.unknown(one), f"{name}[{number}]")
        return ids

    @cached_property
    def context_fields(self) -> list[Field]:
        """The user and context fields for recommendations, one field per column.

        Errors:
            RequestError: no index.
        """
        bundles = reversed(self._bundles)
        return list({f.column: f for bundle in bundles for f in _outside_items(bundle)}.values())

    @cached_property
    def explained_fields(self) -> list[Field]:
        """The user and context fields for explanations of items, one field per column."""
        return list({f.column: f for f in _outside_items(self.bundle)}.values())

    def _items(self, places: np.ndarray, scores: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        """Items with their columns as JSON values, and their scores."""
        return item_answers(self._cascade().index.texts, self._shown, places, scores)

    @cached_property
    def _shown(self) -> pl.DataFrame:
        """The catalogue as shown in responses."""
        return shown_table(self._cascade().index.items)


def _outside_items(bundle: Bundle) -> list[Field]:
    return [f for f in bundle.schema.fields if f.role != "item"]

"""The service behind the server, without HTTP: predictions, recommendations, explanations, similar items."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.errors import ConfigError, DataError
from fieldwise.explain.effects import effect
from fieldwise.explain.explanation import explain
from fieldwise.schema import Field
from fieldwise.scoring.items import ItemIndex
from fieldwise.scoring.ranker import Found, Prepared, Ranker
from fieldwise.serving.bodies import ExplainRequest, RecommendRequest
from fieldwise.serving.browser import Browser
from fieldwise.serving.plain_values import plain_value, shown_table
from fieldwise.serving.rows import FAULTS, NO_ITEMS, RequestError, frame_of, text_of, values_of
from fieldwise.serving.stores import Lookup, TableStore
from fieldwise.serving.user_log import Seen, UserLog

__all__ = ["Service", "explanations", "measures_pairs", "tried"]

A = TypeVar("A")
T = TypeVar("T")
Predicted = list[dict[str, float]]
NO_SCORES: Mapping[str, np.ndarray] = {}


class Service:
    """Bundles that serve requests of plain values.

    Args:
        ranker: the bundle that scores, explains and ranks rows.
        cascade: the recommender, with two stages or ranking every item; its ranking bundle is `ranker`.
        log: users' rows: the items in them, and the latest contexts.
        exclude_seen: which items of a user's rows to exclude, unless a request overrides it: those of `positive` rows
            (of all, if the log does not say which are positive), all or none.
        title: the item column that the page shows as the item's name; chosen by a rule if omitted.

    Attributes:
        browser: the page's descriptions of this service.

    Errors:
        ConfigError: neither a ranker nor a cascade; items do not have the column of titles.
    """

    def __init__(
        self,
        ranker: Bundle | None = None,
        cascade: Ranker[Bundle] | None = None,
        *,
        log: UserLog | None = None,
        exclude_seen: Seen = "positive",
        title: str | None = None,
    ) -> None:
        scores = ranker or (cascade.bundle if cascade else None) or (cascade.prerank if cascade else None)
        if scores is None:
            raise ConfigError(
                "a server needs a bundle that scores: give a ranking bundle, or an IntTower with its index"
            )
        self.bundle, self.cascade = scores, cascade
        self.log = log
        self.exclude_seen: Seen = log is not None and (exclude_seen if log.positive else bool(exclude_seen))
        self.browser = Browser(scores, cascade, title)
        self._effects: dict[str, dict[str, Any]] = {}

    @property
    def about(self) -> str:
        """A short description of what is served."""
        model = f"model {self.bundle.digest[:12]}{' (calibrated)' if self.bundle.calibration else ''}"
        if self.cascade is None:
            return model
        tower, items = self.cascade.prerank, self.cascade.index
        if tower is None or not isinstance(items, ItemIndex):
            return f"{model}, which ranks all {len(items):,} items"
        return f"{model}, pre-ranked by {tower.digest[:12]}, index {items.generation[:12]} of {len(items):,} items"

    @property
    def ranked(self) -> str | None:
        """The kind of ranking: `all` items by the bundle, `preranked` ones, or by the `tower` only."""
        if self.cascade is None:
            return None
        if self.cascade.prerank is None:
            return "all"
        return "tower" if self.cascade.bundle is None else "preranked"

    def cost(self, body: RecommendRequest) -> int:
        """The maximum number of items that the bundle has to score for a request."""
        if self.cascade is None or self.cascade.prerank is not None:
            return body.prerank
        return len(self.cascade.index if body.candidates is None else body.candidates)

    def warm_up(self, before: "Service | None" = None) -> None:
        """Serve one request, to build everything that a first request builds.

        Args:
            before: the previous service; the filter indexes of its columns are built.
        """
        sample = self.bundle.samples.head(1)
        if sample.height:
            self.bundle.score(sample)
        if self.cascade is not None:
            self.cascade.index.places  # noqa: B018
            self._shown  # noqa: B018
            self.item_rows  # noqa: B018
            rows = [bundle.samples.head(1).to_dicts() for bundle in self._bundles]
            if all(rows):
                size = len(self.cascade.index)
                self.cascade.recommend(rows[0][0] | rows[-1][0], k=min(10, size))
            if before is not None and before.cascade is not None:
                known = self.cascade.index.items.columns
                self.cascade.filters.prepare([c for c in before.cascade.filters.prepared if c in known])

    def examples(self, rows: int = 2) -> dict[str, dict[str, Any]]:
        """Bodies made of the bundles' sample rows, by path; none without sample rows."""
        samples = [_plain_rows(bundle, rows) for bundle in (self._bundles if self.cascade else [self.bundle])]
        if not all(samples):
            return {}
        found: dict[str, dict[str, Any]] = {"/v1/predict": {"rows": samples[-1]}}
        found["/v1/explain"] = {"rows": samples[-1][:1]}
        if self.cascade is not None:
            row = samples[0][0] | samples[-1][0]
            context = {field.column: row[field.column] for field in self.context_fields}
            found["/v1/recommend"] = {"context": context, "k": min(3, len(self.cascade.index))}
        return found

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

    def recommend(self, body: RecommendRequest) -> dict[str, Any]:
        """The best items with their columns and scores, and the number of items and time of each stage.

        Errors:
            RequestError: no index; an unknown candidate or item column; a context that lacks a column.
        """
        return only_answer(self.recommend_all([body]))

    def recommend_all(self, requests: Sequence[RecommendRequest]) -> list[dict[str, Any] | BaseException]:
        """`recommend` for several requests at once, with an exception in place of a failed result."""
        prepared = [tried(self._prepared, body) for body in requests]
        whole = [one[0] for one in prepared if not isinstance(one, BaseException)]
        found = iter(self._cascade().recommend_prepared(whole) if whole else ())
        return [one if isinstance(one, BaseException) else self._recommended(next(found), one[1]) for one in prepared]

    def _prepared(self, body: RecommendRequest) -> tuple[Prepared, int]:
        """The query of a request, and the number of items excluded because of the user's rows."""
        cascade = self._cascade()
        size = len(cascade.index)
        k = min(10, size) if body.k is None else body.k
        if k > size:
            raise RequestError(f"k must be at most the {size:,} items of the {cascade.index.what}, found {k}", "k")
        used = cascade.index.known_rows(_used_items(body, self.log, self.exclude_seen))
        for column in body.where:
            _check_filter(cascade, column)
        prepared = cascade.prepare(
            values_of(body.context, self.context_fields, "context"),
            k=k,
            prerank=max(k, body.prerank),
            candidates=None if body.candidates is None else self._rows_of(body.candidates, "candidates"),
            exclude=np.concatenate([cascade.index.known_rows(body.exclude), used]),
            where=body.where,
        )
        return prepared, len(used)

    def _recommended(self, found: Found, seen: int) -> dict[str, Any]:
        return {
            "items": self.items(found.rows, found.scores),
            "ranked": self.ranked,
            "seen": seen,
            "counts": dict(found.counts),
            "milliseconds": {stage: 1000 * seconds for stage, seconds in found.seconds.items()},
        }

    def effect(self, field: Field) -> list[dict[str, Any]]:
        """The one effect of a field (`fieldwise.explain.effects`), computed once.

        Errors:
            DataError: the bundle has no sample rows.
        """
        if field.name not in self._effects:
            self._effects[field.name] = effect(self.bundle, field)
        return [self._effects[field.name]]

    def explained_rows(self, body: ExplainRequest) -> pl.DataFrame:
        """The rows to explain as a table, of a request with rows, or with items in a context.

        Errors:
            RequestError: as for `predict` and `recommend`.
        """
        fields = self.bundle.schema.fields
        frame = frame_of(body.rows, fields)
        if body.items:
            index = self._cascade().index
            places = self._rows_of(body.items, "items")
            whole = values_of(body.context, self.explained_fields, "context")
            others = frame_of([whole], [f for f in fields if f.role != "item"], "context")
            own = index.items[places].select(list(dict.fromkeys(f.column for f in fields if f.role == "item")))
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
        best, similarity = index.similar(index.places[item], k)
        return self.items(best, {"similarity": similarity})

    def items(self, places: np.ndarray, scores: Mapping[str, np.ndarray] = NO_SCORES) -> list[dict[str, Any]]:
        """Items of the index by position, with their columns as JSON values and their scores.

        Errors:
            RequestError: no index.
        """
        ids, shown = self._cascade().index.texts, self._shown
        columns = {name: values.tolist() for name, values in scores.items()}
        return [
            {
                "id": ids[place],
                **{name: values[n] for name, values in columns.items()},
                # read row by row: gathering rows would start as many threads as there are cores
                "fields": dict(zip(shown.columns, shown.row(place), strict=True)),
            }
            for n, place in enumerate(places.tolist())
        ]

    @cached_property
    def item_rows(self) -> Lookup:
        """The bundle's item fields of the index's items, by id.

        Errors:
            RequestError: no index.
            DataError: a column holds what a request could not.
        """
        index, items = self._cascade().index, self._cascade().index.items
        read = {field.column for field in self.bundle.schema.with_role("item")} - {index.id_column}
        columns = [items.get_column(name) for name in items.columns if name in read]
        rows = pl.DataFrame([index.texts.alias(index.id_column), *columns])
        return Lookup("items", TableStore(index.id_column, rows, index.places))

    def _cascade(self) -> Ranker[Bundle]:
        if self.cascade is None:
            raise RequestError(NO_ITEMS, "server", 404)
        return self.cascade

    @property
    def _bundles(self) -> list[Bundle]:
        """The bundles of the recommender."""
        prerank = self._cascade().prerank
        return [self.bundle] if prerank is None else [prerank, self.bundle]

    def _rows_of(self, ids: Sequence[Any], name: str) -> np.ndarray:
        index = self._cascade().index
        try:
            return index.rows_of(ids)
        except DataError as e:
            number = next(number for number, one in enumerate(ids) if one not in index.places)
            raise RequestError(str(e), f"{name}[{number}]") from None

    @cached_property
    def context_fields(self) -> list[Field]:
        """The user and context fields for recommendations, one field per column.

        Errors:
            RequestError: no index.
        """
        bundles = reversed(self._bundles)
        return list({f.column: f for bundle in bundles for f in _outside_items(bundle)}.values())

    @cached_property
    def known_columns(self) -> set[str]:
        """The columns that a context may have: those that the bundles' schemas name, and of the log's users."""
        bundles = self._bundles if self.cascade else [self.bundle]
        return {*([self.log.column] if self.log else [])}.union(*(one.schema.named for one in bundles))

    @cached_property
    def explained_fields(self) -> list[Field]:
        """The user and context fields for explanations of items, one field per column."""
        return list({f.column: f for f in _outside_items(self.bundle)}.values())

    @cached_property
    def _shown(self) -> pl.DataFrame:
        """The catalogue as shown in responses."""
        return shown_table(self._cascade().index.items)


def _plain_rows(bundle: Bundle, count: int) -> list[dict[str, Any]]:
    """Sample rows of a bundle's columns as JSON values."""
    columns = [name for name in bundle.schema.columns if name in bundle.samples.columns]
    rows = bundle.samples.select(columns).head(count).to_dicts()
    return [{name: plain_value(value) for name, value in row.items()} for row in rows]


def _outside_items(bundle: Bundle) -> list[Field]:
    return [f for f in bundle.schema.fields if f.role != "item"]


def _used_items(body: RecommendRequest, log: UserLog | None, by_default: Seen) -> list[str]:
    """The items to exclude because of the user's rows.

    Args:
        body: the request.
        log: the users' rows, if the server has them.
        by_default: which to exclude if the request does not say.

    Errors:
        RequestError: the request asks for it, but there is no log, or no user in the request.
    """
    wanted = by_default if body.exclude_seen is None else body.exclude_seen
    if not wanted:
        return []
    if log is None:
        raise RequestError(
            "this server has no log of the items that users have used: start it with --log", "exclude_seen"
        )
    user = body.context.get(log.column) if body.user is None else body.user
    if user is None and body.exclude_seen:
        raise RequestError("to exclude items that a user has used, give the user", "user")
    try:
        return [] if user is None else log.used(text_of(user), wanted)
    except (TypeError, ValueError) as e:
        raise RequestError(f"a user must be {e}", f"context.{log.column}") from None


def _check_filter(cascade: Ranker[Bundle], column: str) -> None:
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


def predictions(bundle: Bundle, frame: pl.DataFrame) -> Predicted:
    """Score and prediction of each row, by label if there are several."""
    score = bundle.score(frame)
    prediction = bundle.prediction(score)
    names = [label.name for label in bundle.schema.labels]
    if len(names) == 1:
        return [{"score": float(s), "prediction": float(p)} for s, p in zip(score, prediction, strict=True)]
    parts = {f"{name}.score": score[:, column] for column, name in enumerate(names)}
    parts |= {f"{name}.prediction": prediction[:, column] for column, name in enumerate(names)}
    return [{name: float(values[row]) for name, values in parts.items()} for row in range(len(score))]


def explanations(bundle: Bundle, frame: pl.DataFrame, *, pairs: bool) -> list[dict[str, Any]]:
    """Explanations of rows; with `pairs`, pairs of fields are measured if the model has no pair terms."""
    found = explain(bundle, frame)
    explained = [found.row(number) for number in range(frame.height)]
    for number, one in enumerate(explained):
        if pairs and "pairs" not in one:
            one["measured_pairs"] = found.measured_pairs(number)
    return explained


def measures_pairs(bundle: Bundle) -> bool:
    """Whether `explanations` with `pairs` measures them, which takes long, since the model has no pair terms."""
    network = cast(nn.ModuleList, bundle.network.heads)[0] if bundle.schema.more_labels else bundle.network
    return not getattr(network, "pair_terms", False)


def tried(call: Callable[[A], T], given: A) -> T | BaseException:
    """The result of a call, or the exception that it raised, so that other requests are not affected.

    >>> tried(len, [1, 2])
    2
    """
    try:
        return call(given)
    except FAULTS as e:
        return e


def only_answer(answers: list[T | BaseException]) -> T:
    """The result of a single request.

    Errors:
        BaseException: the request failed.
    """
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer

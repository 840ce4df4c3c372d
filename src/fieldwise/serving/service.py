"""The service behind the server, without HTTP: predictions, recommendations, explanations, similar items."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.errors import ConfigError, DataError, FieldwiseError
from fieldwise.explain.effects import effect
from fieldwise.explain.explanation import explain
from fieldwise.explain.why_not import why_not
from fieldwise.features.definitions import features_of
from fieldwise.features.request_times import RequestTimes
from fieldwise.schema import Field
from fieldwise.scoring import EXCLUDE_SEEN, Seen
from fieldwise.scoring.items import ItemIndex
from fieldwise.scoring.ranker import Ranker, RankingRequest, RankingResult
from fieldwise.serving.bodies import ExplainRequest, RecommendRequest, WhyNotRequest
from fieldwise.serving.browser import Browser
from fieldwise.serving.rows import (
    FAULTS,
    NO_ITEMS,
    RequestError,
    plain_value,
    request_frame,
    shown_table,
    text_of,
    values_of,
)
from fieldwise.serving.stores import Lookup, TableStore
from fieldwise.serving.user_log import UserLog

__all__ = ["Service"]

ArgumentT = TypeVar("ArgumentT")
AnswerT = TypeVar("AnswerT")
Predicted = list[dict[str, Any]]
NO_SCORES: Mapping[str, np.ndarray] = {}


class Service:
    """Bundles that serve requests of plain values; what a request gets wrong is a RequestError.

    Args:
        bundle: the bundle that scores, explains and ranks rows; the ranker's if omitted.
        ranker: recommends, with two stages or ranking every item; its ranking bundle is `bundle`.
        log: users' rows: the items in them, and the latest contexts.
        exclude_seen: which items of a user's rows to exclude, unless a request overrides it: those
            of `positive` rows (of all, if the log does not say which are positive), all or none.
        title: the item column that the page shows as the item's name; chosen by a rule if omitted.
        varying: the item columns that vary within an item of the log, whose latest values the items
            have.

    Attributes:
        browser: the page's descriptions of this service.

    Errors:
        ConfigError: neither a bundle nor a ranker; items do not have the column of titles.
    """

    def __init__(
        self,
        bundle: Bundle | None = None,
        ranker: Ranker[Bundle] | None = None,
        *,
        log: UserLog | None = None,
        exclude_seen: Seen = EXCLUDE_SEEN,
        title: str | None = None,
        varying: Sequence[str] = (),
    ) -> None:
        if bundle is None and ranker is not None:
            bundle = ranker.bundle or ranker.tower
        if bundle is None:
            raise ConfigError(
                "a server needs a bundle that scores: give a ranking bundle, or an IntTower with its index"
            )
        self.bundle = bundle
        self.ranker = ranker
        self.log = log
        self.exclude_seen: Seen = False
        if log is not None:
            self.exclude_seen = exclude_seen if log.positive else bool(exclude_seen)
        self.browser = Browser(bundle, ranker, title, varying)
        self._effects: dict[str, dict[str, Any]] = {}

    @property
    def about(self) -> str:
        """A short description of what is served."""
        calibrated = " (calibrated)" if self.bundle.calibration else ""
        model = f"model {self.bundle.digest[:12]}{calibrated}"
        if self.ranker is None:
            return model
        tower = self.ranker.tower
        items = self.ranker.index
        if tower is None or not isinstance(items, ItemIndex):
            return f"{model}, which ranks all {len(items):,} items"
        return f"{model}, pre-ranked by {tower.digest[:12]}, index {items.generation[:12]} of {len(items):,} items"

    @property
    def ranked(self) -> str | None:
        """The kind of ranking: `all` items by the bundle, `preranked` ones, or by the `tower` only."""
        if self.ranker is None:
            return None
        if self.ranker.tower is None:
            return "all"
        return "tower" if self.ranker.bundle is None else "preranked"

    @property
    def status(self) -> dict[str, Any]:
        """What is served, for orchestrators."""
        index = None if self.ranker is None else self.ranker.index
        tower = None if self.ranker is None else self.ranker.tower
        return {
            "status": "ready",
            "model": self.bundle.digest,
            "calibrated": bool(self.bundle.calibration),
            "tower": tower.digest if tower else None,
            "items": len(index) if index else 0,
            "ranked": self.ranked,
            "index": index.generation if isinstance(index, ItemIndex) else None,
        }

    def cost(self, body: RecommendRequest) -> int:
        """The maximum number of items that the bundle has to score for a request."""
        if self.ranker is None or self.ranker.tower is not None:
            return body.prerank
        return len(self.ranker.index if body.candidates is None else body.candidates)

    def warm_up(self, before: "Service | None" = None) -> None:
        """Serve one request, to build what a first one builds, and the filter indexes that the service before had."""
        sample = self.bundle.samples.head(1)
        if sample.height:
            self.bundle.score(sample)
        ranker = self.ranker
        if ranker is None:
            return

        ranker.index.places, self._shown, self.item_rows  # noqa: B018
        rows = [bundle.samples.head(1).to_dicts() for bundle in self._bundles]
        if all(rows):
            context = rows[0][0] | rows[-1][0]
            ranker.recommend(context, k=min(10, len(ranker.index)))
        if before is not None and before.ranker is not None:
            columns = ranker.index.items.columns
            filtered_before = before.ranker.filters.prepared
            ranker.filters.prepare([column for column in filtered_before if column in columns])

    def examples(self, rows: int = 2) -> dict[str, dict[str, Any]]:
        """Bodies made of the bundles' sample rows, by path; none without sample rows."""
        samples = [_plain_samples(bundle, rows) for bundle in self._bundles]
        if not all(samples):
            return {}
        bodies: dict[str, dict[str, Any]] = {
            "/v1/predict": {"rows": samples[-1]},
            "/v1/explain": {"rows": samples[-1][:1]},
        }
        if self.ranker is not None:
            row = samples[0][0] | samples[-1][0]
            context = {field.column: row[field.column] for field in self.context_fields}
            bodies["/v1/recommend"] = {"context": context, "k": min(3, len(self.ranker.index))}
            last_item = self.ranker.index.texts[-1]
            bodies["/v1/why-not"] = {**bodies["/v1/recommend"], "item": last_item}
        return bodies

    def predict(self, rows: Sequence[Mapping[str, Any]]) -> Predicted:
        """Score and prediction of each row, by label if there are several.

        Errors:
            RequestError: a row lacks a column or has an invalid value.
        """
        return only_answer(self.predict_all([rows]))

    def predict_all(
        self, requests: Sequence[Sequence[Mapping[str, Any]]]
    ) -> list[Predicted | BaseException]:
        """`predict` for several requests at once, with an exception in place of a failed result."""
        frames = [tried(self._frame, rows) for rows in requests]
        valid_frames = [frame for frame in frames if isinstance(frame, pl.DataFrame)]
        predicted: Predicted = []
        if valid_frames:
            predicted = predictions(self.bundle, pl.concat(valid_frames))

        answers: list[Predicted | BaseException] = []
        remaining = iter(predicted)
        for frame in frames:
            if isinstance(frame, BaseException):
                answers.append(frame)
            else:
                answers.append(list(islice(remaining, frame.height)))
        return answers

    def _frame(self, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
        """Raw rows as a table that the bundle reads."""
        return request_frame(rows, self.bundle.schema.fields, missing=self.missing)

    def recommend(self, body: RecommendRequest) -> dict[str, Any]:
        """The best items with their columns and scores, and the number of items and time of each stage.

        Errors:
            RequestError: no items to recommend; an unknown candidate or item column; a context that
                lacks a column.
        """
        return only_answer(self.recommend_all([body]))

    def recommend_all(
        self, requests: Sequence[RecommendRequest]
    ) -> list[dict[str, Any] | BaseException]:
        """`recommend` for several requests at once, with an exception in place of a failed result."""
        prepared = [tried(self._prepare, body) for body in requests]
        candidates = [answer[0] for answer in prepared if not isinstance(answer, BaseException)]
        results = iter(self.required_ranker.complete(candidates) if candidates else ())

        answers: list[dict[str, Any] | BaseException] = []
        for answer in prepared:
            if isinstance(answer, BaseException):
                answers.append(answer)
            else:
                _, seen = answer
                answers.append(self._recommended(next(results), seen))
        return answers

    def why_not(self, body: WhyNotRequest) -> dict[str, Any]:
        """Why an item is not in the list that `recommend` gives, as `fieldwise.explain.why_not` says.

        Errors:
            RequestError: as for `recommend`; an unknown item.
        """
        ranker = self.required_ranker
        if body.item not in ranker.index.places:
            raise RequestError(ranker.index.unknown(str(body.item)), "item")
        request, _ = self._prepare(body)
        (result,) = ranker.complete([request])
        return why_not(ranker, result, body.item).to_dict()

    def _recommended(self, result: RankingResult, seen: int) -> dict[str, Any]:
        """The answer with the best items; `seen` items were excluded because of the user's rows."""
        milliseconds = {stage: 1000 * seconds for stage, seconds in result.seconds.items()}
        return {
            "items": self.items(result.rows, result.columns),
            "ranked": self.ranked,
            "seen": seen,
            "changed": result.changed,
            "counts": result.counts,
            "milliseconds": milliseconds,
        }

    def _prepare(self, body: RecommendRequest) -> tuple[RankingRequest, int]:
        """The candidates for a request, and the number of items excluded because of the user's rows."""
        ranker = self.required_ranker
        index = ranker.index
        size = len(index)
        k = min(10, size) if body.k is None else body.k
        if k > size:
            raise RequestError(
                f"k must be at most the {size:,} items of the {index.what}, found {k}", "k"
            )
        seen = index.known_rows(self._seen_items(body))
        for name, columns in (("where", body.where), ("limits", body.limits)):
            for column in columns:
                with _errors_about(f"{name}.{column}"):
                    ranker.filters.texts(column)
        with _errors_about("pinned"):
            rules = ranker.rules(body.limits, body.pinned)

        context = values_of(body.context, self.context_fields, "context", missing=self.missing)
        candidates = None
        if body.candidates is not None:
            candidates = self._rows_of(body.candidates, "candidates")
        request = ranker.prepare(
            context,
            k=k,
            prerank=max(k, body.prerank),
            candidates=candidates,
            exclude=index.known_rows(body.exclude),
            seen=seen,
            where=body.where,
            rules=rules,
        )
        with _errors_about("pinned"):
            request.check_pinned()
        return request, len(seen)

    def _seen_items(self, body: RecommendRequest) -> list[str]:
        """The ids of the items to exclude from a request because of its user's rows."""
        which = self.exclude_seen if body.exclude_seen is None else body.exclude_seen
        if not which:
            return []
        if self.log is None:
            raise RequestError(
                "this server has no log of the items that users have used: start it with --log",
                "exclude_seen",
            )
        user = body.context.get(self.log.column) if body.user is None else body.user
        if user is None:
            if body.exclude_seen:
                raise RequestError("to exclude items that a user has used, give the user", "user")
            return []
        try:
            return self.log.used(text_of(user), which)
        except (TypeError, ValueError) as e:
            raise RequestError(f"a user must be {e}", f"context.{self.log.column}") from None

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
        if not body.items:
            return self._frame(body.rows)
        items = self.required_ranker.index.items[self._rows_of(body.items, "items")]
        item_fields = self.bundle.schema.with_role("item")
        item_columns = list(dict.fromkeys(field.column for field in item_fields))
        context = request_frame(
            [body.context], self.explained_fields, "context", missing=self.missing
        )
        return items.select(item_columns).join(context, how="cross")

    def similar(self, item: str, k: int) -> list[dict[str, Any]]:
        """The items with the nearest heads to an item's, by the mean over its heads of the best cosine.

        Errors:
            RequestError: no index of an IntTower, or an unknown item.
        """
        index = self.required_ranker.index
        if not isinstance(index, ItemIndex):
            raise RequestError(
                "similar items need the item heads of an IntTower, and this server only has another bundle: start it "
                "with --tower",
                "server",
                404,
            )
        if item not in index.places:
            raise RequestError(index.unknown(item), "id", 404)
        nearest, similarity = index.similar(index.places[item], k)
        return self.items(nearest, {"similarity": similarity})

    def items(
        self, positions: np.ndarray, scores: Mapping[str, np.ndarray] = NO_SCORES
    ) -> list[dict[str, Any]]:
        """Items of the index by position, with their columns as JSON values and their scores."""
        ids = self.required_ranker.index.texts
        shown = self._shown
        score_lists = {name: values.tolist() for name, values in scores.items()}
        items = []
        for number, position in enumerate(positions.tolist()):
            item: dict[str, Any] = {"id": ids[position]}
            for name, values in score_lists.items():
                item[name] = values[number]
            # read row by row: gathering rows would start as many threads as there are cores
            item["fields"] = shown.row(position, named=True)
            items.append(item)
        return items

    @cached_property
    def item_rows(self) -> Lookup:
        """The bundle's item fields of the index's items, by id."""
        index = self.required_ranker.index
        item_columns = {field.column for field in self.bundle.schema.with_role("item")}
        columns = [
            column
            for column in index.items.iter_columns()
            if column.name in item_columns and column.name != index.id_column
        ]
        rows = pl.DataFrame([index.texts.alias(index.id_column), *columns])
        return Lookup("items", TableStore(index.id_column, rows, index.places))

    @cached_property
    def required_ranker(self) -> Ranker[Bundle]:
        """`ranker`; a RequestError if there is none."""
        if self.ranker is None:
            raise RequestError(NO_ITEMS, "server", 404)
        return self.ranker

    @property
    def _bundles(self) -> list[Bundle]:
        tower = None if self.ranker is None else self.ranker.tower
        return [self.bundle] if tower is None else [tower, self.bundle]

    def _rows_of(self, ids: Sequence[Any], name: str) -> np.ndarray:
        index = self.required_ranker.index
        try:
            return index.rows_of(ids)
        except DataError as e:
            unknown = next(number for number, item in enumerate(ids) if item not in index.places)
            raise RequestError(str(e), f"{name}[{unknown}]") from None

    @cached_property
    def context_fields(self) -> list[Field]:
        """The user and context fields for recommendations, one field per column."""
        self.required_ranker  # noqa: B018  # a RequestError if there is none
        return _outside_items(*reversed(self._bundles))

    @cached_property
    def known_columns(self) -> set[str]:
        """The columns that a context may have: those that the bundles' schemas name, and of the log's users."""
        columns: set[str] = set()
        for bundle in self._bundles:
            columns.update(bundle.schema.named)
        if self.log is not None:
            columns.add(self.log.column)
        return columns

    @cached_property
    def features(self) -> frozenset[str]:
        """The columns that the bundles' recipes compute as of their time."""
        columns: set[str] = set()
        for bundle in self._bundles:
            for feature in features_of(bundle.about.recipe_settings):
                columns.update(feature.columns)
        return frozenset(columns)

    @cached_property
    def _request_times(self) -> list[RequestTimes]:
        """For each bundle whose recipe has hours or weekdays of the rows, how they are made."""
        makers: list[RequestTimes] = []
        for bundle in self._bundles:
            maker = RequestTimes.of_recipe(bundle.about.recipe_settings, bundle.schema)
            if maker is not None:
                makers.append(maker)
        return makers

    def with_times(self, rows: list[dict[str, Any]], where: str = "rows") -> list[dict[str, Any]]:
        """Rows with the hours and weekdays of their times that they lack, as the bundles' recipes make them."""
        with _errors_about(where):
            for maker in self._request_times:
                rows = maker.complete(rows)
        return rows

    def with_time(self, context: dict[str, Any]) -> dict[str, Any]:
        """A context with the hour and weekday of its time, likewise."""
        (completed,) = self.with_times([context], "context")
        return completed

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The marks of missing numbers of the bundles' schemas."""
        marks = [mark for bundle in self._bundles for mark in bundle.schema.missing]
        return tuple(dict.fromkeys(marks))

    @cached_property
    def explained_fields(self) -> list[Field]:
        """The user and context fields for explanations of items, one field per column."""
        return _outside_items(self.bundle)

    @cached_property
    def _shown(self) -> pl.DataFrame:
        """The catalogue as shown in responses."""
        return shown_table(self.required_ranker.index.items)


def _outside_items(*bundles: Bundle) -> list[Field]:
    """The user and context fields of bundles, one field per column."""
    by_column: dict[str, Field] = {}
    for bundle in bundles:
        for field in bundle.schema.fields:
            if field.role != "item":
                by_column[field.column] = field
    return list(by_column.values())


def _plain_samples(bundle: Bundle, count: int) -> list[dict[str, Any]]:
    """The first sample rows of a bundle, as values of requests."""
    columns = [name for name in bundle.schema.columns if name in bundle.samples.columns]
    rows = bundle.samples.select(columns).head(count).to_dicts()
    return [{name: plain_value(value) for name, value in row.items()} for row in rows]


def predictions(bundle: Bundle, frame: pl.DataFrame) -> Predicted:
    """Score and prediction of each row, by label if there are several; and the fields with unknown values, if any."""
    encoded = bundle.encoder.transform(frame)
    score = bundle.score_table(encoded)
    labels = bundle.schema.labels
    columns: dict[str, list[float]] = {}
    for name, values in (("score", score), ("prediction", bundle.prediction(score))):
        values_by_label = values.reshape(frame.height, len(labels)).T
        for label, label_values in zip(labels, values_by_label, strict=True):
            column = f"{label.name}.{name}" if bundle.schema.more_labels else name
            columns[column] = label_values.tolist()

    rows: Predicted = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    for row, unknown in zip(rows, bundle.encoder.unknown_fields(encoded), strict=True):
        if unknown:
            row["unknown"] = unknown
    return rows


def explanations(bundle: Bundle, frame: pl.DataFrame, *, pairs: bool) -> list[dict[str, Any]]:
    """Explanations of rows; with `pairs`, pairs of fields are measured if the model has no pair terms."""
    explanation = explain(bundle, frame)
    return [explanation.row(number, pairs=pairs) for number in range(frame.height)]


@contextmanager
def _errors_about(field: str) -> Iterator[None]:
    """Raise the errors of users in a block as RequestErrors about a field of the request."""
    try:
        yield
    except FieldwiseError as e:
        raise RequestError(str(e), field) from None


def tried(call: Callable[[ArgumentT], AnswerT], argument: ArgumentT) -> AnswerT | BaseException:
    """The result of a call, or the exception that it raised, so that other requests are not affected.

    >>> tried(len, [1, 2])
    2
    """
    try:
        return call(argument)
    except FAULTS as e:
        return e


def only_answer(answers: list[AnswerT | BaseException]) -> AnswerT:
    """The result of a single request, or its exception raised."""
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer

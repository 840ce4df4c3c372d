"""The service behind the server, without HTTP: predictions, recommendations, explanations, similar items.

A log of users' rows gives the items in them, the context of the latest one, and tables of items and
users.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text, empty_as_null, missing_as_null
from fieldwise.data.prepare.labels import positive_rows
from fieldwise.data.prepare.ordering import latest_rows, latest_values
from fieldwise.errors import ConfigError, DataError
from fieldwise.explain.effects import effect
from fieldwise.explain.explanation import explain
from fieldwise.schema import Field, Schema
from fieldwise.schema.ids import Who
from fieldwise.scoring import EXCLUDE_SEEN, Seen
from fieldwise.scoring.items import ItemIndex
from fieldwise.scoring.ranker import Ranker, RankingResult
from fieldwise.serving.bodies import ExplainRequest, RecommendRequest
from fieldwise.serving.browser import Browser
from fieldwise.serving.rows import (
    FAULTS,
    NO_ITEMS,
    RequestError,
    frame_of,
    plain_table,
    plain_value,
    shown_table,
    text_of,
    values_of,
)
from fieldwise.serving.stores import Lookup, TableStore

__all__ = ["Service", "UserLog", "tables_of_log", "varying_columns"]

A = TypeVar("A")
T = TypeVar("T")
Predicted = list[dict[str, Any]]
NO_SCORES: Mapping[str, np.ndarray] = {}


class UserLog:
    """Items of users' rows, also of the positive ones alone, and users' latest contexts.

    Args:
        log: rows of users and items.
        schemas: schemas of the recommender's bundles, the ranking one last: its main label says
            which rows are positive. Their context fields form the context.
        user: the column of user ids.
        item: the column of item ids.

    Errors:
        DataError: the log lacks a column of ids, or a label or a time cannot be read.

    Attributes:
        positive: the rule of a positive row in words; None if the log lacks the label, or it is a
            regression's.

    >>> from fieldwise import Categorical, Label
    >>> rows = pl.DataFrame({"user": [7, 7], "item": ["b", "a"], "device": ["tv", "pc"], "click": [0, 1]})
    >>> schema = Schema(fields=(Categorical("user", role="user"), Categorical("device")), label=Label("click"))
    >>> log = UserLog(rows, [schema], "user", "item")
    >>> log.used("7"), log.used("7", "positive"), log.context("7"), log.used("8")
    (['a', 'b'], ['a'], {'device': 'pc'}, [])
    """

    def __init__(self, log: pl.DataFrame, schemas: Sequence[Schema], user: str, item: str) -> None:
        self.column = user
        log = empty_as_null(log, user, item)
        label = schemas[-1].label
        positive = positive_rows(log, label)
        self.positive = None if positive is None else label.rule
        pairs = pl.DataFrame(
            [
                as_text(log.get_column(user)).alias("user"),
                as_text(log.get_column(item)).alias("item"),
            ]
        )
        pairs = pairs.with_columns(positive=True if positive is None else positive)
        rows = pairs.drop_nulls().group_by("user", "item").agg(pl.col("positive").any())
        of_users = rows.sort("user", "item").group_by("user", maintain_order=True)
        latest = latest_rows(log, user, schemas)
        names = as_text(latest.get_column(user)).alias("user")
        used = names.to_frame().join(
            of_users.agg("item", liked=pl.col("item").filter("positive")),
            "user",
            how="left",
            maintain_order="left",
        )
        self._used: dict[Seen, pl.Series] = {
            True: used.get_column("item"),
            "positive": used.get_column("liked"),
        }
        self._rows = {name: row for row, name in enumerate(names)}
        context = {
            field.column for schema in schemas for field in schema.fields if field.role == "context"
        }
        self._contexts = plain_table(
            latest.select(column for column in log.columns if column in context - {user, item})
        )

    def used(self, user: str, which: Seen = True) -> list[str]:
        """The ids of the items in a user's rows, or in the `positive` ones alone; none for an unknown user.

        Every row counts as positive if the log does not say which are.
        """
        row = self._rows.get(user)
        items = self._used[which][row] if which and row is not None else None
        return [] if items is None else items.to_list()

    def context(self, user: str) -> dict[str, Any]:
        """The values of context fields in a user's latest row, by column; none for an unknown user."""
        row = self._rows.get(user)
        return (
            {} if row is None or not self._contexts.width else self._contexts.row(row, named=True)
        )


class Service:
    """Bundles that serve requests of plain values; what a request gets wrong is a RequestError.

    Args:
        ranker: the bundle that scores, explains and ranks rows.
        cascade: the recommender, with two stages or ranking every item; its ranking bundle is
            `ranker`.
        log: users' rows: the items in them, and the latest contexts.
        exclude_seen: which items of a user's rows to exclude, unless a request overrides it: those
            of `positive` rows (of all, if the log does not say which are positive), all or none.
        title: the item column that the page shows as the item's name; chosen by a rule if omitted.
        varying: the item columns that vary within an item of the log, whose latest values the items
            have.

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
        exclude_seen: Seen = EXCLUDE_SEEN,
        title: str | None = None,
        varying: Sequence[str] = (),
    ) -> None:
        scores = (
            ranker
            or (cascade.bundle if cascade else None)
            or (cascade.prerank if cascade else None)
        )
        if scores is None:
            raise ConfigError(
                "a server needs a bundle that scores: give a ranking bundle, or an IntTower with its index"
            )
        self.bundle = scores
        self.cascade = cascade
        self.log = log
        self.exclude_seen: Seen = log is not None and (
            exclude_seen if log.positive else bool(exclude_seen)
        )
        self.browser = Browser(scores, cascade, title, varying)
        self._effects: dict[str, dict[str, Any]] = {}

    @property
    def about(self) -> str:
        """A short description of what is served."""
        model = (
            f"model {self.bundle.digest[:12]}{' (calibrated)' if self.bundle.calibration else ''}"
        )
        if self.cascade is None:
            return model
        tower = self.cascade.prerank
        items = self.cascade.index
        if tower is None or not isinstance(items, ItemIndex):
            return f"{model}, which ranks all {len(items):,} items"
        return f"{model}, pre-ranked by {tower.digest[:12]}, index {items.generation[:12]} of {len(items):,} items"

    @property
    def ranked(self) -> str | None:
        """The kind of ranking: `all` items by the bundle, `preranked` ones, or by the `tower` only."""
        if self.cascade is None or self.cascade.prerank is None:
            return None if self.cascade is None else "all"
        return "tower" if self.cascade.bundle is None else "preranked"

    @property
    def status(self) -> dict[str, Any]:
        """What is served, for orchestrators."""
        index, tower = (self.cascade.index, self.cascade.prerank) if self.cascade else (None, None)
        return {
            "status": "ready",
            "model": self.bundle.digest,
            "calibrated": bool(self.bundle.calibration),
            "prerank": tower.digest if tower else None,
            "items": len(index) if index else 0,
            "ranked": self.ranked,
            "index": index.generation if isinstance(index, ItemIndex) else None,
        }

    def cost(self, body: RecommendRequest) -> int:
        """The maximum number of items that the bundle has to score for a request."""
        if self.cascade is None or self.cascade.prerank is not None:
            return body.prerank
        return len(self.cascade.index if body.candidates is None else body.candidates)

    def warm_up(self, before: "Service | None" = None) -> None:
        """Serve one request, to build what a first one builds, and the filter indexes that the service before had."""
        sample = self.bundle.samples.head(1)
        if sample.height:
            self.bundle.score(sample)
        if self.cascade is not None:
            self.cascade.index.places, self._shown, self.item_rows  # noqa: B018
            rows = [bundle.samples.head(1).to_dicts() for bundle in self._bundles]
            if all(rows):
                self.cascade.recommend(rows[0][0] | rows[-1][0], k=min(10, len(self.cascade.index)))
            if before is not None and before.cascade is not None:
                known = self.cascade.index.items.columns
                self.cascade.filters.prepare(
                    [c for c in before.cascade.filters.prepared if c in known]
                )

    def examples(self, rows: int = 2) -> dict[str, dict[str, Any]]:
        """Bodies made of the bundles' sample rows, by path; none without sample rows."""
        samples = []
        for bundle in self._bundles:
            columns = [name for name in bundle.schema.columns if name in bundle.samples.columns]
            cells = bundle.samples.select(columns).head(rows).to_dicts()
            samples.append(
                [{name: plain_value(value) for name, value in row.items()} for row in cells]
            )
        if not all(samples):
            return {}
        results: dict[str, dict[str, Any]] = {
            "/v1/predict": {"rows": samples[-1]},
            "/v1/explain": {"rows": samples[-1][:1]},
        }
        if self.cascade is not None:
            row = samples[0][0] | samples[-1][0]
            context = {field.column: row[field.column] for field in self.context_fields}
            results["/v1/recommend"] = {"context": context, "k": min(3, len(self.cascade.index))}
        return results

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
        fields = self.bundle.schema.fields
        frames = [
            tried(lambda one: frame_of(one, fields, missing=self.missing), rows)
            for rows in requests
        ]
        whole = [frame for frame in frames if isinstance(frame, pl.DataFrame)]
        scored = iter(predictions(self.bundle, pl.concat(whole)) if whole else ())
        return [
            frame if isinstance(frame, BaseException) else list(islice(scored, frame.height))
            for frame in frames
        ]

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
        begun = [tried(self._begun, body) for body in requests]
        whole = [one[0] for one in begun if not isinstance(one, BaseException)]
        if whole:
            self.recommender.complete(whole)
        return [
            one
            if isinstance(one, BaseException)
            else {
                "items": self.items(one[0].rows, one[0].scores),
                "ranked": self.ranked,
                "seen": one[1],
                "counts": one[0].counts,
                "milliseconds": {
                    stage: 1000 * seconds for stage, seconds in one[0].seconds.items()
                },
            }
            for one in begun
        ]

    def _begun(self, body: RecommendRequest) -> tuple[RankingResult, int]:
        """The candidates for a request, and the number of items excluded because of the user's rows."""
        cascade = self.recommender
        log = self.log
        index = cascade.index
        size = len(cascade.index)
        k = min(10, size) if body.k is None else body.k
        if k > size:
            raise RequestError(
                f"k must be at most the {size:,} items of the {index.what}, found {k}", "k"
            )
        used: list[str] = []
        if wanted := self.exclude_seen if body.exclude_seen is None else body.exclude_seen:
            if log is None:
                what = (
                    "this server has no log of the items that users have used: start it with --log"
                )
                raise RequestError(what, "exclude_seen")
            user = body.context.get(log.column) if body.user is None else body.user
            if user is None and body.exclude_seen:
                raise RequestError("to exclude items that a user has used, give the user", "user")
            try:
                used = [] if user is None else log.used(text_of(user), wanted)
            except (TypeError, ValueError) as e:
                raise RequestError(f"a user must be {e}", f"context.{log.column}") from None
        seen = index.known_rows(used)
        for column in body.where:
            try:
                cascade.filters.texts(column)
            except DataError as e:
                raise RequestError(str(e), f"where.{column}") from None
        result = cascade.prepare(
            values_of(body.context, self.context_fields, "context", missing=self.missing),
            k=k,
            prerank=max(k, body.prerank),
            candidates=None
            if body.candidates is None
            else self._rows_of(body.candidates, "candidates"),
            exclude=np.concatenate([index.known_rows(body.exclude), seen]),
            where=body.where,
        )
        return result, len(seen)

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
        if not body.items:
            return frame_of(body.rows, fields, missing=self.missing)
        items = self.recommender.index.items[self._rows_of(body.items, "items")]
        own = items.select(list(dict.fromkeys(f.column for f in fields if f.role == "item")))
        context = frame_of([body.context], self.explained_fields, "context", missing=self.missing)
        return own.join(context, how="cross")

    def similar(self, item: str, k: int) -> list[dict[str, Any]]:
        """The items with the nearest heads to an item's, by the mean over its heads of the best cosine.

        Errors:
            RequestError: no index of an IntTower, or an unknown item.
        """
        index = self.recommender.index
        if not isinstance(index, ItemIndex):
            what = "similar items need the item heads of an IntTower, and this server only has another bundle"
            raise RequestError(f"{what}: start it with --prerank", "server", 404)
        if item not in index.places:
            raise RequestError(index.unknown(item), "id", 404)
        best, similarity = index.similar(index.places[item], k)
        return self.items(best, {"similarity": similarity})

    def items(
        self, places: np.ndarray, scores: Mapping[str, np.ndarray] = NO_SCORES
    ) -> list[dict[str, Any]]:
        """Items of the index by position, with their columns as JSON values and their scores."""
        ids = self.recommender.index.texts
        shown = self._shown
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
        """The bundle's item fields of the index's items, by id."""
        index = self.recommender.index
        items = self.recommender.index.items
        read = {field.column for field in self.bundle.schema.with_role("item")} - {index.id_column}
        columns = [items.get_column(name) for name in items.columns if name in read]
        rows = pl.DataFrame([index.texts.alias(index.id_column), *columns])
        return Lookup("items", TableStore(index.id_column, rows, index.places))

    @cached_property
    def recommender(self) -> Ranker[Bundle]:
        """`cascade`; a RequestError if there is none."""
        if self.cascade is None:
            raise RequestError(NO_ITEMS, "server", 404)
        return self.cascade

    @property
    def _bundles(self) -> list[Bundle]:
        prerank = None if self.cascade is None else self.cascade.prerank
        return [self.bundle] if prerank is None else [prerank, self.bundle]

    def _rows_of(self, ids: Sequence[Any], name: str) -> np.ndarray:
        index = self.recommender.index
        try:
            return index.rows_of(ids)
        except DataError as e:
            number = next(number for number, one in enumerate(ids) if one not in index.places)
            raise RequestError(str(e), f"{name}[{number}]") from None

    @cached_property
    def context_fields(self) -> list[Field]:
        """The user and context fields for recommendations, one field per column."""
        self.recommender  # noqa: B018  # a RequestError if there is none
        return _outside_items(*reversed(self._bundles))

    @cached_property
    def known_columns(self) -> set[str]:
        """The columns that a context may have: those that the bundles' schemas name, and of the log's users."""
        return {*([self.log.column] if self.log else [])}.union(
            *(one.schema.named for one in self._bundles)
        )

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
        return shown_table(self.recommender.index.items)


def _outside_items(*bundles: Bundle) -> list[Field]:
    """The user and context fields of bundles, one field per column."""
    fields = (f for bundle in bundles for f in bundle.schema.fields)
    return list({f.column: f for f in fields if f.role != "item"}.values())


def predictions(bundle: Bundle, frame: pl.DataFrame) -> Predicted:
    """Score and prediction of each row, by label if there are several; and the fields with unknown values, if any."""
    encoded = bundle.encoder.transform(frame)
    labels = bundle.schema.labels
    score = bundle.score_table(encoded)
    columns: dict[str, list[float]] = {}
    for kind, values in (("score", score), ("prediction", bundle.prediction(score))):
        for label, column in zip(labels, values.reshape(frame.height, len(labels)).T, strict=True):
            columns[f"{label.name}.{kind}" if bundle.schema.more_labels else kind] = column.tolist()
    results: Predicted = [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    for result, unknown in zip(results, bundle.encoder.unknown_fields(encoded), strict=True):
        if unknown:
            result["unknown"] = unknown
    return results


def explanations(bundle: Bundle, frame: pl.DataFrame, *, pairs: bool) -> list[dict[str, Any]]:
    """Explanations of rows; with `pairs`, pairs of fields are measured if the model has no pair terms."""
    result = explain(bundle, frame)
    return [result.row(number, pairs=pairs) for number in range(frame.height)]


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
    """The result of a single request, or its exception raised."""
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer


def varying_columns(log: pl.DataFrame, schemas: Sequence[Schema], item: str) -> list[str]:
    """The columns of item fields that have several values within an item of a log, of which the latest counts.

    >>> from fieldwise import Categorical, Label, Numeric
    >>> fields = Categorical("item", role="item"), Numeric("price", role="item"), Numeric("length", role="item")
    >>> log = pl.DataFrame({"item": ["a", "a"], "price": [9.5, 8.0], "length": [90, 90]})
    >>> varying_columns(log, [Schema(fields=fields, label=Label("liked"))], "item")
    ['price']
    """
    own = {field.column for schema in schemas for field in schema.with_role("item")} - {item}
    columns = [column for column in log.columns if column in own]
    rows = empty_as_null(log.select(item, *columns), item).drop_nulls(item)
    for schema in schemas:
        fields = [field for field in schema.with_role("item") if field.column in columns]
        rows = missing_as_null(rows, fields, schema.missing)
    values = rows.group_by(item).agg(pl.col(columns).drop_nulls().n_unique())
    return [
        column
        for column in columns
        if values.height and values.select(pl.col(column).max() > 1).item()
    ]


def tables_of_log(
    log: pl.DataFrame, schemas: Sequence[Schema], item: str, user: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The items and the users of a log, each with its latest values: by the schemas' time, else from the last rows.

    The latest value of a field is one that is not missing. Histories are those of the latest row.

    Items have the columns of the item fields. They also have the columns that no schema names and
    that never have two values for the same item, such as titles. Users have the columns of the user
    fields. Rows without an id are ignored. Both tables are sorted by id.

    Args:
        log: rows of users and items.
        schemas: schemas of the bundles that will read the tables.
        item: column of the item ids.
        user: column of the user ids.

    Errors:
        DataError: a column is missing.

    >>> from fieldwise import Categorical, Label, simulate
    >>> fields = Categorical("gender", role="user"), Categorical("item_id", role="item")
    >>> log = simulate(500, users=20, items=10)
    >>> items, users = tables_of_log(log, [Schema(fields=fields, label=Label("liked"))], "item_id", "user_id")
    >>> items.columns, users.columns
    (['item_id', 'title', 'genres', 'release_decade', 'length'], ['user_id', 'gender'])
    """
    role = {field.column: field.role for schema in schemas for field in schema.fields}
    for column in (item, user, *role):
        if column not in log.columns:
            raise DataError(
                f"the log must have the column {column!r}: {nearest(column, log.columns)}"
            )
    log = empty_as_null(log, item, user)
    named = {item, user}.union(*(schema.named for schema in schemas))
    extra = [column for column in log.columns if column not in named]
    cells = log.select(item, *extra).drop_nulls(item).group_by(item)
    values = cells.agg(pl.col(extra).drop_nulls().n_unique())
    # of each item
    constant = [column for column in extra if values.select(pl.col(column).max() <= 1).item()]

    def latest(id_column: str, side: Who) -> pl.DataFrame:
        own = {column for column, one in role.items() if one == side} - {item, user}
        rows = latest_values(log, id_column, schemas, side)
        return rows.select(id_column, *(column for column in log.columns if column in own))

    items = latest(item, "item").join(
        cells.agg(pl.col(constant).drop_nulls().first()), on=item, how="left", maintain_order="left"
    )
    return items.select(
        item, *(c for c in log.columns if c in items.columns and c != item)
    ), latest(user, "user")

"""Description of a server for its page: the fields with their usual values, and the items by title."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_text, field_numbers
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.words import binary_words, regression_words
from fieldwise.models.serialise import model_to_dict
from fieldwise.schema import Field
from fieldwise.schema.ids import named_id, words_of
from fieldwise.scoring.items import ItemTable
from fieldwise.scoring.ranker import Ranker
from fieldwise.serving.rows import NO_ITEMS, RequestError

MAX_CHOICES = 60
"""A column with more values is not offered as a choice."""
CHECKED_FREQUENT_VALUES = 100
"""Frequent values of a list field that are checked for item ids."""
MIN_TITLE_SHARE = 0.5
"""Minimum share of different values in a title column."""
TITLE_WORDS = {"title", "name", "headline", "caption", "label"}
"""Last words of the names of title columns."""


class Browser:
    """Describes a service's models, fields and items. The description is computed once."""

    def __init__(
        self,
        bundle: Bundle,
        ranker: Ranker[Bundle] | None,
        title: str | None = None,
        varying: Sequence[str] = (),
    ) -> None:
        self._varying = list(varying)
        self._bundle = bundle
        self._ranker = ranker
        self._index = ranker.index if ranker else None
        self._given_title = title
        if title is not None:
            _check_title(title, {} if self._index is None else self._index.items.schema)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The description as plain values: bundles, labels, fields with known and usual values, and the catalogue.

        A field's `cell` is a category (one text), a number or a list of texts; `values` are its
        known values, if they are few; `usual` is the most frequent value, or the median; `user` and
        `items` say whether its values are ids of users, or of the catalogue; a model reads at most
        `max_length` of the last values of a history. Without `tower`, the bundle ranks every
        item; without `ranked`, the order is that of pre-ranking. Items have the latest values of
        their `varying` columns.
        """
        labels = [
            {
                "name": label.name,
                "task": label.task,
                "range": label.range,
                "meaning": self._bundle.meaning(label),
            }
            for label in self._bundle.schema.labels
        ]
        return {
            "model": {**_named(self._bundle), "quality": _quality_sentences(self._bundle)},
            "labels": labels,
            "fields": [self._about_field(bundle, field) for bundle, field in self._fields],
            "items": None if self._ranker is None else self._about_items(self._ranker),
        }

    @cached_property
    def title(self) -> str | None:
        """The item column with titles; None if there is none."""
        if self._index is None or self._given_title is not None:
            return self._given_title
        return title_column(self._index, [field for _, field in self._fields])

    @property
    def user_fields(self) -> list[Field]:
        """The user and context fields, one per column."""
        return [field for _, field in self._fields if field.role != "item"]

    def items(self, search: str, ids: Sequence[str]) -> np.ndarray:
        """Positions of items with these ids; without ids, of those whose id starts with or title contains `search`."""
        if self._index is None:
            raise RequestError(NO_ITEMS, "server", 404)
        index = self._index
        if ids:
            return np.array([index.places[text] for text in ids if text in index.places], np.int64)
        text = search.lower()
        lower_ids, lower_titles = self._searched
        matches = lower_ids.str.starts_with(text) | lower_titles.str.contains(text, literal=True)
        return matches.arg_true().to_numpy()

    @cached_property
    def _fields(self) -> list[tuple[Bundle, Field]]:
        """The fields of a request, one per column, each with the bundle that reads it."""
        bundles = [self._bundle]
        if self._ranker is not None and self._ranker.tower is not None:
            bundles.append(self._ranker.tower)
        by_column: dict[str, tuple[Bundle, Field]] = {}
        for bundle in bundles:
            for field in bundle.schema.fields:
                by_column.setdefault(field.column, (bundle, field))
        return list(by_column.values())

    @cached_property
    def _searched(self) -> tuple[pl.Series, pl.Series]:
        """Ids and titles in lower case."""
        index = self._index
        assert index is not None, "the caller checked this"
        titles = index.texts
        if self.title is not None:
            titles = as_text(index.items.get_column(self.title)).fill_null("")
        return index.texts.str.to_lowercase(), titles.str.to_lowercase()

    def _about_field(self, bundle: Bundle, field: Field) -> dict[str, Any]:
        fitted = bundle.encoder.fitted[bundle.schema.fields.index(field)]
        values = fitted.values if isinstance(fitted, Vocabulary) else None
        return {
            "name": field.name,
            "column": field.column,
            "role": field.role,
            "kind": field.kind,
            "cell": field.cell,
            "values": _choices(values),
            "usual": _usual_value(bundle, field, values),
            "items": self._index is not None and self._has_items(field, values, self._index),
            "user": field.column == named_id("user", bundle.schema),
            "max_length": field.max_length,
        }

    def _has_items(self, field: Field, values: Sequence[str] | None, index: ItemTable) -> bool:
        """Whether most of the frequent values of a field's lists are ids of the catalogue."""
        if field.cell != "list" or values is None:
            return False
        frequent = values[:CHECKED_FREQUENT_VALUES]
        items = sum(value in index.places for value in frequent)
        return 2 * items > len(frequent)

    def _about_items(self, ranker: Ranker[Bundle]) -> dict[str, Any]:
        def choices(column: str) -> list[str] | None:
            try:
                texts = ranker.filters.texts(column)
            except DataError:
                return None
            if isinstance(texts.dtype, pl.List):
                texts = texts.list.explode(empty_as_null=False, keep_nulls=False)
            return _choices(texts.drop_nulls().unique())

        return {
            "count": len(ranker.index),
            "column": ranker.index.id_column,
            "title": self.title,
            "columns": [
                {"name": name, "values": choices(name)} for name in ranker.index.items.columns
            ],
            "varying": self._varying,
            "tower": None if ranker.tower is None else _named(ranker.tower),
            "ranked": ranker.bundle is not None,
        }


def _check_title(title: str, columns: Mapping[str, pl.DataType]) -> None:
    """A ConfigError if there is no such column, or its cells are no texts."""
    if title not in columns:
        remedy = "serve items with --log, --items or --index, or omit the title"
        hint = nearest(title, columns) if columns else remedy
        raise ConfigError(f"a title must be a column of the items, found {title!r}: {hint}")
    dtype = columns[title]
    if dtype == pl.Binary:
        contents = "bytes"
    elif dtype == pl.Duration:
        contents = "durations"
    elif dtype.is_nested():
        contents = "lists"
    else:
        return
    raise ConfigError(
        f"a title must be a text column, found {title!r} with {contents}: use another column"
    )


def _quality_sentences(bundle: Bundle) -> list[str]:
    """Sentences about a bundle's test metrics, if it has any."""
    label = bundle.schema.labels[0]
    metrics = bundle.about.test_metrics
    if not metrics:
        return []
    if label.task == "regression":
        return list(regression_words(metrics, label).values())
    shown = ["auc"]
    # a calibration changes probabilities, whose metrics were measured without it
    if label.name not in bundle.calibration:
        shown += ["logloss", "ece"]
    return [words for name, words in binary_words(metrics, label).items() if name in shown]


def _usual_value(
    bundle: Bundle, field: Field, values: Sequence[str] | None
) -> str | float | list[str] | None:
    """The most frequent value of a field, or the median where values have an order; an empty list for lists."""
    if field.cell in ("list", "vector"):
        return []
    if values is not None:  # the most frequent first
        return values[0] if values else None
    if field.column not in bundle.samples.columns:
        return None
    column = bundle.samples.get_column(field.column)
    if field.cell == "number":
        numbers = field_numbers(field, column, bundle.schema.missing).drop_nulls()
        number = numbers.median() if field.is_ordered else numbers.mode().min()
        return float(f"{number:.6g}") if isinstance(number, float) else None
    modes = as_text(column).drop_nulls().mode().sort()
    return str(modes[0]) if len(modes) else None


def title_column(index: ItemTable, read: Sequence[Field] = ()) -> str | None:
    """The column of a catalogue that holds the items' titles, chosen by rule; None if no column qualifies.

    Candidates are text columns other than the ids in which at least half of the values differ. A
    column with a name such as `title` or `movie_name` has priority, then a column that no field
    reads, then a categorical item field most of whose cells have several words. Ties go to the
    column with the most different values, then to the first.

    >>> items = pl.DataFrame({"item": ["1", "2"], "director": ["A. B.", "C. D."], "title": ["One film", "Two films"]})
    >>> from fieldwise import Categorical
    >>> title_column(ItemTable(id_column="item", items=items), [Categorical("title", role="item")])
    'title'
    """
    fields = {field.column: field for field in read}
    best = None
    best_rank = (False, False, 0.0)
    for name, dtype in index.items.schema.items():
        if dtype != pl.String or name == index.id_column:
            continue
        cells = index.items.get_column(name).drop_nulls()
        share = cells.n_unique() / index.items.height
        if share < MIN_TITLE_SHARE:
            continue

        field = fields.get(name)
        has_title_name = not TITLE_WORDS.isdisjoint(words_of(name)[-1:])
        if field is not None:
            has_several_words = 2 * cells.str.contains(r"\S\s+\S").sum() > len(cells)
            if field.cell != "category" or not (has_title_name or has_several_words):
                continue

        rank = (has_title_name, field is None, share)
        if rank > best_rank:
            best = name
            best_rank = rank
    return best


def _named(bundle: Bundle) -> dict[str, Any]:
    return {"name": model_to_dict(bundle.settings)["name"], "digest": bundle.digest}


def filled(value: Any) -> Any:
    """A table's cell as models read it: an empty text is None, and empty elements of a list are dropped."""
    if isinstance(value, list):
        texts = [element.strip() for element in value]
        return [text for text in texts if text]
    return None if value == "" else value


def _choices(values: Collection[str] | None) -> list[str] | None:
    """The values sorted, numbers by size, then texts; None if there are too many to choose from."""

    def order(text: str) -> tuple[int, float, str]:
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    if values is None or len(values) > MAX_CHOICES:
        return None
    return sorted(values, key=order)

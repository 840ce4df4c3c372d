"""Description of a server for its page: the fields with their usual values, and the items by title."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_number, as_text
from fieldwise.data.encode.fitted import Fitted, Vocabulary
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.words import binary_words, regression_words
from fieldwise.models.build import model_to_dict
from fieldwise.schema import Field
from fieldwise.schema.ids import named_id
from fieldwise.schema.names import words_of
from fieldwise.serving.cascade import Cascade
from fieldwise.serving.items import ItemTable
from fieldwise.serving.rows import NO_ITEMS, RequestError
from fieldwise.serving.whole import WholeRanking

__all__ = ["Browser", "title_column"]

LISTED = 60  # a column with more values is not offered as a choice
FREQUENT = 100  # frequent values of a list field that are checked for item ids
NAMED = 0.5  # minimum share of different values in a title column
TITLES = ("title", "name", "headline", "caption", "label")  # last words of the names of title columns


class Browser:
    """Describes a service's models, fields and items. The description is computed once.

    Args:
        bundle: the bundle that scores rows.
        cascade: the service's recommender; None if it has no items.
        title: the item column with titles. Default: chosen by `title_column`.

    Errors:
        ConfigError: the items have no such column, or it does not hold text.
    """

    def __init__(self, bundle: Bundle, cascade: Cascade | WholeRanking | None, title: str | None = None) -> None:
        self._bundle, self._cascade, self._index = bundle, cascade, cascade.index if cascade else None
        if title is not None and (self._index is None or title not in self._index.items.columns):
            known = [] if self._index is None else self._index.items.columns
            hint = nearest(title, known) if known else "serve items with --log, --items or --index, or omit the title"
            raise ConfigError(f"a title must be a column of the items, found {title!r}: {hint}")
        kind = None if title is None or self._index is None else self._index.items.schema[title]
        if kind is not None and (kind.is_nested() or kind in (pl.Binary, pl.Duration)):
            raise ConfigError(f"a title must be a text column, found {title!r} with {_what(kind)}: use another column")
        self._given = title

    @cached_property
    def about(self) -> dict[str, Any]:
        """The description as plain values: bundles, labels, fields with known and usual values, and the catalogue."""
        bundle, index = self._bundle, self._index
        labels = bundle.schema.labels
        return {
            "model": _named(bundle) | {"quality": _quality(bundle)},
            "labels": [
                {"name": one.name, "task": one.task, "range": one.range, "meaning": one.meaning} for one in labels
            ],
            "fields": [_about_field(*one) | {"items": self._holds_items(*one)} for one in self._fields],
            "items": None if index is None else self._about_items(index),
        }

    @cached_property
    def title(self) -> str | None:
        """The item column with titles; None if there is none."""
        if self._index is None or self._given is not None:
            return self._given
        return title_column(self._index, [one for _, one in self._fields])

    @property
    def user_fields(self) -> list[Field]:
        """The user and context fields, one per column."""
        return [field for _, field in self._fields if field.role != "item"]

    def items(self, search: str, ids: Sequence[str]) -> np.ndarray:
        """Positions of the items with these ids; without ids, of those whose id starts with or title contains `search`.

        Errors:
            RequestError: the server has no items.
        """
        if self._index is None:
            raise RequestError(NO_ITEMS, "server", 404)
        index = self._index
        if ids:
            return np.array([index.places[one] for one in ids if one in index.places], np.int64)
        start, (names, titles) = search.lower(), self._searched
        return (names.str.starts_with(start) | titles.str.contains(start, literal=True)).arg_true().to_numpy()

    @cached_property
    def _fields(self) -> list[tuple[Bundle, Field]]:
        """The fields of a request, one per column, each with the bundle that reads it."""
        found: dict[str, tuple[Bundle, Field]] = {}
        cascade = self._cascade
        for bundle in (self._bundle, *([cascade.prerank] if cascade and cascade.prerank else [])):
            for field in bundle.schema.fields:
                found.setdefault(field.column, (bundle, field))
        return list(found.values())

    @cached_property
    def _searched(self) -> tuple[pl.Series, pl.Series]:
        """Ids and titles in lower case."""
        index = self._index
        assert index is not None, "the caller checked this"
        ids = index.texts
        titles = ids if self.title is None else as_text(index.items.get_column(self.title)).fill_null("")
        return ids.str.to_lowercase(), titles.str.to_lowercase()

    def _holds_items(self, bundle: Bundle, field: Field) -> bool:
        """Whether a field's lists hold items, that is, most of its frequent values are ids of the catalogue."""
        if self._index is None or field.cell != "list":
            return False
        fitted = bundle.encoder.fitted[bundle.schema.fields.index(field)]
        known = fitted.values[:FREQUENT] if isinstance(fitted, Vocabulary) else ()
        return 2 * sum(one in self._index.places for one in known) > len(known)

    def _about_items(self, index: ItemTable) -> dict[str, Any]:
        cascade = self._cascade
        assert cascade is not None, "the cascade has the index"
        columns = [{"name": name, "values": self._values(name)} for name in index.items.columns]
        return {
            "count": len(index),
            "column": index.id_column,
            "title": self.title,
            "columns": columns,
            "prerank": None if cascade.prerank is None else _named(cascade.prerank),
            "ranked": cascade.ranker is not None,
        }

    def _values(self, column: str) -> list[str] | None:
        """The values of a column to filter by; None if there are too many."""
        assert self._cascade is not None, "the cascade has the column"
        try:
            texts = self._cascade.filters.texts(column)
        except DataError:
            return None
        if isinstance(texts.dtype, pl.List):
            texts = texts.list.explode(empty_as_null=False, keep_nulls=False)
        values = texts.drop_nulls().unique()
        return None if len(values) > LISTED else _in_order(values.to_list())


def title_column(index: ItemTable, read: Sequence[Field] = ()) -> str | None:
    """The column of a catalogue that holds the items' titles, chosen by rule; None if no column qualifies.

    Candidates are text columns other than the ids in which at least half of the values differ. A column with a name
    such as `title` or `movie_name` has priority, then a column that no field reads, then a categorical item field most
    of whose cells have several words. Ties go to the column with the most different values, then to the first.

    >>> items = pl.DataFrame({"item": ["1", "2"], "director": ["A. B.", "C. D."], "title": ["One film", "Two films"]})
    >>> from fieldwise import Categorical
    >>> title_column(ItemTable(id_column="item", items=items), [Categorical("title", role="item")])
    'title'
    """
    fields = {field.column: field for field in read}
    best, most = None, (False, False, 0.0)
    for name, kind in index.items.schema.items():
        cells = index.items.get_column(name).drop_nulls()
        share = cells.n_unique() / index.items.height if kind == pl.String else 0.0
        if name == index.id_column or share < NAMED:
            continue
        field, named = fields.get(name), _says_title(name)
        if field is not None and field.cell != "category":
            continue
        if field is not None and not named and not _of_words(cells):
            continue
        if (named, field is None, share) > most:
            best, most = name, (named, field is None, share)
    return best


def _says_title(name: str) -> bool:
    return bool(words_of(name)) and words_of(name)[-1] in TITLES


def _of_words(cells: pl.Series) -> bool:
    """Whether most cells have several words."""
    return 2 * int(cells.str.contains(r"\S\s+\S").sum()) > len(cells)


def _what(kind: pl.DataType) -> str:
    return "bytes" if kind == pl.Binary else "durations" if kind == pl.Duration else "lists"


def _named(bundle: Bundle) -> dict[str, Any]:
    return {"name": model_to_dict(bundle.settings)["name"], "digest": bundle.digest}


def _quality(bundle: Bundle) -> list[str]:
    """Sentences about the main label's test metrics, if the bundle holds them.

    If the bundle has a calibration, metrics of probabilities are omitted, because they were measured without it.
    """
    label, run = bundle.schema.label, bundle.about.get("run")
    test = run.get("test") if isinstance(run, Mapping) else None
    if not isinstance(test, Mapping):
        return []
    metrics = {name: float(value) for name, value in test.items() if isinstance(value, (int, float))}
    if label.task == "regression":
        return list(regression_words(metrics, label).values())
    shown = ("auc",) if label.name in bundle.calibration else ("auc", "logloss", "ece")
    return [words for name, words in binary_words(metrics, label).items() if name in shown]


def _about_field(bundle: Bundle, field: Field) -> dict[str, Any]:
    fitted = bundle.encoder.fitted[bundle.schema.fields.index(field)]
    known = fitted.values if isinstance(fitted, Vocabulary) else None
    return {
        "name": field.name,
        "column": field.column,
        "role": field.role,
        "kind": field.kind,
        "cell": field.cell,
        "values": None if known is None or len(known) > LISTED else _in_order(list(known)),
        "usual": _usual(bundle, field, fitted),
        "user": field.column == named_id("user", bundle.schema),
        "max_length": field.max_length,
    }


def _usual(bundle: Bundle, field: Field, fitted: Fitted) -> str | float | list[str] | None:
    """A field's usual value: the most frequent category, the median of the bundle's sample rows, or an empty list."""
    if field.cell == "list":
        return []
    if isinstance(fitted, Vocabulary):
        return fitted.values[0] if fitted.values else None
    if field.column not in bundle.samples.columns:
        return None
    column = bundle.samples.get_column(field.column)
    if field.cell == "number":
        median = as_number(column, f"column {field.column!r}", form=field.number_format).median()
        return float(f"{median:.6g}") if isinstance(median, float) else None
    modes = as_text(column).drop_nulls().mode().sort()
    return str(modes[0]) if len(modes) else None


def _in_order(values: list[str]) -> list[str]:
    """The values sorted: numbers by size, then texts."""

    def key(text: str) -> tuple[int, float, str]:
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    return sorted(values, key=key)

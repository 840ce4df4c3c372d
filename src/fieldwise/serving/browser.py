"""Description of a server for its page: the fields with their usual values, and the items by title."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.config import nearest
from fieldwise.data.encode.columns import as_number, as_text
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.words import binary_words, regression_words
from fieldwise.models.build import model_to_dict
from fieldwise.schema import Field
from fieldwise.schema.ids import named_id, words_of
from fieldwise.scoring.items import ItemTable
from fieldwise.scoring.ranker import Ranker
from fieldwise.serving.rows import NO_ITEMS, RequestError

LISTED = 60  # a column with more values is not offered as a choice
FREQUENT = 100  # frequent values of a list field that are checked for item ids
NAMED = 0.5  # minimum share of different values in a title column
# last words of the names of title columns
TITLES = {"title", "name", "headline", "caption", "label"}


class Browser:
    """Describes a service's models, fields and items. The description is computed once."""

    def __init__(
        self,
        bundle: Bundle,
        cascade: Ranker[Bundle] | None,
        title: str | None = None,
        varying: Sequence[str] = (),
    ) -> None:
        self._varying = list(varying)
        self._bundle = bundle
        self._cascade = cascade
        self._index = cascade.index if cascade else None
        self._given = title
        columns = {} if self._index is None else self._index.items.schema
        if title is not None and title not in columns:
            to_do = "serve items with --log, --items or --index, or omit the title"
            hint = nearest(title, columns) if columns else to_do
            raise ConfigError(f"a title must be a column of the items, found {title!r}: {hint}")
        kind = None if title is None else columns[title]
        if kind is not None and (kind.is_nested() or kind in (pl.Binary, pl.Duration)):
            what = "bytes" if kind == pl.Binary else "durations" if kind == pl.Duration else "lists"
            raise ConfigError(
                f"a title must be a text column, found {title!r} with {what}: use another column"
            )

    @cached_property
    def about(self) -> dict[str, Any]:
        """The description as plain values: bundles, labels, fields with known and usual values, and the catalogue.

        A field's `cell` is a category (one text), a number or a list of texts; `values` are its
        known values, if they are few; `usual` is the most frequent value, or the median; `user` and
        `items` say whether its values are ids of users, or of the catalogue; a model reads at most
        `max_length` of the last values of a history. Without `prerank`, the bundle ranks every
        item; without `ranked`, the order is that of pre-ranking. Items have the latest values of
        their `varying` columns.
        """
        bundle = self._bundle
        labels = self._bundle.schema.labels
        # sentences about its test metrics
        label = labels[0]
        run = bundle.about.get("run")
        quality = list[str]()
        if isinstance(run, Mapping) and isinstance(run.get("test"), Mapping):
            metrics = {
                name: float(value)
                for name, value in run["test"].items()
                if isinstance(value, (int, float))
            }
            if label.task == "regression":
                quality = list(regression_words(metrics, label).values())
            else:  # a calibration changes probabilities, whose metrics were measured without it
                shown = ("auc",) if label.name in bundle.calibration else ("auc", "logloss", "ece")
                quality = [
                    words for name, words in binary_words(metrics, label).items() if name in shown
                ]
        return {
            "model": _named(bundle) | {"quality": quality},
            "labels": [
                {"name": one.name, "task": one.task, "range": one.range, "meaning": one.meaning}
                for one in labels
            ],
            "fields": [self._about_field(*one) for one in self._fields],
            "items": None if self._cascade is None else self._about_items(self._cascade),
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
        """Positions of items with these ids; without ids, of those whose id starts with or title contains `search`."""
        if self._index is None:
            raise RequestError(NO_ITEMS, "server", 404)
        index = self._index
        if ids:
            return np.array([index.places[one] for one in ids if one in index.places], np.int64)
        start = search.lower()
        (names, titles) = self._searched
        return (
            (names.str.starts_with(start) | titles.str.contains(start, literal=True))
            .arg_true()
            .to_numpy()
        )

    @cached_property
    def _fields(self) -> list[tuple[Bundle, Field]]:
        """The fields of a request, one per column, each with the bundle that reads it."""
        results: dict[str, tuple[Bundle, Field]] = {}
        cascade = self._cascade
        for bundle in (self._bundle, *([cascade.prerank] if cascade and cascade.prerank else [])):
            for field in bundle.schema.fields:
                results.setdefault(field.column, (bundle, field))
        return list(results.values())

    @cached_property
    def _searched(self) -> tuple[pl.Series, pl.Series]:
        """Ids and titles in lower case."""
        index = self._index
        assert index is not None, "the caller checked this"
        titles = (
            index.texts
            if self.title is None
            else as_text(index.items.get_column(self.title)).fill_null("")
        )
        return index.texts.str.to_lowercase(), titles.str.to_lowercase()

    def _about_field(self, bundle: Bundle, field: Field) -> dict[str, Any]:
        fitted = bundle.encoder.fitted[bundle.schema.fields.index(field)]
        values = fitted.values if isinstance(fitted, Vocabulary) else None
        frequent = (
            (values or ())[:FREQUENT] if field.cell == "list" and self._index is not None else ()
        )
        usual: str | float | list[str] | None = [] if field.cell == "list" else None
        if usual is None and values is not None:
            usual = values[0] if values else None
        elif usual is None and field.column in bundle.samples.columns:
            column = bundle.samples.get_column(field.column)
            if field.cell == "number":
                missing = bundle.schema.missing
                what = f"column {field.column!r}"
                median = as_number(column, what, form=field.number_format, missing=missing).median()
                usual = float(f"{median:.6g}") if isinstance(median, float) else None
            else:
                modes = as_text(column).drop_nulls().mode().sort()
                usual = str(modes[0]) if len(modes) else None
        return {
            "name": field.name,
            "column": field.column,
            "role": field.role,
            "kind": field.kind,
            "cell": field.cell,
            "values": _choices(values),
            "usual": usual,
            # most of the frequent values of its lists are ids of the catalogue
            "items": self._index is not None
            and 2 * sum(one in self._index.places for one in frequent) > len(frequent),
            "user": field.column == named_id("user", bundle.schema),
            "max_length": field.max_length,
        }

    def _about_items(self, cascade: Ranker[Bundle]) -> dict[str, Any]:
        def values(column: str) -> list[str] | None:
            try:
                texts = cascade.filters.texts(column)
            except DataError:
                return None
            if isinstance(texts.dtype, pl.List):
                texts = texts.list.explode(empty_as_null=False, keep_nulls=False)
            return _choices(texts.drop_nulls().unique())

        return {
            "count": len(cascade.index),
            "column": cascade.index.id_column,
            "title": self.title,
            "columns": [
                {"name": name, "values": values(name)} for name in cascade.index.items.columns
            ],
            "varying": self._varying,
            "prerank": None if cascade.prerank is None else _named(cascade.prerank),
            "ranked": cascade.bundle is not None,
        }


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
    most = (False, False, 0.0)
    for name, kind in index.items.schema.items():
        cells = index.items.get_column(name).drop_nulls()
        share = cells.n_unique() / index.items.height if kind == pl.String else 0.0
        if name == index.id_column or share < NAMED:
            continue
        field = fields.get(name)
        named = not TITLES.isdisjoint(words_of(name)[-1:])
        of_words = cells.str.contains(r"\S\s+\S")
        if field is not None and (
            field.cell != "category" or not (named or 2 * of_words.sum() > len(cells))
        ):
            continue
        if (named, field is None, share) > most:
            best = name
            most = (named, field is None, share)
    return best


def _named(bundle: Bundle) -> dict[str, Any]:
    return {"name": model_to_dict(bundle.settings)["name"], "digest": bundle.digest}


def filled(value: Any) -> Any:
    """A table's cell as models read it: an empty text is None, and empty elements of a list are dropped."""
    if isinstance(value, list):
        return [text for one in value if (text := one.strip())]
    return None if value == "" else value


def _choices(values: Collection[str] | None) -> list[str] | None:
    """The values sorted, numbers by size, then texts; None if there are too many to choose from."""

    def key(text: str) -> tuple[int, float, str]:
        try:
            return 0, float(text), text
        except ValueError:
            return 1, 0.0, text

    return None if values is None or len(values) > LISTED else sorted(values, key=key)

"""Measures of users' lists together: whether they show much of the catalogue, and differ from user to user.

Letters: U users, N items, S shown items of all lists.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike

from fieldwise.data.encode.columns import as_text, empty_as_null
from fieldwise.data.read.tables import TableLike, as_table
from fieldwise.errors import DataError
from fieldwise.schema.ids import id_column
from fieldwise.scoring.candidates import Model
from fieldwise.scoring.recommend import IdColumns, item_popularity

__all__ = [
    "LIST_MEASURES",
    "Exposure",
    "ListMeasure",
    "exposure_of",
    "list_measures",
    "same_list_sentence",
]

MOST_OVERLAP_ABOVE_CHANCE = 0.5
"""Of (overlap - chance) / (1 - chance), beyond which most users get the same list."""
LEAST_USERS_TO_CHECK = 10


class Exposure:
    """How often users' lists show each of N items, by which all measures of lists are computed.

    Args:
        popularity: number of (positive training) rows of each item, [N].

    Attributes:
        users: number U of lists that have an item.
        shown: number of lists that show each item, [N].
        weight: sum over the lists that show an item of 1 / sqrt(length), [N].

    >>> exposure = Exposure([5, 2, 1, 0])
    >>> exposure.add([0, 1, 0, 2], [2, 2])
    >>> {name: round(measure.of(exposure), 6) for name, measure in LIST_MEASURES.items() if name != "novelty"}
    {'coverage': 0.75, 'top_tenth': 0.5, 'overlap': 0.5}
    """

    def __init__(self, popularity: ArrayLike) -> None:
        self.popularity = np.asarray(popularity, np.float64)
        self.users = 0
        self.shown = np.zeros(len(self.popularity), np.int64)
        self.weight = np.zeros(len(self.popularity))

    def add(self, items: ArrayLike, lengths: ArrayLike) -> None:
        """Count lists: their items by number, one list after the other [S], and the length of each list.

        A list has an item once at most; an empty list does not count.
        """
        numbers = np.asarray(items, np.int64)
        length = np.asarray(lengths, np.int64)
        length = length[length > 0]
        weight_S = np.repeat(1 / np.sqrt(length), length)
        self.users += len(length)
        self.shown += np.bincount(numbers, minlength=len(self.shown))
        self.weight += np.bincount(numbers, weight_S, minlength=len(self.weight))

    @property
    def items_shown(self) -> int:
        """The number of items that some list shows."""
        return int((self.shown > 0).sum())

    @property
    def chance(self) -> float:
        """The overlap to expect of lists of these lengths whose items are drawn at random: of length k, k / N."""
        return float((self.weight.sum() / max(self.users, 1)) ** 2 / len(self.weight))


def exposure_of(
    model: Model, lists: TableLike, log: TableLike, columns: IdColumns | None = None
) -> Exposure:
    """How often lists show each item of a log, for `list_measures` and `same_list_sentence`.

    Args:
        model: the bundle that made the lists, whose schema says what the columns are.
        lists: the result of `recommend` for several users, or another table of users and items.
        log: the rows given to `recommend`.
        columns: as given there.

    Errors:
        DataError: lists without the columns of users and items, or with an item that is not in the
            log.

    >>> from fieldwise import FM, Categorical, Label, Recommender, Schema, TrainingSettings, simulate
    >>> log = simulate(1000, users=50, items=30)
    >>> fields = Categorical("user_id", role="user"), Categorical("item_id", role="item")
    >>> schema = Schema(fields=fields, label=Label("liked"), user="user_id", item="item_id")
    >>> model = Recommender(schema, FM(embedding_dim=4), training=TrainingSettings(epochs=1)).fit(log)
    >>> exposure = exposure_of(model.bundle_, model.recommend(log, n=3), log)
    >>> exposure.users, exposure.shown.sum()
    (50, np.int64(150))
    """
    given = columns or IdColumns()
    schema = model.schema
    rows = as_table(
        log, text_columns=(*schema.text_columns, *filter(None, (given.user, given.item)))
    )
    user = id_column("user", [schema], rows.columns, given.user, option="IdColumns(user=COLUMN)")
    item = id_column("item", [schema], rows.columns, given.item, option="IdColumns(item=COLUMN)")
    listed = as_table(lists, text_columns=(user, item))
    for column in (user, item):
        if column not in listed.columns:
            raise DataError(
                f"lists must have the columns {user!r} and {item!r}, found {', '.join(listed.columns)}"
            )
    rows = empty_as_null(rows, user, item)
    items = rows.select(item).drop_nulls().unique(maintain_order=True)
    texts = pl.DataFrame({"item": as_text(items.get_column(item))}).with_row_index("number")

    listed = listed.sort(user, maintain_order=True)
    listed_texts = as_text(listed.get_column(item)).to_frame("item")
    numbers = listed_texts.join(texts, on="item", how="left", maintain_order="left")["number"]
    if numbers.null_count():
        unknown = listed_texts["item"][int(numbers.is_null().arg_max() or 0)]
        raise DataError(
            f"listed items must be in the log, found {unknown!r}: give the log of the lists"
        )
    exposure = Exposure(item_popularity(rows, items, item, schema))
    exposure.add(numbers, listed.get_column(user).rle().struct.field("len"))
    return exposure


def coverage(exposure: Exposure) -> float:
    """Catalogue coverage: the share of the N items that some list shows."""
    return exposure.items_shown / len(exposure.shown)


def top_tenth(exposure: Exposure) -> float:
    """The share of the S shown items that the ceil(N / 10) most shown items have; .1 if all are shown equally often."""
    tenth = math.ceil(len(exposure.shown) / 10)
    most_shown = np.sort(exposure.shown)[::-1][:tenth]
    return float(most_shown.sum() / max(exposure.shown.sum(), 1))


def overlap(exposure: Exposure) -> float | None:
    """The mean over pairs of users of |A and B| / sqrt(|A| |B|), the share in common of lists of equal length.

    As all pairs' sum is the squared norm of the users' summed unit vectors, it is
    (sum of weight^2 - U) / (U (U - 1)): no pair is visited. None for a single user.
    """
    users = exposure.users
    if users < 2:
        return None
    return float((np.square(exposure.weight).sum() - users) / (users * (users - 1)))


def novelty(exposure: Exposure) -> float | None:
    """The mean over the S shown items of -log2 p in bits, p = (n + 1) / (sum of n + N) for popularity n.

    Self-information (Zhou et al., PNAS 107(10), 2010), with a row added to each item.
    """
    if not exposure.users:
        return None
    rows = exposure.popularity + 1
    bits = -np.log2(rows / rows.sum())
    return float(np.average(bits, weights=exposure.shown))


@dataclass(frozen=True, kw_only=True)
class ListMeasure:
    """A measure of users' lists: how it is called, computed and written.

    Args:
        name: its key in dictionaries of measures.
        title: its name in tables.
        of: its value by the exposure; None where it is undefined.
        is_share: whether it is written in per cent.
    """

    name: str
    title: str
    of: Callable[[Exposure], float | None]
    is_share: bool = True

    def text(self, value: float | None) -> str:
        """A value as a cell of a table."""
        if value is None:
            return "-"
        return f"{100 * value:.1f} %" if self.is_share else f"{value:.2f} bits"


LIST_MEASURES: dict[str, ListMeasure] = {
    measure.name: measure
    for measure in (
        ListMeasure(name="coverage", title="catalogue shown", of=coverage),
        ListMeasure(name="top_tenth", title="exposure of the top tenth", of=top_tenth),
        ListMeasure(name="overlap", title="shared by two users", of=overlap),
        ListMeasure(name="novelty", title="novelty", of=novelty, is_share=False),
    )
}
"""All measures of lists by name, in the order of tables."""


def list_measures(exposures: Sequence[Exposure]) -> dict[str, float | None]:
    """All measures by name, each the mean over seeds' exposures; None where one of these has none."""
    means: dict[str, float | None] = {}
    for name, measure in LIST_MEASURES.items():
        values = [measure.of(exposure) for exposure in exposures]
        known = [value for value in values if value is not None]
        means[name] = float(np.mean(known)) if known and len(known) == len(values) else None
    return means


def same_list_sentence(exposures: Sequence[Exposure]) -> str | None:
    """What is wrong where most users get the same list, by the mean over seeds; None where lists differ.

    That is where the overlap is more than half-way from that of random lists to 1, so that a short
    catalogue, of which any two lists share much, does not count.
    """
    shared = list_measures(exposures)["overlap"]
    chance = float(np.mean([exposure.chance for exposure in exposures]))
    first = exposures[0]
    if shared is None or first.users < LEAST_USERS_TO_CHECK:
        return None
    if shared - chance <= MOST_OVERLAP_ABOVE_CHANCE * (1 - chance):
        return None
    return (
        f"most users get nearly the same list: two of them share {100 * shared:.0f} % of its items, where random lists "
        f"would share {100 * chance:.0f} %, and {first.users:,} users are shown {first.items_shown:,} of "
        f"{len(first.shown):,} items; compare a model with another one, or add fields of users and items"
    )

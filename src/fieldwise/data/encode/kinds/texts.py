"""What fields of texts share: a vocabulary of the texts in the training rows, or hashing."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import polars as pl

from fieldwise.data.encode.columns import coded
from fieldwise.data.encode.kinds.base import Counted, Fitted, Kind
from fieldwise.data.encode.portable import BOOLEANS, UNKNOWN
from fieldwise.data.encode.text_counts import frequent_texts
from fieldwise.data.encode.vocabulary import Hashing, Vocabulary
from fieldwise.schema import Bag, Categorical
from fieldwise.schema import Sequence as SequenceField
from fieldwise.storage.scratch import NO_LIMIT, MemoryBudget

T = TypeVar("T", Categorical, Bag | SequenceField)


class TextKind(Kind[T]):
    """A kind whose cells are texts: it counts them and has a vocabulary of the frequent ones, or hashes them.

    The counted values are texts, or integers for their decimal texts, and how often each occurs, as
    `text` and `n`; none for a hashed field.
    """

    forms = (Vocabulary, Hashing)

    def count(self, f: T, cells: pl.Series, missing: Sequence[str]) -> Counted:
        """Count each text."""
        values = self.text_counts(f, cells)
        present = int(values.get_column("n").sum())
        if f.hash_buckets is not None:
            values = values.clear()
        return Counted(len(cells), present, values)

    @abstractmethod
    def text_counts(self, f: T, cells: pl.Series) -> pl.DataFrame:
        """How often each text of a column occurs, as `text` and `n`."""

    def fit(self, f: T, values: Iterator[pl.DataFrame], *, budget: MemoryBudget) -> Fitted:
        """Fit a vocabulary of the texts that occur at least `min_count` times, or hash them."""
        texts, rare = frequent_texts(values, f.min_count, budget=budget)
        if f.hash_buckets is not None:
            return Hashing(buckets=f.hash_buckets)
        return Vocabulary(values=texts, rare=rare)

    def grow(self, f: T, fitted: Vocabulary | Hashing, values: Iterator[pl.DataFrame]) -> Fitted:
        """Append the new texts that occur at least `min_count` times."""
        if isinstance(fitted, Hashing):
            return fitted
        unseen = (_unseen_texts(fitted, counts) for counts in values)
        texts, _ = frequent_texts(unseen, f.min_count, budget=NO_LIMIT)
        if fitted.boolean:
            texts = tuple(text for text in texts if text in BOOLEANS)
        return replace(fitted, values=fitted.values + texts)


def counts_of_texts(cells: pl.Series) -> pl.DataFrame:
    """How often each text of cells occurs, as `text` and `n`."""
    dictionary = coded(cells)
    counts = pl.DataFrame({"text": dictionary.texts, "n": dictionary.counts()})
    return counts.filter(pl.col("n") > 0)


def _unseen_texts(known: Vocabulary, counts: pl.DataFrame) -> pl.DataFrame:
    text = pl.col("text").cast(pl.String)
    if known.boolean:
        text = text.str.to_lowercase()
    counts = counts.with_columns(text)
    is_unseen = known.ids(counts.get_column("text")) == UNKNOWN
    return counts.filter(pl.Series(is_unseen))

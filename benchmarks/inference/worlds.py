"""Events of users with items, drawn with a seed, and the columns in which people log them, each with what it means.

An entity (`user`, `item` or `row`) has three hidden traits. They decide the label, and columns of
the entity show one of them with noise. Popularity and activity have a long tail, times grow within
users. Nothing here follows from how fieldwise infers a schema.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

__all__ = ["Column", "World", "labels", "made", "times"]

CATEGORY = frozenset({"category"})
NUMBER = frozenset({"number"})
OMITTED = frozenset({"omitted"})
EITHER = CATEGORY | NUMBER
START = 1_690_000_000  # July 2023
DAY = 86_400
LETTERS = {
    "ru": ("бвгдклмнпрст", "аеиоу"),
    "zh": ("城市商品音乐电影图书游戏", "店园家品类部"),
    "ja": ("カサタナハマヤラワ", "アイウエオ"),
    "ar": ("بتجدرسعفكلمن", "اوي"),
    "el": ("βγδκλμνπρστ", "αειου"),
}
LATIN = ("bcdfghklmnprstvz", "aeiou")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column with its planted answer.

    Args:
        name: the header.
        cells: the cells.
        kinds: the right kinds; any of them is right.
        roles: the right roles of a field.
        identity: `user` or `item` if it may be taken as the id.
        positive: of a label: cells that must be positive; empty for a regression.
        negative: of a label: cells that must be negative.
        check: whether nothing but a `CHECK` is right.
    """

    name: str
    cells: pl.Series
    kinds: frozenset[str]
    roles: frozenset[str] = frozenset(("user", "item", "context"))
    identity: str = ""
    positive: frozenset[object] = frozenset()
    negative: frozenset[object] = frozenset()
    check: bool = False


class World:
    """Events, in the order of their time.

    Args:
        seed: decides everything.
        rows: events.
        users: users; 0: every row is a user of its own.
        items: items; 0: every row is an item of its own.
        language: of words.
        rate: the share of positive events.
    """

    def __init__(
        self, *, seed: int, rows: int, users: int, items: int, language: str, rate: float
    ) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.rows = rows
        self.language = language
        self.given = {"user": users > 0, "item": items > 0, "row": False}
        self.sizes = {"user": users or rows, "item": items or rows, "row": rows}
        self.index = {
            "user": self._drawn(users, 1.1),
            "item": self._drawn(items, 1.3),
            "row": np.arange(rows),
        }
        joined = rng.uniform(0, 300, self.sizes["user"])
        stay = rng.exponential(25, rows)
        days = joined[self.index["user"]] + np.minimum(stay, 120)
        order = np.argsort(days)
        self.seconds = (START + days[order] * DAY).astype(np.int64)
        self.index |= {
            side: self.index[side][order] for side in ("user", "item") if self.given[side]
        }
        self.traits = {side: rng.standard_normal((n, 3)) for side, n in self.sizes.items()}
        u, i, r = (self.traits[side][self.index[side]] for side in ("user", "item", "row"))
        noise = rng.logistic(0, 0.6, rows)
        self.liking = (
            0.8 * (u[:, 0] + i[:, 0] + r[:, 0])
            + 0.5 * (u * i).sum(1)
            + 0.4 * (u[:, 1] + i[:, 2])
            + noise
        )
        self.y = self.liking > np.quantile(self.liking, 1 - rate)

    def _drawn(self, count: int, spread: float) -> np.ndarray:
        if not count:
            return np.arange(self.rows)
        weight = self.rng.lognormal(0, spread, count)
        return self.rng.choice(count, self.rows, p=weight / weight.sum())

    def trait(self, side: str, noise: float = 0.8) -> np.ndarray:
        """A standard normal number of every entity that shows one of its traits."""
        n = self.sizes[side]
        drawn = self.traits[side][:, self.rng.integers(3)] + noise * self.rng.standard_normal(n)
        return drawn / np.hypot(1, noise)

    def each(self, side: str, make: Callable[[int], str]) -> list[str]:
        """A value of every entity."""
        return [make(number) for number in range(self.sizes[side])]

    def word(self, syllables: int) -> str:
        consonants, vowels = LETTERS.get(self.language, LATIN)
        if self.language == "zh":
            return "".join(self.rng.choice(list(consonants), syllables)) + str(
                self.rng.choice(list(vowels))
            )
        letters = (
            str(self.rng.choice(list(kind)))
            for _ in range(syllables)
            for kind in (consonants, vowels)
        )
        return "".join(letters).capitalize()

    def words(self, count: int) -> list[str]:
        """Different words."""
        results: dict[str, None] = {}
        while len(results) < count:
            results[self.word(2 + len(results) % 3)] = None
        return list(results)

    def ranked(self, side: str, count: int) -> np.ndarray:
        """A category of every entity, a few of them frequent."""
        share = np.cumsum(1 / (np.arange(count) + 1.5) ** 0.8)
        place = np.searchsorted(np.quantile(self.trait(side), share / share[-1]), self.trait(side))
        return self.rng.permutation(count)[np.minimum(place, count - 1)]


def spaced(w: World, count: int) -> np.ndarray:
    """Different integers with gaps, in no order."""
    return w.rng.permutation(
        np.cumsum(w.rng.integers(1, 40, count)) + 10 ** int(w.rng.integers(3, 7))
    )


def uuid(text: str) -> str:
    """32 digits as a UUID."""
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def handles(w: World, side: str) -> list[str]:
    """Names that people choose; one that is taken gets a number."""
    names = [
        f"{w.word(2)}{w.word(1)}".lower() + (str(k % 100) if k % 3 else "")
        for k in range(w.sizes[side])
    ]
    return [name if names.index(name) == k else f"{name}_{k}" for k, name in enumerate(names)]


def chosen(w: World, side: str, names: Sequence[object] | np.ndarray) -> np.ndarray:
    """One of these values for each entity, a few of them frequent."""
    return np.array(names)[w.ranked(side, len(names))]


def texts(w: World, side: str) -> list[str]:
    """Sentences of 5 to 24 words."""
    vocabulary = np.array(w.words(400))
    lengths = w.rng.integers(5, 25, w.sizes[side])
    return [" ".join(w.rng.choice(vocabulary, n)) + "." for n in lengths]


def commas(w: World, side: str, median: str) -> list[str]:
    """Amounts as 1.234,56."""
    amounts = float(median) * np.exp(0.9 * w.trait(side))
    return [f"{x:,.2f}".translate(str.maketrans(",.", ".,")) for x in amounts]


def bags(w: World, side: str, separator: str, count: str) -> list[str]:
    """One to four different words."""
    names = w.words(int(count))
    mark = {"comma": ", ", "semicolon": ";", "pipe": "|", "slash": "/"}[separator]
    first = w.ranked(side, len(names))
    drawn = [dict.fromkeys([k, *w.rng.choice(len(names), w.rng.integers(0, 4))]) for k in first]
    return [mark.join(names[k] for k in kept) for kept in drawn]


def dates(w: World, side: str, first: str, last: str) -> list[str]:
    """Days of the years from `first` up to `last`."""
    days = w.rng.integers((int(first) - 1970) * 365, (int(last) - 1970) * 365, w.sizes[side])
    return [str(day) for day in np.array(days, dtype="datetime64[D]")]


def sessions(w: World) -> np.ndarray:
    """The visit of a user: another one after half a day."""
    visits = w.index["user"].astype(np.int64) * 10**6 + w.seconds // (DAY // 2)
    return 90_000 + 7 * np.unique(visits, return_inverse=True)[1]


Kinds = frozenset[str]
ENTITY: dict[str, tuple[Kinds, Callable[..., Any]]] = {
    "int": (CATEGORY, lambda w, side: spaced(w, w.sizes[side])),
    "seq": (CATEGORY, lambda w, side: w.rng.permutation(w.sizes[side]) + 1),
    "hex": (
        CATEGORY,
        lambda w, side, length="12": w.each(side, lambda _: w.rng.bytes(8).hex()[: int(length)]),
    ),
    "uuid": (CATEGORY, lambda w, side: w.each(side, lambda _: uuid(w.rng.bytes(16).hex()))),
    "prefixed": (
        CATEGORY,
        lambda w, side, prefix: [f"{prefix}{n}" for n in spaced(w, w.sizes[side])],
    ),
    "handle": (CATEGORY, handles),
    "email": (
        CATEGORY,
        lambda w, side: w.each(side, lambda n: f"{w.rng.bytes(4).hex()}@mail{n % 5}.example"),
    ),
    "name": (CATEGORY, lambda w, side: w.words(w.sizes[side])),
    "isbn": (CATEGORY, lambda w, side: [f"978{n:09d}X" for n in spaced(w, w.sizes[side])]),
    "hashes": (
        CATEGORY,
        lambda w, side, n: chosen(w, side, [w.rng.bytes(4).hex() for _ in range(int(n))]),
    ),
    "words": (
        CATEGORY,
        lambda w, side, count, *given: chosen(w, side, given or w.words(int(count))),
    ),
    "code": (CATEGORY, lambda w, side, count: chosen(w, side, spaced(w, int(count)))),
    "zip": (
        CATEGORY,
        lambda w, side: chosen(
            w, side, [f"{n:05d}" for n in w.rng.choice(99_999, 150, replace=False)]
        ),
    ),
    "bool": (CATEGORY, lambda w, side: w.trait(side) > 0.4),
    "choice": (CATEGORY, lambda w, side, yes, no: np.where(w.trait(side) > 0.4, yes, no)),
    "flag": (EITHER, lambda w, side: (w.trait(side) > 0.4).astype(int)),
    "small": (EITHER, lambda w, side, count: w.ranked(side, int(count)) + 1),
    "year": (
        EITHER,
        lambda w, side, last="2023", back="40": (
            int(last) - (int(back) * np.abs(w.trait(side)) / 3).astype(int)
        ),
    ),
    "age": (NUMBER, lambda w, side: np.clip(38 + 13 * w.trait(side), 16, 90).astype(int)),
    "count": (
        NUMBER,
        lambda w, side, mean="20": np.floor(float(mean) * np.exp(1.1 * w.trait(side)) / 1.8).astype(
            int
        ),
    ),
    "few": (NUMBER, lambda w, side: w.rng.poisson(np.exp(0.5 * w.trait(side)))),
    "money": (
        NUMBER,
        lambda w, side, median="20": (float(median) * np.exp(0.7 * w.trait(side))).round(2),
    ),
    "comma": (NUMBER, commas),
    "real": (
        NUMBER,
        lambda w, side, mean, spread, digits: (float(mean) + float(spread) * w.trait(side)).round(
            int(digits)
        ),
    ),
    "whole": (
        NUMBER,
        lambda w, side, mean, spread: np.maximum(
            0, float(mean) + float(spread) * w.trait(side)
        ).astype(int),
    ),
    "mean": (  # what a site shows as an entity's rating, from all who rated it
        NUMBER | OMITTED,
        lambda w, side, top="5": np.clip(
            float(top) * (0.7 + 0.12 * w.traits[side][:, 0]), 1, float(top)
        ).round(1),
    ),
    "title": (
        CATEGORY | OMITTED,
        lambda w, side: w.each(side, lambda _: f"{w.word(2)} {w.word(3)} {w.word(1)}"),
    ),
    "bag": (frozenset({"bag"}), bags),
    "text": (OMITTED, texts),
    "url": (
        OMITTED,
        lambda w, side: w.each(side, lambda _: f"https://cdn.example/{w.rng.bytes(5).hex()}.jpg"),
    ),
    "date": (OMITTED, dates),
}
"""Forms of columns of an entity: the right kinds, and the value of each entity."""
ROW: dict[str, tuple[Kinds, Callable[..., Any]]] = {
    "session": (CATEGORY | OMITTED, sessions),
    "weekday": (CATEGORY, lambda w, *names: np.array(names)[(w.seconds // DAY + 3) % 7]),
    "hour": (EITHER, lambda w: (w.seconds % DAY) // 3600),
    # the position in a list
    "rank": (EITHER, lambda w, last="10": w.rng.integers(1, int(last) + 1, w.rows)),
    "constant": (OMITTED, lambda w: ["web"] * w.rows),
    "empty": (OMITTED, lambda w: pl.Series([None] * w.rows, dtype=pl.String)),
    "number": (OMITTED, lambda w: np.arange(w.rows) + int(w.rng.integers(1, 10**6))),  # of the row
    "part": (
        OMITTED,
        lambda w, *names: w.rng.choice(
            names or ("train", "valid", "test"), w.rows, p=(0.8, 0.1, 0.1)
        ),
    ),
    "leak": (  # an amount that is known where the label is positive alone
        OMITTED,
        lambda w: pl.Series(np.exp(3 + w.rng.standard_normal(w.rows)).round(2)).set(
            pl.Series(~w.y), None
        ),
    ),
}
"""Forms of columns of rows: the right kinds, and the cells."""


def made(w: World, side: str, form: str, given: Sequence[str]) -> tuple[pl.Series, Kinds]:
    """The cells of a column in a form, and the right kinds."""
    if form in ROW:
        kinds, make = ROW[form]
        return pl.Series(make(w, *given)), kinds
    kinds, make = ENTITY[form]
    return pl.Series(make(w, side, *given))[w.index[side]], kinds


def times(w: World, how: str) -> pl.Series:
    """The times of the events."""
    moments = pl.Series(w.seconds * 1000).cast(pl.Datetime("ms"))
    if how in ("s", "ms"):
        return pl.Series(w.seconds * (1000 if how == "ms" else 1))
    if how == "typed":
        return moments
    forms = {
        "iso": "%Y-%m-%d %H:%M:%S",
        "z": "%Y-%m-%dT%H:%M:%SZ",
        "date": "%Y-%m-%d",
        "dmy": "%d.%m.%Y %H:%M",
        "slash": "%d/%m/%Y",
        "mdy": "%m/%d/%Y %I:%M %p",
        "ymdh": "%Y%m%d%H",
        "week": "Week %-V, %a",
    }
    result = moments.dt.strftime(forms[how])
    return result.cast(pl.Int64) if how == "ymdh" else result


def labels(w: World, how: str, *given: str) -> tuple[pl.Series, Iterable[object], Iterable[object]]:
    """The cells of a label, those that must be positive and those that must be negative."""
    share = pl.Series(w.liking).rank("ordinal").to_numpy() / w.rows
    if how == "number":
        return pl.Series((50 + 12 * w.liking).round(1)), (), ()
    if how == "stars":
        stars = 1 + np.searchsorted([0.05, 0.15, 0.42, 0.77], share)
        return pl.Series(stars), (4, 5), (1, 2)
    if how == "half":
        return pl.Series((1 + np.round(9 * share**0.6)) / 2), (4.0, 4.5, 5.0), (0.5, 1.0, 1.5, 2.0)
    if how == "ten":
        return pl.Series(1 + np.round(9 * share**0.6).astype(int)), (9, 10), (1, 2, 3, 4)
    if how == "hundred":
        return pl.Series(np.round(100 * share**0.6).astype(int)), range(85, 101), range(36)
    if how == "three":  # 2: opened and bought
        return pl.Series(w.y.astype(int) + (w.y & (share > 0.97))), (1, 2), (0,)
    names = {"01": (1, 0), "bool": (True, False), "plusminus": (1, -1)}.get(how)
    if how == "events":  # from the least to the most
        cells = np.where(w.y, np.where(share > 0.98, given[-1], given[-2]), given[0])
        return pl.Series(cells), given[-1:], given[:1]
    yes, no = names or given
    return pl.Series([yes if y else no for y in w.y]), (yes,), (no,)

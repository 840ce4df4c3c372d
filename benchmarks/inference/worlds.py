"""Events of users with items, drawn with a seed, and the columns in which people log them, each with what it means.

An entity (`user`, `item` or `row`) has three hidden traits. They decide the label, and columns of the entity show one
of them with noise. Popularity and activity have a long tail, times grow within users. Nothing here follows from how
fieldwise infers a schema.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

__all__ = ["FORMS", "Column", "World", "labels", "times"]

CATEGORY, NUMBER, OMITTED = {"category"}, {"number"}, {"omitted"}
EITHER = {"category", "number"}
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

    def __init__(self, *, seed: int, rows: int, users: int, items: int, language: str, rate: float) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.rows, self.language = rows, language
        self.given = {"user": users > 0, "item": items > 0, "row": False}
        self.sizes = {"user": users or rows, "item": items or rows, "row": rows}
        self.index = {"user": self._drawn(users, 1.1), "item": self._drawn(items, 1.3), "row": np.arange(rows)}
        joined = rng.uniform(0, 300, self.sizes["user"])
        stay = rng.exponential(25, rows)
        days = joined[self.index["user"]] + np.minimum(stay, 120)
        order = np.argsort(days)
        self.seconds = (START + days[order] * DAY).astype(np.int64)
        self.index |= {side: self.index[side][order] for side in ("user", "item") if self.given[side]}
        self.traits = {side: rng.standard_normal((n, 3)) for side, n in self.sizes.items()}
        u, i, r = (self.traits[side][self.index[side]] for side in ("user", "item", "row"))
        noise = rng.logistic(0, 0.6, rows)
        self.liking = 0.8 * (u[:, 0] + i[:, 0] + r[:, 0]) + 0.5 * (u * i).sum(1) + 0.4 * (u[:, 1] + i[:, 2]) + noise
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

    def of(self, side: str, values: Sequence[object] | np.ndarray) -> pl.Series:
        """The values of entities, by row."""
        return pl.Series(values)[self.index[side]]

    def word(self, syllables: int) -> str:
        consonants, vowels = LETTERS.get(self.language, LATIN)
        if self.language == "zh":
            return "".join(self.rng.choice(list(consonants), syllables)) + str(self.rng.choice(list(vowels)))
        letters = (str(self.rng.choice(list(kind))) for _ in range(syllables) for kind in (consonants, vowels))
        return "".join(letters).capitalize()

    def words(self, count: int) -> list[str]:
        """Different words."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.word(2 + len(found) % 3)] = None
        return list(found)

    def ranked(self, side: str, count: int) -> np.ndarray:
        """A category of every entity, a few of them frequent."""
        share = np.cumsum(1 / (np.arange(count) + 1.5) ** 0.8)
        place = np.searchsorted(np.quantile(self.trait(side), share / share[-1]), self.trait(side))
        return self.rng.permutation(count)[np.minimum(place, count - 1)]


Made = tuple[pl.Series, set[str]]
FORMS: dict[str, Callable[..., Made]] = {}


def form(make: Callable[..., Made]) -> Callable[..., Made]:
    """A form of a column of an entity, by the function's name."""
    FORMS[make.__name__.rstrip("_")] = make
    return make


def spaced(w: World, count: int) -> np.ndarray:
    """Different integers with gaps, in no order."""
    return w.rng.permutation(np.cumsum(w.rng.integers(1, 40, count)) + 10 ** int(w.rng.integers(3, 7)))


@form
def int_(w: World, side: str) -> Made:
    return w.of(side, spaced(w, w.sizes[side])), CATEGORY


@form
def seq(w: World, side: str) -> Made:
    return w.of(side, w.rng.permutation(w.sizes[side]) + 1), CATEGORY


@form
def hex_(w: World, side: str, length: str = "12") -> Made:
    return w.of(side, [w.rng.bytes(8).hex()[: int(length)] for _ in range(w.sizes[side])]), CATEGORY


@form
def uuid(w: World, side: str) -> Made:
    drawn = [w.rng.bytes(16).hex() for _ in range(w.sizes[side])]
    return w.of(side, [f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}" for h in drawn]), CATEGORY


@form
def prefixed(w: World, side: str, prefix: str = "A-") -> Made:
    return w.of(side, [f"{prefix}{n}" for n in spaced(w, w.sizes[side])]), CATEGORY


@form
def handle(w: World, side: str) -> Made:
    names = [f"{w.word(2)}{w.word(1)}".lower() + (str(k % 100) if k % 3 else "") for k in range(w.sizes[side])]
    return w.of(side, [name if names.index(name) == k else f"{name}_{k}" for k, name in enumerate(names)]), CATEGORY


@form
def email(w: World, side: str) -> Made:
    return w.of(side, [f"{w.rng.bytes(4).hex()}@mail{n % 5}.example" for n in range(w.sizes[side])]), CATEGORY


@form
def name(w: World, side: str) -> Made:
    return w.of(side, w.words(w.sizes[side])), CATEGORY


@form
def hashes(w: World, side: str, count: str) -> Made:
    """Hashed words with a long tail."""
    drawn = np.array([w.rng.bytes(4).hex() for _ in range(int(count))])
    return w.of(side, drawn[w.ranked(side, int(count))]), CATEGORY


@form
def isbn(w: World, side: str) -> Made:
    return w.of(side, [f"978{n:09d}X" for n in spaced(w, w.sizes[side])]), CATEGORY


@form
def title(w: World, side: str) -> Made:
    drawn = [f"{w.word(2)} {w.word(3)} {w.word(1)}".strip() for _ in range(w.sizes[side])]
    return w.of(side, drawn), CATEGORY | OMITTED


@form
def text(w: World, side: str) -> Made:
    vocabulary = np.array(w.words(400))
    lengths = w.rng.integers(5, 25, w.sizes[side])
    return w.of(side, [" ".join(w.rng.choice(vocabulary, n)) + "." for n in lengths]), OMITTED


@form
def url(w: World, side: str) -> Made:
    return w.of(side, [f"https://cdn.example/{w.rng.bytes(5).hex()}.jpg" for _ in range(w.sizes[side])]), OMITTED


@form
def words(w: World, side: str, count: str, *given: str) -> Made:
    names = np.array(given or w.words(int(count)))
    return w.of(side, names[w.ranked(side, len(names))]), CATEGORY


@form
def code(w: World, side: str, count: str) -> Made:
    return w.of(side, spaced(w, int(count))[w.ranked(side, int(count))]), CATEGORY


@form
def zip_(w: World, side: str) -> Made:
    codes = [f"{n:05d}" for n in w.rng.choice(99_999, 150, replace=False)]
    return w.of(side, np.array(codes)[w.ranked(side, 150)]), CATEGORY


@form
def small(w: World, side: str, count: str) -> Made:
    return w.of(side, w.ranked(side, int(count)) + 1), EITHER


@form
def flag(w: World, side: str, yes: str = "1", no: str = "0") -> Made:
    on = w.of(side, w.trait(side) > 0.4)
    return (on.cast(pl.Int64) if yes == "1" else pl.Series(np.where(on, yes, no))), EITHER if yes == "1" else CATEGORY


@form
def bool_(w: World, side: str) -> Made:
    return w.of(side, w.trait(side) > 0.4), CATEGORY


@form
def age(w: World, side: str) -> Made:
    return w.of(side, np.clip(38 + 13 * w.trait(side), 16, 90).astype(int)), NUMBER


@form
def count(w: World, side: str, mean: str = "20") -> Made:
    return w.of(side, np.floor(float(mean) * np.exp(1.1 * w.trait(side)) / 1.8).astype(int)), NUMBER


@form
def few(w: World, side: str) -> Made:
    return w.of(side, w.rng.poisson(np.exp(0.5 * w.trait(side)))), NUMBER


@form
def money(w: World, side: str, median: str = "20") -> Made:
    return w.of(side, (float(median) * np.exp(0.7 * w.trait(side))).round(2)), NUMBER


@form
def comma(w: World, side: str, median: str = "20") -> Made:
    amounts = float(median) * np.exp(0.9 * w.trait(side))
    return w.of(side, [f"{x:,.2f}".translate(str.maketrans(",.", ".,")) for x in amounts]), NUMBER


@form
def real(w: World, side: str, mean: str = "0", spread: str = "1", digits: str = "4") -> Made:
    return w.of(side, (float(mean) + float(spread) * w.trait(side)).round(int(digits))), NUMBER


@form
def whole(w: World, side: str, mean: str, spread: str) -> Made:
    return w.of(side, np.maximum(0, float(mean) + float(spread) * w.trait(side)).astype(int)), NUMBER


@form
def year(w: World, side: str, last: str = "2023", back: str = "40") -> Made:
    return w.of(side, int(last) - (int(back) * np.abs(w.trait(side)) / 3).astype(int)), EITHER


@form
def bag(w: World, side: str, separator: str, count: str) -> Made:
    names, mark = w.words(int(count)), {"comma": ", ", "semicolon": ";", "pipe": "|", "slash": "/"}[separator]
    first = w.ranked(side, len(names))
    drawn = [dict.fromkeys([k, *w.rng.choice(len(names), w.rng.integers(0, 4))]) for k in first]
    return w.of(side, [mark.join(names[k] for k in kept) for kept in drawn]), {"bag"}


@form
def date(w: World, side: str, first: str = "1950", last: str = "2005") -> Made:
    days = w.rng.integers((int(first) - 1970) * 365, (int(last) - 1970) * 365, w.sizes[side])
    return w.of(side, [str(day) for day in np.array(days, dtype="datetime64[D]")]), OMITTED


@form
def mean(w: World, side: str, top: str = "5") -> Made:
    """What a site shows as an entity's rating, from all who rated it."""
    shown = np.clip(float(top) * (0.7 + 0.12 * w.traits[side][:, 0]), 1, float(top))
    return w.of(side, shown.round(1)), NUMBER | OMITTED


@form
def constant(w: World, _: str, value: str = "web") -> Made:
    return pl.Series([value] * w.rows), OMITTED


@form
def empty(w: World, _: str) -> Made:
    return pl.Series([None] * w.rows, dtype=pl.String), OMITTED


@form
def number(w: World, _: str) -> Made:
    """The number of the row."""
    return pl.Series(np.arange(w.rows) + int(w.rng.integers(1, 10**6))), OMITTED


@form
def leak(w: World, _: str) -> Made:
    """An amount that is known where the label is positive alone."""
    return pl.Series(np.exp(3 + w.rng.standard_normal(w.rows)).round(2)).set(pl.Series(~w.y), None), OMITTED


@form
def part(w: World, _: str, *names: str) -> Made:
    return pl.Series(w.rng.choice(names or ("train", "valid", "test"), w.rows, p=(0.8, 0.1, 0.1))), OMITTED


@form
def session(w: World, _: str) -> Made:
    """The visit of a user: another one after half a day."""
    visits = w.index["user"].astype(np.int64) * 10**6 + w.seconds // (DAY // 2)
    return pl.Series(90_000 + 7 * np.unique(visits, return_inverse=True)[1]), CATEGORY | OMITTED


@form
def hour(w: World, _: str) -> Made:
    return pl.Series((w.seconds % DAY) // 3600), EITHER


@form
def weekday(w: World, _: str, *names: str) -> Made:
    days = (w.seconds // DAY + 3) % 7
    return (pl.Series(np.array(names)[days]), CATEGORY) if names else (pl.Series(days), EITHER)


@form
def rank(w: World, _: str, last: str = "10") -> Made:
    """The position in a list."""
    return pl.Series(w.rng.integers(1, int(last) + 1, w.rows)), EITHER


def times(w: World, how: str) -> pl.Series:
    """The times of the events."""
    moments = pl.Series(w.seconds * 1000).cast(pl.Datetime("ms"))
    if how in ("s", "ms"):
        return pl.Series(w.seconds * (1000 if how == "ms" else 1))
    if how == "typed":
        return moments
    if how == "week":
        return moments.dt.strftime("Week %-V, %a")
    forms = {
        "iso": "%Y-%m-%d %H:%M:%S",
        "z": "%Y-%m-%dT%H:%M:%SZ",
        "date": "%Y-%m-%d",
        "dmy": "%d.%m.%Y %H:%M",
        "slash": "%d/%m/%Y",
        "mdy": "%m/%d/%Y %I:%M %p",
        "name": "%d %b %Y",
        "zh": "%Y年%m月%d日",
    }
    if how in forms:
        return moments.dt.strftime(forms[how])
    return moments.dt.strftime({"ymd": "%Y%m%d", "ymdh": "%Y%m%d%H"}[how]).cast(pl.Int64)


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

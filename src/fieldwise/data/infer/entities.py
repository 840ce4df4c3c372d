"""Finding the columns of user and item ids by the rows: whose values repeat, and what is a function of what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
import polars as pl

from fieldwise.data.infer.evidence import Agreement, agreements, collision_ratio, is_binning, is_round, tail
from fieldwise.data.read.moments import read_moments
from fieldwise.data.read.number_format import number_formats
from fieldwise.schema import Field, Role
from fieldwise.schema.ids import Who
from fieldwise.schema.names import MOMENTARY, id_rank, kind_of_name, role_of, words_of

__all__ = ["Entities", "find_entities"]

_MOST_KEYS = 24
_ROWS_A_VALUE = 2.5  # an id occurs in this many rows on average, at least
_ROWS_A_CODE = 1.4  # the same of codes such as 3f9a01c2, which nothing but an id is written as
_SURE, _LIKELY = 1.2, 0.6  # the score from which a column is an id, and a second one beside it
_VISITS = 0.15  # users by visits, at least
_BRIEF = 0.3  # the time between two rows of one visit, relative to two of one user
_LEFT = "only ids of one side were found: if column {!r} holds the other's, write it as user or item in the schema"
_EMAIL = r"^[^@\s]+@[^@\s]+\.[^@\s]+$"
_MEASURE = r"^(?:\d{1,2}:\d\d(?::\d\d)?|\d[\d.,]* ?[%€$£])$"  # no id: a time of day, a share, a price
_CODE = r"^(?:[^\s]*\d[^\s]*)$"
_LONG_CODE = r"^[0-9a-fA-F-]{8,}$"


@dataclass(frozen=True, kw_only=True)
class Entities:
    """The columns of ids, and which columns are functions of them.

    Args:
        ids: the column of each side that has one.
        within: by key, the agreement of every column within its values; of all keys that were looked at.
        aliases: by column, the id that it is one to one with.
        reasons: by side, why.
        doubts: by column, what the user must check.
    """

    ids: dict[Who, str] = field(default_factory=dict)
    within: dict[str, dict[str, Agreement]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    reasons: dict[Who, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)

    def settled(self) -> set[str]:
        """The ids and the columns that they determine."""
        found = {c for key in self.ids.values() for c, one in self.within.get(key, {}).items() if one.determined}
        return found | set(self.ids.values())

    def key_of(self, column: str) -> str | None:
        """The id that determines a column, if one does."""
        return next((k for k in self.ids.values() if k != column and self.determines(k, column)), None)

    def functions_of(self, frame: pl.DataFrame, column: str) -> int:
        """How many columns are functions of a column, and no mere groups of its numbers."""
        found = [c for c, one in self.within.get(column, {}).items() if c != column and one.determined]
        return sum(c not in self.ids.values() and not is_binning(frame, column, c) for c in found)

    def role(self, column: str, f: Field) -> tuple[Role, str]:
        """The role of a field and the reason: that of the id that determines its column, else by its name.

        Where the ids' rows repeat, a column that varies within both is of the context.
        """
        for side, key in self.ids.items():
            if key == column:
                return side, f"it is the {side} id, by {self.reasons[side]}"
        named, reason = role_of(column)
        moment = not MOMENTARY.isdisjoint(words_of(column))
        if f.max_length is not None:
            return f.role, reason if named == f.role else "a history is the user's"
        if moment:
            return named, reason
        same = {side: one for side, key in self.ids.items() if (one := self.within[key].get(column)) is not None}
        sides = [side for side, one in same.items() if one.determined]
        if sides:  # a column may be determined by both, such as a language: its name decides, else the better agreement
            best = max(sides, key=lambda side: (side == named, same[side].same))
            how = "every row" if same[best].same == 1 else f"{same[best].same:.1%} of the pairs of rows"
            return best, f"determined by the {best}: the same in {how} of one {self.ids[best]!r}"
        if named != "context" and named in same and same[named].same < 0.5 + 0.5 * same[named].chance:
            return "context", f"it varies within one {self.ids[named]!r}"
        return named, reason

    def determines(self, key: str, column: str) -> bool:
        """Whether a column is a function of a key."""
        found = self.within.get(key, {}).get(column)
        return found is not None and found.determined


@dataclass(frozen=True, kw_only=True)
class _Key:
    """A column that may be an id, and what speaks for it."""

    column: str
    distinct: int
    rank: int
    role: Role
    score: float = 0.0
    narrow: float = 1.0


def find_entities(frame: pl.DataFrame, skip: Sequence[str], times: Sequence[str]) -> Entities:
    """The user and item ids of a table.

    Args:
        frame: the table.
        skip: columns that are no ids, and that say nothing of any: the label, columns that are left out.
        times: columns that look like times, the likeliest first.

    >>> rng = np.random.default_rng(0)
    >>> user, item = rng.integers(0, 90, 4000), rng.integers(0, 60, 4000)
    >>> codes = rng.choice(9999, 90, replace=False)
    >>> rows = pl.DataFrame({"who": codes[user], "what": codes[item] + 7, "shade": item % 7, "city": user % 9})
    >>> sorted(find_entities(rows, (), ()).ids.values())
    ['what', 'who']
    """
    keys = _possible(frame, [*skip, *times])
    others = [c for c in frame.columns if c not in skip]
    within = {key.column: agreements(frame, key.column, others) for key in keys}
    found = Entities(within=within)
    keys = [key for key in keys if within[key.column] or key.rank >= 2]
    functions = {key.column: _functions(frame, key, found) for key in keys}
    told = {c for key in keys for c, one in within[key.column].items() if one.determined}
    place = _places(frame, next((c for c in times if c not in told), None))
    aliases = _aliases(keys, functions, frame)
    keys = [key for key in keys if key.column not in aliases]
    spread = {key.column: _narrowness(frame.get_column(key.column), place) for key in keys}
    keys = _without_coarser(keys, functions, spread)
    scored = [_scored(frame, key, functions, aliases, spread[key.column]) for key in keys]
    scored.sort(key=lambda key: -key.score)
    best = scored[0] if scored and scored[0].score >= _SURE else None
    sure = [key for key in scored if best and (key.score >= _LIKELY or (key.score > 0 and _once(frame, best, key)))]
    ids = _sides(frame, sure, functions, aliases) if sure else {}
    left = next(
        (
            key.column
            for key in scored
            if len(ids) == 1 and best and key.column not in functions[best.column] | {best.column}
        ),
        None,
    )
    named = {side: key for side, key in ids.items() if key.rank >= 2 or key.role == side}
    return Entities(
        ids={side: key.column for side, key in ids.items()},
        within=within,
        aliases={c: to for c, to in aliases.items() if to in {key.column for key in ids.values()}},
        reasons={side: "its name and rows" if side in named else "its rows" for side in ids},
        doubts={
            key.column: f"column {key.column!r} was taken for the {side} ids by its rows, not by its name: correct "
            f"{side} in the schema if it is not"
            for side, key in ids.items()
            if side not in named
        }
        | ({} if left is None else {left: _LEFT.format(left)}),
    )


def _possible(frame: pl.DataFrame, skip: Sequence[str]) -> list[_Key]:
    """Columns of whole numbers or text whose values repeat, those of most values first."""
    found = []
    for column in frame.iter_columns():
        name, kind = column.name, column.dtype
        is_text = kind in (pl.String, pl.Categorical, pl.Enum)
        if name in skip or not (is_text or kind.is_numeric()):
            continue
        present = column.drop_nulls()
        if kind.is_float() and not bool((present.drop_nans() % 1 == 0).all()):
            continue
        distinct, rank, role = present.n_unique(), id_rank(name), role_of(name)[0]
        rank = rank if role != "context" or rank else 0
        least = 3 if rank >= 2 else max(10, 0.25 * frame.height**0.5)
        some = present.cast(pl.String).head(1000) if is_text else None
        low, high = present.min(), present.max()
        huge = isinstance(low, int) and isinstance(high, int) and max(-low, high) > 2**53
        is_code = huge or (some is not None and float(some.str.contains(_LONG_CODE).mean() or 0) > 0.9)  # type: ignore[arg-type]
        repeats = len(present) >= max((_ROWS_A_CODE if is_code else _ROWS_A_VALUE) * distinct, 0.5 * frame.height)
        if distinct < least or not (repeats or (rank >= 2 and distinct <= 0.95 * len(present))):
            continue
        if some is not None and (number_formats(some) or some.str.contains(_MEASURE).all()):
            continue
        if kind.is_numeric() and rank < 2 and not huge and (present.min() or 0) < 0:  # type: ignore[operator]
            continue
        found.append(_Key(column=name, distinct=distinct, rank=rank, role=role))
    return sorted(found, key=lambda key: (-(key.rank >= 2), -key.distinct))[:_MOST_KEYS]


def _functions(frame: pl.DataFrame, key: _Key, found: Entities) -> set[str]:
    """The columns that a key determines, without those that only group or rescale its numbers."""
    determined = [c for c, one in found.within[key.column].items() if c != key.column and one.determined]
    return {c for c in determined if not is_binning(frame, key.column, c)}


def _places(frame: pl.DataFrame, time: str | None) -> np.ndarray:
    """The place of each row in time, or in the table, from 0 to 1."""
    if time is None:
        return np.arange(frame.height) / max(1, frame.height)
    order = frame.get_column(time)
    order = read_moments(order).values if order.dtype == pl.String else order
    return order.rank("average").fill_null(0).to_numpy() / max(1, frame.height)


def _narrowness(column: pl.Series, place: np.ndarray) -> float:
    """How close in time a value's rows are: the mean distance of two in a row, relative to rows in random order."""
    codes = column.hash(seed=0).to_numpy()

    def distance(order: np.ndarray) -> float:
        by = np.lexsort((order, codes))
        pair = codes[by][1:] == codes[by][:-1]
        return float(np.diff(order[by])[pair].mean()) if pair.any() else 1.0

    return distance(place) / max(1e-9, distance(np.random.default_rng(0).permutation(place)))


def _aliases(keys: Sequence[_Key], functions: Mapping[str, set[str]], frame: pl.DataFrame) -> dict[str, str]:
    """By column, the one that it is one to one with and that is the better id."""

    def quality(key: _Key) -> tuple[float, ...]:
        column = frame.get_column(key.column)
        text = column.dtype == pl.String  # an id without a name of one stands before its title, an amount after it
        spaces = float(column.head(1000).str.contains(r"\s").mean() or 0) if text else float(not key.rank)  # type: ignore[arg-type]
        rank = key.rank if key.role != "context" else min(key.rank, 1)
        return rank - (kind_of_name(key.column) == "quantity"), -round(spaces), -frame.columns.index(key.column)

    found: dict[str, str] = {}
    for one, other in combinations(sorted(keys, key=quality, reverse=True), 2):
        if one.column not in found and other.column in functions[one.column] and one.column in functions[other.column]:
            found.setdefault(other.column, one.column)
    return found


def _without_coarser(
    keys: Sequence[_Key], functions: Mapping[str, set[str]], narrow: Mapping[str, float]
) -> list[_Key]:
    """Keys that no finer one determines (as an item its brand), and that are no visit of another one's values."""
    out: set[str] = set()
    for fine in keys:
        for coarse in keys:
            if coarse.column not in functions[fine.column] or fine.column == coarse.column:
                continue
            own = functions[fine.column] - functions[coarse.column] - {coarse.column}
            named = (coarse.rank >= 2) - (fine.rank >= 2)
            many = coarse.distinct > max(_VISITS * fine.distinct, 50)
            is_visit = not own and many and narrow[fine.column] < _BRIEF * narrow[coarse.column]
            is_group = coarse.role == "item" and coarse.rank == 2 and bool(own)  # as the show of episodes
            out.add(fine.column if is_visit or (named > 0 and not is_group) else coarse.column)
    return [key for key in keys if key.column not in out]


def _once(frame: pl.DataFrame, one: _Key, other: _Key) -> bool:
    """Whether a pair of values comes back far less often than by chance, as who rates what does so once."""
    pairs = frame.select(one.column, other.column)
    random = pairs.with_columns(pl.col(other.column).shuffle(seed=0))
    chance = frame.height - random.n_unique()
    return chance > 30 and frame.height - pairs.n_unique() < 0.3 * chance


def _scored(
    frame: pl.DataFrame, key: _Key, functions: Mapping[str, set[str]], aliases: Mapping[str, str], narrow: float
) -> _Key:
    """The key with what speaks for an id: name, own functions, many values, unequal use, gaps in its numbers."""
    column = frame.get_column(key.column).drop_nulls()
    score = 1.5 if key.rank >= 2 else 0.5 * key.rank - 0.5 * (kind_of_name(key.column) == "quantity")
    own = functions[key.column] - {c for c, to in aliases.items() if to == key.column}
    score += 0.6 * min(3, len(own)) + (0.6 if key.column in aliases.values() else 0.0)
    score += float(np.clip(np.log10(key.distinct / (0.5 * frame.height**0.5)), -1, 1))
    some = column.gather_every(max(1, len(column) // 50_000))
    if column.dtype.is_numeric():
        numbers = some.cast(pl.Int64).to_numpy()
        ratio = collision_ratio(numbers)
        score += 1.0 if ratio > 3 else 0.5 if ratio > 1.5 else -1.5 if ratio < 1.3 and not own and key.rank < 2 else 0.0
        score -= 0.7 * is_round(numbers)
    else:
        texts = some.unique().head(200).cast(pl.String)
        score += 0.7 * (float(texts.str.contains(_CODE).mean() or 0) > 0.8)  # type: ignore[arg-type]
        score += 0.3 * (tail(some.unique_counts().to_numpy()) > 1.5)
    return _Key(column=key.column, distinct=key.distinct, rank=key.rank, role=key.role, score=score, narrow=narrow)


def _sides(
    frame: pl.DataFrame, keys: Sequence[_Key], functions: Mapping[str, set[str]], aliases: Mapping[str, str]
) -> dict[Who, _Key]:
    """The best two keys, neither of which determines the other, as user and item; or one alone."""
    best: tuple[float, _Key, _Key] | None = None
    for one, other in combinations(keys[:6], 2):
        if other.column in functions[one.column] or one.column in functions[other.column]:
            continue
        if one.role == other.role != "context" and one.rank >= 2 and other.rank >= 2:
            continue  # two names of one side
        pairs = frame.select(one.column, other.column).n_unique() / frame.height
        score = one.score + other.score + pairs
        if best is None or score > best[0]:
            best = score, one, other
    lean = {key.column: _lean(frame, key, functions, aliases) for key in keys}
    if best is not None:
        _, one, other = best
        difference = lean[one.column] - lean[other.column]
        difference += float(np.clip(1.5 * np.log((other.narrow + 0.01) / (one.narrow + 0.01)), -1.5, 1.5))
        difference += float(np.clip(0.3 * np.log(one.distinct / other.distinct), -0.5, 0.5))
        difference += 0.3 * np.sign(frame.columns.index(other.column) - frame.columns.index(one.column))  # users first
        return {"user": one, "item": other} if difference >= 0 else {"user": other, "item": one}
    if not keys:
        return {}
    key = keys[0]
    toward = lean[key.column] + (0.5 if key.narrow < 0.7 else -0.5)
    return {"user" if toward >= 0 else "item": key}


def _lean(frame: pl.DataFrame, key: _Key, functions: Mapping[str, set[str]], aliases: Mapping[str, str]) -> float:
    """Toward users (above 0) or items (below): by the key's name, what it determines, and the form of its values."""
    sign = {"user": 1.0, "item": -1.0, "context": 0.0}
    lean = 4.0 * sign[key.role]
    votes = sum(sign[role_of(c)[0]] for c in functions[key.column])
    lean += float(np.clip(0.5 * votes, -1.5, 1.5))
    lean -= 0.15 * len(functions[key.column])  # catalogues describe more than accounts do
    for c in functions[key.column]:
        column = frame.get_column(c)
        if column.dtype == pl.String:
            some = column.drop_nulls().unique().head(200)
            several = float(some.str.contains(r"[|;,/]").mean() or 0)  # type: ignore[arg-type]
            lean -= 0.7 * (several > 0.3)
        elif column.dtype.is_float():
            lean -= 0.3  # amounts and measures are items' more often than users'
    column = frame.get_column(key.column)
    if column.dtype == pl.String:
        some = column.drop_nulls().unique().head(200)
        lean += 1.5 * (float(some.str.contains(_EMAIL).mean() or 0) > 0.9)  # type: ignore[arg-type]
        lean -= 0.7 * (float(some.str.contains(r"\s").mean() or 0) > 0.5)  # type: ignore[arg-type]
    if key.column in aliases.values():
        lean -= 0.5  # a title
    return lean

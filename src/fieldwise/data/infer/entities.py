"""Finding the columns of user and item ids by the rows: whose values repeat, and what is a function of what."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, permutations

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_number
from fieldwise.data.encode.numbers import number_formats
from fieldwise.data.prepare.ordering import parse_timestamps
from fieldwise.errors import DataError
from fieldwise.schema import Field, Role
from fieldwise.schema.ids import MOMENTARY, Who, id_rank, kind_of_name, role_of, words_of

ENOUGH = 20_000  # rows of a sample for one test
_LEAST_PAIRS = 20
_REPEATED = 0.3  # minimum share of rows that follow another row of their key
_ERRORS = 0.02  # of two rows of one key, the share that may differ where the key determines a column
_LIFT = 0.1  # that share relative to two rows at random
_CONSTANT = 0.99  # two rows at random have the same cell so often: nothing determines a column that never varies
_NEIGHBOURS = 3
_SHRINKAGE = 10.0
_BINS = 32
_MOST_OF_IT = 0.5
"""A column that varies within both ids is a field of the side whose id explains at least this share of it."""
_CLOSE_SHARE = 0.1
"""Shares that differ by less from each other, or from the one above, do not decide for sure."""


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How often two rows of one key have the same cell, and how often two rows at random."""

    same: float
    chance: float
    determined: bool  # whether the column is a function of the key, up to one row in a hundred


def comparable(column: pl.Series) -> pl.Series:
    """A column whose cells can be compared: lists as text."""
    if isinstance(column.dtype, (pl.List, pl.Array)) and not column.dtype.inner.is_nested():
        return column.cast(pl.List(pl.String), strict=False).list.join("\x1f")
    return column


def agreements(frame: pl.DataFrame, key: str, columns: Sequence[str]) -> dict[str, Agreement]:
    """The agreement of each column within the values of a key; empty if too few rows share a value.

    A sample of the key's values, with all of their rows, is sorted by key; neighbours are the pairs.

    >>> rows = pl.DataFrame({"k": [1, 1, 2, 2] * 20, "shade": ["red", "red", "blue", "blue"] * 20, "n": range(80)})
    >>> {name: result.determined for name, result in agreements(rows, "k", ["shade", "n"]).items()}
    {'shade': True, 'n': False}
    """
    keys = frame.get_column(key)
    codes = keys.hash(seed=0).to_numpy()
    taken = np.flatnonzero((codes % (frame.height // ENOUGH + 1) == 0) & keys.is_not_null().to_numpy())
    rows = taken[np.argsort(codes[taken], kind="stable")][: 3 * ENOUGH]
    pair = codes[rows][1:] == codes[rows][:-1]
    if pair.sum() < max(_LEAST_PAIRS, _REPEATED * len(rows)):
        return {}
    results = {}
    for column in frame.select(columns)[rows].iter_columns():
        column = comparable(column)
        if column.dtype.is_nested() or column.dtype in (pl.Object, pl.Binary):
            continue
        present, cells = column.is_not_null().to_numpy(), column.hash(seed=0).to_numpy()
        both = pair & present[1:] & present[:-1]
        if both.sum() < _LEAST_PAIRS:
            continue
        counts = np.unique(cells[present], return_counts=True)[1].astype(np.float64)
        chance = float((counts**2).sum() / counts.sum() ** 2)
        same = float((cells[1:] == cells[:-1])[both].mean())
        determined = chance < _CONSTANT and 1 - same <= min(_ERRORS, _LIFT * (1 - chance))
        results[column.name] = Agreement(same=same, chance=chance, determined=determined)
    return results


def key_pairs(keys: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of different rows with the same key, as two arrays of row numbers; empty if too few rows share one.

    The rows of a key are paired at random, since neighbours in time are more alike than two rows of a key.
    """
    codes = keys.hash(seed=0).to_numpy()
    rows = np.flatnonzero((codes % (len(keys) // ENOUGH + 1) == 0) & keys.is_not_null().to_numpy())
    rows = np.random.default_rng(0).permutation(rows)
    rows = rows[np.argsort(codes[rows], kind="stable")][: 3 * ENOUGH]
    same = codes[rows][1:] == codes[rows][:-1]
    if same.sum() < max(_LEAST_PAIRS, _REPEATED * len(rows)):
        same[:] = False
    return rows[:-1][same], rows[1:][same]


def explained_share(cells: pl.Series, pairs: tuple[np.ndarray, np.ndarray]) -> float | None:
    """The share of a column's variation that a key explains, by the pairs of `key_pairs`: 1 if each key has one value.

    For categories 1 - P(two rows of a key differ) / P(two rows at random differ), for numbers also 1 - their mean
    squared difference within a key / that at random, of ranks, so that neither outliers nor the scale count; the
    greater of both. 0 if the key tells nothing, slightly above or below by chance. None if too few pairs have both
    cells, or the column does not vary.

    >>> rng = np.random.default_rng(0)
    >>> key = np.arange(50).repeat(40)
    >>> price = key * 1.0 + rng.normal(0, 5, 2000)
    >>> round(explained_share(pl.Series(price), key_pairs(pl.Series(key))), 1)
    0.9
    """
    present = cells.is_not_null().to_numpy()
    first, second = pairs
    both = present[first] & present[second]
    if both.sum() < _LEAST_PAIRS:
        return None
    first, second = first[both], second[both]
    codes = cells.hash(seed=0).to_numpy()
    counts = np.unique(codes[present], return_counts=True)[1].astype(np.float64)
    chance = float((counts**2).sum() / counts.sum() ** 2)
    if chance >= _CONSTANT:
        return None
    same = float((codes[first] == codes[second]).mean())
    share = (same - chance) / (1 - chance)
    if cells.dtype.is_numeric():
        rank = cells.rank().fill_null(0).to_numpy().astype(np.float64)
        within = float(((rank[first] - rank[second]) ** 2).mean())
        share = max(share, 1 - within / (2 * float(rank[present].var())))
    return share


def is_binning(frame: pl.DataFrame, key: str, column: str) -> bool:
    """Whether a column that a number determines only groups or rescales it, as decades do with years.

    >>> years = pl.DataFrame({"year": range(1950, 2000)})
    >>> years = years.with_columns(decade=pl.col("year") // 10, k=pl.col("year") % 7)
    >>> is_binning(years, "year", "decade"), is_binning(years, "year", "k")
    (True, False)
    """
    if not frame.schema[key].is_numeric():
        return False
    firsts = frame.select(k=pl.col(key), c=pl.col(column)).drop_nulls().unique("k").sort("k").head(ENOUGH)
    cells = firsts.get_column("c")
    if cells.dtype.is_numeric():
        steps = np.sign(np.diff(cells.to_numpy().astype(np.float64)))
        steps = steps[steps != 0]
        return bool(len(steps)) and abs(float(steps.mean())) > 0.9
    codes = cells.hash(seed=0).to_numpy() if not cells.dtype.is_nested() else np.arange(len(cells))
    groups = len(np.unique(codes))  # text that is one to one with the numbers names them
    return groups < 0.8 * len(codes) and int((codes[1:] != codes[:-1]).sum()) <= 1.5 * (groups - 1) + 1


def collision_ratio(numbers: np.ndarray) -> float:
    """How much oftener rows share a whole number than a density that is smooth among neighbouring numbers would give.

    About 1 for counts, ages and amounts. Ids have gaps, or some are used much more than their neighbours: above 1.5.

    >>> rng = np.random.default_rng(0)
    >>> ages, ids = rng.normal(40, 12, 4000).astype(int), rng.permutation(10_000)[:300][rng.integers(0, 300, 4000)]
    >>> collision_ratio(ages) < 1.3, collision_ratio(ids) > 5
    (True, True)
    """
    values, counts = np.unique(numbers.astype(np.int64), return_counts=True)
    if len(values) < 2 * _NEIGHBOURS:
        return 1.0
    values = (values - values[0]) // max(1, int(np.gcd.reduce(np.diff(values))))
    windows = len(values) // _NEIGHBOURS
    inner = slice(0, windows * _NEIGHBOURS)
    grid, many = values[inner].reshape(windows, -1), counts[inner].reshape(windows, -1).astype(np.float64)
    after = np.append(values[_NEIGHBOURS::_NEIGHBOURS], values[-1] + 1)[:windows]
    width = (after - grid[:, 0]).astype(np.float64).clip(min=_NEIGHBOURS)
    total = many.sum(axis=1)
    expected = float((total * (total - 1) / width).sum())
    observed = float((many * (many - 1)).sum())
    return observed / max(expected, _LEAST_PAIRS) if max(observed, expected) > _LEAST_PAIRS else 1.0


def is_round(numbers: np.ndarray) -> bool:
    """Whether people or prices rounded the numbers: many end alike, on 0, 5 or 9.

    >>> is_round(np.array([1990, 2490, 990, 12990] * 10)), is_round(np.arange(1000))
    (True, False)
    """
    values = np.unique(np.abs(numbers.astype(np.int64)))
    if len(values) < 4:
        return False
    last = np.bincount(values % 10, minlength=10) / len(values)
    return bool(last.max() > 0.4 or last[0] + last[5] > 0.6)


def bins_lead(numbers: np.ndarray, target: np.ndarray) -> float:
    """How much better quantile bins predict a target on held-out rows than categories do, in standard errors.

    Both predict by the shrunken mean of half of the rows, and are compared by squared error on the other half.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.integers(0, 400, 8000)
    >>> smooth, jagged = (rng.random(8000) < share for share in (x / 400, x * 37 % 101 / 101))
    >>> bins_lead(x, smooth) > 2, bins_lead(x, jagged) < -2
    (True, True)
    """
    rows = np.random.default_rng(0).permutation(len(numbers))[: 2 * ENOUGH]
    numbers, target = numbers[rows], target[rows].astype(np.float64)
    codes = np.unique(numbers, return_inverse=True)[1]
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, _BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, numbers)
    half = len(rows) // 2
    errors = []
    for group in (codes, bins):
        groups, first = int(group.max()) + 1, group[:half]
        count = np.bincount(first, minlength=groups)
        total = np.bincount(first, weights=target[:half], minlength=groups)
        mean = (total + _SHRINKAGE * float(target[:half].mean())) / (count + _SHRINKAGE)
        errors.append((target[half:] - mean[group[half:]]) ** 2)
    lead = errors[0] - errors[1]
    spread = float(lead.std())
    return float(lead.mean()) / spread * len(lead) ** 0.5 if spread > 0 else 0.0


_MOST_KEYS = 24
_ROWS_A_VALUE = 2.5  # an id occurs in this many rows on average, at least
_ROWS_A_CODE = 1.4  # the same of codes such as 3f9a01c2, which nothing but an id is written as
_MOST_ALIKE = 5
"""Columns that look like ids by their rows, and whose names tell no entity."""
_FEATURES, _MANY_FEATURES = 4, 16
"""Numbered columns of one name that are features: beside columns with other names, and in any table."""
_SIDES: tuple[Who, ...] = ("user", "item")
_SURE, _LIKELY = 1.2, 0.6  # the score from which a column is an id, and a second one beside it
_VISITS = 0.15  # minimum ratio of the number of users to that of visits
_BRIEF = 0.3  # the time between two rows of one visit, relative to two of one user
_LEFT = "only ids of one side were found: if column {!r} holds the other's, write it as user or item in the schema"
_EMAIL = r"^[^@\s]+@[^@\s]+\.[^@\s]+$"
_MEASURE = r"^(?:\d{1,2}:\d\d(?::\d\d)?|\d[\d.,]* ?[%€$£])$"  # no id: a time of day, a share, a price
_CODE = r"^(?:[^\s]*\d[^\s]*)$"
_LONG_CODE = r"^[0-9a-fA-F-]{8,}$"


@dataclass(frozen=True, kw_only=True)
class Entities:
    """The columns of ids, and which columns are functions of them."""

    ids: dict[Who, str] = field(default_factory=dict)  # of each side that has one
    sure: frozenset[Who] = frozenset()  # the sides whose ids are given, or have a name that tells them
    within: dict[str, dict[str, Agreement]] = field(default_factory=dict)  # by key, of every column within its values
    determined: dict[str, set[str]] = field(default_factory=dict)  # by key, the columns that are functions of it
    functions: dict[str, set[str]] = field(default_factory=dict)  # less the key and groups or scales of its numbers
    reasons: dict[Who, str] = field(default_factory=dict)
    pairs: dict[Who, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # of rows with the same id
    doubts: dict[str, str] = field(default_factory=dict)  # by column, what the user must check

    def settled(self) -> set[str]:
        """The ids and the columns that they determine."""
        return set(self.ids.values()).union(*(self.determined[key] for key in self.ids.values()))

    def key_of(self, column: str) -> str | None:
        """The id that determines a column, if one does."""
        return next((k for k in self.ids.values() if k != column and column in self.determined[k]), None)

    def role(self, cells: pl.Series, f: Field) -> tuple[Role, str, str]:
        """The role of a field, the reason, and what the user must check, or an empty text.

        It is that of the id that determines the field's column, else of the id that explains most of it, else the role
        that the column's name tells, unless the column is known to vary within that side's id. Ids in doubt do not
        count.
        """
        column = cells.name
        ids = {side: key for side, key in self.ids.items() if side in self.sure}
        for side, key in ids.items():
            if key == column:
                return side, f"it is the {side} id, by {self.reasons[side]}", ""
        named, reason = role_of(column)
        moment = not MOMENTARY.isdisjoint(words_of(column))
        if f.max_length is not None:
            return f.role, reason if named == f.role else "a history is the user's", ""
        if moment:
            return named, reason, ""
        same = {side: one for side, key in ids.items() if (one := self.within[key].get(column)) is not None}
        sides = [side for side, one in same.items() if one.determined]
        if sides:  # a column may be determined by both, such as a language: its name decides, else the better agreement
            best = max(sides, key=lambda side: (side == named, same[side].same))
            how = "every row" if same[best].same == 1 else f"{same[best].same:.1%} of the pairs of rows"
            return best, f"determined by the {best}: the same in {how} of one {self.ids[best]!r}", ""
        shares = self._explained(cells, f)
        if not shares:
            return named, reason, ""
        return _role_by_shares(column, named, reason, shares)

    def _explained(self, cells: pl.Series, f: Field) -> dict[Who, float]:
        """How much of a column each side's id explains, where this can be told."""
        if f.cell == "number" and cells.dtype == pl.String:
            with suppress(DataError):  # some cells are no numbers: their texts are compared
                cells = as_number(cells, f"column {cells.name!r}", form=getattr(f, "number_format", None))
        cells = comparable(cells)
        shares: dict[Who, float] = {}
        for side, pairs in self.pairs.items():
            share = explained_share(cells, pairs) if side in self.sure else None
            if share is not None:
                shares[side] = share
        return shares


def _role_by_shares(column: str, named: Role, reason: str, shares: Mapping[Who, float]) -> tuple[Role, str, str]:
    """The role of a column that varies within the ids, by the share of it that each of them explains."""
    by_share = sorted(shares, key=lambda side: -shares[side])
    most = shares[by_share[0]]
    figures = " and ".join(f"the {side} id explains {max(shares[side], 0):.0%} of it" for side in by_share)
    alike = [side for side in by_share if shares[side] > most - _CLOSE_SHARE]
    if most < _MOST_OF_IT:
        is_close = most > _MOST_OF_IT - _CLOSE_SHARE
        role: Role = "context" if named in shares else named
        why = f"it varies within one {named}: {figures}" if named in shares else reason
    else:
        is_close = most < _MOST_OF_IT + _CLOSE_SHARE or len(alike) > 1
        role = next((side for side in alike if side == named), by_share[0])
        why = f"{figures}; it varies within one {role}, whose latest value counts"
    if not is_close:
        return role, why, ""
    taken = "context" if role == "context" else f"a field of the {role}"
    return role, why, f"column {column!r} was taken for {taken}, although {figures}: correct its role if it is not"


@dataclass(kw_only=True, eq=False)
class _Key:
    """A column that may be an id, and the evidence for it."""

    column: str
    cells: pl.Series
    place: int  # in the table
    distinct: int  # how many values it has
    rank: int  # how much its name looks like an id, see `id_rank`
    role: Role  # the side that its name tells
    functions: set[str] = field(default_factory=set)  # as in `Entities`
    aliases: list[str] = field(default_factory=list)  # the keys that it is one to one with and a better id than
    narrow: float = 1.0  # how close in time a value's rows are
    score: float = 0.0  # all of this together


def find_entities(
    frame: pl.DataFrame, skip: Sequence[str], times: Sequence[str], given: Mapping[Who, str] | None = None
) -> Entities:
    """The user and item ids of a table.

    Columns to `skip` are no ids and are not used to find any; `times` look like times, the likeliest first. `given` has
    the ids that are known.

    >>> rng = np.random.default_rng(0)
    >>> user, item = rng.integers(0, 90, 4000), rng.integers(0, 60, 4000)
    >>> codes = rng.choice(9999, 90, replace=False)
    >>> rows = pl.DataFrame({"who": codes[user], "what": codes[item] + 7, "shade": item % 7, "city": user % 9})
    >>> sorted(find_entities(rows, (), ()).ids.values())
    ['what', 'who']
    """
    given = given or {}
    keys = _possible(frame, [*skip, *times])
    possible = {key.column for key in keys}
    keys += [_key(frame, column) for column in given.values() if column not in possible]
    others = [c for c in frame.columns if c not in skip]
    within = {key.column: agreements(frame, key.column, others) for key in keys}
    keys = [key for key in keys if within[key.column] or key.rank >= 2 or key.column in given.values()]
    determined = {key.column: {c for c, one in within[key.column].items() if one.determined} for key in keys}
    for key in keys:
        key.functions = {c for c in determined[key.column] - {key.column} if not is_binning(frame, key.column, c)}
    functions = {key.column: key.functions for key in keys}
    of_given = {side: next(key for key in keys if key.column == column) for side, column in given.items()}
    keys = _best_of_alike(frame, keys, next((c for c in times if c not in set().union(*determined.values())), None))
    for key in keys:
        key.score = _score(key)
    keys.sort(key=lambda key: -key.score)
    best = keys[0] if keys and keys[0].score >= _SURE else None
    sure = [key for key in keys if best and (key.score >= _LIKELY or (key.score > 0 and _once(best, key)))]
    sure = _without_alike(sure, _numbered_features(frame.columns))
    best = sure[0] if sure and sure[0].score >= _SURE else None
    ids = _with_given(_sides(frame, sure if best else []), of_given)
    alone = best if len(ids) == 1 and not given else None
    left = next((key.column for key in keys if alone and key.column not in alone.functions | {alone.column}), None)
    named = {side: key for side, key in ids.items() if key.rank >= 2 or key.role == side}
    return Entities(
        ids={side: key.column for side, key in ids.items()},
        sure=frozenset({*named, *given}),
        within=within,
        determined=determined,
        functions=functions,
        reasons={side: "what was given" if side in given else "its name and rows" for side in ids},
        pairs={side: key_pairs(key.cells) for side, key in ids.items()},
        doubts={
            key.column: f"column {key.column!r} may hold the {side} ids, by its rows and not by its name: give it as "
            f"{side} if it does; until then the schema has no {side}"
            for side, key in ids.items()
            if side not in named and side not in given
        }
        | ({} if left is None else {left: _LEFT.format(left)}),
    )


def _with_given(found: Mapping[Who, _Key], given: Mapping[Who, _Key]) -> dict[Who, _Key]:
    """The ids that are given, and beside one of them another that was found, on whichever side."""
    result = dict(given)
    columns = [key.column for key in given.values()]
    others = {side: key for side, key in found.items() if key.column not in columns}
    for side in sorted(others, key=lambda side: side in given):  # first those whose side is free
        other_side: Who = "item" if side == "user" else "user"
        result.setdefault(other_side if side in given else side, others[side])
    return {side: result[side] for side in _SIDES if side in result}


def _key(frame: pl.DataFrame, name: str) -> _Key:
    """A column as an id, whatever its cells."""
    column = frame.get_column(name)
    return _Key(
        column=name,
        cells=column,
        place=frame.columns.index(name),
        distinct=column.drop_nulls().n_unique(),
        rank=id_rank(name),
        role=role_of(name)[0],
    )


def _possible(frame: pl.DataFrame, skip: Sequence[str]) -> list[_Key]:
    """Columns of whole numbers or text whose values repeat, those of most values first."""
    results = []
    for column in frame.iter_columns():
        name, kind = column.name, column.dtype
        is_text = kind in (pl.String, pl.Categorical, pl.Enum)
        if name in skip or not (is_text or kind.is_numeric()):
            continue
        present = column.drop_nulls()
        if kind.is_float() and not bool((present.drop_nans() % 1 == 0).all()):
            continue
        distinct, rank = present.n_unique(), id_rank(name)
        least = 3 if rank >= 2 else max(10, 0.25 * frame.height**0.5)
        some = present.cast(pl.String).head(1000) if is_text else None
        low, high = present.min(), present.max()
        huge = isinstance(low, int) and isinstance(high, int) and max(-low, high) > 2**53
        is_code = huge or (some is not None and _share(some, _LONG_CODE) > 0.9)
        repeats = len(present) >= max((_ROWS_A_CODE if is_code else _ROWS_A_VALUE) * distinct, 0.5 * frame.height)
        if distinct < least or not (repeats or (rank >= 2 and distinct <= 0.95 * len(present))):
            continue
        if some is not None and (number_formats(some) or some.str.contains(_MEASURE).all()):
            continue
        if kind.is_numeric() and rank < 2 and not huge and (present.min() or 0) < 0:  # type: ignore[operator]
            continue
        results.append(_key(frame, name))
    return sorted(results, key=lambda key: (-(key.rank >= 2), -key.distinct))[:_MOST_KEYS]


def _without_alike(keys: Sequence[_Key], features: set[str]) -> list[_Key]:
    """The keys without numbered features, and without those of which many have equally telling names and rows.

    So many columns cannot all be ids, and nothing tells which of them are.
    """
    kept = list(keys)
    for rank in (0, 1):
        alike = [key for key in kept if key.rank == rank]
        if len(alike) > _MOST_ALIKE:
            kept = [key for key in kept if key not in alike]
    return [key for key in kept if key.column not in features]


def _numbered_features(columns: Sequence[str]) -> set[str]:
    """Columns that are numbered features, as `C1` to `C26`: many of one name, or some beside columns with other names.

    A table whose columns are all numbered, as by a program that lost their names, may have ids among them.
    """
    stems: dict[str, list[str]] = {}
    for name in columns:
        stem = name.rstrip("0123456789")
        if stem != name and id_rank(name) < 2:
            stems.setdefault(stem, []).append(name)
    numbered = sum(map(len, stems.values()))
    least = _MANY_FEATURES if numbered > 0.8 * len(columns) else _FEATURES
    return {name for names in stems.values() if len(names) >= least for name in names}


def _best_of_alike(frame: pl.DataFrame, keys: Sequence[_Key], time: str | None) -> list[_Key]:
    """The keys: of those that map one to one only the better id, and none that a finer key determines."""

    def quality(key: _Key) -> tuple[float, ...]:
        text = key.cells.dtype == pl.String  # an id without a name of one stands before its title, an amount after it
        spaces = _share(key.cells.head(1000), r"\s") if text else float(not key.rank)
        rank = key.rank if key.role != "context" else min(key.rank, 1)
        return rank - (kind_of_name(key.column) == "quantity"), -round(spaces), -key.place

    out: set[str] = set()
    for one, other in combinations(sorted(keys, key=quality, reverse=True), 2):
        both = other.column in one.functions and one.column in other.functions
        if both and one.column not in out and other.column not in out:
            out.add(other.column)
            one.aliases.append(other.column)
    keys = [key for key in keys if key.column not in out]
    # The place of each row in time, or in the table, from 0 to 1.
    place = np.arange(frame.height) / max(1, frame.height)
    if time is not None:
        order = frame.get_column(time)
        order = parse_timestamps(order).values if order.dtype == pl.String else order
        place = order.rank("average").fill_null(0).to_numpy() / max(1, frame.height)
    shuffled = np.random.default_rng(0).permutation(place)
    for key in keys:  # the mean distance of two rows in a row of a value, relative to rows in random order
        codes, distances = key.cells.hash(seed=0).to_numpy(), []
        for places in (place, shuffled):
            by = np.lexsort((places, codes))
            pair = codes[by][1:] == codes[by][:-1]
            distances.append(float(np.diff(places[by])[pair].mean()) if pair.any() else 1.0)
        key.narrow = distances[0] / max(1e-9, distances[1])
    for fine, coarse in permutations(keys, 2):  # as an item determines its brand
        if coarse.column not in fine.functions:
            continue
        own = fine.functions - coarse.functions - {coarse.column}
        named = (coarse.rank >= 2) - (fine.rank >= 2)
        many = coarse.distinct > max(_VISITS * fine.distinct, 50)
        is_visit = not own and many and fine.narrow < _BRIEF * coarse.narrow  # of another one's values
        is_group = coarse.role == "item" and coarse.rank == 2 and bool(own)  # as the show of episodes
        out.add(fine.column if is_visit or (named > 0 and not is_group) else coarse.column)
    return [key for key in keys if key.column not in out]


def _once(one: _Key, other: _Key) -> bool:
    """Whether pairs of values repeat far less often than by chance, as a user rates an item only once."""
    pairs = pl.DataFrame([one.cells, other.cells])
    random = pairs.with_columns(pl.col(other.column).shuffle(seed=0))
    chance = pairs.height - random.n_unique()
    return chance > 30 and pairs.height - pairs.n_unique() < 0.3 * chance


def _score(key: _Key) -> float:
    """The evidence for an id: name, own functions, many values, unequal use, gaps in its numbers."""
    present = key.cells.drop_nulls()
    score = 1.5 if key.rank >= 2 else 0.5 * key.rank - 0.5 * (kind_of_name(key.column) == "quantity")
    own = key.functions.difference(key.aliases)
    score += 0.6 * min(3, len(own)) + (0.6 if key.aliases else 0.0)
    score += float(np.clip(np.log10(key.distinct / (0.5 * len(key.cells) ** 0.5)), -1, 1))
    some = present.gather_every(max(1, len(present) // 50_000))
    if present.dtype.is_numeric():
        numbers = some.cast(pl.Int64).to_numpy()
        ratio = collision_ratio(numbers)
        score += 1.0 if ratio > 3 else 0.5 if ratio > 1.5 else -1.5 if ratio < 1.3 and not own and key.rank < 2 else 0.0
        return score - 0.7 * is_round(numbers)
    score += 0.7 * (_share(some.unique(maintain_order=True).head(200).cast(pl.String), _CODE) > 0.8)
    counts = some.unique_counts().to_numpy().astype(np.float64)
    # How unequally values are used: the mean of squared counts by the square of their mean; 1 if all are alike.
    tail = max(0.0, float((counts**2).mean()) - float(counts.mean())) / float(counts.mean()) ** 2
    return score + 0.3 * (tail > 1.5)


def _sides(frame: pl.DataFrame, keys: Sequence[_Key]) -> dict[Who, _Key]:
    """The best two keys, neither of which determines the other, as user and item; or one alone."""
    best: tuple[float, _Key, _Key] | None = None
    for one, other in combinations(keys[:6], 2):
        if other.column in one.functions or one.column in other.functions:
            continue
        if one.role == other.role != "context" and one.rank >= 2 and other.rank >= 2:
            continue  # two names of one side
        pairs = frame.select(one.column, other.column).n_unique() / frame.height
        score = one.score + other.score + pairs
        if best is None or score > best[0]:
            best = score, one, other
    if best is not None:
        _, one, other = best
        difference = _lean(frame, one) - _lean(frame, other)
        difference += float(np.clip(1.5 * np.log((other.narrow + 0.01) / (one.narrow + 0.01)), -1.5, 1.5))
        difference += float(np.clip(0.3 * np.log(one.distinct / other.distinct), -0.5, 0.5))
        difference += 0.3 * np.sign(other.place - one.place)  # users first
        return {"user": one, "item": other} if difference >= 0 else {"user": other, "item": one}
    if not keys:
        return {}
    toward = _lean(frame, keys[0]) + (0.5 if keys[0].narrow < 0.7 else -0.5)
    return {"user" if toward >= 0 else "item": keys[0]}


def _lean(frame: pl.DataFrame, key: _Key) -> float:
    """Toward users (above 0) or items (below): by the key's name, what it determines, and the form of its values."""
    sign = {"user": 1.0, "item": -1.0, "context": 0.0}
    lean = 4.0 * sign[key.role]
    votes = sum(sign[role_of(c)[0]] for c in key.functions)
    lean += float(np.clip(0.5 * votes, -1.5, 1.5))
    lean -= 0.15 * len(key.functions)  # catalogues describe more than accounts do
    for column in frame.select(key.functions).iter_columns():
        if column.dtype == pl.String:
            lean -= 0.7 * (_share(column.drop_nulls().unique(maintain_order=True).head(200), r"[|;,/]") > 0.3)
        elif column.dtype.is_float():
            lean -= 0.3  # amounts and measures are items' more often than users'
    if key.cells.dtype == pl.String:
        some = key.cells.drop_nulls().unique(maintain_order=True).head(200)
        lean += 1.5 * (_share(some, _EMAIL) > 0.9)
        lean -= 0.7 * (_share(some, r"\s") > 0.5)
    return lean - 0.5 if key.aliases else lean  # a title


def _share(texts: pl.Series, pattern: str) -> float:
    """The share of texts that match a pattern."""
    return float(texts.str.contains(pattern).mean() or 0)  # type: ignore[arg-type]

"""Finding the columns of user and item ids by the rows: whose values repeat, and what is a function of what."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, permutations

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_number
from fieldwise.data.encode.numbers import number_formats
from fieldwise.data.infer.profile import ColumnProfile, Columns, comparable
from fieldwise.data.prepare.timestamps import parse_timestamps
from fieldwise.errors import DataError
from fieldwise.schema import Field, Role
from fieldwise.schema.ids import MOMENTARY, Who, id_rank, kind_of_name, role_of, words_of

ENOUGH = 20_000  # rows of a sample for one test
_LEAST_PAIRS = 20
_REPEATED = 0.3  # minimum share of rows that follow another row of their key
# of two rows of one key, the share that may differ where the key determines a column
_ERRORS = 0.02
_LIFT = 0.1  # that share relative to two rows at random
# two rows at random have the same cell so often: nothing determines a column that never varies
_CONSTANT = 0.99
_NEIGHBOURS = 3
_SHRINKAGE = 10.0
_BINS = 32
_COMPARED_CELLS = 1 << 22
"""Cells of columns that are compared within the keys at once."""
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


def agreements(
    columns: Columns, keys: Sequence[str], skip: Collection[str] = ()
) -> dict[str, dict[str, Agreement]]:
    """By key, the agreement of each column but those to skip within the key's values; none if too few rows share one.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> rows = pl.DataFrame({"k": [1, 1, 2, 2] * 20, "shade": ["red", "red", "blue", "blue"] * 20, "n": range(80)})
    >>> within = agreements(profile_columns(rows), ["k"])["k"]
    >>> {name: result.determined for name, result in within.items()}
    {'k': True, 'shade': True, 'n': False}
    """
    results: dict[str, dict[str, Agreement]] = {key: {} for key in keys}
    neighbours = {
        key: found for key in keys if (found := _neighbours(columns[key].cells)) is not None
    }
    if not neighbours:
        return results
    names = [
        name for name, column in columns.items() if name not in skip and _can_compare(column.kind)
    ]
    if not names:
        return results
    columns_at_once = max(1, _COMPARED_CELLS // len(columns[names[0]].cells))
    for start in range(0, len(names), columns_at_once):
        block = names[start : start + columns_at_once]
        codes = np.stack([columns[name].codes() for name in block])
        is_present = np.stack([columns[name].is_present for name in block])
        whole_chances = [_chance(*cells) for cells in zip(codes, is_present, strict=True)]
        for key, (rows, is_pair) in neighbours.items():
            sample = codes[:, rows]
            is_known = is_present[:, rows]
            both = is_pair & is_known[:, 1:] & is_known[:, :-1]
            pairs = both.sum(axis=1)
            equal = ((sample[:, 1:] == sample[:, :-1]) & both).sum(axis=1)
            for place in np.flatnonzero(pairs >= _LEAST_PAIRS).tolist():
                is_whole = len(rows) == codes.shape[1]
                chance = (
                    whole_chances[place] if is_whole else _chance(sample[place], is_known[place])
                )
                same = float(equal[place] / pairs[place])
                determined = chance < _CONSTANT and 1 - same <= min(_ERRORS, _LIFT * (1 - chance))
                results[key][block[place]] = Agreement(
                    same=same, chance=chance, determined=determined
                )
    return results


def _neighbours(keys: pl.Series) -> tuple[np.ndarray, np.ndarray] | None:
    """Rows of a sample of a key's values, sorted by value, and whether each and the next have the same; None if few do.

    The sample has all rows of its values.
    """
    codes = keys.hash(seed=0).to_numpy()
    taken = np.flatnonzero((codes % (len(keys) // ENOUGH + 1) == 0) & keys.is_not_null().to_numpy())
    rows = taken[np.argsort(codes[taken], kind="stable")][: 3 * ENOUGH]
    is_pair = codes[rows][1:] == codes[rows][:-1]
    if is_pair.sum() < max(_LEAST_PAIRS, _REPEATED * len(rows)):
        return None
    return rows, is_pair


def _can_compare(kind: pl.DataType) -> bool:
    """Whether `comparable` makes cells of a type comparable."""
    if isinstance(kind, (pl.List, pl.Array)):
        return not kind.inner.is_nested()
    return not kind.is_nested() and kind not in (pl.Object, pl.Binary)


def _chance(codes: np.ndarray, is_present: np.ndarray) -> float:
    """How often two cells at random of those present are equal."""
    counts = np.bincount(codes[is_present]).astype(np.float64)
    return float((counts**2).sum() / counts.sum() ** 2) if len(counts) else 1.0


def key_pairs(keys: pl.Series) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of different rows with the same key, as two arrays of row numbers; empty if too few rows share one.

    The rows of a key are paired at random, since neighbours in time are more alike than two rows of
    a key.
    """
    codes = keys.hash(seed=0).to_numpy()
    rows = np.flatnonzero((codes % (len(keys) // ENOUGH + 1) == 0) & keys.is_not_null().to_numpy())
    rows = np.random.default_rng(0).permutation(rows)
    rows = rows[np.argsort(codes[rows], kind="stable")][: 3 * ENOUGH]
    same = codes[rows][1:] == codes[rows][:-1]
    if same.sum() < max(_LEAST_PAIRS, _REPEATED * len(rows)):
        same[:] = False
    return rows[:-1][same], rows[1:][same]


def explained_shares(
    cells: pl.Series, pairs: Mapping[Who, tuple[np.ndarray, np.ndarray]]
) -> dict[Who, float]:
    """The share of a column's variation that each side's key explains, by the pairs of `key_pairs`.

    It is 1 if each key has one value, and about 0 if the key tells nothing. For categories it is 1
    - P(two rows of a key differ) / P(two rows at random differ), for numbers also 1 - their mean
      squared difference within a key / that
    at random, of ranks, so that neither outliers nor the scale count; the greater of both. A side
    is left out if too few pairs have both cells, and all are if the column does not vary.

    >>> rng = np.random.default_rng(0)
    >>> key = np.arange(50).repeat(40)
    >>> price = key * 1.0 + rng.normal(0, 5, 2000)
    >>> round(explained_shares(pl.Series(price), {"item": key_pairs(pl.Series(key))})["item"], 1)
    0.9
    """
    column = ColumnProfile(cells)
    is_present = column.is_present
    codes = column.codes()
    chance = _chance(codes, is_present)
    shares: dict[Who, float] = {}
    if chance >= _CONSTANT:
        return shares
    rank = (
        cells.rank().fill_null(0).to_numpy().astype(np.float64)
        if cells.dtype.is_numeric()
        else None
    )
    for side, (first, second) in pairs.items():
        both = is_present[first] & is_present[second]
        if both.sum() < _LEAST_PAIRS:
            continue
        first = first[both]
        second = second[both]
        same = float((codes[first] == codes[second]).mean())
        share = (same - chance) / (1 - chance)
        if rank is not None:
            within = float(((rank[first] - rank[second]) ** 2).mean())
            share = max(share, 1 - within / (2 * float(rank[is_present].var())))
        shares[side] = share
    return shares


def is_binning(keys: pl.Series, column: pl.Series) -> bool:
    """Whether a column that a number determines only groups or rescales it, as decades do with years.

    >>> years = pl.Series("year", range(1950, 2000))
    >>> is_binning(years, years // 10), is_binning(years, years % 7)
    (True, False)
    """
    if not keys.dtype.is_numeric():
        return False
    pairs = pl.DataFrame([keys.alias("k"), column.alias("c")])
    firsts = pairs.drop_nulls().unique("k").sort("k").head(ENOUGH)
    cells = firsts.get_column("c")
    if cells.dtype.is_numeric():
        steps = np.sign(np.diff(cells.to_numpy().astype(np.float64)))
        steps = steps[steps != 0]
        return bool(len(steps)) and abs(float(steps.mean())) > 0.9
    codes = cells.hash(seed=0).to_numpy() if not cells.dtype.is_nested() else np.arange(len(cells))
    groups = len(np.unique(codes))  # text that is one to one with the numbers names them
    return (
        groups < 0.8 * len(codes) and int((codes[1:] != codes[:-1]).sum()) <= 1.5 * (groups - 1) + 1
    )


def collision_ratio(values: np.ndarray, counts: np.ndarray) -> float:
    """How much oftener rows share a whole number than a density that is smooth among neighbouring numbers would give.

    About 1 for counts, ages and amounts. Ids have gaps, or some are used much more than their
    neighbours: above 1.5. `values` are the different numbers, ascending, and `counts` how many rows
    hold each.

    >>> rng = np.random.default_rng(0)
    >>> ages, ids = rng.normal(40, 12, 4000).astype(int), rng.permutation(10_000)[:300][rng.integers(0, 300, 4000)]
    >>> of_ages, of_ids = (collision_ratio(*np.unique(numbers, return_counts=True)) for numbers in (ages, ids))
    >>> of_ages < 1.3, of_ids > 5
    (True, True)
    """
    if len(values) < 2 * _NEIGHBOURS:
        return 1.0
    values = (values - values[0]) // max(1, int(np.gcd.reduce(np.diff(values))))
    windows = len(values) // _NEIGHBOURS
    inner = slice(0, windows * _NEIGHBOURS)
    grid = values[inner].reshape(windows, -1)
    many = counts[inner].reshape(windows, -1).astype(np.float64)
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

    Both predict by the shrunken mean of half of the rows, and are compared by squared error on the
    other half.

    >>> rng = np.random.default_rng(0)
    >>> x = rng.integers(0, 400, 8000)
    >>> smooth, jagged = (rng.random(8000) < share for share in (x / 400, x * 37 % 101 / 101))
    >>> bins_lead(x, smooth) > 2, bins_lead(x, jagged) < -2
    (True, True)
    """
    rows = np.random.default_rng(0).permutation(len(numbers))[: 2 * ENOUGH]
    numbers = numbers[rows]
    target = target[rows].astype(np.float64)
    codes = np.unique(numbers, return_inverse=True)[1]
    edges = np.unique(np.quantile(numbers, np.linspace(0, 1, _BINS + 1)[1:-1]))
    bins = np.searchsorted(edges, numbers)
    half = len(rows) // 2
    errors = []
    for group in (codes, bins):
        groups = int(group.max()) + 1
        first = group[:half]
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
_FEATURES = 4
_MANY_FEATURES = 16
"""Numbered columns of one name that are features: beside columns with other names, and in any table."""
_SIDES: tuple[Who, ...] = ("user", "item")
# the score from which a column is an id, and a second one beside it
_SURE = 1.2
_LIKELY = 0.6
_VISITS = 0.15  # minimum ratio of the number of users to that of visits
_BRIEF = 0.3  # the time between two rows of one visit, relative to two of one user
_LEFT = "only ids of one side were found: if column {!r} holds the other's, write it as user or item in the schema"
_EMAIL = r"^[^@\s]+@[^@\s]+\.[^@\s]+$"
# no id: a time of day, a share, a price
_MEASURE = r"^(?:\d{1,2}:\d\d(?::\d\d)?|\d[\d.,]* ?[%€$£])$"
_CODE = r"^(?:[^\s]*\d[^\s]*)$"
_LONG_CODE = r"^[0-9a-fA-F-]{8,}$"


@dataclass(frozen=True, kw_only=True)
class Entities:
    """The columns of ids, and which columns are functions of them."""

    ids: dict[Who, str] = field(default_factory=dict)  # of each side that has one
    # the sides whose ids are given, or have a name that tells them
    sure: frozenset[Who] = frozenset()
    # by key, of every column within its values
    within: dict[str, dict[str, Agreement]] = field(default_factory=dict)
    # by key, the columns that are functions of it
    determined: dict[str, set[str]] = field(default_factory=dict)
    # less the key and groups or scales of its numbers
    functions: dict[str, set[str]] = field(default_factory=dict)
    reasons: dict[Who, str] = field(default_factory=dict)
    # of rows with the same id
    pairs: dict[Who, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)  # by column, what the user must check

    def settled(self) -> set[str]:
        """The ids and the columns that they determine."""
        return set(self.ids.values()).union(*(self.determined[key] for key in self.ids.values()))

    def key_of(self, column: str) -> str | None:
        """The id that determines a column, if one does."""
        return next(
            (k for k in self.ids.values() if k != column and column in self.determined[k]), None
        )

    def role(self, cells: pl.Series, f: Field) -> tuple[Role, str, str]:
        """The role of a field, the reason, and what the user must check, or an empty text.

        It is that of the id that determines the field's column, else of the id that explains most
        of it, else the role that the column's name tells, unless the column is known to vary within
        that side's id. Ids in doubt do not count.
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
        same = {
            side: one
            for side, key in ids.items()
            if (one := self.within[key].get(column)) is not None
        }
        sides = [side for side, one in same.items() if one.determined]
        # a column may be determined by both, such as a language: its name decides, else the better
        # agreement
        if sides:
            best = max(sides, key=lambda side: (side == named, same[side].same))
            how = (
                "every row"
                if same[best].same == 1
                else f"{same[best].same:.1%} of the pairs of rows"
            )
            return (
                best,
                f"determined by the {best}: the same in {how} of one {self.ids[best]!r}",
                "",
            )
        shares = self._explained(cells, f)
        if not shares:
            return named, reason, ""
        return _role_by_shares(column, named, reason, shares)

    def _explained(self, cells: pl.Series, f: Field) -> dict[Who, float]:
        """How much of a column each side's id explains, where this can be told."""
        pairs = {side: pairs for side, pairs in self.pairs.items() if side in self.sure}
        if not pairs:
            return {}
        if f.cell == "number" and cells.dtype == pl.String:
            with suppress(DataError):  # some cells are no numbers: their texts are compared
                cells = as_number(
                    cells, f"column {cells.name!r}", form=getattr(f, "number_format", None)
                )
        return explained_shares(comparable(cells), pairs)


def _role_by_shares(
    column: str, named: Role, reason: str, shares: Mapping[Who, float]
) -> tuple[Role, str, str]:
    """The role of a column that varies within the ids, by the share of it that each of them explains."""
    by_share = sorted(shares, key=lambda side: -shares[side])
    most = shares[by_share[0]]
    figures = " and ".join(
        f"the {side} id explains {max(shares[side], 0):.0%} of it" for side in by_share
    )
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
    return (
        role,
        why,
        f"column {column!r} was taken for {taken}, although {figures}: correct its role if it is not",
    )


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
    # the keys that it is one to one with and a better id than
    aliases: list[str] = field(default_factory=list)
    narrow: float = 1.0  # how close in time a value's rows are
    score: float = 0.0  # all of this together


def find_entities(
    columns: Columns,
    skip: Collection[str],
    times: Sequence[str],
    given: Mapping[Who, str] | None = None,
) -> Entities:
    """The user and item ids of a table.

    Columns to `skip` are no ids and are not used to find any; `times` look like times, the
    likeliest first. `given` has the ids that are known.

    >>> from fieldwise.data.infer.profile import profile_columns
    >>> rng = np.random.default_rng(0)
    >>> user, item = rng.integers(0, 90, 4000), rng.integers(0, 60, 4000)
    >>> codes = rng.choice(9999, 90, replace=False)
    >>> rows = pl.DataFrame({"who": codes[user], "what": codes[item] + 7, "shade": item % 7, "city": user % 9})
    >>> sorted(find_entities(profile_columns(rows), (), ()).ids.values())
    ['what', 'who']
    """
    given = given or {}
    keys = _possible(columns, {*skip, *times})
    possible = {key.column for key in keys}
    keys += [
        _key(columns[name], list(columns).index(name))
        for name in given.values()
        if name not in possible
    ]
    within = agreements(columns, [key.column for key in keys], skip)
    keys = [
        key for key in keys if within[key.column] or key.rank >= 2 or key.column in given.values()
    ]
    determined = {
        key.column: {c for c, one in within[key.column].items() if one.determined} for key in keys
    }
    for key in keys:
        others = determined[key.column] - {key.column}
        key.functions = {c for c in others if not is_binning(key.cells, columns[c].cells)}
    functions = {key.column: key.functions for key in keys}
    of_given = {
        side: next(key for key in keys if key.column == column) for side, column in given.items()
    }
    of_some_key = set().union(*determined.values())
    time = next((columns[name].cells for name in times if name not in of_some_key), None)
    keys = _best_of_alike(keys, time)
    for key in keys:
        key.score = _score(key)
    keys.sort(key=lambda key: -key.score)
    best = keys[0] if keys and keys[0].score >= _SURE else None
    sure = [
        key
        for key in keys
        if best and (key.score >= _LIKELY or (key.score > 0 and _once(best, key)))
    ]
    sure = _without_alike(sure, _numbered_features(columns))
    best = sure[0] if sure and sure[0].score >= _SURE else None
    ids = _with_given(_sides(columns, sure if best else []), of_given)
    alone = best if len(ids) == 1 and not given else None
    left = next(
        (
            key.column
            for key in keys
            if alone and key.column not in alone.functions | {alone.column}
        ),
        None,
    )
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


def _key(column: ColumnProfile, place: int) -> _Key:
    """A column as an id, whatever its cells."""
    return _Key(
        column=column.name,
        cells=column.cells,
        place=place,
        distinct=column.distinct_present,
        rank=id_rank(column.name),
        role=role_of(column.name)[0],
    )


def _possible(columns: Columns, skip: Collection[str]) -> list[_Key]:
    """Columns of whole numbers or text whose values repeat, those of most values first."""
    results = []
    for place, (name, column) in enumerate(columns.items()):
        if name in skip or not (_is_text(column.kind) or column.kind.is_numeric()):
            continue
        if _may_be_id(column, id_rank(name)):
            results.append(_key(column, place))
    return sorted(results, key=lambda key: (-(key.rank >= 2), -key.distinct))[:_MOST_KEYS]


def _is_text(kind: pl.DataType) -> bool:
    return kind in (pl.String, pl.Categorical, pl.Enum)


def _may_be_id(column: ColumnProfile, rank: int) -> bool:
    """Whether a column of numbers or text may be an id by its cells, the less is asked of it the more its name is one.

    The questions that cost most come last.
    """
    present = column.present
    distinct = column.distinct_present
    rows = len(column.cells)
    least = 3 if rank >= 2 else max(10, 0.25 * rows**0.5)
    if distinct < least or (column.kind.is_float() and not column.is_whole):
        return False
    some = present.head(1000).cast(pl.String) if _is_text(column.kind) else None
    huge = column.kind.is_integer() and column.largest > 2**53
    repeats = len(present) >= max(_ROWS_A_VALUE * distinct, 0.5 * rows)
    if not repeats and len(present) >= max(_ROWS_A_CODE * distinct, 0.5 * rows):
        repeats = huge or (some is not None and _share(some, _LONG_CODE) > 0.9)
    if not (repeats or (rank >= 2 and distinct <= 0.95 * len(present))):
        return False
    if some is not None:
        return not (number_formats(some) or some.str.contains(_MEASURE).all())
    return rank >= 2 or huge or (column.low or 0) >= 0  # type: ignore[operator]


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


def _numbered_features(columns: Collection[str]) -> set[str]:
    """Columns that are numbered features, as `C1` to `C26`: many of one name, or some beside columns with other names.

    A table whose columns are all numbered, as by a program that lost their names, may have ids
    among them.
    """
    stems: dict[str, list[str]] = {}
    for name in columns:
        stem = name.rstrip("0123456789")
        if stem != name and id_rank(name) < 2:
            stems.setdefault(stem, []).append(name)
    numbered = sum(map(len, stems.values()))
    least = _MANY_FEATURES if numbered > 0.8 * len(columns) else _FEATURES
    return {name for names in stems.values() if len(names) >= least for name in names}


def _best_of_alike(keys: Sequence[_Key], time: pl.Series | None) -> list[_Key]:
    """The keys: of those that map one to one only the better id, and none that a finer key determines."""
    replaced: set[str] = set()
    for better, worse in combinations(sorted(keys, key=_id_quality, reverse=True), 2):
        are_one_to_one = worse.column in better.functions and better.column in worse.functions
        if are_one_to_one and replaced.isdisjoint((better.column, worse.column)):
            replaced.add(worse.column)
            better.aliases.append(worse.column)
    keys = [key for key in keys if key.column not in replaced]
    if not keys:
        return []

    _measure_narrowness(keys, time)
    dropped: set[str] = set()
    for fine, coarse in permutations(keys, 2):  # as an item determines its brand
        if coarse.column in fine.functions:
            keeps_coarse = _is_better_id(coarse, fine)
            dropped.add(fine.column if keeps_coarse else coarse.column)
    return [key for key in keys if key.column not in dropped]


def _id_quality(key: _Key) -> tuple[float, ...]:
    """What makes the better id of those that are one to one: an id before its title, an amount after it."""
    is_text = key.cells.dtype == pl.String
    with_spaces = _share(key.cells.head(1000), r"\s") if is_text else float(not key.rank)
    rank = key.rank if key.role != "context" else min(key.rank, 1)
    if kind_of_name(key.column) == "quantity":
        rank -= 1
    return rank, -round(with_spaces), -key.place


def _measure_narrowness(keys: Sequence[_Key], time: pl.Series | None) -> None:
    """Set of each key how close in time, or in the table, the rows of a value are.

    It is the mean distance of two rows in a row of a value, relative to rows in random order.
    """
    rows = len(keys[0].cells)
    positions = np.arange(rows) / max(1, rows)  # from 0 to 1
    if time is not None:
        order = parse_timestamps(time).values if time.dtype == pl.String else time
        positions = order.rank("average").fill_null(0).to_numpy() / max(1, rows)
    shuffled = np.random.default_rng(0).permutation(positions)
    for key in keys:
        codes = key.cells.hash(seed=0).to_numpy()
        by_chance = _distance_within(codes, shuffled)
        key.narrow = _distance_within(codes, positions) / max(1e-9, by_chance)


def _distance_within(codes: np.ndarray, positions: np.ndarray) -> float:
    """The mean distance of neighbours of one code; 1 if no code has two rows."""
    order = np.lexsort((positions, codes))
    is_pair = codes[order][1:] == codes[order][:-1]
    return float(np.diff(positions[order])[is_pair].mean()) if is_pair.any() else 1.0


def _is_better_id(coarse: _Key, fine: _Key) -> bool:
    """Whether a key is a better id than a finer one that determines it, which is a visit or no id by its name."""
    own_functions = fine.functions - coarse.functions - {coarse.column}
    has_many_values = coarse.distinct > max(_VISITS * fine.distinct, 50)
    is_brief = fine.narrow < _BRIEF * coarse.narrow
    is_visit = not own_functions and has_many_values and is_brief
    if is_visit:
        return True
    is_group = coarse.role == "item" and coarse.rank == 2 and bool(own_functions)  # of episodes
    return coarse.rank >= 2 and fine.rank < 2 and not is_group


def _once(first: _Key, second: _Key) -> bool:
    """Whether pairs of values repeat far less often than by chance, as a user rates an item only once."""
    pairs = pl.DataFrame([first.cells, second.cells])
    random_pairs = pairs.with_columns(pl.col(second.column).shuffle(seed=0))
    repeats_by_chance = pairs.height - random_pairs.n_unique()
    repeats = pairs.height - pairs.n_unique()
    return repeats_by_chance > 30 and repeats < 0.3 * repeats_by_chance


def _score(key: _Key) -> float:
    """The evidence for an id: name, own functions, many values, unequal use, gaps in its numbers."""
    score = _score_of_name(key)
    own_functions = key.functions.difference(key.aliases)
    score += 0.6 * min(3, len(own_functions)) + (0.6 if key.aliases else 0.0)
    usual_values = 0.5 * len(key.cells) ** 0.5
    score += float(np.clip(np.log10(key.distinct / usual_values), -1, 1))

    present = key.cells.drop_nulls()
    sample = present.gather_every(max(1, len(present) // 50_000))
    if present.dtype.is_numeric():
        return _with_score_of_numbers(score, key, sample, has_functions=bool(own_functions))
    if _share(sample.unique(maintain_order=True).head(200).cast(pl.String), _CODE) > 0.8:
        score += 0.7
    counts = sample.unique_counts().to_numpy().astype(np.float64)
    # How unequally values are used: the mean of squared counts by the square of their mean; 1 if
    # all are alike.
    mean = float(counts.mean())
    inequality = max(0.0, float((counts**2).mean()) - mean) / mean**2
    if inequality > 1.5:
        score += 0.3
    return score


def _score_of_name(key: _Key) -> float:
    if key.rank >= 2:
        return 1.5
    score = 0.5 * key.rank
    if kind_of_name(key.column) == "quantity":
        score -= 0.5
    return score


def _with_score_of_numbers(
    score: float, key: _Key, sample: pl.Series, *, has_functions: bool
) -> float:
    """The score of a key of numbers, with what their distribution tells."""
    numbers = sample.cast(pl.Int64).to_numpy()
    values, counts = np.unique(numbers, return_counts=True)
    ratio = collision_ratio(values, counts)
    if ratio > 3:
        score += 1.0
    elif ratio > 1.5:
        score += 0.5
    elif ratio < 1.3 and not has_functions and key.rank < 2:
        score -= 1.5
    if is_round(numbers):
        score -= 0.7
    return score


def _sides(columns: Columns, keys: Sequence[_Key]) -> dict[Who, _Key]:
    """The best two keys, neither of which determines the other, as user and item; or one alone."""
    pair = _best_pair(keys[:6])
    if pair is not None:
        first, second = pair
        if _toward_user(columns, first, second) >= 0:
            return {"user": first, "item": second}
        return {"user": second, "item": first}
    if not keys:
        return {}
    lean = _lean(columns, keys[0]) + (0.5 if keys[0].narrow < 0.7 else -0.5)
    return {"user" if lean >= 0 else "item": keys[0]}


def _best_pair(keys: Sequence[_Key]) -> tuple[_Key, _Key] | None:
    """The two keys with the best scores and the most pairs of values, neither of which determines the other."""
    best = None
    best_score = -np.inf
    for first, second in combinations(keys, 2):
        if second.column in first.functions or first.column in second.functions:
            continue
        if first.role == second.role != "context" and first.rank >= 2 and second.rank >= 2:
            continue  # two names of one side
        distinct_pairs = pl.DataFrame([first.cells, second.cells]).n_unique()
        score = first.score + second.score + distinct_pairs / len(first.cells)
        if score > best_score:
            best = (first, second)
            best_score = score
    return best


def _toward_user(columns: Columns, first: _Key, second: _Key) -> float:
    """How much more the first key looks like the user's than the second does."""
    narrower = np.log((second.narrow + 0.01) / (first.narrow + 0.01))
    more_values = np.log(first.distinct / second.distinct)
    difference = _lean(columns, first) - _lean(columns, second)
    difference += float(np.clip(1.5 * narrower, -1.5, 1.5))
    difference += float(np.clip(0.3 * more_values, -0.5, 0.5))
    difference += 0.3 * float(np.sign(second.place - first.place))  # users first
    return difference


def _lean(columns: Columns, key: _Key) -> float:
    """Toward users (above 0) or items (below): by the key's name, what it determines, and the form of its values."""
    sign = {"user": 1.0, "item": -1.0, "context": 0.0}
    lean = 4.0 * sign[key.role]
    votes = sum(sign[role_of(name)[0]] for name in key.functions)
    lean += float(np.clip(0.5 * votes, -1.5, 1.5))
    lean -= 0.15 * len(key.functions)  # catalogues describe more than accounts do
    for name in key.functions:
        column = columns[name]
        if column.kind == pl.String:
            texts = column.present.unique(maintain_order=True).head(200)
            if _share(texts, r"[|;,/]") > 0.3:
                lean -= 0.7
        elif column.kind.is_float():
            lean -= 0.3  # amounts and measures are items' more often than users'
    if key.cells.dtype == pl.String:
        texts = key.cells.drop_nulls().unique(maintain_order=True).head(200)
        if _share(texts, _EMAIL) > 0.9:
            lean += 1.5
        if _share(texts, r"\s") > 0.5:
            lean -= 0.7
    if key.aliases:  # a title
        lean -= 0.5
    return lean


def _share(texts: pl.Series, pattern: str) -> float:
    """The share of texts that match a pattern."""
    return float(texts.str.contains(pattern).mean() or 0)  # type: ignore[arg-type]

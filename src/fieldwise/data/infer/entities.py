"""Finding the columns of user and item ids by the rows: whose values repeat, and what is a function of what."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, permutations

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import field_numbers
from fieldwise.data.encode.numbers import number_formats
from fieldwise.data.infer.agreements import (
    Agreement,
    agreements,
    explained_shares,
    is_binning,
    key_pairs,
)
from fieldwise.data.infer.code_or_quantity import collision_ratio, is_round
from fieldwise.data.infer.findings import THIS_COLUMN
from fieldwise.data.infer.profile import TEXT_TYPES, ColumnProfile, Columns, comparable
from fieldwise.data.prepare.timestamps import parse_timestamps
from fieldwise.errors import DataError
from fieldwise.schema import Field, Role
from fieldwise.schema.ids import MOMENTARY, SIDES, Who, id_rank, kind_of_name, role_of, words_of
from fieldwise.schema.number_format import MISSING_MARKS

_MOST_OF_IT = 0.5
"""A column that varies within both ids is a field of the side whose id explains at least this share of it."""
_CLOSE_SHARE = 0.1
"""Shares that differ by less from each other, or from the one above, do not decide for sure."""
_MOST_KEYS = 24
_ROWS_PER_VALUE = 2.5
"""An id occurs in this many rows on average, at least."""
_ROWS_PER_CODE = 1.4
"""The same of codes such as 3f9a01c2, which nothing but an id is written as."""
_MOST_ALIKE = 5
"""Columns that look like ids by their rows, and whose names tell no entity."""
_FEATURES = 4
_MANY_FEATURES = 16
"""Numbered columns of one name that are features: beside columns with other names, and in any table."""
_SURE = 1.2
"""The score from which a column is an id."""
_LIKELY = 0.6
"""The score from which a column is a second id beside such a one."""
_USERS_PER_VISIT = 0.15
"""The minimum ratio of the number of users to that of visits."""
_BRIEF = 0.3
"""The time between two rows of one visit, relative to two of one user."""
_EMAIL = r"^[^@\s]+@[^@\s]+\.[^@\s]+$"
_MEASURE = r"^(?:\d{1,2}:\d\d(?::\d\d)?|\d[\d.,]* ?[%€$£])$"
"""No id: a time of day, a share, a price."""
_CODE = r"^(?:[^\s]*\d[^\s]*)$"
_LONG_CODE = r"^[0-9a-fA-F-]{8,}$"


@dataclass(frozen=True, kw_only=True)
class Entities:
    """The columns of ids, and which columns are functions of them.

    Args:
        ids: of each side that has one.
        sure: the sides whose ids are given, or have a name that tells them.
        within: by key, the agreement of every column within its values.
        determined: by key, the columns that are functions of it.
        functions: the same, less the key and groups or scales of its numbers.
        reasons: by side, why its column is the id.
        pairs: by side, pairs of rows with the same id.
        doubts: by column, what the user must check.
    """

    ids: dict[Who, str] = field(default_factory=dict)
    sure: frozenset[Who] = frozenset()
    within: dict[str, dict[str, Agreement]] = field(default_factory=dict)
    determined: dict[str, set[str]] = field(default_factory=dict)
    functions: dict[str, set[str]] = field(default_factory=dict)
    reasons: dict[Who, str] = field(default_factory=dict)
    pairs: dict[Who, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)

    def settled(self) -> set[str]:
        """The ids and the columns that they determine."""
        return set(self.ids.values()).union(*(self.determined[key] for key in self.ids.values()))

    def key_of(self, column: str) -> str | None:
        """The id that determines a column, if one does."""
        for key in self.ids.values():
            if key != column and column in self.determined[key]:
                return key
        return None

    def role(self, cells: pl.Series, f: Field) -> tuple[Role, str, str]:
        """The role of a field, the reason, and what the user must check, or an empty text.

        It is that of the id that determines the field's column, else of the id that explains most
        of it, else the role that the column's name tells, unless the column is known to vary within
        that side's id. Ids in doubt do not count.
        """
        column = cells.name
        named, reason, _ = role_of(column)
        within: dict[Who, Agreement] = {}
        for side in self.sure:
            key = self.ids[side]
            if key == column:
                return side, f"it is the {side} id, by {self.reasons[side]}", ""
            if column in self.within[key]:
                within[side] = self.within[key][column]
        if f.max_length is not None:
            return f.role, reason if named == f.role else "a history is the user's", ""
        if not MOMENTARY.isdisjoint(words_of(column)):
            return named, reason, ""

        # a column may be determined by both, such as a language: its name decides, else the better
        # agreement
        determining = [side for side in SIDES if side in within and within[side].determined]
        if determining:
            best = max(determining, key=lambda side: (side == named, within[side].same))
            same = within[best].same
            rows = "every row" if same == 1 else f"{same:.1%} of the pairs of rows"
            why = f"determined by the {best}: the same in {rows} of one {self.ids[best]!r}"
            return best, why, ""
        shares = self._explained(cells, f)
        if not shares:
            return named, reason, ""
        return _role_by_shares(named, reason, shares)

    def _explained(self, cells: pl.Series, f: Field) -> dict[Who, float]:
        """How much of a column each side's id explains, where this can be told."""
        pairs = {side: pairs for side, pairs in self.pairs.items() if side in self.sure}
        if not pairs:
            return {}
        if f.cell == "number" and cells.dtype == pl.String:
            with suppress(DataError):  # some cells are no numbers: their texts are compared
                cells = field_numbers(f, cells, MISSING_MARKS)
        return explained_shares(comparable(cells), pairs)


def _role_by_shares(named: Role, reason: str, shares: Mapping[Who, float]) -> tuple[Role, str, str]:
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
        role = named if named in alike else by_share[0]
        why = f"{figures}; it varies within one {role}, whose latest value counts"
    if not is_close:
        return role, why, ""
    taken = "context" if role == "context" else f"a field of the {role}"
    doubt = f"column {THIS_COLUMN} was taken for {taken}, although {figures}: correct its role if it is not"
    return role, why, doubt


@dataclass(kw_only=True, eq=False)
class _Key:
    """A column that may be an id, and the evidence for it.

    Args:
        position: of the column in the table.
        distinct: how many values it has.
        rank: how much its name looks like an id, see `id_rank`.
        role: the side that its name tells.
        functions: as in `Entities`.
        aliases: the keys that it is one to one with and a better id than.
        narrowness: how close in time a value's rows are.
        score: all of this together.
    """

    column: str
    cells: pl.Series
    position: int
    distinct: int
    rank: int
    role: Role
    functions: set[str] = field(default_factory=set)
    aliases: list[str] = field(default_factory=list)
    narrowness: float = 1.0
    score: float = 0.0


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
    keys = _possible_keys(columns, {*skip, *times}, given)
    within = agreements(columns, [key.column for key in keys], skip)
    keys = [
        key for key in keys if within[key.column] or key.rank >= 2 or key.column in given.values()
    ]
    determined = _set_functions(keys, columns, within)
    functions = {key.column: key.functions for key in keys}
    by_column = {key.column: key for key in keys}
    of_given = {side: by_column[column] for side, column in given.items()}

    of_some_key = set().union(*determined.values())
    orders = [columns[name].cells for name in times if name not in of_some_key]
    keys = _best_of_alike(keys, orders[0] if orders else None)
    for key in keys:
        key.score = _score(key)
    keys.sort(key=lambda key: -key.score)
    ids = _with_given(_sides(columns, _likely_ids(columns, keys)), of_given)
    sure = {side for side, key in ids.items() if key.rank >= 2 or key.role == side}.union(given)
    return Entities(
        ids={side: key.column for side, key in ids.items()},
        sure=frozenset(sure),
        within=within,
        determined=determined,
        functions=functions,
        reasons={side: "what was given" if side in given else "its name and rows" for side in ids},
        pairs={side: key_pairs(key.cells) for side, key in ids.items()},
        doubts=_doubts_about_ids(ids, sure, [] if given else keys),
    )


def _set_functions(
    keys: Sequence[_Key], columns: Columns, within: Mapping[str, Mapping[str, Agreement]]
) -> dict[str, set[str]]:
    """The columns that each key determines; sets the keys' `functions`."""
    determined: dict[str, set[str]] = {}
    for key in keys:
        agreement_of = within[key.column]
        determined[key.column] = {name for name in agreement_of if agreement_of[name].determined}
        key.functions = {
            name
            for name in determined[key.column] - {key.column}
            if not is_binning(key.cells, columns[name].cells)
        }
    return determined


def _doubts_about_ids(
    ids: Mapping[Who, _Key], sure: Collection[Who], others: Sequence[_Key]
) -> dict[str, str]:
    """What the user must check, by column: ids that no name tells, and of `others` one that may be the second id."""
    doubts = {}
    for side, key in ids.items():
        if side not in sure:
            doubts[key.column] = (
                f"column {key.column!r} may hold the {side} ids, by its rows and not by its name: give it as "
                f"{side} if it does; until then the schema has no {side}"
            )
    if len(ids) != 1:
        return doubts
    (alone,) = ids.values()
    known = {alone.column, *alone.functions}
    second = next((key.column for key in others if key.column not in known), None)
    if second is not None:
        doubts[second] = (
            f"only ids of one side were found: if column {second!r} holds the other's, write it as user or item in "
            "the schema"
        )
    return doubts


def _possible_keys(columns: Columns, skip: Collection[str], given: Mapping[Who, str]) -> list[_Key]:
    """Columns of numbers or text whose values repeat, those of most values first, then those given."""
    names = [name for name in columns if name not in skip and _may_be_id(columns[name])]
    names.sort(key=lambda name: (id_rank(name) < 2, -columns[name].distinct_present))
    names = names[:_MOST_KEYS]
    names += [name for name in given.values() if name not in names]
    places = {name: position for position, name in enumerate(columns)}
    return [
        _Key(
            column=name,
            cells=columns[name].cells,
            position=places[name],
            distinct=columns[name].distinct_present,
            rank=id_rank(name),
            role=role_of(name).role,
        )
        for name in names
    ]


def _may_be_id(column: ColumnProfile) -> bool:
    """Whether a column may be an id by its cells; the less is asked of it the more its name is one.

    The questions that cost most come last.
    """
    is_text = column.dtype in TEXT_TYPES
    if not is_text and not column.dtype.is_numeric():
        return False
    rank = id_rank(column.name)
    present = column.present
    distinct = column.distinct_present
    rows = len(column.cells)
    least = 3 if rank >= 2 else max(10, 0.25 * rows**0.5)
    if distinct < least or (column.dtype.is_float() and not column.is_whole):
        return False
    sample = present.head(1000).cast(pl.String) if is_text else None
    is_huge = column.dtype.is_integer() and column.largest > 2**53
    repeats = len(present) >= max(_ROWS_PER_VALUE * distinct, 0.5 * rows)
    if not repeats and len(present) >= max(_ROWS_PER_CODE * distinct, 0.5 * rows):
        repeats = is_huge or (sample is not None and _share(sample, _LONG_CODE) > 0.9)
    if not repeats and (rank < 2 or distinct > 0.95 * len(present)):
        return False
    if sample is not None:
        return not (number_formats(sample) or sample.str.contains(_MEASURE).all())
    return rank >= 2 or is_huge or (column.low or 0) >= 0  # type: ignore[operator]


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
    return rank, -round(with_spaces), -key.position


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
        key.narrowness = _distance_within(codes, positions) / max(1e-9, by_chance)


def _distance_within(codes: np.ndarray, positions: np.ndarray) -> float:
    """The mean distance of neighbours of one code; 1 if no code has two rows."""
    order = np.lexsort((positions, codes))
    is_pair = codes[order][1:] == codes[order][:-1]
    return float(np.diff(positions[order])[is_pair].mean()) if is_pair.any() else 1.0


def _is_better_id(coarse: _Key, fine: _Key) -> bool:
    """Whether a key is a better id than a finer one that determines it, which is a visit or no id by its name."""
    only_of_fine = fine.functions - coarse.functions - {coarse.column}
    has_many_values = coarse.distinct > max(_USERS_PER_VISIT * fine.distinct, 50)
    is_brief = fine.narrowness < _BRIEF * coarse.narrowness
    is_visit = not only_of_fine and has_many_values and is_brief
    if is_visit:
        return True
    is_group = coarse.role == "item" and coarse.rank == 2 and bool(only_of_fine)  # of episodes
    return coarse.rank >= 2 and fine.rank < 2 and not is_group


def _score(key: _Key) -> float:
    """The evidence for an id: name, its functions, many values, unequal use, gaps in its numbers."""
    is_named = key.rank >= 2
    score = 1.5 if is_named else 0.5 * key.rank
    if not is_named and kind_of_name(key.column) == "quantity":
        score -= 0.5
    functions = key.functions.difference(key.aliases)
    score += 0.6 * min(3, len(functions)) + (0.6 if key.aliases else 0.0)
    usual_values = 0.5 * len(key.cells) ** 0.5
    score += float(np.clip(np.log10(key.distinct / usual_values), -1, 1))

    present = key.cells.drop_nulls()
    if present.dtype.is_float():
        present = present.drop_nans()
    sample = present.gather_every(max(1, len(present) // 50_000))
    if present.dtype.is_numeric():
        numbers = sample.cast(pl.Int64).to_numpy()
        ratio = collision_ratio(*np.unique(numbers, return_counts=True))
        if ratio > 3:
            score += 1.0
        elif ratio > 1.5:
            score += 0.5
        elif ratio < 1.3 and not functions and not is_named:
            score -= 1.5
        return score - 0.7 if is_round(numbers) else score

    if _share(sample.unique(maintain_order=True).head(200).cast(pl.String), _CODE) > 0.8:
        score += 0.7
    # How unequally values are used: the mean of squared counts by the square of their mean; 1 if
    # all are alike.
    counts = sample.unique_counts().to_numpy().astype(np.float64)
    mean = float(counts.mean())
    inequality = max(0.0, float((counts**2).mean()) - mean) / mean**2
    return score + 0.3 if inequality > 1.5 else score


def _likely_ids(columns: Columns, keys: Sequence[_Key]) -> list[_Key]:
    """The keys that are ids by their scores, of keys in this order: none if not even the first is one for sure."""
    if not keys or keys[0].score < _SURE:
        return []
    likely = [
        key for key in keys if key.score >= _LIKELY or (key.score > 0 and _once(keys[0], key))
    ]
    # So many columns cannot all be ids, and nothing tells which of them are.
    for rank in (0, 1):
        alike = [key for key in likely if key.rank == rank]
        if len(alike) > _MOST_ALIKE:
            likely = [key for key in likely if key.rank != rank]
    features = _numbered_features(columns)
    likely = [key for key in likely if key.column not in features]
    return likely if likely and likely[0].score >= _SURE else []


def _once(first: _Key, second: _Key) -> bool:
    """Whether pairs of values repeat far less often than by chance, as a user rates an item only once."""
    pairs = pl.DataFrame([first.cells, second.cells])
    random_pairs = pairs.with_columns(pl.col(second.column).shuffle(seed=0))
    repeats_by_chance = pairs.height - random_pairs.n_unique()
    repeats = pairs.height - pairs.n_unique()
    return repeats_by_chance > 30 and repeats < 0.3 * repeats_by_chance


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
    lean = _lean(columns, keys[0]) + (0.5 if keys[0].narrowness < 0.7 else -0.5)
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
    narrower = np.log((second.narrowness + 0.01) / (first.narrowness + 0.01))
    more_values = np.log(first.distinct / second.distinct)
    difference = _lean(columns, first) - _lean(columns, second)
    difference += float(np.clip(1.5 * narrower, -1.5, 1.5))
    difference += float(np.clip(0.3 * more_values, -0.5, 0.5))
    difference += 0.3 * float(np.sign(second.position - first.position))  # users first
    return difference


def _lean(columns: Columns, key: _Key) -> float:
    """Toward users (above 0) or items (below): by the key's name, what it determines, and the form of its values."""
    sign = {"user": 1.0, "item": -1.0, "context": 0.0}
    lean = 4.0 * sign[key.role]
    votes = sum(sign[role_of(name).role] for name in key.functions)
    lean += float(np.clip(0.5 * votes, -1.5, 1.5))
    lean -= 0.15 * len(key.functions)  # catalogues describe more than accounts do
    for name in key.functions:
        column = columns[name]
        if column.dtype == pl.String:
            texts = column.present.unique(maintain_order=True).head(200)
            if _share(texts, r"[|;,/]") > 0.3:
                lean -= 0.7
        elif column.dtype.is_float():
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


def _with_given(likely: Mapping[Who, _Key], given: Mapping[Who, _Key]) -> dict[Who, _Key]:
    """The ids that are given, and beside one of them another that is likely, on whichever side."""
    ids = dict(given)
    columns = [key.column for key in given.values()]
    others = {side: key for side, key in likely.items() if key.column not in columns}
    for side in sorted(others, key=lambda side: side in given):  # first those whose side is free
        other_side: Who = "item" if side == "user" else "user"
        ids.setdefault(other_side if side in given else side, others[side])
    return {side: ids[side] for side in SIDES if side in ids}

"""A simulated log of a film service, with planted interactions of known strength and every row's true probability.

It is used where no real data are available, to test models and explanations; its best possible
score is known. The true logit of a row is a bias, plus first-order effects, plus the planted
interactions. Each interaction is a table of random effects over the values of its fields, centred
along every axis (so that no single field shows it, if values are equally frequent) and scaled to a
given standard deviation. The tables are of rank 1 (age group and genre: 2), so embeddings of size 8
to 16 can represent all of them at once. For a film with several genres, the effect is the mean over
its genres, which mean pooling of a bag can represent exactly.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import product
from numbers import Integral
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise.errors import ConfigError

AGE_GROUPS = ("16-24", "25-34", "35-44", "45-54", "55+")
GENDERS = ("F", "M")
CITIES = ("Ashford", "Brightwell", "Calder", "Dunmore", "Eastmere", "Fenwick", "Glenholm", "Harrow")
GENRES = (
    "Action", "Animation", "Comedy", "Crime", "Documentary", "Drama",
    "Family", "Fantasy", "Horror", "Romance", "Science Fiction", "Thriller",
)  # fmt: skip
DECADES = ("1970s", "1980s", "1990s", "2000s", "2010s", "2020s")
DEVICES = ("phone", "tv", "tablet", "laptop")
DAYPARTS = ("night", "morning", "afternoon", "evening")  # hours 0-5, 6-11, 12-17, 18-23

PLANTED: dict[str, tuple[tuple[str, ...], tuple[int, ...], int]] = {
    "age_group_genres": (("age_group", "genres"), (len(AGE_GROUPS), len(GENRES)), 2),
    "gender_genres": (("gender", "genres"), (len(GENDERS), len(GENRES)), 1),
    "city_release_decade": (("city", "release_decade"), (len(CITIES), len(DECADES)), 1),
    # of the hour its quarter of the day
    "device_daypart": (("device", "hour"), (len(DEVICES), len(DAYPARTS)), 1),
    # a slope a device, on (length - 105) / 22
    "device_length": (("device", "length"), (len(DEVICES),), 1),
    "device_weekend_genres": (("device", "weekday", "genres"), (len(DEVICES), 2, len(GENRES)), 1),
}
"""By its name among `Strengths`, the columns of a planted interaction, and shape and rank of its table of effects."""


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """Standard deviations of the effects, in logits, over the values of their fields.

    The defaults put most of the strength into pairs of fields with few values, so that 100,000 rows
    are enough to learn them: a good model of pairs comes within .01 of the best possible AUC, one
    without interactions stays far below.

    Args:
        bias: the logit before all effects.
        user, item: each user's and each film's own effect; small, since a user has few rows.
        age_group to daypart: first order; `daypart` is the quarter of the day.
        length: first order, per standard deviation of film length.
        age_group_genres to device_length: pairs; `device_length` is a slope per device on the
            standardized length.
        device_weekend_genres: third order.
    """

    bias: float = -0.3
    user: float = 0.1
    item: float = 0.1
    age_group: float = 0.2
    gender: float = 0.1
    city: float = 0.2
    genres: float = 0.7
    release_decade: float = 0.5
    device: float = 0.3
    daypart: float = 0.4
    length: float = 0.3
    age_group_genres: float = 1.0
    gender_genres: float = 0.6
    city_release_decade: float = 0.7
    device_daypart: float = 0.6
    device_length: float = 0.5
    device_weekend_genres: float = 0.2

    def __post_init__(self) -> None:
        for setting in fields(self):
            strength = getattr(self, setting.name)
            if setting.name != "bias" and not strength >= 0:
                raise ConfigError(
                    f"a strength is a standard deviation, at least 0: {setting.name} is {strength}"
                )


def planted_tables(seed: int, strengths: Strengths | None = None) -> dict[str, np.ndarray]:
    """The tables of effects that `simulate(seed=seed)` adds, in logits, named as in `PLANTED`.

    Shape:
        age_group_genres [5, 12], gender_genres [2, 12], city_release_decade [8, 6],
        device_daypart [4, 4], device_length [4] (slopes), device_weekend_genres [4, 2, 12]
        (weekend second); axes in the order of the constants of this module.
    """
    rng = np.random.default_rng([seed, 1])
    strengths = strengths or Strengths()
    tables = {}
    for name, (_, shape, rank) in PLANTED.items():
        tables[name] = centred(rng, shape, getattr(strengths, name), rank)
    return tables


def centred(
    rng: np.random.Generator, shape: tuple[int, ...], std: float, rank: int = 1
) -> np.ndarray:
    """Effects of a given rank, with mean 0 along every axis and standard deviation `std`; zeros for a single value."""
    table = np.zeros(shape)
    for _ in range(rank):
        term = np.ones(())
        for size in shape:
            values = rng.normal(size=size)
            values = values - values.mean()
            term = np.multiply.outer(term, values / max(float(values.std()), 1e-12))
        table = table + term
    table_std = float(table.std())
    if table_std > 0 and min(shape) > 1:
        return table * (std / table_std)
    return np.zeros(shape)


def film_titles(count: int, rng: np.random.Generator) -> list[str]:
    """`count` different titles; beyond a stock of about 5,000 with "Part 2" and so on.

    >>> len(set(film_titles(20_000, np.random.default_rng(0))))
    20000
    """
    words = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    adjectives = words["adjectives"].split()
    nouns = words["nouns"].split()
    places = words["places"].split()
    stock = [f"The {adjective} {noun}" for adjective, noun in product(adjectives, nouns)]
    stock += [f"The {noun} of {place}" for noun, place in product(nouns, places)]
    stock += [f"{adjective} {place}" for adjective, place in product(adjectives, places)]
    half = product(adjectives[::2], nouns[::2])
    stock += [f"Goodbye, {adjective} {noun}" for adjective, noun in half]
    order = rng.permutation(len(stock))
    titles = []
    for k in range(count):
        part, position = divmod(k, len(stock))
        title = stock[order[position]]
        titles.append(f"{title}, Part {part + 1}" if part else title)
    return titles


_START_S = 1_767_571_200
"""Monday, 5 January 2026, 00:00 UTC."""
_DAYS = 91
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_WEIGHTS = np.array([1.0, 0.95, 0.95, 1.0, 1.25, 1.6, 1.5])
_HOUR_WEIGHTS = np.repeat([0.5, 0.8, 1.1, 1.6], 6)
"""By quarter of the day."""
_ZIPF_EXPONENT = 0.8
"""The popularity of the film of rank r is as r^-0.8."""
_HISTORY_LENGTH = 10
_MEAN_LENGTH_MINUTES = 105.0
_STD_LENGTH_MINUTES = 22.0


def simulate(
    rows: int = 120_000,
    *,
    users: int = 1_000,
    items: int = 400,
    seed: int = 0,
    strengths: Strengths | None = None,
) -> pl.DataFrame:
    """Simulate a log of films shown to users, and whether they liked them.

    Args:
        rows: number of rows, in order of time.
        users: number of users; activity is skewed (log-normal), some may have no row.
        items: number of films; popularity follows Zipf's law, some may have no row.
        seed: random seed; the same arguments give the same log on every machine.
        strengths: standard deviations of the effects, see `Strengths`.

    Returns:
        User: user_id, age_group, gender, city. Film: item_id, title, genres (1 to 3, joined by
        `|`), release_decade, length (minutes). Context: hour (0-23), weekday, device. Then history
        (up to 10 films that the user liked before this row, oldest first, joined by `|`), timestamp
        (seconds since 1970, increasing), liked (0 or 1, drawn with the true probability) and
        true_probability, which no model may use.

    >>> simulate(3, seed=1).select("user_id", "item_id", "liked").shape
    (3, 3)
    """
    _check_counts(rows=rows, users=users, items=items)
    strengths = strengths or Strengths()
    rng = np.random.default_rng([seed, 0])
    viewer_U3, activity = _users(users, rng)
    film, popularity = _films(items, rng)

    user = rng.choice(users, size=rows, p=activity)
    item = rng.choice(items, size=rows, p=popularity)
    device = rng.choice(len(DEVICES), size=rows, p=[0.35, 0.4, 0.1, 0.15])
    timestamp = _times(rows, rng)
    hour = (timestamp - _START_S) // 3600 % 24
    weekday = (timestamp - _START_S) // 86_400 % 7

    codes = {
        "age_group": viewer_U3[user, 0],
        "gender": viewer_U3[user, 1],
        "city": viewer_U3[user, 2],
        "item": item,
        "device": device,
        "daypart": hour // 6,
        "weekend": (weekday >= 5).astype(np.int64),
    }
    logit = _logit(codes, film, strengths, seed)
    user_effects = _effects(strengths.user, users, seed, 2)
    item_effects = _effects(strengths.item, items, seed, 3)
    logit += user_effects[user] + item_effects[item]
    probability = 1 / (1 + np.exp(-logit))
    liked = (rng.random(rows) < probability).astype(np.int8)

    context = {
        "hour": hour,
        "weekday": np.array(_WEEKDAYS)[weekday],
        "device": np.array(DEVICES)[device],
        "history": _history(user, film["item_id"].gather(item), liked),
        "timestamp": timestamp,
        "liked": liked,
        "true_probability": probability,
    }
    parts = [_user_table(viewer_U3)[user], film.drop("membership")[item], pl.DataFrame(context)]
    return pl.concat(parts, how="horizontal")


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, Integral) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, found {count!r}")


def _users(users: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Codes of age group, gender and city [U, 3], and activity [U] that sums to 1."""
    age = rng.choice(len(AGE_GROUPS), size=users, p=[0.22, 0.27, 0.21, 0.16, 0.14])
    gender = rng.choice(len(GENDERS), size=users, p=[0.48, 0.52])
    city = rng.choice(len(CITIES), size=users, p=np.array([8, 7, 6, 6, 5, 5, 4, 4]) / 45)
    activity = rng.lognormal(sigma=0.8, size=users)
    return np.stack([age, gender, city], axis=1), activity / activity.sum()


def _user_table(viewer_U3: np.ndarray) -> pl.DataFrame:
    """The users with their ids, from their codes."""
    columns = {
        "user_id": _ids("u", len(viewer_U3)),
        "age_group": np.array(AGE_GROUPS)[viewer_U3[:, 0]],
        "gender": np.array(GENDERS)[viewer_U3[:, 1]],
        "city": np.array(CITIES)[viewer_U3[:, 2]],
    }
    return pl.DataFrame(columns)


def _films(items: int, rng: np.random.Generator) -> tuple[pl.DataFrame, np.ndarray]:
    """The catalogue, with each film's share in each genre [12] as `membership`, and popularity [I] that sums to 1."""
    n_genres = rng.choice([1, 2, 3], size=items, p=[0.4, 0.4, 0.2])
    rank = rng.random((items, len(GENRES))).argsort(axis=1).argsort(axis=1)
    membership = (rank < n_genres[:, None]) / n_genres[:, None]
    chosen = []
    for genre, is_member in zip(GENRES, membership.T > 0, strict=True):
        chosen.append(pl.Series([genre if member else None for member in is_member]))
    length = np.clip(
        rng.normal(_MEAN_LENGTH_MINUTES, _STD_LENGTH_MINUTES, size=items).round(), 60, 200
    )
    decade = rng.choice(len(DECADES), size=items, p=[0.1, 0.13, 0.17, 0.2, 0.22, 0.18])
    film = {
        "item_id": _ids("m", items),
        "title": film_titles(items, rng),
        "genres": pl.select(pl.concat_str(chosen, separator="|", ignore_nulls=True)).to_series(),
        "release_decade": np.array(DECADES)[decade],
        "length": length.astype(np.int64),
        "membership": membership,
    }
    popularity = rng.permutation(np.arange(1, items + 1) ** -_ZIPF_EXPONENT)
    return pl.DataFrame(film), popularity / popularity.sum()


def _times(rows: int, rng: np.random.Generator) -> np.ndarray:
    """Seconds since 1970, each greater than the last, over 13 weeks with busy evenings and weekends."""
    weights = np.outer(np.resize(_DAY_WEIGHTS, _DAYS), _HOUR_WEIGHTS).reshape(-1)
    hours = rng.choice(_DAYS * 24, size=rows, p=weights / weights.sum())
    seconds = np.sort(hours * 3600 + rng.integers(0, 3600, size=rows))
    row = np.arange(rows)
    return np.asarray(_START_S + np.maximum.accumulate(seconds - row) + row, dtype=np.int64)


def _logit(
    codes: Mapping[str, np.ndarray], film: pl.DataFrame, strengths: Strengths, seed: int
) -> np.ndarray:
    """The part of each row's logit that depends on the codes [N] of its fields' values, and on its film."""
    tables = planted_tables(seed, strengths)
    item = codes["item"]
    membership_GI = film["membership"].to_numpy().T
    codes_of_decades = dict(zip(DECADES, range(len(DECADES)), strict=True))
    decade = film["release_decade"].replace_strict(codes_of_decades).to_numpy()[item]
    length = ((film["length"].to_numpy() - _MEAN_LENGTH_MINUTES) / _STD_LENGTH_MINUTES)[item]
    rng = np.random.default_rng([seed, 4])
    values = {
        "age_group": AGE_GROUPS,
        "gender": GENDERS,
        "city": CITIES,
        "genres": GENRES,
        "release_decade": DECADES,
        "device": DEVICES,
        "daypart": DAYPARTS,
    }
    first = {}
    for name, names_of_values in values.items():
        first[name] = centred(rng, (len(names_of_values),), getattr(strengths, name))
    logit: np.ndarray = strengths.bias - strengths.length * length
    logit = logit + first["age_group"][codes["age_group"]] + first["gender"][codes["gender"]]
    logit += first["city"][codes["city"]]
    logit += (first["genres"] @ membership_GI)[item] + first["release_decade"][decade]
    logit += first["device"][codes["device"]] + first["daypart"][codes["daypart"]]
    logit += (tables["age_group_genres"] @ membership_GI)[codes["age_group"], item]
    logit += (tables["gender_genres"] @ membership_GI)[codes["gender"], item]
    logit += tables["city_release_decade"][codes["city"], decade]
    logit += tables["device_daypart"][codes["device"], codes["daypart"]]
    logit += tables["device_length"][codes["device"]] * length
    logit += (tables["device_weekend_genres"] @ membership_GI)[
        codes["device"], codes["weekend"], item
    ]
    return logit


def _effects(std: float, count: int, seed: int, stream: int) -> np.ndarray:
    """Each user's or film's own effect [count]."""
    return np.random.default_rng([seed, stream]).normal(scale=std, size=count)


def _history(user: np.ndarray, item_id: pl.Series, liked: np.ndarray) -> pl.Series:
    """The latest films that each row's user liked in earlier rows; rows are in order of time."""
    order = np.argsort(user, kind="stable")  # by user, and by time within
    likes = liked[order].astype(np.int64)
    likes_before = np.cumsum(likes) - likes
    first_row_of_user = np.searchsorted(user[order], user[order], side="left")
    likes_before_user = likes_before[first_row_of_user]
    liked_items = item_id.gather(order[likes == 1])
    columns = []
    for back in range(_HISTORY_LENGTH, 0, -1):
        position = likes_before - back
        is_of_another = position < likes_before_user
        columns.append(liked_items.gather(pl.Series(position).set(pl.Series(is_of_another), None)))
    joined = pl.select(pl.concat_str(columns, separator="|", ignore_nulls=True)).to_series()
    return joined.gather(np.argsort(order))


def _ids(letter: str, count: int) -> list[str]:
    """Ids `u0001` and so on, of one width."""
    width = max(4, len(str(count)))
    return [f"{letter}{k:0{width}d}" for k in range(1, count + 1)]

"""A simulated log of a film service, with planted interactions and every row's true probability.

It is used where no real data are available, and its best possible score is known.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.read.simulated import planted as p
from fieldwise.data.read.simulated.names import film_titles
from fieldwise.data.read.simulated.planted import Strengths, planted_interactions, planted_tables
from fieldwise.errors import ConfigError

__all__ = ["Strengths", "planted_interactions", "planted_tables", "simulate"]

_START = 1_767_571_200  # Monday, 5 January 2026, 00:00 UTC
_DAYS = 91
_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY_WEIGHTS = np.array([1.0, 0.95, 0.95, 1.0, 1.25, 1.6, 1.5])
_HOUR_WEIGHTS = np.repeat([0.5, 0.8, 1.1, 1.6], 6)  # by quarter of the day
_ZIPF = 0.8  # popularity of the film of rank r is as r^-0.8
_HISTORY = 10
_MEAN_LENGTH, _LENGTH_STD = 105.0, 22.0  # minutes


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
        strengths: standard deviations of the effects; see `fieldwise.data.read.simulated.planted`.

    Returns:
        User: user_id, age_group, gender, city. Film: item_id, title, genres (1 to 3, joined by `|`), release_decade,
        length (minutes). Context: hour (0-23), weekday, device. Then history (up to 10 films that the user liked before
        this row, oldest first, joined by `|`), timestamp (seconds since 1970, increasing), liked (0 or 1, drawn with
        the true probability) and true_probability, which no model may use.

    >>> simulate(3, seed=1).select("user_id", "item_id", "liked").shape
    (3, 3)
    """
    for name, count in (("rows", rows), ("users", users), ("items", items)):
        if count < 1:
            raise ConfigError(f"{name} must be at least 1, found {count}")
    strengths = strengths or Strengths()
    rng = np.random.default_rng([seed, 0])
    shown = _shown(rows, users, items, rng)
    logit = _logit(shown, strengths, seed)
    logit += _own(strengths.user, users, seed, 2)[shown.user] + _own(strengths.item, items, seed, 3)[shown.item]
    probability = 1 / (1 + np.exp(-logit))
    liked = (rng.random(rows) < probability).astype(np.int8)
    return _table(shown, liked, probability)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Shown:
    """Which film each row shows to which user, when and on which device.

    Args:
        viewer: codes of each user's age group, gender and city, [U, 3].
        film: the catalogue, with each film's share in each genre as `membership`.
        user: the user of each row, [N].
        item: its film, [N].
        device: its device, [N].
        timestamp: its time, [N].
    """

    viewer: np.ndarray
    film: pl.DataFrame
    user: np.ndarray
    item: np.ndarray
    device: np.ndarray
    timestamp: np.ndarray


def _shown(rows: int, users: int, items: int, rng: np.random.Generator) -> _Shown:
    viewer, user_weights = _users(users, rng)
    film, item_weights = _films(items, rng)
    return _Shown(
        viewer=viewer,
        film=film,
        user=rng.choice(users, size=rows, p=user_weights),
        item=rng.choice(items, size=rows, p=item_weights),
        device=rng.choice(len(p.DEVICES), size=rows, p=[0.35, 0.4, 0.1, 0.15]),
        timestamp=_times(rows, rng),
    )


def _table(shown: _Shown, liked: np.ndarray, probability: np.ndarray) -> pl.DataFrame:
    """The log: columns of the user, the film and the context."""
    about_user = pl.DataFrame(
        {
            "user_id": _ids("u", len(shown.viewer)),
            "age_group": np.array(p.AGE_GROUPS)[shown.viewer[:, 0]],
            "gender": np.array(p.GENDERS)[shown.viewer[:, 1]],
            "city": np.array(p.CITIES)[shown.viewer[:, 2]],
        }
    )
    hour, weekday = _clock(shown.timestamp)
    context = pl.DataFrame(
        {
            "hour": hour,
            "weekday": np.array(_WEEKDAYS)[weekday],
            "device": np.array(p.DEVICES)[shown.device],
            "history": _history(shown.user, shown.film["item_id"].gather(shown.item), liked),
            "timestamp": shown.timestamp,
            "liked": liked,
            "true_probability": probability,
        }
    )
    about_film = shown.film.drop("membership")[shown.item]
    return pl.concat([about_user[shown.user], about_film, context], how="horizontal")


def _users(users: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Codes of age group, gender and city [U, 3], and activity [U] that sums to 1."""
    age = rng.choice(len(p.AGE_GROUPS), size=users, p=[0.22, 0.27, 0.21, 0.16, 0.14])
    gender = rng.choice(len(p.GENDERS), size=users, p=[0.48, 0.52])
    city = rng.choice(len(p.CITIES), size=users, p=np.array([8, 7, 6, 6, 5, 5, 4, 4]) / 45)
    activity = rng.lognormal(sigma=0.8, size=users)
    return np.stack([age, gender, city], axis=1), activity / activity.sum()


def _films(items: int, rng: np.random.Generator) -> tuple[pl.DataFrame, np.ndarray]:
    """The catalogue, with each film's share in each genre [12] as `membership`, and popularity [I] that sums to 1."""
    number = rng.choice([1, 2, 3], size=items, p=[0.4, 0.4, 0.2])
    place = rng.random((items, len(p.GENRES))).argsort(axis=1).argsort(axis=1)
    membership = (place < number[:, None]) / number[:, None]
    chosen = [
        pl.Series([g if has else None for has in column]) for g, column in zip(p.GENRES, membership.T > 0, strict=True)
    ]
    length = np.clip(rng.normal(_MEAN_LENGTH, _LENGTH_STD, size=items).round(), 60, 200)
    decade = rng.choice(len(p.DECADES), size=items, p=[0.1, 0.13, 0.17, 0.2, 0.22, 0.18])
    film = pl.DataFrame(
        {
            "item_id": _ids("m", items),
            "title": film_titles(items, rng),
            "genres": pl.select(pl.concat_str(chosen, separator="|", ignore_nulls=True)).to_series(),
            "release_decade": np.array(p.DECADES)[decade],
            "length": length.astype(np.int64),
            "membership": membership,
        }
    )
    popularity = rng.permutation(np.arange(1, items + 1) ** -_ZIPF)
    return film, popularity / popularity.sum()


def _times(rows: int, rng: np.random.Generator) -> np.ndarray:
    """Seconds since 1970, each greater than the last, over 13 weeks with busy evenings and weekends."""
    weights = np.outer(np.resize(_DAY_WEIGHTS, _DAYS), _HOUR_WEIGHTS).reshape(-1)
    hours = rng.choice(_DAYS * 24, size=rows, p=weights / weights.sum())
    seconds = np.sort(hours * 3600 + rng.integers(0, 3600, size=rows))
    place = np.arange(rows)
    return np.asarray(_START + np.maximum.accumulate(seconds - place) + place, dtype=np.int64)


def _clock(timestamp: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Hour of the day and day of the week (Monday 0)."""
    elapsed = timestamp - _START
    return elapsed // 3600 % 24, elapsed // 86_400 % 7


def _logit(shown: _Shown, strengths: Strengths, seed: int) -> np.ndarray:
    """The part of each row's logit that depends on the fields' values, without the user's and the film's effects."""
    tables = planted_tables(seed, strengths)
    film, item, device = shown.film, shown.item, shown.device
    age, gender, city = shown.viewer[shown.user].T
    hour, weekday = _clock(shown.timestamp)
    daypart, weekend = hour // 6, (weekday >= 5).astype(np.int64)
    membership_GI = film["membership"].to_numpy().T
    decade = (
        film["release_decade"].replace_strict(dict(zip(p.DECADES, range(len(p.DECADES)), strict=True))).to_numpy()[item]
    )
    length = ((film["length"].to_numpy() - _MEAN_LENGTH) / _LENGTH_STD)[item]
    rng = np.random.default_rng([seed, 4])
    first = {
        name: p.centred(rng, (len(values),), getattr(strengths, name))
        for name, values in (
            ("age_group", p.AGE_GROUPS), ("gender", p.GENDERS), ("city", p.CITIES), ("genres", p.GENRES),
            ("release_decade", p.DECADES), ("device", p.DEVICES), ("daypart", p.DAYPARTS),
        )
    }  # fmt: skip
    logit: np.ndarray = strengths.bias - strengths.length * length
    logit = logit + first["age_group"][age] + first["gender"][gender] + first["city"][city]
    logit += (first["genres"] @ membership_GI)[item] + first["release_decade"][decade]
    logit += first["device"][device] + first["daypart"][daypart]
    logit += (tables["age_group_genres"] @ membership_GI)[age, item]
    logit += (tables["gender_genres"] @ membership_GI)[gender, item]
    logit += tables["city_release_decade"][city, decade]
    logit += tables["device_daypart"][device, daypart]
    logit += tables["device_length"][device] * length
    logit += (tables["device_weekend_genres"] @ membership_GI)[device, weekend, item]
    return logit


def _own(std: float, count: int, seed: int, stream: int) -> np.ndarray:
    """Each user's or film's own effect [count]."""
    return np.random.default_rng([seed, stream]).normal(scale=std, size=count)


def _history(user: np.ndarray, item_id: pl.Series, liked: np.ndarray) -> pl.Series:
    """The latest films that each row's user liked in earlier rows; rows are in order of time."""
    order = np.argsort(user, kind="stable")  # by user, and by time within
    likes = liked[order].astype(np.int64)
    before = np.cumsum(likes) - likes  # likes of all earlier rows in this order
    first = np.searchsorted(user[order], user[order], side="left")
    start = before[first]  # likes before the user's first row
    catalogue = item_id.gather(order[likes == 1])
    columns = []
    for back in range(_HISTORY, 0, -1):
        place = before - back
        inside = place >= start
        columns.append(catalogue.gather(pl.Series(place).set(pl.Series(~inside), None)))
    joined = pl.select(pl.concat_str(columns, separator="|", ignore_nulls=True)).to_series()
    return joined.gather(np.argsort(order))


def _ids(letter: str, count: int) -> list[str]:
    width = max(4, len(str(count)))
    return [f"{letter}{k:0{width}d}" for k in range(1, count + 1)]

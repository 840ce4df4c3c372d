"""The effects planted in the simulated log, of known strength, to test models and explanations.

The true logit of a row is a bias, plus first-order effects, plus the planted interactions below. Each interaction is a
table of random effects over the values of its fields, centred along every axis (so that no single field shows it,
if values are equally frequent) and scaled to a given standard deviation. The tables are of rank 1 (age group and
genre: 2), so embeddings of size 8 to 16 can represent all of them at once. For a film with several genres, the effect
is the mean over its genres, which mean pooling of a bag can represent exactly.
"""

from dataclasses import dataclass, fields

import numpy as np

from fieldwise.errors import ConfigError

__all__ = [
    "AGE_GROUPS",
    "CITIES",
    "DAYPARTS",
    "DECADES",
    "DEVICES",
    "GENDERS",
    "GENRES",
    "PlantedInteraction",
    "Strengths",
    "planted_interactions",
    "planted_tables",
]

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

_RANK = {"age_group_genres": 2}


@dataclass(frozen=True, kw_only=True)
class Strengths:
    """Standard deviations of the effects, in logits, over the values of their fields.

    The defaults put most of the strength into pairs of fields with few values, so that 100,000 rows are enough to learn
    them: a good model of pairs comes within .01 of the best possible AUC, one without interactions stays far below.

    Args:
        bias: the logit before all effects.
        user: each user's own effect; small, since a user has few rows.
        item: each film's own effect.
        age_group: first order.
        gender: first order.
        city: first order.
        genres: first order.
        release_decade: first order.
        device: first order.
        daypart: first order, of the quarter of the day.
        length: first order, per standard deviation of film length.
        age_group_genres: pair.
        gender_genres: pair.
        city_release_decade: pair.
        device_daypart: pair.
        device_length: pair; a slope per device on the standardized length.
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
        for f in fields(self):
            if f.name != "bias" and not getattr(self, f.name) >= 0:
                raise ConfigError(
                    f"a strength is a standard deviation, at least 0: {f.name} is {getattr(self, f.name)}"
                )


@dataclass(frozen=True, kw_only=True)
class PlantedInteraction:
    """A planted interaction: `fields` are its columns, `std` its strength in logits over its table's cells."""

    name: str
    fields: tuple[str, ...]
    std: float
    note: str = ""

    @property
    def order(self) -> int:
        """The number of its fields."""
        return len(self.fields)


def planted_interactions(strengths: Strengths | None = None) -> tuple[PlantedInteraction, ...]:
    """The interactions that `simulate` plants, each also the name of a table of `planted_tables`.

    >>> [p.fields for p in planted_interactions() if p.order == 3]
    [('device', 'weekday', 'genres')]
    """
    s = strengths or Strengths()
    several = "mean over the film's genres"
    return (
        _planted(s, "age_group_genres", ("age_group", "genres"), several),
        _planted(s, "gender_genres", ("gender", "genres"), several),
        _planted(s, "city_release_decade", ("city", "release_decade")),
        _planted(
            s, "device_daypart", ("device", "hour"), "of the hour its quarter of the day: 0-5, 6-11, 12-17, 18-23"
        ),
        _planted(s, "device_length", ("device", "length"), "a slope a device, on (length - 105) / 22"),
        _planted(
            s,
            "device_weekend_genres",
            ("device", "weekday", "genres"),
            f"Saturday and Sunday, or other days; {several}",
        ),
    )


def planted_tables(seed: int, strengths: Strengths | None = None) -> dict[str, np.ndarray]:
    """The tables of effects that `simulate(seed=seed)` adds, in logits, named as in `planted_interactions`.

    Shape:
        age_group_genres [5, 12], gender_genres [2, 12], city_release_decade [8, 6], device_daypart [4, 4],
        device_length [4] (slopes), device_weekend_genres [4, 2, 12] (weekend second); axes in the order of the
        constants of this module.
    """
    shapes = (
        (len(AGE_GROUPS), len(GENRES)),
        (len(GENDERS), len(GENRES)),
        (len(CITIES), len(DECADES)),
        (len(DEVICES), len(DAYPARTS)),
        (len(DEVICES),),
        (len(DEVICES), 2, len(GENRES)),
    )
    rng = np.random.default_rng([seed, 1])
    planted = planted_interactions(strengths)
    return {p.name: centred(rng, shape, p.std, _RANK.get(p.name, 1)) for p, shape in zip(planted, shapes, strict=True)}


def centred(rng: np.random.Generator, shape: tuple[int, ...], std: float, rank: int = 1) -> np.ndarray:
    """Effects of a given rank, with mean 0 along every axis and standard deviation `std`; zeros for a single value."""
    table = np.zeros(shape)
    for _ in range(rank):
        term = np.ones(())
        for size in shape:
            values = rng.normal(size=size)
            values = values - values.mean()
            term = np.multiply.outer(term, values / max(float(values.std()), 1e-12))
        table = table + term
    spread = float(table.std())
    return table * (std / spread) if spread > 0 and min(shape) > 1 else np.zeros(shape)


def _planted(strengths: Strengths, name: str, columns: tuple[str, ...], note: str = "") -> PlantedInteraction:
    return PlantedInteraction(name=name, fields=columns, std=float(getattr(strengths, name)), note=note)

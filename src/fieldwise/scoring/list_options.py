"""Length and rules of users' lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from fieldwise.errors import ConfigError
from fieldwise.scoring import EXCLUDE_SEEN, Seen


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 1, of Python or NumPy."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Length and rules of users' lists, by the arguments of `fieldwise.scoring.recommend.recommend`.

    Errors:
        ConfigError: an n that is no whole number of at least 1, or another `exclude_seen`.
    """

    n: int = 10
    exclude_seen: Seen = EXCLUDE_SEEN
    limits: Mapping[str, int] = field(default_factory=dict)
    pinned: Mapping[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_count(self.n):
            raise ConfigError(f"n must be a whole number of at least 1, found {self.n!r}")
        if not isinstance(self.exclude_seen, bool) and self.exclude_seen != "positive":
            raise ConfigError(
                f"exclude_seen must be 'positive', True or False, found {self.exclude_seen!r}"
            )

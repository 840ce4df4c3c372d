"""Length and rules of users' lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fieldwise.errors import ConfigError
from fieldwise.scoring import EXCLUDE_SEEN, Seen


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """Length and rules of users' lists, by the arguments of `fieldwise.scoring.recommend.recommend`.

    Errors:
        ConfigError: an n below 1, or another `exclude_seen`.
    """

    n: int = 10
    exclude_seen: Seen = EXCLUDE_SEEN
    limits: Mapping[str, int] = field(default_factory=dict)
    pinned: Mapping[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"n must be at least 1, found {self.n}")
        if not isinstance(self.exclude_seen, bool) and self.exclude_seen != "positive":
            raise ConfigError(
                f"exclude_seen must be 'positive', True or False, found {self.exclude_seen!r}"
            )

"""Settings of the ranking evaluation, and what it needs of a schema."""

from dataclasses import dataclass

from fieldwise.errors import ConfigError
from fieldwise.schema import Schema

__all__ = ["RankingSettings", "check_ranking"]


@dataclass(frozen=True, kw_only=True)
class RankingSettings:
    """Settings of the ranking evaluation.

    Args:
        candidates: number of sampled items per user, besides the test positives, none of them liked; None: all items.
        users: maximum number of users, sampled; None: all.
        user: column of user ids, if not the schema's (`fieldwise.schema.ids`).
        item: column of item ids, likewise.
        keep_seen: also rank items that the user liked in training or validation rows.
        seed: seed for sampling users and items, and for the order of equal scores.
    """

    candidates: int | None = None
    users: int | None = 1000
    user: str | None = None
    item: str | None = None
    keep_seen: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("candidates", "users"):
            found = getattr(self, name)
            if found is not None and found < 1:
                raise ConfigError(f"ranking: {name} must be at least 1, found {found}")


def check_ranking(schema: Schema) -> None:
    """Check, before any work, that a schema allows ranking.

    Errors:
        ConfigError: the main label is not binary, or all fields are of items, or none is.
    """
    if schema.label.task != "binary":
        raise ConfigError(
            f"ranking needs a binary label, but {schema.label.name!r} is a number: give it "
            "a rule (positive_above), or omit --ranking"
        )
    own = {f.column for f in schema.with_role("item")}
    if not own or own == set(schema.columns):
        side = "user or context" if own else "item"
        raise ConfigError(
            f"ranking needs fields of items and of users or contexts, but no field of the schema has the role {side}: "
            "set the fields' roles, or omit --ranking"
        )

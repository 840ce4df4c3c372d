"""The check that all processes of a training were given the same."""

from collections.abc import Iterator, Mapping
from typing import Any

from fieldwise.distributed.world import World
from fieldwise.errors import ConfigError

__all__ = ["check_agreement", "differences"]

MOST_LETTERS = 40


def check_agreement(world: World, facts: Mapping[str, Any]) -> None:
    """Check that all processes have the facts of process 0.

    Args:
        world: the processes.
        facts: nested plain values: settings, digests of rows, versions.

    Errors:
        ConfigError: in all processes; it names the first that differs, and what does.
    """
    every = world.every(facts)
    for rank, own in enumerate(every):
        if found := differences(every[0], own):
            name, first, other = found[0]
            more = f", and {len(found) - 1} more differ" if len(found) > 1 else ""
            raise ConfigError(
                f"all {world.size} processes must train with the same settings, rows and versions, but process {rank} "
                f"has {name} {other} where process 0 has {first}{more}: start all of them with the same recipe, files "
                "and version"
            )


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Where nested plain values differ: the path, and both values as words.

    >>> differences({"training": {"epochs": 3}}, {"training": {"epochs": 4}, "seed": 1})
    [('training.epochs', '3', '4'), ('seed', 'not set', '1')]
    """
    old, new = dict(_leaves(before)), dict(_leaves(now))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return [(name, _word(old, name), _word(new, name)) for name in names]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested plain values by path; lists are leaves."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def _word(values: Mapping[str, Any], name: str) -> str:
    text = str(values[name]) if name in values else "not set"
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."

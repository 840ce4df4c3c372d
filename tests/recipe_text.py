"""The text of a recipe for a log of one's own, as the tests of commands write it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TEXT = """
[data]
path = "{log}"
[split]
kind = "{split}"
valid = 0.2
test = 0.2
[schema]
{schema}
label = {{ column = "click" }}
fields = [
{fields}
]
[model]
{model}
[training]
{training}
"""


def recipe_text(
    log: Path,
    fields: Sequence[tuple[str, str, str]],
    *,
    model: Mapping[str, Any],
    training: Mapping[str, Any],
    schema: str = "",
    split: str = "random",
) -> str:
    """A recipe in TOML.

    Args:
        log: its table, with the label `click`.
        fields: kind, name and role of each.
        model: its settings.
        training: its settings.
        schema: further lines of the schema.
        split: its kind.
    """
    rows = (
        f'    {{ kind = "{kind}", name = "{name}", role = "{role}" }},'
        for kind, name, role in fields
    )
    return TEXT.format(
        log=log,
        split=split,
        schema=schema,
        fields="\n".join(rows),
        model=_lines(model),
        training=_lines(training),
    )


def _lines(settings: Mapping[str, Any]) -> str:
    return "\n".join(
        f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"
        for key, value in settings.items()
    )

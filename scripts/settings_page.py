"""Writes docs/settings.md: every setting of a recipe with its type, default and meaning, as the code has them.

And the table of models in docs/models/README.md: names, papers, and what a model adds, as its page
says.

python scripts/settings_page.py            # write it; tests fail while it is not what this would
write python scripts/settings_page.py --print
"""

import argparse
import dataclasses
import json
import re
import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from fieldwise.data.prepare.settings import (
    HistorySettings,
    NegativeSampling,
    SplitSettings,
    TargetEncoding,
)
from fieldwise.features import Feature, Hour, Rate
from fieldwise.models import NETWORKS, ModelSettings
from fieldwise.runs.data_settings import DataSettings
from fieldwise.runs.recipe import Recipe
from fieldwise.schema import Bag, Categorical, Label, Schema
from fieldwise.schema.fields import Field
from fieldwise.schema.label import Scalar
from fieldwise.storage.files import write_atomically
from fieldwise.training.settings import TrainingSettings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "settings.md"
MODELS_PAGE = ROOT / "docs" / "models" / "README.md"
TABLE = re.compile(r"^\| name in recipes .*\n(?:\|.*\n)+", re.M)
HEAD = """# Settings and their defaults

Every setting of a [recipe](training.md), by the table of the recipe's file. `--set training.epochs=3` changes
one on the command line; in Python the same names are arguments of the classes. A setting that is not given has its
default; *none* means that there is no default, or that the rule in the column "meaning" applies.{defaults}

Written from the code by `python scripts/settings_page.py`; do not edit.
"""
DEFAULTS = " The rules by which defaults follow from the data are in [Defaults](defaults.md)."
COMMON = {
    "embedding_dim": "numbers in each category's vector",
    "embedding_std": "standard deviation of these vectors' initial values",
    "hidden": "units of each layer of the MLP, or of both towers",
    "mlp_dropout": "share of the MLP's hidden units dropped in training",
    "batch_norm": "whether batch normalization follows each linear layer of the MLP or the towers",
}
ENTRY = re.compile(r"^        (\w+): (.*)$")
WORDS = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    type(None): "left out",
}
TOP = ("seed", "data_seed", "warm_start", "benchmark", "protocol")


def meanings(kind: type) -> dict[str, str]:
    """The text on each setting in the section Args of a class's docstring."""
    results: dict[str, str] = {}
    name = ""
    inside = False
    for line in (kind.__doc__ or "").splitlines():
        if not line.startswith("        "):
            inside = line.strip() == "Args:" or (inside and not line.strip())
            continue
        if not inside:
            continue
        entry = ENTRY.match(line)
        if entry:
            name = entry[1]
            results[name] = entry[2]
        elif name:
            results[name] += " " + line.strip()
    return results


def type_words(kind: Any) -> str:
    """A type in the words of TOML.

    >>> type_words(int | None), type_words(tuple[str, ...]), type_words(Literal["a", "b"])
    ('whole number', 'list of text', '`a`, `b`')
    """
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(
            dict.fromkeys(type_words(one) for one in arguments if one is not type(None))
        )
    if kind == tuple[Scalar, ...]:
        return "list of values"
    if origin is tuple:
        different = list(dict.fromkeys(type_words(one) for one in arguments if one is not Ellipsis))
        return f"list of {' or '.join(different)}"
    if origin is dict:
        return f"table of {type_words(arguments[1])}"
    return WORDS.get(kind, "table")


def default_words(field: "dataclasses.Field[Any]") -> str:
    """A default as TOML has it."""
    if field.default_factory is not dataclasses.MISSING:
        made = field.default_factory()
        return (
            "`{}`"
            if made == {}
            else f"`kind = {made.kind!r}`".replace("'", '"')
            if hasattr(made, "kind")
            else "own"
        )
    if field.default is dataclasses.MISSING:
        return "required"
    return "*none*" if field.default is None else code(field.default)


def code(value: Any) -> str:
    """A value as TOML has it, as code; a bar would end a table's cell.

    >>> code((400, 400)), code(True), code("|")
    ('`[400, 400]`', '`true`', '<code>"&#124;"</code>')
    """
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, tuple):
        text = json.dumps(value)
    else:
        text = f'"{value}"' if isinstance(value, str) else f"{value!r}"
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def table(kind: type, names: tuple[str, ...] | None = None) -> list[str]:
    """A class's settings, one a row."""
    hints = get_type_hints(kind, localns={"ModelSettings": ModelSettings})
    # said once there
    said = (
        {**meanings(Bag), **meanings(Categorical)}
        if kind in set(get_args(Field)) - {Categorical}
        else {}
    )
    for base in reversed(kind.__mro__):
        said |= meanings(base)
    rows = ["| setting | type | default | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        is_given_kind = field.name == "kind" and len(get_args(hints["kind"])) == 1  # by the heading
        if field.name == "_" or is_given_kind or (names is not None and field.name not in names):
            continue
        meaning = said.get(field.name, "").replace("|", "&#124;")
        shown = meaning[:1].upper() + meaning[1:] if not meaning.startswith("`") else meaning
        words = type_words(hints[field.name])
        if "choices" in field.metadata:
            words = ", ".join(f"`{choice}`" for choice in field.metadata["choices"]())
        cells = f"`{field.name}`", words, default_words(field), shown
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def summary(kind: type) -> str:
    """The first paragraph of a docstring."""
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def chapter(title: str, kind: type, names: tuple[str, ...] | None = None) -> list[str]:
    """A heading, what the class is, its settings."""
    return ["", title, "", summary(kind), "", *table(kind, names)]


def features() -> list[str]:
    """The kinds of features, and their settings; a rate has all that others of events have."""
    return [
        "",
        "## `[[features]]`",
        "",
        "A column as of each row's time ([page](how-to/as-of-their-time.md)). `kind` is one of these:",
        "",
        *(f"- `{kind.kind}`: {summary(kind)}" for kind in get_args(Feature)),
        "",
        *table(Rate),
        *table(Hour, ("time_zone",))[2:],
    ]


def models() -> list[str]:
    """The settings that most models have."""
    return [
        "",
        "## `[model]`",
        "",
        "`name` selects the model; the other keys are its settings. Most models have these; a model's other settings,",
        "and all of its defaults, are on its [page](models/README.md).",
        "",
        *(f"- `{name}`: {meaning}" for name, meaning in COMMON.items()),
    ]


def model_defaults(settings: type) -> list[str]:
    """A model's own defaults of the settings that most models have, as cells of a table."""
    fields = {field.name: field for field in dataclasses.fields(settings)}
    return [default_words(fields[name]) if name in fields else "-" for name in COMMON]


def paper(settings: type) -> str:
    """A model's paper, as the first sentence of its file says."""
    first = (sys.modules[settings.__module__].__doc__ or "").splitlines()[0]
    result = re.search(r"\(([^()]* \d{4}[^()]*)\)", first)
    return result[1] if result else "-"


def models_page() -> str:
    """The page of all models, with their table: one row each, and its defaults of the settings that most have."""
    common = [f"`{name}`" for name in COMMON]
    rows = [
        f"| name in recipes | model | what it adds | paper | {' | '.join(common)} |",
        f"|---|---|---|---|{'---|' * len(common)}",
    ]
    for name, settings in NETWORKS.items():
        file = MODELS_PAGE.with_name(f"{name.removesuffix('+')}.md")
        title, _, adds = file.read_text("utf-8").split("\n")[:3]
        link = f"[{title.removeprefix('# ')}]({file.name})"
        cells = f"`{name}`", link, adds.strip("*"), paper(settings), *model_defaults(settings)
        rows.append(f"| {' | '.join(cells)} |")
    return TABLE.sub(lambda _: "\n".join([*rows, ""]), MODELS_PAGE.read_text("utf-8"))


def page() -> str:
    """The whole page."""
    defaults = DEFAULTS if (ROOT / "docs" / "defaults.md").exists() else ""
    lines = [HEAD.format(defaults=defaults).rstrip()]
    lines += chapter("## Top of the file", Recipe, TOP)
    lines += chapter("## `[data]`", DataSettings)
    lines += chapter("## `[schema]`", Schema)
    lines += chapter("### `label`", Label)
    for kind in get_args(Field):
        lines += chapter(f'### `fields` of `kind = "{kind.kind}"`', kind)
    for split in get_args(SplitSettings):
        lines += chapter(f'## `[split]` of `kind = "{split.kind}"`', split)
    lines += chapter("## `[negatives]`", NegativeSampling)
    lines += chapter("## `[history]`", HistorySettings)
    lines += chapter("## `[target_encoding]`", TargetEncoding)
    lines += features()
    lines += chapter("## `[training]`", TrainingSettings)
    lines += models()
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write both, or print the first."""
    parser = argparse.ArgumentParser(prog="python scripts/settings_page.py", description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the page, write nothing")
    if parser.parse_args().print:
        print(page(), end="")
    else:
        write_atomically(PAGE, page().encode())
        write_atomically(MODELS_PAGE, models_page().encode())


if __name__ == "__main__":
    main()

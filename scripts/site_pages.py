"""Pages of the site that are made while it is built: the reference, from the code, and two of the repository's files.

So is the models' part of the navigation.

A hook of MkDocs (`hooks` in mkdocs.yml): nothing that it makes is written below docs/.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import fieldwise
from fieldwise.cli.app import app
from fieldwise.models import NETWORKS

ROOT = Path(__file__).resolve().parents[1]

# The public names by the module that defines them, in the page's order; a module that is not here
# fails the build.
GROUPS = {
    "A model of your own table": (
        "fieldwise.auditing.run",
        "fieldwise.automatic.run",
        "fieldwise.estimator.recommender",
        "fieldwise.bundle.bundle",
        "fieldwise.scoring.recommend",
    ),
    "What columns mean": (
        "fieldwise.schema.schema",
        "fieldwise.schema.fields",
        "fieldwise.schema.label",
        "fieldwise.data.infer.schema",
    ),
    "Tables, splits, negatives": (
        "fieldwise.data.read.tables",
        "fieldwise.data.prepare.settings",
        "fieldwise.data.read.simulation",
        "fieldwise.data.encode.encoder",
        "fieldwise.layout",
    ),
    "Recipes": (
        "fieldwise.runs.recipe",
        "fieldwise.runs.recipe_files",
        "fieldwise.runs.data",
        "fieldwise.runs.pipeline",
        "fieldwise.runs.baseline",
    ),
    "Training": ("fieldwise.training.settings", "fieldwise.training.callbacks"),
    "Models": ("fieldwise.models", "fieldwise.models.registry"),
    "Errors": ("fieldwise.errors",),
}
ROOMS = {
    "evaluation": (
        "Evaluation",
        ("fieldwise.evaluation", "fieldwise.evaluation.bootstrap", "fieldwise.evaluation.lists"),
    ),
    "features": ("Features", ("fieldwise.features",)),
    "explain": ("Explaining", ("fieldwise.explain",)),
    "serving": (
        "Serving",
        (
            "fieldwise.serving",
            "fieldwise.serving.service",
            "fieldwise.serving.bodies",
            "fieldwise.serving.http",
            "fieldwise.serving.settings",
            "fieldwise.serving.loader",
            "fieldwise.scoring.candidates",
            "fieldwise.bundle.calibrate",
            "fieldwise.bundle.export",
            "fieldwise.bundle.score_file",
        ),
    ),
    "testing": ("Testing a model of your own", ("fieldwise.testing",)),
    "operations": ("Operations and layers", ("fieldwise.ops", "fieldwise.layers")),
}
FILES = {
    "development/contributing.md": "CONTRIBUTING.md",
    "development/changelog.md": "CHANGELOG.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    pages = {"reference/command-line.md": command_line(), "reference/python.md": python_names()}
    pages |= {
        f"reference/{name}.md": room(title, modules) for name, (title, modules) in ROOMS.items()
    }
    pages["reference/index.md"] = reference_index()
    pages |= {page: from_repository(name) for page, name in FILES.items()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the models' pages into the navigation."""
    part = next(part["Models"] for part in config.nav or () if "Models" in part)
    part[1:1] = [f"models/{page.name}" for page in model_pages()]
    return config


def model_pages() -> list[Path]:
    """The models' pages, by name."""
    return sorted({ROOT / "docs" / "models" / f"{name.removesuffix('+')}.md" for name in NETWORKS})


def reference_index() -> str:
    """What the reference has."""
    lines = [
        "# Reference",
        "",
        "Written from the code that this site was built with "
        f"(fieldwise {fieldwise.__version__}): help texts of commands, docstrings of public names.",
        "",
        "- [Command line](command-line.md): every command with its options and defaults",
        "- [Python](python.md): what `import fieldwise` offers",
    ]
    lines += [
        f"- [{title}]({name}.md): {_modules(modules)}" for name, (title, modules) in ROOMS.items()
    ]
    return "\n".join([*lines, ""])


def python_names() -> str:
    """Every name in `fieldwise.__all__`, grouped."""
    homes = {name: _home(name) for name in fieldwise.__all__ if name != "__version__"}
    lines = [
        "# Python",
        "",
        "The names that `import fieldwise` offers. Other modules may change without notice.",
    ]
    for title, modules in GROUPS.items():
        lines += ["", f"## {title}"]
        for module in modules:
            names = [name for name, home in homes.items() if home == module]
            lines += _directives(f"{getattr(fieldwise, name).__module__}.{name}" for name in names)
            homes = {name: home for name, home in homes.items() if home != module}
    assert not homes, f"public names without a group in {Path(__file__).name}: {homes}"
    return "\n".join([*lines, ""])


def room(title: str, modules: tuple[str, ...]) -> str:
    """What the modules name in `__all__`."""
    lines = [f"# {title}"]
    for name in modules:
        module = importlib.import_module(name)
        lines += ["", f"## `{name}`", "", _summary(module)]
        lines += _directives(_path(module, public) for public in module.__all__)
    return "\n".join([*lines, ""])


def command_line() -> str:
    """Every command of the Typer application."""
    root = typer.main.get_command(app)
    lines = ["# Command line", "", root.help or ""]
    lines += [
        "",
        "Results go to standard output, everything else to standard error. The exit code is 0 when done, 1 for a "
        "fault of the machine, 2 for one of the user (one sentence says which), 130 after Ctrl-C. `--help` behind any "
        "command prints what stands here.",
        "",
    ]
    for name, command in _commands(root, "fieldwise"):
        lines += [f"- [`{name}`](#{name.replace(' ', '-')}): {_first_sentence(command.help)}"]
    for name, command in _commands(root, "fieldwise"):
        lines += [
            "",
            f"## `{name}`",
            "",
            *_plain(command.help),
            "",
            "```text",
            _usage(name, command),
            "```",
        ]
        for parameter in sorted(command.params, key=lambda p: p.param_type_name != "argument"):
            lines += ["", _term(parameter), f":   {parameter.help or ''}{_environment(parameter)}"]
    return "\n".join([*lines, ""])


def from_repository(name: str) -> str:
    """A file of the repository's root, with its links into docs/ as the site has them."""
    return re.sub(r"\]\(docs/", "](../", (ROOT / name).read_text("utf-8"))


def _home(name: str) -> str:
    module = getattr(fieldwise, name).__module__
    offered = module.startswith("fieldwise.models.") and hasattr(fieldwise.models, name)
    return "fieldwise.models" if offered else module


def _path(module: Any, public: str) -> str:
    """Where a name is defined: a module may have the same name as what it holds."""
    home = getattr(getattr(module, public), "__module__", "")
    return f"{home if home.startswith('fieldwise.') else module.__name__}.{public}"


def _directives(names: Iterator[str]) -> list[str]:
    return [line for name in names for line in ("", f"::: {name}")]


def _modules(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _summary(module: Any) -> str:
    return (module.__doc__ or "").strip().partition("\n\n")[0]


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def _usage(name: str, command: Any) -> str:
    """The command with what it needs."""
    arguments = [_word(p) for p in command.params if p.param_type_name == "argument"]
    needed = [
        f"{p.opts[0]} {_kind(p)}"
        for p in command.params
        if p.param_type_name == "option" and p.required
    ]
    return " ".join([name, *arguments, *needed, "[OPTIONS]"])


def _plain(text: str | None) -> list[str]:
    return (text or "").strip().splitlines()


def _first_sentence(text: str | None) -> str:
    return re.split(r"(?<=[.:;]) ", " ".join(_plain(text)))[0].rstrip(":;.")


def _term(parameter: Any) -> str:
    """How a parameter is written, its limits and its default."""
    if parameter.param_type_name == "argument":
        return f"`{_word(parameter)}`"
    value = "" if parameter.is_flag else f" {_kind(parameter)}"
    names = ", ".join(f"`{name}{value}`" for name in [*parameter.opts, *parameter.secondary_opts])
    return "".join([names, _limits(parameter), _default(parameter)])


def _word(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()).strip("[]")
    return name if argument.required else f"[{name}]"


def _kind(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    kind = option.type_descriptor.annotation
    return {"Path": "PATH", "int": "NUMBER", "float": "NUMBER", "str": "TEXT"}.get(
        kind.__name__, kind.__name__
    )


def _limits(option: Any) -> str:
    low = option.min
    high = option.max
    if None not in (low, high):
        return f", {low} to {high}"
    return "" if low is None else f", at least {low}"


def _default(option: Any) -> str:
    if option.required:
        return ", needed"
    if option.is_flag:
        return f", default `{option.opts[0]}`" if option.default and option.secondary_opts else ""
    return "" if option.default is None else f", default `{option.default}`"


def _environment(option: Any) -> str:
    return f" Or the variable `{option.envvar}`." if option.envvar else ""

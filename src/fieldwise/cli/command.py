"""The pattern of all commands: a dataclass of options, and `run(options)`, which does the work.

A field of the dataclass defines an option or an argument: its name, type, default and Typer's settings (`Annotated`).
A field that is itself a dataclass stands for all options of that dataclass. The text of `--help` is the docstring of
`run`.
"""

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

__all__ = ["PlainGroup", "add_command", "as_command"]

Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, show_default=False, help="Show what the package logs; -vv shows more."),
]
VALUES = {int: "N", float: "X", Path: "PATH"}  # words for values in help; other values have the option's name
PANELS = {
    "Reading text files": ("separator", "encoding", "columns"),
    "Output": ("json", "quiet", "verbose", "progress", "tracker"),
    "Data": ("data_dir", "cache"),
    "Machine": ("device", "threads", "precision", "processes", "workers", "engine", "ray_address"),
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}

T = TypeVar("T")


def as_command(run: Callable[[T], None]) -> Callable[..., None]:
    """A function for Typer with one parameter per option, which calls `run` with the options.

    Args:
        run: takes a dataclass of options as its only argument.

    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Greeting:
    ...     name: str
    ...     times: int = 1
    >>> def greet(options: Greeting) -> None:
    ...     '''Greet a person.'''
    ...     print(options.times * f"Hello {options.name}!")
    >>> command = as_command(greet)
    >>> list(inspect.signature(command).parameters)
    ['name', 'times', 'verbose']
    >>> command(name="Ada", times=2)
    Hello Ada!Hello Ada!
    """
    (kind,) = (hint for name, hint in get_type_hints(run).items() if name != "return")

    def command(**given: Any) -> None:
        _set_logging(given.get("verbose", 0), quiet=given.get("quiet", False))
        run(_made(kind, given))

    verbose = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose)
    parameters = [*_parameters(kind), verbose]
    command.__name__, command.__doc__, command.__module__ = run.__name__, run.__doc__, run.__module__
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    return command


def _set_logging(verbose: int, *, quiet: bool) -> None:
    """Show what the package logs on standard error: warnings, with -v more, with -q errors alone."""
    logger, handler = logging.getLogger("fieldwise"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])


def add_command(app: typer.Typer, name: str, run: Callable[[Any], None], panel: str | None = None) -> None:
    """Add a command to a Typer application, below a heading of its help."""
    app.command(name, cls=_PlainCommand, rich_help_panel=panel)(as_command(run))


class _PlainCommand(TyperCommand):
    """A command whose help has options under headings, without the types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as the help shows them."""
        return _plain(super().get_params(ctx))


class PlainGroup(TyperGroup):
    """A group of commands with such a help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as the help shows them."""
        return _plain(super().get_params(ctx))


def _plain(params: list[Any]) -> list[Any]:
    for one in params:
        if isinstance(one, TyperArgument):
            one.display_type_rich = lambda **_: None  # type: ignore[method-assign]
        elif isinstance(one, TyperOption):
            one.rich_help_panel = one.rich_help_panel or PANEL_OF.get(one.name or "")
            if one.metavar is None:
                kind, name = one.type_descriptor.annotation, max(one.opts, key=len).strip("-").upper()
                one.metavar = "" if one.is_flag or one.count else VALUES.get(kind, name)
    return params


def _parameters(kind: type) -> Iterator[inspect.Parameter]:
    """The parameters for a dataclass's fields, in order; a nested dataclass is expanded in place."""
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        if _is_group(hint):
            yield from _parameters(hint)
            continue
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _made(kind: type[T], given: dict[str, Any]) -> T:
    """An instance of a dataclass and its nested dataclasses from values by field name."""
    hints = get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint = hints[field.name]
        values[field.name] = _made(hint, given) if _is_group(hint) else given[field.name]
    return kind(**values)


def _is_group(hint: Any) -> bool:
    """Whether a field stands for the options of another dataclass."""
    return dataclasses.is_dataclass(hint)

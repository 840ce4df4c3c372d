"""The pattern of all commands: a function whose parameters are its options, and whose docstring is its help.

A parameter has a name, a type, a default and Typer's settings (`Annotated`). One whose type is a dataclass stands for
the options that are the dataclass's fields.
"""

import dataclasses
import inspect
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

__all__ = ["PlainGroup", "add_command", "as_command"]

Verbose = Annotated[
    int,
    typer.Option("--verbose", "-v", count=True, show_default=False, help="Show what the package logs; -vv shows more."),
]
VALUES = {int: "N", float: "X", Path: "PATH"}  # words for values in help; other values have the option's name
PANELS = {
    "Output": ("json", "quiet", "verbose", "progress", "tracker"),
    "Machine": ("device", "precision", "processes", "workers", "engine"),
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


def as_command(run: Callable[..., None]) -> Callable[..., None]:
    """A function for Typer with one parameter per option, which calls `run` with the options.

    Args:
        run: a function with annotated parameters.

    >>> @dataclasses.dataclass(frozen=True, kw_only=True)
    ... class Manner:
    ...     times: int = 1
    >>> def greet(*, name: str, manner: Manner) -> None:
    ...     '''Greet a person.'''
    ...     print(manner.times * f"Hello {name}!")
    >>> command = as_command(greet)
    >>> list(inspect.signature(command).parameters)
    ['name', 'times', 'verbose']
    >>> command(name="Ada", times=2)
    Hello Ada!Hello Ada!
    """

    def command(**given: Any) -> None:
        _set_logging(given.get("verbose", 0), quiet=given.get("quiet", False))
        _called(run, given)

    verbose = inspect.Parameter("verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose)
    parameters = [*_parameters(run), verbose]
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


def add_command(app: typer.Typer, name: str, run: Callable[..., None], panel: str | None = None) -> None:
    """Add a command to a Typer application, below a heading of its help."""
    app.command(name, cls=_PlainCommand, rich_help_panel=panel)(as_command(run))


class _Plain:
    """What has a help with options under headings, without the types of Python."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, as the help shows them."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in params:
            if isinstance(one, TyperArgument):
                one.display_type_rich = lambda **_: None  # type: ignore[method-assign]
            elif isinstance(one, TyperOption):
                one.rich_help_panel = one.rich_help_panel or PANEL_OF.get(one.name or "")
                if one.metavar is None:
                    kind, name = one.type_descriptor.annotation, max(one.opts, key=len).strip("-").upper()
                    one.metavar = "" if one.is_flag or one.count else VALUES.get(kind, name)
        return params


class _PlainCommand(_Plain, TyperCommand):
    """A command with such a help."""


class PlainGroup(_Plain, TyperGroup):
    """A group of commands with such a help."""


def _parameters(owner: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """The parameters of a function or dataclass, in order; those of a dataclass among them stand at its place."""
    hints = get_type_hints(owner, include_extras=True)
    for name, one in inspect.signature(owner).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            yield from _parameters(hints[name])
        else:
            yield one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)


def _called(owner: Callable[..., Any], given: dict[str, Any]) -> Any:
    """What a function or dataclass makes of values by name, with the dataclasses among its parameters."""
    hints = get_type_hints(owner)
    names = inspect.signature(owner).parameters
    grouped = {name: hints[name] for name in names if dataclasses.is_dataclass(hints[name])}
    return owner(**{name: _called(grouped[name], given) if name in grouped else given[name] for name in names})

"""The pattern of all commands: a dataclass of options, and `run(options)`, which does the work.

A field of the dataclass defines an option or an argument: its name, type, default and Typer's settings (`Annotated`).
A field that is itself a dataclass stands for all options of that dataclass. The text of `--help` is the docstring of
`run`.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_type_hints

__all__ = ["as_command"]

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
    >>> inspect.signature(command)
    <Signature (*, name: str, times: int = 1) -> None>
    >>> command(name="Ada", times=2)
    Hello Ada!Hello Ada!
    """
    (kind,) = (hint for name, hint in get_type_hints(run).items() if name != "return")

    def command(**given: Any) -> None:
        run(_made(kind, given))

    parameters = list(_parameters(kind))
    command.__name__, command.__doc__, command.__module__ = run.__name__, run.__doc__, run.__module__
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    return command


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

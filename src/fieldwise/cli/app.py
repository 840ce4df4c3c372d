"""The commands by heading, in the order of `--help`, and how a function with annotated parameters becomes one.

A command is a function whose parameters are its options, and whose docstring is its help; its first
paragraph is the line in the list of commands. A parameter has a name, a type, a default and Typer's
settings (`Annotated`). One whose type is a dataclass stands for the options that are the
dataclass's fields. Commands import heavy modules late.
"""

import dataclasses
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer import Option
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from fieldwise.cli import (
    audit,
    auto,
    compare,
    describe,
    doctor,
    evaluate,
    explain,
    export,
    features,
    fetch,
    index,
    init,
    predict,
    prepare,
    quickstart,
    recommend,
    report,
    serve,
    simulate,
    store,
    train,
    tune,
)
from fieldwise.cli.show import IMPORTS
from fieldwise.errors import Argument, ConfigError, FieldwiseError
from fieldwise.version import __version__

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Start here": {
        "quickstart": quickstart.run,
        "auto": auto.run,
        "init": init.run,
        "fetch": fetch.run,
        "simulate": simulate.run,
        "doctor": doctor.run,
    },
    "The loop": {
        "audit": audit.run,
        "describe": describe.run,
        "train": train.run,
        "compare": compare.run,
        "tune": tune.run,
        "evaluate": evaluate.run,
        "explain": explain.run,
        "report": report.run,
    },
    "Operations": {
        "prepare": prepare.run,
        "predict": predict.run,
        "recommend": recommend.run,
        "export": export.run,
        "index": index.run,
        "serve": serve.run,
    },
}
Verbose = Annotated[
    int,
    Option(
        "--verbose",
        "-v",
        count=True,
        show_default=False,
        help="Show what the package logs; -vv shows more.",
    ),
]
SHARING = ("train", "compare", "tune")
"""Commands whose processes share the work."""
METAVARS = {int: "N", float: "X", Path: "PATH"}
"""What a value is called in help, by its type; a value of another type has the option's name."""
PANEL_OF = dict.fromkeys(("json", "quiet", "verbose", "progress", "tracker"), "Output")
PANEL_OF |= dict.fromkeys(("device", "precision", "processes", "workers", "engine"), "Machine")
OPTIONS = {
    "separator": ("read", "--read separator={!r}"),
    "encoding": ("read", "--read encoding={!r}"),
    "folder": ("out", "--out"),
    "overrides": ("settings", "--set"),
    "slices": ("slices", "--slice"),
}
"""By argument of the package whose option has another name: the command's parameter, and what is typed."""
UNLISTED = ("install_completion", "show_completion")
"""Options that work and are not listed in the help."""
LOG_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
"""By how often --verbose is given."""


def as_command(run: Callable[..., None]) -> Callable[..., None]:
    """A function for Typer with one parameter per option, which calls `run` with the options."""

    def command(**given: Any) -> None:
        _set_up_log(verbose=given.get("verbose", 0), quiet=given.get("quiet", False))
        try:
            _call(run, given)
        except FieldwiseError as e:
            e.args = tuple(
                _option(part, given) if isinstance(part, Argument) else part for part in e.args
            )
            raise

    verbose = inspect.Parameter(
        "verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose
    )
    parameters = [*_parameters(run), verbose]
    command.__name__ = run.__name__
    command.__doc__ = run.__doc__
    command.__module__ = run.__module__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    return command


def _set_up_log(*, verbose: int, quiet: bool) -> None:
    """Log what the package logs to standard error: warnings, more of it with -v, only errors with -q."""
    logger = logging.getLogger("fieldwise")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger.handlers[:] = [handler]
    level = LOG_LEVELS[min(verbose, len(LOG_LEVELS) - 1)]
    logger.setLevel(logging.ERROR if quiet else level)


def _option(argument: Argument, given: Mapping[str, Any]) -> str:
    """The option of a command for an argument of the package, or the argument if the command has none."""
    option = f"--{argument.name.replace('_', '-')}"
    parameter, typed = OPTIONS.get(argument.name, (argument.name, option))
    return typed.format(argument.value) if parameter in given else str(argument)


class _Plain:
    """A help screen that shows options under headings, without Python's types."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if isinstance(param, TyperArgument):
                param.display_type_rich = lambda **_: None  # type: ignore[method-assign]
            elif isinstance(param, TyperOption):
                _show_plainly(param)
        return params


def _show_plainly(option: TyperOption) -> None:
    """Set under which heading an option is shown, and what its value is called."""
    if option.name in UNLISTED:
        option.hidden = True
    if not option.rich_help_panel:
        option.rich_help_panel = PANEL_OF.get(option.name or "")
    if option.metavar is not None:
        return
    if option.is_flag or option.count:
        option.metavar = ""
    else:
        long_name = max(option.opts, key=len).strip("-").upper()
        option.metavar = METAVARS.get(option.type_descriptor.annotation, long_name)


class _PlainCommand(_Plain, TyperCommand):
    """A command with this help screen."""


class _PlainGroup(_Plain, TyperGroup):
    """A group of commands with this help screen."""


def _parameters(owner: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """The parameters of a function or dataclass, in order; a dataclass among them is replaced by its fields."""
    hints = get_type_hints(owner, include_extras=True)
    for name, parameter in inspect.signature(owner).parameters.items():
        hint = hints[name]
        is_group = dataclasses.is_dataclass(hint)
        if is_group:
            yield from _parameters(hint)
            continue
        if get_origin(hint) is Annotated:
            value_type, option = get_args(hint)[:2]
            # a flag, without the `--no-` form of Typer
            if value_type is bool and option.default is ...:
                option.param_decls = (f"--{name.replace('_', '-')}",)
        yield parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)


def _call(owner: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a function or dataclass with values by name, and build the dataclasses among its parameters."""
    hints = get_type_hints(owner)
    arguments = {}
    for name in inspect.signature(owner).parameters:
        hint = hints[name]
        is_group = dataclasses.is_dataclass(hint)
        arguments[name] = _call(hint, given) if is_group else given[name]
    return owner(**arguments)


app = typer.Typer(
    name="fieldwise",
    cls=_PlainGroup,
    help="Recommenders on feature fields: from a raw log to a trained, served model.",
    epilog="Variables: FIELDWISE_DATA, folder of public data sets; FIELDWISE_CACHE, of prepared data, or off; "
    "OMP_NUM_THREADS; RAY_ADDRESS.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fieldwise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    modules: Annotated[
        list[str] | None,
        Option(
            "--import", metavar="MODULE[:CLASS]", help="Import own models first; may be repeated."
        ),
    ] = None,
    version: Annotated[
        bool,
        Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    del version
    _check_torchrun(context.invoked_subcommand)
    IMPORTS[:] = modules or []
    if IMPORTS:
        from fieldwise.models.registry import import_model

        for module in IMPORTS:
            import_model(module)


def _check_torchrun(name: str | None) -> None:
    """Check that torchrun does not start a command in several processes that would each do all of it."""
    process_count = os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" not in os.environ or process_count == "1" or name in SHARING:
        return
    raise ConfigError(
        f"torchrun is for {', '.join(SHARING)}, whose processes share the work, found {process_count} processes of "
        f"`fieldwise {name}`: run it once, without torchrun"
    )


for panel, commands in COMMANDS.items():
    for name, run in commands.items():
        app.command(name, cls=_PlainCommand, rich_help_panel=panel)(as_command(run))
stores = typer.Typer(
    help="Write users' and items' features for `serve` into a store.", no_args_is_help=True
)
stores.command("load", cls=_PlainCommand)(as_command(store.run))
app.add_typer(stores, name="store", cls=_PlainGroup, rich_help_panel="Operations")
of_features = typer.Typer(
    help="Compute a bundle's features as of a time, for `serve` or for a log.",
    no_args_is_help=True,
)
of_features.command("latest", cls=_PlainCommand)(as_command(features.latest))
of_features.command("backfill", cls=_PlainCommand)(as_command(features.backfill))
of_features.command("check", cls=_PlainCommand)(as_command(features.check))
of_features.command("delay", cls=_PlainCommand)(as_command(features.delay))
app.add_typer(of_features, name="features", cls=_PlainGroup, rich_help_panel="Operations")

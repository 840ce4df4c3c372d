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
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer import Option
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from fieldwise.cli import (
    auto,
    compare,
    describe,
    doctor,
    evaluate,
    explain,
    init,
    predict,
    prepare,
    quickstart,
    report,
    serve,
    train,
    tune,
)
from fieldwise.cli.show import IMPORTS
from fieldwise.errors import ConfigError, FieldwiseError
from fieldwise.version import __version__

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Start here": {
        "quickstart": quickstart.run,
        "auto": auto.run,
        "init": init.run,
        "fetch": init.run_fetch,
        "simulate": init.run_simulate,
        "doctor": doctor.run,
    },
    "The loop": {
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
        "recommend": predict.run_recommend,
        "export": predict.run_export,
        "index": predict.run_index,
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
SHARING = ("train", "compare", "tune")  # commands whose processes share the work
# words for values in help; other values have the option's name
VALUES = {int: "N", float: "X", Path: "PATH"}
PANEL_OF = dict.fromkeys(("json", "quiet", "verbose", "progress", "tracker"), "Output")
PANEL_OF |= dict.fromkeys(("device", "precision", "processes", "workers", "engine"), "Machine")
# by option, an argument's name in errors of the package, and what the command line calls it
ARGUMENTS = (
    ("read", r"(?<!--read )\b(?=(separator|encoding|columns)=)", "--read "),
    ("positive", "ones as positive", "ones with --positive"),
    ("settings", "^override ", "--set "),
    ("ranking", "omit the ranking", "omit --ranking"),
    ("keep_seen", "keep_seen=True", "--keep-seen"),
    (
        "overwrite",
        r"overwrite to replace it, or another out\b",
        "--overwrite to replace it, or another --out",
    ),
    ("slices", "a slice must", "--slice must"),
    ("logit", "^logit is for", "--logit is for"),
    ("column", "another column$", "another --column"),
    ("out", "^out must not be an input", "--out must not be an input"),
)
# options that work and are not listed in the help
UNLISTED = ("install_completion", "show_completion")


def as_command(run: Callable[..., None]) -> Callable[..., None]:
    """A function for Typer with one parameter per option, which calls `run` with the options."""

    def command(**given: Any) -> None:
        # The package logs to standard error: warnings, more of it with -v, only errors with -q.
        logger = logging.getLogger("fieldwise")
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.handlers[:] = [handler]
        level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(given.get("verbose", 0), 2)]
        logger.setLevel(logging.ERROR if given.get("quiet") else level)
        try:
            _called(run, given)
        except FieldwiseError as e:
            said = str(e)
            for _, pattern, spoken in (one for one in ARGUMENTS if one[0] in given):
                said = re.sub(pattern, spoken, said)
            raise e if said == str(e) else type(e)(said) from None

    verbose = inspect.Parameter(
        "verbose", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=Verbose
    )
    parameters = [*_parameters(run), verbose]
    command.__name__ = run.__name__
    command.__doc__ = run.__doc__
    command.__module__ = run.__module__
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    command.__signature__ = inspect.Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    return command


class _Plain:
    """A help screen that shows options under headings, without Python's types."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in params:
            if isinstance(one, TyperArgument):
                one.display_type_rich = lambda **_: None  # type: ignore[method-assign]
            elif isinstance(one, TyperOption):
                one.hidden = one.hidden or one.name in UNLISTED
                one.rich_help_panel = one.rich_help_panel or PANEL_OF.get(one.name or "")
                if one.metavar is None:
                    kind = one.type_descriptor.annotation
                    name = max(one.opts, key=len).strip("-").upper()
                    one.metavar = "" if one.is_flag or one.count else VALUES.get(kind, name)
        return params


class _PlainCommand(_Plain, TyperCommand):
    """A command with this help screen."""


class _PlainGroup(_Plain, TyperGroup):
    """A group of commands with this help screen."""


def _parameters(owner: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """The parameters of a function or dataclass, in order; a dataclass among them is replaced by its fields."""
    hints = get_type_hints(owner, include_extras=True)
    for name, one in inspect.signature(owner).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            yield from _parameters(hints[name])
        else:
            kind, option, *_ = *get_args(hints[name]), None, None
            # a flag, without the `--no-` form of Typer
            if kind is bool and option and option.default is ...:
                option.param_decls = (f"--{name.replace('_', '-')}",)
            yield one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)


def _called(owner: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Call a function or dataclass with values by name, and build the dataclasses among its parameters."""
    hints = get_type_hints(owner)
    names = inspect.signature(owner).parameters
    grouped = {name: hints[name] for name in names if dataclasses.is_dataclass(hints[name])}
    return owner(
        **{
            name: _called(grouped[name], given) if name in grouped else given[name]
            for name in names
        }
    )


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
    size = os.environ.get("WORLD_SIZE", "1")
    called = context.invoked_subcommand
    # each would do all of it
    if "TORCHELASTIC_RUN_ID" in os.environ and size != "1" and called not in SHARING:
        raise ConfigError(
            f"torchrun is for {', '.join(SHARING)}, whose processes share the work, found {size} processes of "
            f"`fieldwise {called}`: run it once, without torchrun"
        )
    IMPORTS[:] = modules or []
    if IMPORTS:
        from fieldwise.models.registry import import_model

        for module in IMPORTS:
            import_model(module)


for panel, commands in COMMANDS.items():
    for name, run in commands.items():
        app.command(name, cls=_PlainCommand, rich_help_panel=panel)(as_command(run))
stores = typer.Typer(
    help="Write users' and items' features for `serve` into a store.", no_args_is_help=True
)
stores.command("load", cls=_PlainCommand)(as_command(predict.run_load))
app.add_typer(stores, name="store", cls=_PlainGroup, rich_help_panel="Operations")

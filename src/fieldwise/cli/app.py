"""The commands by heading, in the order of `--help`; a command imports heavy modules when it runs."""

from typing import Annotated

import typer

from fieldwise.cli import (
    auto,
    cache,
    calibrate,
    compare,
    data,
    demo,
    describe,
    doctor,
    evaluate,
    evaluate_cascade,
    explain,
    export,
    index,
    init,
    predict,
    prepare,
    quickstart,
    recipes,
    recommend,
    report,
    serve,
    store,
    train,
    tune,
)
from fieldwise.cli.command import PlainGroup, add_command
from fieldwise.cli.options import IMPORTS, version_option
from fieldwise.cli.processes import check_started

__all__ = ["app"]

COMMANDS = {
    "Start": {"quickstart": quickstart, "demo": demo, "init": init, "auto": auto},
    "Train and compare": {"prepare": prepare, "train": train, "compare": compare, "tune": tune},
    "Evaluate and explain": {"evaluate": evaluate, "calibrate": calibrate, "report": report, "explain": explain},
    "Score and recommend": {"predict": predict, "recommend": recommend, "export": export},
    "Serve": {"index": index, "evaluate-cascade": evaluate_cascade, "serve": serve},
    "Look up": {"describe": describe, "recipes": recipes, "doctor": doctor},
}
GROUPS = {"data": (data, "Start"), "cache": (cache, "Look up"), "store": (store, "Serve")}

app = typer.Typer(
    name="fieldwise",
    cls=PlainGroup,
    help="Recommenders built on attention over feature fields: from a raw log to a trained and evaluated model.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(
    context: typer.Context,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE[:CLASS]",
            help="Import a module with your own models first. The working directory is searched too. May be repeated.",
        ),
    ] = None,
    version: Annotated[bool, version_option()] = False,
) -> None:
    del version
    check_started(context.invoked_subcommand)
    IMPORTS[:] = modules or []
    if IMPORTS:
        from fieldwise.models.own import import_model

        for module in IMPORTS:
            import_model(module)


for panel, modules in COMMANDS.items():
    for name, module in modules.items():
        add_command(app, name, module.run, panel)
for name, (group, panel) in GROUPS.items():
    app.add_typer(group.app, name=name, cls=PlainGroup, rich_help_panel=panel)

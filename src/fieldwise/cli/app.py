"""The commands by heading, in the order of `--help`; a command imports heavy modules when it runs."""

from collections.abc import Callable
from typing import Annotated

import typer

from fieldwise.cli import (
    auto,
    calibrate,
    compare,
    data,
    demo,
    describe,
    doctor,
    evaluate,
    explain,
    export,
    index,
    init,
    predict,
    prepare,
    recommend,
    report,
    serve,
    store,
    train,
    tune,
)
from fieldwise.cli.command import PlainGroup, add_command
from fieldwise.cli.options import IMPORTS
from fieldwise.cli.processes import check_started
from fieldwise.version import __version__

__all__ = ["app"]

COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Start": {"quickstart": demo.run_quickstart, "demo": demo.run, "init": init.run, "auto": auto.run},
    "Train and compare": {"prepare": prepare.run, "train": train.run, "compare": compare.run, "tune": tune.run},
    "Evaluate and explain": {
        "evaluate": evaluate.run,
        "calibrate": calibrate.run,
        "report": report.run,
        "explain": explain.run,
    },
    "Score and recommend": {"predict": predict.run, "recommend": recommend.run, "export": export.run},
    "Serve": {"index": index.run, "evaluate-cascade": evaluate.run_cascade, "serve": serve.run},
    "Look up": {"describe": describe.run, "recipes": describe.run_recipes, "doctor": doctor.run},
}
GROUPS = {"data": (data, "Start"), "cache": (prepare, "Look up"), "store": (store, "Serve")}

app = typer.Typer(
    name="fieldwise",
    cls=PlainGroup,
    help="Recommenders built on attention over feature fields: from a raw log to a trained and evaluated model.",
    epilog="Environment: FIELDWISE_DATA, the folder of public data sets; FIELDWISE_CACHE, the folder of prepared data, "
    "or off; OMP_NUM_THREADS, the number of threads; RAY_ADDRESS, the cluster of --engine ray.",
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
        typer.Option(
            "--import",
            metavar="MODULE[:CLASS]",
            help="Import a module with your own models first. The working directory is searched too. May be repeated.",
        ),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version
    check_started(context.invoked_subcommand)
    IMPORTS[:] = modules or []
    if IMPORTS:
        from fieldwise.models.own import import_model

        for module in IMPORTS:
            import_model(module)


for panel, commands in COMMANDS.items():
    for name, run in commands.items():
        add_command(app, name, run, panel)
for name, (group, panel) in GROUPS.items():
    app.add_typer(group.app, name=name, cls=PlainGroup, rich_help_panel=panel)

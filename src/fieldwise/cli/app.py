"""The commands, in the order of `--help`. Their options are read here; what computes is loaded by those that run."""

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
    quickstart,
    recipes,
    report,
    serve,
    store,
    train,
    tune,
)
from fieldwise.cli.command import as_command
from fieldwise.cli.options import version_option

__all__ = ["app"]

COMMANDS = {
    "quickstart": quickstart,
    "demo": demo,
    "init": init,
    "auto": auto,
    "train": train,
    "compare": compare,
    "tune": tune,
    "evaluate": evaluate,
    "predict": predict,
    "calibrate": calibrate,
    "report": report,
    "explain": explain,
    "index": index,
    "evaluate-cascade": evaluate_cascade,
    "serve": serve,
    "export": export,
    "describe": describe,
    "recipes": recipes,
    "doctor": doctor,
}
GROUPS = {"data": data, "cache": cache, "store": store}

app = typer.Typer(
    name="fieldwise",
    help="Recommenders built on attention over feature fields: from a raw log to a trained, honestly evaluated model.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _root(version: Annotated[bool, version_option()] = False) -> None:
    del version


for name, module in COMMANDS.items():
    app.command(name)(as_command(module.run))
for name, group in GROUPS.items():
    app.add_typer(group.app, name=name)

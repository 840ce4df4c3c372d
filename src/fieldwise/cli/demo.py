"""`fieldwise demo`: train several models on one log, compare them, recommend ten films and suggest a server."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.next import command
from fieldwise.cli.options import DataDir, Quiet, Seed, Threads
from fieldwise.cli.show import console
from fieldwise.config import nearest
from fieldwise.errors import ConfigError

__all__ = ["DemoOptions", "run"]


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of `fieldwise demo`."""

    data: Annotated[str, typer.Option(help="simulated or movielens-1m.")] = "simulated"
    out: Annotated[Path, typer.Option(help="Folder for the bundles.")] = Path("runs/demo")
    seed: Seed = 0
    data_dir: DataDir = None
    quiet: Quiet = False
    threads: Threads = None


def run(options: DemoOptions) -> None:
    """Train LR, FM, AFM, AutoInt, AutoInt+ and IntTower on one log, compare them and recommend ten items to a user."""
    from fieldwise.cli.demo_runs import DEMOS, train_demo

    data = options.data
    if data not in DEMOS:
        raise ConfigError(f"--data must be a data set of the demo, found {data!r}: {nearest(data, DEMOS)}")
    words = train_demo(DEMOS[data], options)
    console().print(f"start a web page with recommendations and explanations for each user: {command(*words)}")

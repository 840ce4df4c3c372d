"""`fieldwise quickstart`: from an empty folder to a page that recommends, in one command."""

import socket
import threading
import time
import webbrowser
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from fieldwise.cli.demo import DemoOptions
from fieldwise.cli.next import suggest
from fieldwise.cli.options import Quiet, Seed, Threads
from fieldwise.errors import MissingExtraError

__all__ = ["QuickstartOptions", "run"]

SERVER = ("uvicorn", "fastapi", "prometheus_client")


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions:
    """What `fieldwise quickstart` is asked for."""

    out: Annotated[Path, typer.Option(help="Folder for the bundles.")] = Path("runs/quickstart")
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Serve the page until Ctrl-C stops it.")] = True
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0 for any free one.")] = 8000
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False
    seed: Seed = 0
    quiet: Quiet = False
    threads: Threads = None


def run(options: QuickstartOptions) -> None:
    """From an empty folder to a page: train three models on a small simulated film log, and serve the best."""
    absent = [name for name in SERVER if find_spec(name) is None]
    if options.serve and absent:  # told before any work
        raise MissingExtraError(
            f"the page needs {absent[0]}: pip install 'fieldwise[serve]' (--no-serve trains and recommends without it)"
        )
    from fieldwise.cli.demo_runs import QUICK, train_demo

    asked = DemoOptions(out=options.out, seed=options.seed, quiet=options.quiet, threads=options.threads)
    words = train_demo(QUICK, asked)
    if not options.serve:
        suggest("a page to choose users, see recommendations and why", *words)
        return
    port = options.port or _free_port()
    words += ["--port", port]
    suggest("once this is stopped, the page again", *words)
    if options.browse:
        threading.Thread(target=_open, args=(port,), daemon=True).start()
    from fieldwise.cli.app import app

    app(args=[str(word) for word in words], prog_name="fieldwise", standalone_mode=False)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _open(port: int) -> None:
    """Open a browser at the page as soon as it answers."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            webbrowser.open(f"http://127.0.0.1:{port}")
            return

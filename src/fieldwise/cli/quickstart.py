"""`fieldwise quickstart`: train models on simulated data and serve a web page with recommendations."""

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
    """Options of `fieldwise quickstart`."""

    out: Annotated[Path, typer.Option(help="Folder for the bundles.")] = Path("runs/quickstart")
    serve: Annotated[bool, typer.Option("--serve/--no-serve", help="Serve the page until Ctrl-C.")] = True
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0: any free port.")] = 8000
    browse: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False
    seed: Seed = 0
    quiet: Quiet = False
    threads: Threads = None


def run(options: QuickstartOptions) -> None:
    """Train three models on a small simulated film log, and serve the best one with a web page."""
    absent = [name for name in SERVER if find_spec(name) is None]
    if options.serve and absent:  # reported before any work
        raise MissingExtraError(
            f"the page needs {absent[0]}: pip install 'fieldwise[serve]' (or give --no-serve to only train and "
            "recommend)"
        )
    from fieldwise.cli.demo_runs import QUICK, train_demo

    asked = DemoOptions(out=options.out, seed=options.seed, quiet=options.quiet, threads=options.threads)
    words = train_demo(QUICK, asked)
    if not options.serve:
        suggest("start a web page with recommendations and explanations for each user", *words)
        return
    port = options.port or _free_port()
    words += ["--port", port]
    suggest("start the page again later", *words)
    if options.browse:
        threading.Thread(target=_open, args=(port,), daemon=True).start()
    from fieldwise.cli.app import app

    app(args=[str(word) for word in words], prog_name="fieldwise", standalone_mode=False)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _open(port: int) -> None:
    """Open a browser as soon as the page responds."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            webbrowser.open(f"http://127.0.0.1:{port}")
            return

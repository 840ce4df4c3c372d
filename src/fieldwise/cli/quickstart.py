"""`fieldwise quickstart`: from an empty folder to a page that recommends, in one command."""

import socket
import threading
import time
import webbrowser
from importlib.util import find_spec

from fieldwise.bundle.recommend import Catalogue
from fieldwise.cli.demo import Demo, DemoOptions, train_demo
from fieldwise.cli.next import suggest
from fieldwise.errors import MissingExtraError

__all__ = ["run_quickstart"]

SERVER = ("uvicorn", "fastapi", "prometheus_client")
QUICK = Demo(
    recipes=("simulated/lr", "simulated/fm", "simulated/autoint"),
    catalogue=Catalogue(user="user_id", item="item_id", title="title"),
    settings=("data.rows=20_000", "data.users=200", "data.items=200", "training.epochs=10"),
)


def run_quickstart(options: DemoOptions, serve: bool, port: int, browse: bool) -> None:
    """Train three models on a small simulated log and serve the best, until stopped.

    Errors:
        MissingExtraError: a page is asked for and the extra `serve` is not installed; told before any work.
    """
    absent = [name for name in SERVER if find_spec(name) is None]
    if serve and absent:
        raise MissingExtraError(
            f"the page needs {absent[0]}: pip install 'fieldwise[serve]' (--no-serve trains and recommends without it)"
        )
    words = train_demo("simulated", QUICK, options)
    if not serve:
        suggest("a page to choose users, see recommendations and why", *words)
        return
    port = port or _free_port()
    words += ["--port", port]
    suggest("once this is stopped, the page again", *words)
    if browse:
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

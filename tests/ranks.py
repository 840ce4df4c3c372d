"""Functions run by several processes that train together, forked from one that has loaded PyTorch.

As a script: `python ranks.py MODULE FUNCTION,FUNCTION... SIZE...` calls functions of a module of
tests with each size, or one with its own (`FUNCTION@SIZE`), in so many processes; what they return
is printed as JSON, by function, size and rank.
"""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def in_processes(
    module: str, functions: str, *sizes: int, timeout: float = 600
) -> dict[str, dict[int, list[Any]]]:
    """What every process returned, by function, size and rank; None of one that was killed. One trains alone."""
    command = [sys.executable, __file__, module, functions, *map(str, sizes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    return {
        name: {int(size): ranks for size, ranks in by_size.items()}
        for name, by_size in result.items()
    }


def _run(function: Any, rank: int, size: int, port: int, out: Path) -> None:
    from fieldwise.distributed.process_group import process_group

    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    with process_group() as group, nullcontext() if group is None else group.active():
        result = function(rank)
    out.write_text(json.dumps(result))


def _together(function: Any, size: int) -> list[Any]:
    """What so many forked processes returned."""
    import torch.distributed as dist

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        places = [Path(folder) / str(rank) for rank in range(size)]
        children = []
        for rank, place in enumerate(places):
            if (child := os.fork()) == 0:
                try:
                    _run(function, rank, size, port, place)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        # After the forks: a child would inherit what the store's threads hold at that moment, such
        # as locks, for ever.
        store = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        del store
        if set(codes) - {0, -signal.SIGKILL}:
            sys.exit(f"processes ended with {codes}")
        return [json.loads(place.read_text()) if place.exists() else None for place in places]


def _main(module: str, functions: str, *sizes: str) -> None:
    # `benchmarks` is the repository's, not the folder of its tests
    sys.path[:0] = [str(HERE.parent), str(HERE)]
    # PyTorch's optimizers load it: here once for all children
    importlib.import_module("torch._dynamo")
    called = importlib.import_module(module)
    results: dict[str, dict[str, list[Any]]] = {}
    for asked in functions.split(","):
        name, _, own = asked.partition("@")
        results[name] = {
            size: _together(getattr(called, name), int(size)) for size in ([own] if own else sizes)
        }
    # buffered: else a signal amid a long write loses the rest of it
    with open(1, "w", closefd=False) as out:
        json.dump(results, out)


if __name__ == "__main__":
    _main(*sys.argv[1:])

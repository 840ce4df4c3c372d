"""`fieldwise` as a process of its own, forked from one that has loaded all that commands need: it starts at once."""

import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

# For each request a child is forked, which becomes the command after its own parent, which reports
# its end, forked it.
FACTORY = """
import gc, importlib, json, os, socket, sys
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command has it before it loads PyTorch
for name in json.loads(sys.argv[2]):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:  # of an extra that is not installed
        pass
from fieldwise.cli import main
gc.freeze()  # shared with the children, whose ends are quicker for it
control = socket.socket(fileno=int(sys.argv[1]))
children = 0
while True:
    asked, given, _, _ = socket.recv_fds(control, 1 << 20, 3)
    while children and os.waitpid(-1, os.WNOHANG)[0]:
        children -= 1
    if not asked:
        break
    children += 1
    if os.fork():
        for number in given:
            os.close(number)
        continue
    control.close()
    report, out, err = given
    child = os.fork()
    if child:
        os.close(out)
        os.close(err)
        os.write(report, b"%d\\n" % child)
        os.write(report, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os._exit(0)
    for number, place in ((out, 1), (err, 2)):
        os.dup2(number, place)
        os.close(number)
    os.close(report)
    told = json.loads(asked)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.argv = ["fieldwise", *told["arguments"]]
    exec(told["before"], {})
    main()
"""
LOADED = (
    "torch._dynamo",  # loaded by the first optimizer
    "uvicorn",
    "fieldwise.cli.app",
    "fieldwise.runs.pipeline",
    "fieldwise.bundle.bundle",
    "fieldwise.serving.http",
    "fieldwise.scoring.ranker",
)


@cache
def _factory() -> socket.socket:
    """A connection to this process's factory, which ends with it."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-c", FACTORY, str(there.fileno()), json.dumps(LOADED)],
        stdin=subprocess.DEVNULL,
        pass_fds=[there.fileno()],
    )
    there.close()

    def stop() -> None:
        here.close()
        process.wait(300)

    atexit.register(stop)
    return here


class Command:
    """A running `fieldwise ARGUMENTS...` in a folder.

    Args:
        arguments: The words after `fieldwise`.
        folder: Where it runs.
        before: Python that the process runs first.
        environment: Variables beside those of this process; None takes one away.
    """

    def __init__(
        self,
        *arguments: object,
        folder: Path | str = ".",
        before: str = "",
        **environment: str | None,
    ):
        self.returncode: int | None = None
        self._files = [_unnamed(), _unnamed()]
        self._said = ["", ""]
        self._report, theirs = os.pipe()
        asked: dict[str, Any] = {
            "arguments": [str(word) for word in arguments],
            "folder": str(Path(folder).resolve()),
        }
        whole = {**os.environ, **environment}
        asked |= {
            "environment": {k: v for k, v in whole.items() if v is not None},
            "before": before,
        }
        socket.send_fds(_factory(), [json.dumps(asked).encode()], [theirs, *self._files])
        os.close(theirs)
        self.pid = self._reported()

    def _reported(self) -> int:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._report, 1) or b"0\n"
        return int(line)

    @property
    def output(self) -> str:
        """What it has written to standard output so far."""
        return self._content(0)

    @property
    def errors(self) -> str:
        """What it has written to standard error so far."""
        return self._content(1)

    def _content(self, place: int) -> str:
        if self.returncode is None:
            number = self._files[place]
            self._said[place] = os.pread(number, os.fstat(number).st_size, 0).decode()
        return self._said[place]

    def heard(self, pattern: str, seconds: float = 300) -> re.Match[str]:
        """The pattern's first match in standard error, once it is there."""
        until = time.monotonic() + seconds
        while not (result := re.search(pattern, said := self.errors)):
            assert self.poll() is None, said
            assert time.monotonic() < until, said
            time.sleep(0.01)
        return result

    def poll(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while it runs."""
        if self.returncode is None and select.select([self._report], [], [], 0)[0]:
            code, _ = self._reported(), (self.output, self.errors)
            self.returncode = code
            for number in (self._report, *self._files):
                os.close(number)
        return self.returncode

    def wait(self, seconds: float = 300) -> int:
        """The exit code, once it has ended."""
        if self.returncode is None and not select.select([self._report], [], [], seconds)[0]:
            raise subprocess.TimeoutExpired("fieldwise", seconds)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        self.send_signal(signal.SIGTERM)

    def end(self, seconds: float = 120) -> None:
        """Terminate it, wait, and kill what is still there."""
        self.terminate()
        try:
            self.wait(seconds)
        finally:
            self.send_signal(signal.SIGKILL)


def _unnamed() -> int:
    """A file without a name."""
    number, name = tempfile.mkstemp()
    os.unlink(name)
    return number

"""A command on a file system that is too small: `python -m benchmarks.large.small_disk`, which `disk_full` starts.

On Linux it mounts a tmpfs of so many bytes in a mount namespace of its own, which nobody else sees and which is gone
when it ends. Where that is not permitted, no file may grow beyond so many bytes. It prints JSON: the exit status, the
lines of standard error, the most bytes that were used, and digests of all files that are left.
"""

import argparse
import contextlib
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ALONE", "ENOUGH", "Taken", "digests", "on_small_disk"]

WAYS = ("mount", "file")
TAKEN = "another-program"
MORE = 64 * 1024  # for folders
ENOUGH = 4 * 2**30


@dataclass(frozen=True, kw_only=True)
class Taken:
    """Free space at first, of which another program takes all that is left later.

    Args:
        room: bytes; 0 for no other program.
        after: a phase of `--progress json` at whose end it does so; if omitted, once the command has written the bytes
            that it has room for.
        again: whether all space is free then for the same command once more, if it failed.
    """

    room: int = 0
    after: str = ""
    again: bool = False


ALONE = Taken()


def on_small_disk(
    place: Path, size: int, contents: Path, command: Sequence[str], *, way: str = "mount", taken: Taken = ALONE
) -> dict[str, Any]:
    """Run a command where a folder has room for `size` bytes beside its contents.

    Args:
        place: the folder, which is made.
        size: bytes.
        contents: a folder whose files are put there first.
        command: its words.
        way: `mount` or `file`.
        taken: what another program takes: for commands that look how much is free before they begin.

    Returns:
        code, lines, used (bytes), before and after (digests of files by their path in the folder), and the same of a
        second attempt with enough space as `again`.
    """
    place.mkdir(parents=True, exist_ok=True)
    own = [
        sys.executable,
        "-m",
        "benchmarks.large.small_disk",
        "--way",
        way,
        "--room",
        str(taken.room),
        "--after",
        taken.after,
        *(["--again"] if taken.again else []),
        str(place),
        str(size),
        str(contents),
    ]
    apart = ["unshare", "--map-root-user", "--mount"] if way == "mount" else []
    done = subprocess.run([*apart, *own, "--", *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"a small file system could not be made (try --way file): {done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--room", type=int, default=0)
    parser.add_argument("place", type=Path)
    parser.add_argument("size", type=int)
    parser.add_argument("contents", type=Path)
    parser.add_argument("command", nargs="+")
    parser.add_argument("--after", default="")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    full = sum(_blocks(path.stat().st_size) for path in options.contents.rglob("*")) + MORE
    if options.way == "mount":
        size = f"size={full + max(options.size, options.room)}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(options.place)], check=True)
    shutil.copytree(options.contents, options.place, dirs_exist_ok=True)
    before = digests(options.place)
    found = _run(options)
    if options.again and found["code"] != 0:
        (options.place / TAKEN).unlink(missing_ok=True)
        if options.way == "mount":
            subprocess.run(["mount", "-o", f"remount,size={ENOUGH}", str(options.place)], check=True)
        options.room, options.size = 0, ENOUGH
        found["again"] = _run(options)
    json.dump(found | {"before": before}, sys.stdout)


def _run(options: argparse.Namespace) -> dict[str, Any]:
    """The command, once."""
    used, end, lines = [_used(options.place)], threading.Event(), list[str]()
    takes = options.room and options.way == "mount"

    def look() -> None:
        while not end.wait(0.02):
            used.append(_used(options.place))
            if takes and not options.after and used[-1] - used[0] >= options.size:
                _take_all(options.place / TAKEN)
                return

    def limit() -> None:
        if options.way == "file":
            resource.setrlimit(resource.RLIMIT_FSIZE, (options.size, options.size))

    watch = threading.Thread(target=look)
    watch.start()
    out = subprocess.Popen(
        options.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=limit
    )
    assert out.stderr is not None
    for line in out.stderr:
        lines.append(line.rstrip("\n"))
        if takes and options.after and f'"phase": "{options.after}"' in line:
            _take_all(options.place / TAKEN)
    code = out.wait()
    end.set()
    watch.join()
    after = {path: digest for path, digest in digests(options.place).items() if path != TAKEN}
    return {"code": code, "lines": lines, "used": max(used) - used[0], "after": after}


def _take_all(path: Path) -> None:
    """Take space until there is none left, at once where the file system can."""
    with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(path.parent).free)
        while True:
            file.write(bytes(2**16))


def _blocks(size: int) -> int:
    return -(-size // 4096) * 4096


def _used(place: Path) -> int:
    """Bytes of all files below a folder, each counted once whatever its links."""
    found: dict[int, int] = {}
    for folder, _, names in os.walk(place):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                about = os.lstat(os.path.join(folder, name))
                found[about.st_ino] = about.st_size
    return sum(found.values())


if __name__ == "__main__":
    main()

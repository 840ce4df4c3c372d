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
from pathlib import Path
from typing import Any

__all__ = ["digests", "on_small_disk"]

WAYS = ("mount", "file")
TAKEN = "another-program"
MORE = 64 * 1024  # for folders


def on_small_disk(
    place: Path, size: int, contents: Path, command: Sequence[str], *, way: str = "mount", room: int = 0
) -> dict[str, Any]:
    """Run a command where a folder has room for `size` bytes beside its contents.

    Args:
        place: the folder, which is made.
        size: bytes.
        contents: a folder whose files are put there first.
        command: its words.
        way: `mount` or `file`.
        room: bytes of free space at first, of which another program takes all that is left once the command has written
            `size` bytes: for commands that look how much is free before they begin.

    Returns:
        code, lines, used (bytes), before and after (digests of files by their path in the folder).
    """
    place.mkdir(parents=True, exist_ok=True)
    own = [
        sys.executable,
        "-m",
        "benchmarks.large.small_disk",
        "--way",
        way,
        "--room",
        str(room),
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
    options = parser.parse_args()
    full = sum(_blocks(path.stat().st_size) for path in options.contents.rglob("*")) + MORE
    if options.way == "mount":
        size = f"size={full + max(options.size, options.room)}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(options.place)], check=True)
    shutil.copytree(options.contents, options.place, dirs_exist_ok=True)
    before, used, end = digests(options.place), [_used(options.place)], threading.Event()

    def look() -> None:
        while not end.wait(0.02):
            used.append(_used(options.place))
            if options.room and options.way == "mount" and used[-1] - used[0] >= options.size:
                _take_all(options.place / TAKEN)
                return

    def limit() -> None:
        if options.way == "file":
            resource.setrlimit(resource.RLIMIT_FSIZE, (options.size, options.size))

    watch = threading.Thread(target=look)
    watch.start()
    out = subprocess.run(options.command, capture_output=True, text=True, check=False, preexec_fn=limit)
    end.set()
    watch.join()
    found = {
        "code": out.returncode,
        "lines": out.stderr.splitlines(),
        "used": max(used) - used[0],
        "before": before,
        "after": {path: digest for path, digest in digests(options.place).items() if path != TAKEN},
    }
    json.dump(found, sys.stdout)


def _take_all(path: Path) -> None:
    """Write until there is no space left."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(2**16))


def _blocks(size: int) -> int:
    return -(-size // 4096) * 4096


def _used(place: Path) -> int:
    """Bytes of all files below a folder."""
    found = 0
    for folder, _, names in os.walk(place):
        for name in names:
            try:
                found += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return found


if __name__ == "__main__":
    main()

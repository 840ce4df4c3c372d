"""Checksums of files and bytes: SHA-256, a faster one that detects damage, and those that data sources publish."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

_BLOCK = 1 << 17  # 64-bit words: 1 MiB
_OCTETS = 8 * _BLOCK


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Written(Protocol):
    """Interface of a file that is written."""

    def write(self, content: Any, /) -> int:
        """Append bytes, or what has a buffer of them."""


class WordSums:
    """A fast checksum of bytes that come piece by piece: sums of 64-bit words per megabyte, at memory speed.

    It detects damage by disks and incomplete copies, but not a deliberate change. It is used as hashes of `hashlib`.
    """

    def __init__(self) -> None:
        self._digest, self._length, self._rest = hashlib.sha256(), 0, bytearray()

    def update(self, content: Any) -> None:
        """Take the next bytes into account, or what has a buffer of them."""
        octets = memoryview(content)
        if not octets.nbytes:  # such a buffer has no bytes to view
            return
        octets = octets.cast("B")
        self._length += len(octets)
        if self._rest:  # fill the block that was begun: a copy of all octets would take as much memory as they
            missing = _OCTETS - len(self._rest)
            self._rest += octets[:missing]
            octets = octets[missing:]
        if len(self._rest) == _OCTETS:
            self._digest.update(_block_sums(self._rest))
            self._rest = bytearray()
        whole = len(octets) // _OCTETS * _OCTETS
        if whole:
            self._digest.update(_block_sums(octets[:whole]))
        self._rest += octets[whole:]

    def hexdigest(self) -> str:
        """The checksum of all bytes so far."""
        digest = self._digest.copy()
        digest.update(self._rest + self._length.to_bytes(8, "little"))
        return digest.hexdigest()


def word_sums(path: Path) -> str:
    """The `WordSums` of a file."""
    import numpy as np  # not needed to list a cache

    sums = WordSums()
    if path.stat().st_size:
        sums.update(np.memmap(path, dtype=np.uint8, mode="r"))
    return sums.hexdigest()


def _block_sums(octets: Any) -> bytes:
    """The sums of 64-bit words of whole blocks."""
    import numpy as np  # not needed to list a cache

    found: bytes = np.frombuffer(octets, np.uint64).reshape(-1, _BLOCK).sum(axis=1, dtype=np.uint64).tobytes()
    return found


@dataclass(frozen=True, kw_only=True)
class Checksum:
    r"""The published checksum of a file.

    Args:
        kind: `sha256`, or `git-sha1`, git's id of a file.
        value: in lower-case hexadecimal digits.

    >>> Checksum(kind="git-sha1", value="ce013625030ba8dba906f756967f9e9ca394464a").of_bytes(b"hello\n")
    'ce013625030ba8dba906f756967f9e9ca394464a'
    """

    kind: Literal["sha256", "git-sha1"]
    value: str

    def of_bytes(self, content: bytes) -> str:
        """This kind of checksum of `content`."""
        is_git = self.kind == "git-sha1"
        hasher = hashlib.new("sha1" if is_git else "sha256", usedforsecurity=False)
        hasher.update(b"blob %d\0" % len(content) if is_git else b"")
        hasher.update(content)
        return hasher.hexdigest()

    def of_file(self, path: Path) -> str:
        """This kind of checksum of a file; if its name ends in `.gz`, of the decompressed bytes."""
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return self.of_bytes(file.read())

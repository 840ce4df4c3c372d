"""Checksums of files and bytes: SHA-256, a faster one that detects damage, and those that data sources publish."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

__all__ = ["Checksum", "SummedFile", "Written", "file_digest", "word_sums"]

_BLOCK = 1 << 17  # 64-bit words: 1 MiB
_OCTETS = 8 * _BLOCK


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits.

    Errors:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def word_sums(path: Path) -> str:
    """A fast checksum of a file: sums of 64-bit words per megabyte, at memory speed.

    It detects damage by disks and incomplete copies, but not a deliberate change.

    Errors:
        OSError: it cannot be read.
    """
    import numpy as np  # not needed to list a cache

    octets = np.memmap(path, dtype=np.uint8, mode="r") if path.stat().st_size else np.empty(0, dtype=np.uint8)
    whole = len(octets) // _OCTETS * _OCTETS
    rest = octets[whole:].tobytes() + len(octets).to_bytes(8, "little")
    return hashlib.sha256(_block_sums(octets[:whole]) + rest).hexdigest()


class Written(Protocol):
    """Interface of a file that is written."""

    def write(self, content: Any, /) -> int:
        """Append bytes, or what has a buffer of them."""


class SummedFile:
    """A file that is written, with its `word_sums`, for which it need not be read again.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     summed = SummedFile(file)
    ...     _ = summed.write(b"some"), summed.write(bytes(3 << 20)), file.flush()
    ...     summed.sums() == word_sums(Path(file.name))
    True
    """

    def __init__(self, file: Written) -> None:
        self._file, self._digest, self._length, self._rest = file, hashlib.sha256(), 0, bytearray()

    def write(self, content: Any) -> int:
        """Append bytes, or what has a buffer of them; returns their number."""
        written = self._file.write(content)
        octets = memoryview(content)
        if not octets.nbytes:  # such a buffer has no bytes to view
            return written
        octets = octets.cast("B")
        self._length += len(octets)
        if self._rest:  # fill the block that was begun
            missing = min(_OCTETS - len(self._rest), len(octets))
            self._rest += octets[:missing]
            octets = octets[missing:]
            if len(self._rest) == _OCTETS:
                self._digest.update(_block_sums(self._rest))
                self._rest = bytearray()
        whole = len(octets) // _OCTETS * _OCTETS
        if whole:
            self._digest.update(_block_sums(octets[:whole]))
        self._rest += octets[whole:]
        return written

    def sums(self) -> str:
        """The `word_sums` of what has been written."""
        digest = self._digest.copy()
        digest.update(self._rest + self._length.to_bytes(8, "little"))
        return digest.hexdigest()


def _block_sums(octets: Any) -> bytes:
    """The sums of 64-bit words of whole blocks."""
    import numpy as np

    found: bytes = np.frombuffer(octets, np.uint64).reshape(-1, _BLOCK).sum(axis=1, dtype=np.uint64).tobytes()
    return found


@dataclass(frozen=True, kw_only=True)
class Checksum:
    r"""The published checksum of a file.

    Args:
        kind: `sha256`, `md5` (the only one that some sources publish), or `git-sha1`, git's id of a file.
        value: in lower-case hexadecimal digits.

    >>> Checksum(kind="git-sha1", value="ce013625030ba8dba906f756967f9e9ca394464a").of_bytes(b"hello\n")
    'ce013625030ba8dba906f756967f9e9ca394464a'
    """

    kind: Literal["sha256", "md5", "git-sha1"]
    value: str

    def of_bytes(self, content: bytes) -> str:
        """This kind of checksum of `content`."""
        hasher = self._hasher(len(content))
        hasher.update(content)
        return hasher.hexdigest()

    def of_file(self, path: Path) -> str:
        """This kind of checksum of a file; if its name ends in `.gz`, of the decompressed bytes."""
        if path.suffix == ".gz":
            # git-sha1 needs the length before the first byte.
            with gzip.open(path, "rb") as packed:
                return self.of_bytes(packed.read())
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: self._hasher(path.stat().st_size)).hexdigest()

    def _hasher(self, size: int) -> "hashlib._Hash":
        if self.kind == "git-sha1":
            return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        if self.kind == "md5":
            return hashlib.md5(usedforsecurity=False)
        return hashlib.sha256()

"""Checksums of files: SHA-256, and a fast one that detects damage."""

import hashlib
from pathlib import Path
from typing import Any

_WORDS_PER_BLOCK = 1 << 17
_BYTES_PER_BLOCK = 8 * _WORDS_PER_BLOCK


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class WordSums:
    """A fast checksum of bytes that come chunk by chunk: sums of 64-bit words per megabyte, at memory speed.

    It detects damage by disks and incomplete copies, but not a deliberate change. It is used as
    hashes of `hashlib`.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._length = 0
        self._rest = bytearray()

    def update(self, content: Any) -> None:
        """Take the next bytes into account, or what has a buffer of them."""
        octets = memoryview(content)
        if not octets.nbytes:  # such a buffer has no bytes to view
            return
        octets = octets.cast("B")
        self._length += len(octets)
        # fill the block that was begun: a copy of all octets would take as much memory as they
        if self._rest:
            missing = _BYTES_PER_BLOCK - len(self._rest)
            self._rest += octets[:missing]
            octets = octets[missing:]
        if len(self._rest) == _BYTES_PER_BLOCK:
            self._digest.update(_block_sums(self._rest))
            self._rest = bytearray()
        whole = len(octets) // _BYTES_PER_BLOCK * _BYTES_PER_BLOCK
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

    result: bytes = (
        np.frombuffer(octets, np.uint64)
        .reshape(-1, _WORDS_PER_BLOCK)
        .sum(axis=1, dtype=np.uint64)
        .tobytes()
    )
    return result

"""Checksums of a stated kind, over files and bytes."""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

__all__ = ["Checksum"]

_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Checksum:
    r"""What the bytes of a file must hash to.

    Args:
        kind: `sha256`, `md5` (the only one that some origins publish), or `git-sha1`, the id that git gives a file.
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
        """This kind of checksum of a file; of the bytes inside where its name ends in `.gz`."""
        if path.suffix == ".gz":
            # git-sha1 needs the length before the first byte.
            with gzip.open(path, "rb") as packed:
                return self.of_bytes(packed.read())
        with path.open("rb") as file:
            return self._of_stream(file, path.stat().st_size)

    def _of_stream(self, file: IO[bytes], size: int) -> str:
        hasher = self._hasher(size)
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
        return hasher.hexdigest()

    def _hasher(self, size: int) -> "hashlib._Hash":
        if self.kind == "git-sha1":
            return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        if self.kind == "md5":
            return hashlib.md5(usedforsecurity=False)
        return hashlib.sha256()

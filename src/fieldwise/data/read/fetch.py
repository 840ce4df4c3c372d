"""Downloading public data sets from their official sources: verified, written atomically."""

import http.client
import io
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from fieldwise.data.read.public import PublicSet, find
from fieldwise.errors import DataError
from fieldwise.storage.files import write_atomically

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes so far and, if known, the total."""

_CHUNK = 1 << 18
_TIMEOUT = 60.0


def fetch(public_set: PublicSet, data_dir: str | Path, *, progress: Progress = lambda *_: None) -> list[Path]:
    """Download a public set's files into its folder below `data_dir`; correct existing files are kept.

    A file is stored when its checksum is right. Of a zip archive only the set's files are kept, under their own names:
    names inside the archive are never used as paths. `progress` is called during each download.

    Returns:
        The files, in the set's order; an already present `NAME.gz` stands for `NAME`.

    Errors:
        DataError: the set's terms must be accepted by a person, the source cannot be reached, a checksum is wrong, an
            existing file is not the official one, the disk is full.
    """
    if not public_set.origin:
        raise DataError(f"{public_set.name} cannot be fetched by a program: {public_set.by_hand}")
    folder, origin = Path(data_dir) / public_set.folder, public_set.origin
    archive: bytes | None = None
    paths = []
    for name, *_ in public_set.needs:
        path = find(folder, name)
        if path is not None:
            public_set.verify(path)
        else:
            url = origin if origin.endswith(".zip") else f"{origin}/{name}"
            if url == origin:
                archive = _download(url, progress) if archive is None else archive
                content = _member(archive, f"{public_set.folder}/{name}", url)
            else:
                content = _download(url, progress)
            checksum = public_set.checksums[name]
            if (found := checksum.of_bytes(content)) != checksum.value:
                raise DataError(
                    f"{name} of {url} is not the official file: its {checksum.kind} is {found}, expected "
                    f"{checksum.value}; nothing was stored, fetch again"
                )
            path = folder / name
            write_atomically(path, content)
        paths.append(path)
    return paths


def _download(url: str, progress: Progress) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "fieldwise", "Accept-Encoding": "identity"})
    content = bytearray()
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = None if length is None else int(length)
            progress(0, total)
            while chunk := response.read(_CHUNK):
                content += chunk
                progress(len(content), total)
    except urllib.error.HTTPError as e:
        raise DataError(f"{url} answered {e.code} {e.reason}; try later or download it manually") from e
    except (OSError, http.client.HTTPException) as e:  # URLError, timeouts and broken connections are OSErrors
        reason = getattr(e, "reason", None) or e or type(e).__name__
        raise DataError(f"cannot download {url} ({reason}); check the network and fetch again") from e
    if total is not None and len(content) < total:
        raise DataError(f"{url} broke off after {len(content)} of {total} bytes; fetch again")
    return bytes(content)


def _member(archive: bytes, name: str, url: str) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            return packed.read(name)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as e:
        raise DataError(f"{url} is not a zip archive with {name} ({e}); fetch again") from e

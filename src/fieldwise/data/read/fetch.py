"""Downloading public data sets from their official sources: resumable, verified, written atomically."""

import errno
import http.client
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldwise.data.read.public.sets import Member, PublicSet, RemoteFile
from fieldwise.errors import DataError
from fieldwise.storage.checksums import Checksum
from fieldwise.storage.files import sync_folder

__all__ = ["Progress", "fetch"]

Progress = Callable[[int, int | None], None]
"""Called with the number of bytes so far and, if known, the total."""

_CHUNK = 1 << 18
_TIMEOUT = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


def fetch(public_set: PublicSet, data_dir: str | Path, *, progress: Progress | None = None) -> list[Path]:
    """Download a public set's files into its folder below `data_dir`; correct existing files are kept.

    A download is written to `NAME.part` and continues there after an interruption; it is renamed when its size and
    checksum are right. Only the needed members of a zip archive are kept.

    Args:
        public_set: one of `PUBLIC_SETS`.
        data_dir: the folder of all data sets.
        progress: called during each download.

    Returns:
        The files, in the set's order; an already present `NAME.gz` stands for `NAME`.

    Errors:
        DataError: the set's terms must be accepted by a person, the source cannot be reached, a size or checksum is
            wrong, an existing file is not the official one, the disk is full.
    """
    if not public_set.files:
        raise DataError(f"{public_set.name} cannot be fetched by a program: {public_set.by_hand}")
    folder = Path(data_dir) / public_set.folder
    paths: list[Path] = []
    for file in public_set.files:
        wanted = [(m.name, m.checksum) for m in file.unpack] or [(file.name, file.checksum)]
        present = [_present(folder, name, checksum) for name, checksum in wanted]
        if None in present:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                present = _get(file, folder, present, progress)
            except OSError as e:
                reason = "the disk is full" if e.errno in _FULL else f"cannot write: {e.strerror or e}"
                raise DataError(f"{reason}: {file.name} was not stored in {folder}; choose another --data-dir") from e
        paths.extend(path for path in present if path is not None)
    return paths


def _present(folder: Path, name: str, checksum: Checksum | None) -> Path | None:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            if checksum is not None:
                try:
                    found = checksum.of_file(path)
                except (OSError, EOFError) as e:
                    raise DataError(f"{path} cannot be read ({e}); remove it and fetch again") from e
                if found != checksum.value:
                    raise DataError(
                        f"{path} exists but is not the official file: its {checksum.kind} is {found}, expected "
                        f"{checksum.value}; remove it and fetch again"
                    )
            return path
    return None


def _get(file: RemoteFile, folder: Path, present: list[Path | None], progress: Progress | None) -> list[Path | None]:
    part = folder / f"{file.name}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    _download(file, part, progress)
    _verify(file, part)
    if file.unpack:
        made: list[Path | None] = [
            path or _unpack(part, member, folder, file.url) for path, member in zip(present, file.unpack, strict=True)
        ]
        part.unlink()
        return made
    final = folder / file.name
    os.replace(part, final)
    sync_folder(final.parent)
    return [final]


def _download(file: RemoteFile, part: Path, progress: Progress | None) -> None:
    """Download the rest of `part`; an interruption keeps what has arrived for the next call."""
    have = part.stat().st_size if part.exists() else 0
    if file.bytes is not None and have == file.bytes:
        return
    if file.bytes is not None and have > file.bytes:
        have = 0
    try:
        response = _open(file.url, have)
        if response is None:
            # 416: there are no further bytes, so the file is complete or wrong, which the checksum shows.
            if file.checksum is None or file.checksum.of_file(part) == file.checksum.value:
                return
            have, response = 0, _open(file.url, 0)
        with response:
            _receive(response, file, part, have, progress)
    except urllib.error.HTTPError as e:
        raise DataError(f"{file.url} answered {e.code} {e.reason}; try later or download {file.name} manually") from e
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as e:
        reason = getattr(e, "reason", None) or e or type(e).__name__
        raise DataError(f"cannot download {file.url} ({reason}); check the network and fetch again to resume") from e


def _open(url: str, start: int) -> Any:
    """The response from byte `start` on; None if the server has no such bytes."""
    request = urllib.request.Request(url, headers={"User-Agent": "fieldwise", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        return urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as e:
        if e.code == 416 and start:
            e.close()
            return None
        raise


def _receive(response: Any, file: RemoteFile, part: Path, have: int, progress: Progress | None) -> None:
    resumed = response.status == 206
    if resumed and not str(response.headers.get("Content-Range", "")).startswith(f"bytes {have}-"):
        raise DataError(f"{file.url} did not continue at byte {have}; remove {part} and fetch again")
    done = have if resumed else 0
    length = response.headers.get("Content-Length")
    total = done + int(length) if length is not None else file.bytes
    with part.open("ab" if resumed else "wb") as out:
        if progress is not None:
            progress(done, total)
        while chunk := _read(response, file.url):
            out.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
        out.flush()
        os.fsync(out.fileno())
    if total is not None and done < total:
        raise DataError(f"{file.url} broke off after {done} of {total} bytes; fetch again to resume")


def _read(response: Any, url: str) -> bytes:
    """The next bytes; separate from writing, so that a lost connection is not reported as a full disk."""
    try:
        return bytes(response.read(_CHUNK))
    except (OSError, http.client.HTTPException) as e:
        raise DataError(f"{url} broke off ({e}); check the network and fetch again to resume") from e


def _verify(file: RemoteFile, part: Path) -> None:
    size = part.stat().st_size
    if file.bytes is not None and size != file.bytes:
        part.unlink()
        raise DataError(f"{file.url} gave {size} bytes, expected {file.bytes}; nothing was stored, fetch again")
    if file.checksum is not None and (found := file.checksum.of_file(part)) != file.checksum.value:
        part.unlink()
        raise DataError(
            f"{file.url} is not the official file: its {file.checksum.kind} is {found}, expected "
            f"{file.checksum.value}; nothing was stored, fetch again"
        )


def _unpack(archive: Path, member: Member, folder: Path, url: str) -> Path:
    """Unpack one member under the set's name for it; names inside the archive are never used as paths."""
    final = folder / member.name
    temporary = folder / f"{member.name}.unpacked"
    try:
        with zipfile.ZipFile(archive) as packed, packed.open(member.path) as source, temporary.open("wb") as out:
            while chunk := source.read(_CHUNK):
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if member.checksum is not None and (found := member.checksum.of_file(temporary)) != member.checksum.value:
            archive.unlink()
            raise DataError(
                f"{member.path} in {url} is not the official file: its {member.checksum.kind} is {found}, expected "
                f"{member.checksum.value}"
            )
        os.replace(temporary, final)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as e:
        archive.unlink()
        raise DataError(f"{url} is not a zip archive with {member.path} ({e}); fetch again") from e
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(final.parent)
    return final

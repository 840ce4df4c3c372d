"""Downloads against a server on loopback: whole, broken off, wrong, refused, zipped."""

import gzip
import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest

from fieldwise import DataError
from fieldwise.data.read.public_sets import PUBLIC_SETS, PublicSet, fetch

CONTENT = bytes(range(256)) * 4096  # 1 MiB


@dataclass
class Origin:
    """What the server does, and what it was asked for."""

    content: bytes = CONTENT
    break_after: int | None = None
    status: int = 200
    asked: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Origin]:
    monkeypatch.setenv("no_proxy", "*")
    state = Origin()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            if state.status != 200:
                self.send_error(state.status)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(state.content)))
            self.end_headers()
            self.wfile.write(state.content[: state.break_after])

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    yield state
    server.shutdown()
    server.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def toy(url: str, **files: str) -> PublicSet:
    checksums = {f"{name}.dat": checksum for name, checksum in files.items()} or {
        "rows.csv": sha256(CONTENT)
    }
    return PublicSet(
        name="toy", folder="toy", title="Toy", rows=1, licence="none", load=lambda _: pl.DataFrame(),
        needs=tuple((name, f"other/{name}") for name in checksums), checksums=checksums, origin=url,
    )  # fmt: skip


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_download_reports_its_progress_and_is_not_repeated(
    origin: Origin, tmp_path: Path
) -> None:
    seen: list[tuple[int, int | None]] = []
    paths = fetch(
        toy(origin.url), tmp_path, progress=lambda done, total: seen.append((done, total))
    )
    assert paths == [tmp_path / "toy" / "rows.csv"]
    assert paths[0].read_bytes() == CONTENT
    assert names(tmp_path / "toy") == ["rows.csv"]
    assert seen[0] == (0, len(CONTENT))
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert fetch(toy(origin.url), tmp_path) == paths
    assert origin.asked == ["/rows.csv"]
    assert toy(origin.url).present(tmp_path)
    assert not toy(origin.url).present(tmp_path / "toy")


def test_a_packed_copy_is_taken_as_it_is(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "rows.csv.gz").write_bytes(gzip.compress(CONTENT))
    assert fetch(toy(origin.url), tmp_path) == [tmp_path / "toy" / "rows.csv.gz"]
    assert origin.asked == []
    (tmp_path / "toy" / "rows.csv.gz").write_bytes(gzip.compress(CONTENT)[:-20])
    with pytest.raises(DataError, match=r"cannot be read.*remove it"):
        fetch(toy(origin.url), tmp_path)


def test_a_broken_or_interrupted_download_stores_nothing(origin: Origin, tmp_path: Path) -> None:
    def interrupt(done: int, total: int | None) -> None:
        if done > 400_000:
            raise KeyboardInterrupt

    origin.break_after = 300_000
    with pytest.raises(
        DataError, match=r"rows\.csv broke off after 300000 of 1048576 bytes; fetch again"
    ):
        fetch(toy(origin.url), tmp_path)
    origin.break_after = None
    with pytest.raises(KeyboardInterrupt):
        fetch(toy(origin.url), tmp_path, progress=interrupt)
    assert names(tmp_path) == []
    (path,) = fetch(toy(origin.url), tmp_path)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["sha256", "git-sha1"])
def test_a_wrong_checksum_stores_nothing(origin: Origin, tmp_path: Path, kind: str) -> None:
    right = (
        sha256(CONTENT)
        if kind == "sha256"
        else hashlib.sha1(b"blob 1048576\0" + CONTENT).hexdigest()
    )
    wrong = "0" * len(right)
    with pytest.raises(
        DataError, match=f"its {kind} is {right}, expected {wrong}; nothing was stored"
    ):
        fetch(toy(origin.url, a=wrong), tmp_path)
    assert names(tmp_path) == []
    fetch(toy(origin.url, a=right), tmp_path)
    assert names(tmp_path / "toy") == ["a.dat"]


def test_a_foreign_file_is_never_overwritten(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "rows.csv").write_bytes(b"mine")
    with pytest.raises(
        DataError, match=f"is not the official file.*expected {sha256(CONTENT)}; remove it"
    ):
        fetch(toy(origin.url), tmp_path)
    assert (tmp_path / "toy" / "rows.csv").read_bytes() == b"mine"
    assert origin.asked == []


def test_network_faults_are_sentences(origin: Origin, tmp_path: Path) -> None:
    origin.status = 404
    with pytest.raises(DataError, match=r"answered 404 Not Found; try later"):
        fetch(toy(origin.url), tmp_path)
    with pytest.raises(
        DataError,
        match=r"cannot download http://127\.0\.0\.1:1/rows.csv \(.*refused.*\); check the",
    ):
        fetch(toy("http://127.0.0.1:1"), tmp_path)


def test_a_folder_that_cannot_be_made(origin: Origin, tmp_path: Path) -> None:
    (tmp_path / "toy").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot write .*rows\.csv"):
        fetch(toy(origin.url), tmp_path)


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def zip_set(origin: Origin) -> PublicSet:
    return toy(f"{origin.url}/toy.zip", a=sha256(b"a"), b=sha256(b"b"))


def test_only_the_wanted_members_of_a_zip_are_kept(origin: Origin, tmp_path: Path) -> None:
    origin.content = zipped(
        {"toy/a.dat": b"a", "toy/b.dat": b"b", "toy/c.dat": b"c", "../evil.dat": b"e"}
    )
    paths = fetch(zip_set(origin), tmp_path)
    assert paths == [tmp_path / "toy" / "a.dat", tmp_path / "toy" / "b.dat"]
    assert [path.read_bytes() for path in paths] == [b"a", b"b"]
    assert names(tmp_path / "toy") == ["a.dat", "b.dat"]
    assert names(tmp_path) == ["toy"]
    # Where one member is missing only that one is unpacked again.
    kept = os.stat(paths[0]).st_mtime_ns
    paths[1].unlink()
    assert fetch(zip_set(origin), tmp_path) == paths
    assert os.stat(paths[0]).st_mtime_ns == kept
    assert origin.asked == ["/toy.zip"] * 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zipped({"toy/a.dat": b"a"}), r"is not a zip archive with toy/b\.dat"),
        (b"no zip at all", r"is not a zip archive with toy/a\.dat"),
        (
            zipped({"toy/a.dat": b"a", "toy/b.dat": b"not b"}),
            r"b\.dat of .* is not the official file: its sha256",
        ),
    ],
)
def test_faults_of_a_zip_leave_no_part(
    origin: Origin, tmp_path: Path, content: bytes, message: str
) -> None:
    origin.content = content
    with pytest.raises(DataError, match=message):
        fetch(zip_set(origin), tmp_path)
    assert not (tmp_path / "toy").exists() or names(tmp_path / "toy") == ["a.dat"]


def test_sets_with_terms_say_where_to_get_them(tmp_path: Path) -> None:
    for name in ("criteo", "criteo-sample", "avazu", "avazu-sample"):
        with pytest.raises(
            DataError, match=rf"{name} cannot be fetched by a program: accept .* into the folder "
        ):
            fetch(PUBLIC_SETS[name], tmp_path)
    assert names(tmp_path) == []


def test_every_set_can_be_had_and_every_file_is_verified() -> None:
    for name, public_set in PUBLIC_SETS.items():
        assert public_set.name == name
        assert bool(public_set.origin) != bool(public_set.by_hand)
        if public_set.origin:
            assert public_set.origin.startswith("https://")
            assert all(names[0] in public_set.checksums for names in public_set.needs)

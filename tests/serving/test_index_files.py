"""An index whose files are written to while it is served: copies stay as they were read, maps follow their files."""

import dataclasses
import json
import os
import shutil

import polars as pl
import pytest
import torch
from serving.conftest import catalogue

from fieldwise import Bundle
from fieldwise.bundle.bundle import BUNDLE
from fieldwise.errors import BundleError
from fieldwise.serving import build_index, open_index
from fieldwise.serving.index import INDEX, write_heads
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.artifact import Artifact, writing

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def folder(request, tmp_path, tower):
    build_index(tower, catalogue(), tmp_path / "ix", storage=request.param)
    return tmp_path / "ix"


def heads_of(folder):
    (path,) = folder.glob("heads.*.npy")
    return path


def test_heads_are_mapped_and_checked(folder):
    index, path = open_index(folder), heads_of(folder)
    before = index.stored.heads.clone()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x01" * 16)
    assert not torch.equal(before, index.stored.heads), "writing into an open index must not be done"
    with pytest.raises(BundleError, match="does not match its checksum or size"):
        open_index(folder)


def test_a_server_goes_on_when_another_index_is_copied_over_its_own(tmp_path, tower, ranker):

    import httpx
    from serving.commands import serving

    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    build_index(tower, catalogue(), tmp_path / "ix")
    with serving(tmp_path, "ranker", "--prerank", "tower", "--index", "ix", "--watch", 0.2) as server:

        def ask():
            answer = httpx.post(f"{server.place}/v1/recommend", json={"context": CONTEXT, "k": 5}, timeout=120)
            assert answer.status_code == 200, answer.text
            return [(item["id"], item["prediction"]) for item in answer.json()["items"]]

        before = ask()
        os.truncate(heads_of(tmp_path / "ix"), 100)
        assert ask() == before
        build_index(tower, catalogue(20), tmp_path / "other")
        for path in (tmp_path / "other").iterdir():
            shutil.copy(path, tmp_path / "ix" / path.name)
        assert ask() is not None
        assert server.process.poll() is None


# files that are none


def facts_of(about):
    """The entries of a manifest that are given again when it is written again."""
    return {k: v for k, v in about.items() if k not in ("format", "files", "sha256")}


def signed_again(folder, change):
    """Put an index's manifest back with another entry of its heads and a checksum that fits."""
    saved = INDEX.open(folder)
    files = json.loads(json.dumps(saved.about["files"]))
    change(files)
    (folder / "index.json").write_bytes(Artifact.of(INDEX, folder, facts_of(saved.about), files).text())


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path, tower):
    build_index(tower, catalogue(), tmp_path / "ix")
    path = heads_of(tmp_path / "ix")
    path.unlink()
    os.mkfifo(path)
    signed_again(tmp_path / "ix", lambda files: files["heads"].update(bytes=0))
    with pytest.raises(BundleError, match="damaged"):
        open_index(tmp_path / "ix")
    (tmp_path / "ix" / "index.json").unlink()
    os.mkfifo(tmp_path / "ix" / "index.json")
    with pytest.raises(BundleError, match="is no regular file"):
        open_index(tmp_path / "ix")


def test_files_of_a_bundle_have_limits(tmp_path, ranker):
    """A file of 8 GiB without blocks on the disk, named by a manifest that fits: it is not read."""
    ranker.save(tmp_path / "b")
    manifest = json.loads((tmp_path / "b" / "bundle.json").read_text())
    entry = manifest["files"]["samples"]
    with (tmp_path / "b" / entry["name"]).open("r+b") as file:
        file.truncate(8 << 30)
    entry["bytes"] = 8 << 30
    artifact = Artifact.of(BUNDLE, tmp_path / "b", facts_of(manifest), manifest["files"])
    (tmp_path / "b" / "bundle.json").write_bytes(artifact.text())
    with pytest.raises(BundleError, match="gives samples a size of 8589934592 bytes"):
        Bundle.load(tmp_path / "b")


@pytest.mark.parametrize("part", ["bundle.json", "schema", "encoder"])
def test_deep_files_are_damaged_ones(tmp_path, ranker, part):
    ranker.save(tmp_path / "b")
    if part == "bundle.json":
        (tmp_path / "b" / part).write_text('{"format": 2, "files": ' + "[" * 100_000)
    else:
        saved = BUNDLE.open(tmp_path / "b")
        contents = {name: saved.content(name) for name in saved.parts}
        contents[part] = b"a = " + b"[" * 100_000 if part == "schema" else b"[" * 100_000
        with writing(BUNDLE, tmp_path / "b") as writer:
            for name, content in contents.items():
                writer.add(name, content)
            writer.finish(**facts_of(saved.about))
    with pytest.raises(BundleError, match=r"damaged|cannot be read"):
        Bundle.load(tmp_path / "b")


def test_an_index_without_sense_is_refused(tmp_path, tower):
    """Ids that stand twice or are none, and heads that are no numbers, with checksums that fit."""
    index = build_index(tower, catalogue(), tmp_path / "ix")[0]
    twice = index.items.with_columns(item=pl.lit("i1"))
    none = index.items.with_columns(item=pl.when(pl.int_range(pl.len()) > 0).then(pl.col("item")))
    bad = index.stored.heads.clone()
    bad[3, 0, 0] = float("nan")
    for items, heads, said in (
        (twice, index.stored.heads, "occurs twice"),
        (none, index.stored.heads, "found None"),
        (index.items, bad, "not finite"),
    ):
        with writing(INDEX, tmp_path / "wrong") as writer:
            write_heads(writer, iter([dataclasses.replace(index.stored, heads=heads)]), len(heads))
            writer.add("items", arrow_bytes(items))
            writer.finish(**facts_of(INDEX.open(tmp_path / "ix").about))
        with pytest.raises(BundleError, match=said):
            open_index(tmp_path / "wrong")

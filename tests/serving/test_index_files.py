"""An index whose files are written to while it is served: copies stay as they were read, maps follow their files."""

import dataclasses
import json
import os
import shutil

import numpy as np
import polars as pl
import pytest
import torch
from serving.conftest import catalogue

from fieldwise import Bundle
from fieldwise.errors import BundleError
from fieldwise.serving import Cascade, Query, build_index, open_index
from fieldwise.serving.index_files import INDEX
from fieldwise.storage.arrays import array_of
from fieldwise.storage.artifact import Artifact

CONTEXT = {"user": "u1", "history": ["i1", "i2"], "device": "tv"}


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def folder(request, tmp_path, tower):
    build_index(tower, catalogue(), tmp_path / "ix", storage=request.param)
    return tmp_path / "ix"


def heads_of(folder):
    (path,) = folder.glob("heads.*.npy")
    return path


def test_a_copy_stays_whatever_becomes_of_the_files(folder, tower):
    index = open_index(folder)
    before = {name: tensor.clone() for name, tensor in index.stored.tensors().items()}
    for path in folder.iterdir():  # as `cp` writes: in place
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)
            file.truncate(path.stat().st_size // 2)
    for name, tensor in index.stored.tensors().items():
        assert torch.equal(tensor, before[name])
        tensor.view(-1)[:1].add_(0)  # memory of its own, that may be written to
    assert Cascade(tower, index).recommend(Query(context={**CONTEXT, "history": "i1|i2"}, k=3)).items.height == 3


def test_a_map_is_the_file_and_equals_the_copy(folder):
    copied, mapped = open_index(folder), open_index(folder, mapped=True)
    for name, tensor in copied.stored.tensors().items():
        assert torch.equal(tensor, mapped.stored.tensors()[name])
    path = heads_of(folder)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x01" * 16)
    assert not torch.equal(copied.stored.heads, mapped.stored.heads), "what --map-index says must not be done"
    with pytest.raises(BundleError, match="does not match its checksum or size"):
        open_index(folder)


def test_arrays_are_read_as_numpy_reads_them(tmp_path):
    for array in (np.arange(6, dtype=np.int8).reshape(1, 2, 3), np.zeros((0, 4), np.float32), np.float32([1.5])):
        np.save(tmp_path / "a.npy", array)
        found = array_of(bytearray((tmp_path / "a.npy").read_bytes()))
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)
    for wrong in (np.array([{}], object), np.asfortranarray(np.ones((2, 3)))):
        np.save(tmp_path / "a.npy", wrong)
        with pytest.raises(ValueError, match="numbers row by row"):
            array_of(bytearray((tmp_path / "a.npy").read_bytes()))
    np.save(tmp_path / "a.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"size|multiple|reshape"):
        array_of(bytearray((tmp_path / "a.npy").read_bytes()[:-4]))


def test_a_server_goes_on_when_another_index_is_copied_over_its_own(tmp_path, tower, ranker):
    pytest.importorskip("fastapi", reason="FastAPI is absent: pip install 'fieldwise[serve]'")
    import httpx
    from serving.commands import serving

    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    build_index(tower, catalogue(), tmp_path / "ix")
    with serving(tmp_path, "ranker", "--prerank", "tower", "--index", "ix", "--watch", 0.2) as server:

        def ask():
            answer = httpx.post(f"{server.place}/v1/recommend", json={"context": CONTEXT, "k": 5}, timeout=20)
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


def signed_again(folder, change):
    """Put an index's manifest back with another entry of its heads and a checksum that fits."""
    saved = INDEX.open(folder)
    files = json.loads(json.dumps(saved.about["files"]))
    change(files)
    facts = {k: v for k, v in saved.about.items() if k not in ("format", "files", "sha256")}
    (folder / "index.json").write_bytes(Artifact.of(INDEX, folder, facts, files).text())


def test_a_pipe_in_place_of_a_file_is_refused_and_not_waited_for(tmp_path, tower):
    build_index(tower, catalogue(), tmp_path / "ix")
    path = heads_of(tmp_path / "ix")
    path.unlink()
    os.mkfifo(path)
    signed_again(tmp_path / "ix", lambda files: files["heads"].update(bytes=0))
    for mapped in (False, True):
        with pytest.raises(BundleError, match="damaged"):
            open_index(tmp_path / "ix", mapped=mapped)
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
    from fieldwise.bundle.files import BUNDLE

    facts = {k: v for k, v in manifest.items() if k not in ("format", "files", "sha256")}
    artifact = Artifact.of(BUNDLE, tmp_path / "b", facts, manifest["files"])
    (tmp_path / "b" / "bundle.json").write_bytes(artifact.text())
    with pytest.raises(BundleError, match="gives samples a size of 8589934592 bytes"):
        Bundle.load(tmp_path / "b")


@pytest.mark.parametrize("part", ["bundle.json", "schema", "encoder"])
def test_deep_files_are_damaged_ones(tmp_path, ranker, part):
    from fieldwise.bundle.files import BUNDLE
    from fieldwise.storage.writer import writing

    ranker.save(tmp_path / "b")
    if part == "bundle.json":
        (tmp_path / "b" / part).write_text('{"format": 2, "files": ' + "[" * 100_000)
    else:
        saved = BUNDLE.open(tmp_path / "b")
        contents = {name: saved.content(name) for name in saved.parts}
        contents[part] = b"a = " + b"[" * 100_000 if part == "schema" else b"[" * 100_000
        facts = {k: v for k, v in saved.about.items() if k not in ("format", "files", "sha256")}
        with writing(BUNDLE, tmp_path / "b") as writer:
            for name, content in contents.items():
                writer.add(name, content)
            writer.finish(**facts)
    with pytest.raises(BundleError, match=r"damaged|cannot be read"):
        Bundle.load(tmp_path / "b")


def test_an_index_without_sense_is_refused(tmp_path, tower):
    """Ids that stand twice or are none, and heads that are no numbers, with checksums that fit."""
    from fieldwise.serving.index_files import write_heads
    from fieldwise.storage.arrays import arrow_bytes
    from fieldwise.storage.writer import writing

    index = build_index(tower, catalogue(), tmp_path / "ix")[0]
    twice = index.items.with_columns(item=pl.lit("i1"))
    none = index.items.with_columns(item=pl.when(pl.int_range(pl.len()) > 0).then(pl.col("item")))
    bad = index.stored.heads.clone()
    bad[3, 0, 0] = float("nan")
    for items, heads, said in (
        (twice, index.stored.heads, "occurs more than once"),
        (none, index.stored.heads, "every item needs an id"),
        (index.items, bad, "not finite"),
    ):
        about = INDEX.open(tmp_path / "ix").about
        facts = {k: v for k, v in about.items() if k not in ("format", "files", "sha256")}
        with writing(INDEX, tmp_path / "wrong") as writer:
            write_heads(writer, iter([dataclasses.replace(index.stored, heads=heads)]), len(heads))
            writer.add("items", arrow_bytes(items))
            writer.finish(**facts)
        with pytest.raises(BundleError, match=said):
            open_index(tmp_path / "wrong")

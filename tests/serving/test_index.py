"""The index scores as the whole network does and updates only what changed; damaged or hostile files are refused."""

import dataclasses
import json
import os
import shutil

import httpx
import numpy as np
import polars as pl
import pytest
import torch
from random_bundle import random_bundle
from serving.commands import serving
from serving.conftest import SCHEMA, TOWER, catalogue, log

from fieldwise import DSSM, Bundle, BundleError, ConfigError, DataError, Label, Numeric
from fieldwise.bundle.about import About
from fieldwise.bundle.bundle import BUNDLE
from fieldwise.serving import Ranker, build_index, open_index
from fieldwise.serving import index as module
from fieldwise.serving.index import INDEX, with_changed_items, without_items, write_heads
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.artifact import Artifact, writing


def joint(bundle, items, context):
    """The network's own scores of one context's row with every item."""
    rows = items.with_columns(pl.lit(value).alias(name) for name, value in context.items())
    return bundle.score(rows)


def stored(bundle, index, row):
    with torch.no_grad():
        user = bundle.network.user(bundle.encoder.transform(row).batch(slice(0, 1))[0])
        return bundle.network.score_stored(user, index.stored)[0].double().numpy()


@pytest.mark.parametrize(
    ("storage", "near"), [("float32", 1e-5), ("bfloat16", 0.05), ("int8", 0.1)]
)
def test_stored_scores_are_those_of_whole_rows(tmp_path, tower, items, contexts, storage, near):
    index, changes = build_index(tower, items, str(tmp_path / "ix"), storage=storage)
    assert dataclasses.astuple(changes) == (30, 0, 0, 0)
    assert (len(index), index.id_column, index.stored.storage) == (30, "item", storage)
    assert index.items.equals(items)
    errors = []
    for number in range(5):
        context = contexts.select("user", "history", "device").row(number, named=True)
        errors.append(
            np.abs(stored(tower, index, contexts[number]) - joint(tower, items, context)).max()
        )
    assert max(errors) < near
    assert storage == "float32" or max(errors) > 1e-5  # it is another storage
    again = open_index(str(tmp_path / "ix"))
    assert again.items.equals(items)
    for name, tensor in index.stored.tensors().items():
        assert torch.equal(again.stored.tensors()[name], tensor)


def test_raw_numbers_are_in_the_stored_heads(tmp_path, items, contexts):
    """The item's own, a missing one too, while the user's is read with each request."""
    schema = dataclasses.replace(SCHEMA, fields=(*SCHEMA.fields, Numeric("age", role="user")))
    rows = log().with_columns(age=pl.Series([20.0, 40.0] * 40))
    bundle = random_bundle(
        dataclasses.replace(TOWER, dense_inputs="raw"), schema, rows, samples=rows.head(7)
    )
    items = items.with_columns(price=pl.when(pl.int_range(pl.len()) % 3 > 0).then("price"))
    index, _ = build_index(bundle, items, tmp_path / "ix")
    later = items.with_columns(
        price=pl.when(pl.col("item") == "i4").then(0.99).otherwise(pl.col("price"))
    )
    changed, changes = build_index(bundle, later, tmp_path / "ix")
    assert changes.changed == 1
    for number, age in enumerate([20.0, None, 61.0]):
        context = contexts.select("user", "history", "device").row(number, named=True) | {
            "age": age
        }
        row = contexts[number].with_columns(age=pl.lit(age, pl.Float64))
        for one, rows in ((index, items), (changed, later)):
            whole = joint(bundle, rows, context)
            np.testing.assert_allclose(stored(bundle, one, row), whole, atol=1e-5)
            best = Ranker(None, one, tower=bundle).recommend(context=context, k=5)
            np.testing.assert_allclose(best.rows, np.argsort(-whole)[:5])


@pytest.mark.parametrize(("storage", "block"), [("float32", 2048), ("bfloat16", 7), ("int8", 7)])
def test_an_update_computes_new_and_changed_items_alone(
    tmp_path, tower, items, monkeypatch, storage, block
):
    monkeypatch.setattr(module, "SCORING_BATCH", block)
    folder = tmp_path / "ix"
    build_index(tower, items, folder, storage=storage)
    price = pl.when(pl.col("item") == "i4").then(0.99).otherwise(pl.col("price"))
    title = pl.when(pl.col("item") == "i5").then(pl.lit("Other title")).otherwise(pl.col("title"))
    fresh = pl.DataFrame(
        {"item": ["new", "i4000"], "title": ["N", "M"], "genres": ["g1", ""], "price": [0.5, None]}
    )
    later = pl.concat(
        [items.with_columns(price=price, title=title)[::-1].filter(pl.col("item") != "i9"), fresh]
    )
    computed = []
    real = tower.network.item

    def item(batch):
        computed.append(batch.size)
        return real(batch)

    monkeypatch.setattr(tower.network, "item", item)
    index, changes = build_index(tower, later, folder, storage=storage)
    assert dataclasses.astuple(changes) == (2, 1, 1, 28)
    assert sum(computed) == 3
    monkeypatch.undo()
    rebuilt, _ = build_index(tower, later, tmp_path / "rebuilt", storage=storage)
    assert index.items.equals(later)
    for name, tensor in rebuilt.stored.tensors().items():
        torch.testing.assert_close(index.stored.tensors()[name], tensor, rtol=1e-5, atol=1e-5)
    assert index.texts.to_list()[:2] == ["i29", "i28"]
    parts = {p.name for p in folder.iterdir()}
    assert len(parts) == 2 + len(index.stored.tensors()), (
        "manifest, items and heads; old files are gone"
    )


def test_another_model_storage_or_column_of_ids(tmp_path, tower, build, items):
    folder = tmp_path / "ix"
    build_index(tower, items, folder)
    other = build(seed=1)
    index, changes = build_index(other, items, folder)
    assert dataclasses.astuple(changes) == (0, 30, 0, 0)
    assert len(Ranker(None, index, tower=other).index) == 30
    with pytest.raises(BundleError, match="belongs to the model that made it"):
        Ranker(None, index, tower=tower)
    assert dataclasses.astuple(build_index(other, items, folder, storage="int8")[1]) == (
        0,
        30,
        0,
        0,
    )
    numbers = items.with_columns(
        item=pl.Series(range(30)), sku=pl.Series([f"s{k}" for k in range(30)])
    )
    assert build_index(tower, numbers, tmp_path / "a")[0].texts.to_list()[:2] == ["0", "1"]
    index, _ = build_index(tower, numbers, tmp_path / "b", id_column="sku")
    assert index.rows_of(["s3", "s1"]).tolist() == [3, 1]
    with pytest.raises(DataError, match="one of the index's 30, found 's31'"):
        index.rows_of(["s31"])


def test_a_digest_is_of_what_scores(tmp_path, build):
    one, two, other = build(), build(), build(seed=1)
    assert one.digest == two.digest != other.digest
    assert (
        dataclasses.replace(one, samples=one.samples.head(1), about=About(further={"x": 1})).digest
        == one.digest
    )
    one.save(tmp_path / "b")
    assert Bundle.load(tmp_path / "b").digest == one.digest
    renamed = dataclasses.replace(one, schema=dataclasses.replace(SCHEMA, label=Label("other")))
    assert renamed.digest != one.digest


@pytest.mark.parametrize("change", ["genres", "price", "item order", "nothing"])
def test_which_encoded_rows_are_the_same(tower, items, change):
    rng = np.random.default_rng(0)
    later = items
    if change == "genres":  # one as before, but another
        swapped = pl.when(pl.col("item") == "i3").then(pl.lit("g0")).otherwise(pl.col("genres"))
        later = items.with_columns(genres=swapped)
    elif change == "price":
        later = items.with_columns(
            price=pl.when(pl.col("item") == "i3").then(None).otherwise(pl.col("price"))
        )
    order = rng.permutation(30) if change == "item order" else np.arange(30)
    old, new = module._encoded_items(tower, items), module._encoded_items(tower, later[order])
    places = order.copy()
    places[7] = -1
    expected = np.ones(30, bool)
    expected[7] = False
    if change in ("genres", "price"):
        expected[3] = False
    np.testing.assert_array_equal(module._same_rows(old, places, new), expected)


# what is refused

BAD = {
    "no items": (lambda t: t.head(0), "found none"),
    "a missing field": (lambda t: t.drop("price"), "'price' is missing among item, title, genres"),
    "no ids": (lambda t: t.drop("item"), "must have a column of item ids: by the schema 'item'"),
    "an id twice": (lambda t: pl.concat([t, t.tail(1)]), "'i29' in column 'item' .*occurs twice"),
    "an absent id": (
        lambda t: t.with_columns(item=pl.lit(None, pl.String)),
        r"found None in column 'item' \(row 0",
    ),
    "text in a number": (lambda t: t.with_columns(price=pl.lit("cheap")), "'cheap' in row 0"),
}


def test_items_that_cannot_be_indexed_leave_the_old_index(tmp_path, tower, items, subtests):
    folder = tmp_path / "ix"
    build_index(tower, items, folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    for case, (change, words) in BAD.items():
        with subtests.test(case=case):
            with pytest.raises(ConfigError if case == "no ids" else DataError, match=words):
                build_index(tower, change(items), folder)
            assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_models_and_folders_that_cannot_have_an_index(tmp_path, tower, build, items):
    both = Numeric("seen_price", column="price", role="user")
    sides = r"found 'price' read by 'price' \(role item\) and 'seen_price' \(role user\)"
    for bundle, words in (
        (
            build(DSSM(embedding_dim=4, hidden=(4,), output_dim=3)),
            "item heads of an IntTower with one label, found DSSM",
        ),
        (build(schema=dataclasses.replace(SCHEMA, more_labels=(Label("buy"),))), "with one label"),
        (build(schema=dataclasses.replace(SCHEMA, fields=(*SCHEMA.fields, both))), sides),
    ):
        with pytest.raises(ConfigError, match=words):
            build_index(bundle, items, tmp_path / "ix")
        assert not (tmp_path / "ix").exists()
    broken, row = (
        build(),
        items.head(1).with_columns(user=pl.lit("u"), history=pl.lit(""), device=pl.lit("tv")),
    )
    with torch.no_grad():
        broken.network.embedding.weight[broken.encoder.transform(row).ids[0, 1]] = float("nan")
    with pytest.raises(DataError, match="those of item 'i0' are not"):
        build_index(broken, items, tmp_path / "ix")
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match=r"holds other files, such as 'notes.txt'"):
        build_index(tower, items, other)
    with pytest.raises(BundleError, match="is a file"):
        build_index(tower, items, other / "notes.txt")
    with pytest.raises(BundleError, match="is not an index"):
        open_index(other)
    assert [p.name for p in other.iterdir()] == ["notes.txt"]


def facts_of(about):
    """The entries of a manifest that are given again when it is written again."""
    return {k: v for k, v in about.items() if k not in ("format", "files", "sha256")}


def rewrite(folder, kind=INDEX, name="index.json", **changes):
    """Write a manifest with other entries and a checksum that fits."""
    about = json.loads((folder / name).read_text()) | changes
    (folder / name).write_bytes(Artifact.of(kind, folder, about, about["files"]).text())


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
def test_files_are_mapped_and_checked(tmp_path, tower, items, storage):
    folder = tmp_path / "ix"
    build_index(tower, items, folder, storage=storage)
    index, path = open_index(folder), next(folder.glob("heads.*.npy"))
    before, whole = index.stored.heads.clone(), path.read_bytes()
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x01" * 16)
    assert not torch.equal(before, index.stored.heads), (
        "writing into an open index must not be done"
    )
    for damage in (path.read_bytes(), whole[:-1], b""):
        path.write_bytes(damage)
        with pytest.raises(
            BundleError, match="does not match its checksum or size; build it again"
        ):
            open_index(folder)
    path.unlink()
    with pytest.raises(BundleError, match="cannot be read: No such file"):
        open_index(folder)
    os.mkfifo(path)  # is not waited for
    files = json.loads((folder / "index.json").read_text())["files"]
    rewrite(folder, files=files | {"heads": files["heads"] | {"bytes": 0}})
    with pytest.raises(BundleError, match="damaged"):
        open_index(folder)


def test_manifests_that_do_not_fit(tmp_path, tower, items):
    folder, heard = tmp_path / "ix", []
    build_index(tower, items, folder, storage="int8")
    manifest = folder / "index.json"
    whole = manifest.read_text()
    for text, words in (
        ("{", "cannot be read"),
        ("[]", "no format number"),
        (whole.replace("30", "31"), "checksum"),
    ):
        manifest.write_text(text)
        with pytest.raises(BundleError, match=words):
            open_index(folder)
    for changes, words in (
        ({"items": 29}, "do not belong together"),
        ({"storage": "float32"}, "do not belong together"),
        (
            {"files": {"heads": {"name": "../x", "bytes": 1, "sha256": ""}}},
            "not a file of an index",
        ),
        ({"files": {}}, "damaged"),
    ):
        manifest.write_text(whole)
        rewrite(folder, **changes)
        with pytest.raises(BundleError, match=words):
            open_index(folder)
    # A damaged index is built again with a note, a newer one is kept.
    assert dataclasses.astuple(build_index(tower, items, folder, note=heard.append)[1]) == (
        30,
        0,
        0,
        0,
    )
    assert len(heard) == 1
    assert "is damaged" in heard[0]
    assert len(open_index(folder)) == 30
    rewrite(folder, format=2)
    with pytest.raises(BundleError, match="install a newer fieldwise"):
        build_index(tower, items, folder)
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(BundleError, match="is no regular file"):
        open_index(folder)


def test_an_index_of_wrong_rows_is_refused(tmp_path, tower):
    """Ids that occur twice or are absent, and heads that are no numbers, with checksums that fit."""
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


@pytest.mark.parametrize("part", ["bundle.json", "schema", "encoder", "samples"])
def test_deep_and_huge_files_of_a_bundle_are_refused(tmp_path, ranker, part):
    folder, words = tmp_path / "b", r"damaged|cannot be read"
    ranker.save(folder)
    saved, manifest = BUNDLE.open(folder), folder / "bundle.json"
    if part == "bundle.json":
        manifest.write_text('{"format": 2, "files": ' + "[" * 100_000)
    elif part == "samples":  # 8 GiB without blocks on the disk
        files, words = (
            json.loads(manifest.read_text())["files"],
            "gives samples a size of 8589934592 bytes",
        )
        os.truncate(folder / files[part]["name"], 8 << 30)
        rewrite(
            folder, BUNDLE, "bundle.json", files=files | {part: files[part] | {"bytes": 8 << 30}}
        )
    else:
        contents = {name: saved.content(name) for name in saved.parts}
        contents[part] = b"a = " + b"[" * 100_000 if part == "schema" else b"[" * 100_000
        with writing(BUNDLE, folder) as writer:
            for name, content in contents.items():
                writer.add(name, content)
            writer.finish(**facts_of(saved.about))
    with pytest.raises(BundleError, match=words):
        Bundle.load(folder)


def test_a_server_continues_when_another_index_is_copied_over_its_own(tmp_path, tower, ranker):
    """It has a token and users of a file, too."""
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    build_index(tower, catalogue(), tmp_path / "ix")
    pl.DataFrame({"user": ["u1"], "history": ["i1|i2"]}).write_csv(tmp_path / "users.csv")
    options = [
        "--tower",
        "tower",
        "--index",
        "ix",
        "--watch",
        0.2,
        "--users",
        "users.csv",
        "--user-id",
        "user",
    ]
    with serving(tmp_path, "ranker", *options, FIELDWISE_TOKEN="t") as server:

        def ask():
            body, headers = (
                {"user": "u1", "context": {"device": "tv"}, "k": 5},
                {"Authorization": "Bearer t"},
            )
            answer = httpx.post(
                f"{server.place}/v1/recommend", json=body, headers=headers, timeout=120
            )
            assert answer.status_code == 200, answer.text
            return [(item["id"], item["prediction"]) for item in answer.json()["items"]]

        assert server.get("/v1/items/i1/similar").status_code == 401
        before = ask()
        os.truncate(next((tmp_path / "ix").glob("heads.*.npy")), 100)
        assert ask() == before
        build_index(tower, catalogue(20), tmp_path / "other")
        for path in (tmp_path / "other").iterdir():
            shutil.copy(path, tmp_path / "ix" / path.name)
        assert ask() is not None
        assert server.process.poll() is None


def test_a_catalogue_is_changed_by_tables():
    """The oracle is a dictionary of rows by id."""
    items = pl.DataFrame({"item": [1, 2, 3], "title": ["a", "b", "c"]})
    changed = pl.DataFrame({"title": ["B", "d"], "item": [2, 4]})
    results = with_changed_items(items, changed, "item")
    wanted = dict(items.rows()) | dict(changed.select("item", "title").rows())
    assert (dict(results.rows()), results.columns) == (wanted, items.columns)
    assert results["item"].to_list() == [1, 3, 2, 4], "changed rows and new ones come last"
    assert without_items(results, pl.DataFrame({"item": ["3", "1"]}), "item")["item"].to_list() == [
        2,
        4,
    ]
    with pytest.raises(DataError, match="found '9', which is not in it"):
        without_items(items, pl.DataFrame({"item": [9]}), "item")

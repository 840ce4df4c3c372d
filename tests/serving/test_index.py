"""The index scores as the whole network does, updates only what changed, and survives a kill at any moment."""

import dataclasses
import json

import numpy as np
import polars as pl
import pytest
import torch
from serving.conftest import SCHEMA, catalogue, log
from serving.writers import writers

from fieldwise import DSSM, Bundle, Label, Numeric
from fieldwise.errors import BundleError, ConfigError, DataError
from fieldwise.serving import Ranker, build_index, open_index
from fieldwise.serving import index as module
from fieldwise.serving.index import INDEX
from fieldwise.storage.artifact import Artifact


def joint(bundle, items, context):
    """The network's own scores of one context's row with every item."""
    rows = items.with_columns(pl.lit(value).alias(name) for name, value in context.items())
    return bundle.score(rows)


def stored(bundle, index, row):
    with torch.no_grad():
        user = bundle.network.user(bundle.encoder.transform(row).batch(slice(0, 1))[0])
        return bundle.network.score_stored(user, index.stored)[0].double().numpy()


@pytest.mark.parametrize(("storage", "near"), [("float32", 1e-5), ("bfloat16", 0.05), ("int8", 0.1)])
def test_stored_scores_are_those_of_whole_rows(tmp_path, tower, items, contexts, storage, near):
    index, changes = build_index(tower, items, str(tmp_path / "ix"), storage=storage)
    assert dataclasses.astuple(changes) == (30, 0, 0, 0)
    assert (len(index), index.id_column, index.stored.storage) == (30, "item", storage)
    assert index.items.equals(items)
    errors = []
    for number in range(5):
        context = contexts.select("user", "history", "device").row(number, named=True)
        errors.append(np.abs(stored(tower, index, contexts[number]) - joint(tower, items, context)).max())
    assert max(errors) < near
    assert storage == "float32" or max(errors) > 1e-5  # it is another storage
    again = open_index(str(tmp_path / "ix"))
    assert again.items.equals(items)
    for name, tensor in index.stored.tensors().items():
        assert torch.equal(again.stored.tensors()[name], tensor)


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("block", [2048, 7])
def test_an_update_computes_new_and_changed_items_alone(tmp_path, tower, items, monkeypatch, storage, block):
    monkeypatch.setattr(module, "SCORING_BATCH", block)
    folder = tmp_path / "ix"
    build_index(tower, items, folder, storage=storage)
    price = pl.when(pl.col("item") == "i4").then(0.99).otherwise(pl.col("price"))
    title = pl.when(pl.col("item") == "i5").then(pl.lit("Other title")).otherwise(pl.col("title"))
    fresh = pl.DataFrame({"item": ["new", "i4000"], "title": ["N", "M"], "genres": ["g1", ""], "price": [0.5, None]})
    later = pl.concat([items.with_columns(price=price, title=title)[::-1].filter(pl.col("item") != "i9"), fresh])
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
    assert len(parts) == 2 + len(index.stored.tensors()), "manifest, items and heads; old files are gone"


def test_another_model_or_storage_computes_everything(tmp_path, tower, build, items):
    folder = tmp_path / "ix"
    build_index(tower, items, folder)
    other = build(seed=1)
    index, changes = build_index(other, items, folder)
    assert dataclasses.astuple(changes) == (0, 30, 0, 0)
    assert len(Ranker(None, index, prerank=other).index) == 30
    with pytest.raises(BundleError, match="belongs to the model that made it"):
        Ranker(None, index, prerank=tower)
    assert dataclasses.astuple(build_index(other, items, folder, storage="int8")[1]) == (0, 30, 0, 0)


def test_a_digest_is_of_what_scores(tmp_path, build):
    one, two, other = build(), build(), build(seed=1)
    assert one.digest == two.digest != other.digest
    assert dataclasses.replace(one, samples=one.samples.head(1), about={"x": 1}).digest == one.digest
    one.save(tmp_path / "b")
    assert Bundle.load(tmp_path / "b").digest == one.digest
    renamed = dataclasses.replace(one, schema=dataclasses.replace(SCHEMA, label=Label("other")))
    assert renamed.digest != one.digest


def test_ids_of_any_kind_and_names(tmp_path, tower, items):
    numbers = items.with_columns(item=pl.Series(range(30)), sku=pl.Series([f"s{k}" for k in range(30)]))
    assert build_index(tower, numbers, tmp_path / "a")[0].texts.to_list()[:2] == ["0", "1"]
    index, _ = build_index(tower, numbers, tmp_path / "b", id_column="sku")
    assert index.texts.to_list()[:2] == ["s0", "s1"]
    assert index.rows_of(["s3", "s1"]).tolist() == [3, 1]
    with pytest.raises(DataError, match="one of the index's 30, found 's31'"):
        index.rows_of(["s31"])


BAD = {
    "no items": (lambda t: t.head(0), "found none"),
    "a missing field": (lambda t: t.drop("price"), "'price' is missing among item, title, genres"),
    "no ids": (lambda t: t.drop("item"), "must have a column of item ids: by the schema 'item'"),
    "an id twice": (lambda t: pl.concat([t, t.tail(1)]), "'i29' in column 'item' .*occurs twice"),
    "an absent id": (lambda t: t.with_columns(item=pl.lit(None, pl.String)), "found None in column 'item' .row 0"),
    "text in a number": (lambda t: t.with_columns(price=pl.lit("cheap")), "'cheap' in row 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_items_that_cannot_be_indexed_leave_the_old_index(tmp_path, tower, items, case):
    folder = tmp_path / "ix"
    build_index(tower, items, folder)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    change, words = BAD[case]
    with pytest.raises(ConfigError if case == "no ids" else DataError, match=words.replace("(", r"\(")):
        build_index(tower, change(items), folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_other_models_have_no_item_heads(tmp_path, build, items):
    with pytest.raises(ConfigError, match="item heads of an IntTower with one label, found DSSM"):
        build_index(build(DSSM(embedding_dim=4, hidden=(4,), output_dim=3)), items, tmp_path / "ix")
    several = dataclasses.replace(SCHEMA, more_labels=(Label("buy"),))
    with pytest.raises(ConfigError, match="with one label"):
        build_index(build(schema=several), items, tmp_path / "ix")
    assert not (tmp_path / "ix").exists()


def test_folders_of_others_are_left_alone(tmp_path, tower, items):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BundleError, match=r"holds other files, such as 'notes.txt'"):
        build_index(tower, items, tmp_path)
    with pytest.raises(BundleError, match="is a file"):
        build_index(tower, items, tmp_path / "notes.txt")
    with pytest.raises(BundleError, match="is not an index"):
        open_index(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]


def rewrite(folder, **changes):
    about = json.loads((folder / "index.json").read_text()) | changes
    (folder / "index.json").write_bytes(Artifact.of(INDEX, folder, about, about["files"]).text())


def test_damage_of_every_kind_is_refused(tmp_path, tower, items):
    def fresh(name):
        build_index(tower, items, tmp_path / name, storage="int8")
        return tmp_path / name

    for part in ("heads", "scale", "items"):
        for number, damage in enumerate((lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:0])):
            folder = fresh(f"{part}{number}")
            path = next(folder.glob(f"{part}.*"))
            path.write_bytes(damage(path.read_bytes()))
            with pytest.raises(BundleError, match="does not match its checksum or size; build it again"):
                open_index(folder)
        path.unlink()
        with pytest.raises(BundleError, match="cannot be read: No such file"):
            open_index(folder)
    folder = fresh("manifest")
    whole = (folder / "index.json").read_text()
    for text, words in (("{", "cannot be read"), ("[]", "no format number"), (whole.replace("30", "31"), "checksum")):
        (folder / "index.json").write_text(text)
        with pytest.raises(BundleError, match=words):
            open_index(folder)
    for changes, words in (
        ({"format": 2}, "install a newer fieldwise"),
        ({"items": 29}, "do not belong together"),
        ({"storage": "float32"}, "do not belong together"),
        ({"files": {"heads": {"name": "../x", "bytes": 1, "sha256": ""}}}, "not a file of an index"),
        ({"files": {}}, "damaged"),
    ):
        (folder / "index.json").write_text(whole)
        rewrite(folder, **changes)
        with pytest.raises(BundleError, match=words):
            open_index(folder)


def test_a_damaged_index_is_built_anew_and_told_of_but_a_newer_one_is_kept(tmp_path, tower, items):
    folder = tmp_path / "ix"
    build_index(tower, items, folder)
    next(folder.glob("heads.*")).write_bytes(b"")
    heard = []
    _, changes = build_index(tower, items, folder, note=heard.append)
    assert dataclasses.astuple(changes) == (30, 0, 0, 0)
    assert len(heard) == 1
    assert "is damaged" in heard[0]
    assert len(open_index(folder)) == 30
    (folder / "index.json").write_text("{")
    build_index(tower, items, folder)
    rewrite(folder, format=2)
    with pytest.raises(BundleError, match="install a newer fieldwise"):
        build_index(tower, items, folder)


def test_a_column_of_both_sides_is_refused(tmp_path, build, items):
    both = Numeric("seen_price", column="price", role="user")
    bundle = build(schema=dataclasses.replace(SCHEMA, fields=(*SCHEMA.fields, both)))
    with pytest.raises(
        ConfigError, match=r"found 'price' read by 'price' \(role item\) and 'seen_price' \(role user\)"
    ):
        build_index(bundle, items, tmp_path / "ix")


def test_heads_that_are_not_finite_name_their_item(tmp_path, build, items):
    bundle = build()
    with torch.no_grad():
        item = next(f for f in bundle.encoder.layout.fields if f.name == "item")
        known = bundle.encoder.transform(
            items.head(1).with_columns(user=pl.lit("u"), history=pl.lit(""), device=pl.lit("tv"))
        )
        bundle.network.embedding.weight[known.ids[0, 1]] = float("nan")
        assert item.offset <= known.ids[0, 1] < item.offset + item.rows
    with pytest.raises(DataError, match="those of item 'i0' are not"):
        build_index(bundle, items, tmp_path / "ix")


@pytest.mark.parametrize("change", ["genres", "price", "item order", "nothing"])
def test_which_encoded_rows_are_the_same(tower, items, change):
    rng = np.random.default_rng(0)
    later = items
    if change == "genres":  # as long as before, but others
        swapped = pl.when(pl.col("item") == "i3").then(pl.lit("g3|g9|g8")).otherwise(pl.col("genres"))
        later = items.with_columns(genres=swapped)
    elif change == "price":
        later = items.with_columns(price=pl.when(pl.col("item") == "i3").then(None).otherwise(pl.col("price")))
    order = rng.permutation(30) if change == "item order" else np.arange(30)
    old, new = module._encoded_items(tower, items), module._encoded_items(tower, later[order])
    places = order.copy()
    places[7] = -1
    expected = np.ones(30, bool)
    expected[7] = False
    if change in ("genres", "price"):
        expected[3] = False
    np.testing.assert_array_equal(module._same_rows(old, places, new), expected)


@pytest.fixture
def writer(tmp_path, tower):
    """Processes that write the same index again and again: `writer(times)` gives one that has begun."""
    tower.save(tmp_path / "b")
    catalogue(3000).write_parquet(tmp_path / "items.parquet")
    with writers(tmp_path / "b", tmp_path / "items.parquet", tmp_path / "ix") as start:
        yield start


def whole(tower, index):
    """Rows and heads are of one update: the same number stands in both, and scores are the network's."""
    assert len(index) == 3000
    title = index.items["title"][0]
    if not title.startswith("Title"):
        assert set(index.items["price"]) == {int(title) % 7}
    context = log(1)
    expected = joint(tower, index.items, context.select("user", "history", "device").row(0, named=True))
    np.testing.assert_allclose(stored(tower, index, context), expected, rtol=1e-4, atol=1e-4)
    return title


def test_readers_and_two_writers_at_once(tmp_path, tower, writer):
    folder = tmp_path / "ix"
    build_index(tower, catalogue(3000), folder)
    children = [writer(6), writer(6)]
    generations = set()
    while any(child.is_alive() for child in children):
        index = open_index(folder)
        generations.add(index.generation)
        whole(tower, index)
    assert [child.exitcode for child in children] == [0, 0]
    assert len(generations) > 1
    assert whole(tower, open_index(folder)) == "5"

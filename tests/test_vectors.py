"""A column of vectors from training to a served score, and what is wrong with one in a sentence."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from exported import exported
from safetensors.numpy import save_file

from fieldwise import (
    AFM,
    DIN,
    FM,
    LR,
    Bundle,
    Callback,
    Categorical,
    ConfigError,
    DataError,
    Encoder,
    Label,
    Numeric,
    Recommender,
    Schema,
    SchemaError,
    Sequence,
    TrainingSettings,
    Vector,
)
from fieldwise.bundle.export import export_bundle
from fieldwise.bundle.warm_start import warm_start
from fieldwise.data.encode.encoder import encode_row
from fieldwise.data.table import EncodedTable
from fieldwise.data.vector_column import VectorColumn
from fieldwise.models.trees import TreeFeatures
from fieldwise.schema.ids import id_field

SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Numeric("price", role="item", transform="none"),
        Vector("text", role="item"),
    ),
    label=Label("click"),
)
VECTORS = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)


def log(rows: int = 40) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    item = rng.integers(0, 5, rows)
    texts = VECTORS[item].tolist()
    texts[3] = None
    texts[4] = []
    return pl.DataFrame(
        {
            "user": rng.integers(0, 4, rows),
            "price": rng.normal(size=rows),
            "text": pl.Series(texts, dtype=pl.List(pl.Float32)),
            "click": rng.integers(0, 2, rows),
        }
    )


def expected_values(frame):
    """Price and vector of each row by a loop, zeros where it is missing."""
    rows = []
    for price, text in frame.select("price", "text").iter_rows():
        rows.append([np.float32(price), *(text or [0.0] * 6)])
    return np.array(rows, np.float32)


def test_equal_vectors_are_kept_once_and_stand_between_the_numbers(tmp_path):
    frame = log()
    encoder = Encoder.fit(frame, SCHEMA)
    table = encoder.transform(frame)
    (column,) = table.vectors
    assert column.matrix.shape == (5, 6)
    assert table.values.shape == (40, 1)
    batch, _ = table.batch(slice(0, 40))
    np.testing.assert_array_equal(batch.values, expected_values(frame))
    norms = np.square(expected_values(frame)[:, 1:].astype(float)).sum(1)
    assert encoder.fitted[2].scale == pytest.approx(1 / np.sqrt(norms[norms > 0].mean()))

    table.save(tmp_path / "t")
    opened = EncodedTable.open(tmp_path / "t")
    assert opened.layout == table.layout
    np.testing.assert_array_equal(opened.batch(slice(0, 40))[0].values, batch.values)
    taken = opened.take(np.array([3, 39, 0]))
    np.testing.assert_array_equal(taken.batch(slice(0, 3))[0].values, batch.values[[3, 39, 0]])
    order = np.random.default_rng(0).permutation(40)
    ordered = [b.values for b, _ in opened.batches(16, order=torch.from_numpy(order))]
    np.testing.assert_array_equal(np.concatenate(ordered), batch.values[order])


def test_half_precision_is_kept():
    frame = log().with_columns(pl.col("text").cast(pl.List(pl.Float16)))
    table = Encoder.fit(frame, SCHEMA).transform(frame)
    assert table.vectors[0].matrix.dtype == np.float16
    expected = expected_values(frame)[:, 1:]
    np.testing.assert_array_equal(table.batch(slice(0, 40))[0].values[:, 1:], expected)


def test_columns_of_several_tables_are_joined():
    one = VectorColumn(np.array([1, -1], np.int32), np.float32([[1], [2]]))
    two = VectorColumn(np.array([0], np.int32), np.float32([[3]]))
    both = VectorColumn.joined([one, two])
    assert both.numbers(slice(0, 3)).ravel().tolist() == [2, 0, 3]
    same = VectorColumn.joined([one, one.take(np.array([1, 0]))])
    assert same.matrix is one.matrix
    assert same.rows.tolist() == [1, -1, -1, 1]


WRONG = [
    (
        [[1.0, 2.0], [1.0]],
        r"column .text. \(field .text.\) has vectors of 2 numbers, and one of 1 in row 1",
    ),
    ([[1.0, 2.0], [float("nan"), 1.0]], "must be finite: .* holds NaN or null in row 1"),
    ([[1.0, 2.0], [float("inf"), 1.0]], "must be finite: .* holds inf in row 1"),
    ([[1.0, 2.0], [None, 1.0]], "must be finite: .* holds NaN or null in row 1"),
    (["[1, 2]", "[3, 4]"], "must be a list of numbers: .* is of type String"),
    ([None, None], "is null or empty in all 2 training rows"),
    ([[0.5] * 5000] * 2, "at most 4,096 numbers: .* has 5,000"),
]


def test_what_is_no_vector_is_said(subtests):
    schema = Schema(fields=(Vector("text"),), label=Label("click"))
    for cells, message in WRONG:
        with subtests.test(message=message), pytest.raises(DataError, match=message):
            Encoder.fit(pl.DataFrame({"text": cells}), schema)
    encoder = Encoder.fit(pl.DataFrame({"text": [[1.0, 2.0]]}), schema)
    with pytest.raises(DataError, match="has vectors of 2 numbers, and one of 3 in row 0"):
        encoder.transform(pl.DataFrame({"text": [[1.0, 2.0, 3.0]]}))


IDS = [f"i{k}" for k in range(5)]


def files_of(folder, matrix=VECTORS, ids=IDS):
    """The vectors in every form, by name."""
    table = pl.DataFrame(
        {"item": ids, "text": matrix.tolist()}, schema_overrides={"text": pl.List(pl.Float32)}
    )
    table.write_parquet(folder / "a.parquet")
    table.write_ndjson(folder / "a.jsonl")
    np.save(folder / "b.npy", matrix)
    np.save(folder / "b.ids.npy", np.array(ids))
    np.save(folder / "c.npy", matrix.astype(np.float64))
    (folder / "c.ids.txt").write_text("\n".join(ids) + "\n")
    save_file({"vectors": matrix}, folder / "d.safetensors")
    (folder / "d.ids.txt").write_text("\n".join(ids))
    return ["a.parquet", "a.jsonl", "b.npy", "c.npy", "d.safetensors"]


def by_id(path, **more):
    return Schema(
        fields=(
            Categorical("user", role="user"),
            Vector("text", role="item", column="item", vectors=str(path), **more),
        ),
        label=Label("click"),
        user="user",
        item="item",
    )


def item_log(rows: int = 200) -> pl.DataFrame:
    """A log of the five items and of two without a vector, i7 and i8."""
    rng = np.random.default_rng(2)
    items = pl.Series([*IDS, "i7", "i8"])
    return pl.DataFrame(
        {
            "user": rng.integers(0, 9, rows),
            "item": items.gather(rng.integers(0, 7, rows)),
            "click": rng.integers(0, 2, rows),
        }
    )


def test_vectors_by_id_from_every_file(subtests, tmp_path):
    log = item_log()
    rows = pl.DataFrame({"user": [1] * 9, "item": [*IDS, "i7", "i8", "new", None]})
    for name in files_of(tmp_path):
        with subtests.test(name=name):
            encoder = Encoder.fit(log, by_id(tmp_path / name))
            table = encoder.transform(rows)
            batch, _ = table.batch(slice(0, 9))
            np.testing.assert_array_equal(batch.values[:5], VECTORS)
            assert not batch.values[5:].any()
            local = table.ids[:, 1] - encoder.layout.fields[1].offset
            learned = [3 + encoder.fitted[1].learned.index(item) for item in ("i7", "i8")]
            assert local.tolist() == [2] * 5 + learned + [1, 0]
            norms = np.square(VECTORS.astype(float)).sum(1)
            assert encoder.fitted[1].scale == pytest.approx(1 / np.sqrt(norms.mean()))
            assert encoder.unseen_in(table) == {"user": 0.0, "text": pytest.approx(1 / 9)}


def test_trees_read_an_id_without_a_vector_as_missing(tmp_path):
    files_of(tmp_path)
    encoder = Encoder.fit(item_log(), by_id(tmp_path / "b.npy"))
    rows = pl.DataFrame({"user": [1] * 4, "item": [IDS[0], "i7", "new", None]})
    x = TreeFeatures(encoder.layout).of_table(encoder.transform(rows))
    np.testing.assert_array_equal(x[0, 1:], VECTORS[0])
    assert np.isnan(x[1:, 1:]).all()


def test_a_cell_by_id_is_encoded_as_its_column_and_in_an_export(tmp_path):
    files_of(tmp_path, VECTORS.astype(np.float16).astype(np.float32))
    np.save(tmp_path / "b.npy", VECTORS.astype(np.float16))
    encoder = Encoder.fit(item_log(), by_id(tmp_path / "b.npy"))
    rows = [{"user": 1, "item": item} for item in (*IDS, "i7", "new", None)]
    table = encoder.transform(pl.DataFrame(rows))
    whole, _ = table.batch(slice(0, len(rows)))
    (tmp_path / "out").mkdir()
    result = exported(encoder, tmp_path / "out").encode(rows)
    np.testing.assert_array_equal(result["ids"], whole.ids)
    np.testing.assert_array_equal(result["values"], whole.values)
    for number, row in enumerate(rows):
        one = encode_row(encoder, encoder.layout, row)
        np.testing.assert_array_equal(one.ids[0], whole.ids[number])
        np.testing.assert_array_equal(one.values[0], whole.values[number])


def test_integers_are_ids(tmp_path):
    save_file(
        {"vectors": VECTORS, "ids": np.array([10, 11, 12, 13, 14])}, tmp_path / "v.safetensors"
    )
    log = item_log().with_columns(item=pl.col("item").str.slice(1).cast(pl.Int64) + 10)
    encoder = Encoder.fit(log, by_id(tmp_path / "v.safetensors"))
    batch, _ = encoder.transform(log).batch(slice(0, log.height))
    expected = [VECTORS[item - 10] if item < 15 else np.zeros(6) for item in log["item"]]
    np.testing.assert_array_equal(batch.values, np.float32(expected))


def wrong_files(folder):
    """Files of vectors with one fault each, and what is said."""
    files_of(folder)
    nan = VECTORS.copy()
    nan[3, 2] = np.nan
    np.save(folder / "nan.npy", nan)
    (folder / "nan.ids.txt").write_text("\n".join(IDS))
    yield "nan.npy", "holds NaN or null in the vector of id 'i3'"
    np.save(folder / "twice.npy", VECTORS)
    (folder / "twice.ids.txt").write_text("a\nb\na\nc\nd")
    yield "twice.npy", "has 'a' more than once"
    np.save(folder / "few.npy", VECTORS)
    (folder / "few.ids.txt").write_text("a\nb")
    yield "few.npy", "has 5 vectors and 2 ids"
    np.save(folder / "alone.npy", VECTORS)
    yield "alone.npy", "write alone.ids.npy, or alone.ids.txt with an id a line"
    np.save(folder / "cube.npy", np.zeros((2, 2, 2)))
    (folder / "cube.ids.txt").write_text("a\nb")
    yield "cube.npy", r"a matrix \[ids, numbers\] of floats, found float64 \[2, 2, 2\]"
    save_file({"other": VECTORS}, folder / "other.safetensors")
    yield "other.safetensors", "the tensor 'vectors' .* found other"
    (folder / "text.safetensors").write_text("no tensors at all")
    yield "text.safetensors", "must be safetensors"
    pl.DataFrame({"item": IDS}).write_parquet(folder / "no.parquet")
    yield "no.parquet", "a column of ids and one of lists of floats, found item"
    lists = [[1.0, 2.0], [1.0]]
    pl.DataFrame({"item": ["a", "b"], "v": lists}).write_parquet(folder / "ragged.parquet")
    yield "ragged.parquet", "vectors of 2 numbers, and one of 1 in row 1"
    pl.DataFrame({"item": ["a", None], "v": [[1.0], [2.0]]}).write_parquet(folder / "null.parquet")
    yield "null.parquet", "has none for vector 1"
    yield "absent.npy", "cannot be read: No such file"
    np.save(folder / "none.npy", VECTORS[:0])
    (folder / "none.ids.txt").write_text("")
    yield "none.npy", "at least one, found none"
    (folder / "empty.npy").write_bytes(b"")
    (folder / "empty.ids.txt").write_text("a")
    yield "empty.npy", "must be an array of numbers"
    np.save(folder / "objects.npy", VECTORS)
    np.save(folder / "objects.ids.npy", np.array(IDS, dtype=object))
    yield "objects.npy", "an array of texts or of whole numbers, found another content"
    np.save(folder / "latin.npy", VECTORS)
    (folder / "latin.ids.txt").write_bytes("é\n".encode("latin-1") * 5)
    yield "latin.npy", "must be UTF-8 text: byte 0 is not"
    np.save(folder / "others.npy", VECTORS)
    (folder / "others.ids.txt").write_text("0\n1\n2\n3\n4")
    yield "others.npy", "has ids such as 'i.', and .* such as '0'; write both in the same way"


def test_what_is_wrong_with_a_file_of_vectors_is_said(subtests, tmp_path):
    for name, message in wrong_files(tmp_path):
        with subtests.test(name=name), pytest.raises(DataError, match=message):
            Encoder.fit(item_log(), by_id(tmp_path / name))


def test_a_bundle_has_its_vectors_and_takes_those_of_new_items(tmp_path):
    files_of(tmp_path)
    log = item_log()
    model = Recommender(by_id(tmp_path / "b.npy"), FM(embedding_dim=4)).fit(log)
    bundle = model.bundle_
    bundle.save(tmp_path / "bundle")
    for file in tmp_path.glob("b.*"):
        file.unlink()
    loaded = Bundle.load(tmp_path / "bundle")
    assert isinstance(loaded.encoder.matrices["text"].base, np.memmap)
    np.testing.assert_array_equal(loaded.predict(log), bundle.predict(log))
    assert loaded.digest == bundle.digest

    more = np.concatenate([VECTORS, VECTORS[:2], VECTORS[4:]])
    np.save(tmp_path / "more.npy", more)
    (tmp_path / "more.ids.txt").write_text("\n".join([*IDS, "n1", "n2", "i7"]))
    grown = loaded.with_vectors("text", tmp_path / "more.npy")
    rows = pl.DataFrame({"user": [3] * 3, "item": ["n1", "n2", "i7"]})
    same = pl.DataFrame({"user": [3] * 3, "item": ["i0", "i1", "i4"]})
    np.testing.assert_allclose(grown.score(rows), loaded.score(same), atol=1e-6)
    np.testing.assert_array_equal(grown.score(same), loaded.score(same))
    assert grown.digest != loaded.digest
    with pytest.raises(DataError, match="found 'user': known: text"):
        loaded.with_vectors("user", tmp_path / "more.npy")
    np.save(tmp_path / "more.npy", more[:, :2])
    with pytest.raises(DataError, match=r"field 'text' has 6 numbers, and .* 2; make them"):
        loaded.with_vectors("text", tmp_path / "more.npy")


def test_a_warm_start_takes_learned_vectors_by_id(tmp_path):
    files_of(tmp_path)
    log = item_log()
    schema = by_id(tmp_path / "b.npy")
    bundle = Recommender(schema, FM(embedding_dim=4)).fit(log).bundle_
    later = log.with_columns(item=pl.col("item").replace({"i7": "i9"}))
    encoder = Encoder.fit(later, schema)
    network = FM(embedding_dim=4).build(encoder.layout)
    report = warm_start(network, encoder, bundle, labels=schema.labels)
    assert report.taken["embedding.vectors.projections.0.weight"] == "all"
    rows = pl.DataFrame({"user": [3] * 7, "item": [*IDS, "i8", None]})
    batch, _ = encoder.transform(rows).batch(slice(0, 7))
    with torch.no_grad():
        np.testing.assert_allclose(network.eval()(batch), bundle.score(rows), atol=1e-6)


class Stops(Callback):
    """Ctrl-C in the second epoch."""

    def on_step(self, step):
        if step.epoch == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["lists", "by id"])
def test_an_interrupted_training_ends_as_a_whole_one(tmp_path, kind):
    files_of(tmp_path)
    schema, rows = (
        (SCHEMA, log(200)) if kind == "lists" else (by_id(tmp_path / "b.npy"), item_log())
    )
    training = TrainingSettings(epochs=3, batch_size=32, patience=9)

    def recommender(**more):
        return Recommender(schema, AFM(embedding_dim=4), training=training, **more)

    expected = recommender().fit(rows).bundle_.digest
    with pytest.raises(KeyboardInterrupt):
        recommender(checkpoint=tmp_path / "c").fit(rows, callbacks=[Stops()])
    assert recommender(checkpoint=tmp_path / "c").fit(rows).bundle_.digest == expected


def test_a_history_shares_the_rows_of_ids_and_no_vectors(tmp_path):
    files_of(tmp_path)
    schema = by_id(tmp_path / "b.npy")
    with pytest.raises(SchemaError, match="found 'text', one of kind 'vector'"):
        replace(schema, fields=(*schema.fields, Sequence("history", shares="text")))
    fields = (*schema.fields, Categorical("item", role="item"), Sequence("history", shares="item"))
    schema = replace(schema, fields=fields)
    assert id_field("item", schema) == "item"
    rows = item_log().with_columns(history=pl.lit("i0|i7"))
    training = TrainingSettings(epochs=1, batch_size=32)
    bundle = (
        Recommender(schema, DIN(embedding_dim=4, hidden=(4,)), training=training).fit(rows).bundle_
    )
    [projection] = bundle.network.embedding.vectors.projections
    before = bundle.score(rows)
    with torch.no_grad():
        projection.weight += 1.0
    is_of_an_item_with_vector = rows["item"].is_in(IDS).to_numpy()
    changed = bundle.score(rows) != before
    np.testing.assert_array_equal(changed, is_of_an_item_with_vector)


def test_an_exact_lr_refuses_vectors(tmp_path):
    files_of(tmp_path)
    for model, training in (
        (LR(), TrainingSettings(optimizer="lbfgs")),
        (FM(embedding_dim=2), TrainingSettings(start_from_lr=True)),
        (FM(embedding_dim=2), TrainingSettings(mean_with_lr=True)),
    ):
        recommender = Recommender(by_id(tmp_path / "b.npy"), model, training=training)
        with pytest.raises(ConfigError, match="sums of weights, found a vector or a bag"):
            recommender.fit(item_log())


@pytest.mark.slow
def test_a_compiled_library_has_vectors(tmp_path):
    files_of(tmp_path)
    bundle = Recommender(by_id(tmp_path / "b.npy"), FM(embedding_dim=4)).fit(item_log()).bundle_
    assert export_bundle(bundle, tmp_path / "e", "aoti") < 1e-5
    assert (tmp_path / "e" / "vectors.safetensors").exists()

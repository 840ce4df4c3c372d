"""What workers share of a catalogue: equal to what one process has of its own, made once, and mapped."""

import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from serving.conftest import SCHEMA, catalogue, log

from fieldwise import Bundle
from fieldwise.data.encode.vocabulary import Vocabulary
from fieldwise.scoring.candidates import CatalogueScorer
from fieldwise.scoring.items import ItemTable, SharedPlaces
from fieldwise.scoring.ranker import HeadClusters
from fieldwise.serving import Ranker, build_index, open_index
from fieldwise.storage.arrays import SharedArrays


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "shared").mkdir()
    return SharedArrays(tmp_path / "shared")


def places_of(texts, shared):
    return ItemTable(id_column="id", items=texts.to_frame("id"), name="some", shared=shared).places


@pytest.mark.parametrize("count", [0, 1, 2, 3, 500, 40_000])
def test_shared_places_are_those_of_a_dictionary(count, shared):
    texts = pl.Series([f"id {(7919 * k) % 100_003}é" for k in range(count)], dtype=pl.String)
    wanted = {text: row for row, text in enumerate(texts)}
    result = places_of(texts, shared)
    assert isinstance(result, SharedPlaces)
    assert places_of(texts, None) == wanted
    assert len(result) == count
    assert list(result) == list(wanted)
    some = [*texts.to_list()[:: max(1, count // 500)], "", "id", "absent", "\ud800", 3, None]
    assert [result.get(one) for one in some] == [wanted.get(one) for one in some]
    assert [one in result for one in some] == [one in wanted for one in some]


def test_texts_of_equal_hashes_have_their_own_rows(monkeypatch):
    monkeypatch.setattr("fieldwise.scoring.items.crc32", lambda _: 7)
    texts = pl.Series(["b", "a", "c"])
    places = SharedPlaces(texts, **SharedPlaces.table(texts))
    assert [places.get(one) for one in ("a", "b", "c", "d")] == [1, 0, 2, None]


def test_hashes_are_those_of_every_process():
    """The published checksum of CRC-32; Python's own hashes of texts differ between processes."""
    assert SharedPlaces.table(pl.Series(["123456789"]))["hashes"].tolist() == [0xCBF43926]


BATCH = CatalogueScorer.batch


def again(*_):
    pytest.fail("made again")


def regions(path):
    """How often a file is mapped in this process."""
    return sum(
        line.endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines()
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_shared_table_is_the_mapped_file(shared):
    pytest.importorskip("pyarrow")
    frame = pl.DataFrame(
        {"id": [f"a text of some length {k}" for k in range(999)], "n": range(999)}
    )
    text, n = pl.col("id"), pl.col("n")
    frame = frame.with_columns(
        list=text.str.split(" "), date=n.cast(pl.Date), duration=n.cast(pl.Duration("ms")),
        decimal=n.cast(pl.Decimal(10, 2)), categorical=n.cast(pl.String).cast(pl.Categorical),
        enum=n.cast(pl.String).cast(pl.Enum([str(k) for k in range(999)])), flag=n > 3, nothing=pl.lit(None),
        null=pl.when(n % 2 == 0).then("n").cast(pl.Int8, strict=False), struct=pl.struct(n, text),
        array=pl.concat_list(n, n).cast(pl.Array(pl.UInt16, 2)), time=n.cast(pl.Datetime("us", "Europe/Berlin")),
        bytes=text.cast(pl.Binary),
    )  # fmt: skip
    parts = pl.concat([frame[:500], frame[500:], frame.clear()], rechunk=False)
    for result in (
        shared.frame("some", lambda: parts),
        SharedArrays(shared.folder).frame("some", lambda: 1 / 0),
    ):
        assert_frame_equal(result, frame)
        assert result.n_chunks() == 1
        assert regions(shared.folder / "some.arrow"), "its columns keep it mapped"
        assert result["n"].to_numpy().sum() == 999 * 998 // 2
    # Arrow has no such type
    large = frame.head(3).with_columns(pl.lit(2**100, pl.Int128).alias("large"))
    assert_frame_equal(shared.frame("large", lambda: large), large)
    del result
    assert not regions(shared.folder / "some.arrow")


@pytest.mark.parametrize(("storage", "nprobe"), [("float32", 2), ("bfloat16", None), ("int8", 2)])
def test_a_shared_catalogue_answers_alike_and_is_made_once(
    storage, nprobe, tmp_path, shared, tower, ranker, monkeypatch
):
    build_index(tower, catalogue(), tmp_path / "index", storage=storage)
    query = {
        "context": log(1, seed=2).to_dicts()[0],
        "k": 12,
        "prerank": 20,
        "exclude": ["i3", "none", "i29"],
    }

    def answers(shared):
        index = open_index(tmp_path / "index", shared=shared)
        cascade = Ranker(ranker, index, tower=tower, nprobe=nprobe)
        result = cascade.recommend(**query)
        return (
            result.items,
            result.counts,
            index.similar(4, 9),
            index.texts.to_list(),
            index.rows_of(["i7"]),
        )

    wanted = answers(None)
    assert "i3" not in wanted[0]["item"].to_list()
    for number in range(2):
        result = answers(shared if number == 0 else SharedArrays(shared.folder))
        assert result[0].equals(wanted[0])
        assert result[1] == wanted[1]
        assert all(np.array_equal(*pair) for pair in zip(result[2], wanted[2], strict=True))
        assert result[3:] == wanted[3:]
        if number == 0:  # the next process makes nothing
            files = {path: path.stat().st_mtime_ns for path in shared.folder.iterdir()}
            monkeypatch.setattr(  # slices are read to make the vectors of all items
                CatalogueScorer,
                "batch",
                lambda one, rows: (
                    again() if isinstance(rows, slice) and len(one.table) > 1 else BATCH(one, rows)
                ),
            )
            for owner, name in ((HeadClusters, "of"), (SharedPlaces, "table")):
                monkeypatch.setattr(owner, name, again)
    assert files == {path: path.stat().st_mtime_ns for path in shared.folder.iterdir()}
    assert {path.name.partition("-")[0].rstrip("0123456789abcdef") for path in files} >= {
        "items", "places_rows", "places_hashes", "vectors_", "encoded_ids", "encoded_bag_ids", "directions_heads",
    }  # fmt: skip


def test_bundles_of_equal_vocabularies_have_one(tmp_path, tower, ranker, build):
    tower.save(tmp_path / "tower")
    ranker.save(tmp_path / "ranker")
    one, other = (Bundle.load(tmp_path / name) for name in ("tower", "ranker"))
    for field, first, second, saved in zip(
        SCHEMA.fields, *(b.encoder.fitted for b in (one, other, tower)), strict=True
    ):
        assert first == second == saved
        if isinstance(first, Vocabulary):
            assert first is second, field
    rows = log(20, seed=4)
    assert other.score(rows).tolist() == ranker.score(rows).tolist()


def test_integer_ids(tmp_path, shared, tower):
    build_index(tower, catalogue().with_row_index("number"), tmp_path / "index", id_column="number")
    for index in (open_index(tmp_path / "index", shared=one) for one in (None, shared, shared)):
        assert index.texts.to_list() == [str(n) for n in range(30)]
        assert index.rows_of([5, "29"]).tolist() == [5, 29]
    assert (shared.folder / f"ids-{index.name}.arrow").exists()

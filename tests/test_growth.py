"""Fitted encoders and trained networks take new values, and nothing that was there changes."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from exported import exported
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import lab
from parity.reference import REFERENCES, hardest, main_cases
from random_bundle import random_bundle

from fieldwise import (
    AFM,
    DAT,
    FM,
    LR,
    Bag,
    Bundle,
    Categorical,
    ConfigError,
    DataError,
    Encoder,
    IntTower,
    Label,
    Layout,
    Numeric,
    Schema,
    Sequence,
    TrainingSettings,
    WideDeep,
)
from fieldwise.bundle.export import export_bundle
from fieldwise.data.encode.encoder import encode_row
from fieldwise.layers import kept_rows
from fieldwise.models.build import build_network, grow_network
from fieldwise.models.trees import TreeFeatures
from fieldwise.serving import build_index
from fieldwise.testing import random_batch
from fieldwise.training.fit import Training
from fieldwise.training.memory import bytes_of_step
from fieldwise.training.objective import Objective
from fieldwise.training.oov_dropout import OutOfVocabularyDropout, value_counts

SCHEMA = Schema(
    fields=(
        Sequence("seen", role="user", max_length=3, shares="item"),
        Categorical("item", role="item", min_count=2),
        Bag("tags", role="item"),
        Numeric("price", role="item"),
        Categorical("place", hash_buckets=3),
        Categorical("user", role="user"),
    ),
    label=Label("click"),
)
LOG = pl.DataFrame(
    {
        "seen": ["a", "b|a", ""],
        "item": ["b", "a", "a"],
        "tags": ["x|y", "x", None],
        "price": [1.0, 2.0, None],
        "place": ["p", "q", "r"],
        "user": [7, 8, 7],
    }
)
MORE = LOG.with_columns(
    item=pl.Series(["c", "b", "c"]), tags=pl.Series(["z|x", "z", "w"]), user=pl.Series([9, 7, None])
)


def randomized(network):
    """In place: fresh first-order weights and crosses are zeros."""
    with torch.no_grad():
        for number, p in enumerate(network.parameters()):
            p.normal_(std=0.4, generator=torch.Generator().manual_seed(number))
    return network.eval()


def bundle_of(model, schema=SCHEMA):
    return random_bundle(model, schema, LOG)


def test_new_values_follow_the_last_row_of_the_table():
    """By hand: `b` is rare in the log, so that item has the rows 0-2, tags 3-6, price 7-8, place 9-12, user 13-16."""
    encoder = Encoder.fit(LOG, SCHEMA)
    assert encoder.layout.num_rows == 17
    grown, added = encoder.grow(MORE)
    assert added == {"item": 1, "tags": 2, "user": 1}  # `c` gets 17, `z` and `w` 18 and 19, `9` 20
    table = grown.transform(MORE)
    assert table.ids[:, [0, 1, 3]].tolist() == [[17, 8, 20], [1, 8, 15], [17, 7, 13]]
    assert table.bag_ids.tolist() == [2, 18, 5, 1, 2, 18, 0, 19]
    again, added = grown.grow(pl.concat([MORE[1:2], MORE[1:2]]))
    assert added == {"item": 1, "tags": 0, "user": 0}  # `b` is frequent now
    assert [again.layout.fields[k].all_rows().tolist() for k in (0, 1, 2, 5)] == [
        [0, 1, 2, 17, 21], [0, 1, 2, 17, 21], [3, 4, 5, 6, 18, 19], [13, 14, 15, 16, 20],
    ]  # fmt: skip
    assert again.layout.num_rows == 22
    batch = encode_row(
        again,
        again.layout,
        dict(zip(SCHEMA.columns, ["b|c|a", "b", "w|y|?", 2.0, "p", 9], strict=True)),
    )
    assert batch.bag_ids.tolist() == [21, 17, 2, 19, 6, 4]
    assert batch.ids[0, [0, 1, 3]].tolist() == [21, 8, 20]
    assert again.before_growth() == grown
    assert grown.grow(MORE)[0] is grown


def test_a_field_of_true_and_false_takes_nothing_else():
    schema = Schema(fields=(Categorical("paid"),), label=Label("click"))
    encoder = Encoder.fit(pl.DataFrame({"paid": ["True", "True"]}), schema)
    grown, added = encoder.grow(pl.DataFrame({"paid": ["FALSE", "maybe", "true", None]}))
    assert added == {"paid": 1}
    cells = pl.DataFrame({"paid": ["true", "True", "False", "maybe"]})
    assert grown.transform(cells).ids.ravel().tolist() == [2, 2, 3, 1]


def values_of(f, cells):
    """What a field's column says, cell by cell, as text."""
    lists = [(cell or "").split("|") if f.cell == "list" else [cell] for cell in cells]
    return [[str(one) for one in cell if one not in (None, "")] for cell in lists]


OWN = [f for f in SCHEMA.fields if f.name in ("item", "tags", "user")]
SOME = st.sampled_from(["a", "b", "c", "d", "e", None])
LISTS = st.lists(st.sampled_from("abcdef"), max_size=4).map("|".join)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "seen": LISTS,
            "item": SOME,
            "tags": LISTS,
            "price": st.just(1.0),
            "place": SOME,
            "user": st.integers(0, 9),
        }
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=10, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_ids_never_change_as_values_are_added(days):
    """Each day's values by the rule, in plain Python: frequent enough, most frequent first, at the end of the table."""
    start = pl.DataFrame([*LOG.to_dicts(), *days[0]], schema=LOG.schema, strict=False)
    encoder = Encoder.fit(start, SCHEMA)
    known = {
        f.name: dict(zip(fitted.values, at.all_rows()[2:].tolist(), strict=True))
        for f, fitted, at in zip(encoder.fields, encoder.fitted, encoder.layout.fields, strict=True)
        if f in OWN
    }
    end, former, log = encoder.layout.num_rows, encoder.transform(start), start
    for day in days:
        rows = pl.DataFrame(day, schema=LOG.schema, strict=False)
        before, (encoder, added) = encoder, encoder.grow(rows)
        for f in OWN:
            said = [value for cell in values_of(f, rows[f.column]) for value in cell]
            counts = {value: said.count(value) for value in said if value not in known[f.name]}
            new = sorted(
                (value for value, n in counts.items() if n >= f.min_count),
                key=lambda v: (-counts[v], v),
            )
            known[f.name] |= {value: end + k for k, value in enumerate(new)}
            end += len(new)
            assert added[f.name] == len(new)
        places = dict(zip([f.name for f in SCHEMA.fields], encoder.layout.fields, strict=True))
        for f, fitted in zip(encoder.fields, encoder.fitted, strict=True):
            if f in OWN:
                assert (
                    dict(zip(fitted.values, places[f.name].all_rows()[2:].tolist(), strict=True))
                    == known[f.name]
                )
        assert places["seen"].all_rows().tolist() == places["item"].all_rows().tolist()
        taken = np.concatenate([at.all_rows() for name, at in places.items() if name != "seen"])
        assert sorted(taken.tolist()) == list(range(end)) == list(range(encoder.layout.num_rows))
        again = encoder.transform(log)
        still = before.layout.local_rows()[former.ids] != 1  # what was unknown may be known now
        assert (again.ids[still] == former.ids[still]).all()
        still = before.layout.local_rows()[former.bag_ids] != 1
        assert (again.bag_ids[still] == former.bag_ids[still]).all()
        if any(added.values()):
            assert encoder.before_growth() == before
        assert Encoder.from_json(encoder.to_json()) == encoder
        log = pl.concat([log, rows])
        former = encoder.transform(log)


def test_json_of_before_growth_is_read_and_stays():
    """As bundles have it whose encoder never grew: without a word on growths."""
    entry = {
        "field": {
            "name": "app",
            "column": "app",
            "role": "context",
            "min_count": 1,
            "kind": "categorical",
        }
    }
    text = json.dumps(
        {"fields": [entry | {"fitted": {"values": ["b", "a"], "rare": 1, "kind": "vocabulary"}}]}
    )
    encoder = Encoder.from_json(text)
    assert encoder.transform(pl.DataFrame({"app": ["a", "c"]})).ids.ravel().tolist() == [3, 1]
    assert "growths" not in json.loads(encoder.to_json())
    for growths in ([[3]], [[1, 1]], [[-1]], [["1"]], [[True]], 7, [7], {"a": 1}):
        with pytest.raises(DataError, match="the encoder is not an encoder"):
            Encoder.from_json(json.dumps(json.loads(text) | {"growths": growths}), "the encoder")


def grown_layout(layout, more=2):
    """A layout whose fields with several rows got `more` rows each at the end, those of a shared field with it."""
    starts = {}
    for f in layout.fields:
        if f.shares is None and f.kind != "value":
            starts[f.name] = *f.extents, (f.rows, layout.num_rows + more * len(starts))
    return Layout(
        tuple(
            replace(f, rows=f.rows + more, extents=starts[f.shares or f.name])
            if (f.shares or f.name) in starts
            else f
            for f in layout.fields
        )
    )


CASES = [
    pytest.param(name, case, place, labels, id=f"{name}-{case}-{labels}")
    for name, reference in REFERENCES.items() for case, place in main_cases(name) if place == hardest(name)
    for labels in ([1, 2] if case == next(iter(reference.CASES)) else [1])
]  # fmt: skip


@pytest.mark.parametrize(("name", "case", "place", "labels"), CASES)
def test_growth_keeps_the_scores_of_old_rows_in_every_model(name, case, place, labels):
    layout, model = lab.LAYOUTS[place], REFERENCES[name].CASES[case]
    network, batch = (
        randomized(build_network(model, layout, 1, labels=labels)),
        random_batch(layout, 9),
    )
    later = grow_network(network, model, grown_layout(layout), 2, labels=labels)
    assert torch.equal(later(batch), network(batch))
    twice = grow_network(
        randomized(later), model, grown_layout(grown_layout(layout), 1), 3, labels=labels
    )
    batch = random_batch(grown_layout(layout), 9, seed=5)
    assert torch.equal(twice(batch), later(batch))


def test_tables_beside_the_embedding_compile_without_breaks():
    layout, model = lab.LAYOUTS["categorical"], list(REFERENCES["dat"].CASES.values())[-1]
    network = grow_network(randomized(model.build(layout)), model, grown_layout(layout), 2)
    batch = random_batch(grown_layout(layout), 9)
    compiled = torch.compile(network, fullgraph=True, backend="eager")
    assert torch.equal(compiled(batch), network(batch))


def test_a_table_of_ones_own_is_refused():
    network, later = (torch.nn.Linear(rows, 1) for rows in (3, 4))
    model = type("Model", (), {"build": lambda *_: later})()
    with pytest.raises(
        ConfigError, match=r"found weight of \[1, 3\] before and \[1, 4\] after: use FieldEmbedding"
    ):
        grow_network(network, model, Layout.of_sizes([4]), 0)
    network, later = (torch.nn.Embedding(rows, 1) for rows in (3, 4))
    network.row_blocks, later.row_blocks = [(3,)], [(3,), (1,)]
    with pytest.raises(
        ConfigError, match="found 1 row_blocks of weight before and 2 after: a layout"
    ) as caught:
        kept_rows(network, later)
    assert "\n" not in str(caught.value)


def test_a_grown_bundle_is_saved_loaded_exported_and_taken_back(tmp_path):
    bundle = bundle_of(AFM(embedding_dim=3))
    grown, added = bundle.grow(MORE)
    assert added == {"item": 1, "tags": 2, "user": 1}
    assert (grown.score(LOG) == bundle.score(LOG)).all()
    assert grown.digest != bundle.digest == grown.before_growth().digest
    assert bundle.before_growth() is None
    assert bundle.grow(LOG)[0] is bundle
    grown.save(tmp_path / "bundle")
    loaded = Bundle.load(tmp_path / "bundle")
    assert loaded.digest == grown.digest
    assert (loaded.score(MORE) == grown.score(MORE)).all()
    twice, _ = loaded.grow(MORE.with_columns(user=pl.Series([3, 4, 5])), seed=3)
    assert (twice.score(MORE) == grown.score(MORE)).all()


def test_the_reader_of_an_export_has_the_grown_ids(tmp_path):
    """`encode.py` stands alone beside `encoder.json` in an export."""
    encoder = Encoder.fit(LOG, SCHEMA).grow(MORE)[0].grow(LOG.with_columns(item=pl.lit("b")))[0]
    rows = pl.concat([LOG, MORE])
    batch = encoder.transform(rows).batch(slice(None))[0]
    for name, result in exported(encoder, tmp_path).encode(rows.to_dicts()).items():
        np.testing.assert_array_equal(result, getattr(batch, name).numpy(), err_msg=name)


@pytest.mark.parametrize(
    "model",
    [
        DAT(embedding_dim=3),
        WideDeep(embedding_dim=3, crosses=(("user", "item"), ("item", "place"))),
    ],
)
@pytest.mark.slow
def test_a_grown_bundle_is_exported(tmp_path, model):
    pytest.importorskip(
        "onnxruntime", reason="ONNX Runtime is absent: pip install 'fieldwise[onnx]'"
    )
    bundle = bundle_of(model).grow(MORE)[0]
    assert export_bundle(replace(bundle, samples=MORE), tmp_path / "out") < 1e-5


def test_stored_heads_are_kept_unless_their_item_changes(tmp_path):
    """A user's new value changes no item; an item's is computed, and one whose value was unknown too."""
    tower = IntTower(
        embedding_dim=4, hidden=(6, 5), user_heads=2, item_heads=3, head_dim=4, cir_weight=0
    )
    folder = tmp_path / "index"
    items = pl.DataFrame(
        {
            "item": ["a", "b", "c"],
            "tags": ["x", "y|w", ""],
            "price": [1.0, 2.0, 3.0],
            "place": ["p"] * 3,
        }
    )
    schema = replace(
        SCHEMA,
        fields=tuple(replace(f, role="item") if f.name == "place" else f for f in SCHEMA.fields),
    )
    bundle = bundle_of(tower, schema=schema)
    heads = build_index(bundle, items, folder)[0].stored.floats().clone()
    users, added = bundle.grow(LOG.with_columns(user=pl.Series([1, 2, 3])))
    assert added == {"item": 0, "tags": 0, "user": 3}
    index, changes = build_index(users, items, folder)
    assert (changes.new, changes.changed, changes.kept, index.model) == (0, 0, 3, users.digest)
    assert torch.equal(index.stored.floats(), heads)
    index, changes = build_index(users.grow(MORE)[0], items, folder)
    # `w` is known now, and the item `c`
    assert (changes.new, changes.changed, changes.kept) == (0, 2, 1)
    assert torch.equal(index.stored.floats()[0], heads[0])


def test_rare_values_of_a_grown_field_become_unknown_too():
    encoder, _ = Encoder.fit(LOG, SCHEMA).grow(MORE)
    rows = encoder.transform(MORE)
    dropout = OutOfVocabularyDropout(rows.layout, value_counts(rows), 1.0, 0)
    assert dropout.unknown[[17, 18, 19, 20, 2]].tolist() == [1, 4, 4, 14, 1]
    assert dropout.probability[17].item() == pytest.approx(1 / 3)
    assert dropout.probability[[0, 1, 7, 9]].tolist() == [0.0] * 4


def test_grown_fields_are_read_as_fresh_ones():
    """A fresh encoder of all rows has the same values in the same order, and only other rows in the shared table."""
    fields = Categorical("a"), Bag("b", pooling="sum"), Categorical("c")
    rows = pl.DataFrame(
        {"a": list("ppprrs"), "b": ["x", "x", "x|y", "y", None, "z"], "c": list("kkllkm")}
    )
    rows, y = pl.concat([rows] * 6), np.tile([0, 1, 1, 0, 1, 0], 6).astype(np.float32)[:, None]
    schema = Schema(fields=fields, label=Label("click"))
    fresh, first = Encoder.fit(rows, schema), Encoder.fit(rows.filter(pl.col("a") != "s"), schema)
    grown, added = first.grow(rows)
    assert (added, grown.fitted) == ({"a": 1, "b": 1, "c": 1}, fresh.fitted)
    assert grown.layout != fresh.layout
    tables = [encoder.transform(rows, y=y) for encoder in (fresh, grown)]
    exact = TrainingSettings(optimizer="lbfgs")
    networks = [LR().build(table.layout) for table in tables]
    for network, table in zip(networks, tables, strict=True):
        Training(network, table, table, settings=exact, objective=Objective(), seed=0).run()
    scores = [
        network(table.batch(slice(None))[0])
        for network, table in zip(networks, tables, strict=True)
    ]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-5, rtol=1e-5)
    matrices = [TreeFeatures(table.layout).of_table(table) for table in tables]
    np.testing.assert_array_equal(*matrices)
    settings = TrainingSettings(batch_size=12)
    needed = [
        bytes_of_step(FM(embedding_dim=2).build, table, settings, Objective()) for table in tables
    ]
    assert needed[0] == needed[1] > 0

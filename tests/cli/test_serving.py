"""`fieldwise index` and `fieldwise evaluate --tower`."""

import dataclasses
import json
from pathlib import Path

import polars as pl
import pytest
from cli.conftest import make_log, write_recipe
from cli.test_bad_input import refused

from fieldwise import Bundle
from fieldwise.cli import run
from fieldwise.cli.options import Reading
from fieldwise.cli.serve import ServeOptions
from fieldwise.cli.show import command
from fieldwise.data.read.text_format import TextFormat
from fieldwise.evaluation.calibration import fit_platt
from fieldwise.serving.settings import Sources

TOWER = {
    "name": "inttower",
    "hidden": [6],
    "user_heads": 2,
    "item_heads": 2,
    "head_dim": 4,
    "cir_weight": 0.0,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An IntTower beside the log that it was trained on."""
    folder = tmp_path_factory.mktemp("tower")
    make_log().write_csv(folder / "log.csv")
    write_recipe(folder / "tower.toml", **TOWER)
    assert (
        run(
            [
                "train",
                str(folder / "tower.toml"),
                "--out",
                str(folder / "tower"),
                "--quiet",
                "--json",
            ]
        )
        == 0
    )
    return folder / "tower"


@pytest.fixture
def items(tmp_path, log):
    table = log.select("item", "tags", "price").unique("item", keep="first", maintain_order=True)
    table.write_csv(tmp_path / "items.csv")
    return table


def test_build_update_change_and_remove(fieldwise, trained, items):
    build = "index", trained, "--items", "items.csv", "--out", "ix"
    code, out, err = fieldwise(*build, "--storage", "int8")
    assert code == 0
    assert err.startswith("items are identified by the column 'item' (change it with --id)\nnext, ")
    log = trained.parent / "log.csv"
    assert err.endswith(f"{command('serve', '--tower', trained, '--index', 'ix', '--log', log)}\n")
    assert "7 items in ix, int8" in out
    assert "7 new, 0 changed, 0 removed, 0 unchanged" in out
    result = json.loads(fieldwise(*build, "--json")[1])
    assert (result["new"], result["kept"], result["storage"]) == (0, 7, "int8")
    some = items.head(1).with_columns(price=pl.lit(9.9))
    pl.concat([some, items.head(1).with_columns(item=pl.lit("i77"))]).write_csv("some.csv")
    pl.DataFrame({"item": [items["item"][2]]}).write_csv("gone.csv")
    change = (
        "index",
        trained,
        "--items",
        "some.csv",
        "--out",
        "ix",
        "--changes",
        "--remove",
        "gone.csv",
        "--json",
    )
    result = json.loads(fieldwise(*change)[1])
    assert [result[k] for k in ("items", "new", "changed", "removed", "kept")] == [7, 1, 1, 1, 5]
    pl.DataFrame({"item": ["i77"]}).write_csv("gone.csv")
    result = json.loads(
        fieldwise("index", trained, "--out", "ix", "--remove", "gone.csv", "--json")[1]
    )
    assert [result[k] for k in ("items", "removed", "kept")] == [6, 1, 6]


@pytest.mark.usefixtures("log")
def test_a_server_without_a_bundle_says_what_it_needs(fieldwise, trained):
    for given in ((), ("--log", trained.parent / "log.csv")):
        refused(fieldwise("serve", *given), "a server needs a bundle that scores")


def test_the_recall_of_a_cascade(fieldwise, trained, bundle, items, log):
    log.write_csv("rows.csv")
    assert fieldwise("index", trained, "--items", "items.csv", "--out", "ix")[0] == 0
    cascade = "evaluate", bundle, "--tower", trained, "--index", "ix", "--data", "rows.csv"
    measure = *cascade, "--k", 3, "--candidates", 5
    code, out, err = fieldwise(*measure, "--rows", 20, "--json")
    assert code == 0
    assert err == "20 of 400 rows sampled as contexts (use --rows for more)\n"
    result = json.loads(out)
    assert (result["contexts"], result["items"], result["k"]) == (20, 7, 3)
    assert 0 <= result["recall"] <= 1
    assert result["recall_by_prerank"]["7"] == 1
    code, out, _ = fieldwise(*measure, "--rows", 20)
    assert code == 0
    for words in (
        "recall@3",
        "NDCG@3",
        "best item found",
        "of the items in",
        "ranking all items",
        "prerank",
    ):
        assert words in out


def test_tables_without_a_header(fieldwise, trained, bundle, items, log):
    def bare(table, name):
        table.write_csv(name, include_header=False)
        return "--read", "columns=" + ",".join(table.columns)

    rows, catalogue = bare(log, "bare.csv"), bare(items, "bare-items.csv")
    log.write_csv("rows.csv")
    code, out, _ = fieldwise(
        "index", trained, "--items", "bare-items.csv", "--out", "ix", *catalogue
    )
    assert (code, out[:12]) == (0, "7 items in i")
    cascade = "evaluate", bundle, "--tower", trained, "--index", "ix", "--k", 3
    measure = *cascade, "--candidates", 5, "--rows", 20, "--json"
    results = [
        fieldwise(*measure, "--data", *data)[1] for data in (("bare.csv", *rows), ("rows.csv",))
    ]
    plain = [{k: v for k, v in json.loads(text).items() if k != "milliseconds"} for text in results]
    assert plain[0] == plain[1]
    expected = fit_platt(log["click"], Bundle.load(bundle).score(log))
    assert (
        fieldwise(
            "evaluate", bundle, "--calibrate", "platt", "--out", "a", "--data", "bare.csv", *rows
        )[0]
        == 0
    )
    assert Bundle.load(Path("a")).calibration == {"click": expected}
    log.head(9).write_csv("usual.csv", include_header=False)
    explain = (
        "explain",
        bundle,
        "--data",
        "bare.csv",
        "--background",
        "usual.csv",
        "--method",
        "occlusion",
    )
    result = json.loads(fieldwise(*explain, "--row", 5, "--json", *rows)[1])
    assert result["base"] == pytest.approx(Bundle.load(bundle).score(log.head(9)).mean(), rel=1e-5)


def test_refused_options_of_index_and_tower(fieldwise, trained, bundle, items, log):
    build = "index", trained, "--items", "items.csv", "--out", "ix"
    refused(fieldwise(*build, "--storage", "int4"), "did you mean 'int8'")
    refused(
        fieldwise("index", bundle, "--items", "items.csv", "--out", "ix"),
        "found FM: train inttower",
    )
    refused(fieldwise(*build, "--id", "sku"), "--id must be a column of the table, found 'sku'")
    refused(fieldwise(*build, "--changes"), "found none at ix")
    assert fieldwise(*build)[0] == 0
    refused(fieldwise(*build, "--id", "tags"), "identifies items by 'item', found --id tags")
    pl.DataFrame({"item": ["nobody"]}).write_csv("gone.csv")
    refused(fieldwise(*build, "--remove", "gone.csv"), "found 'nobody'")
    items.drop("price").write_csv("less.csv")
    refused(
        fieldwise("index", trained, "--items", "less.csv", "--out", "ix", "--changes"),
        "must have the columns of the index: item, tags, price",
    )
    refused(fieldwise("index", trained, "--out", "ix"), "give --items")
    items.with_columns(price=pl.lit(1)).write_parquet("whole.parquet")
    assert fieldwise("index", trained, "--items", "whole.parquet", "--out", "whole")[0] == 0
    for price, shown in ((9.9, "9.9"), ("many", "'many'")):
        items.head(2).with_columns(price=pl.lit(price)).write_parquet("some.parquet")
        change = "index", trained, "--items", "some.parquet", "--out", "whole", "--changes"
        refused(fieldwise(*change), "column 'price' is Int32 there", f"found {shown} in row 0")
    log.write_csv("rows.csv")
    measure = "evaluate", bundle, "--tower", trained, "--data", "rows.csv"
    refused(fieldwise(*measure, "--index", "nothing"), "nothing is not an index")
    refused(
        fieldwise(*measure, "--index", "ix", "--k", 10, "--candidates", 5),
        "found k 10 and prerank 5",
    )
    refused(
        fieldwise(*measure, "--index", "ix", "--candidates", "all"),
        "the number of items passed on, found 'all'",
    )
    refused(fieldwise(*measure[:4], "--index", "ix"), "give --index and --data")
    refused(
        fieldwise(*measure, "--index", "ix", "--ranking"),
        "--ranking and --tower are evaluations of their own",
    )
    for given in (("--users", 3), ("--keep-seen",)):
        sentence = (
            f"{given[0]} is an option of --ranking, without effect on --tower: omit {given[0]}"
        )
        refused(fieldwise(*measure, "--index", "ix", "--k", 3, *given), sentence)
    refused(
        fieldwise("evaluate", bundle, "--nprobe", 3),
        "--nprobe is an option of --tower, which is not given",
    )
    alone = "evaluate", bundle, "--tower", bundle, "--data", "rows.csv"
    refused(fieldwise(*alone, "--index", "ix"), "must be the IntTower")


def test_a_thousand_workers_are_refused_before_any_is_started(fieldwise, bundle, monkeypatch):
    monkeypatch.setattr("fieldwise.cli.processes.available_cores", lambda: 3)
    code, out, err = fieldwise("serve", bundle, "--workers", 13)
    assert (code, out) == (2, "")
    assert err == (
        "fieldwise: --workers may be at most 12 on this machine, which has 3 cores, found 13: give about one a core\n"
    )


def test_every_source_is_given_by_an_option_of_its_name_or_by_read():
    sources = {field.name for field in dataclasses.fields(Sources)}
    options = {field.name for field in dataclasses.fields(ServeOptions)}
    assert sources - options == {"text"}
    given = ServeOptions(
        bundle=Path("b"), log=Path("l"), nprobe=3, exclude_seen=True, reading=Reading(read=["separator=;"])
    )  # fmt: skip
    assert given.checked_sources() == Sources(
        bundle=Path("b"),
        log=Path("l"),
        nprobe=3,
        exclude_seen=True,
        text=TextFormat(separator=";"),
    )
    usual = ServeOptions(bundle=Path("b"), reading=Reading()).checked_sources()
    assert usual == Sources(bundle=Path("b"))


def test_a_server_that_cannot_start(fieldwise, trained, bundle, items):
    import socket

    refused(fieldwise("serve"), "needs a bundle that scores")
    refused(fieldwise("serve", "nothing"), "nothing is not a bundle")
    refused(fieldwise("serve", bundle, "--tower", trained), "give --index, --items, or a --log")
    refused(fieldwise("serve", bundle, "--index", "items.csv"), "--index is for", "give --tower")
    refused(
        fieldwise("serve", bundle, "--read", "columns=user,item"),
        "applies to --log, which is not given",
    )
    refused(
        fieldwise("serve", bundle, "--exclude-seen"), "--exclude-seen needs a log", "give --log"
    )
    refused(
        fieldwise("serve", bundle, "--tower", trained, "--items", "redis://h/0"),
        "an index is built from a table",
    )
    refused(
        fieldwise("serve", bundle, "--tower", trained, "--index", "none"), "none is not an index"
    )
    named = "items.csv: the table must have a column of user ids: by the schema 'user' or 'user_id', found item"
    refused(fieldwise("serve", bundle, "--users", "items.csv"), named, "give --user-id")
    wrong = "--user-id must be a column of the table, found 'who': known: item"
    refused(fieldwise("serve", bundle, "--users", "items.csv", "--user-id", "who"), wrong)
    items.vstack(items).write_csv("twice.csv")
    assert (
        fieldwise("serve", bundle, "--items", "twice.csv")[2].count(
            "every id must be present and unique"
        )
        == 1
    )
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused(
            fieldwise("serve", bundle, "--port", taken.getsockname()[1]),
            "cannot listen on 127.0.0.1:",
        )
    assert fieldwise("index", trained, "--items", "items.csv", "--out", "ix")[0] == 0
    refused(
        fieldwise("serve", bundle, "--tower", bundle, "--index", "ix"),
        "--tower must be an IntTower, found",
    )


@pytest.mark.slow  # test_export.py has the exporters
def test_export(fieldwise, bundle):
    refused(fieldwise("export", bundle, "--out", "exported", "--to", "tflite"), "found 'tflite'")
    pytest.importorskip(
        "onnxruntime", reason="ONNX Runtime is absent: pip install 'fieldwise[onnx]'"
    )
    code, out, err = fieldwise("export", bundle, "--out", "exported")
    assert (code, err) == (0, "")
    assert out.startswith("exported/model.onnx: logits of the sample rows agree within ")

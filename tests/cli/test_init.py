"""`fieldwise init`: what it writes is read back, trains as it stands, and is never written over what is there."""

import json

import numpy as np
import pandas as pd
import polars as pl
import pytest
from cli.test_bad_input import refused
from polars.testing import assert_frame_equal

from fieldwise import (
    AutoIntPlus,
    Bundle,
    Categorical,
    Encoder,
    Label,
    RandomSplit,
    Schema,
    TimeSplit,
    as_table,
    load_recipe,
    prepare_recipe,
    simulate,
)
from fieldwise.cli.show import command
from fieldwise.data.prepare.suggested_split import suggest_split

QUICK = (
    "--set",
    "training.epochs=2",
    "--set",
    "model.hidden=[8]",
    "--set",
    "model.embedding_dim=4",
    "--quiet",
)


@pytest.fixture
def clicks(log, tmp_path):
    path = tmp_path / "clicks.csv"
    log.with_columns(
        click=pl.col("click").cast(pl.Boolean), day=pl.int_range(pl.len()) // 4
    ).rename({"day": "timestamp"}).write_csv(path)
    return path


def test_from_a_csv_to_a_bundle(fieldwise, done, clicks, tmp_path):
    code, out, err = fieldwise("init", "clicks.csv")
    assert (code, out) == (0, "schema.toml\nclicks.toml\n")
    assert err.endswith(
        f"next: check and correct schema.toml, then {command('train', 'clicks.toml')}\n"
    )
    recipe = load_recipe(tmp_path / "clicks.toml")
    assert recipe.schema == Schema.from_toml(tmp_path / "schema.toml")
    assert (recipe.split, recipe.model) == (TimeSplit(), AutoIntPlus())
    text = (tmp_path / "clicks.toml").read_text()
    assert "\n[training]" not in text
    assert 'path = "clicks.csv"' in text
    # whose schema would be schema.toml
    refused(fieldwise("init", "nope.csv"), "the file nope.csv does not exist")
    done("describe", "clicks.toml", *QUICK[:-1])
    done("train", "clicks.toml", "--out", "b", *QUICK)
    assert Bundle.load(tmp_path / "b").schema.label == Label("click")


def test_afm_trains_on_a_libsvm_file_of_fields(done, tmp_path):
    rng = np.random.default_rng(0)
    ids = np.stack(
        [rng.integers(0, 60, 400), rng.integers(60, 90, 400), rng.integers(90, 95, 400)], axis=1
    )
    rows = (f"{int(a % 2 == b % 2)} {a}:1 {b}:1 {c}:1\n" for a, b, c in ids)
    (tmp_path / "log.libsvm").write_text("".join(rows))
    done("init", "log.libsvm")
    kinds = {f.name: f.kind for f in Schema.from_toml(tmp_path / "schema.toml").fields}
    assert kinds == {"f1_id": "categorical", "f2_id": "categorical", "f3_id": "categorical"}
    done("train", "log.toml", "--out", "b", "--set", "model.name=afm", *QUICK[:2], "--quiet")
    (tmp_path / "one.libsvm").write_text("0 1:1 61:1 91:1\n")
    done("predict", "b", "--data", "one.libsvm", "--out", "p.csv")


def lines_of(err: str, word: str) -> list[str]:
    return [
        line.removeprefix(f"{word}: ") for line in err.splitlines() if line.startswith(f"{word}: ")
    ]


def test_five_lines_name_the_inferred_columns_and_doubts_are_marked(done, tmp_path):
    rng = np.random.default_rng(0)
    columns = {
        "user_id": rng.integers(0, 40, 400),
        "mood": rng.integers(0, 3, 400),
        "timestamp": np.arange(400),
    }
    answers = {"click": rng.integers(0, 4, 400) == 0, "bought": rng.integers(0, 9, 400) == 0}
    pl.DataFrame(columns | {k: v.astype(int) for k, v in answers.items()}).write_csv(
        "log.csv", separator=";"
    )
    err = done("init", "log.csv")[1]
    assert err.startswith("the fields of log.csv are separated by ';'\n")
    (label,), (user,), (item,), (time,), (split,) = (
        lines_of(err, word) for word in ("label", "user", "item", "time", "split")
    )
    assert label.startswith("click, binary")
    assert label.endswith(f"({answers['click'].mean():.1%} of the rows)")
    assert (user, item, time) == ("user_id, 40 values", "none found", "timestamp")
    assert split.startswith("the latest rows by 'timestamp'")
    checks = lines_of(err, "CHECK")
    assert any(line.startswith("no column was found that holds item ids") for line in checks)
    (other,) = [line for line in checks if line.startswith("the label may also be bought")]
    assert other.endswith("fieldwise init log.csv --label bought --overwrite")
    assert load_recipe(tmp_path / "log.toml").data.separator == ";"


def test_two_texts_of_one_number_may_be_versions(done, tmp_path):
    """Not in a column whose name tells a quantity, and not where each number has one text."""
    rng = np.random.default_rng(0)
    versions = rng.choice(["4.1", "4.10", "4.2", "5.0"], 400).tolist()
    columns = {
        "user_id": rng.integers(0, 40, 400),
        "system": versions,
        "price": versions,
        "size": rng.choice(["4.1", "4.2", "4.25", "5.0"], 400).tolist(),
        "depth": rng.choice(["4.1", "4.10", "-3.5"], 400).tolist(),
        "click": rng.integers(0, 2, 400),
    }
    pl.DataFrame(columns).write_csv("v.csv")
    _, err = done("init", "v.csv", "--label", "click")
    sentence = (
        "'4.1' and '4.10' in column 'system' are one number: if they are versions or codes, which differ, "
        'write kind = "categorical"'
    )
    assert [line for line in lines_of(err, "CHECK") if "one number" in line] == [sentence]
    kinds = {f.name: f.kind for f in Schema.from_toml(tmp_path / "schema.toml").fields}
    assert (kinds["system"], kinds["price"], kinds["size"]) == ("numeric", "numeric", "numeric")


def test_whole_numbers_with_a_fraction_of_zero_are_doubtful_ids(done, tmp_path):
    rng = np.random.default_rng(0)
    users = pd.Series(rng.integers(10, 50, 400)).where(rng.random(400) > 0.05)
    items = [f"i{k}" for k in rng.integers(0, 30, 400)]
    shops = pd.Series(rng.choice([17, 4011, 90], 400)).where(rng.random(400) > 0.05)
    log = pd.DataFrame(
        {"user_id": users, "item_id": items, "shop_code": shops, "click": rng.integers(0, 2, 400)}
    )
    log.to_csv("pandas.csv", index=False)
    log.astype({"user_id": "Int64", "shop_code": "Int64"}).to_csv("whole.csv", index=False)
    log.to_parquet("typed.parquet", index=False)
    for name, count in (("pandas.csv", 1), ("whole.csv", 0), ("typed.parquet", 0)):
        out, err = done("init", name, "--label", "click", "--out", "-")
        assert 'user = "user_id"' in out
        found = [
            line
            for line in lines_of(err, "CHECK")
            if "the user ids in 'user_id' are whole numbers written" in line
        ]
        assert len(found) == count, name
        assert (
            "the categories in 'shop_code' are whole numbers written with a fraction" in err
        ) == bool(count)
    done("init", "pandas.csv", "--label", "click")
    assert "# CHECK: the user ids in 'user_id'" in (tmp_path / "schema.toml").read_text("utf-8")
    schema = Schema.from_toml(tmp_path / "schema.toml")
    values = [Encoder.fit(name, schema).fitted[0].values for name in ("pandas.csv", "whole.csv")]
    assert {value.removesuffix(".0") for value in values[0]} == {*values[1]}, (
        "what the sentence says"
    )
    assert not {*values[0]} & {*values[1]}


def test_a_log_of_only_positives_has_a_recipe_with_negatives(done, tmp_path):
    rng = np.random.default_rng(0)
    log = pl.DataFrame(
        {"user_id": rng.integers(0, 60, 900), "item_id": rng.integers(0, 50, 900)}
    ).unique()
    brand = pl.col("item_id").cast(pl.String).str.slice(0, 1).alias("brand")
    log.with_columns(brand, timestamp=pl.int_range(pl.len())).write_csv("buys.csv")
    done("init", "buys.csv")
    recipe = load_recipe(tmp_path / "buys.toml")
    assert recipe.negatives is not None
    assert recipe.negatives.item_columns == ("brand",)
    assert set(recipe.negatives.parts) == {"train", "valid", "test"}


def test_a_log_of_users_items_and_times_has_features_to_uncomment(done, tmp_path):
    # the log has weekdays already
    simulate(2_000, users=60, items=30).drop("hour").write_csv("log.csv")
    done("init", "log.csv", "--label", "liked")
    baseline = load_recipe(tmp_path / "log.toml")
    assert baseline.features == ()
    text = (tmp_path / "log.toml").read_text()
    proposal = [line[2:] for line in text[text.index("# [[features]]") :].splitlines()]
    words = next(number for number, line in enumerate(proposal) if line.startswith("At the end of"))
    (tmp_path / "with.toml").write_text(text + "\n".join(proposal[:words]) + "\n")
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text() + "\n" + "\n".join(proposal[words + 1 :]) + "\n")

    recipe = load_recipe(tmp_path / "with.toml")
    kinds = [feature.kind for feature in recipe.features]
    assert kinds == ["count", "time_since", "count", "hour", "rate"]
    made = {name for feature in recipe.features for name in feature.columns}
    assert made <= set(recipe.schema.columns)
    train = prepare_recipe(recipe, tmp_path).train.frame
    assert train["item_id_liked_rate"].null_count() < train.height


def test_an_item_column_that_changes_is_drawn_as_of_the_rows_time(done, tmp_path):
    """Without a time, the recipe would be refused with it: a drawn item would have several prices."""
    rng = np.random.default_rng(0)
    log = pl.DataFrame({"user_id": rng.integers(0, 60, 900), "item_id": rng.integers(0, 50, 900)})
    log = log.unique(maintain_order=True)
    state = (
        pl.when(pl.int_range(pl.len()) < log.height - 8).then(pl.col("item_id") % 4).otherwise(9)
    )
    brand = pl.format("b{}", pl.col("item_id") % 5)
    log = log.with_columns(
        brand=brand, item_state=pl.format("s{}", state), timestamp=pl.int_range(pl.len())
    )
    log.write_csv("buys.csv")
    err = done("init", "buys.csv")[1]
    assert "drawn negative" not in err
    assert load_recipe(tmp_path / "buys.toml").negatives.item_columns == ("brand", "item_state")
    told = done("prepare", "buys.toml")[1]
    assert "of these without a value that changes, as their item has none before their time" in told
    (tmp_path / "schema.toml").unlink()
    log.drop("timestamp").write_csv("buys.csv")
    err = done("init", "buys.csv", "--overwrite")[1]
    negatives = load_recipe(tmp_path / "buys.toml").negatives
    assert negatives is not None
    assert negatives.item_columns == ("brand",)
    (check,) = [line for line in lines_of(err, "CHECK") if "drawn negative" in line]
    assert check.startswith("column 'item_state' has several values for one item")
    done("describe", "buys.toml")


def test_ids_in_doubt_are_set_once_they_are_given(done, fieldwise, tmp_path):
    """Nothing follows from them before: neither group AUC nor recommendations."""
    rng = np.random.default_rng(1)
    users = rng.choice(300, 3000, p=np.diff(np.linspace(0, 1, 301) ** 2))
    items = rng.choice(99_999, 150, replace=False)[
        rng.choice(150, 3000, p=np.diff(np.linspace(0, 1, 151) ** 2))
    ]
    log = pl.DataFrame({"anka": [f"u{k * 7919 % 9973:05d}x" for k in users], "bero": items})
    log = log.with_columns(
        cilu=pl.col("bero") % 7,
        dova=pl.Series(users % 5),
        click=pl.Series(rng.integers(0, 2, 3000)),
    )
    log.write_csv("clicks.csv")
    err = done("init", "clicks.csv")[1]
    assert Schema.from_toml(tmp_path / "schema.toml").user is None
    checks = lines_of(err, "CHECK")
    assert any(
        line.startswith("column 'anka' may hold the user ids, by its rows and not by its name")
        for line in checks
    )
    (again,) = [line for line in checks if line.startswith("if these are the ids: ")]
    words = again.partition(" init ")[2].split()
    assert words == ["clicks.csv", "--user", "anka", "--item", "bero", "--overwrite"]
    done("train", "clicks.toml", "--set", "model.name=lr", "--out", "bundle")
    refused(fieldwise("recommend", "bundle", "--log", "clicks.csv", "--out", "top.csv"), "user")
    err = done("init", *words)[1]
    schema = Schema.from_toml(tmp_path / "schema.toml")
    assert (schema.user, schema.item) == ("anka", "bero")
    assert {f.column: f.role for f in schema.fields} == {
        "anka": "user",
        "bero": "item",
        "cilu": "item",
        "dova": "user",
    }
    assert not [line for line in lines_of(err, "CHECK") if "ids" in line]


def test_doubtful_columns_are_prompted_for_on_a_terminal(done, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    columns = {"who": [f"w{k}" for k in rng.integers(0, 300, 400)], "mood": rng.integers(0, 3, 400)}
    pl.DataFrame(columns | {"a": rng.integers(0, 2, 400), "b": rng.integers(0, 2, 400)}).write_csv(
        "log.csv"
    )
    asked = []

    def prompt(text: str, default: str) -> str:
        asked.append((text, default))
        return {
            "label": "b" if default == "a" else "a",
            "user": "who" if len(asked) > 2 else "nobody",
            "item": "-",
        }[text.split()[3]]

    monkeypatch.setattr("typer.prompt", prompt)
    monkeypatch.setattr("fieldwise.cli.init._on_terminal", lambda: True)
    err = done("init", "log.csv")[1]
    assert [text.split()[3] for text, _ in asked] == ["label", "user", "user", "item"]
    assert "the column must be one of -, who, mood, " in err
    schema = Schema.from_toml(tmp_path / "schema.toml")
    assert (schema.label.column, schema.user, schema.item) == (
        "b" if asked[0][1] == "a" else "a",
        "who",
        None,
    )
    assert next(f for f in schema.fields if f.column == "who") == Categorical("who", role="user")


@pytest.mark.parametrize("words", [("init",), ("init", "--out", "-"), ("auto",)])
def test_a_wrong_separator_is_named(fieldwise, log, tmp_path, words):
    for written, given, remedy in [
        (",", "|", "give --read separator=,"),
        (";", ",", "give --read 'separator=;'"),
        ("\t", ";", r"separator=\t"),
    ]:
        log.write_csv(tmp_path / "log.csv", separator=written)
        refused(
            fieldwise(words[0], "log.csv", *words[1:], "--read", f"separator={given}"),
            f"the separator must divide the columns of log.csv, but {given!r} does not occur",
            repr(written.join(log.columns)),
            remedy,
            "or omit it",
        )
        assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_files_that_are_there_are_not_written_over(fieldwise, done, clicks, tmp_path):
    (tmp_path / "schema.toml").write_text("# mine")
    refused(
        fieldwise("init", "clicks.csv"),
        "schema.toml exists: give --overwrite",
        "--schema schema.toml",
    )
    assert (tmp_path / "schema.toml").read_text() == "# mine"
    assert not (tmp_path / "clicks.toml").exists()
    done("init", "clicks.csv", "--overwrite")
    assert fieldwise("init", "clicks.csv", "--schema", "schema.toml")[0] == 2  # the recipe is there
    assert (
        fieldwise("init", "clicks.csv", "--schema", "other.toml", "--overwrite")[1]
        == "other.toml\nclicks.toml\n"
    )


def test_a_schema_that_is_there_is_used_as_it_is(fieldwise, done, clicks, tmp_path):
    done("init", "clicks.csv", "--out", "-", "--label", "item", "--positive", "i1")
    schema = Schema(fields=(Categorical("user"),), label=Label("click"))
    (tmp_path / "mine.toml").write_text(schema.to_toml())
    code, out, err = fieldwise("init", "clicks.csv", "--schema", "mine.toml")
    assert (code, out, err) == (0, "clicks.toml\n", f"next: {command('train', 'clicks.toml')}\n")
    assert load_recipe(tmp_path / "clicks.toml").schema == schema
    assert load_recipe(tmp_path / "clicks.toml").split == RandomSplit(stratify=True)
    refused(
        fieldwise("init", "clicks.csv", "--schema", "mine.toml", "--label", "click", "--overwrite"),
        "for an inferred schema",
    )


def test_a_table_elsewhere_and_another_way_of_reading(fieldwise, done, log, tmp_path):
    (tmp_path / "far").mkdir()
    content = log.write_csv(separator=";").replace("u1", "ü1")
    (tmp_path / "far" / "sch ema.csv").write_bytes(content.encode("cp1252"))
    table = str(tmp_path / "far" / "sch ema.csv")
    reading = ("--read", "separator=;", "--read", "encoding=cp1252")
    code, out, err = fieldwise("init", table, "--out", "near", *reading)
    assert (code, out) == (0, "near/schema.toml\nnear/sch ema.toml\n")
    assert err.endswith("fieldwise train 'near/sch ema.toml'\n")
    data = load_recipe(tmp_path / "near" / "sch ema.toml").data
    assert (data.path, data.separator, data.encoding) == (table, ";", "cp1252")
    done("describe", "near/sch ema.toml")


def test_a_table_named_schema_has_a_recipe_of_another_name(fieldwise, log, tmp_path):
    log.write_csv(tmp_path / "schema.csv")
    assert fieldwise("init", "schema.csv")[1] == "schema.toml\nschema-recipe.toml\n"


def test_an_unknown_positive_value_is_marked(fieldwise, log, tmp_path):
    log.with_columns(
        click=pl.when(pl.col("click") == 1).then(pl.lit("up")).otherwise(pl.lit("down"))
    ).write_csv("c.csv")
    err = fieldwise("init", "c.csv")[2]
    assert "\nCHECK: it is unknown which of " in err


def rows(n: int, y) -> pl.DataFrame:
    return pl.DataFrame({"x": np.arange(n) % 3, "t": np.arange(n), "y": y})


SCHEMA = Schema(fields=(Categorical("x"),), label=Label("y"), time="t")


def test_the_split_that_suits_the_rows(subtests):
    for frame, split, why in [
        (rows(100, [0, 1] * 50), TimeSplit(), "latest rows by 't'"),
        (
            rows(100, [0] * 50 + [1] * 50),
            RandomSplit(stratify=True),
            "all 10 valid rows would be positive",
        ),
        (
            rows(100, [0, 1] * 50).with_columns(t=1),
            RandomSplit(stratify=True),
            "at least 3 different times",
        ),
    ]:
        with subtests.test(frame=frame, split=split, why=why):
            result, reason = suggest_split(frame, SCHEMA)
            assert result == split
            assert why in reason


def test_json_lines_give_the_same_as_parquet(done, log, tmp_path, monkeypatch):
    """From `init` to `predict` and `evaluate`: the same rows in both formats give the same numbers."""
    rows = log.with_columns(
        time=pl.int_range(pl.len()),
        tags=pl.concat_list(pl.col("user").cast(pl.String), pl.lit("all")),
    )
    results = {}
    for suffix in (".jsonl", ".parquet"):
        folder = tmp_path / suffix[1:]
        folder.mkdir()
        monkeypatch.chdir(folder)
        table = f"rows{suffix}"
        if suffix == ".jsonl":
            lines = (json.dumps(row) for row in rows.iter_rows(named=True))
            (folder / table).write_text("\n".join(lines))
        else:
            rows.write_parquet(table)
        done("init", table)
        done("prepare", "rows.toml")
        done("train", "rows.toml", "--out", "b", *QUICK)
        done("predict", "b", "--data", table, "--out", f"scores{suffix}")
        out, _ = done("evaluate", "b", "--data", table, "--json")
        evaluation = json.loads(out)["metrics"]
        schema = (folder / "schema.toml").read_text()
        results[suffix] = schema, as_table(folder / f"scores{suffix}"), evaluation
    schema, scores, evaluation = results[".jsonl"]
    other_schema, other_scores, other_evaluation = results[".parquet"]
    assert schema == other_schema
    assert 'column = "tags"' in schema
    assert_frame_equal(scores, other_scores, check_dtypes=False, rel_tol=1e-6)
    assert evaluation == other_evaluation

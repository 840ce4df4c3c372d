"""What the commands print and write when all is well."""

import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import typer.main
from cli.conftest import make_log, write_recipe
from cli.test_bad_input import refused

import fieldwise as package
from fieldwise import (
    FM,
    Bundle,
    Recommender,
    TrainingSettings,
    as_table,
    load_recipe,
    prepare_recipe,
    recipe_names,
)
from fieldwise.cli import quickstart, run
from fieldwise.cli.app import app
from fieldwise.cli.show import command, command_name
from fieldwise.data.read.public_sets import PUBLIC_SETS
from fieldwise.models import parameter_count
from fieldwise.models.mean_with_lr import network_share
from fieldwise.training.settings import OPTIMIZERS

COMMON = {"--help", "--verbose"}
OPTIONS = {  # by command
    # the two of completion are not in the help
    "": "import version install-completion show-completion",
    "quickstart": "data out serve port seed overwrite quiet",
    "fetch": "",
    "simulate": "out rows users items seed overwrite",
    "init": "label positive user item schema out overwrite read",
    "auto": "label positive minutes out overwrite schema split-column keep seed read json quiet device",
    "audit": "label positive schema split-column set fail-on seed read json",
    "features": "",
    "features latest": "bundle id at ttl out overwrite read",
    "features backfill": "bundle since until out overwrite read",
    "features check": "bundle log share read json",
    "features delay": "by picture overwrite json",
    "prepare": "set clear json quiet progress engine",
    "train": "set out overwrite json quiet tracker progress processes engine",
    "compare": "seeds set metric store overwrite ranking k candidates users keep-seen json quiet tracker",
    "tune": "trials set seed seeds store json quiet tracker",
    "evaluate": "data read ranking k candidates users keep-seen calibrate out overwrite tower index nprobe rows json"
    " device",
    "report": "out overwrite slice rows quiet device",
    "explain": "data row rows background method label faithfulness why-not user k exclude-seen limit pin tower index"
    " read json device",
    "predict": "data out column logit overwrite raw read progress device precision engine",
    "recommend": "log out k user exclude-seen limit pin title overwrite raw read quiet progress device",
    "export": "out to overwrite",
    "index": "out items id storage changes remove read json device",
    "serve": "tower index nprobe users user-id items item-id log read exclude-seen max-items title"
    " store-timeout on-store-failure host port token no-token allow-host"
    " max-body timeout workers watch device",
    "describe": "set json",
    "doctor": "json",
    "store": "",
    "store load": "to id read json",
}


def commands(command, path=()):
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def test_the_commands_and_their_options_are_these():
    results = {
        " ".join(path): {
            o[2:] for p in command.params for o in p.opts if o.startswith("--") and o not in COMMON
        }
        for path, command in commands(typer.main.get_command(app))
    }
    assert results == {path: set(options.split()) for path, options in OPTIONS.items()}


def test_an_option_of_another_command_is_no_option(fieldwise):
    refused(fieldwise("store", "data"), "No such command 'data'", "see `fieldwise store --help`")
    assert "No such option: --seed" in fieldwise("compare", "r", "--seed", "2")[2], (
        "of other commands"
    )
    assert "No such option: --thread" in fieldwise("train", "r", "--thread", 2)[2], (
        "no prefix of another"
    )


def test_help_of_every_command(fieldwise):
    for path, options in OPTIONS.items():
        code, out, err = fieldwise(*path.split(), "--help")
        assert (code, err) == (0, ""), path
        assert not [
            name for name in options.split() if f"--{name}" not in out and "completion" not in name
        ], path
        assert not re.search(r"\[\[|\.\.\.\}|Usage: .*\[[a-z]+\]", out), path
        assert not re.search(r"<(bool|str|int|float|path|int range|float range)>", out), path
    assert fieldwise("train", "-h") == fieldwise("train", "--help")


def test_help_has_headings_and_fits_on_a_screen(fieldwise, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = fieldwise("--help")
    assert 24 <= len(out.strip().splitlines()) <= 42
    assert "…" not in out
    headings = ["Start here", "The loop", "Operations"]
    places = [out.index(f" {heading} ─") for heading in headings]
    assert places == sorted(places)
    _, out, _ = fieldwise("train", "--help")
    assert out.index(" Options ─") < out.index(" Output ─")
    assert " Machine ─" in out
    assert re.search(r"--processes +N ", out)


def test_version_and_recipes(fieldwise):
    assert fieldwise("--version") == (0, f"fieldwise {package.__version__}\n", "")
    assert fieldwise("describe")[:2] == (0, "".join(f"{name}\n" for name in recipe_names()))


def test_the_shell_completes_commands_and_options():
    typed = {
        "_FIELDWISE_COMPLETE": "complete_bash",
        "COMP_WORDS": "fieldwise predict --lo",
        "COMP_CWORD": "2",
    }
    command = [sys.executable, "-m", "fieldwise"]
    done = subprocess.run(
        command, env={**os.environ, **typed}, capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["--logit"], "")


def test_a_limit_that_a_run_reached_is_said_unless_quiet(done, recipe, monkeypatch):
    monkeypatch.setattr(
        "fieldwise.runs.default_settings.limit_reached", lambda *_: "CHECK: all epochs were needed"
    )
    few = ("train", recipe, "--set", "training.epochs=1", "--json")
    assert "CHECK: all epochs were needed" in done(*few, "--out", "a")[1]
    assert done(*few, "--out", "b", "--quiet")[1] == ""


def test_train_prints_one_json_object_and_saves_a_bundle(done, recipe, log):
    out, err = done(
        "train", recipe, "--out", "b", "--set", "seed=4", "--json", "--set", "training.epochs=3"
    )
    record = json.loads(out)
    assert (record["seed"], record["bundle"], record["training"]["epochs"]) == (4, "b", 3)
    assert record["counts"] == {
        "dropped_by_label": 0,
        "train_rows": 240,
        "valid_rows": 80,
        "test_rows": 80,
    }
    lines = err.splitlines()
    assert lines[0] == f"{recipe}: 240 train, 80 valid, 80 test rows"
    assert re.match(r"chosen from the data: .*Gaussian priors, divided by 240 rows", lines[1])
    assert record["training"]["monitor"] == "logloss"
    assert lines[2] == f"{recipe}: first LR is fitted (start_from_lr, mean_with_lr)"
    assert all(
        re.match(rf"{re.escape(str(recipe))} epoch \d/3: train loss ", line) for line in lines[3:]
    )
    assert len(lines) == 3 + record["epochs"]
    loaded = Bundle.load(Path("b"))
    assert loaded.about.run["test"] == record["test"]
    assert loaded.score(log).shape == (400,)


def test_train_prints_a_table_for_people_and_chooses_a_folder(fieldwise, recipe):
    code, out, err = fieldwise("train", recipe, "--quiet")
    assert (code, err) == (0, "")
    assert re.search(r"^ auc +0\.\d{4} +0\.\d{4}", out, re.M)
    seconds = re.search(
        r"(\d+) s in total \((\d+) s to read and prepare, (\d+) s to train and evaluate\)\. Bundle: runs/mine-seed0",
        out,
    )
    assert seconds is not None
    total, preparing, training = map(int, seconds.groups())
    assert total == preparing + training, "rounded first, so that they add up"
    Bundle.load(Path("runs/mine-seed0"))


# evaluate, predict


def test_evaluate_repeats_the_recipes_test_metrics(as_json, bundle):
    result = as_json("evaluate", bundle)
    assert result["data"] == "the recipe's test rows"
    assert result["metrics"] == pytest.approx(Bundle.load(bundle).about.run["test"], abs=1e-6)


def test_evaluate_on_another_table(fieldwise, done, bundle, log, tmp_path):
    from sklearn.metrics import log_loss, roc_auc_score

    log.head(50).write_parquet(tmp_path / "new.parquet")
    code, out, _ = fieldwise("evaluate", bundle, "--data", "new.parquet", "--json")
    metrics = json.loads(out)["metrics"]
    p, y = Bundle.load(bundle).predict(log.head(50)), log.head(50).get_column("click").to_numpy()
    assert code == 0
    assert metrics["auc"] == pytest.approx(roc_auc_score(y, p))
    assert metrics["logloss"] == pytest.approx(log_loss(y, p))
    out = done("evaluate", bundle, "--data", "new.parquet")[0]
    assert f"{metrics['auc']:.4f}" in out


def test_predict_keeps_order_and_keys(subtests, fieldwise, bundle, log, tmp_path):
    for suffix in ["csv.gz", "parquet"]:
        with subtests.test(suffix=suffix):
            shuffled = log.sample(fraction=1.0, shuffle=True, seed=3).drop("click")
            shuffled.write_csv(tmp_path / "new.csv")
            code, out, err = fieldwise(
                "predict", bundle, "--data", "new.csv", "--out", f"deep/scores.{suffix}"
            )
            assert (code, out) == (0, "")
            assert (
                f"400 predictions written to deep/scores.{suffix} (row_id, user, prediction)" in err
            )
            result = as_table(tmp_path / f"deep/scores.{suffix}")
            assert result.columns == ["row_id", "user", "prediction"]
            assert result.select("row_id", "user").equals(shuffled.select("row_id", "user"))
            np.testing.assert_allclose(
                result.get_column("prediction"), Bundle.load(bundle).predict(shuffled), rtol=1e-6
            )


def test_predict_numbers_rows_that_have_no_key_and_tells_of_unseen_values(
    done, bundle, log, tmp_path
):
    strange = log.head(4).select("item", "tags", "price")
    strange.with_columns(user=pl.Series(["u1", "new", "", "newer"])).write_csv(tmp_path / "new.csv")
    assert Bundle.load(bundle).schema.keys == ("row_id", "user")
    err = done("predict", bundle, "--data", "new.csv", "--out", "scores.csv")[1]
    assert "unknown values: user 50.0%" in err
    assert pl.read_csv(tmp_path / "scores.csv").columns == ["user", "prediction"]


def test_predict_refuses_another_precision_and_warns_of_a_slow_one(
    fieldwise, done, bundle, log, tmp_path, monkeypatch
):
    log.head(9).write_csv(tmp_path / "new.csv")
    ask = ("predict", bundle, "--data", "new.csv", "--out", "out.csv", "--precision")
    refused(fieldwise(*ask, "half"), "--precision must be float32 or bfloat16, found 'half'")
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    err = done(*ask, "bfloat16")[1]
    assert "warning: this CPU has no bfloat16 arithmetic" in err
    assert pl.read_csv(tmp_path / "out.csv").height == 9


def test_predict_writes_log_odds_beside_the_probabilities(fieldwise, done, bundle, log, tmp_path):
    log.write_csv(tmp_path / "new.csv")
    done("predict", bundle, "--data", "new.csv", "--out", "out.parquet", "--logit")
    result = pl.read_parquet("out.parquet")
    assert result.columns == ["row_id", "user", "prediction", "logit"]
    np.testing.assert_allclose(
        result["logit"], Bundle.load(bundle).score(log), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(result["prediction"], 1 / (1 + np.exp(-result["logit"].to_numpy())))
    refused(
        fieldwise(
            "predict", bundle, "--data", "new.csv", "--out", "o.csv", "--logit", "--column", "logit"
        ),
        "'logit' exists already: give another --column",
    )


def test_evaluate_remarks_on_bad_and_on_empty_figures(done, bundle, log, tmp_path):
    log.with_columns(click=1 - pl.col("click")).write_csv("wrong.csv")
    out = done("evaluate", bundle, "--data", "wrong.csv")[0]
    assert re.search(
        r"^On wrong.csv the logloss \S+ is worse than 0.69\d+, that of always predicting", out, re.M
    )
    assert "the ranking is reversed" in out
    log.with_columns(click=pl.lit(0)).write_csv("none.csv")
    out = done("evaluate", bundle, "--data", "none.csv")[0]
    assert "On none.csv all labels are negative: AUC and other metrics" in out
    assert not re.search("^ auc", out, re.M)


def test_evaluate_says_that_rows_trained_the_model(fieldwise, done, bundle, log, tmp_path):
    """240 of the 400 rows of the log trained it, as the recipe's split says."""
    log.write_csv("log.csv")
    out, err = done("evaluate", bundle, "--data", "log.csv")
    assert "auc" in out
    (warning,) = [line for line in err.splitlines() if line.startswith("WARNING")]
    assert warning.startswith(
        "WARNING: 240 of these 400 rows were trained on, so the metrics say little about new rows; "
    )
    prepared = prepare_recipe(load_recipe(bundle.parent / "mine.toml"), Path())
    prepared.train.frame.sample(fraction=1, shuffle=True, seed=0).write_parquet("train.parquet")
    out, err = done("evaluate", bundle, "--data", "train.parquet", "--json")
    assert (
        "WARNING: 240 of these 240 rows were trained on, so the metrics say nothing about new rows; "
        in err
    )
    assert json.loads(out)["share_trained"] == 1
    words = shlex.split(err.strip().rpartition("measured by: ")[2])
    assert words[-2:] == ["evaluate", str(bundle)]
    prepared.test.frame.write_parquet("test.parquet")
    out, err = done("evaluate", bundle, "--data", "test.parquet", "--json")
    assert (json.loads(out)["share_trained"], "WARNING" in err) == (0, False)
    # rows cannot be told apart as they were then
    prepared.train.frame.drop("row_id").write_parquet("bare.parquet")
    out, err = done("evaluate", bundle, "--data", "bare.parquet", "--json")
    assert (json.loads(out)["share_trained"], "WARNING" in err) == (None, False)


def test_evaluate_says_that_rows_trained_an_estimator(fieldwise, bundle, log, tmp_path):
    schema = Bundle.load(bundle).schema
    training = TrainingSettings(epochs=1)
    Recommender(schema, FM(embedding_dim=4), training=training, valid_share=0.25).fit(
        log[:200]
    ).save("own")
    log[:200].write_csv("known.csv")
    log[200:].write_csv("new.csv")
    err = fieldwise("evaluate", "own", "--data", "known.csv")[2]
    assert (
        "WARNING: 150 of these 200 rows were trained on, so the metrics say little about new rows; evaluate on rows"
        in err
    )
    assert "WARNING" not in fieldwise("evaluate", "own", "--data", "new.csv")[2]


def test_evaluate_names_an_old_bundles_missing_checks(fieldwise, done, bundle, tmp_path):
    old = Bundle.load(bundle)
    run = {k: v for k, v in old.about.run.items() if k != "test_digest"}
    dataclasses.replace(old, about=dataclasses.replace(old.about, run=run)).save(tmp_path / "old")
    out, err = done("evaluate", "old", "--json")
    assert err.startswith("not checked: ")
    assert (
        json.loads(out)["metrics"]
        == json.loads(fieldwise("evaluate", bundle, "--json")[1])["metrics"]
    )


# the cache of prepared data


def described(out):
    """What `describe --json` says, without what it measures: its own process, and the raw rows in the cache."""
    result = json.loads(out)
    for name in ("program", "sum", "raw_rows"):
        assert result["memory_mib"].pop(name) > 0
    for name in ("cached_raw_rows", "sum"):
        assert result["disk_mib"].pop(name) > 0
    return result


def test_the_second_command_reads_the_cache_and_says_so(fieldwise, recipe, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("FIELDWISE_CACHE", "off")
        assert (
            fieldwise("describe", recipe, "--json")[::2]
            == fieldwise("describe", recipe, "--json")[::2]
            == (0, "")
        )
        for command in (("prepare",), ("prepare", recipe)):
            code, _, err = fieldwise(*command)
            assert (code, err.count("\n")) == (2, 1)
            assert err.startswith("fieldwise: there is no cache, since FIELDWISE_CACHE is off: ")
    assert "0 entries" in fieldwise("prepare")[1]
    empty = json.loads(fieldwise("prepare", "--json")[1])
    assert (empty["entries"], empty["limit"] > 0) == ([], True)
    code, out, err = fieldwise("describe", recipe, "--json")
    assert (code, err) == (0, "")
    first = described(out)
    code, second, err = fieldwise("describe", recipe, "--json")
    assert (code, described(second)) == (0, first)
    assert err.startswith("read from the cache: ")
    assert err.count("\n") == 1
    _, out, _ = fieldwise("prepare")
    assert "240 train, 80 valid, 80 test rows" in out
    assert "1 entry, " in out
    (entry,) = json.loads(fieldwise("prepare", "--json")[1])["entries"]
    assert (entry["title"] in out, Path(entry["folder"]).parent) == (True, Path(empty["cache"]))
    assert "1 entry removed" in fieldwise("prepare", "--clear")[2]
    _, out, err = fieldwise("describe", recipe, "--json")
    assert (described(out), err) == (first, "")
    entry = json.loads(fieldwise("prepare", "--json")[1])["entries"][0]
    removed = {"cache": empty["cache"], "removed": 1, "bytes": entry["bytes"]}
    assert json.loads(fieldwise("prepare", "--clear", "--json")[1]) == removed


def test_what_concerns_a_recipe_is_refused_without_one(fieldwise):
    for words in (("prepare",), ("prepare", "--clear"), ("describe",)):
        given = fieldwise(*words, "--set", "training.epochs=3")
        refused(given, "--set changes a recipe, which is not given: name one, or omit --set")
    for words in (("prepare",), ("prepare", "--clear")):
        refused(
            fieldwise(*words, "--engine", "ray"),
            "--engine ray prepares a recipe, which is not given",
        )
    assert json.loads(fieldwise("describe", "--json")[1]) == {"recipes": recipe_names()}


@pytest.mark.filterwarnings("always:this CPU has no bfloat16")
def test_a_warning_is_a_sentence_and_no_line_of_code(done, recipe, monkeypatch):
    monkeypatch.setattr("torch.cpu.get_capabilities", dict)
    err = done("train", recipe, "--out", "b", "--set", "training.precision=bfloat16", "--quiet")[1]
    assert err.startswith("warning: this CPU has no bfloat16 arithmetic")
    assert err.count("\n") == 1


USAGE = {
    "no number": (
        ("compare", "x", "--seeds", "two"),
        "'--seeds'",
        "found 'two'",
        "`fieldwise compare --help`",
    ),
    "too small": (("compare", "x", "--seeds=0"), "greater than or equal to 1", "found '0'"),
    "a seed too small": (("tune", "x", "--seed", "-1"), "'--seed'", "found '-1'"),
    "a seed too large": (("quickstart", "--seed", str(2**32)), "'--seed'", f"found '{2**32}'"),
    "no recipe": (("train",), "Missing argument 'RECIPE'; see `fieldwise train --help`"),
    "unknown option": (("compare", "x", "--sedes", "3"), "No such option: --sedes", "--seeds"),
    "unknown command": (("trian",), "No such command 'trian'", "`fieldwise --help`"),
    "no value": (
        ("compare", "x", "--seeds"),
        "'--seeds' requires an argument; see `fieldwise --help`",
    ),
}


def test_wrong_arguments_are_one_sentence(subtests, fieldwise):
    for case in USAGE:
        with subtests.test(case=case):
            arguments, *parts = USAGE[case]
            outcome = fieldwise(*arguments)
            refused(outcome, *parts)
            assert len(outcome[2].splitlines()) == 1


# describe


@pytest.fixture
def small_movielens(tmp_path, monkeypatch):
    """A folder of public data with six users' ratings in the form of MovieLens-1M."""
    # of the official files
    unchecked = dataclasses.replace(PUBLIC_SETS["movielens-1m"], checksums={})
    monkeypatch.setitem(PUBLIC_SETS, "movielens-1m", unchecked)
    folder = tmp_path / "data" / "ml-1m"
    folder.mkdir(parents=True)
    (folder / "users.dat").write_text(
        "".join(f"{u}::F::25::{u % 3}::0123{u}\n" for u in range(1, 7))
    )
    (folder / "movies.dat").write_text(
        "".join(f"{m}::Film {m} (199{m})::Drama|Comedy\n" for m in range(1, 10))
    )
    (folder / "ratings.dat").write_text(
        "".join(
            f"{u}::{m}::{1 + (u * m) % 5}::{10 * u + m}\n"
            for u in range(1, 7)
            for m in range(1, 10)
        )
    )
    monkeypatch.setenv("FIELDWISE_DATA", str(tmp_path / "data"))


@pytest.mark.usefixtures("small_movielens")
def test_describe_names_the_protocol_and_its_leak(fieldwise):
    ask = "describe", "movielens-1m-inttower/lr", "--set"
    _, out, err = fieldwise(*ask, "protocol = paper")
    assert "protocol: paper (leaks labels)\n" in out
    assert "metrics are too good" in err
    _, out, err = fieldwise(*ask, "protocol=clean", "--json")
    assert json.loads(out)["protocol"] == "clean"
    assert "too good" not in err


@pytest.mark.usefixtures("small_movielens")
def test_train_names_its_folder_by_the_protocol(as_json):
    result = as_json("train", "movielens-1m-inttower/lr", "--set", "protocol = clean", "--quiet")
    assert result["bundle"] == "runs/movielens-1m-inttower-lr-clean-seed0"


def test_describe_counts_what_can_be_counted_by_hand(as_json, recipe):
    facts = as_json("describe", recipe, "--set", "training.batch_size=32")
    rows = {f["name"]: f["rows"] for f in facts["fields"]}
    # 9 users, 7 items and 3 tags, each with a missing and an unknown row; a number has a missing
    # row and its vector.
    assert rows == {"user": 11, "item": 9, "tags": 5, "price": 2}
    assert [f["kind"] for f in facts["fields"]] == ["categorical", "categorical", "bag", "numeric"]
    table = sum(rows.values())
    shapes = {p["name"]: p["shape"] for p in facts["parameters"]}
    assert shapes == {
        "embedding.weight": [table, 4], "first_order.embedding.weight": [table, 1], "first_order.bias": [],
        "lr.embedding.weight": [table, 1], "lr.bias": [],
    }  # fmt: skip
    assert (facts["parameter_count"], facts["lr_parameter_count"]) == (table * 6 + 2, table + 1)
    memory = facts["memory_mib"]
    # Weights, gradients, Adam's two moments, their mean, the best and the next best, 4 bytes each.
    assert memory["parameters_gradients_and_optimizer"] * 2**20 == 28 * (table * 5 + 1)
    # Three single fields (int32), one number (float32), labels (float32), tags (int32) and where
    # they begin (int64).
    values = 400 * (3 * 4 + 4 + 4 + 8) + 3 * 8
    tags = sum(len({f"t{k % 3}", f"t{k % 2}"}) * 0 + 2 for k in range(400))
    disk = facts["disk_mib"]
    assert memory["encoded_rows"] == disk["encoded_rows"] == (values + tags * 4) / 2**20
    assert memory["lr_solution"] * 2**20 == 12 * (table + 1)
    assert memory["copy_for_a_checkpoint"] > 0
    assert memory["vocabularies"] * 2**20 > 19 * 50  # 9 users, 7 items and 3 tags
    assert memory["sum"] == pytest.approx(sum(v for k, v in memory.items() if k != "sum"))
    # Three checkpoints of the weights, their mean, Adam's two moments and the best weights.
    assert disk["checkpoints"] * 2**20 == 3 * 20 * (table * 5 + 1)
    assert disk["bundle"] * 2**20 == 4 * facts["parameter_count"]
    assert disk["sum"] == pytest.approx(sum(v for k, v in disk.items() if k != "sum"))
    assert facts["counts"] == {
        "dropped_by_label": 0,
        "train_rows": 240,
        "valid_rows": 80,
        "test_rows": 80,
    }
    assert not Path("runs").exists()


def test_train_has_the_parameters_that_describe_counted(done, recipe):
    """With and without the mean with LR, whatever share it has; and in a warm start from a mean."""
    few = ["--set", "training.epochs=1", "--quiet"]
    for folder, settings in [("a", []), ("b", ["--set", "training.mean_with_lr=false"])]:
        facts = json.loads(done("describe", recipe, *settings, "--json")[0])
        result = json.loads(done("train", recipe, *few, *settings, "--out", folder, "--json")[0])
        assert result["parameters"] + result["parameters_left_out"] == facts["parameter_count"]
        assert (facts["lr_parameter_count"] > 0) == (folder == "a")
    network = Bundle.load(Path("a")).network
    assert network_share(network) < 1
    warm = ["--set", "warm_start=a"]
    counted = f"{parameter_count(network):,} parameters"
    assert counted in done("describe", recipe, *warm)[0]
    assert counted in done("train", recipe, *few, *warm, "--out", "c")[0]


def test_describe_states_the_raw_rows_that_the_cache_holds(fieldwise, recipe, log, tmp_path):
    texts = {
        f"note_{k}": pl.Series([f"{k:02}{row:028}" for row in range(4_000)]) for k in range(20)
    }
    pl.concat([log] * 10).with_columns(**texts, row_id=pl.int_range(4_000)).write_csv(
        tmp_path / "log.csv"
    )
    stated = [
        json.loads(fieldwise("describe", recipe, "--json")[1])["disk_mib"]["cached_raw_rows"]
        for _ in range(2)
    ]
    files = list(Path(os.environ["FIELDWISE_CACHE"]).rglob("*.arrow"))
    assert len(files) == 3
    held = sum(path.stat().st_size for path in files) / 2**20
    assert stated[0] == pytest.approx(held, rel=0.05)  # before the rows were in the cache
    assert stated[1] == pytest.approx(held)


def test_describe_reads_no_file_of_the_cache_to_check_it(fieldwise, done, recipe, monkeypatch):
    fieldwise("describe", recipe)
    monkeypatch.setattr(
        "fieldwise.storage.checksums.word_sums", lambda *_: pytest.fail("a file is read")
    )
    err = done("describe", recipe)[1]
    assert "read from the cache" in err


def test_describe_reads_well(done, recipe, log, tmp_path):
    log.rename({"price": "price [usd]"}).write_csv(tmp_path / "log.csv")
    recipe.write_text(recipe.read_text().replace('name = "price"', 'name = "price [usd]"'))
    out = done("describe", recipe)[0]
    assert "price [usd]" in out, "brackets are no markup"
    assert re.search(r"^ tags +item +bag +5 +0\.0%", out, re.M)
    assert (
        "164 parameters, 28 of them LR's in the mean; 0 dropped by label, 240 train rows, 80 valid rows"
        in out
    )
    assert "memory estimate for training in MiB: program " in out
    assert "disk estimate in MiB: encoded rows " in out


# doctor, data


def test_doctor_and_list_see_the_data_at_hand(fieldwise, real_data, monkeypatch):
    monkeypatch.setattr("fieldwise.cli.doctor.EXTRAS", {})  # their packages take seconds to import
    monkeypatch.setenv("FIELDWISE_DATA", str(real_data))
    assert {"movielens-1m", "adult", "frappe"} <= set(
        json.loads(fieldwise("doctor", "--json")[1])["data_sets"]
    )
    out = fieldwise("fetch")[1]
    assert re.search(r"^ adult +48,842 +yes", out, re.M)


def test_a_data_folder_that_does_not_exist_stops_only_what_reads_it(
    fieldwise, done, recipe, bundle, monkeypatch
):
    monkeypatch.setenv("FIELDWISE_DATA", "gone")
    monkeypatch.setattr("fieldwise.cli.doctor.EXTRAS", {})
    for arguments in (
        ("train", recipe, "--out", "b", "--quiet"),
        ("describe", recipe),
        ("evaluate", bundle),
    ):
        done(*arguments)
    assert "gone (does not exist yet)" in fieldwise("fetch")[1]
    assert "no public data set in gone" in fieldwise("doctor")[1]
    for arguments in (
        ("train", "adult/afm"),
        ("describe", "adult/afm"),
        ("quickstart", "--data", "movielens-1m"),
    ):
        refused(fieldwise(*arguments), "the data folder must exist: gone does not")


def test_fetch_makes_its_folder(fieldwise, monkeypatch, tmp_path):
    def fetched(public, folder, *, progress):
        folder.mkdir(parents=True)
        progress(1, 2)
        return [folder / "file"]

    monkeypatch.setattr("fieldwise.data.read.public_sets.fetch", fetched)
    monkeypatch.setenv("FIELDWISE_DATA", "new/sets")
    code, out, _ = fieldwise("fetch", "adult")
    assert (code, out) == (0, "new/sets/file\n")


BLOCKER = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from fieldwise.cli import main
main(sys.argv[2:])
"""


def without(packages, *arguments):
    command = [sys.executable, "-c", BLOCKER, packages, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["torch", "polars"])
def test_doctor_reports_what_is_missing(package):
    done = without(f"{package},pyarrow", "doctor", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["packages"][package] is None
    assert facts["extras"]["pandas"]["works"] is False
    assert f"{package} is not installed: pip install {package}" in facts["attention"]
    assert any("pip install 'fieldwise[pandas]'" in line for line in facts["attention"])


@pytest.mark.parametrize("package", ["polars", "typer"])
def test_any_command_names_the_package_that_it_misses(package, tmp_path):
    done = without(package, "simulate", "--out", str(tmp_path / "log.csv"))
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == f"fieldwise: this command needs {package}, which is not installed: pip install {package}\n"
    )


def test_simulate_and_init_lead_to_a_schema(fieldwise, done, tmp_path):
    code, out, err = fieldwise(
        "simulate", "--out", "log.csv", "--rows", 300, "--users", 9, "--items", 8
    )
    assert (code, out) == (0, "")
    assert "300 rows written to log.csv (user_id, " in err
    out, err = done("init", "log.csv", "--out", "-", "--label", "liked")
    assert (
        err
        == f"next, write it as schema.toml, with a recipe: {command('init', 'log.csv', '--label', 'liked')}\n"
    )
    schema = package.Schema.from_toml(out)
    assert schema.label.column == "liked"
    assert {"user_id", "item_id"} <= {f.name for f in schema.fields}


def test_simulate_is_the_recipes_log(fieldwise, tmp_path):
    from fieldwise.runs.data_settings import DataSettings
    from fieldwise.runs.raw_table import load_frame

    fieldwise("simulate", "--out", "log.parquet", "--rows", 200)
    assert pl.read_parquet(tmp_path / "log.parquet").equals(
        load_frame(DataSettings(name="simulated", rows=200), tmp_path)
    )


# Multi-task

SECOND = [
    "--set", "schema.more_labels=[{column='price', name='dear', positive_above=0.5}]",
    "--set", "schema.fields=[{kind='categorical', name='user', role='user'}, {kind='bag', name='tags', role='item'}]",
]  # fmt: skip


@pytest.fixture(scope="module")
def two_labels(tmp_path_factory):
    """A bundle of two labels."""
    folder = tmp_path_factory.mktemp("two")
    make_log().write_csv(folder / "log.csv")
    write_recipe(folder / "mine.toml")
    assert (
        run(
            [
                "train",
                str(folder / "mine.toml"),
                *SECOND,
                "--out",
                str(folder / "two"),
                "--quiet",
                "--json",
            ]
        )
        == 0
    )
    return folder / "two"


def test_train_and_evaluate_show_every_labels_metrics(fieldwise, done, recipe, two_labels, log):
    kept = Bundle.load(two_labels).about.run["test"]
    assert {"auc", "logloss", "dear.auc", "dear.logloss"} <= kept.keys()
    assert "loss" not in kept
    out = done("evaluate", two_labels, "--json")[0]
    assert json.loads(out)["metrics"] == pytest.approx(kept, abs=1e-6)
    out, err = done("train", recipe, *SECOND, "--set", "training.monitor=loss", "--out", "by-loss")
    assert re.search(r"^ dear\.auc +0\.\d{4} +0\.\d{4}", out, re.M)
    assert re.search(r"^ loss +\d\.\d{4} +\d\.\d{4}", out, re.M)
    evaluations = [line for line in err.splitlines() if re.search(r" epoch \d+/", line)]
    assert evaluations
    assert all(
        re.search(r": train loss \S+, valid loss \S+ auc \S+ logloss \S+.*, [\d,]+ rows/s", x)
        for x in evaluations
    )
    log.with_columns(price=1 - pl.col("price")).write_csv("log.csv")
    code, _, err = fieldwise("evaluate", "by-loss")
    assert code == 2, "changed values of the second label are other test rows"
    assert "the recipe's test rows must be those of the training run" in err


def test_predict_writes_a_column_a_label(fieldwise, done, two_labels, log):
    log.drop("click", "price").write_csv("new.csv")
    err = done("predict", two_labels, "--data", "new.csv", "--out", "out.csv", "--column", "p")[1]
    assert "written to out.csv (row_id, user, p, p.dear)" in err
    result = pl.read_csv("out.csv")
    assert result.columns == ["row_id", "user", "p", "p.dear"]
    np.testing.assert_allclose(
        result.select("p", "p.dear").to_numpy(), Bundle.load(two_labels).predict(log), rtol=1e-6
    )
    done("predict", two_labels, "--data", "new.csv", "--out", "out.csv", "--logit", "--overwrite")
    result = pl.read_csv("out.csv")
    assert result.columns == [
        "row_id",
        "user",
        "prediction",
        "prediction.dear",
        "logit",
        "logit.dear",
    ]
    np.testing.assert_allclose(
        result["prediction.dear"], 1 / (1 + np.exp(-result["logit.dear"].to_numpy()))
    )
    ask = ("predict", two_labels, "--data", "new.csv", "--out", "other.csv", "--column", "user")
    refused(fieldwise(*ask), "'user' exists already: give another --column")


def test_describe_names_the_labels(fieldwise, recipe):
    facts = json.loads(fieldwise("describe", recipe, *SECOND, "--json")[1])
    assert facts["labels"] == [
        {"name": "click", "task": "binary", "weight": 1.0},
        {"name": "dear", "task": "binary", "weight": 1.0},
    ]
    rows = sum(f["rows"] for f in facts["fields"])
    assert facts["parameter_count"] == rows * 4 + 2 * (rows + 1)
    assert "labels: click (binary), dear (binary)" in fieldwise("describe", recipe, *SECOND)[1]
    assert "labels:" not in fieldwise("describe", recipe)[1]


# quickstart on the whole simulated log


@pytest.fixture
def small_demo(monkeypatch):
    settings = (
        "data.rows=600",
        "data.users=20",
        "data.items=90",
        "training.epochs=1",
        "training.batch_size=256",
    )
    monkeypatch.setitem(quickstart.DEMOS, "simulated", (quickstart.DEMOS["simulated"][0], settings))


def test_demo_compares_saves_and_recommends(done, small_demo):
    out, err = done("quickstart", "--data", "simulated", "--no-serve", "--out", "d", "--quiet")
    first, last = err.splitlines()
    assert first == "simulated: 480 train, 60 valid, 60 test rows"
    for model in quickstart.MODELS:
        assert re.search(rf"^ simulated/{re.escape(model)} +0\.\d{{4}} ", out, re.M)
        Bundle.load(Path("d") / model)
    assert re.search(r"^ best possible \(true probability\) +0\.\d{4} +0\.\d{4}", out, re.M)
    assert re.search(r"ten films for user u\d{4} by simulated/", out)
    listed = out[out.index("ten films") :].splitlines()[2:12]
    scores = [float(line.split()[-1]) for line in listed]
    assert all(re.match(r" m\d{4} ", line) for line in listed)
    assert scores == sorted(scores, reverse=True)
    words = shlex.split(last.partition("for each user: ")[2])
    start = [*command_name(), "serve"]  # runs as it stands, in an environment or outside
    assert (words[: len(start)], words[-2:]) == (start, ["--log", "d/log.parquet"])


def test_demo_interrupted_shows_what_there_is(fieldwise, small_demo, monkeypatch):
    from fieldwise import Callback
    from fieldwise.training import progress

    class Interrupting(Callback):
        def on_step(self, step):
            raise KeyboardInterrupt

    real = progress.progress_for
    monkeypatch.setattr(
        progress,
        "progress_for",
        lambda name, quiet: Interrupting() if name.endswith("/fm") else real(name, quiet=quiet),
    )
    code, out, err = fieldwise(
        "quickstart", "--data", "simulated", "--no-serve", "--out", "d", "--quiet"
    )
    assert code == 130
    assert "interrupted: this model and those before it are saved" in err
    assert "simulated/fm" in out
    assert sorted(p.name for p in Path("d").iterdir()) == ["fm", "lr"]


def test_every_optimizer_can_be_described(done, recipe):
    """Every entry of the registry is known to recipes and to the estimate of memory."""
    for name in OPTIMIZERS:
        out = done("describe", recipe, "--set", f"training.optimizer={name}", "--json")[0]
        assert json.loads(out)["memory_mib"]["parameters_gradients_and_optimizer"] > 0


def test_inference_says_how_many_rows_of_a_large_table_it_saw(done, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fieldwise.data.read.table_sample.WHOLE", 1000)
    monkeypatch.setattr("fieldwise.data.read.table_sample.MOST_ROWS", 3000)
    frame = pl.DataFrame(
        {"x": [f"v{k % 7}" for k in range(9_000)], "click": [k % 2 for k in range(9_000)]}
    )
    frame.write_parquet(tmp_path / "log.parquet")
    for words in (["--out", "-"], []):
        err = done("init", "log.parquet", *words)[1]
        assert "inferred from 3,000 of 9,000 rows, drawn at random" in err
        assert "an earlier row" not in err, "a sample does not tell"

"""Every kind of bad input: one clear sentence, exit code 2, nothing half-written."""

import dataclasses
import errno
import json
import os
import re
import signal
from pathlib import Path

import polars as pl
import pytest
from forked import Command

from fieldwise import Bundle, DataError
from fieldwise.bundle.about import About
from fieldwise.cli.signals import as_interrupts
from fieldwise.runs.records import Store
from fieldwise.training.settings import OPTIMIZERS

KNOWN = ", ".join(map(repr, (*OPTIMIZERS, "lbfgs")))


def refused(outcome, *parts: str, code: int = 2) -> None:
    result, out, err = outcome
    assert (result, out) == (code, "")
    sentence = [line for line in err.splitlines() if line.startswith("fieldwise: ")]
    assert len(sentence) == 1, err
    assert err.splitlines()[-1] == sentence[0]
    for part in parts:
        assert part in sentence[0]


def with_cell(log: pl.DataFrame, column: str, row: int, value: str) -> pl.DataFrame:
    texts = log.get_column(column).cast(pl.String).to_list()
    texts[row] = value
    return log.with_columns(pl.Series(column, texts))


TABLES = {
    "missing column": (lambda log: log.drop("item"), ("'item'", "missing")),
    "missing label": (lambda log: log.drop("click"), ("'click'",)),
    "null column": (
        lambda log: log.with_columns(user=pl.lit(None, pl.String)),
        ("'user'", "in all 240 training rows"),
    ),
    "text in a number": (
        lambda log: with_cell(log, "price", 7, "cheap"),
        ("'price'", "'cheap'", "line 9 of"),
    ),
    "infinity": (lambda log: with_cell(log, "price", 5, "inf"), ("'price'", "finite", "line 7 of")),
    "label outside its rule": (
        lambda log: with_cell(log, "click", 9, "2"),
        ("'click'", "0 or 1", "line 11 of"),
    ),
    "label absent": (lambda log: with_cell(log, "click", 3, ""), ("'click'", "line 5 of")),
    "one class": (
        lambda log: log.with_columns(click=pl.lit(1)),
        ("both classes: all", "positive", "add [negatives]"),
    ),
    "another class": (
        lambda log: log.with_columns(click=0),
        ("both classes: all", "negative", "add rows of the other"),
    ),
    "one row": (lambda log: log.head(1), ("at least 3 rows", "add rows")),
    "two rows": (lambda log: log.head(2), ("row",)),
    "missing key": (
        lambda log: log.rename({"row_id": "rowid"}),
        ("keys", "'row_id'", "did you mean 'rowid'"),
    ),
    "no rows": (lambda log: log.clear(), ("a table needs rows, found none",)),
}


def test_a_table_that_does_not_fit(subtests, fieldwise, recipe, log, tmp_path):
    for case, (change, parts) in TABLES.items():
        with subtests.test(case=case):
            change(log).write_csv(tmp_path / "log.csv")
            refused(fieldwise("train", recipe, "--out", "b", "--quiet", "--json"), *parts)
            refused(fieldwise("describe", recipe), *parts)
            assert sorted(p.name for p in tmp_path.iterdir()) == ["log.csv", "mine.toml"]
    refused(fieldwise("compare", recipe), *parts)
    assert not list(tmp_path.glob("runs/**/bundle.json"))


TEXTS = {
    "duplicate columns": (lambda t: t.replace(b"price", b"user", 1), ("log.csv", "'user'")),
    "a field too many": (lambda t: t.replace(b"\n", b",x\n", 3).replace(b",x\n", b"\n", 2), ("log.csv", "line 3")),
    "open quote": (lambda t: t[:-1] + b'\nr,"u1,i1,t1,0.5,1\n', ("log.csv",)),
    "wrong encoding": (lambda t: t.replace(b"u1", b"\xff\xfe", 1), ("log.csv", "utf-8")),
    "empty file": (lambda _: b"", ("log.csv", "empty")),
    "header alone": (lambda t: t.splitlines()[0] + b"\n", ()),
}  # fmt: skip


def test_a_malformed_file(subtests, fieldwise, recipe, tmp_path):
    file = tmp_path / "log.csv"
    sound = file.read_bytes()
    for case, (change, parts) in TEXTS.items():
        with subtests.test(case=case):
            file.write_bytes(change(sound))
            refused(fieldwise("train", recipe, "--out", "b", "--quiet"), *parts)
            assert not Path("b").exists()


def test_a_malformed_libfm_line_and_values_that_no_schema_can_read(fieldwise, tmp_path):
    (tmp_path / "log.libfm").write_text("1 3:1 5:1\n0 3:x 5:1\n")
    refused(fieldwise("init", "log.libfm", "--out", "-"), "log.libfm", "2")
    (tmp_path / "log.libfm").write_text("1 3:1\n0 3:1 5:0.5\n")
    refused(
        fieldwise("init", "log.libfm", "--out", "-"),
        "values other than 1",
        "line 2",
        "convert the file",
    )


def test_a_wrong_path_names_files_of_similar_names(subtests, fieldwise, tmp_path):
    (tmp_path / "recipes").mkdir()
    for file in ("events.toml", "recipes/events.toml", "recipes/schema.toml"):
        (tmp_path / file).write_text("fields = []\n" * file.endswith("schema.toml"))
    (tmp_path / "r.toml").write_text("[model]\nname = 'fm'\n")
    (tmp_path / "t.csv").write_text("user,item,click\n1,2,1\n2,1,0\n")
    for arguments, part in [
        (("train", "events.tml"), "did you mean 'events.toml'?"),
        (("train", "evnts.toml"), "evnts.toml does not: did you mean 'events.toml'?"),
        (("train", "events.csv"), "`fieldwise init events.csv` writes a recipe for it"),
        (
            ("describe", "logs/events.parquet"),
            "`fieldwise init logs/events.parquet` writes a recipe for it",
        ),
        (
            ("train", "recipes/schema.toml"),
            "a recipe is needed, found the schema recipes/schema.toml: name the recipe",
        ),
        (("init", "recipes"), "recipes holds TOML files, recipes or schemas, and no table"),
        (
            ("init", "t.csv", "--schema", "r.toml"),
            "a schema is needed, found the recipe r.toml: name the schema",
        ),
    ]:
        with subtests.test(arguments=arguments):
            refused(fieldwise(*arguments), part)


def test_a_wrong_word_on_the_command_line(subtests, fieldwise, tmp_path):
    for arguments, parts in [
        (
            ("train", "simulated/afn"),
            ("no recipe is named 'simulated/afn'", "did you mean 'simulated/afm'"),
        ),
        (("train", "gone.toml"), ("gone.toml does not",)),
        (
            ("train", "simulated/afm", "--set", "training.epoch=1"),
            ("did you mean 'training.epochs'",),
        ),
        (("train", "simulated/afm", "--set", "nonsense"), ("key=value",)),
        (
            ("describe", "simulated/afm", "--set", "training.optimizer=adm"),
            (f"one of {KNOWN}, found 'adm'",),
        ),
        (("train", "adult/afm"), ("adult is not complete", "fieldwise fetch adult")),
        (("describe", "criteo-sample/lr"), ("criteo-sample is not complete",)),
        (("evaluate", "gone"), ("gone is not a bundle",)),
        (("predict", "gone", "--data", "x.csv", "--out", "y.csv"), ("gone is not a bundle",)),
        (("quickstart", "--data", "movielens"), ("did you mean 'movielens-1m'",)),
        (("fetch", "adlt"), ("did you mean 'adult'",)),
        (("init", "gone.csv", "--out", "-"), ("gone.csv",)),
        (("simulate", "--out", "log.xlsx", "--rows", "5"), ("log.xlsx", "suffix")),
        (("train", "simulated/afm", "--set", "data.path=gone.csv"), ("gone.csv",)),
        (("train", "simulated/afm", "--set", "model.name=gpt"), ("'gpt'",)),
        (
            ("train", "simulated/lr", "--set", "data.rows=300", "--set", "training.l2.p=1"),
            ("'p'", "model does not have"),
        ),
        (
            ("train", "simulated/lr", "--set", "data.rows=300", "--set", "training.monitor=rmse"),
            ("monitor must be",),
        ),
    ]:
        with subtests.test(arguments=arguments, parts=parts):
            extra = ("--out", "b", "--quiet") if arguments[0] == "train" else ()
            refused(fieldwise(*arguments, *extra), *parts)
            assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_not_finite(fieldwise, recipe):
    settings = ("--set", "training.learning_rate=1e30", "--set", "training.optimizer=sgd")
    refused(
        fieldwise("train", recipe, "--out", "b", "--quiet", *settings),
        "must stay finite",
        "learning_rate",
    )
    assert not Path("b").exists()


# Bundles


def test_a_bundle_without_a_recipe_names_no_test_rows(fieldwise, bundle, tmp_path):
    dataclasses.replace(Bundle.load(bundle), about=About()).save(tmp_path / "bare")
    refused(fieldwise("evaluate", "bare"), "was not made by a recipe", "--data")


def test_predict_refuses_to_write_over_its_input_or_to_an_unknown_format(
    fieldwise, bundle, log, tmp_path
):
    log.write_csv(tmp_path / "new.csv")
    refused(
        fieldwise("predict", bundle, "--data", "new.csv", "--out", "scores.xlsx"), "scores.xlsx"
    )
    before = (tmp_path / "new.csv").read_bytes()
    (tmp_path / "link.csv").symlink_to(tmp_path / "new.csv")
    for out in ("new.csv", tmp_path / "new.csv", "link.csv", "../" + tmp_path.name + "/new.csv"):
        refused(
            fieldwise("predict", bundle, "--data", "new.csv", "--out", out),
            "fieldwise: --out must not be an input",
            str(out),
        )
    assert (tmp_path / "new.csv").read_bytes() == before


def test_unfit_separators_and_encodings(fieldwise, done, bundle, log, tmp_path):
    log.write_csv(tmp_path / "new.csv")
    for option in (
        ("--read", "separator=||"),
        ("--read", "separator=ä"),
        ("--read", "encoding=utf-99"),
    ):
        refused(
            fieldwise("evaluate", bundle, "--data", "new.csv", *option),
            repr(option[1].partition("=")[2]),
        )
    log.write_csv(tmp_path / "new.tsv", separator=";")
    refused(fieldwise("evaluate", bundle, "--data", "new.tsv"), "--read separator=';'")
    log.write_csv(tmp_path / "new.csv", separator="\t")
    done("evaluate", bundle, "--data", "new.csv", "--read", r"separator=\t")
    (tmp_path / "new.csv").write_bytes("user,click\nü,1\n".encode("cp1252"))
    refused(fieldwise("evaluate", bundle, "--data", "new.csv"), "encoding='iso-8859-1'")


def test_evaluate_notices_that_the_test_rows_have_changed(fieldwise, done, recipe, log, tmp_path):
    done("train", recipe, "--out", "b", "--quiet")
    done("evaluate", "b")
    log.with_columns(click=1 - pl.col("click")).write_csv(tmp_path / "log.csv")
    refused(fieldwise("evaluate", "b"), "must be those of the training run", "--data FILE")
    log.reverse().write_csv(tmp_path / "log.csv")
    refused(fieldwise("evaluate", "b"), "have changed")
    refused(
        fieldwise("evaluate", "b", "--calibrate", "platt"),
        "the data of",
        "have changed since",
        "--data FILE",
    )
    done("evaluate", "b", "--data", "log.csv")


def test_an_occupied_folder_is_refused_before_training(fieldwise, recipe, tmp_path, monkeypatch):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    monkeypatch.setattr(
        "fieldwise.runs.data.prepare_recipe", lambda *_, **__: pytest.fail("work was begun")
    )
    refused(fieldwise("train", recipe, "--out", "taken"), "a folder of its own", "notes.txt")
    refused(fieldwise("train", recipe, "--out", "taken/notes.txt"), "is a file")


# Places that cannot be written


@pytest.mark.parametrize(
    "command",
    [
        ("train", "{recipe}", "--out", "{out}"),
        ("quickstart", "--no-serve", "--out", "{out}"),
        ("compare", "{recipe}", "--store", "{out}"),
        ("tune", "{recipe}", "--store", "{out}"),
        ("predict", "{bundle}", "--data", "log.csv", "--out", "{out}.csv"),
        ("evaluate", "{bundle}", "--calibrate", "platt", "--out", "{out}"),
        ("report", "{bundle}", "--out", "{out}.html"),
        ("export", "{bundle}", "--out", "{out}"),
        ("index", "{bundle}", "--items", "log.csv", "--out", "{out}"),
        ("simulate", "--out", "{out}.csv"),
    ],
    ids=lambda command: f"{command[0]} {command[-2]}",
)
def test_an_unwritable_path_is_refused_before_any_work(
    fieldwise, recipe, bundle, tmp_path, monkeypatch, command
):
    """Nobody can write below a file, root included."""
    (tmp_path / "file").write_text("mine")
    reading = ("runs.data.as_table", "runs.raw_table.simulate", "data.read.simulation.simulate")
    for work in (*reading, "bundle.bundle.Bundle.load"):
        monkeypatch.setattr(f"fieldwise.{work}", lambda *_, **__: pytest.fail("work was begun"))
    words = {"recipe": recipe, "bundle": bundle, "out": tmp_path / "file" / "out"}
    before = sorted(tmp_path.rglob("*"))
    outcome = fieldwise(*(part.format(**words) for part in command))
    refused(outcome, str(tmp_path / "file"))
    assert re.search(r"is not a folder|Not a directory", outcome[2])
    assert sorted(tmp_path.rglob("*")) == before


def test_a_model_that_cannot_be_saved_is_kept_elsewhere(fieldwise, recipe, tmp_path, monkeypatch):
    save, number = Bundle.save, errno.EROFS
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "spare"))

    def save_but_there(self, folder, **given):
        if folder == Path("b"):
            raise OSError(number, os.strerror(number))
        save(self, folder, **given)

    monkeypatch.setattr(Bundle, "save", save_but_there)
    code, out, err = fieldwise("train", recipe, "--out", "b", "--quiet")
    (kept,) = (tmp_path / "spare").glob("fieldwise-*")  # PyTorch may have a folder there too
    assert code == 2
    assert os.strerror(number) in err
    assert f"The trained bundle was saved in {kept}: move it from there" in err
    assert f"Bundle: {kept}" in out
    assert Bundle.load(kept).about.recipe.name == str(recipe)

    def save_nowhere(self, folder, **given):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Bundle, "save", save_nowhere)
    assert fieldwise("train", recipe, "--out", "b", "--quiet")[0] in (1, 2)
    assert [kept] == list((tmp_path / "spare").glob("fieldwise-*"))


def test_a_run_that_its_store_does_not_take_is_kept_elsewhere(
    fieldwise, done, recipe, tmp_path, monkeypatch
):
    put = Store.put
    (tmp_path / "spare").mkdir()
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "spare"))

    def put_but_there(self, *parts):
        if self.folder == Path("runs"):
            raise DataError("the disk is full")
        return put(self, *parts)

    ask = ("compare", recipe, "--store", "runs", "--seeds", 1, "--quiet")
    with monkeypatch.context() as patched:
        patched.setattr(Store, "put", put_but_there)
        code, _, err = fieldwise(*ask)
    (run,) = (tmp_path / "spare").glob("*/*")
    assert code == 2
    assert f"The run was saved as {run}: move that folder into runs" in err
    run.rename(Path("runs") / run.name)
    monkeypatch.setattr(
        "fieldwise.runs.recorded_runs.train_recipe", lambda *_, **__: pytest.fail("run again")
    )
    done(*ask)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(errno.ENOSPC, "none left", "/tmp/x"), "the disk is full at /tmp/x"),
        (MemoryError(), "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out of memory"),
    ],
)
def test_a_full_disk_or_memory_during_training_is_one_sentence(
    fieldwise, recipe, monkeypatch, error, sentence
):
    def full(*args):
        raise error

    monkeypatch.setattr("fieldwise.runs.pipeline.train_recipe", full)
    refused(fieldwise("train", recipe, "--quiet"), sentence)


def test_a_model_that_no_memory_holds(subtests, fieldwise, recipe, tmp_path):
    for size in [2 * 10**9, 2 * 10**17, 10**21]:
        with subtests.test(size=size):
            setting = ("--set", f"model.embedding_dim={size}")
            refused(
                fieldwise("train", recipe, "--out", "b", "--quiet", *setting),
                "out of memory",
                "smaller layers",
            )
            refused(fieldwise("describe", recipe, *setting), "out of memory")
            assert sorted(p.name for p in tmp_path.iterdir()) == ["log.csv", "mine.toml"]


def test_a_bug_is_not_hidden(recipe, monkeypatch):
    from fieldwise.cli import run

    def bug(*args):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("fieldwise.runs.pipeline.train_recipe", bug)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        run(["train", str(recipe), "--quiet"])


# Ctrl-C


@pytest.mark.parametrize(("signals", "code"), [("SIGINT", 130), ("SIGHUP SIGTERM", None)])
def test_a_signal_in_the_middle_of_training_keeps_the_best_so_far(
    recipe, log, tmp_path, signals, code
):
    words = "training.epochs=100000", "training.patience=100000", "training.plateau_factor=1"
    settings = [word for setting in words for word in ("--set", setting)]
    process = Command("train", recipe, "--out", "b", "--json", *settings, folder=tmp_path)
    process.heard(r" epoch 3/.*\n")
    for name in signals.split():  # of a terminal that closes: several
        process.send_signal(getattr(signal, name))
    process.wait(300)
    out, err = process.output, process.errors
    # which of two at once comes first is the system's choice
    either = (-signal.SIGHUP, -signal.SIGTERM)
    assert process.returncode == code if code is not None else process.returncode in either
    record = json.loads(out)
    assert record["stopped"] == "interrupted"
    assert record["epochs"] >= 3
    assert "Traceback" not in err
    assert "the best model so far" in err
    assert err.endswith("fieldwise: interrupted\n")
    assert Bundle.load(tmp_path / "b").score(log).shape == (400,)


def test_a_signal_that_is_ignored_stays_ignored():
    """As under `nohup`; and what was there before is there afterwards."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with as_interrupts() as received:
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # what the first one began is under way
        assert received == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no SIGUSR1")
def test_a_signal_for_a_checkpoint_ends_no_command():
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    with as_interrupts() as received:
        signal.raise_signal(signal.SIGUSR1)  # which would end this process
    assert received == []
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_test_rows_equal_to_training_rows_are_warned_about(fieldwise, done, recipe, log, tmp_path):
    pl.concat([log, log.head(100)]).write_csv(tmp_path / "log.csv")
    for ask in (
        ("train", recipe, "--out", "b"),
        ("describe", recipe),
        ("compare", recipe, "--seeds", 1),
    ):
        err = done(*ask)[1]
        (line,) = [
            one for one in err.splitlines() if "test rows" in one and "equal a training row" in one
        ]
        assert re.fullmatch(
            r"WARNING: \d+ of 100 test rows \([\d.]+ %\) equal a training row in all fields .*",
            line,
        )
    log.write_csv(tmp_path / "log.csv")
    assert "equal a training row" not in fieldwise("describe", recipe)[2]

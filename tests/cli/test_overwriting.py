"""No command replaces a file or folder that exists unless --overwrite says so, and none replaces what it reads."""

import shutil

import polars as pl
import pytest
import typer.main
from cli.test_bad_input import refused
from cli.test_commands import commands

from fieldwise.cli.app import app

BUNDLE_FILE = "bundle.json"
# By command: its arguments; `{out}` stands for the output. The files that are named are made by the
# fixture below.
WRITES_A_FILE = {
    "predict": ("predict", "b", "--data", "log.csv", "--out", "{out}"),
    "recommend": ("recommend", "b", "--log", "log.csv", "--include-seen", "--out", "{out}"),
    "report": ("report", "b", "--out", "{out}"),
    "simulate": ("simulate", "--out", "{out}", "--rows", "50"),
}
WRITES_A_FOLDER = {
    "train": ("train", "mine.toml", "--out", "{out}"),
    "evaluate": ("evaluate", "b", "--calibrate", "platt", "--data", "log.csv", "--out", "{out}"),
    "export": ("export", "b", "--out", "{out}"),
    "quickstart": ("quickstart", "--no-serve", "--out", "{out}"),
    "auto": ("auto", "log.csv", "--out", "{out}"),
}
WRITES_INTO_A_FOLDER = {"init": ("init", "log.csv", "--out", "{out}")}
# an index that exists is updated
FEATURES = {"features latest", "features backfill"}  # whose test is in tests/features
UPDATES = {"index": ("index", "b", "--items", "log.csv", "--out", "{out}")}


@pytest.fixture
def home(tmp_path, bundle):
    """The folder in which commands start, with a bundle `b`, its recipe and its log."""
    for path in bundle.parent.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    return tmp_path


def contents(folder):
    return {
        path: path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "cache" not in path.parts
    }


def test_every_command_with_an_output_is_tested_here():
    with_output, with_overwrite = set(), set()
    for path, command in commands(typer.main.get_command(app)):
        names = {param.name for param in command.params}
        with_output |= {" ".join(path)} if "out" in names else set()
        with_overwrite |= {" ".join(path)} if "overwrite" in names else set()
    assert with_output == {
        *WRITES_A_FILE,
        *WRITES_A_FOLDER,
        *WRITES_INTO_A_FOLDER,
        *UPDATES,
        *FEATURES,
    }
    assert with_overwrite == (with_output - set(UPDATES)) | {"compare", "features delay"}, (
        "runs of a store, and a picture, are replaced with it"
    )


@pytest.mark.parametrize("name", WRITES_A_FILE)
def test_a_file_that_exists_stays(fieldwise, home, name):
    own = home / "own.csv"
    own.write_text("mine")
    arguments = [word.format(out="own.csv") for word in WRITES_A_FILE[name]]
    before = contents(home)
    refused(
        fieldwise(*arguments), "own.csv exists: give --overwrite to replace it, or another --out"
    )
    assert contents(home) == before


def test_with_overwrite_a_file_is_replaced(done, home):
    for name in ("predict", "recommend", "simulate"):
        (home / "own.csv").write_text("mine")
        done(*(word.format(out="own.csv") for word in WRITES_A_FILE[name]), "--overwrite")
        assert pl.read_csv(home / "own.csv").height


def test_an_input_is_never_replaced(fieldwise, home, subtests):
    (home / "link.csv").symlink_to("log.csv")
    (home / "twin.csv").hardlink_to(home / "log.csv")
    (home / "parts").mkdir()
    shutil.copy("log.csv", "parts/1.csv")
    before = contents(home)
    for name, out, *changed in [
        ("predict", "log.csv"),
        ("predict", "link.csv"),
        ("predict", "twin.csv"),
        ("predict", "parts/1.csv", "log.csv", "parts"),
        ("predict", "parts/1.csv", "log.csv", "parts/*.csv"),
        ("predict", f"b/{BUNDLE_FILE}"),
        ("recommend", "log.csv"),
        ("report", f"b/{BUNDLE_FILE}"),
        ("evaluate", "b"),
        ("export", "b"),
    ]:
        with subtests.test(name=name, out=out):
            words = {**WRITES_A_FILE, **WRITES_A_FOLDER}[name]
            if changed:
                words = [word.replace(*changed) for word in words]
            arguments = [word.format(out=out) for word in words]
            refused(
                fieldwise(*arguments, "--overwrite"),
                "--out must not be an input",
                "choose another name",
            )
            assert contents(home) == before


@pytest.mark.parametrize("name", [*WRITES_A_FOLDER, *UPDATES])
def test_a_folder_with_other_files_stays(fieldwise, home, name):
    # quickstart has a folder for each model
    for file in ("fm/notes.txt", "autoint/notes.txt", "lr/notes.txt"):
        (home / "own" / file).parent.mkdir(parents=True)
        (home / "own" / file).write_text("mine")
    arguments = [word.format(out="own") for word in {**WRITES_A_FOLDER, **UPDATES}[name]]
    before = contents(home)
    more = [] if name in UPDATES else ["--overwrite"]
    refused(fieldwise(*arguments, *more), "holds other files")
    assert contents(home) == before


@pytest.mark.parametrize(
    "name", [name for name in WRITES_A_FOLDER if name not in ("export", "auto")]
)
def test_a_bundle_that_exists_stays(fieldwise, home, name):
    out = "old/lr" if name == "quickstart" else "old"
    shutil.copytree("b", out)
    arguments = [word.format(out="old") for word in WRITES_A_FOLDER[name]]
    before = contents(home)
    refused(
        fieldwise(*arguments), f"{out} exists: give --overwrite to replace it, or another --out"
    )
    assert contents(home) == before


def test_a_log_beside_the_bundles_of_quickstart_stays(fieldwise, home):
    (home / "own").mkdir()
    (home / "own" / "log.parquet").write_text("mine")
    refused(
        fieldwise("quickstart", "--no-serve", "--out", "own"),
        "own/log.parquet exists",
        "--overwrite",
    )
    assert (home / "own" / "log.parquet").read_text() == "mine"


def test_files_of_init_stay(fieldwise, home):
    for file in ("log.toml", "schema.toml"):
        (home / file).write_text("mine")
        refused(
            fieldwise("init", "log.csv"),
            f"{file} exists: give --overwrite to replace it, or another --out",
        )
        assert (home / file).read_text() == "mine"
        (home / file).unlink()


def test_a_bundle_is_calibrated_in_place(done, home):
    before = (home / "b" / BUNDLE_FILE).read_bytes()
    done("evaluate", "b", "--calibrate", "platt", "--data", "log.csv")
    assert (home / "b" / BUNDLE_FILE).read_bytes() != before
    done("evaluate", "b", "--calibrate", "platt", "--data", "log.csv", "--out", "copy")
    done(
        "evaluate",
        "b",
        "--calibrate",
        "isotonic",
        "--data",
        "log.csv",
        "--out",
        "copy",
        "--overwrite",
    )

"""`fieldwise auto` on the command line."""

import re
import shlex
import time
from pathlib import Path

import pytest
from automatic_runs import shorten
from cli.test_bad_input import refused

from fieldwise.automatic import schedule
from fieldwise.automatic.budget import Clock


@pytest.fixture(autouse=True)
def _few_models(monkeypatch):
    shorten(monkeypatch, most=1)
    monkeypatch.setattr("fieldwise.automatic.run.REPORT_SECONDS", 1e9)


def test_a_table_leads_to_a_folder_and_the_next_commands(fieldwise, done, log):
    log.write_csv("clicks.csv")
    out, err = done("auto", "clicks.csv", "--minutes", 20)
    assert "label: column 'click', binary" in err
    assert "column 'row_id'" in err
    assert "test rows; * the model in the bundle" in out
    for name in (
        "schema.toml",
        "recipe.toml",
        "leaderboard.json",
        "leaderboard.md",
        "bundle/bundle.json",
    ):
        assert (Path("runs/auto-clicks") / name).is_file()
    commands = [
        line.rpartition("fieldwise ")[2].split()
        for line in err.splitlines()
        if line.startswith("next, ")
    ]
    assert [command[0] for command in commands] == ["predict", "serve", "explain", "train"]
    predict, serve, explain, train = commands
    assert serve == ["serve", "runs/auto-clicks/bundle", "--log", "clicks.csv"]
    done(*predict)
    assert Path("runs/auto-clicks/predictions.csv").is_file()
    done(*explain)
    done(*train, "--quiet")
    refused(
        fieldwise("auto", "clicks.csv", "--minutes", 20),
        "runs/auto-clicks exists: give --overwrite to replace it, or another --out",
    )


def test_json_quiet_own_schema_and_another_separator(as_json, log):
    Path("schema.toml").write_text(
        'fields = [{ kind = "categorical", name = "user" }, { kind = "categorical", name = "item" }]\n'
        'label = { column = "click" }\n'
    )
    Path("log.txt").write_bytes(log.write_csv(separator=";").encode("cp1252"))
    reading = ("--read", "separator=;", "--read", "encoding=cp1252")
    words = ("--schema", "schema.toml", *reading, "--out", "o", "--minutes", 20)
    result = as_json("auto", "log.txt", *words, "--quiet")
    assert result["folder"] == "o"
    assert {line["model"] for line in result["leaderboard"]["lines"]} >= {"constant", "LR", "FM"}
    assert result["recipe"]["data"]["separator"] == ";"


def test_a_file_without_a_header(done, log):
    log.write_csv("bare.csv", include_header=False)
    named = "--read", "columns=" + ",".join(log.columns)
    err = done("auto", "bare.csv", *named, "--label", "click", "--minutes", 20, "--out", "o")[1]
    assert "s for training: LR may take" in err
    assert re.search(
        r"^LR: validation .* s with scoring \(its training may take [\d.]+ s\)$", err, re.M
    )
    commands = [
        shlex.split(line.rpartition("fieldwise ")[2])
        for line in err.splitlines()
        if line.startswith("next, ")
    ]
    for command in commands[:-1]:
        assert command[-2:] == list(named) or command[-4:-2] == list(named), command
    done(*commands[0])
    done(*commands[2])


def test_the_clock_starts_with_the_command_and_ctrl_c_saves(fieldwise, log, monkeypatch):
    starts = []

    def clock(*given, began):
        starts.append((began, time.perf_counter()))
        return Clock(*given, began=began)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fieldwise.automatic.run.Clock", clock)
    monkeypatch.setattr(schedule, "seconds_of", interrupt)
    log.write_csv("clicks.csv")
    before = time.perf_counter()
    code, _, err = fieldwise("auto", "clicks.csv", "--minutes", 20, "--out", "o")
    assert before <= starts[0][0] < starts[0][1], "loading and parsing count towards the minutes"
    assert code == 130
    assert err.endswith("fieldwise: interrupted\n")
    assert Path("o/bundle/bundle.json").is_file()


def test_wrong_arguments_are_one_sentence(subtests, fieldwise, log):
    for words, sentence in [
        (("absent.csv",), "absent.csv"),
        (("clicks.csv", "--label", "clik"), "clik"),
        (
            ("clicks.csv", "--keep", "nope"),
            "keep must name a column that a field reads, found 'nope'",
        ),
        (("clicks.csv", "--split-column", "nope"), "'nope'"),
        (("clicks.csv", "--out", "clicks.csv"), "is a file: choose another name"),
        (("clicks.csv", "--minutes", "0"), "--minutes"),
    ]:
        with subtests.test(words=words, sentence=sentence):
            log.write_csv("clicks.csv")
            refused(fieldwise("auto", *words), sentence)

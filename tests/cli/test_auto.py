"""`fieldwise auto` as it is typed."""

import json
import re
import shlex
import time
from pathlib import Path

import pytest
from automatic_runs import shorten

from fieldwise.automatic import models
from fieldwise.automatic.budget import Clock


@pytest.fixture(autouse=True)
def _few_models(monkeypatch):
    shorten(monkeypatch, trials=1)
    monkeypatch.setattr("fieldwise.automatic.run.REPORT_SECONDS", 1e9)


def test_a_table_leads_to_a_folder_and_the_next_commands(fieldwise, log):
    log.write_csv("clicks.csv")
    code, out, err = fieldwise("auto", "clicks.csv", "--minutes", 20)
    assert code == 0
    assert "label: column 'click', binary" in err
    assert "column 'row_id'" in err
    assert "test rows; * the model in the bundle" in out
    for name in ("schema.toml", "recipe.toml", "leaderboard.json", "leaderboard.md", "bundle/bundle.json"):
        assert (Path("runs/auto-clicks") / name).is_file()
    commands = [line.rpartition("fieldwise ")[2].split() for line in err.splitlines() if line.startswith("next, ")]
    assert [command[0] for command in commands] == ["predict", "serve", "explain", "train"]
    predict, serve, explain, train = commands
    assert serve == ["serve", "runs/auto-clicks/bundle", "--log", "clicks.csv"]
    assert fieldwise(*predict)[0] == 0
    assert Path("runs/auto-clicks/predictions.csv").is_file()
    assert fieldwise(*explain)[0] == 0
    assert fieldwise(*train, "--quiet")[0] == 0
    code, out, err = fieldwise("auto", "clicks.csv", "--minutes", 20)
    assert (code, out) == (2, "")
    assert "runs/auto-clicks holds the result of an earlier run: give again" in err


def test_json_quiet_own_schema_and_another_separator(fieldwise, log):
    Path("schema.toml").write_text(
        'fields = [{ kind = "categorical", name = "user" }, { kind = "categorical", name = "item" }]\n'
        'label = { column = "click" }\n'
    )
    Path("log.txt").write_bytes(log.write_csv(separator=";").encode("cp1252"))
    words = ("--schema", "schema.toml", "--separator", ";", "--encoding", "cp1252", "--out", "o", "--minutes", 20)
    code, out, err = fieldwise("auto", "log.txt", *words, "--json", "--quiet")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["folder"] == "o"
    assert {line["model"] for line in found["leaderboard"]["lines"]} >= {"constant", "LR", "FM"}
    assert found["recipe"]["data"]["separator"] == ";"


def test_a_file_without_a_header_and_a_clock_that_counts_from_the_start(fieldwise, log, monkeypatch):
    log.write_csv("bare.csv", include_header=False)
    named = "--columns", ",".join(log.columns)
    made = []

    def clock(*given, began):
        made.append((began, time.perf_counter()))
        return Clock(*given, began=began)

    monkeypatch.setattr("fieldwise.automatic.run.Clock", clock)
    before = time.perf_counter()
    code, _, err = fieldwise("auto", "bare.csv", *named, "--label", "click", "--minutes", 20, "--out", "o")
    assert code == 0
    assert before <= made[0][0] < made[0][1], "loading and parsing are of the minutes too"
    assert "s for training: LR may take" in err
    assert re.search(r"^LR: validation .* s of at most [\d.]+ s$", err, re.M)
    commands = [shlex.split(line.rpartition("fieldwise ")[2]) for line in err.splitlines() if line.startswith("next, ")]
    for command in commands[:-1]:
        assert command[-2:] == list(named) or command[-4:-2] == list(named), command
    assert fieldwise(*commands[0])[0] == 0
    assert fieldwise(*commands[2])[0] == 0


def test_ctrl_c_saves_and_exits_as_interrupted(fieldwise, log, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "seconds_of", interrupt)
    log.write_csv("clicks.csv")
    code, _, err = fieldwise("auto", "clicks.csv", "--minutes", 20, "--out", "o")
    assert code == 130
    assert err.endswith("fieldwise: interrupted\n")
    assert Path("o/bundle/bundle.json").is_file()


def test_what_is_typed_wrong_is_one_sentence(subtests, fieldwise, log):
    for words, sentence in [
        (("absent.csv",), "absent.csv"),
        (("clicks.csv", "--label", "clik"), "clik"),
        (("clicks.csv", "--keep", "nope"), "keep must name a column that a field reads, found 'nope'"),
        (("clicks.csv", "--split-column", "nope"), "'nope'"),
        (("clicks.csv", "--out", "clicks.csv"), "is a file: choose another name"),
        (("clicks.csv", "--minutes", "0"), "--minutes"),
    ]:
        with subtests.test(words=words, sentence=sentence):
            log.write_csv("clicks.csv")
            code, out, err = fieldwise("auto", *words)
            assert (code, out) == (2, "")
            assert sentence in err
            assert err.strip().splitlines()[-1].startswith("fieldwise: ")
            assert "Traceback" not in err

"""`--progress json`: lines for machines on standard error."""

import json

import pytest
from cli.test_bad_input import refused


def json_lines(err):
    return [json.loads(line) for line in err.splitlines() if line.startswith("{")]


def test_train_reports_its_phases(done, recipe):
    words = (
        "--progress",
        "json",
        "--json",
        "--set",
        "training.start_from_lr=false",
        "--set",
        "training.mean_with_lr=false",
    )
    out, err = done("train", recipe, "--out", "b", *words)
    lines = json_lines(err)
    # a slow machine says more
    last = {(one["phase"], one.get("epoch")): one for one in lines if "rows" in one}
    assert list(last) == [
        ("preparation", None),
        ("training", 1),
        ("training", 2),
        ("evaluation", None),
    ]
    epochs = [one for (phase, _), one in last.items() if phase == "training"]
    assert all(
        one["rows"] == one["rows_total"] == json.loads(out)["counts"]["train_rows"]
        for one in epochs
    )
    tested = last["evaluation", None]
    assert tested["rows"] == tested["rows_total"] == json.loads(out)["counts"]["test_rows"]
    aucs = [one["evaluation"]["auc"] for one in lines if "evaluation" in one]
    assert max(aucs) == json.loads(out)["valid"]["auc"]
    assert "train loss" not in err, "no lines for people"


def test_predict_reports_its_rows(done, bundle, recipe):
    err = done("predict", bundle, "--data", "log.csv", "--out", "scores.csv", "--progress", "json")[
        1
    ]
    last = json_lines(err)[-1]
    assert (last["phase"], last["rows"], last["rows_total"]) == ("prediction", 400, 400)


def test_another_word_is_refused(fieldwise, recipe):
    refused(
        fieldwise("train", recipe, "--progress", "xml"),
        "--progress must be text or json, found 'xml'",
    )


def test_a_tracker_gets_the_runs_of_train_and_compare(done, recipe, tmp_path):
    pytest.importorskip("tensorboard")
    done("train", recipe, "--out", "b", "--quiet", "--tracker", "tensorboard")
    done("compare", recipe, "--seeds", "1", "--quiet", "--tracker", "tensorboard")
    runs = sorted(
        path.parent.name for path in (tmp_path / "tensorboard").glob("*/events.out.tfevents*")
    )
    assert len(runs) == 2
    assert "seed-0" in runs[1] or "seed-0" in runs[0]


def test_an_unknown_tracker_is_refused_before_the_rows_are_read(fieldwise, recipe):
    code, _, err = fieldwise("train", recipe, "--tracker", "tb")
    assert code == 2
    assert "a tracker must be one of tensorboard, mlflow, wandb, found 'tb'" in err
    assert "rows" not in err

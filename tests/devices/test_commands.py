"""Devices of the commands, from a recipe to predictions; a device that is not there is one sentence."""

import json
import sys

import polars as pl
import pytest
import torch
from recipe_text import recipe_text

from fieldwise.cli import run
from fieldwise.testing import small_log

FIELDS = [
    ("categorical", "user", "user"),
    ("categorical", "item", "item"),
    ("numeric", "price", "item"),
]


@pytest.fixture
def fieldwise(capsys, tmp_path, monkeypatch):
    """Run a command in a folder with a log and a recipe: exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDWISE_CACHE", str(tmp_path / "cache"))
    log = small_log(160).drop("history", "genres").with_row_index("row")
    log.write_csv("log.csv")
    log.unique("item", maintain_order=True).select("item", "price").write_csv("items.csv")
    tower = {"name": "inttower", "embedding_dim": 4, "hidden": [8, 8]}
    training = {"epochs": 1, "batch_size": 32}
    text = recipe_text(
        tmp_path / "log.csv", FIELDS, model=tower, training=training, schema='keys = ["row"]'
    )
    (tmp_path / "mine.toml").write_text(text)

    def call(*arguments):
        capsys.readouterr()
        code = run([str(a) for a in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call


@pytest.mark.slow
def test_every_command_computes_on_the_device_and_a_bundle_does_not_keep_it(
    fieldwise, name, device, tmp_path
):
    on = ("--device", name)

    def done(*arguments):
        code, out, err = fieldwise(*arguments)
        assert code == 0, err
        return out

    def both(*arguments):
        """What a command prints in JSON on the CPU and on the device; `{}` in an argument is the run's number."""
        given = ([a.format(k) if isinstance(a, str) else a for a in arguments] for k in range(2))
        return [
            json.loads(done(*words, "--json", *option))
            for words, option in zip(given, ((), on), strict=True)
        ]

    out = done(
        "train", "mine.toml", "--out", "b", "--quiet", "--json", "--set", f"training.device={name}"
    )
    assert name not in json.loads(out)["training"].values()
    manifest = json.loads((tmp_path / "b" / "bundle.json").read_text())
    assert manifest["about"]["environment"]["device"].startswith(device.type)
    assert "device" not in manifest["about"]["recipe"]["settings"]["training"]
    for file, option in (("here", ()), ("there", on)):
        done("predict", "b", "--data", "log.csv", "--out", f"{file}.csv", *option)
        done("report", "b", "--out", f"{file}.html", *option)
    scores = [pl.read_csv(f"{file}.csv")["prediction"].to_numpy() for file in ("here", "there")]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)
    pages = [len((tmp_path / f"{file}.html").read_text()) for file in ("here", "there")]
    assert pages[1] == pytest.approx(pages[0], rel=0.01)
    metrics = [one["metrics"]["logloss"] for one in both("evaluate", "b")]
    assert metrics[1] == pytest.approx(metrics[0], abs=1e-5)
    done("explain", "b", "--data", "log.csv", "--row", 0, "--json", *on)
    out = done("index", "b", "--items", "items.csv", "--out", "index", "--json", *on)
    assert json.loads(out)["items"] == pl.read_csv("items.csv").height
    calibrated = both("evaluate", "b", "--calibrate", "platt", "--out", "calibrated-{}")
    losses = [
        figures["after"]["logloss"]
        for one in calibrated
        for figures in one["figures"]["test rows"].values()
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    given = ("--index", "index", "--data", "log.csv", "--k", 3, "--candidates", 5, "--rows", 9)
    shares = [
        {name: one[name] for name in ("recall", "ndcg", "hit_rate")}
        for one in both("evaluate", "b", "--tower", "b", *given)
    ]
    assert shares[1] == pytest.approx(shares[0], abs=1e-5)


@pytest.mark.slow
def test_auto_trains_on_the_device(fieldwise, name, device, tmp_path, monkeypatch):
    for library in ("lightgbm", "catboost"):  # trees are trained on the processor
        monkeypatch.setitem(sys.modules, library, None)
    code, _, err = fieldwise(
        "auto", "log.csv", "--minutes", 0.1, "--out", "found", "--json", "--device", name
    )
    assert code == 0, err
    manifest = json.loads((tmp_path / "found" / "bundle" / "bundle.json").read_text())
    assert manifest["about"]["environment"]["device"].startswith(device.type)
    assert "device =" not in (tmp_path / "found" / "recipe.toml").read_text()


def test_compare_reuses_the_runs_of_another_device_with_a_note(fieldwise, name, tmp_path):
    given = ("compare", "mine.toml", "--json", "--store", "runs")
    code, _, err = fieldwise(*given, "--seeds", 1, "--set", f"training.device={name}")
    assert code == 0, err
    code, _, err = fieldwise(*given, "--seeds", 2)
    assert code == 0, err
    assert "seed 0: kept" in err
    assert (
        f"these runs were trained on several devices (cpu; {name}): their seconds do not compare"
        in err
    )
    assert len([folder for folder in (tmp_path / "runs").iterdir() if folder.is_dir()]) == 2


def test_a_device_that_does_not_exist_is_an_error_before_any_work(fieldwise, tmp_path, subtests):
    before, setting = sorted(tmp_path.iterdir()), ("--set", "training.device=cuda:77")
    for arguments in (
        ("train", "mine.toml", "--out", "b", *setting),
        ("compare", "mine.toml", *setting),
        ("tune", "mine.toml", *setting),
        ("auto", "log.csv"),
        ("report", "b"),
        ("predict", "b", "--data", "log.csv", "--out", "scores.csv"),
    ):
        with subtests.test(arguments=arguments):
            is_set = "--set" in arguments
            code, out, err = fieldwise(*arguments, *(() if is_set else ("--device", "cuda:77")))
            assert (code, out) == (2, "")
            assert len(err.strip().splitlines()) == 1
            assert ("training.device" if is_set else "--device") + " = 'cuda:77'" in err
            assert "choose one that this machine has: cpu" in err
            assert sorted(tmp_path.iterdir()) == before
    for arguments in (("evaluate", "b"), ("auto", "log.csv")):
        code, _, err = fieldwise(*arguments, "--device", "the first GPU")
        assert code == 2
        assert (
            err
            == "fieldwise: --device must be auto, cpu, cuda, cuda:N or mps, found 'the first GPU'\n"
        )


@pytest.mark.slow
def test_tune_searches_on_the_device(fieldwise, name, device, tmp_path):
    pytest.importorskip("optuna")
    given = (
        "--trials",
        1,
        "--seeds",
        1,
        "--store",
        "studies",
        "--json",
        "--set",
        f"training.device={name}",
    )
    code, out, err = fieldwise("tune", "mine.toml", *given)
    assert code == 0, err
    record = json.loads(
        (tmp_path / json.loads(out)["runs"][0]["folder"] / "record.json").read_text()
    )
    assert record["environment"]["device"].startswith(device.type)
    assert "device" not in (tmp_path / json.loads(out)["recipe_file"]).read_text()


def test_auto_without_a_gpu_has_a_reason(fieldwise, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    code, _, err = fieldwise(
        "train", "mine.toml", "--out", "b", "--quiet", "--set", "training.device=auto"
    )
    assert code == 0
    assert err.startswith(f"device auto: cpu; PyTorch {torch.__version__} ")
    assert err.count("device auto") == 1
